"""Which comparisons of Polars are comparisons of exact values, and what they look up.

An index looks a literal up as it is; Polars brings column and literal to one type first. The two
agree only where that rounds nothing. Each rule was measured, the traps being:

- An Int64 column beside a float is compared as Float64, so 2**53 + 1 equals 2.0**53.
- A float literal beside a Float32 column is rounded to it, so 0.1 finds 0.1 as float32.
- Times of two units meet in the coarser one. A literal of microseconds finds a thousand values of
  a nanosecond column; one beside a millisecond column is cut to milliseconds.
- Datetimes are cut downwards, durations towards zero.
- A decimal meets a float as Float64. A string is read as a number beside a decimal.
- Integers equal truth values, dates and times by their numbers.
- NaN equals NaN and is greater than every number.
- `is_in` rounds nothing: it refuses sets of another kind than the column.

Versions before 2.0 had more of them:

- An Int64 beside a UInt64 met it as Float64, in `is_in` too.
- `is_in` compared the numbers of times, whatever their units were.
- A literal that is no value of the column's type could become null, which `eq_missing` finds.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from importlib import metadata
from typing import Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from zonebloom.predicates import ast
from zonebloom.values import types
from zonebloom.values.literal import Maybe, nearest
from zonebloom.values.types import EXACT_INTEGERS

Operator: TypeAlias = Literal["<", "<=", ">", ">="]

_TICKS = {"s": 10**3, "ms": 10**3, "us": 10**6, "ns": 10**9}
_UNITS = {10**3: "ms", 10**6: "us", 10**9: "ns"}
# More values than this are not looked up one by one.
_MOST_VALUES = 2048
_INT64 = 2**63


@dataclass(frozen=True, slots=True)
class Column:
    """A column as an expression sees it: what the data holds, and what casts make of it."""

    path: ast.ColumnPath
    stored: pa.DataType
    seen: pa.DataType


def family(type_: pa.DataType) -> str:
    """What kind of values Polars holds a type's as; empty for kinds that are not looked up."""
    if isinstance(type_, pa.BaseExtensionType) and not isinstance(type_, pa.UuidType):
        return ""
    return types.family(type_)


def cast(column: Column, target: pa.DataType) -> Column:
    """Return the column after a cast that loses nothing, or only the end of a unit of time."""
    seen = column.seen
    kind, aim = family(seen), family(target)
    if kind == aim and kind in ("integer", "float", "decimal"):
        fits = types.widens(seen, target)
    elif (kind, aim) == ("integer", "float"):
        # What does not fit is told by the literal: see `_check`.
        fits = target.bit_width == 64 or types.widens(seen, target)
    elif kind == aim and kind in ("timestamp", "instant", "duration"):
        # Cut at one place only: two cuts would need to be undone in turn.
        fits = _ticks(column.stored) == _ticks(seen) or _ticks(seen) == _ticks(target)
    else:
        alike = kind == aim or (kind, aim) == ("date", "timestamp")
        fits = alike and kind in ("text", "bytes", "date", "time", "boolean")
    if not fits:
        raise Maybe(f"casting {seen} to {target} may join values")
    return Column(column.path, column.stored, target)


def equals(column: Column, value: pa.Scalar) -> ast.Predicate:
    """What ``column == value`` looks up; the value is not null."""
    low, high = _span(column, value)
    if low is None or high is None:
        return ast.Equals(column.path, value)
    return between(column, low, high)


def check_not_null(column: Column, value: pa.Scalar) -> None:
    """Refuse a literal that Polars may make null, beside which nulls are equal."""
    if not _before_2():
        return
    try:
        value.cast(types.stored(column.seen))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise Maybe(f"no value of {column.seen}, the literal may become null") from None


def between(column: Column, low: pa.Scalar, high: pa.Scalar) -> ast.Predicate:
    """What lies from one value to another, both among them and neither rounded."""
    first, last = _number(low), _number(high)
    if first is None or last is None or low.type != high.type:
        same = low.equals(high) and family(low.type) != "float"
        if same:
            return ast.Equals(column.path, low)
        return ast.And((compares(column, ">=", low), compares(column, "<=", high)))
    if first == last:
        return ast.Equals(column.path, low)
    ends = (ast.Compares(column.path, ">=", low), ast.Compares(column.path, "<=", high))
    if not 0 < last - first < _MOST_VALUES:
        return ast.And(ends)
    whole = pa.int32() if pt.is_date32(low.type) else pa.int64()
    values = pa.array(range(first, last + 1), whole).cast(low.type)
    return ast.And((ast.IsIn(column.path, values), *ends))


def compares(column: Column, operator: Operator, value: pa.Scalar) -> ast.Predicate:
    """What ``column < value`` and the like bound; the value is not null."""
    low, high = _span(column, value)
    kind = family(column.stored)
    if kind == "float" and operator in (">", ">="):
        raise Maybe("NaN is greater than every number")
    if kind == "boolean" or isinstance(column.stored, pa.DictionaryType):
        raise Maybe(f"the order of {column.stored} is not that of an index")
    if low is None or high is None:
        return ast.Compares(column.path, operator, value)
    # Cut to a coarser unit, all of a span lies on the literal itself.
    if operator in (">", ">="):
        return ast.Compares(column.path, ">=", low)
    return ast.Compares(column.path, "<=", high)


def is_in(column: Column, values: pa.Array, nulls_equal: bool) -> ast.Predicate:
    """What ``column.is_in(values)`` looks up."""
    if isinstance(values, pa.DictionaryArray):
        values = values.dictionary_decode()
    null_matches = nulls_equal and values.null_count > 0
    if null_matches and column.stored != column.seen:
        raise Maybe("a cast may make nulls")
    if null_matches and types.nulls_are_elsewhere(column.stored):
        raise Maybe(f"the nulls of {column.stored} are not indexed")
    if values.null_count == len(values):
        # Of an empty set it is false, so what it is not is true.
        return ast.IsNull(column.path) if null_matches else ast.Constant(False)
    values = values.drop_null()
    _check_seconds(column)
    kind, other = family(column.seen), family(values.type)
    allowed = kind == other or {kind, other} == {"integer", "decimal"}
    if not kind or not allowed:
        raise Maybe(f"{column.seen} is looked up in a set of {values.type}")
    if kind in ("timestamp", "instant", "duration"):
        if _ticks(column.stored) > _ticks(column.seen):
            raise Maybe(f"casting {column.stored} to {column.seen} joins values")
        if _before_2() and _ticks(column.seen) != _ticks(values.type):
            raise Maybe(f"{column.seen} may be compared with the numbers of {values.type}")
    if kind == other == "integer":
        _check_signs(column.seen, values)
    if other == "float":
        _check_floats(column, values)
    if column.stored != column.seen:
        for value in values:
            _check(column, value)
    return ast.IsIn(column.path, values, null_matches)


def _span(column: Column, value: pa.Scalar) -> tuple[pa.Scalar | None, pa.Scalar | None]:
    """First and last stored value that Polars finds equal to a literal; None for the literal."""
    _check(column, value)
    kind = family(column.stored)
    if kind not in ("timestamp", "instant", "duration"):
        return None, None
    number = value.value  # pyright: ignore[reportAttributeAccessIssue]
    stored, ticks = _ticks(column.stored), _ticks(column.seen)
    if family(value.type) == "date":
        # A date becomes a datetime of the column's unit, which it is exactly.
        number *= 86_400 * ticks
    else:
        ticks = _ticks(value.type)
    coarse = min(_ticks(column.seen), ticks)
    if ticks > coarse and number % (ticks // coarse):
        raise Maybe(f"the literal is cut to {_UNITS[coarse]}, as the column is")
    if stored <= coarse:
        return None, None
    number = number // (ticks // coarse)
    size = stored // coarse
    first, last = number * size, number * size + size - 1
    if number <= 0:
        # Towards zero or downwards: either way it lies here.
        first -= size - 1
    if not -_INT64 <= first <= last < _INT64:
        raise Maybe("the literal is beyond what the column holds")
    type_ = pa.duration(_UNITS[stored])
    if kind != "duration":
        type_ = pa.timestamp(_UNITS[stored], getattr(value.type, "tz", None))
    return _of_number(first, type_), _of_number(last, type_)


def _check(column: Column, value: pa.Scalar) -> None:
    """Refuse a comparison that Polars makes after rounding, or of two kinds of values."""
    _check_seconds(column)
    kind, other = family(column.seen), family(value.type)
    pairs = {
        "integer": ("integer", "decimal", "float"),
        "float": ("integer", "float"),
        "decimal": ("integer", "decimal"),
        "date": ("date", "timestamp"),
        "timestamp": ("timestamp", "date"),
    }
    if not kind or other not in pairs.get(kind, (kind,)):
        raise Maybe(f"a {column.seen} column is compared with {value.type}")
    if kind == other == "integer":
        _check_signs(column.seen, pa.array([value]))
    if "float" not in (kind, other):
        return
    number = value.as_py()
    if isinstance(number, float) and not math.isfinite(number):
        raise Maybe("NaN equals NaN in Polars, whatever its bits")
    if family(column.stored) == "integer" and abs(number) >= EXACT_INTEGERS[64]:
        raise Maybe(f"{number!r} is compared as Float64, which rounds large integers")
    if kind == "float" and nearest(number, column.seen.bit_width) != number:
        raise Maybe(f"{number!r} is no {column.seen}, and Polars rounds it")


def _check_signs(column: pa.DataType, values: pa.Array) -> None:
    """Refuse large integers of 64 bits, with a sign beside without."""
    if {column, values.type} != {pa.int64(), pa.uint64()} or not _before_2():
        return
    numbers = values.to_numpy()
    if ((numbers >= EXACT_INTEGERS[64]) | (numbers <= -EXACT_INTEGERS[64])).any():
        raise Maybe(f"{values.type} beside {column} is compared as Float64")


def _check_seconds(column: Column) -> None:
    """Refuse seconds: Polars reads them as milliseconds, and those may have overflowed."""
    stored = types.plain(column.stored)
    if (pt.is_timestamp(stored) or pt.is_duration(stored)) and stored.unit == "s":
        raise Maybe(f"Polars reads {stored} as milliseconds, which may overflow")


def _check_floats(column: Column, values: pa.Array) -> None:
    """Refuse a set with NaN, or with numbers that are no values of the column."""
    numbers = values.to_numpy(zero_copy_only=False)
    width = {16: np.float16, 32: np.float32, 64: np.float64}[column.seen.bit_width]
    with np.errstate(over="ignore"):
        exact = numbers == numbers.astype(width).astype(numbers.dtype)
    # NaN is unequal to itself.
    if not exact.all():
        raise Maybe(f"the set holds NaN, or numbers that are no {column.seen}")


@functools.cache
def _before_2() -> bool:
    """Whether Polars is older than the version that ended some of its traps."""
    return int(metadata.version("polars").split(".")[0]) < 2


def _ticks(type_: pa.DataType) -> int:
    """Ticks a second; Polars holds seconds as milliseconds."""
    return 10**3 if pt.is_date(type_) else _TICKS[type_.unit]


def _number(value: pa.Scalar) -> int | None:
    """The whole number a value is stored as, None of a kind that has gaps."""
    if family(value.type) == "integer":
        number = value.as_py()
        return number if -_INT64 <= number < _INT64 else None
    if family(value.type) in ("timestamp", "instant", "duration", "date"):
        return value.value  # pyright: ignore[reportAttributeAccessIssue]
    return None


def _of_number(number: int, type_: pa.DataType) -> pa.Scalar:
    return pa.scalar(number, pa.int64()).cast(type_)
