"""Predicates brought to PyArrow expressions, and what PyArrow compares exactly.

PyArrow casts one side or both before it compares, so it compares exact values only where no cast
rounds. Each rule was measured, the traps being: `is_in` casts the *set* to the column's type
(0.1 as double finds 0.1 as float, the timestamp 00:00:00.001 finds the date, the string '5'
finds the integer), and a decimal meets a float only after rounding.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from zonebloom.base import arguments
from zonebloom.errors import FilterError
from zonebloom.predicates import ast
from zonebloom.predicates.arrow_form import SHORTEN_ADVICE
from zonebloom.values.columns import find_leaf_type
from zonebloom.values.literal import floats_to_find, integers_in_range
from zonebloom.values.time_zones import time_zone_mismatch_message
from zonebloom.values.types import (
    decoded_storage_type,
    decoded_type,
    family,
    is_comparable,
    is_flat,
)

# pa.scalar(None) would import pandas to look for its nulls.
NULL_EXPRESSION = pc.scalar(pa.nulls(1, pa.bool_())[0])
ORDER_OPERATORS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}

# PyArrow makes a chain as deep as it is long when it simplifies it: at ten thousand terms its
# stack was seen to end.
_MOST_TERMS = 4000

# An expression that is null where the condition is, if that is asked for, or false there.
_Form: TypeAlias = Callable[[bool], pc.Expression]
PathResolver: TypeAlias = Callable[[ast.ColumnPath], tuple[pc.Expression, pa.DataType]]


def expression_from_predicate(
    predicate: ast.Predicate, schema: pa.Schema, *, exact: bool = False
) -> pc.Expression:
    """Write a predicate as the expression PyArrow applies to rows.

    A row whose condition is null is dropped as one whose condition is false is, so only below a
    NOT are the two told apart, unless all of it is to be `exact`.
    """

    def resolve(path: ast.ColumnPath) -> tuple[pc.Expression, pa.DataType]:
        type_ = find_leaf_type(schema, path)
        if type_ is None:
            choices = arguments.suggest_names(".".join(path), schema.names, "the columns are")
            raise FilterError(f"there is no column {ast.column_text(path)}; {choices}")
        return pc.field(path[0]) if len(path) == 1 else pc.field(*path), type_

    return build_expression(predicate, resolve, exact)


def build_expression(predicate: ast.Predicate, resolve: PathResolver, exact: bool) -> pc.Expression:
    """Write a predicate over what paths stand for: an expression, and the type of its values."""

    def join(is_or: bool) -> Callable[[list[_Form]], _Form]:
        return lambda forms: lambda exact: join_conditions([form(exact) for form in forms], is_or)

    def negate(form: _Form) -> _Form:
        return lambda exact: ~form(True)

    leaf = functools.partial(_leaf, resolve=resolve)
    return ast.fold_predicate(predicate, leaf, join(False), join(True), negate)(exact)


def _leaf(leaf: ast.LeafPredicate, resolve: PathResolver) -> _Form:
    match leaf:
        case ast.Constant(value):
            expression = pc.scalar(pa.scalar(value, pa.bool_()))
        case ast.Unknown(text, _, _, expression):
            if expression is None:
                raise FilterError(
                    f"what {text!r} means is unknown, so no row can be tried; leave it out"
                )
        case ast.IsNull(path):
            expression = resolve(path)[0].is_null()
        case ast.IsIn(path, values, null_matches):
            return _is_in(path, values, null_matches, resolve)
        case ast.Equals(path, value):
            column, value = _sides(path, value, resolve)
            expression = column == value
        case ast.Compares(path, symbol, value):
            expression = ORDER_OPERATORS[symbol](*_sides(path, value, resolve))
    return lambda exact: expression


def join_conditions(terms: list[pc.Expression], is_or: bool) -> pc.Expression:
    if len(terms) > _MOST_TERMS:
        raise FilterError(
            f"the filter joins more than {_MOST_TERMS:,} conditions that are no equalities of one "
            f"column; {SHORTEN_ADVICE}"
        )
    return join_balanced(terms, is_or)


def join_balanced(terms: list[pc.Expression], is_or: bool) -> pc.Expression:
    """Terms joined in pairs: a chain of ten thousand would be as deep as it is long."""
    while len(terms) > 1:
        pairs = [a | b if is_or else a & b for a, b in zip(terms[::2], terms[1::2], strict=False)]
        terms = pairs + terms[len(pairs) * 2 :]
    return terms[0] if terms else pc.scalar(not is_or)


def comparable_type(type_: pa.DataType) -> pa.DataType:
    """The type PyArrow compares the values as without loss: it has no kernels for float16, view
    types and UUIDs, and would choose one too small for a dictionary."""
    type_ = decoded_storage_type(type_)
    if pt.is_float16(type_):
        return pa.float32()
    if pt.is_string_view(type_):
        return pa.string()
    return pa.binary() if pt.is_binary_view(type_) else type_


def cast_to_comparable(
    expression: pc.Expression, type_: pa.DataType
) -> tuple[pc.Expression, pa.DataType]:
    """Values as PyArrow can compare them, and the type they are then of."""
    target = comparable_type(type_)
    decoded = decoded_type(type_)
    if decoded not in (type_, target):
        expression = expression.cast(decoded)
    return (expression if target == type_ else expression.cast(target)), target


def equal_is_exact(column: pa.DataType, literal: pa.DataType) -> bool:
    """Whether PyArrow's `equal` of a column and a literal is equality of exact values."""
    match family(column), family(literal):
        case "float", "decimal":
            return False
        case "integer", "float":
            # PyArrow casts the column, with a check that fails on rounding.
            return not pt.is_float16(decoded_type(literal))
    return is_comparable(column, literal)


def lookup_is_exact(column: pa.DataType, values: pa.Array) -> bool:
    """Whether PyArrow's `is_in` of a column and a set is equality of exact values."""
    column, literal = decoded_type(column), values.type
    if column == literal:
        return is_flat(column)
    kind = family(column)
    if kind != family(literal) or not kind or pt.is_date(column) or pt.is_date(literal):
        return False
    if kind == "float":
        # The set is cast to the column's type without a check, so check here.
        return not pt.is_float16(column) and values.cast(column, safe=False).cast(literal).equals(
            values
        )
    return True


def _is_in(
    path: ast.ColumnPath, values: pa.Array, null_matches: bool, resolve: PathResolver
) -> _Form:
    column, type_ = cast_to_comparable(*resolve(path))
    null = column.is_null()
    values = values.cast(comparable_type(values.type))
    if len(values):
        _check_zones(path, type_, values[0])
    if len(values) and not lookup_is_exact(type_, values):
        sides = [_sides(path, value, resolve) for value in values]
        inside = join_conditions([column == value for column, value in sides], is_or=True)
    else:
        if pt.is_decimal(type_) and type_.bit_width < 128:
            # PyArrow looks no narrower ones up.
            column = column.cast(pa.decimal128(type_.precision, type_.scale))
            if values.type.bit_width < 128:
                values = values.cast(pa.decimal128(values.type.precision, values.type.scale))
        elif pt.is_fixed_size_binary(type_):
            values = _of_width(values, type_)
        elif pt.is_floating(values.type):
            values = floats_to_find(values)
        elif pt.is_integer(type_):
            values = integers_in_range(values, type_)
        inside = column.isin(values)
    if null_matches:
        return lambda exact: inside | null
    # PyArrow says false where SQL says null.
    return lambda exact: inside | (null & NULL_EXPRESSION) if exact else inside


def _sides(
    path: ast.ColumnPath, value: pa.Scalar, resolve: PathResolver
) -> tuple[pc.Expression, pa.Scalar]:
    column, type_ = cast_to_comparable(*resolve(path))
    value = value.cast(comparable_type(value.type))
    _check_zones(path, type_, value)
    if not equal_is_exact(type_, value.type):
        raise FilterError(
            f"{ast.column_text(path)} is {type_}, and PyArrow would round a {value.type} to "
            f"compare the two; give the literal as {type_}"
        )
    if type_ != value.type and family(type_) == family(value.type) == "integer":
        # PyArrow brings a uint64 to int64 to compare the two, which fails at 2**63.
        within = integers_in_range(pa.array([value]), type_)
        return column, within[0] if len(within) else value
    if pt.is_fixed_size_binary(type_):
        of_width = _of_width(pa.array([value]), type_)
        return column, of_width[0] if len(of_width) else value
    if pt.is_float32(type_) and pt.is_float64(value.type):
        narrow = value.cast(type_)
        if narrow.cast(pa.float64()).equals(value):
            return column, narrow
        column = column.cast(pa.float64())
    return column, value


def _of_width(values: pa.Array, type_: pa.FixedSizeBinaryType) -> pa.Array:
    """Those as wide as a type, in it: PyArrow passes over row groups by values of no other."""
    values = values.cast(pa.binary())
    widths = pc.binary_length(values)  # pyright: ignore[reportAttributeAccessIssue]
    fits = pc.equal(widths, type_.byte_width)  # pyright: ignore[reportAttributeAccessIssue]
    return values.filter(fits).cast(type_)


def _check_zones(path: ast.ColumnPath, column: pa.DataType, value: pa.Scalar) -> None:
    refusal = time_zone_mismatch_message(ast.column_text(path), column, value)
    if refusal is not None:
        raise FilterError(refusal)
