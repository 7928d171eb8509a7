"""Handle dates before 1582 and times before 1900 that Spark 2 and Hive wrote in another calendar.

Spark corrects ("rebases") such values when it reads a file, but an index holds the stored values.
The index is therefore not used for such literals, and code that reads files without Spark refuses
files that may contain such values.
https://spark.apache.org/docs/latest/sql-data-sources-parquet.html
"""

from __future__ import annotations

import datetime

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from zonebloom.predicates import ast

FIRST_DAY = datetime.date(1582, 10, 15)
# Spark changes no stored instant from 1900 on. A rebased instant differs from the stored one by up
# to a day and a half (local solar time, date line), so this leaves some room.
FIRST_EXACT_INSTANT = datetime.datetime(1902, 1, 1)


def without_rebased_literals(predicate: ast.Predicate) -> ast.Predicate:
    """Return a predicate whose comparisons with dates and times that may be rebased are unknown.

    >>> day = pa.scalar(datetime.date(1500, 1, 1))
    >>> without_rebased_literals(ast.Equals(("d",), day)).reason
    'dates and times this old may lie in files in another calendar'
    """

    def hide_old_literal(leaf: ast.LeafPredicate) -> ast.LeafPredicate:
        if not isinstance(leaf, ast.Equals | ast.Compares | ast.IsIn | ast.HasTuple):
            return leaf
        # Compare Arrow values: Python's dates have a smaller range of years.
        arrays: tuple[pa.Array, ...]
        match leaf:
            case ast.HasTuple():
                arrays = leaf.values
            case ast.IsIn():
                arrays = (leaf.values,)
            case _:
                arrays = (pa.repeat(leaf.value, 1),)
        is_old = (pc.call_function("any", [may_be_rebased(values)]).as_py() for values in arrays)
        if not any(is_old):
            return leaf
        reason = "dates and times this old may lie in files in another calendar"
        return ast.Unknown(str(leaf), reason, frozenset(leaf.column[:1]))

    return ast.replace_leaves(predicate, hide_old_literal)


def may_be_rebased(values: pa.Array) -> pa.Array:
    """Return a bool array that is true for dates or timestamps a file may store as other values.

    It is null where the values are null.
    """
    if pt.is_date(values.type):
        bound = pa.scalar(FIRST_DAY, values.type)
    elif pt.is_timestamp(values.type):
        # Compare instants: the time zone does not matter here.
        bound = pa.scalar(FIRST_EXACT_INSTANT, pa.timestamp(values.type.unit)).cast(pa.int64())
        values = values.cast(pa.int64())
    else:
        return pa.repeat(False, len(values))
    return pc.call_function("less", [values, bound])
