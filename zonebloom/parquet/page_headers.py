"""Page headers: what a page says of itself, believed only when header and bytes fill its location
and the rows agree, before anything is allocated for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from zonebloom.errors import FragmentUnreadable
from zonebloom.parquet.file_layout import ColumnChunk, PageLocations, ReadRanges
from zonebloom.parquet.thrift import MalformedThrift, ThriftReader

DATA_PAGE, INDEX_PAGE, DICTIONARY_PAGE, DATA_PAGE_V2 = range(4)
_DICTIONARY_ENCODINGS = frozenset((2, 8))
# Field of PageHeader that describes a page of each type.
_DESCRIBED_BY = {DATA_PAGE: 5, DICTIONARY_PAGE: 7, DATA_PAGE_V2: 8}

# Most headers fit in the first; statistics of long strings need the others.
_HEADER_BYTES = (256, 8 << 10, 1 << 20)
# Smaller chunks are read at once rather than header by header.
_WHOLE_BYTES = 16 << 10
# A walk reads once a page: a chunk of more is not worth it.
_MAX_PAGES = 1 << 16

# ``data[at : at + n]`` gives bytes: bytes themselves or a view of them.
Bytes = bytes | memoryview


class PageHeader(NamedTuple):
    page_type: int
    size: int  # bytes of the page, header included
    num_values: int  # nulls and repetitions included; 0 for pages without values
    num_rows: int | None  # as headers of version 2 say it
    needs_dictionary: bool

    @property
    def is_data(self) -> bool:
        return self.page_type in (DATA_PAGE, DATA_PAGE_V2)


def parse_page_header(page: Bytes) -> PageHeader:
    header = ThriftReader(page).read_struct()
    kind, size = _size(header, 1), _size(header, 3)
    total = header.stop + size
    _size(header, 2)
    if kind not in _DESCRIBED_BY:
        return PageHeader(kind, total, 0, None, False)
    described = header.get(_DESCRIBED_BY[kind])
    if not isinstance(described, dict):
        raise FragmentUnreadable("a page header does not describe its page")
    num_values = _size(described, 1)
    if kind != DATA_PAGE_V2:
        needs_dictionary = kind == DATA_PAGE and _size(described, 2) in _DICTIONARY_ENCODINGS
        return PageHeader(kind, total, num_values, None, needs_dictionary)
    num_rows = _size(described, 3)
    levels = _size(described, 5) + _size(described, 6)
    if levels > size or num_rows > num_values or _size(described, 2) > num_values:
        raise FragmentUnreadable("a page header contradicts itself")
    needs_dictionary = _size(described, 4) in _DICTIONARY_ENCODINGS
    return PageHeader(kind, total, num_values, num_rows, needs_dictionary)


def _size(fields: dict[int, Any], number: int) -> int:
    value = fields.get(number)
    if type(value) is not int or not 0 <= value < 1 << 31:
        raise FragmentUnreadable(f"a page header has {value!r:.40} where a size is to be")
    return value


def checked_data_page(page: Bytes, num_rows: int, repeated: bool) -> PageHeader:
    """The header of a data page, held against its location."""
    header = parse_page_header(page)
    rows = header.num_rows if repeated else header.num_values
    if not header.is_data or header.size != len(page):
        raise FragmentUnreadable("a page location does not lead to a data page")
    if (rows is not None and rows != num_rows) or num_rows > header.num_values:
        raise FragmentUnreadable(
            f"a page has {header.num_values} values, its location says {num_rows} rows"
        )
    return header


def check_dictionary_page(page: Bytes) -> None:
    """Refuse bytes that are not one dictionary page."""
    header = parse_page_header(page)
    if header.page_type != DICTIONARY_PAGE or header.size != len(page):
        raise FragmentUnreadable("a dictionary page is not where it is said to be")


def walk_pages(
    read: ReadRanges,
    chunk: ColumnChunk,
    num_rows: int,
    header_at: Callable[[int], PageHeader] | None = None,
) -> PageLocations | None:
    """Find the pages of a chunk by its page headers, which ``header_at`` reads where they are
    encrypted; None for version 1 ones of columns with repeated values, whose pages may begin inside
    a row."""
    # Then every row has one value, whatever the schema would allow.
    flat = chunk.num_values == num_rows
    starts, sizes, first_rows = [], [], [0]
    for at, header in _headers(chunk, header_at or _header_reader(read, chunk)):
        if not header.is_data:
            continue
        rows = header.num_values if flat else header.num_rows
        # A page with values and no rows would be one that begins inside a row.
        if rows is None or (header.num_values and not rows) or len(starts) == _MAX_PAGES:
            return None
        starts.append(at)
        sizes.append(header.size)
        first_rows.append(first_rows[-1] + rows)
    if first_rows[-1] != num_rows:
        raise FragmentUnreadable(f"pages have {first_rows[-1]} rows, their row group {num_rows}")
    if not starts:
        return None
    return PageLocations(*(np.array(each, dtype=np.int64) for each in (starts, sizes, first_rows)))


def split_whole_chunk(
    data: memoryview, chunk: ColumnChunk, num_rows: int, repeated: bool
) -> list[memoryview]:
    """A chunk to be decoded whole, in pieces without the empty data pages that pyarrow writes at
    times and reads as the end of a chunk."""
    if num_rows > chunk.num_values or (num_rows != chunk.num_values and not repeated):
        raise FragmentUnreadable(f"a chunk of {num_rows} rows has {chunk.num_values} values")
    rows = 0
    rows_known = True
    pieces: list[memoryview] = []
    begun = 0
    for at, header in _headers(chunk, lambda at: parse_page_header(data[at - chunk.start :])):
        if not header.is_data:
            continue
        rows += header.num_rows or 0
        rows_known = rows_known and header.num_rows is not None
        if not header.num_values:
            pieces.append(data[begun : at - chunk.start])
            begun = at - chunk.start + header.size
    if rows_known and rows != num_rows:
        raise FragmentUnreadable(f"pages have {rows} rows, their row group {num_rows}")
    return [*pieces, data[begun:]]


def _headers(
    chunk: ColumnChunk, header_at: Callable[[int], PageHeader]
) -> Iterator[tuple[int, PageHeader]]:
    """Where each page begins and its header, up to the chunk's last value."""
    at, seen = chunk.start, 0
    while seen < chunk.num_values:
        if at >= chunk.stop:
            raise FragmentUnreadable("a column chunk ends before its last value")
        header = header_at(at)
        if header.size > chunk.stop - at:
            raise FragmentUnreadable("a page reaches beyond its column chunk")
        yield at, header
        seen += header.num_values if header.is_data else 0
        at += header.size
    if seen > chunk.num_values:
        raise FragmentUnreadable(f"pages have {seen} values, their chunk {chunk.num_values}")


def _header_reader(read: ReadRanges, chunk: ColumnChunk) -> Callable[[int], PageHeader]:
    if chunk.stop - chunk.start <= _WHOLE_BYTES:
        whole = memoryview(read([(chunk.start, chunk.stop)])[0])
        return lambda at: parse_page_header(whole[at - chunk.start :])

    def header_at(at: int) -> PageHeader:
        for size in _HEADER_BYTES:
            stop = min(at + size, chunk.stop)
            (data,) = read([(at, stop)])
            try:
                return parse_page_header(data)
            except MalformedThrift:
                # The header may go on; unless there was more to read, it is malformed.
                if stop == chunk.stop or size == _HEADER_BYTES[-1]:
                    raise
        raise AssertionError("the last size returns or raises")

    return header_at
