"""What a join costs as Spark makes it, by its own plan and estimates, and what a filter saves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from zonebloom.dataset import Dataset
from zonebloom.errors import ZoneBloomError
from zonebloom.sbbf.filter import Sbbf
from zonebloom.spark.joins.sides import JoinSide, RuleNotUsed
from zonebloom.spark.relation import node_name
from zonebloom.spark.session import byte_count, is_classic, open_dataset
from zonebloom.storage.paths import plain_path
from zonebloom.values.columns import find_column

# Above this share, looking rows up costs more than it saves of shuffling, sorting and merging.
_MOST_PASS = 0.6
_SAMPLED_FILES, _RUNS, _RUN_ROWS = 4, 8, 128
_BROADCAST = "spark.sql.autoBroadcastJoinThreshold"
# What files raise of which nothing is to be known.
_NOT_READ = (ZoneBloomError, OSError, pa.ArrowException)


class RuleTooCostly(RuleNotUsed):
    """Why a rule that could be used would cost more than it saves."""


def is_broadcast(spark: SparkSession, side: JoinSide) -> bool:
    """Whether Spark sends a side of a join to all tasks, as far as is known: if in doubt, it does.

    By its own estimate; over Connect by that which it makes of files, of whatever is read of them.
    """
    most = byte_count(str(spark.conf.get(_BROADCAST)))
    if most < 0:
        return False
    frame: Any = side.frame(spark)
    if is_classic(spark):
        statistics = frame._jdf.queryExecution().optimizedPlan().stats()
        return int(statistics.sizeInBytes()) <= most
    try:
        files = side.index or _opened(spark, frame.inputFiles())
        return estimate_bytes(files, side.num_columns) <= most
    except _NOT_READ:
        return True


def estimate_bytes(files: Dataset, num_columns: int) -> float:
    """The bytes of so many columns of a dataset, as if all were of one size."""
    identities = files.opened.source.identities()
    whole = sum(identity.size for identity in identities if identity is not None)
    return whole * min(num_columns / len(files.schema), 1)


def require_shuffle(plain: DataFrame, *sides: JoinSide) -> None:
    """Refuse to filter a join as long as it is not known that Spark shuffles both sides for it."""
    classic: Any = plain
    spark = plain.sparkSession
    if is_classic(spark):
        join = _topmost_join(classic._jdf.queryExecution().executedPlan())
        if join not in ("SortMergeJoinExec", "ShuffledHashJoinExec"):
            raise RuleTooCostly(f"Spark plans {join}, so no rows are shuffled that could be spared")
        return
    for side in sides:
        if is_broadcast(spark, side):
            raise RuleNotUsed(
                f"Spark Connect shows no plan, and as far as files tell {side.name} may be within "
                f"{_BROADCAST}: then no rows are shuffled that could be spared"
            )


def _topmost_join(plan: Any) -> str:
    """The class of the join that a physical plan ends with."""
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


def require_selective(
    spark: SparkSession, side: JoinSide, name: str, sbbf: Sbbf, kind: pa.DataType
) -> str:
    """Refuse a filter that lets most keys of a side pass; else what is to be said of them.

    A few values of the column of that name in its files tell, whatever stands above.
    """
    try:
        files = side.index or _opened(spark, _some_files(side.frame(spark)))
        passing = sbbf.check(_sampled(files, name).cast(kind))
    except _NOT_READ:
        return ""
    if not passing.size:
        return ""
    share = float(passing.mean())
    if share > _MOST_PASS:
        raise RuleTooCostly(
            f"of {passing.size:,} sampled keys of {side.name} {share:.0%} would pass"
        )
    return f"; {share:.0%} of {passing.size:,} sampled keys pass"


def _some_files(frame: Any) -> list[str]:
    """A few of the files a frame reads, the first and the last among them."""
    # Each element is a call to the JVM.
    files = frame._jdf.inputFiles() if hasattr(frame, "_jdf") else frame.inputFiles()
    at = np.unique(np.linspace(0, len(files) - 1, _SAMPLED_FILES).astype(int)) if files else ()
    return [files[int(each)] for each in at]


def _opened(spark: SparkSession, files: list[str]) -> Dataset:
    return open_dataset([plain_path(file, encoded=True) for file in files], spark)


def _sampled(files: Dataset, name: str) -> pa.Array:
    """Values of a column from all over a dataset."""
    stored = find_column(files.schema.names, name) or name
    rows = files.to_arrow_dataset()
    starts = np.linspace(0, max(rows.count_rows() - _RUN_ROWS, 0), _RUNS).astype(int)
    asked = np.unique(starts[:, None] + np.arange(_RUN_ROWS))
    values = rows.take(asked[asked < rows.count_rows()], columns=[stored])[stored]
    return values.combine_chunks().drop_null()
