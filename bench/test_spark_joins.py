"""Join with an index, compared with joins of Spark at its defaults, which may broadcast a side.

The large side is joined with another large one that 1 %, half or all of its rows match, with a
small one that Spark broadcasts, and with few keys. Every run opens the index and plans the join
again.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.spark_data import settings, shuffled_rows

import zonebloom as zb
import zonebloom.spark as zs
from bench.conftest import NOTES

ROWS, KEYS, SMALL = 4_000_000, 800_000, 80_000
_FILES = 4
# The distance between the keys of a column. One in this many rows of the large side has a match.
STEPS = {"rare": 100, "half": 2, "every": 1}


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the large side, many keys that Spark shuffles, and few keys that it broadcasts."""
    root = tmp_path_factory.mktemp("joins")
    random = np.random.default_rng(1)
    for name in ("large", "keyed", "small"):
        (root / name).mkdir()
    for number in range(_FILES):
        rows = ROWS // _FILES
        keys = {name: random.integers(0, KEYS * step, rows) for name, step in STEPS.items()}
        table = pa.table({**keys, "x": random.random(rows)})
        pq.write_table(table, root / "large" / f"{number}.parquet", write_page_index=True)
    for name, count in (("keyed", KEYS), ("small", SMALL)):
        ids = random.permutation(count) * (KEYS // count)
        columns = {name: ids * step for name, step in STEPS.items()}
        table = pa.table({**columns, "y": random.random(count)})
        pq.write_table(table, root / name / "0.parquet", write_page_index=True)
        dataset = zb.dataset(root / name)
        dataset.create_scalar_index(list(STEPS), global_filter=True, spark=False)
    zb.dataset(root / "large").create_scalar_index("rare", spark=False)
    return root


# Spark disables this by default for sides below 10 GB.
_RUNTIME_FILTER = {
    "spark.sql.optimizer.runtime.bloomFilter.enabled": "true",
    "spark.sql.optimizer.runtime.bloomFilter.applicationSideScanSizeThreshold": "0",
    "spark.sql.optimizer.runtime.bloomFilter.creationSideThreshold": "1g",
}


@pytest.mark.parametrize(
    ("keyed", "on"),
    [
        ("keyed", ["rare"]),
        ("keyed", ["half"]),
        ("keyed", ["every"]),
        ("keyed", ["rare", "half"]),
        ("small", ["rare"]),
        ("small", ["half"]),
    ],
    ids=[
        *("both large, 1 % match", "both large, half match", "both large, all match"),
        *("both large, two keys", "one broadcast, few match", "one broadcast, 3 % match"),
    ],
)
def test_filter_join(versus, spark, sides: Path, keyed: str, on: list[str]):
    path = str(sides / keyed)
    results: dict[str, tuple[int, int]] = {}

    def run(name: str, join: Callable) -> None:
        # The condition is true for every row. Spark creates a runtime filter only from a side that
        # has a condition.
        large = spark.read.parquet(str(sides / "large"))
        frame = join(large, spark.read.parquet(path).where("y < 2"))
        # Aggregate to one row, so that the measurement contains only the join.
        total = frame.selectExpr("sum(x * y)", "count(*) AS rows")
        results[name] = total.collect()[0].rows, sum(shuffled_rows(total))

    def ours() -> None:
        run("ours", lambda left, right: zs.filter_join(left, right, on, right_index=path))

    def spark_join() -> None:
        run("Spark", lambda left, right: left.join(right, on))

    def runtime_filter_join() -> None:
        with settings(spark, **_RUNTIME_FILTER):
            run("Spark's runtime filter", lambda left, right: left.join(right, on))

    peers = {"Spark": spark_join}
    if on == ["rare"] and keyed == "keyed":
        peers["Spark's runtime filter"] = runtime_filter_join
    versus(ours, peers, rounds=3)
    assert len({rows for rows, _ in results.values()}) == 1
    if len(peers) > 1:
        assert results["ours"][1] - KEYS <= 0.03 * ROWS
        shares = ", ".join(
            f"{(num_shuffled - KEYS) / ROWS:.2%} {name}"
            for name, (_, num_shuffled) in results.items()
        )
        NOTES.append(f"a join of {ROWS:,} rows of which 1 % match, rows shuffled: {shares}.")


@pytest.mark.parametrize("columns", [["rare"], [*STEPS, "x"]], ids=["the key", "all columns"])
def test_join_with_few_keys(versus, spark, sides: Path, columns: list[str]):
    """Read only the rows of ten keys, compared with Spark broadcasting these keys."""
    large = str(sides / "large")
    key_frame = spark.createDataFrame(zb.dataset(large).take(range(10), ["rare"]))

    def theirs() -> int:
        frame = spark.read.parquet(large).select(columns)
        return len(frame.join(key_frame, "rare").collect())

    def ours() -> None:
        frame = spark.read.parquet(large).select(columns)
        result = zs.filter_join(key_frame, frame, "rare", right_index=large)
        assert len(result.collect()) == expected

    expected = theirs()
    versus(ours, {"Spark, keys broadcast": theirs}, rounds=5)


FACT_FILES, FACT_ROWS = 16, 1_000_000


@pytest.fixture(scope="module")
def star(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write an indexed fact table of 16 M rows in PyArrow's layout, and two dimensions.

    The keys of "one" are in one of the 16 files, those of "two" in two, those of "all" in all.
    """
    root = tmp_path_factory.mktemp("star")
    random = np.random.default_rng(2)
    (root / "fact").mkdir()
    for number in range(FACT_FILES):
        ids = random.permutation(FACT_ROWS) + number * FACT_ROWS
        customers = [f"customer {n}" for n in range(50_000)]
        columns = {
            "id": ids,
            "x": random.random(FACT_ROWS),
            "customer": pa.array(customers).take(pa.array(ids % 50_000)),
            "amount": random.integers(0, 10**9, FACT_ROWS),
        }
        pq.write_table(pa.table(columns), root / "fact" / f"{number:02}.parquet")
    zb.dataset(root / "fact").create_scalar_index("id", spark=False)
    one = random.integers(0, FACT_ROWS, 10) + 5 * FACT_ROWS
    two = np.concatenate([random.integers(0, FACT_ROWS, 5) + n * FACT_ROWS for n in (3, 12)])
    every = random.integers(0, FACT_ROWS, FACT_FILES) + np.arange(FACT_FILES) * FACT_ROWS
    for name, ids in (("one", one), ("two", two), ("all", every)):
        pq.write_table(pa.table({"id": ids, "y": ids % 7}), root / f"{name}.parquet")
    return root


@pytest.mark.parametrize("keys", ["one", "two", "all"])
def test_join_with_enable(versus, spark, star: Path, keys: str):
    """Fetch the rows of a small dimension's keys by `filter_join` under `enable`.

    The other join is Spark's at its defaults, which broadcasts the keys.
    """
    enabled = spark.newSession()
    zs.enable(enabled)
    results = []

    def join_in(session, join):
        fact = session.read.parquet(str(star / "fact"))
        dimension = session.read.parquet(str(star / f"{keys}.parquet"))
        return lambda: results.append(sorted(join(fact, dimension).collect()))

    # The JVM compiles more of both joins' code in the first ten rounds or so.
    versus(
        join_in(enabled, lambda fact, dimension: zs.filter_join(fact, dimension, "id")),
        {"Spark": join_in(spark, lambda fact, dimension: fact.join(dimension, "id"))},
        rounds=31,
        in_turn=True,
    )
    assert results[0] and all(result == results[0] for result in results)
    zs.disable(enabled)
