"""Explain why a time with a zone is not compared with one without, and how to write it instead."""

from __future__ import annotations

import datetime

import pyarrow as pa

from zonebloom.values.normal_types import decoded_type
from zonebloom.values.types import time_zones_differ

TIME_ZONE_ADVICE = (
    'pyarrow.compute.assume_timezone(field, "UTC") converts times to instants, and '
    "local_timestamp(field) converts instants to times"
)


def describe_time_zone_mismatch(
    column: pa.DataType, literal: pa.Scalar, form: str
) -> tuple[str, str]:
    """Return the problem and the advice for a literal and a column of which only one has a zone.

    ``form`` is a format string that writes a time in the language of the filter.
    """
    column, zone = decoded_type(column), getattr(literal.type, "tz", None)
    zone_text = "without a zone" if zone is None else f"of {zone}"
    try:
        # This makes a date the first moment of the day, and cuts nanoseconds.
        moment = literal.cast(pa.timestamp("us"), safe=False).as_py()
        time_zone = _parse_zone(column.tz if zone is None else zone)
    except (ValueError, OverflowError, KeyError, pa.ArrowException):
        problem = f"a time {zone_text} is compared with a column of {column}"
        return problem, f"write it as {column}"
    if zone is None:
        problem = f"{moment}, {zone_text}, is compared with a column of {column}"
        zone_name, in_zone = column.tz, moment.replace(tzinfo=time_zone)
        in_utc, subject = moment.replace(tzinfo=datetime.UTC), "it is"
    else:
        local_time = moment.replace(tzinfo=datetime.UTC).astimezone(time_zone)
        problem = (
            f"{local_time}, {zone_text}, is compared with a column of {column}, without a zone"
        )
        zone_name, in_zone = zone, local_time.replace(tzinfo=None)
        in_utc, subject = moment, "the column holds"
    advice = f"write {form.format(str(in_utc))} if {subject} UTC"
    if str(in_zone) != str(in_utc):
        advice += f", {form.format(str(in_zone))} if {subject} the time in {zone_name}"
    return problem, advice


def time_zone_mismatch_message(name: str, column: pa.DataType, literal: pa.Scalar) -> str | None:
    """Return why a Python time is not compared with a column, or None if it can be."""
    if not time_zones_differ(column, literal.type):
        return None
    problem, advice = describe_time_zone_mismatch(column, literal, "datetime.fromisoformat({!r})")
    return f"{name}: {problem}; {advice}"


def _parse_zone(name: str) -> datetime.tzinfo:
    """Return a time zone for its name, or for an offset from UTC such as +01:00."""
    if name[0] in "+-":
        return datetime.datetime.strptime(name, "%z").tzinfo or datetime.UTC
    # Few filters need time zones, and this takes long to import.
    from zoneinfo import ZoneInfo

    return ZoneInfo(name)
