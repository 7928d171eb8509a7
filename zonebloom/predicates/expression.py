"""Predicates brought to PyArrow expressions, so that our own tree can be a filter too."""

from __future__ import annotations

import math

import pyarrow as pa
import pyarrow.compute as pc

from zonebloom.errors import FilterError
from zonebloom.predicates import literals
from zonebloom.predicates.ast import (
    And,
    ColumnPath,
    Compares,
    Constant,
    Equals,
    IsIn,
    IsNull,
    Not,
    Or,
    Predicate,
    Unknown,
    column_text,
)
from zonebloom.values.columns import leaf_type

# pa.scalar(None) would import pandas to look for its nulls.
_NULL = pc.scalar(pa.nulls(1, pa.bool_())[0])


def from_predicate(predicate: Predicate, schema: pa.Schema) -> pc.Expression:
    """Write a predicate as the expression PyArrow applies to rows, with SQL's three values.

    Examples
    --------
    >>> schema = pa.schema({"id": pa.int64(), "name": pa.string()})
    >>> wanted = And((Equals(("id",), pa.scalar(42)), Not(IsNull(("name",)))))
    >>> print(from_predicate(wanted, schema))
    ((id == 42) and invert(is_null(name, {nan_is_null=false})))
    """
    match predicate:
        case And(terms):
            return balanced([from_predicate(term, schema) for term in terms], False)
        case Or(terms):
            return balanced([from_predicate(term, schema) for term in terms], True)
        case Not(term):
            return ~from_predicate(term, schema)
        case Constant(value):
            return pc.scalar(pa.scalar(value, pa.bool_()))
        case IsNull(path):
            return _column(path, schema)[0].is_null()
        case Equals(path, value):
            column, value = _comparable(path, value, schema)
            return column == value
        case Compares(path, operator, value):
            column, value = _comparable(path, value, schema)
            match operator:
                case "<":
                    return column < value
                case "<=":
                    return column <= value
                case ">":
                    return column > value
                case ">=":
                    return column >= value
        case IsIn(path, values, null_matches):
            return _is_in(path, values, null_matches, schema)
        case Unknown(text, _):
            raise FilterError(
                f"what {text!r} means is unknown, so no row can be tried; leave it out"
            )


def balanced(terms: list[pc.Expression], is_or: bool) -> pc.Expression:
    """Terms joined in pairs: a chain of ten thousand would be as deep as it is long."""
    while len(terms) > 1:
        pairs = [a | b if is_or else a & b for a, b in zip(terms[::2], terms[1::2], strict=False)]
        terms = pairs + terms[len(pairs) * 2 :]
    return terms[0] if terms else pc.scalar(not is_or)


def comparable(expression: pc.Expression, type_: pa.DataType) -> tuple[pc.Expression, pa.DataType]:
    """Values as PyArrow can compare them, and the type they are then of."""
    target = literals.compared_as(type_)
    decoded = literals.plain(type_)
    if decoded not in (type_, target):
        expression = expression.cast(decoded)
    return (expression if target == type_ else expression.cast(target)), target


def _is_in(
    path: ColumnPath, values: pa.Array, null_matches: bool, schema: pa.Schema
) -> pc.Expression:
    column, type_ = _column(path, schema)
    values = values.cast(literals.compared_as(values.type))
    if len(values):
        _check_zones(path, type_, values[0])
    if len(values) and not literals.lookup_is_exact(type_, values):
        raise _rounds(path, type_, values.type)
    if pa.types.is_floating(values.type):
        # PyArrow looks bits up: zeros are equal and NaN are not.
        numbers = [each for each in values.to_pylist() if not math.isnan(each)]
        zeros = [0.0, -0.0] if 0.0 in numbers else []
        values = pa.array(numbers + zeros, values.type)
    found = column.isin(values)
    return found | column.is_null() if null_matches else found | (column.is_null() & _NULL)


def _comparable(
    path: ColumnPath, value: pa.Scalar, schema: pa.Schema
) -> tuple[pc.Expression, pa.Scalar]:
    column, type_ = _column(path, schema)
    value = value.cast(literals.compared_as(value.type))
    _check_zones(path, type_, value)
    if not literals.equal_is_exact(type_, value.type):
        raise _rounds(path, type_, value.type)
    return column, value


def _check_zones(path: ColumnPath, column: pa.DataType, value: pa.Scalar) -> None:
    refusal = literals.zone_refusal(column_text(path), column, value)
    if refusal is not None:
        raise FilterError(refusal)


def _column(path: ColumnPath, schema: pa.Schema) -> tuple[pc.Expression, pa.DataType]:
    found = leaf_type(schema, path)
    if found is None:
        known = ", ".join(schema.names[:20])
        raise FilterError(f"there is no column {column_text(path)}; the columns are {known}")
    column = pc.field(path[0]) if len(path) == 1 else pc.field(*path)
    return comparable(column, found)


def _rounds(path: ColumnPath, column: pa.DataType, literal: pa.DataType) -> FilterError:
    return FilterError(
        f"{column_text(path)} is {column}, and PyArrow would round a {literal} to compare the two; "
        f"give the literal as {column}"
    )
