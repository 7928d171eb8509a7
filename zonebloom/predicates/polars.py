"""Use Polars expressions as filters: Polars evaluates them, and an index gets a predicate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, reduce
from operator import and_
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from zonebloom.base.arguments import suggest_names
from zonebloom.errors import FilterError
from zonebloom.predicates import ast, polars_expression
from zonebloom.predicates.polars_expression import polars_text
from zonebloom.values.normal_types import convert_at_every_depth

if TYPE_CHECKING:
    import polars as pl


def translate_polars(expr: pl.Expr, schema: pa.Schema) -> tuple[PolarsFilter, ast.Predicate]:
    """Translate an expression into a row filter and a predicate.

    Raise `FilterError` if Polars does not confirm that it evaluates the expression row by row.
    """
    import polars as pl

    if not isinstance(expr, pl.Expr):
        raise FilterError(
            f"a Polars {type(expr).__name__} is not a filter; write an expression such as "
            "pl.col('id') == 42, or pl.col('id').is_in(series)"
        )
    for name in expr.meta.root_names():
        # A name such as ^a.*$ stands for several columns.
        if name not in schema.names and not name.startswith("^"):
            known = suggest_names(name, schema.names, "the dataset has")
            raise FilterError(
                f"there is no column {name!r} for the Polars filter {polars_text(expr)}; {known}"
            )
    root = _parse_tree(expr)
    return PolarsFilter(expr, _row_wise_columns(expr, root)), _predicate_from_tree(
        expr, root, schema
    )


def predicate_from_polars(expr: pl.Expr, schema: pa.Schema) -> ast.Predicate:
    return _predicate_from_tree(expr, _parse_tree(expr), schema)


def _has_known_rounding() -> bool:
    """Return whether this Polars version rounds by the rules that we know. Polars 1.x does not."""
    import polars as pl

    return int(pl.__version__.partition(".")[0]) >= 2


def _predicate_from_tree(expr: pl.Expr, root: Any, schema: pa.Schema) -> ast.Predicate:
    if not _has_known_rounding():
        return ast.Unknown(polars_text(expr), "Polars before 2.0 rounds before it compares")
    try:
        return polars_expression.predicate_from_polars_json(root, schema)
    except FilterError:
        raise
    except Exception as error:  # noqa: BLE001 - an unknown format must not make the scan fail
        reason = f"the expression cannot be parsed ({type(error).__name__}: {error})"
        return ast.Unknown(polars_text(expr), reason)


def pushed_down_filter(expr: pl.Expr, schema: pl.Schema) -> PolarsFilter:
    """Return the filter for an expression that Polars pushed down into a scan.

    Polars pushes only expressions down that it evaluates row by row, so this is not checked.
    """
    return PolarsFilter(expr, frozenset(expr.meta.root_names()), schema)


@dataclass(frozen=True, repr=False, eq=False)
class PolarsFilter:
    """A row filter that Polars evaluates.

    `columns` are the columns of the expression, or None if they are not known. If there is a
    schema, tables are cast to its types before the filter is evaluated.
    """

    expr: pl.Expr
    columns: frozenset[str] | None = None
    schema: pl.Schema | None = None

    def matching_rows(self, table: pa.Table) -> np.ndarray:
        """Return the numbers of the rows that match, int64 and ascending."""
        import polars as pl

        frame = to_frame(table, self.schema)
        try:
            try:
                masks = frame.select(self.expr).get_columns()
            except pl.exceptions.PolarsError:
                masks = []
            if len(masks) != 1 or masks[0].dtype != pl.Boolean:
                # Let Polars filter the frame. If the expression is not a filter, its error explains
                # why. It may also succeed where select failed at some rows, because it evaluates
                # the terms one by one.
                return _filter_row_numbers(frame, self.expr)
        except pl.exceptions.PolarsError as error:
            if self.schema is not None:
                # This is a query of Polars, whose users expect the errors of Polars.
                raise
            raise FilterError(
                f"Polars refuses the filter {self}: {error}; correct the filter, or read without "
                "it and filter the frame"
            ) from None
        mask = masks[0].fill_null(False)
        if len(mask) == 1 and frame.height != 1:
            return np.arange(frame.height if mask[0] else 0, dtype=np.int64)
        return np.flatnonzero(mask.to_numpy()).astype(np.int64, copy=False)

    def with_lists(
        self, lists: Sequence[tuple[ast.IsIn, ast.IsIn]], schema: pa.Schema
    ) -> PolarsFilter | None:
        """Return the filter with other lists of keys, or None if it does not have such lists.

        Only lists that are terms of a conjunction are replaced. ``schema`` is that of the rows.
        """
        terms = list(_conjunction_terms(self.expr, _parse_tree(self.expr)))
        is_changed = False
        for number, (term, node) in enumerate(terms):
            predicate = _predicate_from_tree(term, node, schema)
            for old, new in lists:
                if is_same_list(predicate, old):
                    listed = _is_in(new, schema)
                    if listed is not None:
                        terms[number] = listed, None
                        is_changed = True
        if not is_changed:
            return None
        return replace(self, expr=reduce(and_, [term for term, _ in terms]))

    def __str__(self) -> str:
        return polars_text(self.expr)

    def __repr__(self) -> str:
        return f"PolarsFilter({self})"


def _filter_row_numbers(frame: pl.DataFrame, expr: pl.Expr) -> np.ndarray:
    name = "row"
    while name in frame.columns:
        name += "_"
    rows = frame.with_row_index(name).filter(expr).get_column(name)
    return rows.to_numpy().astype(np.int64, copy=False)


def has_types_of_polars(schema: pa.Schema) -> bool:
    """Return whether Polars has the types of all columns."""
    return all(_type_for_polars(field.type).equals(field.type) for field in schema)


def to_frame(table: pa.Table, schema: pl.Schema | None = None) -> pl.DataFrame:
    """Return a table as a frame. Columns are cast to the types of the schema, if there is one.

    Times of a zone that Polars does not have, such as +05:30, are in UTC.
    """
    import polars as pl

    for number, field in enumerate(table.schema):
        type_ = _type_for_polars(field.type)
        if not type_.equals(field.type):
            column = table.column(number).cast(type_)
            table = table.set_column(number, field.with_type(type_), column)
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    if schema is None:
        return frame
    casts = {name: schema[name] for name, dtype in frame.schema.items() if schema[name] != dtype}
    return frame.cast(casts) if casts else frame  # pyright: ignore[reportArgumentType]


def _type_for_polars(type_: pa.DataType) -> pa.DataType:
    """Return a type itself, or the nearest that Polars can import."""

    def convert(leaf: Any) -> pa.DataType:
        if pa.types.is_decimal256(leaf):
            # Polars stores decimals of up to 38 digits.
            return pa.decimal128(min(leaf.precision, 38), leaf.scale)
        if pa.types.is_timestamp(leaf) and not _is_zone_of_polars(leaf.tz):
            return pa.timestamp(leaf.unit, "UTC")
        return leaf

    return convert_at_every_depth(type_, convert)


@cache
def _is_zone_of_polars(zone: str | None) -> bool:
    import polars as pl

    if zone is None:
        return True
    try:
        pl.from_arrow(pa.array([], pa.timestamp("us", zone)))
    except pl.exceptions.PolarsError:
        return False
    return True


def _conjunction_terms(expr: pl.Expr, root: Any) -> Iterator[tuple[pl.Expr, Any]]:
    """Yield the terms of a conjunction from left to right, with their trees."""
    stack = [(expr, root)]
    while stack:
        inner_expr, node = stack.pop()
        match node:
            case {"BinaryExpr": {"left": left, "op": "And" | "LogicalAnd", "right": right}}:
                # `pop` returns the inputs in reverse order.
                stack += zip(inner_expr.meta.pop(), (right, left), strict=True)
            case _:
                yield inner_expr, node


def is_same_list(predicate: ast.Predicate | None, listed: ast.Predicate | None) -> bool:
    return (
        isinstance(predicate, ast.IsIn)
        and isinstance(listed, ast.IsIn)
        and predicate.column == listed.column
        and predicate.null_matches == listed.null_matches
        and predicate.values.equals(listed.values)
    )


def _is_in(listed: ast.IsIn, schema: pa.Schema) -> pl.Expr | None:
    """Return the expression of a list of keys, or None if Polars may compare them otherwise."""
    import polars as pl

    name, *nested_path = listed.column
    kind = schema.field(name).type
    if nested_path or listed.null_matches or listed.values.type != kind:
        return None
    values = pl.from_arrow(listed.values)
    assert isinstance(values, pl.Series)
    return pl.col(name).is_in(values.implode())


def _row_wise_columns(expr: pl.Expr, root: Any) -> frozenset[str]:
    """Return the columns of an expression that Polars evaluates row by row.

    Raise `FilterError` unless Polars confirms that no row depends on other rows.
    """
    names: set[str] = set()
    try:
        stack = [(expr, root)]
        while stack:
            inner_expr, node = stack.pop()
            match node:
                case {"Column": str(name)}:
                    names.add(name)
                case {"Literal": {"Scalar": _} | {"Dyn": _}}:
                    pass
                # Handle operators here, because asking Polars about each term of a long chain is
                # slow. `pop` returns the inputs in reverse order.
                case {"BinaryExpr": {"left": left, "right": right}}:
                    stack += zip(inner_expr.meta.pop(), (right, left), strict=True)
                case {"Function": {"input": [inner, values], "function": {"Boolean": {"IsIn": _}}}}:
                    lookup, column = inner_expr.meta.pop()
                    stack.append((column, inner))
                    # A literal series is the same set for each row.
                    if "Series" not in values.get("Literal", ()):
                        stack.append((lookup, values))
                case _:
                    stack += [(input, _parse_tree(input)) for input in _row_wise_inputs(inner_expr)]
    except Exception as error:  # noqa: BLE001 - Polars cannot tell, or its API has changed
        raise FilterError(
            f"the result of {polars_text(expr)} for a row may depend on other rows ({error}), "
            "and a scan that skips rows does not read them all; collect first, then filter"
        ) from None
    return frozenset(names)


def _row_wise_inputs(expr: pl.Expr) -> list[pl.Expr]:
    """Return the inputs of an expression. Raise `ValueError` if it is not evaluated row by row.

    `is_row_separable` looks only at the outermost function, so callers check the inputs as well.
    """
    meta, inputs = expr.meta, expr.meta.pop()
    is_row_wise = meta.is_row_separable() and (
        meta.is_length_preserving() or (not meta.root_names() and meta.is_scalar())
    )
    if not inputs or not is_row_wise:
        raise ValueError(polars_text(expr))
    return inputs


def _parse_tree(expr: pl.Expr) -> Any:
    try:
        return polars_expression.parse_expression(expr)
    except Exception:  # noqa: BLE001 - an unknown expression means that all zones are read
        return None
