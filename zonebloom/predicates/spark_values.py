"""Where Spark's literals lie among the values of a column, or that it may cast either.

A pair of column type and literal is placed only where Spark compares exact values: whatever
common type it chooses for the two holds both without rounding. Every other pair is `Maybe`.

Spark's choices: two integers meet in the wider one, an integer or decimal and a decimal in a
decimal of at most 38 digits, anything and a double in a double, a text and a date or timestamp
in the latter. The text '5' and a number meet in one or the other, as settings say.
"""

from __future__ import annotations

import datetime
import math
import re
import struct
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.types as pt

from zonebloom.predicates import literals
from zonebloom.predicates.literals import Literal, Misplaced, Placed

_MOST_DIGITS = 38
# Up to here doubles hold every integer; beyond it a column of integers is rounded to compare.
_EXACT_DOUBLE = 2**53
_NUMBER = re.compile(r"\d+|(\d+\.\d*|\.\d+)|(\d+\.?\d*|\.\d+)[eE][+-]?\d{1,3}", re.ASCII)
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_TIME = re.compile(
    r"(?P<local>\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d{1,6})?)(?P<zone>Z|[+-]\d\d:\d\d)?", re.ASCII
)
# Where the rules of a zone are the same in every time zone database.
_ZONE_YEARS = range(1971, 2037)


class Maybe(Exception):
    """Spark may see a row here that a look among exact values would miss: why."""


@dataclass(frozen=True, slots=True)
class Value:
    """A literal as Spark reads it.

    `kind` is integer, decimal or double (a Fraction), text, bytes, bool, date (the text),
    timestamp or timestamp_ntz (the text); `whole` and `scale` are the digits of a decimal that
    holds a number.
    """

    kind: str
    value: Any
    whole: int = 0
    scale: int = 0

    def negated(self) -> Value:
        """The number below zero."""
        return replace(self, value=-self.value)

    def widened(self, whole: int, scale: int) -> Value:
        """The same number, as a decimal of more digits."""
        return replace(self, whole=max(whole, self.whole), scale=max(scale, self.scale))


def read_number(text: str) -> Value:
    """Read a number without a sign: 5 is an integer, 5.0 a decimal, 5e0 a double."""
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise Maybe(f"{text} is no plain number")
    value = Fraction(Decimal(text))
    if match[2]:
        return Value("double", value)
    if match[1]:
        whole, _, rest = text.partition(".")
        return Value("decimal", value, max(len(whole), 1), len(rest))
    # An integer may become a decimal of its type's width rather than of its own digits.
    return Value("integer", value, max(len(text), 20), 0)


def read_text(text: str, kind: str) -> Value:
    """Read the text of DATE '...' and of its like."""
    if not (_DATE if kind == "date" else _TIME).fullmatch(text):
        raise Maybe(f"{text!r} is not written in full")
    return Value(kind, text)


def of_python(value: object) -> Value | None:
    """Read a literal as Python holds it, of the type of its column; None for NULL."""
    if value is None:
        return None
    if isinstance(value, bool):
        return Value("bool", value)
    if isinstance(value, int):
        return Value("integer", Fraction(value), 20)
    if isinstance(value, float) and math.isfinite(value):
        return Value("double", Fraction(value))
    if isinstance(value, Decimal) and value.is_finite():
        scale = max(-int(value.as_tuple().exponent), 0)
        return Value("decimal", Fraction(value), max(value.adjusted() + 1, 1), scale)
    if isinstance(value, str):
        return Value("text", value)
    if isinstance(value, bytes | bytearray):
        return Value("bytes", bytes(value))
    if isinstance(value, datetime.datetime):
        kind = "timestamp_ntz" if value.tzinfo is None else "timestamp"
        return Value(kind, value.isoformat(sep=" "))
    if isinstance(value, datetime.date):
        return Value("date", value.isoformat())
    raise Maybe(f"a {type(value).__name__} literal is not followed")


def place(value: Value, type_: pa.DataType, timezone: str | None) -> Placed:
    """Find a literal among the values of a column."""
    try:
        if value.kind in ("integer", "decimal", "double"):
            return _number(value, type_)
        if value.kind == "text" and literals.is_text(type_):
            return Placed(pa.scalar(value.value, pa.string()))
        if value.kind == "bytes" and literals.is_bytes(type_):
            return Placed(pa.scalar(value.value, pa.binary()))
        if value.kind == "bool" and pt.is_boolean(type_):
            return Placed(pa.scalar(value.value))
        if value.kind in ("date", "text") and pt.is_date(type_):
            if _DATE.fullmatch(value.value):
                return _timely(value.value, type_)
        elif pt.is_timestamp(type_) and value.kind in ("text", "timestamp", "timestamp_ntz"):
            return _timestamp(value, type_, timezone)
    except Misplaced as error:
        raise Maybe(error.what) from None
    raise Maybe(f"Spark may cast a {value.kind} literal or the {type_} column")


def _number(value: Value, type_: pa.DataType) -> Placed:
    if pt.is_float32(type_) or pt.is_float64(type_):
        return Placed(pa.scalar(_float(value, type_.bit_width), type_))
    if pt.is_integer(type_):
        whole, scale = 20, 0
    elif pt.is_decimal128(type_):
        whole, scale = type_.precision - type_.scale, type_.scale
    else:
        raise Maybe(f"how Spark compares a {type_} column with a number is not followed")
    if value.kind == "double":
        if pt.is_decimal(type_) or abs(value.value) >= _EXACT_DOUBLE:
            raise Maybe("compared as a double, the column is rounded")
    elif max(whole, value.whole) + max(scale, value.scale) > _MOST_DIGITS:
        raise Maybe("compared as a decimal of 38 digits, the column is rounded")
    return literals.place(Literal("number", value.value), type_)


def _float(value: Value, bits: int) -> float:
    """A number as a floating point column holds it, when Spark finds the very same."""
    number = value.value
    found = float(number)
    if value.kind == "integer" and Fraction(found) != number:
        raise Maybe("Spark rounds the integer")
    if not math.isfinite(found):
        raise Maybe("Spark rounds the number")
    if bits == 32:
        try:
            narrow = struct.unpack("<f", struct.pack("<f", found))[0]
        except OverflowError:
            narrow = math.inf
        if Fraction(found) != number or narrow != found:
            raise Maybe("a float column is compared as doubles, and this is no float")
    return found


def _timestamp(value: Value, type_: pa.DataType, timezone: str | None) -> Placed:
    match = _TIME.fullmatch(value.value)
    if match is None:
        raise Maybe(f"{value.value!r} is not written in full")
    if type_.tz is None:
        if value.kind == "timestamp" or match["zone"]:
            raise Maybe(
                "beside an instant Spark reads a column without a zone by the session's; write "
                "what the column holds: TIMESTAMP_NTZ'2024-01-31 12:00:00'"
            )
        return _timely(match["local"], type_)
    if value.kind == "timestamp_ntz":
        raise Maybe(
            "beside instants Spark reads a time without a zone by the session's; write the "
            "instant, with its zone: TIMESTAMP'2024-01-31 12:00:00+00:00'"
        )
    if match["zone"]:
        return _timely(value.value.replace("Z", "+00:00"), type_)
    return _timely(_in_zone(match["local"], timezone), type_)


def _in_zone(local: str, timezone: str | None) -> str:
    """A time of the session's zone, with its offset."""
    try:
        moment = datetime.datetime.fromisoformat(local)
        if timezone is None:
            raise Maybe(
                "the time zone of the session is not known here; write one: +00:00, or give the "
                "session's as option timezone"
            )
        zone = ZoneInfo(timezone)
    except (ValueError, OSError, KeyError):
        raise Maybe(f"{local!r} in zone {timezone!r} is not followed") from None
    offsets = {moment.replace(tzinfo=zone, fold=fold).utcoffset() for fold in (0, 1)}
    offset = offsets.pop()
    if offsets or offset is None or moment.year not in _ZONE_YEARS:
        raise Maybe("the clocks were set about then")
    minutes, seconds = divmod(int(offset.total_seconds()), 60)
    if seconds:
        raise Maybe("the zone's offset is no whole minute")
    sign = "-" if minutes < 0 else "+"
    return f"{local}{sign}{abs(minutes) // 60:02}:{abs(minutes) % 60:02}"


def _timely(text: str, type_: pa.DataType) -> Placed:
    kind, seconds = literals.timestamp(text)
    return literals.place(Literal(kind, seconds), type_)
