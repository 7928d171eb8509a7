"""Write predicates as PyArrow expressions, evaluate them, and tell which comparisons are exact.

PyArrow casts one or both sides before it compares them, so a comparison is exact only if no cast
rounds. The rules come from measurements. The two main traps are:

- `is_in` casts the *set* to the column's type. The double 0.1 then finds the float 0.1, the
  timestamp 00:00:00.001 finds the date, and the string '5' finds the integer.
- A decimal and a float are compared after rounding.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from zonebloom.base import arguments
from zonebloom.errors import FilterError
from zonebloom.predicates import ast
from zonebloom.predicates.arrow_form import (
    SHORTEN_ADVICE,
    columns_cast_to_integers,
    expression_text,
    referenced_columns,
)
from zonebloom.predicates.ast import shorten
from zonebloom.values.columns import find_leaf_type
from zonebloom.values.literal import floats_to_find, integers_in_range
from zonebloom.values.normal_types import comparable_type, decoded_type, without_views
from zonebloom.values.types import family, is_comparable, is_flat, time_zone_mismatch_message

ORDER_OPERATORS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}

# PyArrow nests one level per term when it simplifies a chain. With ten thousand terms it
# overflowed its stack in tests.
_MAX_CHAIN_TERMS = 4000

PathResolver: TypeAlias = "Callable[[ast.ColumnPath], tuple[pc.Expression, pa.DataType]]"


def expression_from_predicate(
    predicate: ast.Predicate, schema: pa.Schema, *, exact: bool = False
) -> pc.Expression:
    """Return a predicate as the expression that PyArrow evaluates on rows.

    A filter drops rows whose condition is null as well as rows whose condition is false. So the
    expression distinguishes null from false only below a NOT, or everywhere if `exact`.
    """

    def resolve(path: ast.ColumnPath) -> tuple[pc.Expression, pa.DataType]:
        type_ = find_leaf_type(schema, path)
        if type_ is None:
            suggestion = arguments.suggest_names(".".join(path), schema.names, "the columns are")
            raise FilterError(f"there is no column {ast.column_text(path)}; {suggestion}")
        return pc.field(path[0]) if len(path) == 1 else pc.field(*path), type_

    return build_expression(predicate, resolve, exact)


def build_expression(predicate: ast.Predicate, resolve: PathResolver, exact: bool) -> pc.Expression:
    """Return a predicate as an expression. `resolve` returns the expression and type of a path.

    If `exact`, the expression is null where the condition is null. Otherwise it may be false there.
    """
    match predicate:
        case ast.And(terms) | ast.Or(terms):
            expressions = [build_expression(term, resolve, exact) for term in terms]
            return join_conditions(expressions, isinstance(predicate, ast.Or))
        case ast.Not(term):
            return ~build_expression(term, resolve, exact=True)
        case ast.Constant(value):
            return pc.scalar(pa.scalar(value, pa.bool_()))
        case ast.Unknown(text=text, expression=expression):
            if expression is None:
                raise FilterError(
                    f"the meaning of {text!r} is unknown, so it cannot be evaluated; leave it out"
                )
            return expression
        case ast.IsNull(path):
            return resolve(path)[0].is_null()
        case ast.IsIn(path, values, null_matches):
            return _is_in(path, values, null_matches, resolve, exact)
        case ast.Equals(path, value):
            column, value = _comparison_sides(path, value, resolve)
            return column == value
        case ast.Compares(path, symbol, value):
            return ORDER_OPERATORS[symbol](*_comparison_sides(path, value, resolve))


def join_conditions(terms: list[pc.Expression], is_or: bool) -> pc.Expression:
    require_short_chain(len(terms))
    return join_balanced(terms, is_or)


def require_short_chain(num_terms: int) -> None:
    """Raise `FilterError` if a chain of AND or OR has too many terms."""
    if num_terms > _MAX_CHAIN_TERMS:
        raise FilterError(
            f"the filter joins more than {_MAX_CHAIN_TERMS:,} conditions that are not equalities "
            f"of one column; {SHORTEN_ADVICE}"
        )


def join_balanced(terms: list[pc.Expression], is_or: bool) -> pc.Expression:
    """Join terms in pairs, so that the depth is the logarithm of their number."""
    while len(terms) > 1:
        pairs = [a | b if is_or else a & b for a, b in zip(terms[::2], terms[1::2], strict=False)]
        terms = pairs + terms[len(pairs) * 2 :]
    return terms[0] if terms else pc.scalar(not is_or)


def cast_to_comparable(
    expression: pc.Expression, type_: pa.DataType
) -> tuple[pc.Expression, pa.DataType]:
    """Cast an expression to a type that PyArrow can compare. Return the expression and the type."""
    target_type = comparable_type(type_)
    # PyArrow casts a dictionary only to the type of its values. Views were replaced before the
    # expression is evaluated.
    values_type = without_views(decoded_type(type_))
    if values_type not in (without_views(type_), target_type):
        expression = expression.cast(values_type)
    return (expression if target_type == type_ else expression.cast(target_type)), target_type


def equal_is_exact(column: pa.DataType, literal: pa.DataType) -> bool:
    """Return whether PyArrow's `equal` compares the exact values of a column and a literal."""
    match family(column), family(literal):
        case "float", "decimal":
            return False
        case "integer", "float":
            # PyArrow casts the column to float and fails if a value would be rounded.
            return not pt.is_float16(decoded_type(literal))
    return is_comparable(column, literal)


def lookup_is_exact(column: pa.DataType, values: pa.Array) -> bool:
    """Return whether PyArrow's `is_in` compares the exact values of a column and a set."""
    column, literal = decoded_type(column), values.type
    if column == literal:
        return is_flat(column)
    kind = family(column)
    if kind != family(literal) or not kind or pt.is_date(column) or pt.is_date(literal):
        return False
    if kind == "float":
        # PyArrow casts the set to the column's type without a check, so check it here.
        return not pt.is_float16(column) and values.cast(column, safe=False).cast(literal).equals(
            values
        )
    return True


def _is_in(
    path: ast.ColumnPath, values: pa.Array, null_matches: bool, resolve: PathResolver, exact: bool
) -> pc.Expression:
    column, type_ = cast_to_comparable(*resolve(path))
    is_null = column.is_null()
    values = values.cast(comparable_type(values.type))
    if len(values):
        _check_literal_time_zone(path, type_, values[0])
    if len(values) and not lookup_is_exact(type_, values):
        sides = [_comparison_sides(path, value, resolve) for value in values]
        is_member = join_conditions([column == value for column, value in sides], is_or=True)
    else:
        if pt.is_fixed_size_binary(type_):
            values = _values_of_width(values, type_)
        elif pt.is_floating(values.type):
            values = floats_to_find(values)
        elif pt.is_integer(type_):
            values, _ = integers_in_range(values, type_)
        is_member = column.isin(values)
    if null_matches:
        return is_member | is_null
    if not exact:
        return is_member
    # PyArrow's is_in returns false for null, but IN returns null in SQL. pa.scalar(None) would
    # import pandas to recognise the nulls of pandas.
    return is_member | (is_null & pc.scalar(pa.nulls(1, pa.bool_())[0]))


def _comparison_sides(
    path: ast.ColumnPath, value: pa.Scalar, resolve: PathResolver
) -> tuple[pc.Expression, pa.Scalar]:
    column, type_ = resolve(path)
    is_of_its_type = value.type == type_ == comparable_type(type_)
    if not is_of_its_type:
        column, type_ = cast_to_comparable(column, type_)
        value = value.cast(comparable_type(value.type))
        _check_literal_time_zone(path, type_, value)
    if not equal_is_exact(type_, value.type):
        raise FilterError(
            f"{ast.column_text(path)} is {type_}, and PyArrow would round a {value.type} to "
            f"compare them; give the literal as {type_}"
        )
    if is_of_its_type:
        return column, value
    if type_ != value.type and (pt.is_integer(type_) or pt.is_temporal(type_)):
        # PyArrow would cast the column instead, which fails for values that do not fit.
        value = _cast_if_exact(value, type_)
    if type_ != value.type and family(type_) == family(value.type) == "integer":
        # PyArrow casts uint64 to int64 to compare them, which fails from 2**63 on.
        values_in_range, _ = integers_in_range(pa.array([value]), type_)
        return column, values_in_range[0] if len(values_in_range) else value
    if pt.is_fixed_size_binary(type_):
        values_of_width = _values_of_width(pa.array([value]), type_)
        return column, values_of_width[0] if len(values_of_width) else value
    if pt.is_float32(type_) and pt.is_float64(value.type):
        float32_value = value.cast(type_)
        if float32_value.cast(pa.float64()).equals(value):
            return column, float32_value
        column = column.cast(pa.float64())
    return column, value


def _cast_if_exact(value: pa.Scalar, type_: pa.DataType) -> pa.Scalar:
    try:
        exact_value = value.cast(type_)
        return exact_value if exact_value.cast(value.type).equals(value) else value
    except pa.ArrowException:
        return value


def _values_of_width(values: pa.Array, type_: pa.FixedSizeBinaryType) -> pa.Array:
    """Return the values that have the width of a type, cast to that type.

    PyArrow skips row groups by their statistics only if the values have the column's type.
    """
    values = values.cast(pa.binary())
    widths = pc.binary_length(values)  # pyright: ignore[reportAttributeAccessIssue]
    has_width = pc.equal(widths, type_.byte_width)  # pyright: ignore[reportAttributeAccessIssue]
    return values.filter(has_width).cast(type_)


def _check_literal_time_zone(path: ast.ColumnPath, column: pa.DataType, value: pa.Scalar) -> None:
    message = time_zone_mismatch_message(ast.column_text(path), column, value)
    if message is not None:
        raise FilterError(message)


def evaluate(
    table: pa.Table, expressions: Sequence[pc.Expression], names: Sequence[str]
) -> pa.Table:
    """Return a table of the values of some expressions. Its columns have no views."""
    from pyarrow import acero

    if has_views(table.schema):
        table = cast_table(table, schema_without_views(table.schema))
    source = acero.Declaration("table_source", acero.TableSourceNodeOptions(table))
    options = acero.ProjectNodeOptions(list(expressions), list(names))
    projected = acero.Declaration("project", options)
    # Use one thread, which keeps the order of the rows and is fastest for few rows.
    return acero.Declaration.from_sequence([source, projected]).to_table(use_threads=False)


@dataclass(frozen=True, slots=True, eq=False)
class ExpressionFilter:
    """An expression that is evaluated on rows only, and never on statistics of row groups."""

    expression: pc.Expression

    @property
    def columns(self) -> frozenset[str] | None:
        """The top-level columns that the filter reads, or None if they are not known."""
        return referenced_columns(self.expression)

    def matching_rows(self, table: pa.Table) -> np.ndarray:
        """Return the numbers of the rows that match, int64 and ascending."""
        return rows_where_true(table, self.expression)

    def __str__(self) -> str:
        return expression_text(self.expression)


def rows_where_true(table: pa.Table, expression: pc.Expression) -> np.ndarray:
    """Return the numbers of the rows for which a condition is true, ascending."""
    try:
        mask = evaluate(table, [expression], ["mask"]).column(0)
    except pa.ArrowException as error:
        # A filter that always fails was refused before the scan, so a value of some row caused
        # this.
        text = shorten(expression_text(expression))
        raise row_value_error(text, expression, table.schema, error) from None
    # A null condition does not match.
    return np.flatnonzero((mask.fill_null(False) if mask.null_count else mask).to_numpy())


def row_value_error(
    text: str, expression: pc.Expression, schema: pa.Schema, error: Exception
) -> FilterError:
    """Return the error for a filter that fails on values of the rows."""
    types = [find_leaf_type(schema, path) for path in columns_cast_to_integers(expression)]
    advice = "correct it, or read without it and filter the table"
    if any(type_ is not None and pa.types.is_floating(type_) for type_ in types):
        advice = (
            "write round(x)::INT, in PyArrow pc.round(x).cast(...), to cast floats with fractions"
        )
    return FilterError(f"the filter {text} fails on values of the rows: {error}; {advice}")


def has_views(schema: pa.Schema) -> bool:
    """Return whether a column has a view type, which Arrow cannot filter."""
    return any(without_views(type_) is not type_ for type_ in schema.types)


def schema_without_views(schema: pa.Schema) -> pa.Schema:
    """Return the schema with view types replaced by types that Arrow can filter and gather."""
    fields = [field.with_type(without_views(field.type)) for field in schema]
    return pa.schema(fields, metadata=schema.metadata)


def cast_table(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Cast each column to its type in a schema.

    `pa.Table.cast` refuses nulls in a field that is not nullable. A file without the column
    gives such nulls, although the schema of another file says that there are none.
    """
    columns = [
        column if column.type == field.type else column.cast(field.type)
        for column, field in zip(table.columns, schema, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=schema)
