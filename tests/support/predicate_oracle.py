"""Compute in plain Python what a perfect index with zones of one row answers to a predicate."""

from __future__ import annotations

import math
import operator
from fractions import Fraction

import pyarrow as pa

from zonebloom.predicates import And, Compares, Constant, Equals, IsIn, IsNull, Not, Or, Unknown

TICKS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
ORDER = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


def exact(scalar: pa.Scalar):
    """Return a value that equals that of another scalar exactly if the two mean the same."""
    type_ = scalar.type
    if isinstance(scalar, pa.ExtensionScalar):
        return exact(scalar.value)
    if isinstance(type_, pa.DictionaryType):
        return exact(pa.scalar(scalar.as_py(), type_.value_type))
    if pa.types.is_decimal(type_) or pa.types.is_integer(type_):
        return "number", Fraction(scalar.as_py())
    if pa.types.is_floating(type_):
        value = float(scalar.as_py())
        return "number", Fraction(value) if math.isfinite(value) else value
    if pa.types.is_date32(type_):
        return "moment", Fraction(scalar.value * 86400)
    if pa.types.is_date64(type_):
        return "moment", Fraction(scalar.value, 1000)
    if pa.types.is_timestamp(type_):
        kind = "moment" if type_.tz is None else "instant"
        return kind, Fraction(scalar.value, TICKS[type_.unit])
    if pa.types.is_time(type_) or pa.types.is_duration(type_):
        kind = "time" if pa.types.is_time(type_) else "duration"
        return kind, Fraction(scalar.value, TICKS[type_.unit])
    return type(scalar.as_py()).__name__, scalar.as_py()


def cell(table: pa.Table, path: tuple[str, ...], row: int) -> pa.Scalar:
    scalar = table[path[0]].combine_chunks()[row]
    for name in path[1:]:
        if not scalar.is_valid:
            return scalar
        scalar = scalar[name]
    return scalar


def filter_matches(cell_value: pa.Scalar, literal: pa.Scalar) -> bool:
    """Return what a Bloom filter answers. It always answers "maybe" for a NaN literal."""
    assert literal.is_valid
    if pa.types.is_floating(literal.type) and math.isnan(literal.as_py()):
        return True
    return cell_value.is_valid and exact(cell_value) == exact(literal)


def range_matches(cell_value: pa.Scalar, symbol: str, literal: pa.Scalar) -> bool:
    """Return what key ranges answer, which do not include NaN."""
    assert literal.is_valid
    if not cell_value.is_valid:
        return False
    (kind, left), (literal_kind, right) = exact(cell_value), exact(literal)
    return kind == literal_kind and ORDER[symbol](left, right)


def bounds(table: pa.Table, predicate, row: int) -> tuple[bool, bool]:
    """Return (may be true, may be false), by the table in `zonebloom.predicates.ast`."""
    match predicate:
        case Constant(value):
            return value is True, value is False
        case Unknown():
            return True, True
        case Equals(path, value):
            return filter_matches(cell(table, path, row), value), True
        case IsIn(path, values, null_matches):
            assert values.null_count == 0
            cell_value = cell(table, path, row)
            is_null_match = null_matches and not cell_value.is_valid
            return is_null_match or any(filter_matches(cell_value, value) for value in values), True
        case Compares(path, symbol, value):
            return range_matches(cell(table, path, row), symbol, value), True
        case IsNull(path):
            return not cell(table, path, row).is_valid, True
        case Not(term):
            true, false = bounds(table, term, row)
            return false, true
        case And(terms) | Or(terms):
            parts = [bounds(table, term, row) for term in terms]
            if isinstance(predicate, And):
                return all(true for true, _ in parts), any(false for _, false in parts)
            return any(true for true, _ in parts), all(false for _, false in parts)
    raise AssertionError(predicate)
