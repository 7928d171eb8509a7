"""vacuum deletes what the newest version does not name, and nothing else."""

from __future__ import annotations

import os
import time
import warnings
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import zonebloom as zb
from zonebloom.errors import IndexNotUsedWarning
from zonebloom.index.maintain import Vacuumed


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    pq.write_table(pa.table({"id": range(20_000), "x": range(20_000)}), tmp_path / "a.parquet")
    return tmp_path


def age(folder: Path) -> None:
    then = time.time() - 3600
    for path in folder.rglob("*"):
        os.utime(path, (then, then))


def test_segments_replaced_or_dropped_are_deleted_and_lookups_still_work(lake):
    dataset = zb.dataset(lake)
    for column in ("id", "id", "x"):
        dataset.create_scalar_index(column, spark=False)
    dataset.drop_index("x_idx")
    folder = lake / "_zonebloom"
    age(folder)
    assert len(list((folder / "segments").iterdir())) == 3
    done = dataset.vacuum(older_than=timedelta(minutes=1))
    assert (done.num_segments, done.num_versions) == (2, 3)
    assert done.num_bytes > 2 * 3 * 32_768
    assert len(list((folder / "segments").iterdir())) == 1
    reopened = zb.dataset(lake)
    assert reopened.version == 4
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert reopened.count_rows(filter="id = 7") == 1
    assert "zones kept" in reopened.scanner(filter="id = 7").explain_plan()


def test_what_is_young_is_kept(lake):
    dataset = zb.dataset(lake)
    dataset.create_scalar_index("id", spark=False)
    dataset.create_scalar_index("id", spark=False)
    under_way = lake / "_zonebloom" / "segments" / "of-a-build-under-way"
    under_way.mkdir()
    (under_way / "bloomfilter.arrow").write_bytes(b"")
    before = sorted(lake.rglob("*"))
    assert dataset.vacuum() == Vacuumed(0, 0, 0)
    assert sorted(lake.rglob("*")) == before


def test_reader_of_a_deleted_version_loses_no_row(lake):
    reader = zb.dataset(lake)
    reader.create_scalar_index("id", spark=False)
    writer = zb.dataset(lake)
    stale = zb.dataset(lake)
    writer.create_scalar_index("id", spark=False)
    age(lake / "_zonebloom")
    writer.vacuum(older_than=timedelta(minutes=1))
    with pytest.warns(IndexNotUsedWarning, match="cannot open"):
        assert stale.count_rows(filter="id = 19999") == 1


def test_vacuum_of_a_dataset_without_an_index_does_nothing(lake):
    assert zb.dataset(lake).vacuum().num_bytes == 0
    assert not (lake / "_zonebloom").exists()
