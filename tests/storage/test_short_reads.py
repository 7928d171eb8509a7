"""Test that no row is lost if a store returns fewer bytes than a read requested."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from pyarrow import csv, orc
from support.e2e_helpers import ShortReads, build
from support.helpers import index_folder

import zonebloom as zb
from zonebloom.errors import FragmentUnreadable, ZoneBloomWarning
from zonebloom.sources.column_batches import Column, ColumnsReader
from zonebloom.sources.source import Fragment, Source, require_all_rows, stated_row_count
from zonebloom.storage.files import without_short_reads

ROWS = 20_000
MOST_CUTS = 12
IDS = np.random.default_rng(0).permutation(ROWS)
TABLE = pa.table({"id": IDS, "name": [f"name {value}" for value in IDS]})


class OneRead:
    """A file system whose n-th read of a data file returns no bytes, or half of them.

    Later reads at the same position get the same answer, as PyArrow may try again.
    """

    def __init__(self, number: int, is_empty: bool):
        self.number, self.is_empty, self.count = number, is_empty, 0
        self.position: int | None = None

    def __call__(self, offset: int, num_bytes: int) -> int:
        if self.count == self.number:
            self.position = offset
        self.count += 1
        if offset != self.position:
            return num_bytes
        return 0 if self.is_empty else num_bytes // 2


def write(folder: Path, format: str) -> None:
    path = str(folder / f"a.{format}")
    if format == "parquet":
        pq.write_table(TABLE, path, row_group_size=5_000, write_page_index=True)
    elif format == "ipc":
        with pa.ipc.new_file(path, TABLE.schema) as file:
            file.write_table(TABLE, max_chunksize=5_000)
    elif format == "orc":
        orc.write_table(TABLE, path)
    else:
        csv.write_csv(TABLE, path)


def open_dataset(folder: Path, format: str, hook: Callable[[int, int], int]) -> zb.Dataset:
    return zb.dataset(str(folder), format, filesystem=ShortReads(hook).wrapped())


def cuts(run: Callable[[Callable[[int, int], int]], Any]) -> Iterator[Any]:
    """Run once for each read with that read cut short. Yield the results of runs that succeed."""
    clean = OneRead(-1, is_empty=True)
    yield run(clean)
    assert clean.count
    for number in range(0, clean.count, -(-clean.count // MOST_CUTS)):
        try:
            yield run(OneRead(number, is_empty=number % 3 != 0))
        except zb.errors.ZoneBloomError:
            continue


FORMATS = ["parquet", "ipc", "orc", "csv"]


@pytest.mark.parametrize("format", FORMATS)
def test_a_build_stores_all_rows_or_raises(tmp_path, format):
    write(tmp_path, format)

    def run(hook: Callable[[int, int], int]) -> zb.Dataset:
        build(open_dataset(tmp_path, format, hook), "id", name="id_idx", replace=True)
        return zb.dataset(tmp_path, format)

    for ds in cuts(run):
        assert [file.num_rows for file in ds.opened.version.fragments.values()] == [ROWS]
        assert ds.lookup("id", IDS[[0, 4_999, 10_000, ROWS - 1]]).num_rows == 4


@pytest.mark.many
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("operation", ["all", "filter", "polars", "names", "lookup", "locate"])
def test_a_read_returns_all_rows_or_raises(tmp_path, format, operation):
    write(tmp_path, format)
    if operation in ("lookup", "locate"):
        build(open_dataset(tmp_path, format, lambda offset, num_bytes: num_bytes), "id")
    keys = IDS[[3, 15_000, ROWS - 2]]
    expected = {
        "all": ROWS,
        "filter": int((IDS < 100).sum()),
        "polars": int((IDS % 7 == 0).sum()),
        "names": ROWS,
        "lookup": keys.size,
        "locate": keys.size,
    }[operation]

    def run(hook: Callable[[int, int], int]) -> int:
        ds = open_dataset(tmp_path, format, hook)
        match operation:
            case "all":
                return ds.to_table().num_rows
            case "filter":
                return ds.to_table(filter=pc.field("id") < 100).num_rows
            case "polars":
                return ds.to_table(filter=pl.col("id") % 7 == 0).num_rows
            case "names":
                return ds.to_table(columns=["name"]).num_rows
            case "lookup":
                return ds.lookup("id", keys).num_rows
        return ds.locate("id", keys)["row"].drop_null().__len__()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ZoneBloomWarning)
        for num_rows in cuts(run):
            assert num_rows == expected


def test_a_refresh_stores_all_rows_or_raises(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    write(folder, "parquet")
    build(zb.dataset(folder), "id")
    index = index_folder(folder)
    shutil.copytree(index, tmp_path / "before")
    pq.write_table(TABLE.slice(0, 4_000), folder / "b.parquet", row_group_size=2_000)

    def run(hook: Callable[[int, int], int]) -> zb.Dataset:
        open_dataset(folder, "parquet", hook).optimize.optimize_indices(spark=False)
        return zb.dataset(folder)

    for ds in cuts(run):
        assert [file.num_rows for file in ds.opened.version.fragments.values()] == [ROWS, 4_000]
        assert ds.lookup("id", IDS[:4]).num_rows == 8
        shutil.rmtree(index)
        shutil.copytree(tmp_path / "before", index)


def test_a_build_counts_rows_where_pyarrow_reads_the_store_itself(tmp_path):
    write(tmp_path, "parquet")
    path, column = str(tmp_path / "a.parquet"), Column(("id",), pa.int64())

    def run(hook: Callable[[int, int], int]) -> int:
        # `without_short_reads` sees only the reads of Python file systems, so bypass it here.
        files = ShortReads(hook).wrapped()
        source = Source(TABLE.schema, None, files, "", ())
        reader = ColumnsReader(source, files, Fragment(path, ""), [column])
        return sum(len(arrays[0]) for run in reader.runs(split=True) for arrays in reader.read(run))

    clean = OneRead(-1, is_empty=True)
    assert run(clean) == ROWS
    messages = []
    for number in range(clean.count):
        try:
            assert run(OneRead(number, is_empty=True)) == ROWS
        except FragmentUnreadable as error:
            messages.append(str(error))
    assert any("15,000 of 20,000 rows came" in message for message in messages)


def test_rows_are_compared_with_what_the_file_states(tmp_path):
    local = pafs.LocalFileSystem()
    for format, num_rows in (("parquet", ROWS), ("ipc", ROWS), ("orc", ROWS), ("csv", None)):
        write(tmp_path, format)
        path = str(tmp_path / f"a.{format}")
        (fragment,) = pads.dataset(path, format=format, filesystem=local).get_fragments()
        assert stated_row_count(fragment) == num_rows
    (fragment,) = pads.dataset(str(tmp_path / "a.parquet")).get_fragments()
    assert stated_row_count(fragment.subset(row_group_ids=[1, 2])) == 10_000
    require_all_rows("a", 5, None)
    require_all_rows("a", 5, 5)
    with pytest.raises(FragmentUnreadable, match="cannot read a: 4 of 5 rows came; try again"):
        require_all_rows("a", 4, 5)


def test_the_error_names_the_file_and_the_read(tmp_path):
    write(tmp_path, "csv")
    files = without_short_reads(ShortReads(lambda offset, num_bytes: num_bytes // 2).wrapped())
    with files.open_input_file(str(tmp_path / "a.csv")) as file:
        size = file.size()
        with pytest.raises(OSError, match=rf"at byte 0 returned only 50 bytes.*has {size:,}"):
            file.read(100)
    ds = open_dataset(tmp_path, "csv", lambda offset, num_bytes: num_bytes)
    ds.opened.source.filesystem.handler.cut = lambda offset, num_bytes: num_bytes // 2
    with pytest.raises(FragmentUnreadable, match=r"a\.csv.*returned"):
        ds.to_table()
