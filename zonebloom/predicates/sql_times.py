"""Compute SQL's functions of dates and times with PyArrow's functions.

An instant, which is a timestamp with a time zone, has a day or an hour only in a zone. Engines
differ in the zone that they assume, so ``AT TIME ZONE`` has to name it.
"""

from __future__ import annotations

import calendar
import datetime
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from zonebloom.predicates import sql_numbers
from zonebloom.predicates.sql_values import (
    MONTH_INTERVAL,
    TypedValue,
    call,
    cast_to_common_type,
    null_of,
)
from zonebloom.values.literal import Literal, Unanswerable

_functions: Any = pc
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECOND = datetime.timedelta(microseconds=1)
_SOME_TIMESTAMP = pa.scalar(0, pa.int64()).cast(pa.timestamp("us"))
_MONTHS_PER_YEAR = 12
_MOMENTS = ("date", "timestamp", "instant")
_TRUNCATED_UNITS = (
    *("year", "quarter", "month", "week", "day", "hour", "minute", "second"),
    *("millisecond", "microsecond"),
)


class Clock:
    """The moment at which a filter is translated. All its parts see the same moment."""

    def __init__(self) -> None:
        self._now = datetime.datetime.now(datetime.UTC)

    def __str__(self) -> str:
        return self._now.isoformat()

    def now(self) -> Literal:
        return Literal("instant", _seconds(self._now))

    def local_timestamp(self) -> Literal:
        """Return the time of day and the date in the zone of this computer, without a zone."""
        return Literal("timestamp", _seconds(self._local_now()))

    def current_date(self) -> Literal:
        midnight = self._local_now().replace(hour=0, minute=0, second=0, microsecond=0)
        return Literal("date", _seconds(midnight))

    def _local_now(self) -> datetime.datetime:
        return self._now.astimezone().replace(tzinfo=datetime.UTC)


def is_interval(value: TypedValue) -> bool:
    return value.family == "duration" or value.type == MONTH_INTERVAL


def is_moment(value: TypedValue) -> bool:
    return value.family in _MOMENTS


def shift(moment: TypedValue, interval: TypedValue, *, is_backward: bool = False) -> TypedValue:
    """Return a date or time plus (or minus) an interval: a timestamp, or an instant."""
    if interval.type == MONTH_INTERVAL:
        return _shift_by_months(moment, interval, is_backward)
    if moment.family == "date":
        moment = moment.cast(pa.timestamp("us"))
    function = _functions.subtract_checked if is_backward else _functions.add_checked
    return call(function, moment, interval)


def shift_date(date: TypedValue, num_days: TypedValue, *, is_backward: bool = False) -> TypedValue:
    """Return a date plus (or minus) a number of days."""
    function = sql_numbers.subtract if is_backward else sql_numbers.add
    return function(_day_number(date), num_days).cast(pa.int32()).cast(pa.date32())


def difference(left: TypedValue, right: TypedValue) -> TypedValue:
    """Return the number of days between two dates, or the interval between two timestamps."""
    if left.family == right.family == "date":
        return sql_numbers.subtract(_day_number(left), _day_number(right))
    return call(_functions.subtract_checked, *cast_to_common_type([left, right]))


def truncate(unit: str, moment: TypedValue) -> TypedValue:
    """Return the begin of the year, month, day, ... of a moment, as a timestamp.

    A week begins on Monday.
    """
    unit = unit.lower().removesuffix("s")
    if unit not in _TRUNCATED_UNITS:
        raise Unanswerable(
            f"{unit!r} is not a unit of date_trunc", f"write one of {', '.join(_TRUNCATED_UNITS)}"
        )
    moment = _with_clock(_local(moment, f"date_trunc('{unit}', ...)"))
    return call(_functions.floor_temporal, moment, unit=unit)


def _shift_by_months(moment: TypedValue, interval: TypedValue, is_backward: bool) -> TypedValue:
    if not isinstance(moment.value, pa.Scalar):
        raise Unanswerable(
            "months and years have no fixed length, and PyArrow cannot add them to a column",
            "add them to the other side: ts > now() - INTERVAL 1 MONTH",
        )
    zone = getattr(moment.type, "tz", None)
    timestamp_type = pa.timestamp("us", zone)
    constant: Any = moment.cast(timestamp_type).value
    if not constant.is_valid:
        return null_of(timestamp_type)
    count = interval.value.as_py().months  # pyright: ignore[reportAttributeAccessIssue]
    utc = _EPOCH + constant.value * _MICROSECOND
    # The months of an instant are those of the zone of this computer.
    local = utc.astimezone() if zone is not None else utc
    month_number = local.year * _MONTHS_PER_YEAR + local.month - 1
    month_number += -count if is_backward else count
    year, month = divmod(month_number, _MONTHS_PER_YEAR)
    if not datetime.MINYEAR <= year <= datetime.MAXYEAR:
        raise Unanswerable("the date is out of range", "write a shorter interval")
    day = min(local.day, calendar.monthrange(year, month + 1)[1])
    shifted = local.replace(year=year, month=month + 1, day=day)
    if zone is not None:
        # The offset of the zone may differ at the new date.
        shifted = shifted.replace(tzinfo=None).astimezone()
    micros = (shifted - _EPOCH) // _MICROSECOND
    return TypedValue(pa.scalar(micros, pa.int64()).cast(timestamp_type), timestamp_type)


def at_time_zone(zone: str, moment: TypedValue) -> TypedValue:
    """Return an instant as the local time of a zone, or a local time of a zone as an instant."""
    try:
        # PyArrow would look the zone up only when it reads the rows.
        _functions.assume_timezone(_SOME_TIMESTAMP, timezone=zone)
    except pa.ArrowInvalid:
        raise Unanswerable(
            f"{zone!r} is not a time zone", "write 'UTC' or 'Europe/Berlin'"
        ) from None
    if moment.family == "instant":
        return call(_functions.local_timestamp, moment.cast(pa.timestamp(moment.type.unit, zone)))
    return call(_functions.assume_timezone, moment, timezone=zone)


def _part(function: Callable[..., Any], **options: Any) -> Callable[[TypedValue], TypedValue]:
    def extract(moment: TypedValue) -> TypedValue:
        local = _with_clock(_local(moment, f"the {function.__name__}"))
        return call(function, local, **options).cast(pa.int64())

    return extract


year = _part(_functions.year)
quarter = _part(_functions.quarter)
month = _part(_functions.month)
day = _part(_functions.day)
hour = _part(_functions.hour)
minute = _part(_functions.minute)
second = _part(_functions.second)
iso_week = _part(_functions.iso_week)
iso_year = _part(_functions.iso_year)
day_of_year = _part(_functions.day_of_year)
# Sunday is 0.
day_of_week = _part(_functions.day_of_week, count_from_zero=True, week_start=7)
# Monday is 1.
iso_day_of_week = _part(_functions.day_of_week, count_from_zero=False, week_start=1)
_millisecond = _part(_functions.millisecond)
_microsecond = _part(_functions.microsecond)


def millisecond(moment: TypedValue) -> TypedValue:
    """Return the milliseconds since the last full minute."""
    return _sum(second(moment), 1000, _millisecond(moment))


def microsecond(moment: TypedValue) -> TypedValue:
    """Return the microseconds since the last full minute."""
    return _sum(millisecond(moment), 1000, _microsecond(moment))


def _sum(large: TypedValue, factor: int, small: TypedValue) -> TypedValue:
    factor_value = TypedValue.constant(factor, pa.int64())
    return sql_numbers.add(sql_numbers.multiply(large, factor_value), small)


def _local(moment: TypedValue, what: str) -> TypedValue:
    if moment.family == "instant":
        raise Unanswerable(
            f"{what} of a {moment.type} depends on a time zone, and engines assume different ones",
            "name it: ts AT TIME ZONE 'UTC' instead of ts",
        )
    return moment


def _with_clock(moment: TypedValue) -> TypedValue:
    """Return a date as a timestamp. PyArrow has no hours of dates."""
    return moment.cast(pa.timestamp("us")) if pt.is_date(moment.type) else moment


def _day_number(date: TypedValue) -> TypedValue:
    return date.cast(pa.int32()).cast(pa.int64())


def _seconds(moment: datetime.datetime) -> Fraction:
    return Fraction((moment - _EPOCH) // _MICROSECOND, 10**6)
