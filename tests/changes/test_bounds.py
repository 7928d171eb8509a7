"""Test that a change and the purge after it touch nothing but the files of the dataset."""

from __future__ import annotations

import os

import pyarrow as pa
import pyarrow.parquet as pq

import zonebloom as zb


def write(path, ids, name="id"):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({name: ids}), path)


def ids_of(path):
    return pq.read_table(path)["id"].to_pylist()


def test_a_purge_deletes_no_file_of_others(tmp_path):
    write(tmp_path / "x" / "a.parquet", [1, 2])
    write(tmp_path / "x" / "b.parquet", [1, 3])
    write(tmp_path / "x" / "other.parquet", [1], name="n")
    ds = zb.dataset(tmp_path / "x" / "a.parquet")
    traces = ds.erase("id", [1]).check(ds, [1], purge=True)
    assert ids_of(tmp_path / "x" / "a.parquet") == [2]
    assert ids_of(tmp_path / "x" / "b.parquet") == [1, 3]
    assert {os.path.basename(trace.path) for trace in traces.found} == {
        "b.parquet",
        "other.parquet",
    }


def test_a_link_and_its_target_are_erased(tmp_path):
    write(tmp_path / "real" / "a.parquet", [1])
    write(tmp_path / "x" / "b.parquet", [2])
    (tmp_path / "x" / "a.parquet").symlink_to(tmp_path / "real" / "a.parquet")
    ds = zb.dataset(tmp_path / "x")
    assert ds.erase("id", [1]).num_deleted == 1
    assert ds.to_table()["id"].to_pylist() == [2]
    assert not (tmp_path / "real" / "a.parquet").exists()


def test_keys_that_can_be_read_once_are_proven(tmp_path):
    write(tmp_path / "x" / "a.parquet", [1, 2, 3])
    ds = zb.dataset(tmp_path / "x")
    receipt = ds.erase("id", iter([1, 2]))
    assert receipt.keys.count == 2 and receipt.keys.is_of(["1", "2"])
    assert ids_of(tmp_path / "x" / "a.parquet") == [3]


def test_files_of_any_name_are_searched(tmp_path):
    write(tmp_path / "x" / "a.pq", [1, 2])
    write(tmp_path / "x" / "b.pq", [3])
    ds = zb.dataset(str(tmp_path / "x" / "*.pq"))
    receipt = ds.erase("id", [1])
    write(tmp_path / "x" / "b.pq", [1, 3])
    assert [os.path.basename(trace.path) for trace in receipt.check(ds, [1]).found] == ["b.pq"]
