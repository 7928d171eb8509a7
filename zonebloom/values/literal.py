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

`probe` and its relatives return the hashes under which filters hold literals.
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
import pyarrow.compute as pc
import pyarrow.types as pt
import xxhash

from zonebloom.base.arrays import array_of, distinct_numbers, from_numpy, to_numpy
from zonebloom.values.normal_types import hashed_type
from zonebloom.values.types import (
    EXACT_INTEGER_LIMITS,
    family,
    hash_domain,
    integer_bounds,
    is_comparable,
    value_step,
)

_CODES = {16: "<e", 32: "<f", 64: "<d"}
_NO_HASHES = np.empty(0, dtype=np.uint64)
_NO_POSITIONS = np.empty(0, dtype=np.int64)
_IS_SIGNED_BY_ID = {
    **{type_.id: True for type_ in (pa.int8(), pa.int16(), pa.int32(), pa.int64())},
    **{type_.id: False for type_ in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())},
}
_STRING_ID = pa.string().id
# For more values than this, hashing in bulk is worth the time that Numba takes to load.
_MAX_HASHED_SINGLY = 64
# Sorted hashes make a lookup read the blocks of a filter in order. Only so many are sorted: most
# filters hold one of so many keys, so the rest is rarely looked up, and sorting all takes longer.
_MAX_SORTED_HASHES = 1 << 14


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


@dataclass(frozen=True, slots=True)
class Probe:
    """The hashes for a literal or a set of literals.

    Only zones whose filter holds one of ``hashes`` may match, unless ``unusable_reason`` says why
    every zone may match.
    """

    hashes: np.ndarray
    unusable_reason: str | None = None
    # Which hash is of which literal, if they were hashed in bulk.
    keys: BulkProbe | None = None


def hash_bytes(data: bytes) -> int:
    """Return the XXH64 hash with seed 0. This does not load Numba."""
    return xxhash.xxh64_intdigest(data)


def probe(column: pa.DataType, value: pa.Scalar) -> Probe:
    """Return the hashes of rows that are equal to a literal."""
    try:
        forms = byte_forms(column, value)
    except Unanswerable as error:
        return Probe(_NO_HASHES, str(error))
    return Probe(np.array(list(map(xxhash.xxh64_intdigest, forms)), dtype=np.uint64))


def byte_forms(column: pa.DataType, value: pa.Scalar) -> list[bytes]:
    """Return the bytes of rows that are equal to a literal.

    Raises
    ------
    Unanswerable
        If rows with other bytes may be equal to it.
    """
    if value.type == column and value.is_valid:
        # Most keys have the type of the column, so they need no conversion.
        if column.id in _IS_SIGNED_BY_ID:
            signed = _IS_SIGNED_BY_ID[column.id]
            return [value.as_py().to_bytes(column.byte_width, "little", signed=signed)]
        if column.id == _STRING_ID:
            return [value.as_buffer().to_pybytes()]
    literal = Literal.from_scalar(value)
    if literal is None or family(column) == "boolean" or not is_comparable(column, value.type):
        raise Unanswerable(
            f"a {value.type} literal against a {column} column is not compared exactly"
        )
    return stored_bytes(literal, column)


def probe_many(column: pa.DataType, values: pa.Array) -> Probe:
    """Return the hashes of rows that are equal to any of several literals, none of them null."""
    column = hashed_type(column)
    is_bulk = len(values) > _MAX_HASHED_SINGLY
    found = (hash_keys if is_bulk else _hash_singly)(column, values)
    if found.anywhere.size:
        return probe(column, values[int(found.anywhere[0])])
    hashes = found.of_keys_and_zeros()
    first_hashes = distinct_numbers(hashes[:_MAX_SORTED_HASHES])
    hashes = np.concatenate([first_hashes, hashes[_MAX_SORTED_HASHES:]])
    return Probe(hashes, keys=found if is_bulk else None)


@dataclass(frozen=True, slots=True)
class BulkProbe:
    """The hashes of many keys, computed in bulk. Keys are named by their position, int64.

    Attributes
    ----------
    hashes : uint64 array
    positions : int64 array
        The key of each hash, ascending. A key has at most one hash here. It has none if no value of
        the column can equal it, if it is a floating point zero, or if it may be anywhere.
    zeros : int64 array
        Keys that are floating point zeros. Each has both ``zero_hashes``.
    zero_hashes : uint64 array
    anywhere : int64 array
        Keys that every zone may hold: NaN, and floats that an engine would round.
    """

    hashes: np.ndarray
    positions: np.ndarray
    zeros: np.ndarray
    zero_hashes: np.ndarray
    anywhere: np.ndarray

    def of_keys_and_zeros(self) -> np.ndarray:
        """Return all hashes. Those of zeros come last, once for all zeros."""
        return np.concatenate([self.hashes, self.zero_hashes]) if self.zeros.size else self.hashes

    def with_hash_among(self, hashes: np.ndarray) -> np.ndarray:
        """Return the positions of keys with a hash among sorted ones, or that may be anywhere."""
        is_among = hashes_among(self.of_keys_and_zeros(), hashes)
        count = self.positions.size
        found = [self.positions[is_among[:count]], self.anywhere]
        if is_among[count:].any():
            found.append(self.zeros)
        return np.sort(np.concatenate(found))


def hash_keys(column: pa.DataType, keys: pa.Array) -> BulkProbe:
    """Return the hashes of many keys. A null equals no row, so it has no hash."""
    column, kind = hashed_type(column), family(hashed_type(keys.type))
    if kind == "float" == family(column):
        return _hash_floats(column, keys)
    positions = None
    if kind == "integer" == family(column) and hash_domain(keys.type) != hash_domain(column):
        keys, positions = integers_in_range(keys, column)
    if hash_domain(keys.type) != hash_domain(column):
        return _hash_singly(column, keys)
    from zonebloom.sbbf.hashing import hash_array

    key_hashes = hash_array(keys)
    hashes = key_hashes.of_valid_rows()
    if positions is None:
        has_null = key_hashes.null_count
        positions = np.flatnonzero(key_hashes.is_valid()) if has_null else np.arange(len(keys))
    return BulkProbe(hashes, positions, _NO_POSITIONS, _NO_HASHES, _NO_POSITIONS)


def _hash_singly(column: pa.DataType, keys: pa.Array) -> BulkProbe:
    """Return the hashes of keys of another type than the column, which are converted one by one."""
    hashes, zero_hashes = [_NO_HASHES], _NO_HASHES
    positions: list[int] = []
    zeros: list[int] = []
    anywhere: list[int] = []
    for number, key in enumerate(keys):
        if not key.is_valid:
            continue
        key_probe = probe(column, key)
        if key_probe.unusable_reason is not None:
            anywhere.append(number)
        elif key_probe.hashes.size == 1:
            hashes.append(key_probe.hashes)
            positions.append(number)
        elif key_probe.hashes.size:
            # Only zeros have two hashes.
            zero_hashes = key_probe.hashes
            zeros.append(number)
    key_numbers = (np.array(numbers, dtype=np.int64) for numbers in (positions, zeros, anywhere))
    with_hash, with_two, everywhere = key_numbers
    return BulkProbe(np.concatenate(hashes), with_hash, with_two, zero_hashes, everywhere)


def hashes_among(hashes: np.ndarray, ordered: np.ndarray) -> np.ndarray:
    """Return which hashes are in a sorted array, bool."""
    if not ordered.size:
        return np.zeros(hashes.size, dtype=bool)
    # A table of the low bits excludes most of the others, if few hashes are among them.
    mask = np.uint64((1 << (8 * ordered.size).bit_length()) - 1)
    has_low_bits = np.zeros(int(mask) + 1, dtype=bool)
    has_low_bits[ordered & mask] = True
    is_among = has_low_bits[hashes & mask]
    candidates = np.flatnonzero(is_among)
    nearest = np.minimum(ordered.searchsorted(hashes[candidates]), ordered.size - 1)
    is_among[candidates] = ordered[nearest] == hashes[candidates]
    return is_among


def _hash_floats(column: pa.DataType, keys: pa.Array) -> BulkProbe:
    from zonebloom.sbbf.hashing import hash_array

    if pa.types.is_dictionary(keys.type):
        keys = keys.dictionary_decode()
    is_valid = to_numpy(pc.call_function("is_valid", [keys]))
    numbers = keys.to_numpy(zero_copy_only=False)
    with np.errstate(over="ignore", invalid="ignore"):
        stored = numbers.astype(f"f{column.byte_width}")
    # NaN differs from itself, and a rounded value from the key.
    is_exact = stored == numbers
    positions = np.flatnonzero(is_valid & is_exact & (stored != 0))
    zeros = np.flatnonzero(is_valid & (stored == 0) & is_exact)
    both_zeros = np.array([0.0, -0.0], dtype=stored.dtype)
    return BulkProbe(
        hash_array(from_numpy(stored[positions])).values,
        positions,
        zeros,
        hash_array(from_numpy(both_zeros)).values if zeros.size else _NO_HASHES,
        np.flatnonzero(is_valid & ~is_exact),
    )
