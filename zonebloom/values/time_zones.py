"""Times beside a column of which one alone has a zone: refused, with spellings that work."""

from __future__ import annotations

import datetime
import zoneinfo

import pyarrow as pa

from zonebloom.values.types import decoded_type, time_zones_differ

TIME_ZONE_ADVICE = (
    'pyarrow.compute.assume_timezone(field, "UTC") makes instants of times, and '
    "local_timestamp(field) times of instants"
)


def describe_time_zone_mismatch(
    column: pa.DataType, literal: pa.Scalar, form: str
) -> tuple[str, str]:
    """What is wrong with a time beside a column of which one alone has a zone; what to write."""
    column, zone = decoded_type(column), getattr(literal.type, "tz", None)
    known = "without a zone" if zone is None else f"of {zone}"
    try:
        # A date is the day's first moment, and what is finer than Python's times is not told.
        moment = literal.cast(pa.timestamp("us"), safe=False).as_py()
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


def time_zone_mismatch_message(name: str, column: pa.DataType, literal: pa.Scalar) -> str | None:
    """Why a Python time is not compared with a column, None where the two may be."""
    if not time_zones_differ(column, literal.type):
        return None
    what, advice = describe_time_zone_mismatch(column, literal, "datetime.fromisoformat({!r})")
    return f"{name}: {what}; {advice}"


def _zone(name: str) -> datetime.tzinfo:
    """A zone by its name, or by its distance from UTC as in +01:00."""
    if name[0] in "+-":
        return datetime.datetime.strptime(name, "%z").tzinfo or datetime.UTC
    return zoneinfo.ZoneInfo(name)
