"""Which Arrow types can be indexed, and which hashes answer for a literal.

A literal is cast to the column's type exactly or not at all. Of one that has no exact form
there, no row can be equal (5.5 in an int32 column); one whose form an engine would round
(0.1 in a float32 column), or whose type we cannot place, may be anywhere: "maybe". A
rounded value is never hashed.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from zonebloom.errors import UnsupportedType
from zonebloom.sbbf.hashing import fixed_width, value_type

_NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_DAY_NANOSECONDS = 86_400 * 10**9
_NO_HASHES = np.empty(0, dtype=np.uint64)

# Up to here every integer is a floating point number of that width, so an engine that
# compares as floating point compares exactly.
_EXACT_INTEGERS = {16: 2**11, 32: 2**24, 64: 2**53}


@dataclass(frozen=True, slots=True)
class Probe:
    """What to look for in the filters of a column.

    Attributes
    ----------
    hashes : uint64 array, shape (n,)
        A zone may match when its filter may hold one of these; none: no row is equal.
    maybe : str or None
        When set, why every zone may match whatever the filters say.
    """

    hashes: np.ndarray
    maybe: str | None = None


_NO_ROW = Probe(_NO_HASHES)


def _maybe(reason: str) -> Probe:
    return Probe(_NO_HASHES, reason)


def _misfit(column: pa.DataType, literal: _Literal) -> Probe:
    return _maybe(f"a {literal.family} literal against a {column} column is not compared exactly")


def require_indexable(arrow_type: pa.DataType, column: str) -> None:
    """Refuse a column whose type cannot carry a Bloom filter index."""
    why = why_not_indexable(arrow_type, column)
    if why is not None:
        raise UnsupportedType(
            f"column {column!r} has type {arrow_type}, which cannot be indexed: {why}"
        )


def why_not_indexable(arrow_type: pa.DataType, column: str) -> str | None:
    """Why a column's type cannot carry a Bloom filter index, and what to do; None if it can."""
    leaf = value_type(arrow_type)
    t = pa.types
    if t.is_boolean(leaf):
        return "two values cannot tell zones apart; filter on it without an index"
    if t.is_null(leaf):
        return "it holds nothing but nulls; there is nothing to look up"
    if t.is_struct(leaf):
        names = ", ".join(f"{column}.{leaf.field(i).name}" for i in range(leaf.num_fields))
        return f"index one of its leaves instead: {names}"
    if t.is_nested(leaf):
        return "values inside lists and maps have no row of their own; store them as a column"
    try:
        fixed_width(leaf)
    except UnsupportedType:
        return "cast it to an integer, string, binary, decimal, date or time type"
    return None


def hash_domain(arrow_type: pa.DataType) -> str:
    """Name of the bytes a type is hashed as; two types with one name share filters.

    >>> hash_domain(pa.large_string()), hash_domain(pa.dictionary(pa.int8(), pa.string()))
    ('string', 'string')
    """
    leaf = value_type(arrow_type)
    t = pa.types
    if t.is_string(leaf) or t.is_large_string(leaf) or t.is_string_view(leaf):
        return "string"
    if t.is_binary(leaf) or t.is_large_binary(leaf) or t.is_binary_view(leaf):
        return "binary"
    if t.is_timestamp(leaf):
        # The zone is how an instant is shown, not what is stored.
        return f"timestamp[{leaf.unit}{'' if leaf.tz is None else ', UTC'}]"
    return str(leaf)


# Which literals are compared exactly with the values of a column, by what both are.
_COMPARABLE = {
    "int": ("int", "float", "decimal"),
    "float": ("int", "float", "decimal"),
    "decimal": ("int", "decimal"),
    "string": ("string",),
    "binary": ("binary",),
    "date": ("date", "timestamp"),
    "timestamp": ("date", "timestamp"),
    "instant": ("instant",),
    "time": ("time",),
    "duration": ("duration",),
}


def _family(arrow_type: pa.DataType) -> str | None:
    """What values of a type are, None for types no literal is read of."""
    kind = value_type(arrow_type)
    t = pa.types
    if t.is_integer(kind):
        return "int"
    if t.is_floating(kind):
        return "float"
    if t.is_decimal(kind):
        return "decimal"
    if hash_domain(kind) in ("string", "binary"):
        return hash_domain(kind)
    if t.is_fixed_size_binary(kind):
        return "binary"
    if t.is_date32(kind):
        return "date"
    if t.is_timestamp(kind):
        # With a zone it is an instant; without one nobody knows which.
        return "timestamp" if kind.tz is None else "instant"
    if t.is_date64(kind):
        return "timestamp"
    if t.is_time(kind):
        return "time"
    return "duration" if t.is_duration(kind) else None


def is_comparable(column: pa.DataType, literal: pa.DataType) -> bool:
    """Whether values of one type may equal those of a column that is indexed.

    >>> is_comparable(pa.int32(), pa.float64()), is_comparable(pa.int32(), pa.string())
    (True, False)
    """
    return _family(literal) in _COMPARABLE.get(_family(column) or "", ())


@dataclass(frozen=True, slots=True)
class _Literal:
    """A literal as an exact Python value of a family.

    Families: int, float (``bits`` wide), decimal, string, binary, date (days), time,
    timestamp, instant, duration (all nanoseconds).
    """

    family: str
    value: Any
    bits: int = 0


def _read(scalar: pa.Scalar) -> _Literal | None:
    while isinstance(scalar, pa.ExtensionScalar):
        scalar = scalar.value
    kind: Any = scalar.type
    t = pa.types
    if t.is_dictionary(kind):
        return _read(scalar.value)  # pyright: ignore[reportAttributeAccessIssue]
    family = _family(kind)
    if family is None:
        return None
    if family == "float":
        return _Literal(family, float(scalar.as_py()), kind.bit_width)
    if family in ("int", "decimal", "string", "binary"):
        return _Literal(family, scalar.as_py())
    value: int = scalar.value  # pyright: ignore[reportAttributeAccessIssue]
    if t.is_date32(kind):
        return _Literal(family, value)
    return _Literal(family, value * (10**6 if t.is_date64(kind) else _NANOSECONDS[kind.unit]))


def hash_bytes(data: bytes) -> int:
    """XXH64 with seed 0, without loading Numba."""
    return xxhash.xxh64_intdigest(data)


def probe(arrow_type: pa.DataType, literal: pa.Scalar) -> Probe:
    """Find the hashes under which rows equal to a literal were inserted."""
    column = value_type(arrow_type)
    read = _read(literal)
    if read is None:
        return _maybe(f"a {literal.type} literal against a {column} column is not understood")
    encoded = _encode(column, read)
    if isinstance(encoded, Probe):
        return encoded
    return Probe(np.array([hash_bytes(data) for data in encoded], dtype=np.uint64))


def probe_many(arrow_type: pa.DataType, literals: pa.Array) -> Probe:
    """Find the hashes for any of several literals, none of them null.

    Values of the column's own bytes are hashed in bulk; others go through `probe`.
    """
    column = value_type(arrow_type)
    own = hash_domain(literals.type) == hash_domain(column)
    if len(literals) > 64 and pa.types.is_integer(column) and pa.types.is_integer(literals.type):
        literals = _in_range(literals, column)
        own = True
    if own and len(literals) > 64 and not pa.types.is_floating(column):
        from zonebloom.sbbf.hashing import hash_array

        return Probe(np.unique(hash_array(literals).valid()))
    found = [probe(column, literal) for literal in literals]
    for each in found:
        if each.maybe is not None:
            return each
    return Probe(np.unique(np.concatenate([_NO_HASHES, *(each.hashes for each in found)])))


def _in_range(integers: pa.Array, column: pa.DataType) -> pa.Array:
    """Those integers that are values of another integer type, as that type."""
    low, high = _integer_bounds(column)
    own_low, own_high = _integer_bounds(integers.type)
    values = integers.to_numpy()
    inside = np.ones(len(values), dtype=bool)
    if low > own_low:
        inside &= values >= low
    if high < own_high:
        inside &= values <= high
    return pa.array(values[inside]).cast(column)


def _integer_bounds(integer_type: pa.DataType) -> tuple[int, int]:
    bits = integer_type.bit_width
    if pa.types.is_signed_integer(integer_type):
        return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    return 0, 2**bits - 1


def _encode(column: pa.DataType, literal: _Literal) -> list[bytes] | Probe:
    """Bytes a literal is hashed as in a column, or the probe that needs none."""
    t = pa.types
    family = _family(column)
    if literal.family not in _COMPARABLE.get(family or "", ()):
        return _misfit(column, literal)
    if family == "int":
        return _encode_integer(column, literal)
    if family == "float":
        return _encode_float(column, literal)
    if family == "decimal":
        return _encode_decimal(column, literal)
    if family == "string":
        return [literal.value.encode()]
    if t.is_fixed_size_binary(column) and len(literal.value) != column.byte_width:
        return _NO_ROW
    return [literal.value] if family == "binary" else _encode_temporal(column, literal)


def _encode_integer(column: pa.DataType, literal: _Literal) -> list[bytes] | Probe:
    value = literal.value
    if literal.family == "float":
        if math.isnan(value):
            return _maybe("engines disagree on NaN")
        if abs(value) >= _EXACT_INTEGERS[literal.bits] and abs(value) != float("inf"):
            return _maybe(f"{value!r} is compared as floating point, which rounds large integers")
    if abs(value) == float("inf") or value != int(value):
        return _NO_ROW
    low, high = _integer_bounds(column)
    if not low <= value <= high:
        return _NO_ROW
    return [int(value).to_bytes(column.byte_width, "little", signed=low < 0)]


def _encode_float(column: pa.DataType, literal: _Literal) -> list[bytes] | Probe:
    value = literal.value
    if math.isnan(value):
        return _maybe("engines disagree on NaN")
    code = {2: "<e", 4: "<f", 8: "<d"}[column.byte_width]
    try:
        encoded = struct.pack(code, float(value))
        exact = Decimal(struct.unpack(code, encoded)[0]) == Decimal(value)
    except (OverflowError, ValueError):
        exact, encoded = False, b""
    if not exact:
        return _maybe(f"{value} is not a {column} value, and engines round it")
    if value == 0:
        return [struct.pack(code, 0.0), struct.pack(code, -0.0)]
    return [encoded]


def _encode_decimal(column: pa.DataType, literal: _Literal) -> list[bytes] | Probe:
    value = Decimal(literal.value)
    if not value.is_finite():
        return _misfit(column, literal)
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    unscaled = int("".join(map(str, digits)))
    shift = exponent + column.scale
    if shift >= 0:
        unscaled *= 10**shift
    elif unscaled % 10**-shift:
        return _NO_ROW
    else:
        unscaled //= 10**-shift
    if unscaled >= 10**column.precision:
        return _NO_ROW
    return [(-unscaled if sign else unscaled).to_bytes(column.byte_width, "little", signed=True)]


def _encode_temporal(column: pa.DataType, literal: _Literal) -> list[bytes] | Probe:
    t = pa.types
    nanoseconds = literal.value
    if literal.family == "date":
        nanoseconds = literal.value * _DAY_NANOSECONDS
    if t.is_date(column):
        unit = _DAY_NANOSECONDS if t.is_date32(column) else 10**6
    else:
        unit = _NANOSECONDS[column.unit]
    value, rest = divmod(nanoseconds, unit)
    bits = column.bit_width
    if rest or not -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
        return _NO_ROW
    return [value.to_bytes(bits // 8, "little", signed=True)]
