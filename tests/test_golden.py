"""Index folders as earlier releases wrote them still open and answer.

All have the same two files, an index of one filter after another with a global filter, and a
sliced one. ``golden/catalog-1`` was written before documents of the catalog had a checksum,
``golden/catalog-2`` while page maps belonged to the segments of an index, ``golden/catalog-3``
before files were listed with the digests of their footers; in the last two the second file was
indexed later.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as pads
import pytest

import zonebloom as zb
from zonebloom.catalog.versions import listed
from zonebloom.index.key_ranges import read_ranges
from zonebloom.index.rows import RowTable
from zonebloom.storage.parquet.pagemap import PageMap

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture(params=[("catalog-1", 2), ("catalog-2", 4), ("catalog-3", 4)], ids=["1", "2", "3"])
def folder(request, tmp_path: Path) -> tuple[Path, int]:
    """A folder with the times its files had, for a checkout gives them others; its version."""
    name, version = request.param
    copy = tmp_path / "data"
    shutil.copytree(GOLDEN / name, copy)
    for number in range(2):
        time = 1_700_000_000_000_000_000 + number
        os.utime(copy / f"part={number}" / "data.parquet", ns=(time, time))
    return copy, version


def assert_used_and_right(folder: Path, ds: zb.Dataset) -> None:
    """Both indices cover all, keep few zones, and every row is found."""
    table = pads.dataset(folder, format="parquet", partitioning="hive").to_table()
    rows = table.to_pylist()
    assert len(rows) == 1000
    for column in ("id", "name"):
        for row in rows[::37]:
            value = row[column]
            if value is None:
                continue
            literal = f"'{value}'" if column == "name" else value
            wanted = [each for each in rows if each[column] == value]
            found = ds.to_table(filter=f"{column} = {literal}")
            assert found.select(table.schema.names).to_pylist() == wanted
            assert len(ds.search(f"{column} = {literal}").at_most) < 1000
    assert ds.count_rows(filter="name IS NULL") == 20
    assert [each.num_fragments_indexed for each in ds.describe_indices()] == [2, 2]


def test_an_earlier_catalog_opens_and_answers(folder: tuple[Path, int]):
    path, version = folder
    ds = zb.dataset(path)
    assert ds.version == version
    assert [each.layout for each in ds.describe_indices()] == ["table", "sliced"]
    assert_used_and_right(path, ds)
    assert [ds.validate_index(name) for name in ("id_idx", "name_idx")] == [10, 10]
    # One page map a file, from whichever index: no footer is read.
    assert sorted(i for each in ds.opened.version.page_maps for i in each.fragment_ids) == [0, 1]
    for each in ds.opened.planner.coverage().present:
        assert ds.opened.planner.page_maps.pages(each.fragment_id, each.identity.size) is not None
    over_all = ds.global_filter("id")
    assert over_all is not None and over_all.is_current


def test_an_earlier_catalog_is_written_on_top_of(folder: tuple[Path, int]):
    path, version = folder
    ds = zb.dataset(path)
    ds.drop_index("id_idx")
    ds.create_scalar_index("id", number_of_items=100, spark=False)
    again = zb.dataset(path)
    assert again.version == version + 2
    assert_used_and_right(path, again)
    written = path / "_zonebloom" / "versions" / f"{again.version:020d}.json"
    assert written.read_bytes().startswith(b'{"format_version": 4, "checksum": "')


@pytest.mark.parametrize(
    ("pattern", "read"),
    [
        ("bloomfilter.arrow", lambda buffer: RowTable(buffer, "it")),
        ("ranges.arrow", lambda buffer: read_ranges(buffer, "it")),
        ("pages.arrow", lambda buffer: PageMap(buffer, "it")),
        ("versions/*.arrow", lambda buffer: listed(buffer.to_pybytes())),
    ],
    ids=["table", "ranges", "pages", "listing"],
)
def test_every_arrow_file_says_its_format_and_a_newer_one_is_refused(tmp_path, pattern, read):
    folder = tmp_path / "data"
    shutil.copytree(GOLDEN / "catalog-3", folder)
    zb.dataset(folder).create_scalar_index("id", number_of_items=100, spark=False)
    newest = max((folder / "_zonebloom").rglob(pattern), key=lambda path: path.stat().st_mtime_ns)
    table = pa.ipc.open_file(newest.read_bytes()).read_all()
    assert table.schema.metadata[b"zonebloom_format"] == b"4"
    newer = table.replace_schema_metadata({**table.schema.metadata, b"zonebloom_format": b"5"})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, newer.schema) as writer:
        writer.write_table(newer)
    with pytest.raises(ValueError, match=r"format 5, 4 is known.*pip install --upgrade") as caught:
        try:
            read(sink.getvalue())
        except zb.errors.CorruptIndex as error:
            raise ValueError(str(error)) from None
    assert "newer zonebloom" in str(caught.value)
