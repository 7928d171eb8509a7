"""Test that false claims of files are detected before anything is allocated or returned."""

from __future__ import annotations

import dataclasses
import random
import tracemalloc

import numpy as np
import pyarrow as pa
import pytest
from support.parquet_helpers import File, rows_by_nested_reader, sample, written

from zonebloom.base.row_ranges import RowRanges
from zonebloom.errors import FragmentUnreadable
from zonebloom.parquet.dictionaries import Dictionary
from zonebloom.parquet.file_layout import FilePages, PageLocations
from zonebloom.parquet.leaf_reader import open_bodies
from zonebloom.parquet.leaf_type import (
    BYTE_ARRAY,
    CODECS,
    INT64,
    LeafType,
    Undecodable,
    describe_column,
)
from zonebloom.parquet.nested_schema import field_tree
from zonebloom.parquet.page_headers import follow_headers, walk_pages
from zonebloom.parquet.page_table import PAGE
from zonebloom.parquet.plain_encoding import to_plain
from zonebloom.parquet.thrift import I32, STRUCT, encode_integer, encode_struct

VERSIONS = ["1.0", "2.0"]
REFUSALS = FragmentUnreadable, Undecodable
DELTA_BYTE_ARRAY = 7


@pytest.fixture(params=VERSIONS)
def file(request) -> File:
    rng = random.Random(0)
    table = pa.table(
        {
            "id": pa.array(range(600)),
            "l": sample(pa.list_(pa.int64()), 600, rng),
        }
    )
    return File(written(table, data_page_version=request.param, use_dictionary=False))


def read(file: File, field: int, pages: PageLocations | None, rows: RowRanges, **changed) -> list:
    group = file.footer.row_groups[0]
    chunks = list(group.chunks)
    chunks[field] = chunks[field]._replace(**changed)
    group = group._replace(chunks=tuple(chunks))
    file_pages = FilePages(file.footer.schema, (group,), lambda *_: pages)
    columns = rows_by_nested_reader(file, file_pages, 0, rows, [field])
    if field not in columns:
        # pyarrow reads the row group by the locations of the footer.
        raise Undecodable
    return columns[field].to_pylist()


def moved(pages: PageLocations, field: str, page: int, by: int) -> PageLocations:
    values = getattr(pages, field).copy()
    values[page] += by
    return dataclasses.replace(pages, **{field: values})


@pytest.mark.parametrize("field", [0, 1])
@pytest.mark.parametrize("by", [-1, 1])
@pytest.mark.parametrize("name", ["starts", "sizes", "first_rows"])
def test_page_locations_that_are_off_by_one_are_refused(file, name, by, field):
    pages = file.indexed(0, field)
    assert pages is not None
    first = int(pages.first_rows[2])
    rows = RowRanges([(first + 2, first + 4)])
    read(file, field, pages, rows)
    with pytest.raises(REFUSALS):
        read(file, field, moved(pages, name, 2, by), rows)


@pytest.mark.parametrize("field", [0, 1])
def test_page_locations_of_another_column_are_refused(file, field):
    pages = file.indexed(0, 1 - field)
    with pytest.raises(REFUSALS):
        read(file, field, pages, RowRanges([(300, 301)]))


@pytest.mark.parametrize("field", [0, 1])
@pytest.mark.parametrize("num_values", [1, 599, 10_000, 1 << 31, 1 << 62])
def test_a_false_number_of_values_is_refused(file, num_values, field):
    with pytest.raises(FragmentUnreadable):
        read(file, field, None, RowRanges([(300, 301)]), num_values=num_values)
    chunk = file.footer.row_groups[0].chunks[field]._replace(num_values=num_values)
    with pytest.raises(FragmentUnreadable):
        walk_pages(file.read, chunk, num_values)


@pytest.mark.parametrize("num_rows", [1, 599, 601, 1 << 31, 1 << 40])
@pytest.mark.parametrize("field", [0, 1])
def test_a_false_number_of_rows_is_refused(file, field, num_rows):
    group = file.footer.row_groups[0]._replace(num_rows=num_rows)
    with pytest.raises(FragmentUnreadable):
        rows_by_nested_reader(
            file, FilePages(file.footer.schema, (group,)), 0, RowRanges([(0, 1)]), [field]
        )


def header(kind: int, size: int, *values: int, uncompressed: int | None = None) -> bytes:
    fields = encode_struct(
        [(number, I32, encode_integer(value)) for number, value in enumerate(values, start=1)]
    )
    return encode_struct(
        [
            (1, I32, encode_integer(kind)),
            (2, I32, encode_integer(size if uncompressed is None else uncompressed)),
            (3, I32, encode_integer(size)),
            ({0: 5, 2: 7, 3: 8}.get(kind, 6), STRUCT, fields),
        ]
    )


@pytest.mark.parametrize("codec", [codec for codec in CODECS if codec])
def test_dictionaries_with_a_false_size_are_refused(codec):
    """Codecs leave memory as it was after the end of the body, so values there would be random."""
    leaf = LeafType(pa.int64(), INT64, 8, 0)
    values = np.array([7, 9])
    body = pa.Codec(CODECS[codec]).compress(values.tobytes()).to_pybytes()
    for claimed in (1, 2, 3):
        page = header(2, len(body), claimed, 0, uncompressed=8 * claimed) + body
        data = np.frombuffer(page, dtype=np.uint8)
        if claimed == values.size:
            assert Dictionary(leaf, codec, data).size == values.size
            continue
        with pytest.raises(FragmentUnreadable):
            Dictionary(leaf, codec, data)


HEADERS = {
    "values below zero": header(0, 10, -1, 0, 3, 3),
    "values of 2**31": header(0, 10, 1 << 31, 0, 3, 3),
    "a size below zero": header(0, -10, 5, 0, 3, 3),
    "a size of 2**62": header(0, 1 << 62, 5, 0, 3, 3),
    "unpacked size below zero": header(0, 10, 5, 0, 3, 3, uncompressed=-1),
    "more rows than values": header(3, 10, 5, 0, 6, 0, 0, 0),
    "levels longer than the page": header(3, 10, 5, 0, 5, 0, 8, 8),
    "levels below zero": header(3, 10, 5, 0, 5, 0, -8, 8),
    "nothing described": encode_struct([(1, I32, b"\x00"), (2, I32, b"\x02"), (3, I32, b"\x02")]),
    "no type": encode_struct([(2, I32, b"\x02"), (3, I32, b"\x02")]),
}


@pytest.mark.parametrize("data", HEADERS.values(), ids=HEADERS.keys())
def test_false_page_headers_are_refused(data):
    page = np.frombuffer(data + b"\0" * 10, np.uint8)
    pages = np.zeros(1, dtype=PAGE)
    pages["num_bytes"], pages["num_rows"] = page.size, 5
    columns = np.array([describe_column(LeafType(pa.int64(), INT64, 8, 0), 0)])
    with pytest.raises(FragmentUnreadable):
        list(follow_headers(lambda start: [(page[start:], 0)], 0, page.size, 5))
        open_bodies(page, pages, np.array([0, 1]), columns)


def test_a_walk_over_pages_without_values_ends():
    """Walk ten thousand pages without values, in a chunk that claims one value."""
    page = header(0, 0, 0, 0, 3, 3)
    data = page * 10_000
    chunk = File(written(pa.table({"x": [1]}))).footer.row_groups[0].chunks[0]
    chunk = chunk._replace(start=0, data_start=0, stop=len(data), num_values=1)
    with pytest.raises(FragmentUnreadable, match="pages have 1 values less"):
        walk_pages(lambda ranges: [data[a:b] for a, b in ranges], chunk, 1)


def test_damaged_arrow_schemas_are_left_to_pyarrow(file):
    stored = file.footer.schema.arrow_schema
    assert stored is not None
    for schema in (stored[: len(stored) // 2], b"!!", b""):
        changed = dataclasses.replace(file.footer.schema, arrow_schema=schema)
        assert field_tree(changed, 1) is None


def test_small_pages_with_huge_claims_are_refused():
    """A file cannot have more rows than its page headers claim."""
    table = pa.table({"x": np.zeros(1000, dtype=np.int64)})
    file = File(written(table, row_group_size=1000))
    group = file.footer.row_groups[0]._replace(
        num_rows=1 << 38,
        chunks=(file.footer.row_groups[0].chunks[0]._replace(num_values=1 << 38),),
    )
    with pytest.raises(FragmentUnreadable, match="values less than their chunk"):
        rows_by_nested_reader(file, FilePages(file.footer.schema, (group,)), 0, RowRanges([(0, 1)]))


def in_steps(step: int) -> bytes:
    """Return three integers from 0 on, in DELTA_BINARY_PACKED, with deltas of zero bits."""
    # The fields are: block size, number of miniblocks, number of values, first value, minimum
    # delta, and the bit widths of the miniblocks.
    return b"\x80\x01" + b"\x04" + b"\x03" + encode_integer(0) + encode_integer(step) + bytes(4)


@pytest.mark.parametrize("step", [1 << 20, 1 << 29])
def test_prefixes_longer_than_the_previous_string_are_refused(step):
    leaf = LeafType(pa.binary(), BYTE_ARRAY, 0, 0)
    body = np.frombuffer(in_steps(step) + in_steps(1) + b"abcd", np.uint8)
    tracemalloc.start()
    with pytest.raises(FragmentUnreadable, match="longer than the previous text"):
        to_plain(leaf, DELTA_BYTE_ARRAY, body, 3)
    assert tracemalloc.get_traced_memory()[1] < 1 << 16
    tracemalloc.stop()
    body = np.frombuffer(in_steps(0) + in_steps(1) + b"abc", np.uint8)
    assert to_plain(leaf, DELTA_BYTE_ARRAY, body, 3).tobytes() == (
        b"\0\0\0\0" + b"\1\0\0\0a" + b"\2\0\0\0bc"
    )
