"""What Arrow types hold: families of values, and which types hold all the values of others.

A new Arrow type is added to `_FAMILIES`, and to `zonebloom.sbbf.hashing` if it is indexed.
"""

from __future__ import annotations

from fractions import Fraction

import pyarrow as pa
import pyarrow.types as pt

from zonebloom.errors import UnsupportedType
from zonebloom.sbbf.hashing import fixed_width, hashed_type

SECONDS_PER_DAY = 86_400
# Ticks a second of the units of time, from coarse to fine.
TICKS_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
# Below it every integer is a floating point number of that width, so an engine that compares
# as floating point compares exactly.
EXACT_INTEGER_LIMITS = {16: 2**11, 32: 2**24, 64: 2**53}

# The parameters of these types do not count.
_FAMILIES = {
    "integer": (
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
        *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    ),
    "float": (pa.float16(), pa.float32(), pa.float64()),
    "decimal": (pa.decimal32(1), pa.decimal64(1), pa.decimal128(1), pa.decimal256(1)),
    "text": (pa.string(), pa.large_string(), pa.string_view()),
    "bytes": (pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(1)),
    "date": (pa.date32(),),
    # Becomes "instant" with a zone; without one nobody knows which moment it is.
    "timestamp": (pa.timestamp("s"), pa.date64()),
    "time": (pa.time32("s"), pa.time64("us")),
    "duration": (pa.duration("s"),),
    "boolean": (pa.bool_(),),
}
_FAMILY = {type_.id: family for family, types in _FAMILIES.items() for type_ in types}

# Which literals are compared exactly with the values of a column, by the families of both.
_COMPARABLE = {
    "integer": ("integer", "float", "decimal"),
    "float": ("integer", "float", "decimal"),
    "decimal": ("integer", "decimal"),
    "date": ("date", "timestamp"),
    "timestamp": ("date", "timestamp"),
}


def decoded_type(type_: pa.DataType) -> pa.DataType:
    """The type of the values: a dictionary is a way to store, not a kind of value."""
    return decoded_type(type_.value_type) if isinstance(type_, pa.DictionaryType) else type_


def decoded_storage_type(type_: pa.DataType) -> pa.DataType:
    """The type of the values as they are stored: a UUID is 16 bytes."""
    type_ = decoded_type(type_)
    return type_.storage_type if isinstance(type_, pa.UuidType) else type_


def family(type_: pa.DataType) -> str:
    """The kind of values a type holds, however stored; empty where no literal is read of it.

    >>> family(pa.dictionary(pa.int8(), pa.string_view())), family(pa.timestamp("s", "UTC"))
    ('text', 'instant')
    """
    kind = hashed_type(type_)
    name = _FAMILY.get(kind.id, "")
    return "instant" if name == "timestamp" and getattr(kind, "tz", None) is not None else name


def is_comparable(column: pa.DataType, literal: pa.DataType) -> bool:
    """Whether values of one type may equal those of a column, and are compared exactly.

    >>> is_comparable(pa.int32(), pa.float64()), is_comparable(pa.int32(), pa.string())
    (True, False)
    """
    kind = family(column)
    return bool(kind) and family(literal) in _COMPARABLE.get(kind, (kind,))


def time_zones_differ(one: pa.DataType, other: pa.DataType) -> bool:
    """Whether one is an instant and the other a date or time that may be of any zone."""
    families = {family(one), family(other)}
    return "instant" in families and not families.isdisjoint(("date", "timestamp"))


def value_step(type_: pa.DataType) -> Fraction:
    """The step of a number line: of integers and decimals, and in seconds of dates and times."""
    if pt.is_decimal(type_):
        return Fraction(10) ** -type_.scale
    if pt.is_date32(type_):
        return Fraction(SECONDS_PER_DAY)
    if pt.is_date64(type_):
        return Fraction(1, TICKS_PER_SECOND["ms"])
    return Fraction(1) if pt.is_integer(type_) else Fraction(1, TICKS_PER_SECOND[type_.unit])


def integer_bounds(type_: pa.DataType) -> tuple[int, int]:
    if pt.is_decimal(type_):
        most = 10**type_.precision - 1
        return -most, most
    bits = type_.bit_width
    if pt.is_unsigned_integer(type_):
        return 0, 2**bits - 1
    return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1


def is_lossless_cast(source: pa.DataType, target: pa.DataType, *, checked: bool = False) -> bool:
    """Whether a cast keeps every value, null and difference, and never fails (a `checked` one may).

    >>> widens(pa.uint16(), pa.int32()), widens(pa.uint32(), pa.int32())
    (True, False)
    """
    if pt.is_null(source) or hash_domain(source) == hash_domain(target):
        return True
    families = family(source), family(target)
    source, target = hashed_type(source), hashed_type(target)
    match families:
        case "integer", "integer":
            (low, high), (least, most) = integer_bounds(source), integer_bounds(target)
            return least <= low and high <= most
        case "integer", "float":
            return 2**source.bit_width <= EXACT_INTEGER_LIMITS[target.bit_width]
        case "integer", "decimal":
            return target.precision - target.scale >= len(str(2**source.bit_width))
        case "float", "float":
            return source.bit_width <= target.bit_width
        case "decimal", "decimal":
            whole = source.precision - source.scale
            return source.scale <= target.scale and whole <= target.precision - target.scale
        case "bytes", "bytes":
            return not pt.is_fixed_size_binary(target)
        case ("timestamp", "timestamp") | ("instant", "instant"):
            both = pt.is_timestamp(source) and pt.is_timestamp(target)
            return (
                checked and both and TICKS_PER_SECOND[source.unit] <= TICKS_PER_SECOND[target.unit]
            )
        case "date", "timestamp":
            return checked and pt.is_date64(target)
    return False


def may_hold_nan(type_: pa.DataType) -> bool:
    """Whether a value, or one nested in it, may be NaN."""
    kind = decoded_type(type_)
    return family(kind) == "float" or not is_flat(kind)


def has_nulls_outside_bitmap(type_: pa.DataType) -> bool:
    """Whether nulls are not in the column's own validity bitmap alone."""
    kind = decoded_storage_type(type_)
    return (
        pt.is_union(kind) or pt.is_run_end_encoded(kind) or isinstance(kind, pa.BaseExtensionType)
    )


def is_flat(type_: pa.DataType) -> bool:
    return not (pt.is_nested(type_) or pt.is_null(type_) or has_nulls_outside_bitmap(type_))


def hash_domain(type_: pa.DataType) -> str:
    """Name of the bytes a type is hashed as; two types with one name share filters.

    >>> hash_domain(pa.large_string()), hash_domain(pa.dictionary(pa.int8(), pa.string()))
    ('string', 'string')
    """
    kind = hashed_type(type_)
    match family(kind):
        case "text":
            return "string"
        case "bytes" if not pt.is_fixed_size_binary(kind):
            return "binary"
        case "instant":
            # The zone is how an instant is shown, not what is stored.
            return f"timestamp[{kind.unit}, UTC]"
    return str(kind)


def require_indexable(type_: pa.DataType, column: str) -> None:
    why = why_not_indexable(type_, column)
    if why is not None:
        raise UnsupportedType(f"column {column!r} has type {type_}, which cannot be indexed: {why}")


def why_not_indexable(type_: pa.DataType, column: str) -> str | None:
    """Why a column's type cannot carry a Bloom filter index, and what to do; None if it can."""
    leaf = hashed_type(type_)
    if pt.is_boolean(leaf):
        return "two values cannot tell zones apart; filter on it without an index"
    if pt.is_null(leaf):
        return "it holds nothing but nulls; there is nothing to look up"
    if pt.is_struct(leaf):
        names = ", ".join(f"{column}.{leaf.field(i).name}" for i in range(leaf.num_fields))
        return f"index one of its leaves instead: {names}"
    if pt.is_nested(leaf):
        return "values inside lists and maps have no row of their own; store them as a column"
    try:
        fixed_width(leaf)
    except UnsupportedType:
        return "cast it to an integer, string, binary, decimal, date or time type"
    return None
