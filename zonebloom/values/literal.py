"""Find the position of a literal among the values of a column type, without rounding.

A literal is a value of the type, lies between two values, or is out of range. If engines may round
a literal before they compare it, any row may match ("maybe"). NaN and the two zeros are handled
only here.

    5.5 in an int32 column            between 5 and 6: no row is equal
    300 in a uint8 column             out of range: no row is equal
    0.1 in a float32 column           maybe: some engines round it
    2.0**53 in an int64 column        maybe: it is compared as floating point
    NaN                               maybe: engines disagree on whether it equals itself
    0.0, -0.0 in a float column       both zeros, which are stored as different bytes
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from zonebloom.base.arrays import array_of, from_numpy, to_numpy
from zonebloom.values.normal_types import hashed_type
from zonebloom.values.types import EXACT_INTEGER_LIMITS, family, integer_bounds, value_step

_CODES = {16: "<e", 32: "<f", 64: "<d"}


class Unanswerable(Exception):
    """An index cannot answer for a literal, because an engine may match rows with other values.

    The message is the reason. ``advice`` is what to write instead.
    """

    def __init__(self, reason: str, advice: str = "") -> None:
        super().__init__(reason)
        self.advice = advice


@dataclass(frozen=True, slots=True)
class Literal:
    """The exact value of a literal, without an Arrow type.

    Attributes
    ----------
    kind : str
        null, boolean, number, text, bytes, date, timestamp, instant (with a time zone), time or
        duration. For Spark also local: a time in the time zone of the session, as its text.
    value : object
        A number is a `Fraction`, or a `float` if it is NaN or infinite. Dates, timestamps and
        instants are seconds since 1970, and times seconds since midnight, as `Fraction`.
    bits : int
        The width of a floating point number, else 0.
    digits : tuple of int
        The number of digits before and after the point, if an engine may convert it to a decimal.
    """

    kind: str
    value: Any = None
    bits: int = 0
    digits: tuple[int, int] = (0, 0)

    @classmethod
    def from_scalar(cls, scalar: pa.Scalar) -> Literal | None:
        while isinstance(scalar, pa.ExtensionScalar | pa.DictionaryScalar):
            scalar = scalar.value  # pyright: ignore[reportAttributeAccessIssue]
        kind: Any = scalar.type
        name = family(kind)
        if not name:
            return None
        if not scalar.is_valid:
            return cls("null")
        if name == "float":
            double = float(scalar.as_py())
            number = Fraction(double) if math.isfinite(double) else double
            return cls("number", number, kind.bit_width)
        if name == "integer":
            return cls("number", Fraction(scalar.as_py()), digits=(20, 0))
        if name == "decimal":
            digits = kind.precision - kind.scale, kind.scale
            return cls("number", Fraction(scalar.as_py()), digits=digits)
        if name in ("text", "bytes", "boolean"):
            return cls(name, scalar.as_py())
        ticks: int = scalar.value  # pyright: ignore[reportAttributeAccessIssue]
        return cls(name, ticks * value_step(kind))


class StoredValue(NamedTuple):
    """The position of a literal among the values of a type.

    ``value`` is the literal if ``is_exact``, else the next smaller value. If the literal is larger
    or smaller than all values, ``value`` is None and ``out_of_range`` is 1 or -1.
    """

    value: Any
    is_exact: bool = True
    out_of_range: int = 0

    def scalar(self, type_: pa.DataType) -> pa.Scalar:
        """Return the value as a scalar of a type.

        Fixed-size binary becomes binary, because the literal may have another length. A float that
        the type does not hold exactly becomes a float64.
        """
        if pt.is_decimal(type_):
            return pa.scalar(Decimal(f"{self.value}E{-type_.scale}"), type_)
        if pt.is_floating(type_) and round_to_float(self.value, type_.bit_width) != self.value:
            type_ = pa.float64()
        return array_of([self.value], pa.binary() if pt.is_fixed_size_binary(type_) else type_)[0]


def round_to_float(number: Fraction | float, bits: int) -> float | None:
    """Return the nearest float with this many bits, or None if the number is out of range."""
    try:
        return struct.unpack(_CODES[bits], struct.pack(_CODES[bits], float(number)))[0]
    except OverflowError:
        return None


def to_stored(literal: Literal, type_: pa.DataType) -> StoredValue:
    """Return the position of a literal among the values of a comparable type.

    Raise `Unanswerable` if an engine may round the literal.

    >>> to_stored(Literal("number", Fraction("5.5")), pa.int32())
    StoredValue(value=5, is_exact=False, out_of_range=0)
    """
    value, kind = literal.value, family(type_)
    if kind in ("text", "bytes", "boolean"):
        return StoredValue(value)
    if kind in ("integer", "float", "decimal") and isinstance(value, float) and math.isnan(value):
        raise Unanswerable("engines disagree on NaN")
    if kind == "float":
        rounded = round_to_float(value, type_.bit_width)
        if rounded != value:
            number = _number_text(value)
            raise Unanswerable(f"{number} is not a {type_} value, and engines round it")
        return StoredValue(rounded)
    if literal.bits:
        if kind == "decimal":
            raise Unanswerable(f"a floating point literal against {type_} is not compared exactly")
        if math.isinf(value):
            return StoredValue(None, is_exact=False, out_of_range=1 if value > 0 else -1)
        if abs(value) >= EXACT_INTEGER_LIMITS[literal.bits]:
            number = _number_text(value)
            raise Unanswerable(
                f"{number} is compared as floating point, which rounds large integers"
            )
    steps: Any = value / value_step(type_)
    low, high = integer_bounds(type_)
    if not low <= steps <= high:
        return StoredValue(None, is_exact=False, out_of_range=1 if steps > high else -1)
    whole_steps = steps.numerator // steps.denominator
    return StoredValue(whole_steps, is_exact=whole_steps == steps)


def stored_bytes(literal: Literal, column: pa.DataType) -> list[bytes]:
    """Return the bytes of rows that are equal to a literal: one form, two for zero, or none."""
    column = hashed_type(column)
    value, exact, _ = to_stored(literal, column)
    kind = family(column)
    if not exact or (pt.is_fixed_size_binary(column) and len(value) != column.byte_width):
        return []
    if kind == "float":
        code = _CODES[column.bit_width]
        numbers = (0.0, -0.0) if value == 0 else (value,)
        return [struct.pack(code, number) for number in numbers]
    if kind == "text":
        return [value.encode()]
    if kind == "bytes":
        return [value]
    signed = not pt.is_unsigned_integer(column)
    return [value.to_bytes(column.byte_width, "little", signed=signed)]


def floats_to_find(values: pa.Array) -> pa.Array:
    """Return the floats to look up by their bits: without NaN, and with both zeros or none."""
    numbers = [number for number in values.to_pylist() if not math.isnan(number)]
    return pa.array(numbers + ([0.0, -0.0] if 0 in numbers else []), values.type)


def integers_in_range(values: pa.Array, type_: pa.DataType) -> tuple[pa.Array, np.ndarray]:
    """Return the integers that another integer type can hold, as that type, and their positions."""
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    (low, high), (least, largest) = integer_bounds(type_), integer_bounds(values.type)
    numbers = to_numpy(values.fill_null(0))
    # NumPy would compare with a bound outside the type of the values as floating point.
    is_in_range = (numbers >= max(low, least)) & (numbers <= min(high, largest))
    if values.null_count:
        is_in_range &= to_numpy(values.is_valid())
    return from_numpy(numbers[is_in_range]).cast(type_), np.flatnonzero(is_in_range)


def _number_text(number: Fraction | float) -> str:
    is_whole = isinstance(number, Fraction) and number.denominator == 1
    return str(number if is_whole else float(number))
