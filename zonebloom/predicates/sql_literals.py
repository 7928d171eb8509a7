"""Parse SQL literals exactly, and convert them for a comparison with a column or for a CAST.

A number that is compared with a float column becomes the nearest double. Nothing else is rounded. A
literal that has no meaning raises `Unanswerable` with advice on what to write instead.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction

import pyarrow as pa
import pyarrow.types as pt

from zonebloom.base.arrays import array_of, uuid_bytes
from zonebloom.errors import FilterError
from zonebloom.predicates import ast
from zonebloom.values.literal import Literal, StoredValue, Unanswerable
from zonebloom.values.normal_types import decoded_type
from zonebloom.values.types import (
    LIST_TYPES,
    SECONDS_PER_DAY,
    describe_time_zone_mismatch,
    family,
)

_EPOCH_DAY = datetime.date(1970, 1, 1).toordinal()
_MAX_EXPONENT = 400
# The time that Python takes for a number grows with the square of its digits.
MAX_NUMBER_LENGTH = 2000
# Patterns in ASCII, which are compiled when a literal first needs them.
_SQL_NUMBER = r"(?a)[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,9})?"
_TIME_OF_DAY = r"(?a)(?P<h>\d{1,2}):(?P<m>\d{2})(:(?P<s>\d{2}(\.\d+)?))?"
_TIMESTAMP = (
    r"(?a)(?P<day>\d{4}-\d{2}-\d{2})"
    r"([T ](?P<clock>\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?) ?(?P<zone>Z|UTC|[+-]\d{2}(:?\d{2})?)?)?"
)
_DATETIME_KINDS = ("date", "timestamp", "instant")
_KIND_NAMES = {
    "text": "string",
    "boolean": "truth value",
    "bytes": "binary literal",
    "instant": "timestamp with a zone",
}
_NUMBER_ADVICE = "write a plain number"
_LITERAL_ADVICE = {
    "text": "put the literal in single quotes: 'abc'",
    "bytes": "write X'0a1b' or a quoted string",
    "boolean": "write TRUE or FALSE",
    "timestamp": "write TIMESTAMP '2024-01-31 12:00:00', with +00:00 at the end if it has a zone",
    "instant": "write TIMESTAMP '2024-01-31 12:00:00+00:00'",
    "date": "write DATE '2024-01-31'",
    "time": "write TIME '12:30:00'",
    "duration": "write INTERVAL '90' SECOND",
    **dict.fromkeys(("integer", "float", "decimal"), _NUMBER_ADVICE),
    "list": "write list_contains(column, value)",
    "": "write that part as a pyarrow.compute expression",
}


def adapt_literal(literal: Literal, column: pa.DataType) -> Literal:
    """Convert a literal so that it can be compared with a column of a type.

    A string is parsed as a value of the column's kind where SQL allows that.
    """
    kind, value, target = literal.kind, literal.value, family(column)
    if kind == "text":
        if isinstance(decoded_type(column), pa.UuidType):
            return parse_uuid(value)
        if is_uuid_for_binary_column(value, column):
            raise Unanswerable(
                f"the text of a UUID is compared with the bytes in a column of type {column}",
                f"write UUID '{value}'",
            )
        if target == "bytes":
            if "\\" in value:
                # DuckDB and PostgreSQL read hexadecimal digits after a backslash. Other engines
                # take it literally.
                raise Unanswerable(
                    "engines differ in what a backslash means in a string that becomes bytes",
                    f"write X'{value.encode().hex()}'",
                )
            return Literal("bytes", value.encode())
        if target == "decimal":
            return parse_number(value)
        if target == "time":
            return parse_time_of_day(value)
        if target in _DATETIME_KINDS:
            literal = parse_timestamp(value)
            kind, value = literal.kind, literal.value
        elif target == "integer":
            example = value if re.fullmatch(_SQL_NUMBER, value.strip()) else 42
            raise Unanswerable(
                f"a string is compared with a column of type {column}",
                f"write the number without quotes: {example}",
            )
    if kind == "number" and target in ("integer", "decimal", "float"):
        return literal
    if kind in _DATETIME_KINDS and target in _DATETIME_KINDS:
        if (kind == "instant") != (target == "instant"):
            raise _time_zone_error(column, literal)
        return literal
    if kind != target:
        is_list = isinstance(decoded_type(column), LIST_TYPES)
        raise Unanswerable(
            f"a {_KIND_NAMES.get(kind, kind)} is compared with a column of type {column}",
            _LITERAL_ADVICE["list" if is_list else target],
        )
    return literal


def parse_typed_text(text: str, type_: pa.DataType) -> Literal:
    """Return the value of a text before which a type stands: ``DATE '2024-01-31'``."""
    target = family(type_)
    if target in ("date", "timestamp", "instant"):
        literal = parse_timestamp(text)
        if (literal.kind == "instant") != (target == "instant") and not (
            target == "timestamp" and literal.kind == "instant"
        ):
            raise _time_zone_error(type_, literal)
        if target == "timestamp" and literal.kind == "date":
            return Literal("timestamp", literal.value)
        return literal
    return adapt_literal(Literal("text", text), type_)


def _time_zone_error(column: pa.DataType, literal: Literal) -> Unanswerable:
    micros = pa.scalar(literal.value * 10**6 // 1, pa.int64())
    moment = micros.cast(pa.timestamp("us", "UTC" if literal.kind == "instant" else None))
    return Unanswerable(*describe_time_zone_mismatch(column, moment))


def parse_uuid(text: str) -> Literal:
    value = uuid_bytes(text)
    if value is None:
        raise Unanswerable(
            f"{text!r} is not a UUID", "write '00000000-0000-0000-0000-000000000000'"
        )
    return Literal("bytes", value)


def is_uuid_for_binary_column(text: str, column: pa.DataType) -> bool:
    """Return whether a text is a UUID and the column is binary of 16 bytes, as UUIDs are stored.

    As bytes, the text would equal no value of such a column.
    """
    column = decoded_type(column)
    return (
        pt.is_fixed_size_binary(column) and column.byte_width == 16 and uuid_bytes(text) is not None
    )


def refuse_uuid_text(value: pa.Scalar, column: pa.DataType) -> None:
    """Raise `FilterError` if a value is the text of a UUID, and the column has bytes of UUIDs.

    Polars and DuckDB turn such a text into its bytes, which equal no value of the column.
    """
    text = value.as_py() if family(value.type) in ("text", "bytes") else None
    if isinstance(text, bytes):
        text = text.decode("ascii", errors="replace")
    if text is not None and is_uuid_for_binary_column(text, column):
        raise FilterError(
            f"a column of 16 bytes is compared with the text of a UUID; give the bytes: "
            f"uuid.UUID({text!r}).bytes in Python, UUID {text!r} in SQL"
        )


def parse_number(text: str) -> Literal:
    if len(text) > MAX_NUMBER_LENGTH:
        raise Unanswerable(f"a number has {len(text):,} digits", "write fewer digits")
    if not re.fullmatch(_SQL_NUMBER, text.strip()):
        raise Unanswerable(f"{text!r} is not a number", "write a number such as -1.5 or 2e10")
    value = Decimal(text.strip())
    # Limit the exponent, because the fraction of a text such as 1e999999999 would be huge.
    if value and abs(value.adjusted()) > _MAX_EXPONENT:
        raise Unanswerable(
            f"{text.strip()[:50]} is out of every column's range", "write a smaller exponent"
        )
    return Literal("number", Fraction(value))


def parse_timestamp(text: str) -> Literal:
    match = re.fullmatch(_TIMESTAMP, text.strip())
    if match is None:
        raise Unanswerable(f"{text!r} is not a date or timestamp", _LITERAL_ADVICE["timestamp"])
    day, clock, zone = match["day"], match["clock"], match["zone"]
    try:
        days = datetime.date.fromisoformat(day).toordinal() - _EPOCH_DAY
    except ValueError as error:
        raise Unanswerable(f"{text!r} is not a date: {error}", _LITERAL_ADVICE["date"]) from None
    seconds = Fraction(days * SECONDS_PER_DAY)
    if clock is None:
        return Literal("date", seconds)
    seconds += parse_time_of_day(clock).value
    if zone is None:
        return Literal("timestamp", seconds)
    if zone[0] in "+-":
        digits = zone[1:].replace(":", "").ljust(4, "0")
        offset = int(digits[:2]) * 3600 + int(digits[2:]) * 60
        seconds += offset if zone[0] == "-" else -offset
    return Literal("instant", seconds)


def parse_time_of_day(text: str) -> Literal:
    match = re.fullmatch(_TIME_OF_DAY, text.strip())
    if match is not None:
        hour, minute, second = int(match["h"]), int(match["m"]), Fraction(match["s"] or 0)
        if hour <= 23 and minute <= 59 and second < 60:
            return Literal("time", hour * 3600 + minute * 60 + second)
    raise Unanswerable(f"{text!r} is not a time of day", _LITERAL_ADVICE["time"])


def comparison_predicate(
    path: ast.ColumnPath, type_: pa.DataType, operator: str, stored: StoredValue
) -> ast.Predicate:
    """Return the predicate that compares a column with a literal.

    A literal between two values of the column's type is replaced: for integers, ``x < 5.5`` becomes
    ``x <= 5``.
    """
    is_below = operator in ("<", "<=")
    value = stored.value
    is_nan = isinstance(value, float) and math.isnan(value)
    if value is None or is_nan or (operator == "=" and not stored.is_exact):
        # An empty set makes a condition that is false for values and null for null.
        empty_set = ast.IsIn(path, pa.array([], type_))
        is_always = operator != "=" and not is_nan and is_below == (stored.out_of_range > 0)
        return ast.Not(empty_set) if is_always else empty_set
    scalar = stored.scalar(type_)
    if operator == "=":
        return ast.Equals(path, scalar)
    if not stored.is_exact:
        operator = "<=" if is_below else ">"
    return ast.Compares(path, operator, scalar)  # pyright: ignore[reportArgumentType]


def membership_predicate(
    path: ast.ColumnPath, type_: pa.DataType, stored_values: Sequence[StoredValue]
) -> ast.Predicate:
    """Return the predicate that a column holds one of some values."""
    # Leave out literals that are not values of the type, because no row equals them. Leave out
    # NaN, because NaN does not equal itself.
    scalars = [
        stored_value.scalar(type_)
        for stored_value in stored_values
        if stored_value.is_exact and stored_value.value == stored_value.value
    ]
    if pt.is_fixed_size_binary(type_):
        type_ = pa.binary()
    scalars = [scalar for scalar in scalars if scalar.type == type_]
    if family(type_) in ("integer", "text"):
        return ast.IsIn(path, array_of([scalar.as_py() for scalar in scalars], type_))
    return ast.IsIn(path, pa.array(scalars, type_))
