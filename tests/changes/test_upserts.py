"""Test upserts and erasures in cases that random histories meet rarely."""

from __future__ import annotations

import errno
import math
import os
import threading

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.helpers import index_folder
from support.seams import replace_function

import zonebloom as zb
from zonebloom.errors import ChangeRefused, InvalidArgument, SourceError, StaleIndexWarning


def test_columns_that_a_file_lacks_are_added_and_narrow_ones_widened(tmp_path):
    pq.write_table(
        pa.table({"id": [1, 2], "x": pa.array([1, 2], pa.int8())}), tmp_path / "0.parquet"
    )
    wide = {"id": [3], "x": [1000], "z": ["z"], "more": [1.0]}
    pq.write_table(pa.table(wide), tmp_path / "1.parquet")
    ds = zb.dataset(tmp_path, schema="union")
    ds.upsert(pa.table({"id": [2, 3], "x": [2000, 3000], "z": ["new", "new"]}), on="id")
    found = zb.dataset(tmp_path, schema="union").to_table().sort_by("id")
    assert found.select(["id", "x", "z", "more"]).to_pylist() == [
        {"id": 1, "x": 1, "z": None, "more": None},
        {"id": 2, "x": 2000, "z": "new", "more": None},
        {"id": 3, "x": 3000, "z": "new", "more": 1.0},
    ]


@pytest.mark.parametrize("wrong", ["plan", "commit_properties", "progress"])
def test_options_are_checked_before_rows_are_read(tmp_path, wrong):
    rows = pa.table({"id": [1]})
    pq.write_table(rows, tmp_path / "0.parquet")
    ds, reader = zb.dataset(tmp_path), rows.to_reader()
    with pytest.raises(InvalidArgument):
        ds.upsert(reader, on="id", **{wrong: "maybe"})
    assert reader.read_all() == rows


def test_columns_that_the_dataset_does_not_have_are_kept(tmp_path):
    pq.write_table(pa.table({"id": [1], "x": pa.array([1], pa.int16())}), tmp_path / "0.parquet")
    pq.write_table(
        pa.table({"id": [2, 3], "x": [2, 70_000], "z": ["a", "b"]}), tmp_path / "1.parquet"
    )
    ds = zb.dataset(tmp_path)
    with pytest.raises(ChangeRefused, match="does not hold"):
        ds.upsert(pa.table({"id": [2], "x": [5]}), on="id")
    ds.erase("id", [3])
    assert pq.read_table(tmp_path / "1.parquet").to_pylist() == [{"id": 2, "x": 2, "z": "a"}]


@pytest.fixture
def parts(tmp_path):
    """Return a folder with partitions of two columns, where two rows have the key 1."""
    rows = pa.table(
        {
            "id": [1, 1, 2, 3],
            "p": ["a", "b", "a", "c"],
            "q": ["x", "x", "x", "y"],
            "v": [1, 2, 3, 4],
        }
    )
    pq.write_to_dataset(rows, tmp_path / "lake", partition_cols=["p", "q"])
    return tmp_path / "lake"


def read(folder) -> list[tuple]:
    pattern = f"{folder}/**/*.parquet"
    sql = f"SELECT id, p, q, v FROM read_parquet('{pattern}', hive_partitioning=true) ORDER BY ALL"
    with duckdb.connect() as db:
        return db.sql(sql).fetchall()


def test_all_rows_of_a_key_move(parts):
    ds = zb.dataset(parts)
    receipt = ds.upsert(pa.table({"id": [1], "p": ["c"], "q": ["y"], "v": [9]}), on="id")
    assert receipt.num_updated == 2
    assert receipt.verification is not None and receipt.verification.is_proven
    assert read(parts) == [(1, "c", "y", 9), (1, "c", "y", 9), (2, "a", "x", 3), (3, "c", "y", 4)]


def test_rows_that_moved_are_not_lost_by_an_interruption(parts, monkeypatch):
    rows = pa.table({"id": [2], "p": ["c"], "q": ["y"], "v": [9]})
    before = read(parts)
    with pytest.raises(ChangeRefused, match="whose keys exist"):
        zb.dataset(parts).upsert(rows, on="id", when_not_matched="ignore")
    assert read(parts) == before
    replace = os.replace

    def fail_for_new_files(hidden, path):
        if path.endswith(".parquet") and not os.path.exists(path):
            raise TimeoutError("interrupted")
        replace(hidden, path)

    with monkeypatch.context() as interrupted:
        replace_function(interrupted, os, "replace", fail_for_new_files)
        with pytest.raises(OSError, match="interrupted"):
            zb.dataset(parts).upsert(rows, on="id")
    zb.dataset(parts).upsert(rows, on="id")
    assert read(parts) == sorted([row for row in before if row[0] != 2] + [(2, "c", "y", 9)])
    # Rows that stay where they are need no new file.
    stay = zb.dataset(parts).upsert(rows, on="id", when_not_matched="ignore")
    assert (stay.num_updated, stay.num_inserted) == (1, 0)


def test_partitions_change_only_with_all_their_columns(parts):
    ds = zb.dataset(parts)
    before = read(parts)
    with pytest.raises(InvalidArgument, match="lack the columns q"):
        ds.upsert(pa.table({"id": [2], "p": ["c"], "v": [9]}), on="id")
    with pytest.raises(InvalidArgument, match="lack the columns v"):
        ds.upsert(pa.table({"id": [2], "p": ["c"], "q": ["y"]}), on="id")
    whole = pa.table({"id": [2], "p": ["c"], "q": ["y"], "v": [9]})
    with pytest.raises(InvalidArgument, match="lack the columns q"):
        ds.upsert(whole, on="id", columns=["p", "v"])
    assert read(parts) == before
    # The other columns of the rows are not to change.
    assert ds.upsert(whole, on="id", columns=["v"]).num_updated == 1
    assert read(parts) == [row if row[0] != 2 else (2, "a", "x", 9) for row in before]
    # A column of the key does not change.
    assert ds.upsert(whole.drop_columns("q"), on=["id", "p"]).num_inserted == 1


def test_readers_of_all_files_see_none_that_is_not_complete(tmp_path):
    rows = pa.table({"id": np.arange(100), "x": np.zeros(100)})
    pq.write_table(rows, tmp_path / "0.parquet")
    seen = []

    def look(done: int, total: int) -> None:
        pattern = f"{tmp_path}/*.parquet"
        with duckdb.connect() as db:
            seen.append(db.sql(f"SELECT count(*) FROM '{pattern}'").fetchall()[0][0])
        seen.append(pl.scan_parquet(pattern).collect().height)

    zb.dataset(tmp_path).upsert(rows.slice(5, 2), on="id", progress=look)
    assert seen and set(seen) == {100}


@pytest.mark.parametrize("folders", [("", "p=a"), ("p=a", ""), ("p=a/q=x", "link")])
def test_changes_through_other_folders_wait(parts, monkeypatch, folders):
    pytest.importorskip("fcntl")
    (parts.parent / "link").symlink_to(parts)
    roots = [parts.parent / "link" if name == "link" else parts / name for name in folders]

    def change(root, row_id: int) -> None:
        zb.dataset(root).upsert(pa.table({"id": [row_id], "v": [row_id * 100]}), on="id")

    thread = threading.Thread(target=change, args=(roots[1], 2))
    replace = os.replace

    def change_meanwhile(hidden, path):
        # The files were compared with those that were read.
        if path.endswith(".parquet") and thread.ident is None:
            thread.start()
            thread.join(0.5)
        replace(hidden, path)

    replace_function(monkeypatch, os, "replace", change_meanwhile)
    change(roots[0], 1)
    thread.join()
    found = [row for row in read(parts) if row[1] == "a"]
    assert found == [(1, "a", "x", 100), (2, "a", "x", 200)]


def test_infinities_and_nan_leave_a_delta_table_readable(tmp_path):
    deltalake = pytest.importorskip("deltalake")
    values = [-math.inf, math.inf, math.nan, None, 1.5]
    path = str(tmp_path / "table")
    deltalake.write_deltalake(path, pa.table({"id": range(5), "x": [0.0] * 5, "y": values[::-1]}))
    ds = zb.dataset(deltalake.DeltaTable(path))
    ds.upsert(pa.table({"id": [*range(5), 7], "x": [*values, 9.5]}), on="id")
    table = deltalake.DeltaTable(path)
    engine = deltalake.QueryBuilder().register("t", table)
    for condition, ids in (("x > 100", [1, 2]), ("x < -1", [0]), ("x = 9.5", [7])):
        found = pa.table(engine.execute(f"SELECT id FROM t WHERE {condition}").read_all())
        assert sorted(found["id"].to_pylist()) == ids


def test_files_of_a_commit_in_doubt_stay(tmp_path, monkeypatch):
    deltalake = pytest.importorskip("deltalake")
    path = str(tmp_path / "table")
    deltalake.write_deltalake(path, pa.table({"id": [1, 2], "x": [1, 1]}))
    commit = deltalake.DeltaTable.create_write_transaction

    def commit_and_fail(*arguments, **options):
        commit(*arguments, **options)
        raise TimeoutError("no answer")

    replace_function(monkeypatch, deltalake.DeltaTable, "create_write_transaction", commit_and_fail)
    ds = zb.dataset(deltalake.DeltaTable(path))
    with pytest.raises(TimeoutError):
        ds.upsert(pa.table({"id": [2, 3], "x": [5, 5]}), on="id")
    table = pa.table(deltalake.DeltaTable(path).scan().read_all()).sort_by("id")
    assert table.to_pylist() == [{"id": 1, "x": 1}, {"id": 2, "x": 5}, {"id": 3, "x": 5}]


def test_a_change_whose_index_cannot_be_refreshed_has_a_receipt(tmp_path, monkeypatch):
    pq.write_table(pa.table({"id": [1, 2, 3]}), tmp_path / "0.parquet")
    ds = zb.dataset(tmp_path)
    ds.create_scalar_index("id", spark=False)

    open_file, index = os.open, str(index_folder(tmp_path))

    def fail_in_index(path, flags, *options, **others):
        if flags & os.O_CREAT and os.fspath(path).startswith(index):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return open_file(path, flags, *options, **others)

    replace_function(monkeypatch, os, "open", fail_in_index)
    with pytest.warns(StaleIndexWarning, match="is committed, but the index could not be"):
        receipt = ds.erase("id", [2])
    assert receipt.is_committed and receipt.num_deleted == 1
    with pytest.warns(StaleIndexWarning):
        assert ds.count_rows("id IN (1, 2, 3)") == 2


FILTER, KEYS = {"filter": "id % 2 = 1"}, {"columns": "id", "keys": [1, 2, 7]}


@pytest.mark.parametrize(
    ("rows", "num_looks", "other_ids", "found"),
    [
        *((FILTER, num_looks, [0, 9, 7, 0], [0, 0, 0, 2]) for num_looks in (3, 4, 6)),
        (KEYS, 3, [0, 9, 7, 0], [0, 0, 0, 9]),
        (FILTER, 4, None, [0, 2]),
        (KEYS, 3, None, [0]),
    ],
)
def test_rows_are_located_again_if_a_file_changes_or_is_deleted_meanwhile(
    tmp_path, monkeypatch, rows, num_looks, other_ids, found
):
    for name in "ab":
        pq.write_table(pa.table({"id": [0, 1, 2]}), tmp_path / f"{name}.parquet")
    ds = zb.dataset(tmp_path)
    look, looks = os.stat, []

    def look_before_others(path, *arguments, **options):
        status = look(path, *arguments, **options)
        if str(path) == str(tmp_path / "b.parquet"):
            looks.append(status)
            if len(looks) == num_looks:
                (tmp_path / "a.parquet").unlink()
                if other_ids is not None:
                    pq.write_table(pa.table({"id": other_ids}), tmp_path / "a.parquet")
        return status

    replace_function(monkeypatch, os, "stat", look_before_others)
    assert ds.erase(**rows).tries == 2
    assert sorted(pq.read_table(tmp_path)["id"].to_pylist()) == found


def iceberg_table(tmp_path, rows: pa.Table, *, is_empty: bool = False):
    sql = pytest.importorskip("pyiceberg.catalog.sql")
    catalog = sql.SqlCatalog("c", uri=f"sqlite:///{tmp_path}/c.db", warehouse=tmp_path.as_uri())
    catalog.create_namespace("n")
    table = catalog.create_table("n.t", rows.schema)
    if not is_empty:
        table.append(rows)
    return table, lambda: catalog.load_table("n.t")


def test_an_iceberg_commit_in_doubt_says_what_to_do(tmp_path, monkeypatch):
    table, load = iceberg_table(tmp_path, pa.table({"id": [1, 2]}))
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.exceptions import CommitStateUnknownException

    commit = SqlCatalog.commit_table

    def commit_and_fail(self, *arguments):
        commit(self, *arguments)
        raise CommitStateUnknownException("502")

    replace_function(monkeypatch, SqlCatalog, "commit_table", commit_and_fail)
    with pytest.raises(SourceError, match=r"was made \(502\); look at the history of the table"):
        zb.dataset(table).erase("id", [1])
    assert load().scan().to_arrow()["id"].to_pylist() == [2]


def test_a_stale_dataset_knows_renamed_columns(tmp_path):
    table, load = iceberg_table(tmp_path, pa.table({"id": [1, 2], "x": ["a", "b"]}))
    ds = zb.dataset(table)
    with load().update_schema() as update:
        update.rename_column("x", "y")
    with pytest.raises(InvalidArgument, match="rows have a column 'x', and the dataset has none"):
        ds.upsert(pa.table({"id": [1], "x": ["new"]}), on="id")
    assert ds.upsert(pa.table({"id": [1], "y": ["new"]}), on="id").num_updated == 1
    assert ds.to_table().sort_by("id")["y"].to_pylist() == ["new", "b"]


@pytest.mark.parametrize("way", ["position", "equality", "append"])
@pytest.mark.parametrize("isolation", ["serializable", "snapshot"])
def test_what_others_commit_to_an_iceberg_table_meanwhile_is_kept(tmp_path, way, isolation):
    from support.iceberg_by_hand import delete_equal, delete_positions

    rows = pa.table({"id": range(20), "x": ["old"] * 20})
    table, load = iceberg_table(tmp_path, rows)
    with table.transaction() as transaction:
        transaction.set_properties({"write.delete.isolation-level": isolation})
    [file] = [task.file.file_path for task in table.scan().plan_files()]
    is_done = []

    def other_writer(done: int, total: int) -> None:
        if is_done:
            return
        is_done.append(True)
        newest = load()
        if way == "append":
            newest.append(pa.table({"id": [100], "x": ["theirs"]}))
        elif way == "position":
            delete_positions(newest, tmp_path, {file: [7]})
        else:
            delete_equal(newest, tmp_path, {"id": [7]})

    ds = zb.dataset(table)
    batch = pa.table({"id": [3, 100], "x": ["new", "new"]})
    receipt = ds.upsert(batch, on="id", progress=other_writer)
    assert receipt.tries == 2
    ids = [row_id for row_id in [*range(20), 100] if way == "append" or row_id != 7]
    found = zb.dataset(load()).to_table().sort_by("id")
    assert found["id"].to_pylist() == ids
    assert {row["id"] for row in found.to_pylist() if row["x"] == "new"} == {3, 100}


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_bounds_of_a_file_hold_for_texts_that_are_too_long_for_bounds(tmp_path, kind):
    rows = pa.table({"id": range(4), "s": ["b", "c", "z" * 5000, "y"]})
    if kind == "delta":
        deltalake = pytest.importorskip("deltalake")
        groups = deltalake.WriterProperties(max_row_group_size=2)
        deltalake.write_deltalake(tmp_path, rows, writer_properties=groups)
        source = deltalake.DeltaTable(tmp_path)
    else:
        source, load = iceberg_table(tmp_path, rows, is_empty=True)
        with source.transaction() as transaction:
            transaction.set_properties({"write.parquet.row-group-limit": "2"})
        source.append(rows)
    assert zb.dataset(source).upsert(pa.table({"id": [0], "s": ["bb"]}), on="id").num_updated == 1
    if kind == "delta":
        found = pl.scan_delta(str(tmp_path)).filter(pl.col("s") == "y").collect()["id"].to_list()
    else:
        found = load().scan("s = 'y'").to_arrow()["id"].to_pylist()
    assert found == [3]


def test_the_first_rows_of_an_iceberg_table_are_upserted(tmp_path):
    table, load = iceberg_table(tmp_path, pa.table({"id": [1], "x": ["a"]}), is_empty=True)
    ds = zb.dataset(table)
    assert not ds.erase("id", [1]).is_committed
    receipt = ds.upsert(pa.table({"id": [2, 3], "x": ["b", "c"]}), on="id")
    assert receipt.num_inserted == 2 and receipt.version_before == ""
    assert receipt.verification is not None and receipt.verification.is_proven
    ds.create_scalar_index("id", spark=False)
    assert ds.upsert(pa.table({"id": [3, 4], "x": ["d", "d"]}), on="id").num_updated == 1
    found = load().scan().to_arrow().sort_by("id").to_pylist()
    assert found == [{"id": 2, "x": "b"}, {"id": 3, "x": "d"}, {"id": 4, "x": "d"}]
