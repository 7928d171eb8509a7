"""Test that a change and the purge after it touch nothing but the files of the dataset."""

from __future__ import annotations

import json
import os
import time
import uuid
from base64 import b64encode
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from support.seams import replace_function

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


def test_links_to_the_folder_and_inside_it_are_deleted_with_their_files(tmp_path):
    lake = tmp_path / "lake"
    write(lake / "a.parquet", [1, 2])
    write(lake / "b.parquet", [3, 4])
    (lake / "c.parquet").symlink_to(lake / "a.parquet")
    (tmp_path / "link").symlink_to(lake)
    assert zb.dataset(tmp_path / "link").erase("id", [1, 2]).num_deleted == 4
    assert os.listdir(lake) == ["b.parquet"]


def test_checksums_of_hadoop_go_with_the_file_that_they_are_of(tmp_path):
    """Spark looks beside the path that it was given, and refuses files that differ from them."""
    lake, real = tmp_path / "lake", tmp_path / "real"
    for name, ids in (("a", [1, 2]), ("b", [3, 4]), ("gone", [1])):
        write(lake / f"{name}.parquet", ids)
    write(real / "c.parquet", [1, 5])
    (lake / "link.parquet").symlink_to(real / "c.parquet")
    for path in (*lake.glob("*.parquet"), real / "c.parquet"):
        path.with_name(f".{path.name}.crc").write_bytes(b"crc")
    ds = zb.dataset(lake)
    assert ds.erase("id", [1]).num_deleted == 3
    assert {path.name for path in tmp_path.rglob("*.crc")} == {".b.parquet.crc"}
    assert ds.to_table()["id"].to_pylist() == [2, 3, 4, 5]


def test_names_that_have_no_checksums_are_no_obstacle(tmp_path):
    longest = tmp_path / ("n" * 247 + ".parquet")
    write(longest, [1, 2])
    write(tmp_path / "a.parquet", [1, 3])
    (tmp_path / ".a.parquet.crc").mkdir()
    assert zb.dataset(tmp_path).erase("id", [1]).num_deleted == 2
    assert ids_of(longest) == [2]


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="lists open files by Linux's /proc")
def test_a_file_is_closed_before_it_is_replaced(tmp_path, monkeypatch):
    replace, num_open = os.replace, []

    def replace_file(hidden, path):
        if path.endswith("a.parquet"):
            links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
            num_open.append(sum(os.path.realpath(link) == path for link in links))
        replace(hidden, path)

    write(tmp_path / "a.parquet", [1, 2])
    ds = zb.dataset(tmp_path)
    replace_function(monkeypatch, os, "replace", replace_file)
    ds.erase("id", [1])
    assert num_open == [0] and ids_of(tmp_path / "a.parquet") == [2]


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


def test_old_checkpoints_and_change_data_of_delta_are_searched(tmp_path):
    path = tmp_path / "t"
    write_deltalake(str(path), pa.table({"id": ["key-00001", "key-00002"]}))
    DeltaTable(str(path)).create_checkpoint()
    write(path / "_change_data" / "old.parquet", ["key-00001"])
    ds = zb.dataset(DeltaTable(str(path)))
    receipt = ds.erase("id", ["key-00001"])
    found = {os.path.basename(trace.path) for trace in receipt.check(ds, ["key-00001"]).found}
    assert {"old.parquet", "00000000000000000000.checkpoint.parquet"} <= found
    receipt.check(ds, ["key-00001"], purge=True)
    assert not list((path / "_delta_log").glob("*0.checkpoint.parquet"))
    assert DeltaTable(str(path)).to_pyarrow_table()["id"].to_pylist() == ["key-00002"]


def test_keys_are_those_of_the_table_in_any_spelling(tmp_path):
    write(tmp_path / "x" / "a.parquet", [1.0, 2.0])
    ds = zb.dataset(tmp_path / "x")
    receipt = ds.erase("id", [1, 1.0])
    assert receipt.keys.count == 1
    assert receipt.check(ds, [1.0]).is_searched and receipt.check(ds, [1]).is_searched


def test_rows_with_dictionaries_that_change_are_taken(tmp_path):
    kind = pa.dictionary(pa.int32(), pa.string())
    write(tmp_path / "x" / "a.parquet", pa.array(["a", "b"], kind))
    ds = zb.dataset(tmp_path / "x")
    batches = [pa.record_batch({"id": pa.array(texts, kind)}) for texts in (["a"], ["c"])]
    for rows in (pa.RecordBatchReader.from_batches(batches[0].schema, batches), batches[0]):
        ds.upsert(rows, on="id")
    assert sorted(ds.to_table()["id"].to_pylist()) == ["a", "b", "c"]


def test_a_change_of_a_folder_deletes_what_an_interrupted_one_left_beside_its_files(tmp_path):
    ages = {".zonebloom-1.tmp": 90_000, ".zonebloom-2.tmp": 60, "x.tmp": 90_000}
    for name in "ab":
        write(tmp_path / name / "0.parquet", [ord(name), 1_000 + ord(name)])
        for left, age in ages.items():
            write(tmp_path / name / left, [1])
            moment = time.time() - age
            os.utime(tmp_path / name / left, (moment, moment))
    ds = zb.dataset(tmp_path)
    assert ds.erase("id", [ord("a")]).num_deleted == 1
    young = ["0.parquet", ".zonebloom-2.tmp", "x.tmp"]
    assert sorted(os.listdir(tmp_path / "a")) == sorted(young)
    assert sorted(os.listdir(tmp_path / "b")) == sorted([*young, ".zonebloom-1.tmp"])


def test_files_that_another_program_vacuumed_are_not_found(tmp_path):
    path = str(tmp_path / "t")
    write_deltalake(path, pa.table({"id": [1, 2]}))
    ds = zb.dataset(DeltaTable(path))
    receipt = ds.erase("id", [1])
    assert "file" in {trace.kind for trace in receipt.check(ds).found}
    DeltaTable(path).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    for keys in (None, [1]):
        assert "file" not in {trace.kind for trace in receipt.check(ds, keys).found}


def test_values_of_partitions_are_compared_when_files_are_searched(tmp_path):
    rows = pa.table({"id": [1, 1, 2], "day": ["a", "b", "a"]})
    pq.write_to_dataset(rows, tmp_path / "x", partition_cols=["day"])
    ds = zb.dataset(tmp_path / "x")
    keys = {"id": [1], "day": ["a"]}
    by_keys, by_filter = ds.erase(["id", "day"], keys), ds.erase(filter="day = 'b'")
    assert by_keys.num_deleted == by_filter.num_deleted == 1
    assert not by_keys.check(ds, keys).found and not by_filter.check(ds, filter="day = 'b'").found
    write(tmp_path / "x" / "day=a" / "again.parquet", [1])
    [trace] = by_keys.check(ds, keys).found
    assert "erase again" in trace.reason


def test_files_that_are_older_than_a_field_hold_no_key_of_it(tmp_path):
    for name, events in (("a", [{"t": 1}]), ("b", [{"t": 1, "u": 5}, {"t": 2, "u": 6}])):
        write(tmp_path / "x" / f"{name}.parquet", events)
    ds = zb.dataset(tmp_path / "x", schema="union")
    receipt = ds.erase("id.u", [5])
    assert receipt.num_deleted == 1 and not receipt.check(ds, [5]).found


def test_other_files_are_searched_for_each_spelling_of_a_key(tmp_path):
    text, raw, long, short = 'key "ä"', bytes(range(8, 24)), bytes(range(100, 108)), b"bytes"
    keys = {
        "id": pa.array([text, "key"]),
        "n": pa.array([7_000_000, 8_000_000]),
        "b": pa.array([long, short]),
        "u": pa.array([raw, raw], pa.binary(16)),
    }
    (tmp_path / "x").mkdir()
    pq.write_table(pa.table({**keys, "n": [7_000_000, 9]}), tmp_path / "x" / "a.parquet")
    spellings = [text.encode(), json.dumps(text)[1:-1].encode(), quote(text).encode()]
    for value in (raw, long):
        spellings += [value, value.hex().encode(), b64encode(value)]
    spellings.append(str(uuid.UUID(bytes=raw)).encode())
    for number, spelling in enumerate([*spellings, b"key", b"7000000", short]):
        (tmp_path / "x" / f"_{number}").write_bytes(b"<" + spelling + b">")
    ds = zb.dataset(tmp_path / "x")
    traces = ds.erase(list(keys), pa.table(keys)).check(ds, pa.table(keys))
    names = {os.path.basename(trace.path) for trace in traces.found}
    assert names == {f"_{number}" for number in range(len(spellings))}
    assert traces.not_searched == ("short values of id", "n", "short values of b")


def test_a_check_says_which_keys_other_files_were_searched_for(tmp_path):
    key = uuid.UUID(int=2**100 + 1)
    write(tmp_path / "x" / "a.parquet", pa.array([key.bytes, bytes(16)], pa.binary(16)))
    (tmp_path / "x" / "_notes.txt").write_text(f"ask {key}")
    ds = zb.dataset(tmp_path / "x")
    traces = ds.erase("id", [key.bytes]).check(ds, [key.bytes])
    assert [os.path.basename(trace.path) for trace in traces.found] == ["_notes.txt"]
    assert traces.not_searched == ()
    write(tmp_path / "y" / "a.parquet", [1, 2])
    ds = zb.dataset(tmp_path / "y")
    traces = ds.erase("id", [1]).check(ds, [1])
    assert traces.not_searched == ("id",) and "were compared with id" in str(traces)


def test_a_trace_names_the_column_that_a_file_lacks(tmp_path):
    pq.write_table(pa.table({"a": [1, 2], "b": [1, 2]}), tmp_path / "0.parquet")
    pq.write_table(pa.table({"a": [1]}), tmp_path / "1.parquet")
    ds, condition = zb.dataset([tmp_path / "0.parquet"]), "a = 1 AND b = 1"
    [trace] = ds.erase(filter=condition).check(ds, filter=condition).found
    assert trace.reason.startswith("it may hold a key, because it has no column 'b'")
