"""Columns compared with literals under Spark's semantics: placed only where whatever common type
Spark chooses holds both without rounding, else `Unanswerable`.

Spark's choices: two integers meet in the wider one, an integer or decimal and a decimal in a
decimal of at most 38 digits, anything and a double in a double, a text and a date or timestamp
in the latter. The text '5' and a number meet in one or the other, as settings say.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.types as pt

from zonebloom.base.user_values import to_scalar
from zonebloom.errors import InvalidArgument
from zonebloom.predicates import ast
from zonebloom.predicates.expression import comparable_type
from zonebloom.predicates.sql_literals import (
    comparison_predicate,
    membership_predicate,
    parse_timestamp,
)
from zonebloom.values.columns import find_leaf, resolve_type
from zonebloom.values.literal import Literal, StoredValue, Unanswerable, round_to_float, to_stored
from zonebloom.values.types import decoded_type, family

_MOST_DIGITS = 38
_NUMBER = re.compile(r"\d+|(\d+\.\d*|\.\d+)|(\d+\.?\d*|\.\d+)[eE][+-]?\d{1,3}", re.ASCII)
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_TIME = re.compile(
    r"(?P<local>\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d{1,6})?)(?P<zone>Z|[+-]\d\d:\d\d)?", re.ASCII
)
# Where the rules of a zone are the same in every time zone database.
_ZONE_YEARS = range(1971, 2037)


def parse_spark_number(text: str) -> Literal:
    """Read a number without a sign: 5 is an integer, 5.0 a decimal, 5e0 a double."""
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise Unanswerable(f"{text} is no plain number")
    value = Fraction(Decimal(text))
    if match[2]:
        return Literal("number", value, 64)
    if match[1]:
        whole, _, rest = text.partition(".")
        return Literal("number", value, digits=(max(len(whole), 1), len(rest)))
    # An integer may become a decimal of its type's width rather than of its own digits.
    return Literal("number", value, digits=(max(len(text), 20), 0))


def parse_spark_datetime(text: str, kind: str) -> Literal:
    """Read the text of DATE '...' and of its like; a "local" one is of the session's zone."""
    match = (_DATE if kind == "date" else _TIME).fullmatch(text)
    if match is None:
        raise Unanswerable(f"{text!r} is not written in full")
    if kind == "timestamp" and match["zone"]:
        raise Unanswerable(
            f"Spark leaves out the zone of {text!r}; write TIMESTAMP_NTZ'2024-01-31 12:00:00', or "
            "the instant: TIMESTAMP'2024-01-31 12:00:00+00:00'"
        )
    if kind == "local" and not match["zone"]:
        return Literal("local", text)
    return parse_timestamp(text)


def literal_from_python(value: object) -> Literal:
    if value is None:
        return Literal("null")
    try:
        literal = Literal.from_scalar(to_scalar(value, "a literal"))
    except InvalidArgument:
        literal = None
    if literal is None or isinstance(literal.value, float):
        raise Unanswerable(f"a {type(value).__name__} literal is not followed")
    return literal


class SparkComparer:
    def __init__(self, schema: pa.Schema, opaque: frozenset[str], timezone: str | None):
        self.schema = schema
        self._opaque = opaque
        self._timezone = timezone

    def resolve_path(self, names: Sequence[str]) -> ast.ColumnPath:
        """The column, or leaf of structs, that names mean, whatever their case."""
        path = find_leaf(self.schema, names)
        if path is None:
            raise Unanswerable(f"there is no one column {ast.column_text(tuple(names))}")
        if path[0] in self._opaque:
            raise Unanswerable(f"how Spark compares {path[0]} is not followed")
        return path

    def column_type(self, path: ast.ColumnPath) -> pa.DataType:
        return decoded_type(resolve_type(self.schema, path))

    def compare(self, path: ast.ColumnPath, operator: str, literal: Literal) -> ast.Predicate:
        """What ``column operator literal`` is; "<=>" is equality that is never null."""
        if operator == "!=":
            return ast.negation(self.compare(path, "=", literal))
        if operator == "<=>":
            null = ast.IsNull(path)
            if literal.kind == "null":
                return null
            return ast.And((self.compare(path, "=", literal), ast.negation(null)))
        if literal.kind == "null":
            return ast.Constant(None)
        type_ = self.column_type(path)
        if pt.is_boolean(type_) and operator != "=":
            raise Unanswerable("the order of truth values is not followed")
        stored = self._stored(literal, type_)
        if pt.is_floating(type_) and operator in (">", ">="):
            # NaN is above every number, and for Arrow below none.
            return ast.Not(
                comparison_predicate(path, type_, "<=" if operator == ">" else "<", stored)
            )
        return comparison_predicate(path, comparable_type(type_), operator, stored)

    def is_in(self, path: ast.ColumnPath, literals: Sequence[Literal]) -> ast.Predicate:
        type_ = self.column_type(path)
        given = [each for each in literals if each.kind != "null"]
        # The items are brought to one type with the column, and may be rounded together.
        if len({(each.kind, each.bits) for each in given}) > 1:
            raise Unanswerable("values of several kinds are cast to one")
        if family(type_) != "text" and any(each.kind == "text" for each in given):
            raise Unanswerable("the column may be cast to text")
        if given and given[0].digits[0] and not pt.is_floating(type_):
            digits = max(each.digits[0] for each in given), max(each.digits[1] for each in given)
            given = [replace(each, digits=digits) for each in given]
        found = membership_predicate(
            path, comparable_type(type_), [self._stored(each, type_) for each in given]
        )
        return ast.Or((found, ast.Constant(None))) if len(given) < len(literals) else found

    def _stored(self, literal: Literal, type_: pa.DataType) -> StoredValue:
        kind = literal.kind
        target = "" if isinstance(type_, pa.BaseExtensionType) else family(type_)
        if kind == "number":
            return _stored_number(literal, type_)
        if kind == target and kind in ("text", "bytes", "boolean"):
            return to_stored(literal, type_)
        if pt.is_date(type_) and kind == "text" and _DATE.fullmatch(literal.value):
            return to_stored(parse_timestamp(literal.value), type_)
        if pt.is_date(type_) and kind == "date":
            return to_stored(literal, type_)
        if pt.is_timestamp(type_) and kind in ("text", "local", "timestamp", "instant"):
            return to_stored(self._moment(literal, type_), type_)
        raise Unanswerable(f"Spark may cast a {kind} literal or the {type_} column")

    def _moment(self, literal: Literal, type_: pa.DataType) -> Literal:
        kind, text = literal.kind, literal.value
        zone: str | None = None
        if kind in ("text", "local"):
            match = _TIME.fullmatch(text)
            if match is None:
                raise Unanswerable(f"{text!r} is not written in full")
            zone = match["zone"]
        if type_.tz is None:
            if kind in ("local", "instant") or zone:
                raise Unanswerable(
                    "beside an instant Spark reads a column without a zone by the session's; write "
                    "what the column holds: TIMESTAMP_NTZ'2024-01-31 12:00:00'"
                )
            return literal if kind == "timestamp" else parse_timestamp(text)
        if kind == "timestamp":
            raise Unanswerable(
                "beside instants Spark reads a time without a zone by the session's; write the "
                "instant, with its zone: TIMESTAMP'2024-01-31 12:00:00+00:00'"
            )
        if kind == "instant":
            return literal
        return parse_timestamp(text if zone else _in_zone(text, self._timezone))


def _stored_number(literal: Literal, type_: pa.DataType) -> StoredValue:
    number, (whole, scale) = literal.value, literal.digits
    if pt.is_float32(type_) or pt.is_float64(type_):
        # The double that Spark makes of it; a float column is compared as doubles.
        double = round_to_float(number, 64)
        if double is None or not math.isfinite(double):
            raise Unanswerable("Spark rounds the number")
        is_exact = Fraction(double) == number
        if not is_exact and not literal.bits and not scale:
            raise Unanswerable("Spark rounds the integer")
        if pt.is_float32(type_) and (not is_exact or round_to_float(double, 32) != double):
            raise Unanswerable("a float column is compared as doubles, and this is no float")
        return StoredValue(double)
    if pt.is_integer(type_):
        digits = 20, 0
    elif pt.is_decimal128(type_):
        digits = type_.precision - type_.scale, type_.scale
    else:
        raise Unanswerable(f"how Spark compares a {type_} column with a number is not followed")
    if not literal.bits and max(digits[0], whole) + max(digits[1], scale) > _MOST_DIGITS:
        raise Unanswerable("compared as a decimal of 38 digits, the column is rounded")
    return to_stored(literal, type_)


def _in_zone(local: str, timezone: str | None) -> str:
    if timezone is None:
        raise Unanswerable(
            "the time zone of the session is not known here; write one: +00:00, or give the "
            "session's as option timezone"
        )
    try:
        moment, zone = datetime.datetime.fromisoformat(local), ZoneInfo(timezone)
    except (ValueError, OSError, KeyError):
        raise Unanswerable(f"{local!r} in zone {timezone!r} is not followed") from None
    offsets = {moment.replace(tzinfo=zone, fold=fold).utcoffset() for fold in (0, 1)}
    offset = offsets.pop()
    if offsets or offset is None or moment.year not in _ZONE_YEARS:
        raise Unanswerable("the clocks were set about then")
    if offset.total_seconds() % 60:
        raise Unanswerable("the zone's offset is no whole minute")
    return moment.replace(tzinfo=datetime.timezone(offset)).isoformat(sep=" ")
