"""Pages found by walking a chunk from header to header, where it has no OffsetIndex."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from zonebloom.errors import FragmentUnreadable
from zonebloom.storage.parquet.fetched import ReadRanges
from zonebloom.storage.parquet.headers import PageHeader, page_header
from zonebloom.storage.parquet.layout import Chunk, Pages
from zonebloom.storage.parquet.thrift import MalformedThrift

# Most headers fit in the first; statistics of long strings need the others.
_HEADER_BYTES = (256, 8 << 10, 1 << 20)
# Smaller chunks are read at once rather than header by header.
_WHOLE_BYTES = 16 << 10
# A walk reads once a page: a chunk of more is not worth it.
_MAX_PAGES = 1 << 16


def walk_pages(read: ReadRanges, chunk: Chunk, num_rows: int) -> Pages | None:
    """Find the pages of a chunk by its page headers.

    None when the headers do not say at which rows pages begin: those of version 1 do not for
    columns with repeated values, whose pages may begin inside a row.
    """
    # Then every row has one value, whatever the schema would allow.
    flat = chunk.num_values == num_rows
    starts, sizes, first_rows = [], [], [0]
    for at, header in _headers(chunk, _header_reader(read, chunk)):
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
    return Pages(*(np.array(each, dtype=np.int64) for each in (starts, sizes, first_rows)))


def whole_chunk(data: memoryview, chunk: Chunk, num_rows: int, repeated: bool) -> list[memoryview]:
    """A chunk to be decoded whole, held against what the footer says of it.

    Its pages, in as few pieces as leave out data pages without values: pyarrow writes such
    pages at times, and reads one as the end of its chunk.
    """
    if num_rows > chunk.num_values or (num_rows != chunk.num_values and not repeated):
        raise FragmentUnreadable(f"a chunk of {num_rows} rows has {chunk.num_values} values")
    rows = 0
    rows_known = True
    pieces: list[memoryview] = []
    begun = 0
    for at, header in _headers(chunk, lambda at: page_header(data[at - chunk.start :])):
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
    chunk: Chunk, header_at: Callable[[int], PageHeader]
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


def _header_reader(read: ReadRanges, chunk: Chunk) -> Callable[[int], PageHeader]:
    if chunk.stop - chunk.start <= _WHOLE_BYTES:
        whole = memoryview(read([(chunk.start, chunk.stop)])[0])
        return lambda at: page_header(whole[at - chunk.start :])

    def header_at(at: int) -> PageHeader:
        for size in _HEADER_BYTES:
            stop = min(at + size, chunk.stop)
            (data,) = read([(at, stop)])
            try:
                return page_header(data)
            except MalformedThrift:
                # The header may go on; unless there was more to read, it is malformed.
                if stop == chunk.stop or size == _HEADER_BYTES[-1]:
                    raise
        raise AssertionError("the last size returns or raises")

    return header_at
