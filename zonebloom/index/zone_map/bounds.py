"""Find the values of a column for which a comparison may be true.

A literal is compared with the values of the column without rounding it. If engines may round it,
the interval takes in both neighbours of the literal.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from zonebloom.predicates.ast import Compares, Equals
from zonebloom.values.literal import Literal, StoredValue, Unanswerable, to_stored
from zonebloom.values.normal_types import hashed_values, key_range_type, normalized_type
from zonebloom.values.types import family, is_comparable

_NEGATED = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}


class Interval(NamedTuple):
    """An interval of values. An end without a limit is None."""

    low: pa.Scalar | None = None
    high: pa.Scalar | None = None
    has_low: bool = True
    has_high: bool = True


def order_type(column_type: pa.DataType) -> pa.DataType:
    """Return the type in which the values of a column are compared."""
    type_ = key_range_type(column_type)
    if pt.is_boolean(type_):
        return pa.uint8()
    return pa.binary() if pt.is_fixed_size_binary(type_) else type_


def ordered_values(values: pa.Array) -> pa.Array:
    """Return values as `order_type`. Zeros without a sign replace the two zeros of floats."""
    ordered = hashed_values(values)
    for type_ in (key_range_type(values.type), order_type(values.type)):
        ordered = ordered if ordered.type == type_ else ordered.cast(type_)
    if pt.is_floating(ordered.type):
        ordered = pc.call_function("add", [ordered, pa.scalar(0.0, ordered.type)])
    return ordered


def true_interval(column_type: pa.DataType, leaf: Compares | Equals) -> Interval | None:
    """Return the interval of values for which a comparison may be true. None if it is empty.

    Raise `Unanswerable` if the literal and the column are not compared exactly.
    """
    return _interval(column_type, "=" if isinstance(leaf, Equals) else leaf.operator, leaf.value)


def false_interval(column_type: pa.DataType, leaf: Compares) -> Interval | None:
    """Return the interval of values, without NaN, for which a comparison may be false."""
    return _interval(column_type, _NEGATED[leaf.operator], leaf.value)


def _interval(column_type: pa.DataType, operator: str, value: pa.Scalar) -> Interval | None:
    type_ = normalized_type(column_type)
    literal = Literal.from_scalar(value)
    if literal is None or not is_comparable(type_, value.type):
        raise Unanswerable(
            f"a {value.type} literal against a {column_type} column is not compared exactly"
        )
    ordered = order_type(column_type)
    if family(type_) == "float":
        return _float_interval(ordered, operator, literal.value)
    stored = to_stored(literal, type_)
    if stored.out_of_range:
        is_true = operator in (("<", "<=") if stored.out_of_range > 0 else (">", ">="))
        return Interval() if is_true else None
    bound = _scalar(stored, ordered)
    if operator == "=":
        return Interval(bound, bound) if stored.is_exact else None
    # The bound of an inexact literal is the value before it.
    if operator in ("<", "<="):
        return Interval(high=bound, has_high=operator == "<=" or not stored.is_exact)
    return Interval(low=bound, has_low=operator == ">=" and stored.is_exact)


def _scalar(stored: StoredValue, type_: pa.DataType) -> pa.Scalar:
    if isinstance(stored.value, bool):
        return pa.scalar(int(stored.value), type_)
    return stored.scalar(type_)


def _float_interval(type_: pa.DataType, operator: str, value: Any) -> Interval:
    numbers = np.dtype(type_.to_pandas_dtype()).type
    with np.errstate(over="ignore"):
        nearest = numbers(value)
    if np.isnan(nearest):
        raise Unanswerable("engines disagree on NaN")
    is_exact = value == nearest.item()
    low = high = pa.scalar(nearest, type_)
    if not is_exact:
        low = pa.scalar(np.nextafter(nearest, numbers(-np.inf)), type_)
        high = pa.scalar(np.nextafter(nearest, numbers(np.inf)), type_)
    if operator == "=":
        return Interval(low, high)
    if operator in ("<", "<="):
        return Interval(high=high, has_high=operator == "<=" or not is_exact)
    return Interval(low=low, has_low=operator == ">=" or not is_exact)
