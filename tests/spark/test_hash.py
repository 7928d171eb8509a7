"""Hash indices on Spark: builds by tasks, refreshes, and reads that return the rows of Spark."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from seams import set_constant
from spark_data import files_read

import zonebloom as zb
import zonebloom.building.tasks
import zonebloom.index.key_search
import zonebloom.spark as zs

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
    """Treat three keys as many."""
    set_constant(monkeypatch, zonebloom.index.key_search, "_MAX_UNITED_KEYS", 2)


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
    assert (
        not zs.explain(zs.scan(spark, folder, "id IN (50001, 50002, 50003, 50004)"))
        .scans[0]
        .fragments
    )
    frame = spark.read.parquet(folder).where("id IN (50001, 50002, 50003, 50004)")
    pruned = zs.prune(frame)
    assert not pruned.collect()
    assert not any(files_read(pruned))
