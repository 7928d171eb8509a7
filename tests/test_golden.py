"""Index folders that earlier releases wrote can still be opened and used.

All are over the same two files, and have two indices: one in row layout with a global filter, and
one in sliced layout. They differ in the format of the catalog:

- ``golden/catalog-1``: documents have no checksum.
- ``golden/catalog-2``: page maps belong to the segments of an index. In this and all later
  folders, the second file was indexed by a second build.
- ``golden/catalog-3``: listings have no digests of footers.
- ``golden/catalog-4``: one listing has all fragments of a version.
- ``golden/catalog-5``: the folder was vacuumed, and names the segments marked for deletion.
- ``golden/catalog-6``: indices have a kind, and segments name their file.
- ``golden/sealed-4``, ``golden/sealed-5`` and ``golden/sealed-6``: as these, but encrypted.
- ``golden/hash-6``: both indices are of kind HASH, over the files of ``golden/catalog-6``.
"""

from __future__ import annotations

import shutil
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as pads
import pytest
from helpers import GOLDEN, copy_golden

import zonebloom as zb
from zonebloom.building.segments import compact_indices
from zonebloom.catalog.versions import decode_listing
from zonebloom.index.key_ranges import read_ranges
from zonebloom.index.zone_bloom.rows import RowTable
from zonebloom.parquet.page_map import PageMap

# Names of folders, and the numbers of their versions.
CATALOGS = [
    ("catalog-1", 2),
    ("catalog-2", 4),
    ("catalog-3", 4),
    ("catalog-4", 4),
    ("catalog-5", 5),
    ("catalog-6", 5),
]


@pytest.fixture(params=CATALOGS, ids=[name for name, _ in CATALOGS])
def folder(request, tmp_path: Path) -> tuple[Path, int]:
    """Return a folder and the number of its version."""
    name, version = request.param
    return copy_golden(tmp_path, name), version


@pytest.fixture(params=[("sealed-4", 4), ("sealed-5", 5), ("sealed-6", 5)])
def sealed(request, tmp_path: Path) -> tuple[Path, zb.Encryption, int]:
    """Return a folder with an encrypted index, its key, and the number of its version."""
    name, version = request.param
    copy = copy_golden(tmp_path, name.replace("sealed", "catalog"))
    shutil.rmtree(copy / "_zonebloom")
    shutil.copytree(GOLDEN / name / "_zonebloom", copy / "_zonebloom")
    return copy, zb.Encryption("golden", {"golden": bytes(range(32))}), version


def assert_used_and_right(folder: Path, ds: zb.Dataset) -> None:
    """Check that both indices cover all files, prune zones, and find every row."""
    table = pads.dataset(folder, format="parquet", partitioning="hive").to_table()
    rows = table.to_pylist()
    assert len(rows) == 1000
    for column in ("id", "name"):
        for row in rows[::37]:
            value = row[column]
            if value is None:
                continue
            literal = f"'{value}'" if column == "name" else value
            wanted = [row for row in rows if row[column] == value]
            matches = ds.to_table(filter=f"{column} = {literal}")
            assert matches.select(table.schema.names).to_pylist() == wanted
            assert len(ds.search(f"{column} = {literal}").at_most) < 1000
    assert ds.count_rows(filter="name IS NULL") == 20
    assert [index.num_fragments_indexed for index in ds.describe_indices()] == [2, 2]


def test_an_earlier_encrypted_catalog_can_be_opened_and_searched(
    sealed: tuple[Path, zb.Encryption, int],
):
    path, encryption, version = sealed
    assert_opens(path, zb.dataset(path, encryption=encryption), version)


def test_an_earlier_catalog_can_be_opened_and_searched(folder: tuple[Path, int]):
    path, version = folder
    assert_opens(path, zb.dataset(path), version)


def test_an_earlier_hash_index_can_be_searched_and_merged(tmp_path: Path):
    path = copy_golden(tmp_path, "catalog-6")
    shutil.rmtree(path / "_zonebloom")
    shutil.copytree(GOLDEN / "hash-6" / "_zonebloom", path / "_zonebloom")
    ds = zb.dataset(path)
    assert ds.version == 2
    assert [(index.index_type, index.layout) for index in ds.describe_indices()] == [
        ("HASH", "buckets"),
        ("HASH", "buckets"),
    ]
    assert_used_and_right(path, ds)
    assert [ds.validate_index(name) for name in ("id_idx", "name_idx")] == [10, 10]
    compact_indices(ds.opened.catalog, ["id_idx", "name_idx"], everything=True)
    ds = zb.dataset(path)
    assert [index.num_segments for index in ds.describe_indices()] == [1, 1]
    assert_used_and_right(path, ds)


def assert_opens(path: Path, ds: zb.Dataset, version: int) -> None:
    assert ds.version == version
    assert [index.layout for index in ds.describe_indices()] == ["table", "sliced"]
    assert_used_and_right(path, ds)
    assert [ds.validate_index(name) for name in ("id_idx", "name_idx")] == [10, 10]
    # Every file has a page map, from any of the indices, so no footer is read.
    assert sorted(i for page_map in ds.opened.version.page_maps for i in page_map.fragment_ids) == [
        0,
        1,
    ]
    for fragment in ds.opened.look().fragments:
        assert ds.opened.look().page_maps.file_pages(fragment) is not None
    over_all = ds.global_filter("id")
    assert over_all is not None and over_all.is_current


def test_an_earlier_catalog_can_be_extended(folder: tuple[Path, int]):
    path, version = folder
    ds = zb.dataset(path)
    ds.drop_index("id_idx")
    ds.create_scalar_index("id", number_of_items=100, spark=False)
    reopened = zb.dataset(path)
    assert reopened.version == version + 2
    assert_used_and_right(path, reopened)
    written = path / "_zonebloom" / "versions" / f"{reopened.version:020d}.json"
    assert written.read_bytes().startswith(b'{"format_version": 6, "checksum": "')


def test_a_vacuum_deletes_all_segments_of_an_earlier_catalog(folder: tuple[Path, int]):
    path, _ = folder
    ds = zb.dataset(path)
    names = {segment.name for segment in (path / "_zonebloom" / "segments").iterdir()}
    for name in ("id_idx", "name_idx"):
        ds.drop_index(name)
    outcome = ds.vacuum(timedelta(0))
    assert (outcome.num_segments, outcome.foreign) == (len(names), ())
    assert list((path / "_zonebloom" / "segments").iterdir()) == []
    # The document of the newest version, and its listing.
    assert len(list((path / "_zonebloom" / "versions").iterdir())) == 2


@pytest.mark.parametrize(
    ("pattern", "read"),
    [
        ("bloomfilter.arrow", lambda buffer: RowTable(buffer, "it")),
        ("ranges.arrow", lambda buffer: read_ranges(buffer, "it")),
        ("pages.arrow", lambda buffer: PageMap(buffer, "it")),
        ("versions/*.arrow", decode_listing),
    ],
    ids=["table", "ranges", "pages", "listing"],
)
def test_every_arrow_file_names_its_format_and_a_newer_format_is_refused(tmp_path, pattern, read):
    folder = tmp_path / "data"
    shutil.copytree(GOLDEN / "catalog-3", folder)
    zb.dataset(folder).create_scalar_index("id", number_of_items=100, spark=False)
    newest = max((folder / "_zonebloom").rglob(pattern), key=lambda path: path.stat().st_mtime_ns)
    table = pa.ipc.open_file(newest.read_bytes()).read_all()
    assert table.schema.metadata[b"zonebloom_format"] == b"6"
    newer = table.replace_schema_metadata({**table.schema.metadata, b"zonebloom_format": b"7"})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, newer.schema) as writer:
        writer.write_table(newer)
    with pytest.raises(
        ValueError, match=r"format 7; this version reads up to 6.*pip install --upgrade"
    ) as caught:
        try:
            read(sink.getvalue())
        except zb.errors.CorruptIndex as error:
            raise ValueError(str(error)) from None
    assert "newer zonebloom" in str(caught.value)
