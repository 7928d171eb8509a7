"""Test reads of some rows of some record batches of Arrow IPC fragments."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.fs as pafs
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.e2e_helpers import CountingFileSystem, assert_equals_pyarrow, build, touch_later
from support.helpers import PLAIN_TYPES, cases, sample

import zonebloom as zb
from zonebloom import errors

LOCAL = pafs.LocalFileSystem()
BATCHES, ROWS = 6, 100
ID = pc.field("id")


def table(first: int, rows: int) -> pa.Table:
    numbers = range(first, first + rows)
    words = pa.DictionaryArray.from_arrays(
        pa.array([i % 2 for i in numbers], pa.int8()), pa.array(["even", "odd"])
    )
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "text": pa.array([None if i % 7 == 0 else f"text {i}" for i in numbers], pa.string()),
            "word": words,
            "list": pa.array([[i, i] for i in numbers], pa.list_(pa.int32())),
            "st": pa.array(
                [{"a": i} if i % 5 else None for i in numbers], pa.struct({"a": "int64"})
            ),
        }
    )


def write(path: Path, first: int, compression: str | None) -> Path:
    """Write six record batches. The third is empty, and the others have 100 rows."""
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_file(str(path), table(0, 0).schema, options=options) as writer:
        for number in range(BATCHES):
            rows = table(first + number * ROWS, 0 if number == 2 else ROWS)
            columns = [column.combine_chunks() for column in rows.columns]
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=rows.schema))
    return path


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
@pytest.mark.parametrize("columns", [None, ["text", "list"], [], {"a": pc.field("st", "a")}])
def test_rows_equal_those_of_pyarrow(
    tmp_path: Path, compression: str | None, columns: object
) -> None:
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


def test_types_and_columns_may_differ_between_files(tmp_path: Path) -> None:
    tables = [
        pa.table({"id": pa.array(range(500), pa.int32())}),
        pa.table({"y": ["a"] * 500, "id": pa.array(range(500, 1000), pa.int64())}),
    ]
    for number, table in enumerate(tables):
        with pa.ipc.new_file(str(tmp_path / f"{number}.arrow"), table.schema) as writer:
            writer.write_table(table, 100)
    schema = pa.schema({"id": pa.int64(), "y": pa.string()})
    source = pads.dataset(tmp_path, format="ipc", schema=schema)
    ds = zb.dataset(source)
    build(ds, "id", number_of_items=50)
    for expression in (ID == 5, ID == 505, (ID == 5) & pc.field("y").is_null()):
        assert assert_equals_pyarrow(ds, source, expression, expression).num_rows == 1


def test_a_file_changed_after_the_plan_is_noticed(tmp_path: Path) -> None:
    path = write(tmp_path / "a.arrow", 0, None)
    ds = zb.dataset(tmp_path, format="ipc")
    build(ds, "id", number_of_items=30)
    scanner = ds.scanner(filter="id = 5")
    scanner = scanner.planned(scanner.plan())
    touch_later(write(path, -100, None))
    assert scanner.to_table()["id"].to_pylist() == [5]


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.arrow", 0, None)
    ds = zb.dataset(tmp_path, format="ipc")
    path.write_bytes(b"ARROW1\0\0 not really")
    with pytest.raises(errors.FragmentUnreadable, match=r"a\.arrow.*repair or remove"):
        ds.take_rows([3])


def test_invalid_offsets_raise(tmp_path: Path) -> None:
    """Arrays of a mapped file point into it, so their offsets must be checked."""
    path = tmp_path / "a.arrow"
    words = pa.table({"text": ["abcdefgh"] * 8})
    with pa.ipc.new_file(str(path), words.schema) as writer:
        writer.write_table(words)
    data = bytearray(path.read_bytes())
    start = data.index(b"".join((8 * i).to_bytes(4, "little") for i in range(9)))
    data[start + 16 : start + 20] = (1 << 30).to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(errors.FragmentUnreadable, match=r"a\.arrow"):
        zb.dataset(tmp_path, format="ipc").take_rows([3])


# Some rows of a batch, without the others


def wide(rows: int) -> pa.Table:
    """Return columns of every kind: some with computable row offsets, others that pyarrow reads."""
    rng = np.random.default_rng(rows)
    views = (pa.string_view(), pa.binary_view())
    kinds = [kind for kind in PLAIN_TYPES if kind not in views and kind != pa.date64()]
    kinds = [kind for kind in kinds if not pa.types.is_decimal(kind) and not pa.types.is_time(kind)]
    columns: dict[str, Any] = {
        f"c{number}": sample(kind, rows, nulls=(0.0, 0.3, 1.0)[number % 3], seed=number)[0]
        for number, kind in enumerate(kinds)
    }
    numbers = pa.array(range(rows), pa.int32())
    text = numbers.cast("string")
    columns["bool"] = pa.array(rng.random(rows) < 0.5)
    columns["bools"] = pa.array(rng.random(rows) < 0.5, mask=rng.random(rows) < 0.2)
    columns["decimal"] = numbers.cast(pa.decimal256(40, 3))
    columns["null"] = pa.nulls(rows)
    columns["list"] = pa.array([[i] * (i % 3) for i in range(rows)])
    columns["struct"] = pa.StructArray.from_arrays([numbers, text], ["a", "b"])
    columns["fixed"] = pa.array([[i % 99, None] for i in range(rows)], pa.list_(pa.int8(), 2))
    columns["word"] = text.dictionary_encode()
    columns["after"] = pa.array([f"{i}é" if i % 5 else None for i in range(rows)])
    columns["view"] = text.cast(pa.string_view())
    columns["map"] = pa.array([[(i, "x")] for i in range(rows)], pa.map_(pa.int32(), pa.string()))
    columns["last"] = numbers
    return pa.table(columns)


@pytest.mark.parametrize("variant", ["plain", "legacy", "lz4", "remote"])
def test_random_rows_of_every_type_equal_those_of_pyarrow(tmp_path: Path, variant: str) -> None:
    whole = wide(1272)
    options = pa.ipc.IpcWriteOptions(
        use_legacy_format=variant == "legacy",
        compression="lz4" if variant == "lz4" else None,
    )
    path = tmp_path / "a.arrow"
    with pa.ipc.new_file(str(path), whole.schema, options=options) as writer:
        writer.write_table(whole, 300)
    filesystem, name = LOCAL, str(path)
    if variant == "remote":
        filesystem = pafs.SubTreeFileSystem(str(tmp_path.parent), LOCAL)
        name = f"{tmp_path.name}/a.arrow"
    ds = zb.dataset(name, format="ipc", filesystem=filesystem)
    rng = np.random.default_rng(5)
    sets = [[(0, 1)], [(0, len(whole))], [(299, 301)], [(13, 14), (600, 603), (1263, 1272)]]
    sets += [
        [(int(a), int(a) + 1) for a in np.unique(rng.integers(0, len(whole), 40))] for _ in range(3)
    ]
    for spans in sets:
        table = ds.take_rows([row for start, stop in spans for row in range(start, stop)])
        table.validate(full=True)
        wanted = pa.concat_tables([whole.slice(a, b - a) for a, b in spans])
        for column in whole.schema.names:
            ours, theirs = table[column], wanted[column]
            # NaN is not equal to itself, so compare the text.
            assert ours.equals(theirs) or repr(ours.to_pylist()) == repr(theirs.to_pylist()), column


def test_only_the_record_batches_of_the_rows_are_read(tmp_path: Path) -> None:
    table = pa.table({"id": range(100_000), "text": [f"text {i}" for i in range(100_000)]})
    path = tmp_path / "a.arrow"
    with pa.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table, 10_000)
    counting = CountingFileSystem()
    ds = zb.dataset(str(tmp_path), format="ipc", filesystem=counting.wrapped())
    ds.create_scalar_index("id", "ZONEMAP", number_of_items=1000, spark=False)
    counting.data_bytes = 0
    rows = ds.to_table(["id"], filter="id >= 59990 AND id < 60010")
    assert rows["id"].to_pylist() == list(range(59_990, 60_010))
    assert counting.data_bytes < 0.25 * path.stat().st_size


@given(st.integers(0, 2**30), st.integers(1, 255))
@example(368, 128)  # The name of a column is no UTF-8.
@settings(max_examples=cases(150))
def test_a_damaged_byte_gives_rows_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, position: int, change: int
) -> None:
    path = write(tmp_path_factory.mktemp("ipc") / "a.arrow", 0, None)
    data = bytearray(path.read_bytes())
    data[position % len(data)] ^= change
    path.write_bytes(data)
    try:
        ds = zb.dataset(path, format="ipc", schema=table(0, 0).schema)
        ds.take_rows([3, 4, *range(90, 120)]).validate(full=True)
    except errors.ZoneBloomError as error:
        assert str(path) in str(error)


@pytest.mark.slow
def test_a_dropped_scan_does_not_crash_the_process(tmp_path: Path) -> None:
    """PyArrow's threads would use memory that the dropped scan freed."""
    table = pa.table({"id": range(500), "data": [b"x" * (row % 50) for row in range(500)]})
    for number in range(3):
        with pa.ipc.new_file(tmp_path / f"{number}.arrow", table.schema) as out:
            out.write_table(table, max_chunksize=20)
    script = f"""if True:
        import zonebloom as zb
        ds = zb.dataset({str(tmp_path)!r}, format="ipc")
        for rows in range(600):
            assert ds.head(rows % 4, filter="id >= 0").num_rows == rows % 4
    """
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert process.returncode == 0, process.stderr.decode()
