"""A join by an index against Spark's own, all by sort and merge: 10 M rows of which 1 % match.

What is joined to is not small enough to be sent about whole, or Spark would do that instead:
broadcasts are off for all contenders. Each run of ours opens the index and makes the condition
anew.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from spark_data import settings

import zonebloom as zb
import zonebloom.spark as zs
from bench.conftest import NOTES

ROWS = 10_000_000
KEYS = ROWS // 100
_FILES = 4
# One row of the large side in a hundred finds a key; keys lie 100 apart.
_STEP = 100


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The large side, 10 M rows of a bigint key and a double, and the 100,000 keys."""
    root = tmp_path_factory.mktemp("joins")
    dice = np.random.default_rng(1)
    large, keyed = root / "large", root / "keyed"
    large.mkdir()
    keyed.mkdir()
    for number in range(_FILES):
        rows = ROWS // _FILES
        table = pa.table({"id": dice.integers(0, KEYS * _STEP, rows), "x": dice.random(rows)})
        pq.write_table(table, large / f"{number}.parquet", write_page_index=True)
    ids = dice.permutation(KEYS) * _STEP
    table = pa.table({"id": ids, "y": dice.random(KEYS)})
    pq.write_table(table, keyed / "0.parquet", write_page_index=True)
    zb.dataset(str(keyed)).create_scalar_index("id", global_filter=True, spark=False)
    zb.dataset(str(large)).create_scalar_index("id", spark=False)
    return str(large), str(keyed)


_SORT_MERGE = {"spark.sql.autoBroadcastJoinThreshold": "-1"}
# Off by default for sides below 10 GB.
_RUNTIME_FILTER = {
    "spark.sql.optimizer.runtime.bloomFilter.enabled": "true",
    "spark.sql.optimizer.runtime.bloomFilter.applicationSideScanSizeThreshold": "0",
    "spark.sql.optimizer.runtime.bloomFilter.creationSideThreshold": "1g",
}


def shuffled(frame) -> int:
    """Rows that all shuffles of a plan wrote, once it has run."""
    nodes, total = [frame._jdf.queryExecution().executedPlan()], 0
    while nodes:
        node = nodes.pop()
        name = node.getClass().getSimpleName()
        if name == "AdaptiveSparkPlanExec":
            nodes.append(node.executedPlan())
        elif name.endswith("QueryStageExec"):
            nodes.append(node.plan())
        else:
            if name == "ShuffleExchangeExec":
                total += node.metrics().apply("shuffleRecordsWritten").value()
            children = node.children()
            nodes += [children.apply(i) for i in range(children.size())]
    return total


def test_filter_join(versus, spark, sides: tuple[str, str]):
    """At most 3 % of the large side shuffled, 3x quicker than Spark's defaults."""
    large, keyed = sides
    found: dict[str, tuple[int, int]] = {}

    def run(name: str, join) -> None:
        # True for every row: Spark makes its runtime filter only of a side with a condition.
        frame = join(spark.read.parquet(large), spark.read.parquet(keyed).where("y < 2"))
        # One row comes out, so that nothing but the join is measured.
        total = frame.selectExpr("sum(x * y)", "count(*) AS rows")
        found[name] = total.collect()[0].rows, shuffled(total) - KEYS

    def ours() -> None:
        run("ours", lambda left, right: zs.filter_join(left, right, "id", right_index=keyed))

    def plain() -> None:
        run("Spark", lambda left, right: left.join(right, "id"))

    def runtime_filter() -> None:
        with settings(spark, **_RUNTIME_FILTER):
            run("Spark's runtime filter", lambda left, right: left.join(right, "id"))

    with settings(spark, **_SORT_MERGE):
        versus(ours, {"Spark": plain, "Spark's runtime filter": runtime_filter}, rounds=5)
    assert len({rows for rows, _ in found.values()}) == 1
    assert found["ours"][1] <= 0.03 * ROWS
    shares = ", ".join(f"{moved / ROWS:.2%} {name}" for name, (_, moved) in found.items())
    NOTES.append(f"a join of {ROWS:,} rows of which 1 % match, rows shuffled: {shares}.")


def test_join_with_few_keys(versus, spark, sides: tuple[str, str]):
    """Ten keys choose the zones that are read, against Spark sending them about."""
    large, _ = sides
    few = spark.createDataFrame([(int(i) * _STEP,) for i in range(10)], "id bigint")
    wanted = spark.read.parquet(large).join(few, "id").count()

    def ours() -> None:
        assert zs.filter_join(few, zs.Indexed(large), "id").count() == wanted

    versus(
        ours,
        {"Spark, keys broadcast": lambda: spark.read.parquet(large).join(few, "id").count()},
        rounds=5,
    )
