"""Polars expressions as filters: brought to predicates, and applied as Polars applies them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from zonebloom.errors import FilterError
from zonebloom.predicates import ast, polars_expression

if TYPE_CHECKING:
    import polars as pl


def translate_polars(expr: pl.Expr, schema: pa.Schema) -> tuple[PolarsFilter, ast.Predicate]:
    import polars as pl

    if not isinstance(expr, pl.Expr):
        raise FilterError(
            f"a Polars {type(expr).__name__} is no filter; write an expression such as "
            "pl.col('id') == 42, or pl.col('id').is_in(series)"
        )
    root = _read(expr)
    return PolarsFilter(expr, _row_wise_columns(expr, root)), _to_predicate(expr, root, schema)


def predicate_from_polars(expr: pl.Expr, schema: pa.Schema) -> ast.Predicate:
    return _to_predicate(expr, _read(expr), schema)


def _is_known_version() -> bool:
    """Whether Polars is of a version whose rounding is known: 1.x rounds before it compares."""
    import polars as pl

    return int(pl.__version__.partition(".")[0]) >= 2


def _to_predicate(expr: pl.Expr, root: Any, schema: pa.Schema) -> ast.Predicate:
    if not _is_known_version():
        return ast.Unknown(ast.shorten(str(expr)), "Polars before 2.0 rounds before it compares")
    try:
        return polars_expression.predicate_from_polars_json(root, schema)
    except Exception as error:  # noqa: BLE001 - a filter is never the reason to fail
        reason = f"the expression cannot be taken apart ({type(error).__name__}: {error})"
        return ast.Unknown(ast.shorten(str(expr)), reason)


def pushed_down_filter(expr: pl.Expr, schema: pl.Schema) -> PolarsFilter:
    """A filter of an expression that Polars itself brought to a scan: it is row by row."""
    return PolarsFilter(expr, frozenset(expr.meta.root_names()), schema)


class PolarsFilter:
    def __init__(
        self, expr: pl.Expr, columns: frozenset[str] | None = None, schema: pl.Schema | None = None
    ):
        self._expr = expr
        self._columns = columns
        self._schema = schema

    @property
    def columns(self) -> frozenset[str] | None:
        return self._columns

    def matching_rows(self, table: pa.Table) -> np.ndarray:
        import polars as pl

        frame = to_frame(table, self._schema)
        try:
            try:
                masks = frame.select(self._expr).get_columns()
            except pl.exceptions.PolarsError:
                masks = []
            if len(masks) != 1 or masks[0].dtype != pl.Boolean:
                # Polars has the words for what is no filter; and to a filter that fails at some
                # rows it may still have an answer, by looking at its terms one by one.
                return _by_filtering(frame, self._expr)
        except pl.exceptions.PolarsError as error:
            if self._schema is not None:
                # In a query of Polars its users expect its errors.
                raise
            raise FilterError(
                f"Polars refuses the filter {self}: {error}; correct the filter, or read without "
                "it and filter the frame"
            ) from None
        mask = masks[0].fill_null(False)
        if len(mask) == 1 and frame.height != 1:
            return np.arange(frame.height if mask[0] else 0, dtype=np.int64)
        return np.flatnonzero(mask.to_numpy()).astype(np.int64, copy=False)

    def __str__(self) -> str:
        return ast.shorten(str(self._expr))

    def __repr__(self) -> str:
        return f"PolarsFilter({self})"


def _by_filtering(frame: pl.DataFrame, expr: pl.Expr) -> np.ndarray:
    name = "row"
    while name in frame.columns:
        name += "_"
    rows = frame.with_row_index(name).filter(expr).get_column(name)
    return rows.to_numpy().astype(np.int64, copy=False)


def to_frame(table: pa.Table, schema: pl.Schema | None = None) -> pl.DataFrame:
    """A table as Polars would have read it from a file."""
    import polars as pl

    for number, each in enumerate(table.schema):
        if pa.types.is_decimal256(each.type):
            # Polars holds 38 digits and takes no wider integers from Arrow.
            narrow = pa.decimal128(min(each.type.precision, 38), each.type.scale)
            column = table.column(number).cast(narrow)
            table = table.set_column(number, each.with_type(narrow), column)
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    if schema is None:
        return frame
    other = {name: schema[name] for name, kind in frame.schema.items() if schema[name] != kind}
    return frame.cast(other) if other else frame  # pyright: ignore[reportArgumentType]


def _row_wise_columns(expr: pl.Expr, root: Any) -> frozenset[str]:
    """Columns of an expression, or FilterError where Polars does not say that it is row by row."""
    names: set[str] = set()
    try:
        stack = [(expr, root)]
        while stack:
            part, node = stack.pop()
            match node:
                case {"Column": str(name)}:
                    names.add(name)
                case {"Literal": {"Scalar": _} | {"Dyn": _}}:
                    pass
                # Polars takes long to say it of each term of a long chain.
                case {"BinaryExpr": {"left": left, "right": right}}:
                    stack += zip(part.meta.pop(), (right, left), strict=True)
                case {"Function": {"input": [inner, values], "function": {"Boolean": {"IsIn": _}}}}:
                    lookup, column = part.meta.pop()
                    stack.append((column, inner))
                    # A series that values are looked up in is whole for each row.
                    if "Series" not in values.get("Literal", ()):
                        stack.append((lookup, values))
                case _:
                    stack += [(each, _read(each)) for each in _inputs(part)]
    except Exception as error:  # noqa: BLE001 - Polars cannot say, or says it no more
        raise FilterError(
            f"whether a row passes {ast.shorten(str(expr))} may depend on other rows or on what "
            f"Polars cannot tell ({error}), and a scan that skips rows does not see them all; "
            "collect first, then filter"
        ) from None
    return frozenset(names)


def _inputs(expr: pl.Expr) -> list[pl.Expr]:
    """What an expression is of, if it is row by row; `is_row_separable` looks at its top alone."""
    meta, inputs = expr.meta, expr.meta.pop()
    passes = meta.is_row_separable() and (
        meta.is_length_preserving() or (not meta.root_names() and meta.is_scalar())
    )
    if not inputs or not passes:
        raise ValueError(ast.shorten(str(expr)))
    return inputs


def _read(expr: pl.Expr) -> Any:
    try:
        return polars_expression.parse_polars_json(expr.meta.serialize(format="json"))
    except Exception:  # noqa: BLE001 - whatever it is, all zones are read
        return None
