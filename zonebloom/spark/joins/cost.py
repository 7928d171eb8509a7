"""Estimate from Spark's plan and statistics whether filtering a side of a join saves time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from zonebloom.errors import ZoneBloomError
from zonebloom.facade.dataset import Dataset
from zonebloom.sbbf.filter import Sbbf
from zonebloom.spark.joins.sides import JoinSide, RuleNotUsed
from zonebloom.spark.opening import open_dataset
from zonebloom.spark.relation import node_name
from zonebloom.spark.session_settings import byte_count
from zonebloom.spark.versions import input_files, is_classic, query_execution
from zonebloom.storage.paths import plain_path
from zonebloom.values.columns import find_column

# If more than this share of keys passes a filter, testing the rows costs more than it saves in
# shuffling, sorting and merging.
_MAX_PASSING_SHARE = 0.6
_SAMPLED_FILES, _RUNS, _RUN_ROWS = 4, 8, 128
_BROADCAST = "spark.sql.autoBroadcastJoinThreshold"
# The errors of files that cannot be read. Costs are then unknown.
_READ_ERRORS = (ZoneBloomError, OSError, pa.ArrowException)


class RuleTooCostly(RuleNotUsed):
    """The reason why a usable rule of a join would cost more than it saves."""


def _is_small(side: JoinSide) -> bool:
    """Return whether Spark may broadcast a side; True if its size is unknown.

    A classic session tells Spark's own estimate. Over Connect, the files' size is the estimate.
    """
    threshold = byte_count(str(side.spark.conf.get(_BROADCAST)))
    if threshold < 0:
        return False
    if is_classic(side.spark):
        statistics = query_execution(side.frame).optimizedPlan().stats()
        return int(statistics.sizeInBytes()) <= threshold
    try:
        files = side.index or _open_frame_files(side.spark, input_files(side.frame))
        return estimate_bytes(files, side.num_columns) <= threshold
    except _READ_ERRORS:
        return True


def estimate_bytes(files: Dataset, num_columns: int) -> float:
    """Return the approximate bytes of a number of columns, as if all columns had the same size."""
    identities = files.opened.source.identities()
    total = sum(identity.size for identity in identities if identity is not None)
    return total * min(num_columns / len(files.schema), 1)


def require_shuffle(join_frame: DataFrame, side: JoinSide, other: JoinSide) -> None:
    """Raise `RuleNotUsed` unless Spark is known to shuffle much of a side of the join."""
    if is_classic(side.spark):
        # In its plans, the keys of a small side choose the files of the other side. A filter of the
        # small side would prevent that.
        if _is_small(side):
            raise RuleTooCostly(f"{side.name} is small, so a filter would save few shuffled rows")
        join = _topmost_join(query_execution(join_frame).executedPlan())
        if join not in ("SortMergeJoinExec", "ShuffledHashJoinExec"):
            raise RuleTooCostly(f"Spark plans {join}, so a filter would save no shuffled rows")
        return
    for either in (side, other):
        if _is_small(either):
            raise RuleNotUsed(
                f"Spark Connect shows no plan, and {either.name} may be small enough to broadcast "
                f"({_BROADCAST}); a filter would then save no shuffled rows"
            )


def _topmost_join(plan: Any) -> str:
    name = node_name(plan)
    while not name.endswith("JoinExec"):
        if name == "AdaptiveSparkPlanExec":
            plan = plan.initialPlan()
        elif plan.children().size() == 1:
            plan = plan.children().head()
        else:
            return "no join"
        name = node_name(plan)
    return name


def require_selective(side: JoinSide, name: str, sbbf: Sbbf, kind: pa.DataType) -> str:
    """Raise `RuleTooCostly` if most keys of a side pass a filter, or else return a text about it.

    The share is estimated from a sample of the named column in the files of the side, whatever the
    frame does with them.
    """
    try:
        files = side.index or _open_frame_files(side.spark, _some_files(side.frame))
        passing = sbbf.check(_sample_column(files, name).cast(kind))
    except _READ_ERRORS:
        return ""
    if not passing.size:
        return ""
    share = float(passing.mean())
    if share > _MAX_PASSING_SHARE:
        raise RuleTooCostly(
            f"of {passing.size:,} sampled keys of {side.name} {share:.0%} would pass"
        )
    return f"; {share:.0%} of {passing.size:,} sampled keys pass"


def _some_files(frame: DataFrame) -> list[str]:
    """Return a few of the files that a frame reads, including the first and the last."""
    files = input_files(frame)
    numbers = np.unique(np.linspace(0, len(files) - 1, _SAMPLED_FILES).astype(int)) if files else ()
    return [files[int(number)] for number in numbers]


def _open_frame_files(spark: SparkSession, files: list[str]) -> Dataset:
    return open_dataset([plain_path(file, encoded=True) for file in files], spark)


def _sample_column(files: Dataset, name: str) -> pa.Array:
    """Return a sample of the values of a column, in short runs spread over a dataset."""
    stored_name = find_column(files.schema.names, name) or name
    num_rows = files.count_rows()
    starts = np.linspace(0, max(num_rows - _RUN_ROWS, 0), _RUNS).astype(int)
    row_numbers = np.unique(starts[:, None] + np.arange(_RUN_ROWS))
    values = files.take(row_numbers[row_numbers < num_rows], [stored_name])[stored_name]
    return values.combine_chunks().drop_null()
