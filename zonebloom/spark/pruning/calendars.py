"""Days and times that may lie in files in another calendar than Spark shows them in.

Spark 2 and Hive wrote the Julian calendar before 1582, and times before 1900 by local solar
clocks; Spark reads such files as the same day of the calendar used now. An index holds what is
stored, so it is not asked about them.
"""

from __future__ import annotations

import datetime

import pyarrow as pa
import pyarrow.compute as pc

from zonebloom.predicates import ast

# Clear of the change by a year and more, whatever the zone.
_FIRST_DAY = datetime.date(1584, 1, 1)
_FIRST_TIME = datetime.datetime(1902, 1, 1)
_REASON = "days and times of old may lie in files in another calendar"


def without_old_times(predicate: ast.Predicate) -> ast.Predicate:
    """The same condition, what it says of days and times of old being unknown.

    Examples
    --------
    >>> day = pa.scalar(datetime.date(1500, 1, 1))
    >>> without_old_times(ast.Equals(("d",), day)).reason
    'days and times of old may lie in files in another calendar'
    """
    if isinstance(predicate, ast.And | ast.Or):
        return type(predicate)(tuple(map(without_old_times, predicate.terms)))
    if isinstance(predicate, ast.Not):
        return ast.Not(without_old_times(predicate.term))
    if isinstance(predicate, ast.Equals | ast.Compares):
        values = pa.array([predicate.value.as_py()], predicate.value.type)
    elif isinstance(predicate, ast.IsIn):
        values = predicate.values
    else:
        return predicate
    return ast.Unknown(str(predicate), _REASON) if _is_old(values) else predicate


def _is_old(values: pa.Array) -> bool:
    if pa.types.is_date(values.type):
        first = pa.scalar(_FIRST_DAY, values.type)
    elif pa.types.is_timestamp(values.type):
        # Of a time zone, only the instant counts here.
        first = pa.scalar(_FIRST_TIME, pa.timestamp(values.type.unit))
        values = values.cast(pa.int64())
        first = first.cast(pa.int64())
    else:
        return False
    return bool(pc.any(pc.less(values, first)).as_py())  # pyright: ignore[reportAttributeAccessIssue]
