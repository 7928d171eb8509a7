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

from zonebloom.errors import CorruptIndex, FragmentUnreadable
from zonebloom.parquet.file_layout import FilePages
from zonebloom.parquet.footer import read_footer
from zonebloom.parquet.page_map import (
    PAGE_MAP_SCHEMA,
    PageMap,
    PageMapBuilder,
    merge_page_maps,
)
from zonebloom.storage.files import ReadCounter, identities
from zonebloom.storage.random_access import FragmentFile

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
    page_map = page_map_of(pages)
    with pytest.raises(CorruptIndex, match="outside the file"):
        page_map.file_pages(7, 1000, 2000)


def test_a_map_that_lacks_a_row_group_is_refused(file: Path) -> None:
    pages, size = footer_pages(file)
    rows = page_map_of(pages).table.to_pylist()
    rows[-1]["fragment_id"] = 8
    page_map = page_map_with(rows)
    with pytest.raises(CorruptIndex, match="1,500 of 2,000 rows"):
        page_map.file_pages(7, size, 2000)


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
