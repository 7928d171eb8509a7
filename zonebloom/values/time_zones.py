"""Explain why a time with a zone is not compared with one without, and how to write it instead."""

from __future__ import annotations

import pyarrow as pa

from zonebloom.values.normal_types import decoded_type
from zonebloom.values.types import time_zones_differ

TIME_ZONE_ADVICE = (
    'pyarrow.compute.assume_timezone(field, "UTC") converts times to instants, and '
    "local_timestamp(field) converts instants to times"
)


def describe_time_zone_mismatch(column: pa.DataType, literal: pa.Scalar) -> tuple[str, str]:
    """Return the problem and the advice for a literal and a column of which only one has a zone."""
    column = decoded_type(column)
    try:
        # This makes a date the first moment of the day, and cuts nanoseconds. A time with a zone is
        # stored in UTC.
        moment = literal.cast(pa.timestamp("us"), safe=False).as_py()
    except (ValueError, OverflowError, pa.ArrowException):
        return f"a time is compared with a column of {column}", f"write it as {column}"
    if getattr(literal.type, "tz", None) is None:
        return (
            f"{moment}, without a zone, is compared with a column of {column}",
            f"write it with a zone, as '{moment}+00:00' if it is UTC",
        )
    return (
        f"{moment}+00:00, with a zone, is compared with a column of {column}, without a zone",
        f"write it without a zone, as '{moment}' if the column holds UTC",
    )


def time_zone_mismatch_message(name: str, column: pa.DataType, literal: pa.Scalar) -> str | None:
    """Return why a time is not compared with a column, or None if it can be."""
    if not time_zones_differ(column, literal.type):
        return None
    problem, advice = describe_time_zone_mismatch(column, literal)
    return f"{name}: {problem}; {advice}"
