"""A side of a join whose rows are few: computed once, for its keys choose the other's zones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import types as st

from zonebloom.spark.joins.filter_condition import INTEGERS, is_plain_text
from zonebloom.spark.joins.key_origin import StepAside

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# The options of a load hold the keys, and go to several processes.
_MOST_KEY_BYTES = 4 << 20
_SMALL_BYTES = 64 << 20


def collected(frame: DataFrame, names: list[str], max_keys: int) -> tuple[DataFrame, pa.Table]:
    """A small frame, computed once and held, and its key columns in rows without a null.

    A frame computed again need not give the same rows, as limit() shows.
    """
    if max_keys < 1:
        raise StepAside("max_keys is 0")
    if len(set(frame.columns)) < len(frame.columns):
        raise StepAside("several columns of the other side have one name")
    try:
        rows = frame.limit(max_keys + 1).toArrow()
    except Exception as error:
        # If it is more than a type Arrow has not, the join will say so too.
        lines = str(error).splitlines() or [type(error).__name__]
        raise StepAside(f"the other side cannot be collected: {lines[0]}") from error
    if rows.num_rows > max_keys:
        raise StepAside(f"the other side has more than max_keys={max_keys:,} rows")
    # Nulls alone: dropna() of a frame would drop NaN too.
    keys = rows.select(names).drop_null()
    if rows.nbytes > _SMALL_BYTES or keys.nbytes > _MOST_KEY_BYTES:
        raise StepAside(f"the other side has {rows.nbytes:,} bytes in few rows")
    session: Any = frame.sparkSession
    return session.createDataFrame(rows, schema=frame.schema), keys


def why_keys_differ(one: st.StructField, other: st.StructField) -> str | None:
    """Why equality of two key columns is more than equality of their values, None if it is not."""
    for key in (one, other):
        if not is_plain_text(key):
            return f"{key.name} is text that Spark compares by a collation or pads"
    both = isinstance(one.dataType, INTEGERS) and isinstance(other.dataType, INTEGERS)
    if one.dataType != other.dataType and not both:
        return (
            f"{one.name} is {one.dataType.simpleString()} on one side and "
            f"{other.dataType.simpleString()} on the other, compared after a cast"
        )
    return None
