"""Test what upserts and erasures refuse, and that nothing on disk is another then."""

from __future__ import annotations

import datetime as dt
import errno
import json
import math
import re
import sys
import traceback
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.local import LocalFileSystem
from pyarrow.parquet.encryption import create_encryption_properties
from support.helpers import run_command

import zonebloom as zb
from zonebloom.errors import (
    ChangeRefused,
    ColumnNotFound,
    InvalidArgument,
    SourceError,
    UnsupportedType,
)

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("f", pa.float64()),
        pa.field("must", pa.string(), nullable=False),
        pa.field("day", pa.date32()),
        pa.field("price", pa.decimal128(9, 2)),
        pa.field("t", pa.timestamp("us")),
        pa.field("n", pa.struct({"a": pa.int32(), "l": pa.list_(pa.int8())})),
    ]
)
ROW = {
    "id": 1,
    "f": 1.0,
    "must": "x",
    "day": dt.date(2026, 1, 1),
    "price": Decimal("1.50"),
    "t": dt.datetime(2026, 1, 1),
    "n": {"a": 1, "l": [1]},
}


def listing(folder: Path) -> dict[str, tuple[int, int]]:
    """Return the files below a folder with their sizes and times."""
    return {
        str(path): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def lake(tmp_path):
    folder = tmp_path / "lake"
    folder.mkdir()
    rows = [{**ROW, "id": number, "f": float(number)} for number in range(10)]
    pq.write_table(pa.Table.from_pylist(rows, SCHEMA), folder / "0.parquet")
    return folder


def rows_with(**columns) -> pa.Table:
    """Return two rows for new keys, with other columns."""
    values = {name: [value, value] for name, value in ROW.items()} | {"id": [100, 101]}
    table = pa.table({name: pa.array(values[name], SCHEMA.field(name).type) for name in values})
    for name, column in columns.items():
        if column is None:
            table = table.drop_columns(name)
        elif name in table.column_names:
            table = table.set_column(table.column_names.index(name), name, column)
        else:
            table = table.append_column(name, column)
    return table


REFUSED_ROWS = {
    "null key": (rows_with(id=pa.array([7, None])), "id", "'id' is null or NaN in row 1;"),
    "NaN key": (
        rows_with(f=pa.array([math.nan, math.nan])),
        "f",
        "'f' is null or NaN in rows 0, 1;",
    ),
    "repeated key": (
        rows_with(id=pa.array([7, 7])),
        "id",
        "1 key occurs more than once in the rows, first {'id': 7} in rows 0 and 1;",
    ),
    "repeated zero": (rows_with(f=pa.array([0.0, -0.0])), "f", "in rows 0 and 1;"),
    "repeated pair": (
        rows_with(id=pa.array([7, 7])),
        ["id", "must"],
        "first {'id': 7, 'must': 'x'} in rows 0 and 1;",
    ),
    "text for a number": (
        rows_with(id=pa.array(["7", "8"])),
        "id",
        "have string in the column 'id'",
    ),
    "boolean for a number": (
        rows_with(id=pa.array([True, False])),
        "id",
        "have bool in the column 'id'",
    ),
    "number for a text": (
        rows_with(must=pa.array([7, 8])),
        "must",
        "have int64 in the column 'must'",
    ),
    "fraction": (rows_with(id=pa.array([7.0, 7.5])), "id", "row 1 of the rows has 7.5 in column"),
    "nested": (
        rows_with(
            n=pa.array(
                [{"a": 1, "l": [1]}, {"a": 1, "l": [1, 300]}],
                pa.struct({"a": pa.int64(), "l": pa.list_(pa.int64())}),
            )
        ),
        "id",
        "row 1 of the rows has",
    ),
    "decimal": (
        rows_with(price=pa.array([Decimal("1.500"), Decimal("1.505")])),
        "id",
        "row 1 of the rows has 1.505 in column 'price'",
    ),
    "nanoseconds": (
        rows_with(t=pa.array([1000, 1001], pa.timestamp("ns"))),
        "id",
        "row 1 of the rows has",
    ),
    "no field": (
        rows_with(n=pa.array([{"a": 1}, {"a": 2}])),
        "id",
        "rows have no field 'l' in the column 'n', whose values would be lost; add it",
    ),
    "a time zone": (
        rows_with(t=pa.array([1000, 1001], pa.timestamp("us", "UTC"))),
        "id",
        "rows have timestamp[us, tz=UTC] in the column 't', and the dataset has timestamp[us];",
    ),
    "text for date": (rows_with(day=pa.array(["2026-01-01", "soon"])), "id", "row 1 of the rows"),
    "unknown column": (
        rows_with(prise=pa.array([1, 2])),
        "id",
        "rows have a column 'prise', and the dataset has none; did you mean price?",
    ),
    "no key": (rows_with(id=None), "id", "rows have no column 'id', which is a key; add it"),
    "no value": (
        rows_with(must=None),
        "id",
        "rows have new keys, but lack the columns must, which take no nulls;",
    ),
    "null value": (
        rows_with(must=pa.array(["x", None])),
        "id",
        "column 'must' takes no nulls, but has one in row 1",
    ),
}


@pytest.mark.parametrize("case", REFUSED_ROWS)
@pytest.mark.parametrize("as_reader", [False, True])
def test_rows_that_do_not_fit_are_named(lake, case, as_reader):
    rows, on, message = REFUSED_ROWS[case]
    ds = zb.dataset(lake)
    before = listing(lake.parent)
    with pytest.raises(InvalidArgument, match=re.escape(message)):
        ds.upsert(rows.to_reader(max_chunksize=1) if as_reader else rows, on=on)
    assert listing(lake.parent) == before


def test_rows_that_fit_exactly_are_converted(lake):
    ds = zb.dataset(lake)
    rows = rows_with(
        id=pa.array([3.0, 100.0]),
        price=pa.array([Decimal("1.500"), None]),
        t=pa.array([1000, None], pa.timestamp("ns")),
        must=pa.array(["é", "x"]).dictionary_encode(),
        n=pa.array(
            [{"a": 5, "l": [None]}, None], pa.struct({"a": pa.int64(), "l": pa.list_(pa.int64())})
        ),
        f=pa.array([math.nan, None], pa.float32()),
    )
    receipt = ds.upsert(rows, on="id")
    assert (receipt.num_updated, receipt.num_inserted) == (1, 1)
    first, second = ds.lookup("id", [3, 100]).to_pylist()
    assert math.isnan(first.pop("f")) and second.pop("f") is None
    assert first["must"] == "é" and first["n"] == {"a": 5, "l": [None]}
    assert first["t"] == dt.datetime(1970, 1, 1, microsecond=1) and second["n"] is None


NO_UUID = "00000000-0000-0000-0000-00000000000x"
UUIDS = [UUID(int=1), UUID(int=2)]


@pytest.mark.parametrize(
    ("stored", "given", "values"),
    [
        (pa.array(["a", "b"]).dictionary_encode(), pa.array(["c", None], pa.string_view()), None),
        (pa.array(["a", "b"], pa.string_view()), pa.array(["c", None]), None),
        (
            pa.array([[{"s": "a"}], None]),
            pa.array([None, [{"s": "c"}]], pa.large_list(pa.struct({"s": pa.string_view()}))),
            None,
        ),
        (pa.array([1, 2], pa.decimal128(9, 2)), pa.array([7, -9_999_999]), None),
        (pa.array([1, 2], pa.decimal256(76, 55)), pa.array([2**63 - 1, -(2**63)]), None),
        (pa.array([1, 2], pa.decimal256(76, 60)), pa.array([2, None]), None),
        (pa.array(UUIDS), pa.array([str(UUID(int=3)).upper(), None]), [UUID(int=3), None]),
        (pa.array([{"a": 1}, None]), pa.nulls(2), None),
        (pa.array([{"a": 1}, None]), pa.nulls(2, pa.struct({})), None),
        (pa.array([[{"a": 1}], None]), pa.array([[], None], pa.list_(pa.struct({}))), None),
        (pa.array([0, 0], pa.timestamp("us", "UTC")), pa.nulls(2, pa.timestamp("us")), None),
        (
            pa.array([[("k", {"a": 1})]] * 2, pa.map_("str", pa.struct({"a": "i8"}))),
            pa.array([[("k", {"a": 2})], None], pa.map_("str", pa.struct({"a": "i4"}))),
            None,
        ),
        (pa.array(["a", "b"]).dictionary_encode(), pa.nulls(2), None),
        (pa.array([dt.date(2026, 1, 1)] * 2), pa.array(["2026-11-30", None]), None),
    ],
)
def test_rows_of_other_types_with_equal_values_are_taken(tmp_path, stored, given, values):
    pq.write_table(pa.table({"id": [1, 2], "x": stored}), tmp_path / "0.parquet")
    ds = zb.dataset(tmp_path)
    receipt = ds.upsert(pa.table({"id": [1, 2], "x": given}), on="id")
    assert receipt.num_updated == 2
    assert receipt.verification.is_proven  # pyright: ignore[reportOptionalMemberAccess]
    for found in (ds.to_table(), zb.dataset(tmp_path).to_table()):
        assert found.schema == ds.schema
        found_values = found["x"].to_pylist()
        if values is None and pa.types.is_date(stored.type):
            found_values = [None if day is None else str(day) for day in found_values]
        assert found_values == (given.to_pylist() if values is None else values)


@pytest.mark.parametrize(
    ("stored", "given"),
    [
        (pa.array([1], pa.decimal128(9, 2)), pa.array([10_000_000])),
        (pa.array(UUIDS[:1]), pa.array([NO_UUID])),
        (pa.array([0], pa.timestamp("us", "UTC")), pa.array([dt.datetime(2026, 7, 1)])),
        (pa.array([0], pa.timestamp("us", "UTC")), pa.array([dt.date(2026, 7, 1)])),
        (pa.array([[{"a": 1, "b": 2}]]), pa.array([[{"a": 1}]])),
        (
            pa.array([[({"a": 1, "b": 2}, 1)]], pa.map_(pa.struct({"a": "i4", "b": "i4"}), "i4")),
            pa.array([[({"a": 1}, 1)]], pa.map_(pa.struct({"a": "i4"}), "i4")),
        ),
        (
            pa.array([[(0, 1)]], pa.map_(pa.timestamp("us", "UTC"), "i4")),
            pa.array([[(0, 1)]], pa.map_(pa.timestamp("us"), "i4")),
        ),
        (pa.array(UUIDS[:1]), pa.array(["0x" + "0" * 30])),
        (pa.array(UUIDS[:1]), pa.array(["٣" * 32])),
        (
            pa.array(
                [[("k", {"a": 1, "b": 2})]], pa.map_("string", pa.struct({"a": "i4", "b": "i4"}))
            ),
            pa.array([[("k", {"a": 1})]], pa.map_("string", pa.struct({"a": "i4"}))),
        ),
    ],
)
def test_rows_that_would_be_taken_for_others_are_refused(tmp_path, stored, given):
    pq.write_table(pa.table({"id": [1], "x": stored}), tmp_path / "0.parquet")
    before = listing(tmp_path)
    ds = zb.dataset(tmp_path)
    with pytest.raises(InvalidArgument, match="column 'x"):
        ds.upsert(pa.table({"id": [1], "x": given}), on="id")
    assert listing(tmp_path) == before


def test_fields_matter_only_where_they_replace_others(tmp_path):
    pq.write_table(
        pa.table({"id": [1], "s": ["a"], "n": [{"a": 1, "b": 2}]}), tmp_path / "0.parquet"
    )
    ds = zb.dataset(tmp_path)
    rows = pa.table({"id": [1, 2], "s": ["x", "y"], "n": [{"a": 7}, {"a": 8}]})
    with pytest.raises(InvalidArgument, match="no field 'b'"):
        ds.upsert(rows, on="id")
    assert ds.upsert(rows, on="id", columns=["s"], when_not_matched="ignore").num_updated == 1
    assert ds.upsert(rows, on="id", when_matched="ignore").num_inserted == 1
    assert ds.to_table().sort_by("id").to_pylist() == [
        {"id": 1, "s": "x", "n": {"a": 1, "b": 2}},
        {"id": 2, "s": "y", "n": {"a": 8, "b": None}},
    ]


def test_csv_brings_uuids_and_no_other_bytes(tmp_path, capsys):
    plain = pa.array([UUIDS[0].bytes, UUIDS[1].bytes], pa.binary(16))
    large = pa.array([b"\0", b"x"], pa.large_binary())
    rows = pa.table({"u": pa.array(UUIDS), "p": plain, "b": large, "n": [1, 2]})
    lake = tmp_path / "lake"
    lake.mkdir()
    pq.write_table(rows, lake / "0.parquet")
    given = tmp_path / "rows.csv"

    def upsert(text: str, on: str) -> str:
        given.write_text(text)
        before = listing(lake)
        code = run_command("upsert", lake, given, "--on", on)
        assert (code == 0) == (listing(lake) != before)
        return capsys.readouterr().err

    assert upsert(f"u,p,n\n{UUIDS[0]},{UUIDS[1]},7\n{UUIDS[1]},,8\n", "u") == ""
    found = zb.dataset(lake).to_table(columns=["u", "p", "n"]).sort_by("n").to_pylist()
    assert found == [
        {"u": UUIDS[0], "p": UUIDS[1].bytes, "n": 7},
        {"u": UUIDS[1], "p": None, "n": 8},
    ]
    assert upsert(f"p,n\n{UUIDS[1]},9\n", "p") == ""
    assert zb.dataset(lake).to_table(filter="n = 9")["u"].to_pylist() == UUIDS[:1]
    assert "column 'p' holds bytes" in upsert(f"p,n\n{NO_UUID},9\n", "p")
    assert "row 0 of the rows has 0x00" in upsert(f"u,n\n0x{'0' * 30},9\n", "u")
    # As text, the command line shows bytes in base64.
    assert "column 'b' holds bytes, which CSV holds only as" in upsert("n,b\n8,AA==\n", "n")
    assert upsert("n,b\n8,\n", "n") == ""
    assert zb.dataset(lake).lookup("n", [8])["b"].to_pylist() == [None]
    for document in ('{"n": 7}\n', ' [\n{"n": 7}]\n'):
        assert "rows.csv looks like JSON" in upsert(document, "n")
    assert "rows have a column '[n]'" in upsert("[n]\n7\n", "n")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("id",), InvalidArgument),
        (("id", [1], "id = 1"), InvalidArgument),
        ((None, [1]), InvalidArgument),
        (("ix", [1]), ColumnNotFound),
        (("n", [1]), UnsupportedType),
        ((["id", "f"], pa.table({"id": [1]})), InvalidArgument),
    ],
)
def test_wrong_arguments_of_an_erasure_are_refused(lake, arguments, error):
    columns, keys, condition = [*arguments, None, None][:3]
    before = listing(lake.parent)
    with pytest.raises(error):
        zb.dataset(lake).erase(columns, keys, filter=condition)
    assert listing(lake.parent) == before


def test_frames_are_taken(lake):
    import pandas as pd
    import polars as pl

    ds = zb.dataset(lake)
    frame = pl.DataFrame({"id": [3, 4], "must": pl.Series(["a", "b"], dtype=pl.Categorical)})
    assert ds.upsert(frame, on="id").num_updated == 2
    rows = pd.DataFrame({"id": [4, 5], "must": ["b", "c"]})
    # A part of a frame has an index of its own.
    assert ds.upsert(rows[rows["id"] == 5], on="id").num_updated == 1
    assert ds.lookup("id", [3, 4, 5])["must"].to_pylist() == ["a", "b", "c"]


# Folders


def test_folders_that_cannot_be_changed_are_refused(lake, tmp_path):
    table = pq.read_table(lake / "0.parquet")
    arrow, sealed = tmp_path / "arrow", tmp_path / "sealed"
    arrow.mkdir()
    sealed.mkdir()
    pyarrow.feather.write_feather(table.select(["id"]), str(arrow / "0.arrow"), "uncompressed")
    key = bytes(range(16))
    properties = create_encryption_properties(footer_key=key)
    pq.write_table(table, sealed / "0.parquet", encryption_properties=properties)
    cases = [
        (zb.dataset(arrow, format="ipc"), "no folder of Parquet"),
        (zb.dataset(sealed, parquet_keys=zb.ParquetKeys(key)), "encrypted"),
        (zb.dataset(table), "memory"),
    ]
    before = listing(tmp_path)
    for ds, message in cases:
        for change in (
            lambda ds=ds: ds.erase("id", [1]),
            lambda ds=ds: ds.upsert(pa.table({"id": [1, 500]}), on="id"),
        ):
            with pytest.raises(ChangeRefused, match=message):
                change()
    assert listing(tmp_path) == before


@pytest.mark.parametrize(
    "names", ["p=a/0.parquet", "p=*/*.parquet", ["p=a/0.parquet", "p=b/0.parquet"], ["p=a", "p=b"]]
)
def test_rows_that_need_new_files_are_refused_where_these_would_not_be_found(tmp_path, names):
    rows = pa.table({"id": [1, 2, 3, 4], "p": ["a", "a", "b", "b"], "x": [1, 2, 3, 4]})
    pq.write_to_dataset(
        rows, tmp_path, partition_cols=["p"], basename_template="{i}.parquet", use_threads=False
    )
    paths = [str(tmp_path / name) for name in ([names] if isinstance(names, str) else names)]
    ds = zb.dataset(paths[0] if isinstance(names, str) else paths, partitioning="hive")
    is_partitioned = "p" in ds.schema.names
    rows = pa.table({"id": [1, 9], "p": ["b", "a"], "x": [7, 7]})
    rows = rows.select([name for name in rows.column_names if name in ds.schema.names])
    before = listing(tmp_path)
    for changed in (rows.slice(1), rows.slice(0, 1)) if is_partitioned else (rows.slice(1),):
        for plan in (True, False):
            with pytest.raises(ChangeRefused, match="open one folder"):
                ds.upsert(changed, on="id", plan=plan)
    assert listing(tmp_path) == before
    assert ds.upsert(rows.select(["id", "x"]), on="id", when_not_matched="ignore").num_updated == 1
    assert ds.erase("id", [2]).verification.is_proven  # pyright: ignore[reportOptionalMemberAccess]


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (PermissionError("denied"), "get the right to write"),
        (PermissionError(errno.EPERM, "denied"), "get the right to write"),
        (OSError(errno.EROFS, "read-only"), "get the right to write"),
        (OSError(errno.ENOSPC, "no space"), "make room there"),
    ],
)
def test_a_folder_that_must_not_be_written_is_named(lake, error, advice):
    class ReadOnly(LocalFileSystem):
        def _open(self, path, mode="rb", **options):
            if mode != "rb":
                raise error
            return super()._open(path, mode, **options)

        def rm(self, path, **options):
            raise PermissionError(errno.EACCES, "no right to delete", path)

    (lake / "1.parquet").write_bytes((lake / "0.parquet").read_bytes())
    before = listing(lake)
    ds = zb.dataset(str(lake), filesystem=ReadOnly())
    for change in (
        lambda: ds.upsert(rows_with(id=pa.array([1, 2])), on="id"),
        lambda: ds.upsert(rows_with(), on="id"),
        lambda: ds.erase("id", [1]),
    ):
        with pytest.raises(SourceError, match=advice):
            change()
    assert listing(lake) == before
    # Without work, nothing is written.
    assert ds.upsert(rows_with(), on="id", when_not_matched="ignore").num_updated == 0
    pq.write_table(pa.Table.from_pylist([{**ROW, "id": 50}], SCHEMA), lake / "2.parquet")
    with pytest.raises(SourceError, match="no right to delete"):
        ds.erase("id", [50])


def test_errors_do_not_speak_of_locks_that_the_system_lacks(lake, monkeypatch):
    monkeypatch.setitem(sys.modules, "fcntl", None)
    ds = zb.dataset(lake)
    assert ds.erase("id", [1]).num_deleted == 1
    with pytest.raises(ChangeRefused, match="no row") as refusal:
        ds.erase("id", range(10))
    assert "fcntl" not in "".join(traceback.format_exception(refusal.value))


PART = pa.schema({"p": pa.string()})
PARTITIONINGS = {
    "names": ("{}/0.parquet", ["p"]),
    "directory": ("{}/0.parquet", pads.DirectoryPartitioning(PART)),
    "filename": ("{}_0.parquet", pads.FilenamePartitioning(PART)),
    "encoding": ("p={}/0.parquet", pads.HivePartitioning(PART, segment_encoding="none")),
    "null": ("p={}/0.parquet", pads.HivePartitioning(PART, null_fallback="none")),
    "inferred": ("p={}/0.parquet", pads.HivePartitioning.discover(null_fallback="none")),
    "dictionary": (
        "p={}/0.parquet",
        pads.HivePartitioning(
            pa.schema({"p": pa.dictionary(pa.int32(), pa.string())}),
            {"p": pa.array(["a", "b"])},
        ),
    ),
    "hive": ("p={}/0.parquet", pads.HivePartitioning(PART)),
}


@pytest.mark.parametrize("case", PARTITIONINGS)
def test_rows_that_need_new_files_are_refused_unless_these_have_hive_paths(tmp_path, case):
    name, partitioning = PARTITIONINGS[case]
    for value, ids in (("a", [1, 2]), ("b", [3])):
        path = tmp_path / name.format(value)
        path.parent.mkdir(exist_ok=True)
        pq.write_table(pa.table({"id": ids, "x": ids}), path)
    ds = zb.dataset(tmp_path, partitioning=partitioning)
    new, moved = ({"id": row_id, "p": "b c", "x": 7} for row_id in (9, 1))
    before = ds.to_table(columns=["id", "p", "x"]).to_pylist()
    if case != "hive":
        files = listing(tmp_path)
        for row in (new, moved):
            for plan in (True, False):
                with pytest.raises(ChangeRefused, match="not that of Hive"):
                    ds.upsert(pa.Table.from_pylist([row]), on="id", plan=plan)
        assert listing(tmp_path) == files
        new, moved = {"id": 1, "x": 7}, {"id": 3, "p": "b", "x": 7}
    ds.upsert(pa.Table.from_pylist([new]), on="id")
    ds.upsert(pa.Table.from_pylist([moved]), on="id")
    rows = {row["id"]: row for row in before}
    for row in (new, moved):
        rows[row["id"]] = {**rows.get(row["id"], {}), **row}
    found = zb.dataset(tmp_path, partitioning=partitioning).to_table(columns=["id", "p", "x"])
    assert sorted(found.to_pylist(), key=repr) == sorted(rows.values(), key=repr)


@pytest.mark.parametrize("spelling", ["Köln", "K%C3%B6ln"])
def test_new_rows_get_files_in_the_folders_of_their_partitions(tmp_path, spelling):
    folder = tmp_path / f"city={spelling}"
    folder.mkdir()
    pq.write_table(pa.table({"id": [1]}), folder / "0.parquet")
    ds = zb.dataset(tmp_path)
    odd = "".join(map(chr, range(1, 128)))
    rows = pa.table({"id": [2, 3, 4], "city": ["Köln", "Süd West", odd]})
    receipt = ds.upsert(rows, on="id")
    assert receipt.num_inserted == 3
    assert receipt.verification.is_proven  # pyright: ignore[reportOptionalMemberAccess]
    # Spark reads each %XX as a character, so it writes only such characters in this way. Windows
    # forbids three more.
    escaped = [*map(chr, range(1, 32)), *"\"#%'*/:=?\\{[]^\x7f", *"<>|"]
    odd_name = "".join(f"%{ord(c):02X}" if c in escaped else c for c in odd)
    assert {path.name for path in tmp_path.iterdir()} == {
        folder.name,
        "city=Süd West",
        f"city={odd_name}",
    }
    assert len(list(folder.iterdir())) == 2
    hive = pads.dataset(tmp_path, partitioning="hive").to_table().sort_by("id")
    assert hive["city"].to_pylist() == ["Köln", *rows["city"].to_pylist()]


def test_rows_move_to_partitions_that_are_links_or_have_folders(tmp_path):
    lake, target = tmp_path / "lake", tmp_path / "target"
    for number, folder in enumerate((lake / "p=a" / "r=1", target, lake / "p=0.0", lake / "p=c")):
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"id": [number]}), folder / "0.parquet")
    (lake / "p=b").symlink_to(target, target_is_directory=True)
    partitioning = pads.HivePartitioning(pa.schema({"p": "str"}))
    ds = zb.dataset(lake, partitioning=partitioning)
    rows = pa.table({"id": [3, 8, 9], "p": ["b", "a", "-0.0"]})
    receipt = ds.upsert(rows, on="id")
    assert (receipt.num_updated, receipt.num_inserted) == (1, 2)
    assert receipt.verification.is_proven  # pyright: ignore[reportOptionalMemberAccess]
    expected = ["a", "b", "0.0", "b", "a", "-0.0"]
    found = zb.dataset(lake, partitioning=partitioning).to_table().sort_by("id")
    assert found["p"].to_pylist() == expected
    # The folder r=1 has a meaning for readers that know of it.
    assert len(list((lake / "p=a").glob("*.parquet"))) == 1
    assert len(list(target.iterdir())) == 2


@pytest.mark.parametrize("values", [["a/b", "=", "%25", "é ", None], [1, 20, None], ["1", "x"]])
def test_hive_partitions_with_odd_values_keep_them(tmp_path, values):
    folder = tmp_path / "lake"
    rows = pa.table({"id": list(range(len(values))), "part": values, "x": ["old"] * len(values)})
    pq.write_to_dataset(rows, folder, partition_cols=["part"])
    ds = zb.dataset(folder)
    moved = pa.table(
        {
            "id": [*range(len(values)), 100],
            "part": pa.array([*values[1:], values[0], values[0]], ds.schema.field("part").type),
            "x": ["new"] * (len(values) + 1),
        }
    )
    receipt = ds.upsert(moved, on="id")
    assert (receipt.num_updated, receipt.num_inserted) == (len(values), 1)
    assert receipt.verification.is_proven  # pyright: ignore[reportOptionalMemberAccess]
    for read in (ds, zb.dataset(folder)):
        found = read.to_table(columns=["id", "part", "x"]).sort_by("id")
        assert found.to_pylist() == moved.to_pylist()


# Delta

FIELDS = [
    {"name": name, "type": kind, "nullable": True, "metadata": {}}
    for name, kind in (("id", "long"), ("s", "string"))
]
GENERATED = {**FIELDS[1], "metadata": {"delta.generationExpression": "'x'"}}
IDENTITY = {**FIELDS[0], "metadata": {"delta.identity.start": 1}}
REFUSED_DELTA = {
    "appendOnly": ({"delta.appendOnly": "true"}, FIELDS, ["appendOnly"], "appendOnly"),
    "feed": ({"delta.enableChangeDataFeed": "true"}, FIELDS, ["changeDataFeed"], "change data"),
    "check": ({"delta.constraints.c": "id > 0"}, FIELDS, ["checkConstraints"], "constraints.c"),
    "generated": ({}, [FIELDS[0], GENERATED], ["generatedColumns"], "'s' that is generated"),
    "identity": ({}, [IDENTITY, FIELDS[1]], ["identityColumns"], "'id' that is an identity"),
    "identity feature": ({}, FIELDS, ["identityColumns"], "needs identitycolumns"),
    "tracking": ({"delta.enableRowTracking": "true"}, FIELDS, ["rowTracking"], "rowtracking"),
    "domains": ({}, FIELDS, ["domainMetadata"], "needs domainmetadata"),
    "clusters": ({}, FIELDS, ["clustering", "domainMetadata"], "needs clustering, domainmetadata"),
    "checkpoints": ({}, FIELDS, ["checkpointProtection"], "needs checkpointprotection"),
    "unknown": ({}, FIELDS, ["somethingNew"], "somethingnew"),
}


@pytest.mark.parametrize("case", REFUSED_DELTA)
def test_delta_tables_that_need_more_than_files_are_refused(tmp_path, case):
    deltalake = pytest.importorskip("deltalake")
    from support.delta_by_hand import add, commit, metadata

    configuration, fields, features, message = REFUSED_DELTA[case]
    path = tmp_path / "table"
    path.mkdir()
    pq.write_table(pa.table({"id": [1, 2], "s": ["x", "y"]}), path / "0.parquet")
    protocol = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": features}
    action = add(path / "0.parquet", "0.parquet", stats=json.dumps({"numRecords": 2}))
    commit(path, {"protocol": protocol}, metadata(fields, **configuration), action)
    ds = zb.dataset(deltalake.DeltaTable(path))
    assert ds.count_rows() == 2
    before = listing(tmp_path)
    with pytest.raises(ChangeRefused, match=re.escape(message)):
        ds.erase("id", [1])
    for plan in (True, False):
        with pytest.raises(ChangeRefused, match=re.escape(message)):
            ds.upsert(pa.table({"id": [1, 3], "s": ["z", "z"]}), on="id", plan=plan)
    assert listing(tmp_path) == before


def test_touched_deletion_vectors_of_delta_are_refused(tmp_path):
    deltalake = pytest.importorskip("deltalake")
    from support.delta_by_hand import add, commit, deletion_vector, metadata, protocol

    path = tmp_path / "vectors"
    path.mkdir()
    actions = []
    for name, ids in (("0.parquet", [1, 2]), ("1.parquet", [3, 4])):
        pq.write_table(pa.table({"id": ids, "s": ["x", "y"]}), path / name)
        actions.append(add(path / name, name, stats=json.dumps({"numRecords": 2})))
    actions[0]["add"]["deletionVector"] = deletion_vector([0])
    commit(path, protocol("deletionVectors"), metadata(FIELDS), *actions)
    before = listing(tmp_path)
    ds = zb.dataset(deltalake.DeltaTable(path))
    with pytest.raises(ChangeRefused, match="has a deletion vector"):
        ds.erase("id", [2])
    assert listing(tmp_path) == before
    assert not ds.erase("id", [1]).is_committed
    assert ds.erase("id", [3]).num_deleted == 1
    assert sorted(ds.to_table()["id"].to_pylist()) == [2, 4]


def test_empty_texts_in_partition_columns_of_delta_are_refused(tmp_path):
    deltalake = pytest.importorskip("deltalake")

    path = str(tmp_path / "table")
    rows = pa.table({"id": [1, 2, 3], "p": ["a", "b", ""]})
    deltalake.write_deltalake(path, rows, partition_by=["p"])
    ds = zb.dataset(deltalake.DeltaTable(path))
    before = listing(tmp_path)
    for row_id in (1, 9):
        with pytest.raises(InvalidArgument, match="give a null"):
            ds.upsert(pa.table({"id": [row_id], "p": [""]}), on="id")
    assert listing(tmp_path) == before
    assert ds.erase("id", [3]).num_deleted == 1


# Iceberg


def test_iceberg_tables_of_format_3_and_other_files_are_refused(tmp_path):
    from pyiceberg.catalog.sql import SqlCatalog

    uri = f"sqlite:///{tmp_path}/c.db"
    catalog = SqlCatalog("c", uri=uri, warehouse=tmp_path.as_uri())
    catalog.create_namespace("n")
    rows = pa.table({"id": [1, 2]})
    table = catalog.create_table("n.avro", rows.schema)
    table.append(rows)
    with table.transaction() as transaction:
        transaction.set_properties({"write.format.default": "avro"})
    before = listing(tmp_path)
    with pytest.raises(ChangeRefused, match="avro"):
        zb.dataset(table).erase("id", [1])
    assert listing(tmp_path) == before
    plain = catalog.create_table("n.plain", rows.schema)
    plain.append(rows)
    path = Path(plain.metadata_location.removeprefix("file://"))
    content = json.loads(path.read_text()) | {"format-version": 3, "next-row-id": 2}
    path.write_text(json.dumps(content))
    before = listing(tmp_path)
    with pytest.raises(ChangeRefused, match="format 3"):
        zb.dataset(catalog.load_table("n.plain")).erase("id", [1])
    assert listing(tmp_path) == before
