"""Where a literal lies among a column's values, exactly.

An index stores the column's own values and looks a literal up only if it is exactly one of them.
The first half says for which pairs of types PyArrow's own comparison does the same. PyArrow
casts one side or both before it compares, so the two agree only where no cast rounds. Each rule
was measured, the traps being: `is_in` casts the *set* to the column's type (0.1 as double finds
0.1 as float, the timestamp 00:00:00.001 finds the date, the string '5' finds the integer), and a
decimal meets a float only after rounding.

The second half reads the literals of a SQL text and places them on the number line of a type:
5.5 lies between two int32, 99999999999 beyond them all. Nothing is rounded on the way, but that
beside a float column a number means the nearest double, as in every SQL engine.
"""

from __future__ import annotations

import datetime
import math
import re
import struct
import uuid
import zoneinfo
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

_DAY = 86400
_EPOCH = datetime.date(1970, 1, 1).toordinal()
_TICKS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_MAX_EXPONENT = 400
# Bits of the widest integer type of which every value is a floating point number that wide.
_EXACT_BITS = {16: 8, 32: 16, 64: 32}
_NOT_FINITE = {"nan", "inf", "+inf", "-inf", "infinity", "+infinity", "-infinity"}
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,9})?", re.ASCII)
_CLOCK = re.compile(r"(?P<h>\d{1,2}):(?P<m>\d{2})(:(?P<s>\d{2}(\.\d+)?))?", re.ASCII)
_TIMESTAMP = re.compile(
    r"(?P<day>\d{4}-\d{2}-\d{2})"
    r"([T ](?P<clock>\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?) ?(?P<zone>Z|UTC|[+-]\d{2}(:?\d{2})?)?)?",
    re.ASCII,
)
ZONE_FUNCTIONS = (
    'pyarrow.compute.assume_timezone(field, "UTC") makes instants of times, and '
    "local_timestamp(field) times of instants"
)
_KIND_NAMES = {"text": "string", "bool": "truth value", "bytes": "binary literal"}
_ADVICE = {
    "text": "put the literal in single quotes: 'abc'",
    "bytes": "write X'0a1b' or a quoted string",
    "boolean": "write TRUE or FALSE",
    "timestamp": "write TIMESTAMP '2024-01-31 12:00:00', with +00:00 behind if it has a zone",
    "date": "write DATE '2024-01-31'",
    "time": "write TIME '12:30:00'",
    "duration": "write INTERVAL '90' SECOND",
    "number": "write a plain number",
}


def plain(type_: pa.DataType) -> pa.DataType:
    """Return the type of the values: a dictionary is a way to store, not a kind of value."""
    return plain(type_.value_type) if isinstance(type_, pa.DictionaryType) else type_


def stored(type_: pa.DataType) -> pa.DataType:
    """Return the type of the values as they are stored: a UUID is 16 bytes."""
    type_ = plain(type_)
    return type_.storage_type if isinstance(type_, pa.UuidType) else type_


def compared_as(type_: pa.DataType) -> pa.DataType:
    """Return the type PyArrow can compare the values as, which keeps each of them.

    There are no kernels for float16, the view types and UUIDs, and a dictionary is best decoded:
    PyArrow would choose a common type by itself, which may be too small.
    """
    type_ = stored(type_)
    if pt.is_float16(type_):
        return pa.float32()
    if pt.is_string_view(type_):
        return pa.string()
    return pa.binary() if pt.is_binary_view(type_) else type_


def is_text(type_: pa.DataType) -> bool:
    """Tell whether values are UTF-8 text, however stored."""
    return pt.is_string(type_) or pt.is_large_string(type_) or pt.is_string_view(type_)


def is_bytes(type_: pa.DataType) -> bool:
    """Tell whether values are raw bytes, however stored."""
    return (
        pt.is_binary(type_)
        or pt.is_large_binary(type_)
        or pt.is_binary_view(type_)
        or pt.is_fixed_size_binary(type_)
    )


def holds_nan(type_: pa.DataType) -> bool:
    """Tell whether a value may be NaN."""
    return pt.is_floating(plain(type_)) or not _is_flat(plain(type_))


def nulls_are_elsewhere(type_: pa.DataType) -> bool:
    """Tell whether nulls are not in the column's own validity bitmap alone."""
    type_ = stored(type_)
    return pt.is_union(type_) or pt.is_run_end_encoded(type_) or _is_extension(type_)


def is_lossless(source: pa.DataType, target: pa.DataType) -> bool:
    """Tell whether a cast keeps every value, null and difference, and never fails.

    Examples
    --------
    >>> is_lossless(pa.uint16(), pa.int32()), is_lossless(pa.uint32(), pa.int32())
    (True, False)
    """
    if source == target:
        return True
    source = stored(source)
    if source == target:
        return True
    if pt.is_integer(source) and pt.is_floating(target):
        return source.bit_width <= _EXACT_BITS[target.bit_width]
    if pt.is_integer(source) and pt.is_decimal(target):
        return target.precision - target.scale >= len(str(2**source.bit_width))
    if pt.is_integer(source) and pt.is_integer(target):
        if pt.is_signed_integer(source) != pt.is_signed_integer(target):
            return pt.is_signed_integer(target) and target.bit_width > source.bit_width
        return target.bit_width >= source.bit_width
    if pt.is_floating(source) and pt.is_floating(target):
        return target.bit_width >= source.bit_width
    if pt.is_decimal(source) and pt.is_decimal(target):
        whole = source.precision - source.scale
        return target.scale >= source.scale and target.precision - target.scale >= whole
    if is_text(source) and is_text(target):
        return True
    return is_bytes(source) and is_bytes(target) and not pt.is_fixed_size_binary(target)


def equal_is_exact(column: pa.DataType, literal: pa.DataType) -> bool:
    """Tell whether PyArrow's `equal` of a column and a literal is equality of exact values."""
    column, literal = plain(column), plain(literal)
    if pt.is_integer(column):
        # A float literal makes PyArrow cast the column, with a check that fails on rounding.
        return pt.is_integer(literal) or pt.is_decimal(literal) or _is_wide_float(literal)
    if pt.is_floating(column):
        return pt.is_integer(literal) or pt.is_floating(literal)
    if pt.is_decimal(column):
        return pt.is_integer(literal) or pt.is_decimal(literal)
    if pt.is_date(column) or pt.is_timestamp(column):
        if pt.is_timestamp(column) and pt.is_timestamp(literal):
            return (column.tz is None) == (literal.tz is None)
        return _is_zoneless(column) and _is_zoneless(literal)
    return _same_family(column, literal)


def lookup_is_exact(column: pa.DataType, values: pa.Array) -> bool:
    """Tell whether PyArrow's `is_in` of a column and a set is equality of exact values."""
    column, literal = plain(column), values.type
    if column == literal:
        return _is_flat(column)
    if pt.is_integer(column) or pt.is_decimal(column):
        return pt.is_integer(column) == pt.is_integer(literal) and pt.is_decimal(
            column
        ) == pt.is_decimal(literal)
    if pt.is_floating(column) and _is_wide_float(column) and pt.is_floating(literal):
        # The set is cast to the column's type without a check, so check here.
        return values.cast(column, safe=False).cast(literal).equals(values)
    if pt.is_timestamp(column) and pt.is_timestamp(literal):
        return (column.tz is None) == (literal.tz is None)
    if pt.is_date(column) or pt.is_timestamp(column):
        return False
    return _same_family(column, literal)


def _same_family(column: pa.DataType, literal: pa.DataType) -> bool:
    return (
        (is_text(column) and is_text(literal))
        or (is_bytes(column) and is_bytes(literal))
        or (pt.is_time(column) and pt.is_time(literal))
        or (pt.is_duration(column) and pt.is_duration(literal))
        or (pt.is_boolean(column) and pt.is_boolean(literal))
    )


def _is_wide_float(type_: pa.DataType) -> bool:
    return pt.is_float32(type_) or pt.is_float64(type_)


def _is_zoneless(type_: pa.DataType) -> bool:
    return pt.is_date(type_) or (pt.is_timestamp(type_) and type_.tz is None)


def _is_instant(type_: pa.DataType) -> bool:
    return pt.is_timestamp(type_) and type_.tz is not None


def _is_extension(type_: pa.DataType) -> bool:
    return isinstance(type_, pa.BaseExtensionType)


def _is_flat(type_: pa.DataType) -> bool:
    return not (
        pt.is_nested(type_)
        or pt.is_null(type_)
        or pt.is_run_end_encoded(type_)
        or _is_extension(type_)
    )


def zones_differ(one: pa.DataType, other: pa.DataType) -> bool:
    """Tell whether one is an instant and the other a date or time that may be of any zone."""
    one, other = plain(one), plain(other)
    return (_is_zoneless(one) and _is_instant(other)) or (_is_instant(one) and _is_zoneless(other))


def zone_trouble(column: pa.DataType, literal: pa.Scalar, form: str) -> tuple[str, str]:
    """What is wrong with a time beside a column of which one alone has a zone; what to write.

    Examples
    --------
    >>> time = pa.scalar(0, pa.timestamp("s"))
    >>> print(zone_trouble(pa.timestamp("s", "Asia/Tokyo"), time, "{!r}")[0])
    1970-01-01 00:00:00, without a zone, is compared with a column of timestamp[s, tz=Asia/Tokyo]
    """
    column, zone = plain(column), getattr(literal.type, "tz", None)
    known = "without a zone" if zone is None else f"of {zone}"
    try:
        # A date is the day's first moment, and what is finer than Python's times is not told.
        naive = pa.timestamp("us")
        moment = literal.cast(naive, safe=False).as_py()
        here = _zone(column.tz if zone is None else zone)
    except (ValueError, OverflowError, KeyError, pa.ArrowException):
        what = f"a time {known} is compared with a column of {column}"
        return what, f"write it as {column}"
    if zone is None:
        what = f"{moment}, {known}, is compared with a column of {column}"
        whose, other = column.tz, moment.replace(tzinfo=here)
        moment, holder = moment.replace(tzinfo=datetime.UTC), "it is"
    else:
        local = moment.replace(tzinfo=datetime.UTC).astimezone(here)
        what = f"{local}, {known}, is compared with a column of {column}, without a zone"
        whose, other, holder = zone, local.replace(tzinfo=None), "the column holds"
    advice = f"write {form.format(str(moment))} if {holder} UTC"
    if str(other) != str(moment):
        advice += f", {form.format(str(other))} if {holder} the time in {whose}"
    return what, advice


def zone_refusal(name: str, column: pa.DataType, literal: pa.Scalar) -> str | None:
    """Why a Python time is not compared with a column, None where the two may be."""
    if not zones_differ(column, literal.type):
        return None
    what, advice = zone_trouble(column, literal, "datetime.fromisoformat({!r})")
    return f"{name}: {what}; {advice}"


def _zone(name: str) -> datetime.tzinfo:
    """A zone by its name, or by its distance from UTC as in +01:00."""
    if name[0] in "+-":
        return datetime.datetime.strptime(name, "%z").tzinfo or datetime.UTC
    return zoneinfo.ZoneInfo(name)


class Misplaced(Exception):
    """A literal that has no meaning where it stands: what is wrong, and what to write."""

    def __init__(self, what: str, advice: str) -> None:
        super().__init__(what)
        self.what = what
        self.advice = advice


@dataclass(frozen=True, slots=True)
class Literal:
    """A value as written, exact and not yet of any Arrow type.

    `kind` is one of null, bool, number, text, bytes, date, timestamp, instant (a timestamp with
    a zone), time, interval. Numbers are `Fraction` (`float` for NaN and infinities); dates and
    timestamps are seconds since 1970, times since midnight, as `Fraction`.
    """

    kind: str
    value: Any = None


@dataclass(frozen=True, slots=True)
class Placed:
    """A literal on the number line of a column's type.

    `scalar` is the value itself if `exact`, else the nearest below it; it is None where the
    literal lies `beyond` the type, above (1) or below (-1) every value the column can hold.
    """

    scalar: pa.Scalar | None
    exact: bool = True
    beyond: int = 0


def place(literal: Literal, type_: pa.DataType) -> Placed:
    """Find a literal among the values of a type, without rounding.

    Examples
    --------
    >>> place(Literal("number", Fraction("5.5")), pa.int32())
    Placed(scalar=<pyarrow.Int32Scalar: 5>, exact=False, beyond=0)
    """
    if is_text(type_) and literal.kind == "text":
        return Placed(pa.scalar(literal.value, type_))
    if is_bytes(type_) and literal.kind in ("bytes", "text"):
        raw = literal.value.encode() if literal.kind == "text" else literal.value
        return Placed(pa.scalar(raw, pa.binary() if pt.is_fixed_size_binary(type_) else type_))
    if pt.is_boolean(type_) and literal.kind == "bool":
        return Placed(pa.scalar(literal.value, type_))
    if pt.is_floating(type_) and literal.kind == "number":
        return _place_float(literal.value, type_)
    return _place_on_ticks(_in_units(literal, type_), type_)


def _place_float(value: Fraction | float, type_: pa.DataType) -> Placed:
    # As in every SQL engine, a literal beside a float column means the nearest double.
    double = _to_double(value)
    if pt.is_float64(type_) or math.isnan(double):
        return Placed(pa.scalar(double, type_))
    single = _to_single(double)
    # 0.1 is no float32: the caller widens the column instead of rounding the literal.
    return Placed(pa.scalar(double, type_ if single == double else pa.float64()))


def _to_double(value: Fraction | float) -> float:
    try:
        return float(value)
    except OverflowError:
        raise Misplaced("the number does not fit a double", "write a smaller number") from None


def _to_single(value: float) -> float | None:
    try:
        return struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return None


def _in_units(literal: Literal, type_: pa.DataType) -> Fraction:
    """Return the literal in whole numbers or seconds, whatever the type counts in."""
    kind, value = literal.kind, literal.value
    if pt.is_integer(type_) or pt.is_decimal(type_):
        if kind == "text" and pt.is_decimal(type_):
            kind, value = "number", number(value)
        if kind == "number" and isinstance(value, Fraction):
            return value
        if kind == "text":
            is_number = _NUMBER.fullmatch(str(value).strip())
            raise Misplaced(
                f"a string is compared with a column of type {type_}",
                f"write the number without quotes: {value if is_number else 42}",
            )
    elif pt.is_timestamp(type_) or pt.is_date(type_):
        if kind == "text":
            kind, value = timestamp(value)
        if (kind == "instant") == _is_instant(type_) and kind in ("date", "timestamp", "instant"):
            return value
        if kind in ("date", "timestamp", "instant"):
            zone = "UTC" if kind == "instant" else None
            raise Misplaced(*zone_trouble(type_, _timestamp_scalar(value, zone), "TIMESTAMP {!r}"))
    elif pt.is_time(type_):
        if kind == "text":
            kind, value = "time", time_of_day(value)
        if kind == "time":
            return value
    elif pt.is_duration(type_) and kind == "interval":
        return value
    raise Misplaced(
        f"a {_KIND_NAMES.get(kind, kind)} is compared with a column of type {type_}",
        _ADVICE.get(_family(type_), "write that part as a pyarrow.compute expression"),
    )


def _timestamp_scalar(seconds: Fraction, zone: str | None) -> pa.Scalar:
    return pa.scalar(seconds * 10**6 // 1, pa.int64()).cast(pa.timestamp("us", zone))


def _place_on_ticks(value: Fraction, type_: pa.DataType) -> Placed:
    """Every other type is whole ticks of some unit between two bounds."""
    bits = type_.bit_width
    low, high, unit = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1, Fraction(1)
    if pt.is_unsigned_integer(type_):
        low, high = 0, 2**bits - 1
    elif pt.is_decimal(type_):
        high = 10**type_.precision - 1
        low, unit = -high, Fraction(10) ** -type_.scale
    elif pt.is_date32(type_):
        unit = Fraction(_DAY)
    elif pt.is_date64(type_):
        unit = Fraction(1, 1000)
    elif not pt.is_integer(type_):
        unit = Fraction(1, _TICKS[type_.unit])
    ticks = value / unit
    if not low <= ticks <= high:
        return Placed(None, exact=False, beyond=1 if ticks > high else -1)
    whole = ticks.numerator // ticks.denominator
    plain_value = Decimal(f"{whole}E{-type_.scale}") if pt.is_decimal(type_) else whole
    return Placed(pa.scalar(plain_value, type_), exact=whole == ticks)


def cast(literal: Literal, type_: pa.DataType) -> Literal:
    """Return what ``CAST(literal AS type)`` means; only float types round."""
    kind, value = literal.kind, literal.value
    if kind == "null":
        return literal
    if pt.is_floating(type_):
        if kind == "text":
            value = float(value) if value.strip().lower() in _NOT_FINITE else number(value)
        elif kind != "number":
            raise Misplaced(f"a {kind} cannot be cast to {type_}", "write a number")
        double = _to_double(value)
        rounded = double if pt.is_float64(type_) else _to_single(double)
        if rounded is None:
            raise Misplaced(f"the number does not fit {type_}", "cast to DOUBLE")
        # A Fraction has no -0.0, and needs none: the two zeros compare equal.
        return Literal("number", Fraction(rounded) if math.isfinite(rounded) else rounded)
    if is_text(type_) and kind == "number" and isinstance(value, Fraction):
        if value.denominator == 1:
            return Literal("text", str(value.numerator))
    elif isinstance(type_, pa.UuidType) and kind == "text":
        return uuid_bytes(value)
    elif is_bytes(type_) and kind == "text":
        return Literal("bytes", value.encode())
    elif pt.is_integer(type_) and kind == "text":
        kind, value = "number", number(value)
    elif pt.is_boolean(type_) and kind == "text" and value.lower() in ("true", "false"):
        return Literal("bool", value.lower() == "true")
    elif pt.is_timestamp(type_) and kind in ("text", "date", "timestamp", "instant"):
        found, value = timestamp(value) if kind == "text" else (kind, value)
        if found != "instant" and type_.tz is not None:
            raise Misplaced(*zone_trouble(type_, _timestamp_scalar(value, None), "TIMESTAMP {!r}"))
        return Literal("instant" if found == "instant" else "timestamp", value)
    elif pt.is_date(type_) and kind in ("text", "timestamp"):
        found, value = timestamp(value) if kind == "text" else (kind, value)
        if found == "instant":
            raise Misplaced(*zone_trouble(type_, _timestamp_scalar(value, "UTC"), "DATE {!r}"))
        return Literal("date", value // _DAY * Fraction(_DAY))
    elif pt.is_time(type_) and kind == "text":
        return Literal("time", time_of_day(value))
    placed = place(Literal(kind, value), type_)
    if not placed.exact:
        raise Misplaced(f"the literal is not exactly a value of {type_}", "write it without CAST")
    return Literal("number", number(value)) if pt.is_decimal(type_) else Literal(kind, value)


def uuid_bytes(text: str) -> Literal:
    """Return the 16 bytes that a UUID's text stands for."""
    try:
        return Literal("bytes", uuid.UUID(text).bytes)
    except ValueError:
        raise Misplaced(
            f"{text!r} is no UUID", "write '00000000-0000-0000-0000-000000000000'"
        ) from None


def is_uuid_of_bytes(text: str, column: pa.DataType) -> bool:
    """Tell whether text is that of a UUID, and a column of the 16 bytes it stands for.

    The text is longer than the column's values: as text it would equal none of them.
    """
    column = plain(column)
    if not pt.is_fixed_size_binary(column) or column.byte_width != 16:
        return False
    try:
        uuid.UUID(text)
    except ValueError:
        return False
    return True


def number(text: str | Fraction) -> Fraction:
    """Read a number exactly: digits, a fraction, an exponent."""
    if isinstance(text, Fraction):
        return text
    if not _NUMBER.fullmatch(text.strip()):
        raise Misplaced(f"{text!r} is no number", "write a number such as -1.5 or 2e10")
    value = Decimal(text.strip())
    # 1e999999999 is a short text and a huge fraction.
    if value and abs(value.adjusted()) > _MAX_EXPONENT:
        raise Misplaced(f"{text} is out of every column's range", "write a smaller exponent")
    return Fraction(value)


def timestamp(text: str) -> tuple[str, Fraction]:
    """Read a date or timestamp: its kind, and the seconds since 1970 (in UTC if zoned)."""
    match = _TIMESTAMP.fullmatch(text.strip())
    if match is None:
        raise Misplaced(f"{text!r} is no date or timestamp", _ADVICE["timestamp"])
    day, clock, zone = match["day"], match["clock"], match["zone"]
    try:
        days = datetime.date.fromisoformat(day).toordinal() - _EPOCH
    except ValueError as error:
        raise Misplaced(f"{text!r} is no date: {error}", _ADVICE["date"]) from None
    seconds = Fraction(days * _DAY)
    if clock is None:
        return "date", seconds
    seconds += time_of_day(clock)
    if zone is None:
        return "timestamp", seconds
    if zone[0] in "+-":
        digits = zone[1:].replace(":", "").ljust(4, "0")
        offset = int(digits[:2]) * 3600 + int(digits[2:]) * 60
        seconds += offset if zone[0] == "-" else -offset
    return "instant", seconds


def time_of_day(text: str) -> Fraction:
    """Read ``HH:MM[:SS[.fraction]]`` as seconds since midnight, to any precision."""
    match = _CLOCK.fullmatch(text.strip())
    if match is None:
        raise Misplaced(f"{text!r} is no time of day", _ADVICE["time"])
    hour, minute, second = int(match["h"]), int(match["m"]), Fraction(match["s"] or 0)
    if hour > 23 or minute > 59 or second >= 60:
        raise Misplaced(f"{text!r} is no time of day", _ADVICE["time"])
    return hour * 3600 + minute * 60 + second


def _family(type_: pa.DataType) -> str:
    names = ("text", "bytes", "boolean", "timestamp", "date", "time", "duration", "number")
    tests = (
        is_text,
        is_bytes,
        pt.is_boolean,
        pt.is_timestamp,
        pt.is_date,
        pt.is_time,
        pt.is_duration,
        lambda t: pt.is_integer(t) or pt.is_floating(t) or pt.is_decimal(t),
    )
    return next((name for name, test in zip(names, tests, strict=True) if test(type_)), "other")
