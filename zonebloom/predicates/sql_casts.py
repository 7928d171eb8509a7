"""Translate casts of columns in SQL: ``CAST(quantity AS DOUBLE)``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from zonebloom.predicates.sql_comparisons import TIME_ZONE_CAST_ADVICE
from zonebloom.predicates.sql_tree import Operand, SqlValue
from zonebloom.predicates.sql_values import TypedValue, call, cast_number
from zonebloom.values.literal import Unanswerable
from zonebloom.values.types import family, is_lossless_cast, time_zones_differ

_functions: Any = pc
_TYPES: dict[str, pa.DataType] = {
    **{"BOOLEAN": pa.bool_(), "DATE": pa.date32(), "TIME": pa.time64("ns"), "UUID": pa.uuid()},
    **{"TINYINT": pa.int8(), "SMALLINT": pa.int16(), "INT": pa.int32(), "BIGINT": pa.int64()},
    **{"UTINYINT": pa.uint8(), "USMALLINT": pa.uint16(), "UINT": pa.uint32()},
    **{"UBIGINT": pa.uint64(), "FLOAT": pa.float32(), "DOUBLE": pa.float64()},
    **dict.fromkeys(("VARCHAR", "CHAR", "TEXT"), pa.string()),
    **dict.fromkeys(("BINARY", "VARBINARY"), pa.binary()),
    **dict.fromkeys(("TIMESTAMP", "TIMESTAMPNTZ"), pa.timestamp("us")),
    "TIMESTAMPTZ": pa.timestamp("us", "UTC"),
}
_NUMBERS = ("integer", "decimal", "float")
_TIMES = ("date", "timestamp", "instant", "time", "duration")
_CLOCKS = ("timestamp", "time")


def cast_type(node: Any) -> pa.DataType:
    """Return the type that sqlglot's node of a type names."""
    name = getattr(node.this, "name", str(node.this))
    sizes = [str(part.this) for part in node.expressions]
    if name == "DECIMAL" and len(sizes) in (1, 2) and all(size.isdigit() for size in sizes):
        precision, scale = int(sizes[0]), int(sizes[1]) if len(sizes) > 1 else 0
        if 1 <= precision <= 76 and scale <= precision:
            decimal_type = pa.decimal128 if precision <= 38 else pa.decimal256
            return decimal_type(precision, scale)
    if sizes or name not in _TYPES:
        known_types = ", ".join([*_TYPES, "DECIMAL(p, s)"])
        raise Unanswerable(f"there is no cast to {node.sql()}", f"cast to one of {known_types}")
    return _TYPES[name]


def cast_operand(value: Operand, type_: pa.DataType) -> SqlValue:
    """Return ``CAST(value AS type)``. Raise `Unanswerable` if engines cast to different values."""
    is_number = family(value.type) in _NUMBERS and family(type_) in _NUMBERS
    if is_lossless_cast(value.type, type_):
        # An index answers for the column, as if there were no cast.
        is_time = family(value.type) in _TIMES
        return replace(value, cast_type=type_) if is_number or is_time else value
    # An inner cast decides the text and the digits: CAST(CAST(day AS TIMESTAMP) AS VARCHAR).
    plain = TypedValue.of(value)
    if time_zones_differ(plain.type, type_):
        raise Unanswerable(
            f"a cast from {plain.type} to {type_} depends on a zone",
            TIME_ZONE_CAST_ADVICE,
        )
    _require_one_meaning(plain.type, type_)
    if is_number:
        result = cast_number(plain, type_)
    elif family(type_) == "text" and plain.family in _CLOCKS:
        result = _clock_text(plain)
    else:
        result = plain.cast(type_)
    return result.to_sql_value(f"casting {plain.type} to {type_} may make values equal")


def _require_one_meaning(source: pa.DataType, target: pa.DataType) -> None:
    """Raise `Unanswerable` if DuckDB does not cast so, or to other values than PyArrow does."""
    from_family, to_family = family(source), family(target)
    if from_family == "float" and to_family == "text":
        raise Unanswerable(
            "engines write a floating point number in different ways", "compare the number"
        )
    if from_family == "float" and to_family == "decimal":
        raise Unanswerable(
            "engines round a floating point number to different decimals", "compare the number"
        )
    if from_family == "instant" and to_family == "text":
        raise Unanswerable(
            "the text of an instant depends on a time zone", "cast x AT TIME ZONE 'UTC'"
        )
    if (from_family in _TIMES and to_family in _NUMBERS) or (
        from_family in _NUMBERS and to_family in _TIMES
    ):
        raise Unanswerable(
            f"a cast from {source} to {target} would depend on the unit of the column",
            "compare with a DATE or TIMESTAMP, or use a function such as year(x)",
        )
    if from_family == "bytes" and to_family in (*_NUMBERS, "boolean"):
        raise Unanswerable(
            f"a cast from {source} to {target} has no meaning in SQL", "cast to VARCHAR first"
        )


def _clock_text(value: TypedValue) -> TypedValue:
    """Return a time as text without the zeros after the last digit of the second."""
    text = value.cast(pa.string())
    if value.type.unit == "s":
        return text
    return call(_functions.replace_substring_regex, text, pattern=r"\.?0+$", replacement="")
