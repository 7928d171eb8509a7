"""Classify Arrow types: the kind of their values, which compare exactly, what can be indexed.

To support a new Arrow type, add it to `_FAMILIES`, and to `zonebloom.sbbf.hashing` if it can be
indexed.
"""

from __future__ import annotations

from fractions import Fraction

import pyarrow as pa
import pyarrow.types as pt

from zonebloom.errors import UnsupportedType
from zonebloom.sbbf.hashing import fixed_width
from zonebloom.values.normal_types import decoded_type, hashed_type, is_opaque_extension

SECONDS_PER_DAY = 86_400
LIST_TYPES = (pa.ListType, pa.LargeListType, pa.FixedSizeListType)
# From the coarsest to the finest unit of time.
TICKS_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
# By width in bits. A float of this width holds every integer below the limit exactly, so an engine
# that compares such integers as floats compares them exactly.
EXACT_INTEGER_LIMITS = {16: 2**11, 32: 2**24, 64: 2**53}

# Only the ids of these types matter, not their parameters.
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
    # A timestamp with a time zone is of the family "instant". Without one, its moment is unknown.
    "timestamp": (pa.timestamp("s"), pa.date64()),
    "time": (pa.time32("s"), pa.time64("us")),
    "duration": (pa.duration("s"),),
    "boolean": (pa.bool_(),),
}
_FAMILY = {type_.id: family for family, types in _FAMILIES.items() for type_ in types}

# The families of the literals that compare exactly with a column, by the family of the column.
_COMPARABLE = {
    "integer": ("integer", "float", "decimal"),
    "float": ("integer", "float", "decimal"),
    "decimal": ("integer", "decimal"),
    "date": ("date", "timestamp"),
    "timestamp": ("date", "timestamp"),
}
TIME_ZONE_ADVICE = (
    'pyarrow.compute.assume_timezone(field, "UTC") converts times to instants, and '
    "local_timestamp(field) converts instants to times"
)


def family(type_: pa.DataType) -> str:
    """Return the kind of the values of a type, or "" if literals of it are not supported.

    >>> family(pa.dictionary(pa.int8(), pa.string_view())), family(pa.timestamp("s", "UTC"))
    ('text', 'instant')
    """
    name = _FAMILY.get(type_.id, "")
    if name and name != "timestamp":
        # Most types need no further step.
        return name
    kind = hashed_type(type_)
    name = _FAMILY.get(kind.id, "")
    return "instant" if name == "timestamp" and getattr(kind, "tz", None) is not None else name


def is_comparable(column: pa.DataType, literal: pa.DataType) -> bool:
    """Return whether literals of a type may equal values of a column and compare with them exactly.

    >>> is_comparable(pa.int32(), pa.float64()), is_comparable(pa.int32(), pa.string())
    (True, False)
    """
    kind = family(column)
    return bool(kind) and family(literal) in _COMPARABLE.get(kind, (kind,))


def time_zones_differ(one: pa.DataType, other: pa.DataType) -> bool:
    """Return whether one type is an instant, and the other a date or a time without a zone."""
    if one == other:
        return False
    families = {family(one), family(other)}
    return "instant" in families and not families.isdisjoint(("date", "timestamp"))


def value_step(type_: pa.DataType) -> Fraction:
    """Return the distance of consecutive values of a type. Dates and times are in seconds."""
    if pt.is_decimal(type_):
        return Fraction(10) ** -type_.scale
    if pt.is_date32(type_):
        return Fraction(SECONDS_PER_DAY)
    if pt.is_date64(type_):
        return Fraction(1, TICKS_PER_SECOND["ms"])
    return Fraction(1) if pt.is_integer(type_) else Fraction(1, TICKS_PER_SECOND[type_.unit])


def integer_bounds(type_: pa.DataType) -> tuple[int, int]:
    """Return the least and the largest value of a type, as multiples of `value_step`."""
    if pt.is_decimal(type_):
        largest = 10**type_.precision - 1
        return -largest, largest
    bits = type_.bit_width
    if pt.is_unsigned_integer(type_):
        return 0, 2**bits - 1
    return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1


def is_lossless_cast(source: pa.DataType, target: pa.DataType, *, checked: bool = False) -> bool:
    """Return whether a cast keeps all values and nulls, and different values stay different.

    ``checked`` also allows casts that may fail for some values.

    >>> is_lossless_cast(pa.uint16(), pa.int32()), is_lossless_cast(pa.uint32(), pa.int32())
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
            integer_digits = source.precision - source.scale
            has_room = integer_digits <= target.precision - target.scale
            return source.scale <= target.scale and has_room
        case "bytes", "bytes":
            return not pt.is_fixed_size_binary(target)
        case ("timestamp", "timestamp") | ("instant", "instant"):
            if not (checked and pt.is_timestamp(source) and pt.is_timestamp(target)):
                return False
            return TICKS_PER_SECOND[source.unit] <= TICKS_PER_SECOND[target.unit]
        case "date", "timestamp":
            return checked and pt.is_date64(target)
    return False


def may_hold_nan(type_: pa.DataType) -> bool:
    """Return whether a value of a type, or a value nested in it, may be NaN."""
    type_ = decoded_type(type_)
    return family(type_) == "float" or not is_flat(type_)


def has_nulls_outside_bitmap(type_: pa.DataType) -> bool:
    """Return whether the validity bitmap of a column may lack some of its nulls."""
    type_ = decoded_type(type_)
    return pt.is_union(type_) or pt.is_run_end_encoded(type_) or is_opaque_extension(type_)


def is_flat(type_: pa.DataType) -> bool:
    """Return whether a value is one scalar, and its validity bitmap has all nulls."""
    return not (pt.is_nested(type_) or pt.is_null(type_) or has_nulls_outside_bitmap(type_))


def hash_domain(type_: pa.DataType) -> str:
    """Return the name of the byte form in which values are hashed.

    Filters of one type answer for all types with the same name.

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
            # The zone changes only how an instant is displayed. Instants are stored in UTC.
            return f"timestamp[{kind.unit}, UTC]"
    return str(kind)


def _indexable_leaves(struct: pa.StructType, column: str) -> list[str]:
    names = []
    for field in struct:
        name = f"{column}.{field.name}"
        leaf = hashed_type(field.type)
        if isinstance(leaf, pa.StructType):
            names += _indexable_leaves(leaf, name)
        elif why_not_indexable(leaf, name) is None:
            names.append(name)
    return names


def require_indexable(type_: pa.DataType, column: str) -> None:
    """Raise `UnsupportedType` if a column of a type cannot be indexed."""
    reason = why_not_indexable(type_, column)
    if reason is not None:
        raise UnsupportedType(
            f"column {column!r} has type {type_}, which cannot be indexed: {reason}"
        )


def why_not_indexable(type_: pa.DataType, column: str) -> str | None:
    """Return why a column of a type cannot be indexed and what to do, or None if it can."""
    leaf = hashed_type(type_)
    if pt.is_boolean(leaf):
        return "two values cannot tell zones apart; filter on it without an index"
    if pt.is_null(leaf):
        return (
            "it holds nothing but nulls in the file that gives the schema, so there is nothing to "
            'look up; if later files hold values, open the dataset with schema="union"'
        )
    if pt.is_struct(leaf):
        names = ", ".join(_indexable_leaves(leaf, column))
        if not names:
            return "none of its leaves can be indexed; store one as a column of another type"
        return f"index one of its leaves instead: {names}"
    if isinstance(leaf, LIST_TYPES):
        return (
            f"index its elements instead: {column}[], and ask for them by "
            f"list_contains({column}, value)"
        )
    if pt.is_map(leaf):
        return f"index its entries instead: {column}[]"
    if pt.is_nested(leaf):
        return "its values have no row of their own; store them as a column"
    try:
        fixed_width(leaf)
    except UnsupportedType:
        return "cast it to an integer, string, binary, decimal, date or time type"
    return None


def describe_time_zone_mismatch(column: pa.DataType, literal: pa.Scalar) -> tuple[str, str]:
    """Return the problem and the advice for a literal and a column of which only one has a zone."""
    column = decoded_type(column)
    try:
        # This makes a date the first moment of the day, and cuts nanoseconds. A time with a zone is
        # stored in UTC.
        moment = literal.cast(pa.timestamp("us"), safe=False).as_py()
    except (ValueError, OverflowError, pa.ArrowException):
        return f"a time is compared with a column of {column}", f"write it as {column}"
    if getattr(literal.type, "tz", None) is None:
        return (
            f"{moment}, without a zone, is compared with a column of {column}",
            f"write it with a zone, as '{moment}+00:00' if it is UTC",
        )
    return (
        f"{moment}+00:00, with a zone, is compared with a column of {column}, without a zone",
        f"write it without a zone, as '{moment}' if the column holds UTC",
    )


def time_zone_mismatch_message(name: str, column: pa.DataType, literal: pa.Scalar) -> str | None:
    """Return why a time is not compared with a column, or None if it can be."""
    if not time_zones_differ(column, literal.type):
        return None
    problem, advice = describe_time_zone_mismatch(column, literal)
    return f"{name}: {problem}; {advice}"
