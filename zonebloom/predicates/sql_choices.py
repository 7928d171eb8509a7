"""Compute SQL's choices between values: CASE, coalesce, nullif, greatest and least."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from zonebloom.predicates.sql_values import (
    TypedValue,
    call,
    cast_to_common_type,
    is_inexact_mixture,
    null_of,
)
from zonebloom.values.literal import Unanswerable

_functions: Any = pc
_FALSE = TypedValue(pa.scalar(value=False), pa.bool_())


def case(conditions: Sequence[TypedValue], values: Sequence[TypedValue]) -> TypedValue:
    """Return the value of the first condition that is true, or the last value if none is."""
    choices = _cast(values)
    result = choices[-1]
    for condition, choice in zip(reversed(conditions), reversed(choices[:-1]), strict=True):
        # A null condition is not true. PyArrow's if_else would return null for it.
        is_true = call(_functions.coalesce, condition, _FALSE)
        result = call(_functions.if_else, is_true, choice, result)
    return result


def coalesce(*values: TypedValue) -> TypedValue:
    return call(_functions.coalesce, *_cast(values))


def nullif(value: TypedValue, other: TypedValue) -> TypedValue:
    left, right = _cast([value, other])
    null = replace(null_of(value.type), is_big_integer=value.is_big_integer)
    return case([call(_functions.equal, left, right)], [null, value])


def greatest(*values: TypedValue) -> TypedValue:
    values = tuple(_cast(values))
    if len(values) == 1:
        return values[0]
    largest = call(_functions.max_element_wise, *values)
    if not pt.is_floating(largest.type):
        return largest
    # NaN is greater than every number, but PyArrow leaves it out.
    nan = TypedValue.constant(float("nan"), largest.type)
    has_nan = [call(_functions.is_nan, value) for value in values]
    return _without_negative_float_zero(case(has_nan, [*[nan] * len(values), largest]))


def least(*values: TypedValue) -> TypedValue:
    values = tuple(_cast(values))
    if len(values) == 1:
        return values[0]
    return _without_negative_float_zero(call(_functions.min_element_wise, *values))


def _without_negative_float_zero(number: TypedValue) -> TypedValue:
    """Return 0 for -0 of type FLOAT, as DuckDB's greatest and least do."""
    if number.type != pa.float32():
        return number
    return call(_functions.add, number, TypedValue.constant(0.0, number.type))


def _cast(values: Sequence[TypedValue]) -> list[TypedValue]:
    choices = cast_to_common_type(values)
    if is_inexact_mixture(values):
        raise Unanswerable(
            "a choice between decimals that need more than 38 digits may be rounded",
            "cast them to DOUBLE: coalesce(CAST(a AS DOUBLE), b)",
        )
    if pt.is_nested(choices[0].type):
        raise Unanswerable(
            f"a choice between values of type {choices[0].type} is not supported",
            "choose between their elements: coalesce(a[1], b[1])",
        )
    return choices
