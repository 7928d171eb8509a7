"""Index folders that were written before can be opened, searched and extended.

Both are over the two files of ``golden/data``. They have a BLOOMFILTER with a global filter and a
ZONEMAP of one column, and a HASH of the other. The second file was indexed by a refresh.
``golden/sealed`` is encrypted. ``ZONEBLOOM_WRITE=1 pytest tests/catalog/test_golden.py`` writes
them anew, which is right only if the format has changed.
"""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as pads
import pytest
from support.e2e_helpers import merge_segments
from support.helpers import GOLDEN, GOLDEN_KEYS, copy_golden

import zonebloom as zb
from zonebloom.catalog.versions import decode_listing
from zonebloom.index.zone_bloom.rows import RowTable
from zonebloom.index.zone_map.bounds import read_zone_map
from zonebloom.parquet.page_map import PageMap

WRITE = bool(os.environ.get("ZONEBLOOM_WRITE"))
ENCRYPTIONS = {"plain": None, "sealed": zb.Encryption("golden", GOLDEN_KEYS)}
NAMES = ["id_idx", "id_zones", "name_idx"]
VERSION = 5


def write_golden(name: str, tmp_path: Path) -> None:
    folder, index_dir = copy_golden(tmp_path, None)
    later = tmp_path / "later"
    shutil.move(folder / "part=1", later)
    ds = zb.dataset(folder, encryption=ENCRYPTIONS[name])
    rows: dict[str, Any] = {"number_of_items": 100, "spark": False}
    ds.create_scalar_index("id", name="id_idx", global_filter=True, **rows)
    ds.create_scalar_index("id", "ZONEMAP", "id_zones", **rows)
    ds.create_scalar_index("name", "HASH", "name_idx", **rows)
    shutil.move(later, folder / "part=1")
    ds.optimize.optimize_indices(spark=False)
    ds.vacuum(timedelta(0))
    shutil.rmtree(GOLDEN / name, ignore_errors=True)
    shutil.copytree(index_dir, GOLDEN / name)


@pytest.fixture(params=ENCRYPTIONS)
def opened(request, tmp_path: Path) -> tuple[Path, Callable[[], zb.Dataset]]:
    """Return a folder of data with a golden index, and a function that opens it."""
    name = request.param
    if WRITE:
        write_golden(name, tmp_path / "written")
    folder, _ = copy_golden(tmp_path, name)
    return folder, lambda: zb.dataset(folder, encryption=ENCRYPTIONS[name])


def assert_used_and_right(folder: Path, ds: zb.Dataset) -> None:
    """Check that all indices cover all files, prune zones, and find every row."""
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
    assert {index.num_fragments_indexed for index in ds.describe_indices()} == {2}


def test_it_is_opened_and_searched(opened):
    folder, open_dataset = opened
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ds = open_dataset()
        assert ds.version == VERSION
        assert_used_and_right(folder, ds)
    assert [ds.validate_index(name) for name in NAMES] == [10] * 3
    # Every file has a page map, so no footer is read.
    maps = ds.opened.version.page_maps
    assert sorted(i for page_map in maps for i in page_map.fragment_ids) == [0, 1]
    over_all = ds.global_filter("id")
    assert over_all is not None and over_all.is_current


def test_it_is_extended_and_merged(opened):
    folder, open_dataset = opened
    ds = open_dataset()
    ds.drop_index("id_idx")
    ds.create_scalar_index("id", number_of_items=100, spark=False)
    merge_segments(ds, NAMES)
    ds = open_dataset()
    assert {index.num_segments for index in ds.describe_indices()} == {1}
    assert_used_and_right(folder, ds)


def test_a_vacuum_deletes_all_segments(opened):
    _, open_dataset = opened
    ds = open_dataset()
    index_dir = Path(ds.index_dir)
    names = {segment.name for segment in (index_dir / "segments").iterdir()}
    for name in NAMES:
        ds.drop_index(name)
    outcome = ds.vacuum(timedelta(0))
    assert (outcome.num_segments, outcome.foreign) == (len(names), ())
    assert list((index_dir / "segments").iterdir()) == []


@pytest.mark.parametrize(
    ("pattern", "read"),
    [
        ("segments/*/bloomfilter.arrow", lambda buffer: RowTable(buffer, "it")),
        ("segments/*/ranges.arrow", lambda buffer: read_zone_map(buffer, "it")),
        ("segments/*/pages.arrow", lambda buffer: PageMap(buffer, "it")),
        ("versions/*.arrow", decode_listing),
    ],
    ids=["table", "ranges", "pages", "listing"],
)
def test_every_arrow_file_names_its_format_and_a_newer_format_is_refused(pattern, read):
    path = next((GOLDEN / "plain").glob(pattern))
    table = pa.ipc.open_file(path.read_bytes()).read_all()
    assert table.schema.metadata[b"zonebloom_format"] == b"1"
    newer = table.replace_schema_metadata({**table.schema.metadata, b"zonebloom_format": b"2"})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, newer.schema) as writer:
        writer.write_table(newer)
    with pytest.raises(
        ValueError, match=r"format 2; this version reads up to 1.*pip install --upgrade"
    ) as caught:
        try:
            read(sink.getvalue())
        except zb.errors.CorruptIndex as error:
            raise ValueError(str(error)) from None
    assert "newer zonebloom" in str(caught.value)
