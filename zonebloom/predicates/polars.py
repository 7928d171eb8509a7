"""Polars expressions: brought to predicates, and applied as Polars applies them.

A Polars expression says what it is made of as JSON, in the optimizer's own words:

    pl.col("id") == 5    {"BinaryExpr": {"left": {"Column": "id"}, "op": "Eq",
                                         "right": {"Literal": {"Dyn": {"Int": 5}}}}}

That form is Polars' own business and may change, so a part that is not exactly as known here is
`Unknown`: slower, never wrong. What Polars compares after rounding is `Unknown` too; the rules
are in `polars_rules`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from zonebloom.errors import FilterError
from zonebloom.predicates import ast
from zonebloom.predicates import polars_rules as rules
from zonebloom.predicates.engine_filter import EngineFilter
from zonebloom.predicates.polars_json import kind_of, literal_of, read, set_of, type_of
from zonebloom.values.columns import resolve
from zonebloom.values.literal import Maybe

if TYPE_CHECKING:
    import polars as pl

_ORDER: dict[str, rules.Operator] = {"Lt": "<", "LtEq": "<=", "Gt": ">", "GtEq": ">="}
_EQUALITIES = {"Eq": "=", "NotEq": "!=", "EqValidity": "<=>", "NotEqValidity": "IS DISTINCT FROM"}
_JUNCTIONS = {"And": "AND", "LogicalAnd": "AND", "Or": "OR", "LogicalOr": "OR"}
_SYMBOLS = {
    **_ORDER,
    **_EQUALITIES,
    **_JUNCTIONS,
    "Xor": "XOR",
    "Plus": "+",
    "Minus": "-",
    "Multiply": "*",
    "Divide": "/",
    "TrueDivide": "/",
    "Modulus": "%",
}
# Of one row alone, whatever their arguments are.
_ROW_WISE = {"IsNull", "IsNotNull", "Not", "IsIn", "IsBetween", "AllHorizontal", "AnyHorizontal"}
# What a part of another form than known fails with.
_STRANGE = (Maybe, LookupError, TypeError, AttributeError)


def translate_polars(expr: pl.Expr, schema: pa.Schema) -> tuple[EngineFilter, ast.Predicate]:
    """Bring a Polars expression to a filter of rows and a predicate."""
    import polars as pl

    if not isinstance(expr, pl.Expr):
        raise FilterError(
            f"a Polars {type(expr).__name__} is no filter; write an expression such as "
            "pl.col('id') == 42, or pl.col('id').is_in(series)"
        )
    root = _read(expr)
    columns = _columns(root)
    if columns is None:
        columns = _row_wise_columns(expr)
    return PolarsFilter(expr, columns), _to_predicate(root, expr, schema)


def to_predicate(expr: pl.Expr, schema: pa.Schema) -> ast.Predicate:
    """What an index can answer of a Polars expression.

    >>> import polars as pl
    >>> schema = pa.schema({"id": pa.int64(), "name": pa.string()})
    >>> print(to_predicate((pl.col("id") == 42) & (pl.col("name") > "m"), schema))
    id = 42 AND name > 'm'
    """
    return _to_predicate(_read(expr), expr, schema)


def filter_of(expr: pl.Expr, schema: pl.Schema) -> PolarsFilter:
    """A filter of an expression that Polars itself brought to a scan: it is row by row."""
    return PolarsFilter(expr, _columns(_read(expr)), schema)


class PolarsFilter:
    """A Polars expression as a filter of rows."""

    def __init__(
        self,
        expr: pl.Expr,
        columns: frozenset[str] | None = None,
        schema: pl.Schema | None = None,
    ):
        self._expr = expr
        self._columns = columns
        self._schema = schema

    @property
    def columns(self) -> frozenset[str] | None:
        """Top-level columns it reads."""
        return self._columns

    def matching_rows(self, table: pa.Table) -> np.ndarray:
        """Numbers of the rows it is true for, ascending, int64."""
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
        return ast.shortened(str(self._expr))

    def __repr__(self) -> str:
        return f"PolarsFilter({self})"


def _by_filtering(frame: pl.DataFrame, expr: pl.Expr) -> np.ndarray:
    """Numbers of the rows that are left of a frame."""
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


def _read(expr: pl.Expr) -> Any:
    """The tree of an expression, or the error why it cannot be read."""
    try:
        return read(expr.meta.serialize(format="json"))
    except Exception as error:  # noqa: BLE001 - whatever it is, all zones are read
        return error


def _to_predicate(root: Any, expr: pl.Expr, schema: pa.Schema) -> ast.Predicate:
    try:
        if isinstance(root, Exception):
            raise root
        return ast.simplified(_condition(root, schema))
    except Exception as error:  # noqa: BLE001 - a filter is never the reason to fail
        reason = f"the expression cannot be taken apart ({type(error).__name__}: {error})"
        return ast.Unknown(ast.shortened(str(expr)), reason)


def _condition(node: Any, schema: pa.Schema) -> ast.Predicate:
    """Read a node as a condition on rows."""
    try:
        meaning = _meaning(node, schema)
    except Maybe as error:
        return ast.Unknown(_text(node), str(error))
    if isinstance(meaning, rules.Column):
        if rules.family(meaning.seen) == "boolean" and meaning.stored == meaning.seen:
            return ast.Equals(meaning.path, pa.scalar(True))
        return ast.Unknown(_text(node), "the column is no condition")
    if isinstance(meaning, pa.Scalar):
        if pa.types.is_boolean(meaning.type) or pa.types.is_null(meaning.type):
            return ast.Constant(meaning.as_py())
        return ast.Unknown(_text(node), "the literal is no condition")
    return meaning


def _meaning(node: Any, schema: pa.Schema) -> Any:
    """Say what a node means: a predicate, a `rules.Column`, or a `pa.Scalar`."""
    kind, body = kind_of(node)
    if kind == "Column":
        return _column(body, schema)
    if kind == "Literal":
        return literal_of(body)
    if kind == "Alias":
        return _meaning(body[0], schema)
    if kind == "BinaryExpr":
        return _binary(node, body, schema)
    if kind == "Cast":
        return _cast(body, schema)
    if kind == "Ternary":
        return _ternary(body, schema)
    if kind == "Function":
        return _function(body, schema)
    if kind == "Selector":
        raise Maybe("it stands for several columns, or for one told by place or type")
    raise Maybe(f"a Polars {kind} is not answered by a Bloom filter")


def _column(name: Any, schema: pa.Schema) -> rules.Column:
    if not isinstance(name, str) or _is_pattern(name):
        raise Maybe("it stands for several columns")
    try:
        type_ = resolve(schema, (name,))
    except LookupError as error:
        raise Maybe(error.args[0]) from None
    return rules.Column((name,), type_, type_)


def _is_pattern(name: str) -> bool:
    return name.startswith("^") and name.endswith("$")


def _binary(node: Any, body: Any, schema: pa.Schema) -> ast.Predicate:
    operator = body["op"]
    if operator in _JUNCTIONS:
        join = ast.conjunction if _JUNCTIONS[operator] == "AND" else ast.disjunction
        return join(_condition(term, schema) for term in _terms(node, _JUNCTIONS[operator]))
    if operator not in _EQUALITIES and operator not in _ORDER:
        raise Maybe(f"the operator {_SYMBOLS.get(operator, operator)} is not answered")
    left, right = _meaning(body["left"], schema), _meaning(body["right"], schema)
    flipped = isinstance(left, pa.Scalar)
    if flipped:
        left, right = right, left
    if not isinstance(left, rules.Column) or not isinstance(right, pa.Scalar):
        raise Maybe("only a column compared with a literal is answered by a Bloom filter")
    if operator in _ORDER:
        if not right.is_valid:
            return ast.Constant(None)
        order = _ORDER[operator]
        return rules.compares(left, ast.FLIPPED[order] if flipped else order, right)
    if right.is_valid:
        if operator not in ("Eq", "NotEq"):
            rules.check_not_null(left, right)
        equal = rules.equals(left, right)
    elif operator in ("Eq", "NotEq"):
        equal = ast.Constant(None)
    else:
        equal = _is_null(left)
    return equal if operator in ("Eq", "EqValidity") else ast.negation(equal)


def _terms(node: Any, symbol: str) -> list[Any]:
    """The terms of a chain, left to right; programs make long ones, deep on the left."""
    terms: list[Any] = []
    while True:
        kind, body = kind_of(node)
        if kind != "BinaryExpr" or _JUNCTIONS.get(body["op"]) != symbol:
            break
        terms.append(body["right"])
        node = body["left"]
    return [node, *reversed(terms)]


def _cast(body: Any, schema: pa.Schema) -> rules.Column | pa.Scalar:
    inner, target = _meaning(body["expr"], schema), type_of(body["dtype"])
    if isinstance(inner, rules.Column):
        return rules.cast(inner, target)
    if isinstance(inner, pa.Scalar):
        if not inner.is_valid:
            return pa.scalar(None, target)
        if rules.family(inner.type) == rules.family(target) in ("integer", "text"):
            try:
                return inner.cast(target)
            except pa.ArrowInvalid:
                raise Maybe(f"the literal is no {target}") from None
        raise Maybe("the literal is wrapped in a cast")
    raise Maybe("a condition is wrapped in a cast")


def _ternary(body: Any, schema: pa.Schema) -> ast.Predicate:
    # So the optimizer writes a comparison that no value of the column's type can meet.
    ends = [_condition(body[name], schema) for name in ("truthy", "falsy")]
    if all(isinstance(end, ast.Constant) and end.value is not True for end in ends):
        return ends[0] if ends[0] == ends[1] else ast.Constant(False)
    raise Maybe("when-then-otherwise is not answered by a Bloom filter")


def _function(body: Any, schema: pa.Schema) -> ast.Predicate | rules.Column:
    arguments, function = body["input"], body["function"]
    name, options = kind_of(function)
    if name == "StructExpr":
        return _leaf(arguments, options, schema)
    if name != "Boolean":
        raise Maybe(f"the function {_function_text(function)} is not answered")
    name, options = kind_of(options)
    if name in ("AllHorizontal", "AnyHorizontal"):
        made = ast.And if name == "AllHorizontal" else ast.Or
        return made(tuple(_condition(argument, schema) for argument in arguments))
    if name == "Not" and len(arguments) == 1:
        return ast.negation(_condition(arguments[0], schema))
    if name not in ("IsNull", "IsNotNull", "IsIn", "IsBetween"):
        raise Maybe(f"the function {_function_text(function)} is not answered")
    column = _meaning(arguments[0], schema)
    if not isinstance(column, rules.Column):
        raise Maybe("only a column by itself is answered by a Bloom filter")
    if name in ("IsNull", "IsNotNull") and len(arguments) == 1:
        null = _is_null(column)
        return null if name == "IsNull" else ast.Not(null)
    if name == "IsIn" and len(arguments) == 2:
        return rules.is_in(column, set_of(arguments[1]), options["nulls_equal"] is True)
    if name == "IsBetween" and len(arguments) == 3:
        low, high = (_meaning(argument, schema) for argument in arguments[1:])
        return _between(column, low, high, options["closed"])
    raise Maybe(f"the function {name} has other arguments")


def _leaf(arguments: Any, options: Any, schema: pa.Schema) -> rules.Column:
    name, field = kind_of(options)
    struct = _meaning(arguments[0], schema)
    if name != "FieldByName" or len(arguments) != 1 or not isinstance(struct, rules.Column):
        raise Maybe("only a field of a struct column, by name, is answered")
    if not isinstance(struct.seen, pa.StructType) or struct.seen.get_field_index(field) < 0:
        raise Maybe(f"{ast.column_text(struct.path)} has no field {field}, or more than one")
    type_ = struct.seen.field(field).type
    return rules.Column((*struct.path, field), type_, type_)


def _is_null(column: rules.Column) -> ast.Predicate:
    if column.stored != column.seen:
        raise Maybe("a cast may make nulls")
    if rules.family(column.stored) == "":
        raise Maybe(f"the nulls of {column.stored} are not indexed")
    return ast.IsNull(column.path)


def _between(column: rules.Column, low: Any, high: Any, closed: str) -> ast.Predicate:
    if not isinstance(low, pa.Scalar) or not isinstance(high, pa.Scalar):
        raise Maybe("only literal bounds are answered")
    if closed not in ("Both", "Left", "Right", "None"):
        raise Maybe(f"is_between is closed on {closed}")
    if not low.is_valid or not high.is_valid:
        # False for a row beyond the other bound, true for none.
        return ast.Constant(False)
    if low.type != high.type:
        raise Maybe(f"bounds of two types, {low.type} and {high.type}, meet in a third")
    above = rules.compares(column, ">=" if closed in ("Both", "Left") else ">", low)
    below = rules.compares(column, "<=" if closed in ("Both", "Right") else "<", high)
    if closed == "Both" and (above, below) == (
        ast.Compares(column.path, ">=", low),
        ast.Compares(column.path, "<=", high),
    ):
        return rules.between(column, low, high)
    return ast.And((above, below))


def _text(node: Any, deep: int = 4) -> str:
    """Write a node as SQL would, for people; long ones are cut."""
    if deep == 0:
        return "..."
    try:
        kind, body = kind_of(node)
        if kind == "Column":
            text = ast.column_text((body,))
        elif kind == "Literal":
            text = _literal_text(body)
        elif kind == "Alias":
            text = _text(body[0], deep)
        elif kind == "BinaryExpr":
            left, right = _text(body["left"], deep - 1), _text(body["right"], deep - 1)
            text = f"{left} {_SYMBOLS.get(body['op'], body['op'])} {right}"
        elif kind == "Cast":
            text = f"cast({_text(body['expr'], deep - 1)})"
        elif kind == "Function":
            inner = ", ".join(_text(argument, deep - 1) for argument in body["input"])
            text = f"{_function_text(body['function'])}({inner})"
        else:
            text = kind
    except _STRANGE:
        text = "..."
    return ast.shortened(text)


def _literal_text(body: Any) -> str:
    try:
        return ast.value_text(literal_of(body))
    except Maybe:
        values = set_of({"Literal": body})
        return f"{len(values):,} values"


def _function_text(function: Any) -> str:
    """The innermost name: {"StringExpr": {"Contains": ...}} is Contains."""
    name, options = kind_of(function)
    if name in ("Boolean", "StringExpr", "TemporalExpr", "BinaryExpr", "StructExpr", "ListExpr"):
        name, _ = kind_of(options)
    return name


def _columns(root: Any) -> frozenset[str] | None:
    """Columns of a tree of nodes that are row by row for certain; None if one is not."""
    names, stack = set(), [root]
    try:
        while stack:
            kind, body = kind_of(stack.pop())
            if kind == "Column" and not _is_pattern(body):
                names.add(body)
            elif kind == "Alias":
                stack.append(body[0])
            elif kind == "BinaryExpr":
                stack += [body["left"], body["right"]]
            elif kind == "Cast":
                stack.append(body["expr"])
            elif kind == "Ternary":
                stack += [body["predicate"], body["truthy"], body["falsy"]]
            elif kind == "Function":
                stack += _row_wise_arguments(body)
            elif kind != "Literal" or kind_of(body)[0] not in ("Scalar", "Dyn"):
                return None
    except _STRANGE:
        return None
    return frozenset(names)


def _row_wise_arguments(body: Any) -> list[Any]:
    name, options = kind_of(body["function"])
    inner, arguments = kind_of(options)[0], body["input"]
    if (name, inner) == ("Boolean", "IsIn"):
        kind, values = kind_of(arguments[1])
        # A series that values are looked up in is whole for each row.
        if kind == "Literal" and kind_of(values)[0] == "Series":
            return arguments[:1]
    if (name, inner) == ("StructExpr", "FieldByName") or (name == "Boolean" and inner in _ROW_WISE):
        return arguments
    raise Maybe(f"whether {inner} is of one row is not known")


def _row_wise_columns(expr: pl.Expr) -> frozenset[str]:
    """Columns of an expression that Polars itself says is row by row.

    `is_row_separable` looks at the outermost node alone, so every node is asked.
    """
    names: set[str] = set()
    stack = [expr]
    while stack:
        each = stack.pop()
        try:
            inner = each.meta.pop()
            if any(_is_series(part) for part in inner):
                # Only as a set to look values up in is a series no column of its own.
                columns = _columns(_read(each))
                passes, inner = columns is not None, []
                names |= columns or frozenset()
            elif not inner and each.meta.is_column():
                names.update(each.meta.root_names())
                passes = True
            elif not inner:
                passes = each.meta.is_literal() and each.meta.is_scalar()
            else:
                passes = each.meta.is_row_separable() and (
                    each.meta.is_length_preserving()
                    or (not each.meta.root_names() and each.meta.is_scalar())
                )
        except Exception:  # noqa: BLE001 - Polars cannot say, or says it no more
            inner, passes = [], False
        if not passes:
            raise FilterError(
                f"whether a row passes {ast.shortened(str(expr))} may depend on other rows or on "
                f"what Polars cannot tell ({ast.shortened(str(each))}), and a scan that skips rows "
                "does not see them all; collect first, then filter"
            )
        stack.extend(inner)
    return frozenset(names)


def _is_series(expr: pl.Expr) -> bool:
    return expr.meta.is_literal() and not expr.meta.is_scalar()
