"""Test that a page map holds what the footer says, and is checked before it is used."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zonebloom.errors import CorruptIndex, FragmentUnreadable
from zonebloom.parquet.file_layout import FilePages
from zonebloom.parquet.footer import read_footer, reader_of_bytes
from zonebloom.parquet.page_map import (
    PAGE_MAP_SCHEMA,
    PageMap,
    PageMapBuilder,
    merge_page_maps,
)
from zonebloom.storage.files import ReadCounter
from zonebloom.storage.random_access import FragmentFile
from zonebloom.storage.store import identities

LEAVES, GROUPS = 3, 4
LOCAL = pafs.LocalFileSystem()


def footer_pages(path: Path) -> tuple[FilePages, int]:
    (identity,) = identities(LOCAL, [str(path)])
    assert identity is not None
    with FragmentFile(LOCAL, str(path), identity, ReadCounter()) as file:
        pages = read_footer(file.num_bytes, file.read, with_pages=True)
    return pages, identity.size


def page_map_of(*files: FilePages) -> PageMap:
    """Return the page map of some files, whose ids are 7, 8, ..."""
    builder = PageMapBuilder()
    for number, pages in enumerate(files):
        builder.add(7 + number, pages)
    return PageMap(builder.encode(), "pages.arrow")


def page_map_with(rows: list[dict[str, Any]]) -> PageMap:
    table = pa.Table.from_pylist(rows, schema=PAGE_MAP_SCHEMA)
    return PageMap(merge_page_maps([table]), "pages.arrow")


@pytest.fixture(params=[True, False], ids=["with indices", "walked"])
def file(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    table = pa.table(
        {
            "id": pa.array(range(2000), pa.int64()),
            "text": [f"text {i}" for i in range(2000)],
            "st": pa.array([{"a": i} for i in range(2000)]),
        }
    )
    path = tmp_path / "a.parquet"
    pq.write_table(
        table,
        path,
        row_group_size=500,
        data_page_size=512,
        write_batch_size=50,
        write_page_index=request.param,
    )
    return path


def test_the_page_map_equals_the_footer(file: Path) -> None:
    pages, size = footer_pages(file)
    mapped = page_map_of(pages).file_pages(7, size, 2000)
    assert mapped is not None
    assert mapped.num_rows == pages.num_rows == 2000
    assert mapped.schema.names == pages.schema.names
    for group in range(GROUPS):
        for leaf in range(LEAVES):
            actual, expected = mapped.locations(group, leaf), pages.locations(group, leaf)
            assert actual is not None and expected is not None
            assert actual.starts.size > 1
            for name in ("starts", "sizes", "first_rows"):
                assert np.array_equal(getattr(actual, name), getattr(expected, name))


def test_the_page_map_has_no_other_fragments(file: Path) -> None:
    pages, size = footer_pages(file)
    assert page_map_of(pages).file_pages(8, size, 2000) is None


def test_a_smaller_file_is_refused(file: Path) -> None:
    pages, _ = footer_pages(file)
    stored = page_map_of(pages)
    with pytest.raises(CorruptIndex, match="outside the file"):
        stored.file_pages(7, 1000, 2000)


def test_a_map_that_lacks_a_row_group_is_refused(file: Path) -> None:
    pages, size = footer_pages(file)
    rows = page_map_of(pages).table.to_pylist()
    rows[-1]["fragment_id"] = 8
    stored = page_map_with(rows)
    with pytest.raises(CorruptIndex, match="1,500 of 2,000 rows"):
        stored.file_pages(7, size, 2000)


NESTED = pa.table(
    {
        "id": pa.array([1, None, 3] * 60, pa.int64()),
        "text": [f"text {i % 7}" for i in range(180)],
        "st": [{"a": i} for i in range(180)],
        "lists": pa.array([[1, 2], [], None] * 60),
    }
)
LAYOUTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "indexed": {"write_page_index": True, "data_page_size": 100, "write_batch_size": 10},
    "groups of version 2": {"row_group_size": 50, "data_page_version": "2.0"},
    "small pages": {"data_page_size": 100, "write_batch_size": 10, "compression": "none"},
    "checksums": {"write_page_checksum": True, "use_dictionary": False, "compression": "zstd"},
}


def bytes_of(table: pa.Table, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **options)
    return sink.getvalue().to_pybytes()


def pages_of_bytes(data: bytes) -> FilePages:
    return read_footer(len(data), reader_of_bytes(pa.py_buffer(data)), with_pages=True)


@settings(deadline=None, max_examples=200)
@given(data=st.data())
def test_damaged_files_are_refused_or_have_pages_inside_the_file(data: st.DataObject):
    file = bytearray(bytes_of(NESTED, **LAYOUTS[data.draw(st.sampled_from(sorted(LAYOUTS)))]))
    footer = len(file) - 8 - int.from_bytes(file[-8:-4], "little")
    first = data.draw(st.sampled_from([4, footer]))
    for _ in range(data.draw(st.integers(1, 4))):
        file[data.draw(st.integers(first, len(file) - 1))] = data.draw(st.integers(0, 255))
    try:
        expected = pages_of_bytes(bytes(file))
    except FragmentUnreadable:
        return
    stored = page_map_of(expected)
    num_rows = sum(stored.table["num_rows"].to_pylist())
    mapped = stored.file_pages(7, len(file), num_rows)
    if not num_rows:
        return
    assert mapped is not None
    for number, group in enumerate(mapped.row_groups):
        for leaf in range(len(group.chunks)):
            # Raises if the pages are not in order, or not inside the chunk.
            mapped.locations(number, leaf)
    assert mapped.schema.leaves == expected.schema.leaves
    for number, group in enumerate(expected.row_groups):
        assert mapped.row_groups[number].num_rows == group.num_rows
        for leaf, chunk in enumerate(group.chunks):
            actual = mapped.row_groups[number].chunks[leaf]
            assert actual == chunk._replace(
                encodings=tuple(sorted(set(chunk.encodings))), index_start=0, index_bytes=0
            )
            locations = expected.locations(number, leaf)
            if locations is not None:
                found = mapped.locations(number, leaf)
                assert found is not None
                assert found.starts.tolist() == locations.starts.tolist()
                assert found.sizes.tolist() == locations.sizes.tolist()
                assert found.first_rows.tolist() == locations.first_rows.tolist()


@pytest.mark.parametrize("data", [b"", b"no Arrow file", b"ARROW1" * 20])
def test_damaged_page_maps_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptIndex, match=r"pages\.arrow"):
        PageMap(pa.py_buffer(data), "pages.arrow")


def test_false_entries_are_valid_or_refused(file: Path) -> None:
    """Whatever the numbers are, only errors of zonebloom are raised."""
    pages, size = footer_pages(file)
    rows = page_map_of(pages).table.to_pylist()
    chance = random.Random(7)
    outcomes = {"holds": 0, "refused": 0}
    for _ in range(400):
        lying = _lie([dict(row) for row in rows], chance)
        try:
            mapped = page_map_with(lying).file_pages(7, size, 2000)
            assert mapped is not None
            for group in range(len(mapped.row_groups)):
                for leaf in range(LEAVES):
                    pages = mapped.locations(group, leaf)
                    assert pages is None or pages.starts.size == pages.sizes.size
            outcomes["holds"] += 1
        except (CorruptIndex, FragmentUnreadable):
            outcomes["refused"] += 1
    assert min(outcomes.values()) > 0


def _lie(rows: list[dict[str, Any]], chance: random.Random) -> list[dict[str, Any]]:
    row = chance.choice(rows)
    name = chance.choice(["chunks", "starts", "sizes", "first_rows", "first_row", "num_rows"])
    number = chance.choice([-1, 0, 7, 1 << 31, 1 << 40, (1 << 63) - 1, -(1 << 62)])
    if name in ("first_row", "num_rows"):
        row[name] = number
    elif chance.random() < 0.2:
        row[name] = row[name][: chance.randrange(len(row[name]))]
    else:
        numbers = np.array(row[name])
        i = chance.randrange(numbers.size)
        numbers[i] = chance.choice([number, numbers[i] + 1, numbers[i] - 1])
        row[name] = numbers
    return rows
