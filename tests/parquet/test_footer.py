"""Test that footers are read as pyarrow reads them, and that false ones are refused."""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.parquet_helpers import File, written

from zonebloom.errors import FragmentUnreadable
from zonebloom.parquet.file_layout import ColumnChunk
from zonebloom.parquet.footer import checked_locations, footer_length, parse_footer
from zonebloom.parquet.thrift import (
    I64,
    LIST,
    STRUCT,
    ThriftReader,
    encode_integer,
    encode_list,
    encode_struct,
)

TABLE = pa.table(
    {
        "id": pa.array(range(2000)),
        "tags": pa.array([["a", "b"], []] * 1000),
        "point": pa.array([{"x": 1, "y": {"z": "k"}}] * 2000),
        "when": pa.array([0] * 2000, pa.timestamp("us", "Europe/Paris")),
    }
)


@pytest.fixture(scope="module")
def data() -> bytes:
    return written(TABLE)


def test_a_parsed_footer_agrees_with_pyarrow(data):
    footer = File(data).footer
    metadata = pq.read_metadata(io.BytesIO(data))
    assert footer.num_rows == metadata.num_rows
    assert footer.schema.names == tuple(TABLE.column_names)
    assert footer.schema.created_by == metadata.created_by.encode()
    assert [leaf.path for leaf in footer.schema.leaves] == [
        tuple(metadata.row_group(0).column(i).path_in_schema.split("."))
        for i in range(metadata.num_columns)
    ]
    assert [leaf.is_repeated for leaf in footer.schema.leaves] == [False, True, False, False, False]
    assert footer.schema.field_leaves == (range(1), range(1, 2), range(2, 4), range(4, 5))
    for number, group in enumerate(footer.row_groups):
        assert group.num_rows == metadata.row_group(number).num_rows
        for leaf, chunk in enumerate(group.chunks):
            column = metadata.row_group(number).column(leaf)
            assert chunk.num_values == column.num_values
            assert chunk.data_start == column.data_page_offset
            assert chunk.start == (column.dictionary_page_offset or column.data_page_offset)
            assert chunk.stop - chunk.start == column.total_compressed_size
            assert (chunk.index_bytes > 0) == column.has_offset_index


def test_page_locations_tile_the_chunk(data):
    file = File(data)
    for number, group in enumerate(file.footer.row_groups):
        for leaf, chunk in enumerate(group.chunks):
            pages = file.indexed(number, leaf)
            assert pages is not None
            assert pages.starts[0] == chunk.data_start
            assert (pages.starts + pages.sizes).tolist() == [*pages.starts[1:], chunk.stop]
            assert pages.first_rows[0] == 0
            assert pages.first_rows[-1] == group.num_rows


@pytest.mark.parametrize(
    "tail, says",
    [
        (b"\x04\0\0\0PARE", "encrypted"),
        (b"\x04\0\0\0PAR2", "does not end"),
        (b"PAR1", "does not end"),
        (b"\xff\xff\xff\xffPAR1", "more than the file has"),
        (b"\x59\0\0\0PAR1", "more than the file has"),
    ],
)
def test_invalid_tails_are_refused(tail, says):
    with pytest.raises(FragmentUnreadable, match=says):
        footer_length(tail, 100)


def test_the_longest_footer_is_read():
    assert footer_length(b"\x58\0\0\0PAR1", 100) == 88


def test_a_footer_that_is_cut_anywhere_is_refused(data):
    length = int.from_bytes(data[-8:-4], "little")
    footer = data[-8 - length : -8]
    for stop in range(0, length, 7):
        with pytest.raises(FragmentUnreadable):
            parse_footer(footer[:stop], len(data))


def test_chunks_outside_of_the_file_are_refused(data):
    length = int.from_bytes(data[-8:-4], "little")
    with pytest.raises(FragmentUnreadable, match="outside the file"):
        parse_footer(data[-8 - length : -8], 3000)


def rewritten(data: bytes, **changed: bytes) -> bytes:
    """Return a footer with other fields: ``f3=encode_integer(5)`` sets num_rows."""
    length = int.from_bytes(data[-8:-4], "little")
    footer = data[-8 - length : -8]
    raw = ThriftReader(footer).read_struct()
    elements = [footer[element.start : element.stop] for element in raw[2]]
    groups = [footer[group.start : group.stop] for group in raw[4]]
    kinds = {1: 5, 2: LIST, 3: I64, 4: LIST}
    values = {
        1: encode_integer(raw[1]),
        2: encode_list(STRUCT, elements),
        3: encode_integer(raw[3]),
        4: encode_list(STRUCT, groups),
        **{int(name[1:]): value for name, value in changed.items()},
    }
    return encode_struct([(number, kinds[number], values[number]) for number in sorted(values)])


LIES = {
    "rows of the file": {"f3": encode_integer(1 << 62)},
    "rows below zero": {"f3": encode_integer(-1)},
    "no row groups": {"f4": encode_list(STRUCT, [])},
    "an empty schema": {"f2": encode_list(STRUCT, [])},
    "row groups of nothing": {"f4": encode_list(STRUCT, [b"\x15\x00\x00"])},
    "rows of a group": {
        "f4": encode_list(
            STRUCT, [encode_struct([(1, LIST, b"\x0c"), (3, I64, encode_integer(9))])]
        )
    },
    "a group that is a number": {"f4": encode_list(I64, [encode_integer(4)])},
}


@pytest.mark.parametrize("changed", LIES.values(), ids=LIES.keys())
def test_false_numbers_in_the_footer_are_refused(data, changed):
    assert parse_footer(rewritten(data), len(data)).num_rows == 2000
    with pytest.raises(FragmentUnreadable):
        parse_footer(rewritten(data, **changed), len(data))


def test_a_schema_that_is_nested_too_deeply_is_refused():
    child = encode_struct([(4, 8, b"\x01a"), (5, 5, encode_integer(1))])
    schema = encode_list(STRUCT, [child] * 3000)
    footer = encode_struct(
        [
            (1, 5, encode_integer(2)),
            (2, LIST, schema),
            (3, I64, encode_integer(0)),
            (4, LIST, b"\x0c"),
        ]
    )
    with pytest.raises(FragmentUnreadable, match="too deep"):
        parse_footer(footer, 1000)


def chunk() -> ColumnChunk:
    return ColumnChunk(2, 0, (0,), 30, 4, 304, 104, 400, 50)


GOOD = ([104, 200], [96, 104], [0, 10, 30])


def checked(starts, sizes, rows):
    return checked_locations(
        *(np.array(numbers, dtype=np.int64) for numbers in (starts, sizes, rows)), chunk()
    )


BAD = {
    "none": ([], [], [30]),
    "before the data": ([100, 200], [96, 104], [0, 10, 30]),
    "past the chunk": ([104, 200], [96, 105], [0, 10, 30]),
    "starts far past": ([104, 1 << 62], [96, 104], [0, 10, 30]),
    "a sum that overflows": ([104, 200], [96, (1 << 63) - 1], [0, 10, 30]),
    "overlapping": ([104, 199], [96, 104], [0, 10, 30]),
    "out of order": ([200, 104], [104, 96], [0, 10, 30]),
    "a page of no bytes": ([104, 200], [0, 104], [0, 10, 30]),
    "a late first row": ([104, 200], [96, 104], [1, 10, 30]),
    "rows that go back": ([104, 200], [96, 104], [0, 31, 30]),
}


@pytest.mark.parametrize("pages", BAD.values(), ids=BAD.keys())
def test_impossible_page_locations_are_refused(pages):
    checked(*GOOD)
    with pytest.raises(FragmentUnreadable, match="does not hold"):
        checked(*pages)


def test_empty_chunks_need_no_location(data):
    file = File(written(TABLE.slice(0, 0)))
    for group in file.footer.row_groups:
        for chunk in group.chunks:
            assert chunk._replace(index_bytes=0).num_values == 0
            assert chunk.start == chunk.stop
