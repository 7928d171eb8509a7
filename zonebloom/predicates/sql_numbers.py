"""Compute SQL's arithmetic with PyArrow's functions.

PyArrow's integers overflow at the width of the column, and DuckDB raises an error there. Here
integers are widened to int64 first, uint64 to decimals, and an overflow beyond that is an error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from zonebloom.predicates.sql_values import (
    TypedValue,
    call,
    cast_to_common_type,
    common_type,
    decimal_form,
    decimal_type,
    has_long_form,
    is_inexact_mixture,
    null_of,
    to_decimal,
    to_float,
)
from zonebloom.values.literal import Unanswerable

_functions: Any = pc
# An int64 is below 10**19, so PyArrow rounds it to at most 18 zeros.
_MAX_INT64_ZEROS = 18
# PyArrow's quotient of decimals of p digits has 2 * p + 1 digits, and a decimal at most 76.
_MAX_DIVIDED_DIGITS = 37


def add(left: TypedValue, right: TypedValue) -> TypedValue:
    return _combine(_functions.add_checked, _functions.add, left, right)


def subtract(left: TypedValue, right: TypedValue) -> TypedValue:
    return _combine(_functions.subtract_checked, _functions.subtract, left, right)


def multiply(left: TypedValue, right: TypedValue) -> TypedValue:
    type_ = _arithmetic_type(left, right)
    if not pt.is_decimal(type_):
        return _combine(_functions.multiply_checked, _functions.multiply, left, right)
    sides = decimal_form(left.type), decimal_form(right.type)
    precision = sum(side.precision for side in sides) + 1
    result = decimal_type(precision, sum(side.scale for side in sides))
    # The common type is long if DuckDB's product is.
    min_precision = type_.precision if has_long_form([left, right]) else 0
    is_wide = pt.is_decimal256(result)
    left, right = (
        to_decimal(side, pa.decimal256(type_.precision, type_.scale) if is_wide else type_)
        for side, type_ in zip((left, right), sides, strict=True)
    )
    product = call(_functions.multiply_checked, left, right)
    if precision >= min_precision:
        return product
    return to_decimal(product, decimal_type(min_precision, result.scale))


def divide(left: TypedValue, right: TypedValue) -> TypedValue:
    """Return ``left / right``, a float. Division by zero gives an infinity or NaN."""
    type_ = common_type([left, right])
    float_type = type_ if pt.is_floating(type_) else pa.float64()
    return call(_functions.divide, to_float(left, float_type), to_float(right, float_type))


def divide_integers(left: TypedValue, right: TypedValue) -> TypedValue:
    """Return ``left // right``: rounded towards zero for integers, else the same as `divide`."""
    if not left.is_integer or not right.is_integer:
        return divide(left, _null_for_zero(right))
    if left.is_big_integer or right.is_big_integer:
        return _divide_big_integers(left, right)
    if pa.uint64() not in (left.type, right.type):
        type_ = pa.int64()
    elif all(_is_never_negative(side) for side in (left, right)):
        type_ = pa.uint64()
    else:
        return _divide_big_integers(left, right)
    return call(_functions.divide_checked, left.cast(type_), _null_for_zero(right.cast(type_)))


def remainder(left: TypedValue, right: TypedValue) -> TypedValue:
    """Return ``left % right``, which has the sign of `left`."""
    type_ = _arithmetic_type(left, right)
    if pt.is_floating(type_):
        return call(_functions.remainder, to_float(left, type_), to_float(right, type_))
    _require_decimal_remainder(left, right)
    left, right = cast_to_common_type([_widened(left), _widened(right)])
    return call(_functions.remainder, left, _null_for_zero(right))


def negate(number: TypedValue) -> TypedValue:
    return call(_functions.negate_checked, _widened(number))


def absolute(number: TypedValue) -> TypedValue:
    if pt.is_unsigned_integer(number.type):
        return number
    return call(_functions.abs_checked, _widened(number))


def sign(number: TypedValue) -> TypedValue:
    """Return -1, 0 or 1. The sign of NaN is 0, as in DuckDB."""
    result = call(_functions.sign, number)
    if pt.is_floating(number.type):
        zero = TypedValue.constant(0.0, result.type)
        result = call(_functions.if_else, is_nan(number), zero, result)
    return result.cast(pa.int64())


def round_number(number: TypedValue, num_decimals: int = 0) -> TypedValue:
    """Round halves away from zero."""
    if pt.is_floating(number.type) and num_decimals:
        raise Unanswerable(
            "PyArrow rounds some doubles to other digits than SQL does",
            f'filter in pyarrow: pc.round(pc.field("x"), ndigits={num_decimals}) == ...',
        )
    if pt.is_integer(number.type) and num_decimals >= 0:
        return number
    if pt.is_integer(number.type):
        number = _widened(number)
    if pt.is_decimal(number.type):
        num_whole_digits = number.type.precision - number.type.scale
        if num_decimals >= number.type.scale:
            return number
        if -num_decimals > num_whole_digits:
            return _zero_or_null(number)
        number = _with_room_to_round(number)
    elif num_decimals < -_MAX_INT64_ZEROS:
        return _zero_or_null(number)
    rounded = call(
        _functions.round, number, ndigits=num_decimals, round_mode="half_towards_infinity"
    )
    return _without_decimals(rounded, max(num_decimals, 0))


def floor(number: TypedValue) -> TypedValue:
    return _round_in_one_direction(_functions.floor, number)


def ceil(number: TypedValue) -> TypedValue:
    return _round_in_one_direction(_functions.ceil, number)


def trunc(number: TypedValue) -> TypedValue:
    return number if number.is_integer else _round_in_one_direction(_functions.trunc, number)


def is_nan(number: TypedValue) -> TypedValue:
    return call(_functions.is_nan, number)


def is_infinite(number: TypedValue) -> TypedValue:
    return call(_functions.is_inf, number)


def is_finite(number: TypedValue) -> TypedValue:
    return call(_functions.is_finite, number)


def _require_decimal_remainder(left: TypedValue, right: TypedValue) -> None:
    """Raise `Unanswerable` for operands that DuckDB may cast to doubles."""
    if is_inexact_mixture([left, right]) or has_long_form([left, right]):
        raise Unanswerable(
            f"the remainder of {left.type} and {right.type} may be rounded",
            "cast an operand: CAST(x AS DOUBLE) % y",
        )


def _divide_big_integers(left: TypedValue, right: TypedValue) -> TypedValue:
    num_digits = max(decimal_form(side.type).precision for side in (left, right))
    # The cast fails for the values of a wider type that have more digits.
    num_digits = min(num_digits, _MAX_DIVIDED_DIGITS)
    type_ = pa.decimal256(num_digits)
    divisor = _null_for_zero(to_decimal(right, type_))
    quotient = call(_functions.divide_checked, to_decimal(left, type_), divisor)
    return to_decimal(call(_functions.trunc, quotient), decimal_type(num_digits, 0))


def _round_in_one_direction(function: Callable[..., Any], number: TypedValue) -> TypedValue:
    if number.is_integer:
        return to_float(number, pa.float64())
    return _without_decimals(call(function, _with_room_to_round(number)), 0)


def _without_decimals(number: TypedValue, num_decimals: int) -> TypedValue:
    """Return a rounded decimal without the zeros that rounding left. DuckDB keeps its precision."""
    if not pt.is_decimal(number.type):
        return number
    return to_decimal(number, decimal_type(number.type.precision, num_decimals))


def _zero_or_null(number: TypedValue) -> TypedValue:
    """Return a zero of a number's type, or null where the number is null."""
    zero = replace(TypedValue.constant(0, number.type), is_big_integer=number.is_big_integer)
    is_null = call(_functions.is_null, number)
    return call(_functions.if_else, is_null, null_of(zero.type), zero)


def _with_room_to_round(number: TypedValue) -> TypedValue:
    """Return a decimal with one more digit, because 9.5 is rounded to 10."""
    if not pt.is_decimal(number.type):
        return number
    return to_decimal(number, decimal_type(number.type.precision + 1, number.type.scale))


def _combine(
    checked: Callable[..., Any], plain: Callable[..., Any], left: TypedValue, right: TypedValue
) -> TypedValue:
    type_ = _arithmetic_type(left, right)
    if pt.is_floating(type_):
        return _unchained(call(plain, to_float(left, type_), to_float(right, type_)))
    if pt.is_decimal(type_):
        # One more digit for a carry. PyArrow adds another one to the type of the result.
        result = decimal_type(type_.precision + 2, type_.scale)
        decimal_of = pa.decimal256 if pt.is_decimal256(result) else pa.decimal128
        type_ = decimal_of(type_.precision + 1, type_.scale)
        left, right = to_decimal(left, type_), to_decimal(right, type_)
        return call(checked, left, right)
    return call(checked, _widened(left), _widened(right))


def _unchained(number: TypedValue) -> TypedValue:
    """Return a sum or product that PyArrow keeps in its parentheses.

    PyArrow computes a + (b + c) as (a + b) + c, which rounds floats differently. A cast between
    the two operators prevents this.
    """
    if not isinstance(number.value, pc.Expression):
        return number
    return replace(number, value=number.value.cast(number.type))


def _arithmetic_type(left: TypedValue, right: TypedValue) -> Any:
    return common_type([_widened(left), _widened(right)])


def _is_never_negative(number: TypedValue) -> bool:
    if isinstance(number.value, pa.Scalar):
        return number.value.is_valid and number.value.as_py() >= 0
    return pt.is_unsigned_integer(number.type)


def _widened(number: TypedValue) -> TypedValue:
    """Return an integer as int64, or as a decimal if it is uint64."""
    if not pt.is_integer(number.type):
        return number
    if number.type == pa.uint64():
        return to_decimal(number, decimal_form(number.type))
    return number.cast(pa.int64())


def _null_for_zero(divisor: TypedValue) -> TypedValue:
    """Return the divisor, or null where it is zero.

    DuckDB raises an error if a row divides by zero, unless a condition excludes this row. PyArrow
    evaluates all rows, so an error would also break filters with such a condition.
    """
    if isinstance(divisor.value, pa.Scalar):
        if divisor.value.is_valid and divisor.value.as_py() == 0:
            raise Unanswerable("this divides by zero", "write another divisor, or leave it out")
        return divisor
    zero = TypedValue.constant(0, pa.int64())
    zero = (
        to_decimal(zero, divisor.type) if pt.is_decimal(divisor.type) else zero.cast(divisor.type)
    )
    is_zero = call(_functions.equal, divisor, zero)
    return call(_functions.if_else, is_zero, null_of(divisor.type), divisor)
