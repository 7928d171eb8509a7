"""Test that a file written in place during a read gives the rows of one version, or an error."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.e2e_helpers import ShortReads, build
from support.seams import replace_function

import zonebloom as zb
from zonebloom.errors import FragmentChanged, ZoneBloomWarning
from zonebloom.sources.fragment_rows import IpcRows
from zonebloom.sources.parquet_rows import ParquetRows

ROWS = 400
GROUP = 100
PLAIN: dict[str, Any] = {"compression": "none", "use_dictionary": False, "row_group_size": GROUP}
FORMATS = ["parquet", "ipc"]


def table(is_new: bool) -> pa.Table:
    """Return one version of the rows. Both versions hold the same ids in another order."""
    ids = list(range(ROWS))
    if is_new:
        ids = ids[GROUP:] + ids[:GROUP]
    return pa.table({"id": ids, "version": [int(is_new)] * ROWS})


def content(format: str, *, is_new: bool) -> bytes:
    sink = pa.BufferOutputStream()
    if format == "parquet":
        pq.write_table(table(is_new=is_new), sink, **PLAIN)
    else:
        with pa.ipc.new_file(sink, table(is_new=is_new).schema) as file:
            file.write_table(table(is_new=is_new), max_chunksize=GROUP)
    return sink.getvalue().to_pybytes()


def write_in_place(path: Path, data: bytes) -> None:
    with path.open("r+b") as file:
        file.write(data)


@pytest.fixture(params=FORMATS)
def format(request) -> str:
    return request.param


@pytest.fixture
def path(tmp_path: Path, format: str) -> Path:
    old, new = content(format, is_new=False), content(format, is_new=True)
    # The versions have the same size and layout.
    assert len(old) == len(new)
    path = tmp_path / f"a.{format}"
    path.write_bytes(old)
    os.utime(path, ns=(10**18, 10**18))
    build(zb.dataset(tmp_path, format), "id", number_of_items=10)
    return path


def rewriting(
    monkeypatch, path: Path, format: str, after: int, *, replaces: bool = False, whole: bool = True
) -> None:
    """Patch readers so that the file is written in place after some reads of row groups."""
    count = 0
    data = content(format, is_new=True)
    status = path.stat()

    def write_after(rows: Any) -> Any:
        nonlocal count
        count += rows is not None
        if count == after:
            if replaces:
                path.with_suffix(".new").write_bytes(data)
                os.replace(path.with_suffix(".new"), path)
            else:
                # Write only a part of the file, like a patch does.
                write_in_place(path, data if whole else data[: len(data) // 2])
                os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        return rows

    reader = ParquetRows if format == "parquet" else IpcRows
    read: Any = reader.read
    replace_function(
        monkeypatch,
        reader,
        "read",
        lambda *arguments, **options: write_after(read(*arguments, **options)),
    )


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ZoneBloomWarning)
        yield


def ids_and_version(rows: pa.Table) -> tuple[list[int], set[int]]:
    return sorted(rows["id"].to_pylist()), set(rows["version"].to_pylist())


def lookups(ds: zb.Dataset) -> dict[str, Callable[[], pa.Table]]:
    keys = [5, 105, 205, 305]
    listed = ", ".join(map(str, keys))
    return {
        "lookup": lambda: ds.lookup("id", keys).drop(["key_index"]),
        "to_table": lambda: ds.to_table(filter=f"id IN ({listed})"),
        "to_polars": lambda: ds.to_polars().filter(pl.col("id").is_in(keys)).collect().to_arrow(),
    }


@pytest.mark.parametrize("after", range(1, 5))
@pytest.mark.parametrize("operation", ["lookup", "to_table", "to_polars"])
def test_a_lookup_returns_rows_of_one_version_or_raises(
    monkeypatch, path, format, operation, after
):
    ds = zb.dataset(path.parent, format)
    rewriting(monkeypatch, path, format, after)
    try:
        rows = lookups(ds)[operation]()
    except FragmentChanged as error:
        assert str(path) in str(error)
    else:
        assert ids_and_version(rows) in (([5, 105, 205, 305], {0}), ([5, 105, 205, 305], {1}))
    ids, version = ids_and_version(lookups(zb.dataset(path.parent, format))[operation]())
    assert (ids, len(version)) == ([5, 105, 205, 305], 1)


@pytest.mark.parametrize("after", range(1, 5))
def test_batches_from_an_index_end_with_an_error(monkeypatch, path, format, after):
    ds = zb.dataset(path.parent, format)
    rewriting(monkeypatch, path, format, after)
    batches = ds.to_batches(filter="id IN (5, 105, 205, 305)")
    rows: list[dict[str, int]] = []
    with pytest.raises(FragmentChanged):
        for batch in batches:
            rows += batch.to_pylist()
    # The scan returns the last batch only after checking the file.
    assert len(rows) < 4


def test_a_file_without_returned_rows_is_read_again(monkeypatch, path, format):
    ds = zb.dataset(path.parent, format)
    rewriting(monkeypatch, path, format, 1)
    rows = ds.lookup("id", [5])
    assert rows.to_pylist() == [{"key_index": 0, "id": 5, "version": 1}]


def test_a_truncated_or_half_written_file_is_an_error(monkeypatch, path, format):
    ds = zb.dataset(path.parent, format)
    rewriting(monkeypatch, path, format, 2, whole=False)
    with pytest.raises(FragmentChanged):
        list(ds.to_batches(filter="id IN (5, 105, 205, 305)"))


def test_locate_and_take_raise_for_rows_of_two_versions(monkeypatch, path, format):
    ds = zb.dataset(path.parent, format)
    rewriting(monkeypatch, path, format, 2)
    with pytest.raises(FragmentChanged):
        ds.locate("id", [5, 105, 205, 305])
    write_in_place(path, content(format, is_new=False))
    ds = zb.dataset(path.parent, format)
    rewriting(monkeypatch, path, format, 2)
    with pytest.raises(FragmentChanged):
        ds.take_rows([0, 100, 200])


def test_a_replaced_file_is_read_in_its_old_version(monkeypatch, path, format):
    ds = zb.dataset(path.parent, format)
    rewriting(monkeypatch, path, format, 2, replaces=True)
    batches = list(ds.to_batches(filter="id IN (5, 105, 205, 305)"))
    assert ids_and_version(pa.Table.from_batches(batches)) == ([5, 105, 205, 305], {0})
    assert ids_and_version(ds.lookup("id", [5, 105])) == ([5, 105], {1})


@pytest.mark.many
@pytest.mark.parametrize("number", range(1, 12))
@pytest.mark.parametrize("operation", ["lookup", "to_table", "to_polars"])
def test_a_store_without_change_times_is_still_checked(tmp_path, format, operation, number):
    """The file is written while a Python file system answers the n-th read."""
    old, new = content(format, is_new=False), content(format, is_new=True)
    path = tmp_path / f"a.{format}"
    path.write_bytes(old)
    os.utime(path, ns=(10**18, 10**18))
    build(zb.dataset(tmp_path, format), "id", number_of_items=10)
    count = 0

    def write(offset: int, num_bytes: int) -> int:
        nonlocal count
        count += 1
        if count == number:
            write_in_place(path, new)
        return num_bytes

    ds = zb.dataset(str(tmp_path), format, filesystem=ShortReads(write).wrapped())
    count = 0
    try:
        rows = lookups(ds)[operation]()
    except FragmentChanged:
        return
    assert ids_and_version(rows) in (([5, 105, 205, 305], {0}), ([5, 105, 205, 305], {1}))
