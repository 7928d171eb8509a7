"""A build on Spark writes the same files as a build in this process."""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.helpers import index_folder
from support.seams import replace_function, set_constant
from support.separately import check_same_bytes_as_in_process, write_lake

import zonebloom as zb
import zonebloom.building.train
from zonebloom.base import progress
from zonebloom.errors import EngineError, FragmentUnreadable, SchemaMismatch
from zonebloom.spark import jobs
from zonebloom.spark.jobs import train_on_spark

ROWS = 30_000


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write three files. Each file is a task of its own."""
    set_constant(monkeypatch, zonebloom.building.train, "_TASK_BYTES", 1)
    write_lake(tmp_path / "lake", rows=ROWS)
    return tmp_path / "lake"


def listing(folder: Path) -> set[str]:
    """Return everything below a data folder, and below the folder of its index."""
    return {str(path) for below in (folder, index_folder(folder)) for path in below.rglob("*")}


def test_spark_writes_the_same_bytes_as_this_process(spark, tmp_path, monkeypatch):
    # Each file is a task.
    set_constant(monkeypatch, zonebloom.building.train, "_TASK_BYTES", 1)
    more_indices = [
        {"column": "name", "index_type": "HASH", "tokens": "words", "name": "words"},
        {"column": [("id", "name")], "name": "pair"},
        {"column": "id", "index_type": "ZONEMAP", "name": "bounds"},
    ]
    check_same_bytes_as_in_process(spark, tmp_path, more_indices)


@pytest.mark.parametrize("least_bytes", [0, 1 << 30])
def test_active_session_is_used_for_large_builds_without_a_session(
    spark, lake, monkeypatch, capsys, least_bytes
):
    used = []
    set_constant(
        monkeypatch, sys.modules["zonebloom.building.builder"], "WORTH_AN_ENGINE", least_bytes
    )

    def record(session, tasks, **options):
        used.append(session)
        return train_on_spark(session, tasks, **options)

    replace_function(monkeypatch, jobs, "train_on_spark", record)
    # Print a log line for each step of the progress.
    set_constant(monkeypatch, progress, "_SECONDS_BETWEEN_LINES", 0.0)
    zb.dataset(lake).create_scalar_index("id", progress=True)
    assert used == ([] if least_bytes else [spark])
    assert ("in this process" if least_bytes else "on Spark") in capsys.readouterr().err
    zb.dataset(lake).create_scalar_index("name", spark=spark)
    assert used[-1:] == [spark]


def test_progress_ends_at_all_rows(spark, lake):
    calls = []
    zb.dataset(lake).create_scalar_index(
        "id", spark=spark, progress=lambda num_rows, total: calls.append((num_rows, total))
    )
    assert calls[-1] == (3 * ROWS, 3 * ROWS)


def test_the_error_names_an_unreadable_file_and_the_build_leaves_nothing(spark, lake):
    dataset = zb.dataset(lake)
    (lake / "1.parquet").write_bytes(b"PAR1 this is not one PAR1")
    before = listing(lake)
    with pytest.raises(FragmentUnreadable, match=r"1\.parquet"):
        dataset.create_scalar_index("id", spark=spark)
    assert listing(lake) == before


def test_column_of_another_type_in_a_later_file_is_refused(spark, lake):
    dataset = zb.dataset(lake)
    pq.write_table(pa.table({"id": ["a"], "name": ["b"]}), lake / "2.parquet")
    with pytest.raises(SchemaMismatch, match=r"2\.parquet.*string.*int64"):
        dataset.create_scalar_index("id", spark=spark)
    assert not index_folder(lake).exists()


def test_objects_other_than_sessions_are_refused(lake):
    with pytest.raises(EngineError, match="give a SparkSession"):
        zb.dataset(lake).create_scalar_index("id", spark="local[2]")
    assert not index_folder(lake).exists()
