"""Where a literal lies among a column's values, exactly: the one place where NaN and zero are met.

A literal is one of a column's values, lies between two of them, or beyond all. Nothing is
rounded on the way: what an engine would round before it compares may be anywhere ("maybe").

    5.5 in an int32 column            between 5 and 6: no row is equal
    300 in a uint8 column             beyond: no row is equal
    0.1 in a float32 column           maybe: some engines round it
    2.0**53 in an int64 column        maybe: compared as floating point
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

import pyarrow as pa
import pyarrow.types as pt

from zonebloom.base.arrays import array_of, from_numpy, to_numpy
from zonebloom.sbbf.hashing import hashed_type
from zonebloom.values.types import EXACT_INTEGER_LIMITS, family, integer_bounds, value_step

_CODES = {16: "<e", 32: "<f", 64: "<d"}


class Unanswerable(Exception):
    """An engine may see a row that a look among exact values would miss: why, and what to write."""

    def __init__(self, reason: str, advice: str = "") -> None:
        super().__init__(reason)
        self.advice = advice


@dataclass(frozen=True, slots=True)
class Literal:
    """A value as written, exact and not yet of any Arrow type.

    ``kind`` is null, boolean, number, text, bytes, date, timestamp, instant (with a zone), time or
    duration. Numbers are `Fraction` (`float` for NaN and infinities), dates and timestamps seconds
    since 1970, times since midnight, as `Fraction`. ``bits`` is the width of a floating point
    number, else 0; ``digits`` are those before and behind the point of the decimal an engine may
    make of it.
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
    """A literal among the values of a type: itself if `exact`, else the nearest below; None where
    it lies `beyond`, above (1) or below (-1), all of them."""

    value: Any
    is_exact: bool = True
    out_of_range: int = 0

    def scalar(self, type_: pa.DataType) -> pa.Scalar:
        """The value as one of a type; of bytes of any length, and of a double where it is one."""
        if pt.is_decimal(type_):
            return pa.scalar(Decimal(f"{self.value}E{-type_.scale}"), type_)
        if pt.is_floating(type_) and round_to_float(self.value, type_.bit_width) != self.value:
            type_ = pa.float64()
        return array_of([self.value], pa.binary() if pt.is_fixed_size_binary(type_) else type_)[0]


def round_to_float(number: Fraction | float, bits: int) -> float | None:
    """The floating point number of a width that another is rounded to, None beyond them all."""
    try:
        return struct.unpack(_CODES[bits], struct.pack(_CODES[bits], float(number)))[0]
    except OverflowError:
        return None


def to_stored(literal: Literal, type_: pa.DataType) -> StoredValue:
    """Find a literal among the values of a comparable type; Unanswerable where an engine may round.

    >>> to_stored(Literal("number", Fraction("5.5")), pa.int32())
    StoredValue(value=5, exact=False, beyond=0)
    """
    value, kind = literal.value, family(type_)
    if kind in ("text", "bytes", "boolean"):
        return StoredValue(value)
    if kind in ("integer", "float", "decimal") and isinstance(value, float) and math.isnan(value):
        raise Unanswerable("engines disagree on NaN")
    if kind == "float":
        rounded = round_to_float(value, type_.bit_width)
        if rounded != value:
            raise Unanswerable(f"{_shown(value)} is not a {type_} value, and engines round it")
        return StoredValue(rounded)
    if literal.bits:
        if kind == "decimal":
            raise Unanswerable(f"a floating point literal against {type_} is not compared exactly")
        if math.isinf(value):
            return StoredValue(None, is_exact=False, out_of_range=1 if value > 0 else -1)
        if abs(value) >= EXACT_INTEGER_LIMITS[literal.bits]:
            shown = _shown(value)
            raise Unanswerable(
                f"{shown} is compared as floating point, which rounds large integers"
            )
    steps: Any = value / value_step(type_)
    low, high = integer_bounds(type_)
    if not low <= steps <= high:
        return StoredValue(None, is_exact=False, out_of_range=1 if steps > high else -1)
    whole = steps.numerator // steps.denominator
    return StoredValue(whole, is_exact=whole == steps)


def stored_bytes(literal: Literal, column: pa.DataType) -> list[bytes]:
    """The bytes that a column holds a literal as: none, one form, or both zeros."""
    column = hashed_type(column)
    value, exact, _ = to_stored(literal, column)
    kind = family(column)
    if not exact or (pt.is_fixed_size_binary(column) and len(value) != column.byte_width):
        return []
    if kind == "float":
        code = _CODES[column.bit_width]
        return [struct.pack(code, each) for each in ((0.0, -0.0) if value == 0 else (value,))]
    if kind == "text":
        return [value.encode()]
    if kind == "bytes":
        return [value]
    signed = not pt.is_unsigned_integer(column)
    return [value.to_bytes(column.byte_width, "little", signed=signed)]


def floats_to_find(values: pa.Array) -> pa.Array:
    """Floating point values as a set whose bits are looked up: both zeros if any, and no NaN."""
    numbers = [each for each in values.to_pylist() if not math.isnan(each)]
    return pa.array(numbers + ([0.0, -0.0] if 0 in numbers else []), values.type)


def integers_in_range(values: pa.Array, type_: pa.DataType) -> pa.Array:
    """Those integers that are values of another integer type, as that type."""
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    (low, high), (least, most) = integer_bounds(type_), integer_bounds(values.type)
    numbers = to_numpy(values)
    # A bound beyond the values' own type would make NumPy compare as floating point.
    inside = (numbers >= max(low, least)) & (numbers <= min(high, most))
    return from_numpy(numbers[inside]).cast(type_)


def _shown(number: Fraction | float) -> str:
    is_whole = isinstance(number, Fraction) and number.denominator == 1
    return str(number if is_whole else float(number))
