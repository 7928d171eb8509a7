"""Translate comparisons of columns with literals under the semantics of Spark.

Spark casts both sides to a common type. A comparison is translated only if every type that Spark
may choose holds both sides without rounding. Otherwise it is `Unanswerable`.

    two integers                       the wider of the two
    a decimal, an integer or decimal   a decimal of at most 38 digits
    a double, any number               a double
    a string, a date or timestamp      the date or timestamp
    a string, a number                 either, depending on Spark's settings
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.types as pt

from zonebloom.base.user_values import to_scalar
from zonebloom.errors import InvalidArgument
from zonebloom.predicates import ast
from zonebloom.predicates.sql_literals import (
    MAX_NUMBER_LENGTH,
    comparison_predicate,
    membership_predicate,
    parse_timestamp,
)
from zonebloom.predicates.text_requirements import (
    Piece,
    like_tokens,
    require_call,
    require_like,
    require_pieces,
)
from zonebloom.values.columns import find_leaf, resolve_type
from zonebloom.values.literal import Literal, StoredValue, Unanswerable, round_to_float, to_stored
from zonebloom.values.normal_types import comparable_type, decoded_type
from zonebloom.values.types import family

_MAX_DECIMAL_DIGITS = 38
_SPARK_NUMBER = re.compile(r"\d+|(\d+\.\d*|\.\d+)|(\d+\.?\d*|\.\d+)[eE][+-]?\d{1,3}", re.ASCII)
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_TIME = re.compile(
    r"(?P<local>\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d{1,6})?)(?P<zone>Z|[+-]\d\d:\d\d)?", re.ASCII
)
# The years for which all versions of the time zone database agree on the offsets.
_YEARS_WITH_KNOWN_OFFSETS = range(1971, 2037)


def parse_spark_number(text: str) -> Literal:
    """Parse a number without a sign: 5 is an integer, 5.0 a decimal and 5e0 a double."""
    match = _SPARK_NUMBER.fullmatch(text)
    if match is None or len(text) > MAX_NUMBER_LENGTH:
        raise Unanswerable(f"{text[:MAX_NUMBER_LENGTH]} is not a plain number")
    value = Fraction(Decimal(text))
    if match[2]:
        return Literal("number", value, 64)
    if match[1]:
        whole, _, rest = text.partition(".")
        return Literal("number", value, digits=(max(len(whole), 1), len(rest)))
    # Spark may cast an integer to a decimal that has all digits of the integer's type.
    return Literal("number", value, digits=(max(len(text), 20), 0))


def parse_spark_datetime(text: str, kind: str) -> Literal:
    """Parse the text of DATE '...', TIMESTAMP '...' or TIMESTAMP_NTZ '...'.

    `kind` is "date", "timestamp" for a timestamp without a time zone, or "local" for a timestamp
    that is in the session's zone if the text names none.
    """
    match = (_DATE if kind == "date" else _TIME).fullmatch(text)
    if match is None:
        raise Unanswerable(f"{text!r} is not a complete date or time")
    if kind == "timestamp" and match["zone"]:
        raise Unanswerable(
            f"Spark ignores the zone of {text!r}; write TIMESTAMP_NTZ'2024-01-31 12:00:00', or "
            "the instant: TIMESTAMP'2024-01-31 12:00:00+00:00'"
        )
    if kind == "local" and not match["zone"]:
        return Literal("local", text)
    return parse_timestamp(text)


def literal_from_python(value: object) -> Literal:
    """Return the literal for a Python value. Raise `Unanswerable` if its type is not supported."""
    if value is None:
        return Literal("null")
    try:
        literal = Literal.from_scalar(to_scalar(value, "a literal"))
    except InvalidArgument:
        literal = None
    if literal is None or isinstance(literal.value, float):
        raise Unanswerable(f"a {type(value).__name__} literal is not supported")
    return literal


class SparkComparer:
    """A translator for comparisons of a schema's columns with literals, as Spark makes them.

    `opaque` are top-level columns whose values Spark does not compare as they are stored.
    `timezone` is the time zone of the Spark session, or None if it is not known.
    """

    def __init__(self, schema: pa.Schema, opaque: frozenset[str], timezone: str | None):
        self.schema = schema
        self._opaque_columns = opaque
        self._timezone = timezone
        # The columns that a literal does not fit.
        self.unfitting_columns: set[ast.ColumnPath] = set()

    def resolve_path(self, names: Sequence[str]) -> ast.ColumnPath:
        """Return the path of the column or leaf of structs that the names mean, ignoring case."""
        path = find_leaf(self.schema, names)
        if path is None:
            raise Unanswerable(f"there is not exactly one column {ast.column_text(tuple(names))}")
        if path[0] in self._opaque_columns:
            raise Unanswerable(f"it is not known how Spark compares {path[0]}")
        return path

    def requires_element(
        self, path: ast.ColumnPath, item: object, field: Sequence[str] = ()
    ) -> ast.HasElement | None:
        """Return the requirement that an array holds a literal, or a struct with it in a field."""
        list_type: Any = self.column_type(path)
        if not (pt.is_list(list_type) or pt.is_large_list(list_type)):
            return None
        element, leaf = list_type.value_type, ()
        if field:
            leaf = find_leaf(pa.schema(list(element)), field) if pt.is_struct(element) else None
            if leaf is None:
                return None
            element = resolve_type(pa.schema(list(element)), leaf)
        values = self._values_equal_to(element, item)
        return None if values is None else ast.HasElement(path, values, leaf)

    def requires_entry(
        self, path: ast.ColumnPath, key: object, items: Sequence[object]
    ) -> ast.HasElement | None:
        """Return the requirement that a map holds one of some literals under a key."""
        map_type: Any = self.column_type(path)
        if not pt.is_map(map_type):
            return None
        keys = self._values_equal_to(map_type.key_type, key)
        values = [self._values_equal_to(map_type.item_type, item) for item in items]
        known_values = [array for array in values if array is not None]
        if keys is None or len(keys) != 1 or not values or len(known_values) < len(values):
            return None
        return ast.HasElement(path, pa.concat_arrays(known_values), key=keys[0])

    def requires_text(
        self, path: ast.ColumnPath, function: str, item: object, *, ignores_case: bool
    ) -> ast.Predicate | None:
        """Return what a string column needs for a function with a literal to be true.

        Functions are "=", "like", or as in `require_call`. With ``ignores_case``, it is a function
        of ``lower(column)``.
        """
        if not isinstance(item, Literal) or item.kind != "text":
            return None
        if family(self.column_type(path)) != "text":
            return None
        text: str = item.value
        if function == "=":
            piece = Piece(text, is_first=True, is_last=True)
            return require_pieces(path, [piece], ignores_case=ignores_case)
        if function == "like":
            tokens = None if "\\" in text else like_tokens(text, "\\")
            return None if tokens is None else require_like(path, tokens, ignores_case=ignores_case)
        return require_call(path, function, [text], ignores_case=ignores_case)

    def _values_equal_to(self, type_: pa.DataType, item: object) -> pa.Array | None:
        """Return the values of a type that equal a literal in Spark, or None if not known.

        Dates and times may be stored in another calendar.
        """
        if not isinstance(item, Literal) or family(type_) not in ("text", "bytes", "integer"):
            return None
        comparer = SparkComparer(pa.schema([("item", type_)]), frozenset(), self._timezone)
        match comparer.compare(("item",), "=", item):
            case ast.Equals(_, value):
                return pa.array([value], value.type)
            case ast.IsIn(_, values, False):
                return values
        return None

    def column_type(self, path: ast.ColumnPath) -> pa.DataType:
        return decoded_type(resolve_type(self.schema, path))

    def compare(self, path: ast.ColumnPath, operator: str, literal: Literal) -> ast.Predicate:
        """Return the predicate ``column operator literal``.

        The operator "<=>" is an equality that is never null.
        """
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
            raise Unanswerable("the order of booleans is not supported")
        stored_value = self._to_stored_value(literal, type_)
        if not stored_value.is_exact:
            self.unfitting_columns.add(path)
        if pt.is_floating(type_) and operator in (">", ">="):
            # In Spark, NaN is greater than every number. In Arrow, every comparison with NaN is
            # false, so negate the opposite comparison.
            return ast.Not(
                comparison_predicate(path, type_, "<=" if operator == ">" else "<", stored_value)
            )
        return comparison_predicate(path, comparable_type(type_), operator, stored_value)

    def is_in(self, path: ast.ColumnPath, literals: Sequence[Literal]) -> ast.Predicate:
        """Return the predicate ``column IN (literals)``."""
        type_ = self.column_type(path)
        values = [literal for literal in literals if literal.kind != "null"]
        # Spark casts the column and all values to one type, which may round them.
        if len({(value.kind, value.bits) for value in values}) > 1:
            raise Unanswerable("Spark casts values of several kinds to one")
        if family(type_) != "text" and any(value.kind == "text" for value in values):
            raise Unanswerable("Spark may cast the column to string")
        if values and values[0].digits[0] and not pt.is_floating(type_):
            whole_digits = max(value.digits[0] for value in values)
            scale = max(value.digits[1] for value in values)
            values = [replace(value, digits=(whole_digits, scale)) for value in values]
        stored_values = [self._to_stored_value(value, type_) for value in values]
        if not all(stored_value.is_exact for stored_value in stored_values):
            self.unfitting_columns.add(path)
        predicate = membership_predicate(path, comparable_type(type_), stored_values)
        return ast.Or((predicate, ast.Constant(None))) if len(values) < len(literals) else predicate

    def _to_stored_value(self, literal: Literal, type_: pa.DataType) -> StoredValue:
        kind = literal.kind
        column_family = "" if isinstance(type_, pa.BaseExtensionType) else family(type_)
        if kind == "number":
            return _number_to_stored_value(literal, type_)
        if kind == column_family and kind in ("text", "bytes", "boolean"):
            return to_stored(literal, type_)
        if pt.is_date(type_) and kind == "text" and _DATE.fullmatch(literal.value):
            return to_stored(parse_timestamp(literal.value), type_)
        if pt.is_date(type_) and kind == "date":
            return to_stored(literal, type_)
        if pt.is_timestamp(type_) and kind in ("text", "local", "timestamp", "instant"):
            return to_stored(self._timestamp_literal(literal, type_), type_)
        raise Unanswerable(f"Spark may cast a {kind} literal or the {type_} column")

    def _timestamp_literal(self, literal: Literal, type_: pa.DataType) -> Literal:
        kind, text = literal.kind, literal.value
        zone: str | None = None
        if kind in ("text", "local"):
            match = _TIME.fullmatch(text)
            if match is None:
                raise Unanswerable(f"{text!r} is not a complete date or time")
            zone = match["zone"]
        if type_.tz is None:
            if kind in ("local", "instant") or zone:
                raise Unanswerable(
                    "Spark compares a column without a zone with an instant in the session's zone; "
                    "write a time without a zone: TIMESTAMP_NTZ'2024-01-31 12:00:00'"
                )
            return literal if kind == "timestamp" else parse_timestamp(text)
        if kind == "timestamp":
            raise Unanswerable(
                "Spark compares a time without a zone with instants in the session's zone; write "
                "the instant with its zone: TIMESTAMP'2024-01-31 12:00:00+00:00'"
            )
        if kind == "instant":
            return literal
        return parse_timestamp(text if zone else _with_session_offset(text, self._timezone))


def _number_to_stored_value(literal: Literal, type_: pa.DataType) -> StoredValue:
    number, (whole_digits, scale) = literal.value, literal.digits
    if pt.is_float32(type_) or pt.is_float64(type_):
        # Spark casts the number to a double, and a float column as well.
        double = round_to_float(number, 64)
        if double is None or not math.isfinite(double):
            raise Unanswerable("Spark rounds the number")
        is_exact = Fraction(double) == number
        if not is_exact and not literal.bits and not scale:
            raise Unanswerable("Spark rounds the integer")
        if pt.is_float32(type_) and (not is_exact or round_to_float(double, 32) != double):
            raise Unanswerable("Spark compares floats as doubles, and the literal is not a float")
        return StoredValue(double)
    if pt.is_integer(type_):
        column_digits = 20, 0
    elif pt.is_decimal128(type_):
        column_digits = type_.precision - type_.scale, type_.scale
    else:
        raise Unanswerable(f"it is not known how Spark compares a {type_} column with a number")
    common_digits = max(column_digits[0], whole_digits) + max(column_digits[1], scale)
    if not literal.bits and common_digits > _MAX_DECIMAL_DIGITS:
        raise Unanswerable("Spark rounds the column to a decimal of 38 digits")
    return to_stored(literal, type_)


def _with_session_offset(local: str, timezone: str | None) -> str:
    if timezone is None:
        raise Unanswerable(
            "the session's time zone is not known; write a zone in the literal, such as +00:00, or "
            "pass the session's zone as option timezone"
        )
    try:
        moment, zone = datetime.datetime.fromisoformat(local), ZoneInfo(timezone)
    except (ValueError, OSError, KeyError):
        raise Unanswerable(f"{local!r} in zone {timezone!r} is not supported") from None
    offsets = {moment.replace(tzinfo=zone, fold=fold).utcoffset() for fold in (0, 1)}
    offset = offsets.pop()
    if offsets or offset is None or moment.year not in _YEARS_WITH_KNOWN_OFFSETS:
        raise Unanswerable(f"the offset of {timezone} changes near {local}, or is uncertain then")
    if offset.total_seconds() % 60:
        raise Unanswerable("the zone's offset is not a whole number of minutes")
    return moment.replace(tzinfo=datetime.timezone(offset)).isoformat(sep=" ")
