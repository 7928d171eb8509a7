"""Hash indices on Spark: builds by tasks, refreshes, and reads that return the rows of Spark."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from seams import set_constant
from spark_data import files_read, settings

import zonebloom as zb
import zonebloom.building.tasks
import zonebloom.scan.search
import zonebloom.spark as zs
from zonebloom.spark.joins import zones

NAN = float("nan")
ROWS = 3_000
COLUMNS = ["id", "name", "x"]


def stored_table(number: int) -> pa.Table:
    """Return a file in which some keys are null, and one key is in every hundredth row."""
    random = np.random.default_rng(number)
    keys = [int(key) for key in random.integers(0, 40_000, ROWS)]
    keys = [7 if row % 100 == 0 else key for row, key in enumerate(keys)]
    odd = [NAN, 0.0, -0.0, float("inf")]

    def with_nulls(values):
        return [None if random.random() < 0.05 else value for value in values]

    return pa.table(
        {
            "id": pa.array(with_nulls(keys), pa.int64()),
            "name": pa.array(with_nulls(f"n{key}" for key in keys)),
            "x": pa.array(with_nulls(odd[key % 50] if key % 50 < 4 else key / 4 for key in keys)),
            "row": pa.array(range(number * ROWS, (number + 1) * ROWS), pa.int64()),
        }
    )


def write(folder: Path, numbers: range) -> None:
    for number in numbers:
        pq.write_table(
            stored_table(number),
            folder / f"{number}.parquet",
            row_group_size=1_100,
            write_page_index=True,
            max_rows_per_page=100,
        )


@pytest.fixture(scope="module")
def folder(spark, tmp_path_factory) -> str:
    """Write files with an index that Spark built, in a segment for each file, and refreshed."""
    folder = tmp_path_factory.mktemp("hashed") / "data"
    folder.mkdir()
    write(folder, range(3))
    with pytest.MonkeyPatch.context() as patch:
        # Each file is a task of its own, and so a segment.
        set_constant(patch, zonebloom.building.tasks, "_TASK_BYTES", 1)
        ds = zb.dataset(folder)
        ds.create_scalar_index(COLUMNS, "HASH", number_of_items=50, spark=spark)
        assert len(ds.opened.version.indices["id_idx"].segments) == 3
        write(folder, range(3, 5))
        ds.refresh()
        ds.optimize.optimize_indices(spark=spark)
        assert len(ds.opened.version.indices["id_idx"].segments) >= 1
    return str(folder)


@pytest.fixture(autouse=True)
def few_are_many(monkeypatch):
    """Treat three keys as many, and every side as large enough for the rules of joins."""
    set_constant(monkeypatch, zonebloom.scan.search, "_MAX_SINGLE_SEARCH", 2)
    for name in ("_MIN_BYTES_TO_PRUNE", "_ZONES_FIXED_COST", "_ZONES_COST_FACTOR"):
        set_constant(monkeypatch, zones, name, 0)


def rows(frame):
    return sorted(map(repr, frame.collect()))


FILTERS = [
    "id = 7",
    "id IN (8, 9, 10, 11, 12, 41000, NULL)",
    "id IN (8, 9, 41000) OR x = 2.25",
    "id IS NULL AND name = 'n7'",
    "name IN ('n7', 'n8', 'n9', 'n10', 'absent')",
    "x IN (0.0, 500.25, 2.25, -1.5)",
    "NOT id IN (1, 2, 3, 4) AND name IN ('n1', 'n2', 'n3', 'n7')",
    "id <=> NULL AND x > 9000",
]


@pytest.mark.parametrize("text", FILTERS)
def test_filters_return_the_rows_of_spark(spark, folder, text):
    frame = spark.read.parquet(folder).where(text)
    expected = rows(frame)
    assert expected
    assert rows(zs.scan(spark, folder, text)) == expected
    assert rows(zs.prune(frame)) == expected
    zs.enable(spark)
    try:
        assert rows(spark.read.parquet(folder).where(text)) == expected
    finally:
        zs.disable(spark)


def test_absent_keys_read_no_file(spark, folder):
    assert not zs.plan(spark, folder, "id IN (50001, 50002, 50003, 50004)").fragments
    frame = spark.read.parquet(folder).where("id IN (50001, 50002, 50003, 50004)")
    pruned = zs.prune(frame)
    assert not pruned.collect()
    assert not any(files_read(pruned))


@pytest.mark.parametrize("join_type", ["inner", "left_semi", "left"])
@pytest.mark.parametrize("on", [["id"], ["name"], ["x"], ["id", "name"]], ids=str)
def test_many_keys_of_a_join_return_the_rows_of_spark(spark, folder, on, join_type):
    table = pa.concat_tables([stored_table(2).slice(0, 150), stored_table(30).slice(0, 300)])
    present, absent = table.to_pylist(), []
    for number in range(1_500):
        absent.append({"id": 10**6 + number, "name": f"absent {number}", "x": -number - 0.5})
    keys = pa.Table.from_pylist(
        [{**key, "row": number} for number, key in enumerate(present + absent)], table.schema
    ).rename_columns([*COLUMNS, "number"])
    other = spark.createDataFrame(keys.select([*on, "number"]))
    stored = spark.read.parquet(folder)
    with settings(spark, **{"spark.sql.autoBroadcastJoinThreshold": "-1"}):
        plan = zs.explain_join(other, zs.Indexed(folder), on, join_type, max_keys=50_000)
        assert len(plan.used) == 1 and "zones of right that may hold" in plan.used[0], plan
        assert rows(plan.frame) == rows(other.join(stored, on, join_type))


def test_only_keys_that_may_exist_are_sent_to_the_tasks(spark, folder, monkeypatch):
    # All keys are too many bytes for an option of the load, and those that exist are not.
    set_constant(monkeypatch, zones, "_MAX_KEY_BYTES", 1_000)
    ids = [7, 8, 9, *range(10**6, 10**6 + 1_500)]
    other = spark.createDataFrame(pa.table({"id": ids}))
    with settings(spark, **{"spark.sql.autoBroadcastJoinThreshold": "-1"}):
        plan = zs.explain_join(other, zs.Indexed(folder), "id", max_keys=50_000)
        assert len(plan.used) == 1 and "zones of right that may hold" in plan.used[0], plan
        assert rows(plan.frame) == rows(other.join(spark.read.parquet(folder), "id"))
