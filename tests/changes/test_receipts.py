"""Test receipts: what they keep, what they find again later, and what a purge leaves."""

from __future__ import annotations

import json
import random
import threading
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.changed_tables import KINDS, ChangedTable
from support.seams import replace_function
from support.snapshot_rows import in_order

import zonebloom as zb
from zonebloom.errors import ChangeConflict, ChangeRefused, InvalidArgument, StaleIndexWarning
from zonebloom.results import Traces

# Distinct parts, so that no page of one key compresses to a copy of another.
SECRETS = ["Quentin-Zweig-71", "Ottilie-Kvapil-04"]


def people(table: ChangedTable, count: int) -> list[dict]:
    """Return rows, some of which hold the keys that are erased."""
    rows = table.new_rows(count)
    for number, row in enumerate(rows):
        row["s"] = SECRETS[number] if number < len(SECRETS) else f"person-{row['id']}"
    return rows


@pytest.fixture(params=list(KINDS))
def table(request, tmp_path):
    rng = random.Random(request.param)
    (tmp_path / "lake").mkdir(exist_ok=True)
    table = KINDS[request.param](rng, tmp_path, is_partitioned=True)
    for _ in range(3):
        table.append(people(table, 60))
    return table


def open_indexed(table: ChangedTable) -> zb.Dataset:
    ds = zb.dataset(table.load(), **table.options)
    ds.create_scalar_index("s", "BLOOMFILTER", number_of_items=8, spark=False)
    ds.create_scalar_index("id", "HASH", spark=False)
    return ds


def files_with(folder: Path, texts: list[str]) -> list[str]:
    """Return the files that hold one of the texts, as their bytes say."""
    return [
        str(path)
        for path in folder.rglob("*")
        if path.is_file() and any(text.encode() in path.read_bytes() for text in texts)
    ]


@pytest.mark.slow
def test_a_purged_erasure_leaves_no_byte_of_the_keys(table, tmp_path):
    ds = open_indexed(table)
    assert files_with(tmp_path, SECRETS)
    receipt = ds.erase("s", SECRETS)
    table.rows = [row for row in table.rows if row["s"] not in SECRETS]
    assert receipt.num_deleted == 6 and receipt.verification.is_proven  # pyright: ignore[reportOptionalMemberAccess]
    assert receipt.traces is not None and not receipt.traces.is_searched
    path = tmp_path / "receipt.json"
    receipt.save(path)
    loaded = zb.Receipt.load(path)
    assert loaded == receipt
    text = path.read_text()
    assert not any(secret in text for secret in SECRETS)
    assert set(json.loads(text)) >= {"format", "operation", "keys", "verification", "traces"}
    with pytest.raises(InvalidArgument, match="give the same keys"):
        loaded.check(ds, SECRETS[:1])
    with pytest.raises(InvalidArgument, match="new file"):
        receipt.save(path)
    # Another process looks weeks later.
    table.append(table.new_rows(10))
    later = zb.dataset(table.load(), **table.options)
    kept_before = loaded.check(later)
    with_keys = loaded.check(later, SECRETS[::-1])
    assert with_keys.is_searched
    if receipt.table != "folder":
        older = [trace for trace in kept_before.found if trace.kind == "file"]
        assert {trace.path for trace in older} == {file.path for file in receipt.files_removed}
        assert all(trace.versions for trace in older) and kept_before.calls
        assert {trace.path for trace in older} <= {trace.path for trace in with_keys.found}
    purged = loaded.check(later, SECRETS, purge=True)
    assert not purged.found and purged.is_searched, str(purged)
    assert str(purged) == "Nothing holds these keys."
    path.unlink()
    assert files_with(tmp_path, SECRETS) == []
    for read in (later, zb.dataset(table.load(), **table.options)):
        assert in_order(read.to_table()) == in_order(table.rows)
        assert read.count_rows("id = 2") == sum(row["id"] == 2 for row in table.rows)
    assert in_order(table.read()) == in_order(table.rows)


@pytest.mark.parametrize(("kind", "is_global"), [("BLOOMFILTER", True), ("HASH", False)])
def test_filters_of_files_that_no_version_names_are_found(tmp_path, kind, is_global):
    """A refresh leaves the zones of a file that is gone where they are."""
    for number in range(6):
        ids = pa.table({"id": range(number * 100, number * 100 + 100)})
        pq.write_table(ids, tmp_path / f"{number}.parquet")
    ds = zb.dataset(tmp_path, index_dir=str(tmp_path / "_index"))
    ds.create_scalar_index("id", kind, global_filter=is_global, spark=False)
    receipt = ds.erase("id", [250])
    ds.vacuum(timedelta(0))
    assert {trace.kind for trace in receipt.check(ds).found} == {"index"}
    assert len(receipt.check(ds).found) == 1 + is_global
    ds.create_scalar_index("id", kind, global_filter=is_global, replace=True, spark=False)
    ds.vacuum(timedelta(0))
    assert not receipt.check(ds).found


@pytest.mark.slow
def test_keys_that_come_back_are_found(table):
    ds = open_indexed(table)
    receipt = ds.erase("s", SECRETS)
    assert not [trace for trace in receipt.check(ds, SECRETS).found if "again" in trace.reason]
    back = people(table, 3)
    table.append(back)
    found = receipt.check(zb.dataset(table.load(), **table.options), SECRETS).found
    assert any(trace.kind == "file" and "erase again" in trace.reason for trace in found)


@pytest.mark.slow
def test_an_index_that_another_program_dropped_is_not_purged(table):
    ds = open_indexed(table)
    receipt = ds.erase("id", [3])
    zb.dataset(table.load(), **table.options).drop_index("id_idx")
    receipt.check(ds, [3], purge=True)
    assert [index.name for index in ds.describe_indices()] == ["s_idx"]


@pytest.mark.slow
def test_a_receipt_reads_as_text_and_html(table):
    ds = open_indexed(table)
    plan = ds.erase("s", SECRETS, plan=True)
    assert "nothing was changed" in str(plan)
    receipt = ds.erase("s", SECRETS)
    html = receipt._repr_html_()
    for part in ("6", "proven", receipt.table, receipt.location):
        assert part in str(receipt) and part in html
    assert receipt.traces is not None
    assert html.count("<tr>") == len(receipt.traces.found) + 1
    assert not any(secret in str(receipt) + html for secret in SECRETS)
    assert receipt.verification is not None
    unproven = replace(receipt.verification, is_proven=False, problem="a row is gone")
    assert "NOT PROVEN: a row is gone" in str(replace(receipt, verification=unproven))
    other = replace(receipt, location="/elsewhere")
    with pytest.raises(InvalidArgument, match="open the table of the receipt"):
        other.check(ds)


@pytest.mark.slow
def test_versions_that_cannot_be_read_are_named(table):
    if isinstance(table, KINDS["folder"]):
        return
    if isinstance(table, KINDS["delta"]):
        table.load().create_checkpoint()
        path, version = Path(table.path) / "_delta_log" / f"{0:020}.json", "0"
        path.write_text("{broken")
    else:
        [first, *_] = table.load().snapshots()
        path, version = Path(first.manifest_list.removeprefix("file://")), str(first.snapshot_id)
        path.unlink()
    ds = zb.dataset(table.load())
    receipt = ds.erase("id", [1])
    assert receipt.is_committed and receipt.num_deleted == 1
    for traces in (receipt.traces, receipt.check(ds), receipt.check(ds, [1])):
        assert traces is not None
        [trace] = [trace for trace in traces.found if trace.path == str(path)]
        assert trace.versions == (version,) and "cannot be read" in trace.reason
    assert not receipt.check(ds, [1], purge=True)
    table.rows = [row for row in table.rows if row["id"] != 1]
    assert in_order(table.read()) == in_order(table.rows)


@pytest.mark.parametrize(
    "content", ["", "{}", "[]", '{"format": 99}', '{"format": 1, "zonebloom": "1", "keys": {}}']
)
def test_a_file_that_is_no_receipt_is_refused(tmp_path, content):
    path = tmp_path / "r.json"
    path.write_text(content)
    with pytest.raises(InvalidArgument, match="no receipt"):
        zb.Receipt.load(path)


@pytest.mark.slow
@pytest.mark.filterwarnings(f"ignore::{StaleIndexWarning.__module__}.StaleIndexWarning")
def test_two_upserts_of_the_same_keys_at_once_insert_each_once(table):
    open_indexed(table)
    rows = table.new_rows(40)
    batch = table.table(rows)
    errors: list[BaseException] = []

    def upsert(number: int) -> None:
        try:
            ds = zb.dataset(table.load(), **table.options)
            given = [batch, pl.from_arrow(batch), batch.to_reader()][number]
            ds.upsert(given, on="id")
        except BaseException as error:  # noqa: BLE001 - it is shown below
            errors.append(error)

    threads = [threading.Thread(target=upsert, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    table.rows += rows
    assert in_order(table.read()) == in_order(table.rows)
    ds = zb.dataset(table.load(), **table.options)
    ids = [row["id"] for row in rows]
    assert sorted(ds.lookup("id", ids)["id"].to_pylist()) == ids


def test_an_erasure_of_whole_files_is_repeated_after_a_conflict(table, monkeypatch):
    erased = {row["id"] for row in table.rows[-60:]}
    again = [table.row(row_id) for row_id in list(erased)[:5]]
    others = [[*again, *table.new_rows(3)]]
    ds = zb.dataset(table.load(), **table.options)
    # The rows were located, and threads open their files to write the other rows anew.
    for open_file in (pq.read_metadata, pq.ParquetFile):

        def open_after_others(*arguments, open_file=open_file, **options):
            with suppress(IndexError):
                table.append(others.pop())
            return open_file(*arguments, **options)

        replace_function(monkeypatch, pq, open_file.__name__, open_after_others)
    receipt = ds.erase("id", list(erased))
    assert (receipt.tries, receipt.num_deleted, receipt.is_committed) == (2, 65, True)
    table.rows = [row for row in table.rows if row["id"] not in erased]
    assert in_order(table.read()) == in_order(table.rows)


def test_commit_properties_are_written(table):
    if isinstance(table, KINDS["folder"]):
        return
    ds = zb.dataset(table.load(), **table.options)
    receipt = ds.erase("id", [1], commit_properties={"ticket": "4711"})
    if receipt.table == "delta":
        text = json.dumps(table.load().history(1))
    else:
        text = str(table.load().current_snapshot().summary.additional_properties)
    assert "ticket" in text and "4711" in text and "erase" in text
    with pytest.raises(InvalidArgument):
        ds.erase("id", [2], commit_properties={"ticket": 4711})  # pyright: ignore[reportArgumentType]


def test_a_batch_without_rows_changes_nothing(table):
    ds = zb.dataset(table.load(), **table.options)
    assert not ds.upsert(table.table([]), on="id").is_committed
    assert not ds.erase("id", pa.array([], pa.int64())).is_committed
    assert not ds.erase("id", [-1]).is_committed
    with pytest.raises(InvalidArgument, match=r'in row 1; .* erase\(filter="id IS NULL"\)'):
        ds.erase("id", [-1, None])
    assert in_order(table.read()) == in_order(table.rows)


def test_all_rows_can_be_erased_but_not_the_last_file_of_a_folder(table):
    ds = zb.dataset(table.load(), **table.options)
    if isinstance(table, KINDS["folder"]):
        with pytest.raises(ChangeRefused, match="delete the folder instead"):
            ds.erase(filter="id >= 0")
    else:
        receipt = ds.erase(filter="id >= 0")
        assert receipt.num_deleted == 180 and receipt.verification.is_proven  # pyright: ignore[reportOptionalMemberAccess]
        assert ds.count_rows() == 0
        table.rows = table.new_rows(3)
        assert ds.upsert(table.table(table.rows), on="id").num_inserted == 3
    assert in_order(ds.to_table()) == in_order(table.read()) == in_order(table.rows)


@pytest.mark.slow
@pytest.mark.parametrize("num_conflicts", [1, 9])
def test_a_purge_of_iceberg_is_tried_again_after_conflicts(tmp_path, monkeypatch, num_conflicts):
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.exceptions import CommitFailedException
    from pyiceberg.table.update import RemoveSnapshotsUpdate

    table = KINDS["iceberg"](random.Random(0), tmp_path, is_partitioned=False)
    table.append(people(table, 20))
    ds = zb.dataset(table.load())
    receipt = ds.erase("s", SECRETS)
    commit, conflicts = SqlCatalog.commit_table, []

    def commit_after_others(self, table_of_purge, requirements, updates):
        is_expiry = any(isinstance(update, RemoveSnapshotsUpdate) for update in updates)
        if is_expiry and len(conflicts) < num_conflicts:
            conflicts.append(True)
            raise CommitFailedException("another process has updated the table")
        return commit(self, table_of_purge, requirements, updates)

    replace_function(monkeypatch, SqlCatalog, "commit_table", commit_after_others)
    if num_conflicts > 5:
        with pytest.raises(ChangeConflict, match="call again"):
            receipt.check(ds, SECRETS, purge=True)
        conflicts += [True] * num_conflicts
    assert not receipt.check(ds, SECRETS, purge=True)
    assert conflicts and len(table.load().snapshots()) == 1
    assert table.load().scan().to_arrow().num_rows == 18


@pytest.mark.slow
@pytest.mark.filterwarnings(f"ignore::{StaleIndexWarning.__module__}.StaleIndexWarning")
def test_the_filter_of_an_erasure_is_checked(table):
    ds = open_indexed(table)
    other = zb.dataset(table.load(), **table.options)
    condition = f"s IN ('{SECRETS[0]}', '{SECRETS[1]}') AND id >= 0"
    receipt = ds.erase(filter=condition)
    assert receipt.num_deleted == 6 and receipt.columns == () and "a filter" in str(receipt)
    with pytest.raises(InvalidArgument, match="the receipt is of a filter; give a filter"):
        receipt.check(ds, SECRETS)
    with pytest.raises(InvalidArgument, match="not the filter of the receipt"):
        receipt.check(ds, filter="id >= 0")
    by_keys = ds.erase("id", [10])
    with pytest.raises(InvalidArgument, match="the receipt is of keys; give keys"):
        by_keys.check(ds, filter=condition)
    found = receipt.check(other, filter=condition)
    files = {trace.path for trace in found.found if trace.kind == "file"}
    if receipt.table != "folder":
        assert files == {file.path for file in receipt.files_removed}
    assert "give the keys or the filter" in Traces(()).verdict
    assert "Other files were not searched" in str(receipt.traces)
    table.append(people(table, 3))
    again = receipt.check(other, filter=condition)
    assert any("erase again" in trace.reason for trace in again.found)
    other.erase(filter=condition)
    purged = receipt.check(other, filter=condition, purge=True)
    assert purged.is_searched and not purged, str(purged)


@pytest.mark.parametrize("erased", [("n.a", [7], None), (None, None, "n.a = 7")])
def test_fields_in_older_files_of_mapped_tables_may_hold_a_key(tmp_path, erased):
    table = KINDS["mapped delta"](random.Random(1), tmp_path, is_partitioned=False)
    rows = [{**row, "n": {"a": number, "l": None}} for number, row in enumerate(table.new_rows(20))]
    table.append(rows)
    ds = zb.dataset(table.load())
    columns, keys, filter = erased
    receipt = ds.erase(columns, keys, filter=filter)
    assert receipt.num_deleted == 1
    for found in (receipt.check(ds), receipt.check(ds, keys, filter=filter)):
        files = {trace.path for trace in found.found if trace.kind == "file"}
        assert files == {file.path for file in receipt.files_removed}
    assert not receipt.check(ds, keys, filter=filter, purge=True)
    assert in_order(table.read()) == in_order([row for row in rows if row["n"]["a"] != 7])


@pytest.mark.parametrize("codec", ["gzip", "zstd"])
def test_compressed_manifests_that_no_snapshot_names_are_searched(tmp_path, codec):
    table = KINDS["iceberg"](random.Random(1), tmp_path, is_partitioned=False)
    with table.load().transaction() as transaction:
        transaction.set_properties({"write.avro.compression-codec": codec})
    table.append(people(table, 1))
    table.append(table.new_rows(10))
    metadata = next(tmp_path.rglob("metadata"))
    copies = [(path, path.read_bytes()) for path in metadata.glob("*.avro")]
    ds = zb.dataset(table.load())
    receipt = ds.erase("s", SECRETS[:1])
    assert not receipt.check(ds, SECRETS[:1], purge=True)
    for path, content in copies:
        path.with_name(f"copy-{path.name}").write_bytes(content)
    found = receipt.check(ds, SECRETS[:1]).found
    assert found and all(trace.reason == "it has bytes of a key" for trace in found)
    for trace in found:
        Path(trace.path).unlink()
    (metadata / "x.avro").write_bytes(b"Obj")
    [trace] = receipt.check(ds, SECRETS[:1]).found
    assert "cannot be searched" in trace.reason


def test_old_sidecars_of_checkpoints_are_searched(tmp_path):
    table = KINDS["delta"](random.Random(1), tmp_path, is_partitioned=False)
    table.append(people(table, 1))
    table.append(table.new_rows(10))
    ds = zb.dataset(table.load())
    receipt = ds.erase("s", SECRETS[:1])
    assert not receipt.check(ds, SECRETS[:1], purge=True)
    add = pa.StructArray.from_arrays([pa.array(["x", f'{{"s": "{SECRETS[0]}"}}'])], ["stats"])
    log = next(tmp_path.rglob("_delta_log"))
    (log / "_sidecars").mkdir()
    pq.write_table(pa.table({"add": add}), log / "_sidecars" / "a.parquet", compression="zstd")
    [trace] = receipt.check(ds, SECRETS[:1]).found
    assert trace.kind == "log" and trace.path.endswith("_sidecars/a.parquet")
