"""Arrow IPC fragments: some rows of some record batches."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.fs as pafs
import pytest
from e2e_helpers import assert_equals_pyarrow, build, touch_later

import zonebloom as zb
from zonebloom import errors
from zonebloom.ranges import RowRanges
from zonebloom.storage.files import FileIdentity, ReadCounter, identities
from zonebloom.storage.ipc import IpcRows

LOCAL = pafs.LocalFileSystem()
BATCHES, ROWS = 6, 100
ID = pc.field("id")


def table(first: int, rows: int) -> pa.Table:
    at = range(first, first + rows)
    words = pa.DictionaryArray.from_arrays(
        pa.array([i % 2 for i in at], pa.int8()), pa.array(["even", "odd"])
    )
    return pa.table(
        {
            "id": pa.array(at, pa.int64()),
            "text": pa.array([None if i % 7 == 0 else f"text {i}" for i in at], pa.string()),
            "word": words,
            "list": pa.array([[i, i] for i in at], pa.list_(pa.int32())),
            "st": pa.array([{"a": i} if i % 5 else None for i in at], pa.struct({"a": "int64"})),
        }
    )


def write(path: Path, first: int, compression: str | None) -> Path:
    """Six batches of 100 rows, the third without any."""
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_file(str(path), table(0, 0).schema, options=options) as writer:
        for number in range(BATCHES):
            rows = table(first + number * ROWS, 0 if number == 2 else ROWS)
            columns = [column.combine_chunks() for column in rows.columns]
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=rows.schema))
    return path


def opened(
    path: Path, counter: ReadCounter | None = None, filesystem: pafs.FileSystem = LOCAL
) -> IpcRows:
    (identity,) = identities(filesystem, [str(path)])
    assert identity is not None
    schema = table(0, 0).schema
    return IpcRows(filesystem, str(path), identity, schema, {}, counter or ReadCounter())


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
@pytest.mark.parametrize("columns", [None, ["text", "list"], [], {"a": pc.field("st", "a")}])
def test_rows_are_pyarrows(tmp_path: Path, compression: str | None, columns: object) -> None:
    for number in range(3):
        write(tmp_path / f"{number}.arrow", number * 1000, compression)
    ds = zb.dataset(tmp_path, format="ipc")
    source = pads.dataset(tmp_path, format="ipc")
    build(ds, "id", number_of_items=30)
    build(ds, "st.a", number_of_items=30)
    for expression in (
        ID == 1305,
        ID.isin([1, 99, 301, 2000, 2599]),
        ID.isin(list(range(1000, 1100, 3))),
        (ID == 1305) & (pc.field("word") == "odd"),
        pc.field("st", "a") == 1306,
        pc.field("st", "a").is_null(),
    ):
        assert_equals_pyarrow(ds, source, expression, expression, columns)


def test_types_and_columns_that_differ_between_files(tmp_path: Path) -> None:
    tables = [
        pa.table({"id": pa.array(range(500), pa.int32())}),
        pa.table({"y": ["a"] * 500, "id": pa.array(range(500, 1000), pa.int64())}),
    ]
    for number, each in enumerate(tables):
        with pa.ipc.new_file(str(tmp_path / f"{number}.arrow"), each.schema) as writer:
            writer.write_table(each, 100)
    schema = pa.schema({"id": pa.int64(), "y": pa.string()})
    source = pads.dataset(tmp_path, format="ipc", schema=schema)
    ds = zb.dataset(source)
    build(ds, "id", number_of_items=50)
    for expression in (ID == 5, ID == 505, (ID == 5) & pc.field("y").is_null()):
        assert assert_equals_pyarrow(ds, source, expression, expression).num_rows == 1


def test_batches_after_the_last_row_are_not_touched(tmp_path: Path) -> None:
    path = write(tmp_path / "a.arrow", 0, "zstd")
    # Not the local file system, which maps: what is read is counted.
    remote = pafs.SubTreeFileSystem(str(tmp_path), LOCAL)
    counts = []
    for last in (0, 499):
        counter = ReadCounter()
        rows = opened(Path(path.name), counter, remote)
        assert [number for number, *_ in rows.row_groups(RowRanges([(last, last + 1)]))] == [
            0 if last == 0 else BATCHES - 1
        ]
        rows.close()
        counts.append(counter.num_bytes)
    assert counts[0] < counts[1]


def test_a_file_replaced_meanwhile_is_noticed(tmp_path: Path) -> None:
    path = write(tmp_path / "a.arrow", 0, None)
    (identity,) = identities(LOCAL, [str(path)])
    assert identity is not None
    touch_later(path)
    with pytest.raises(errors.FragmentChanged):
        IpcRows(LOCAL, str(path), identity, table(0, 0).schema, {}, ReadCounter())


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    path.write_bytes(b"ARROW1\0\0 not really")
    identity = FileIdentity(path.stat().st_size, path.stat().st_mtime_ns)
    with pytest.raises(errors.FragmentUnreadable, match=r"a\.arrow.*repair or remove"):
        IpcRows(LOCAL, str(path), identity, table(0, 0).schema, {}, ReadCounter())


def test_lying_offsets_are_refused(tmp_path: Path) -> None:
    """The buffers of a mapped file are used as they lie."""
    path = tmp_path / "a.arrow"
    words = pa.table({"text": ["abcdefgh"] * 8})
    with pa.ipc.new_file(str(path), words.schema) as writer:
        writer.write_table(words)
    data = bytearray(path.read_bytes())
    at = data.index(b"".join((8 * i).to_bytes(4, "little") for i in range(9)))
    data[at + 16 : at + 20] = (1 << 30).to_bytes(4, "little")
    path.write_bytes(data)
    status = os.stat(path)
    identity = FileIdentity(status.st_size, status.st_mtime_ns)
    rows = IpcRows(LOCAL, str(path), identity, words.schema, {}, ReadCounter())
    with pytest.raises(errors.FragmentUnreadable, match=r"a\.arrow"):
        rows.read(0, ["text"], RowRanges([(3, 4)]))
    rows.close()
