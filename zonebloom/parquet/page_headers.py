"""Parse page headers, and compare them with page locations before memory is allocated for pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from zonebloom.errors import FragmentUnreadable
from zonebloom.parquet.file_layout import ColumnChunk, PageLocations, ReadRanges
from zonebloom.parquet.thrift import MalformedThrift, ThriftReader

DATA_PAGE, INDEX_PAGE, DICTIONARY_PAGE, DATA_PAGE_V2 = range(4)
_DICTIONARY_ENCODINGS = frozenset((2, 8))
# The field of PageHeader that describes a page of each type.
_DESCRIPTION_FIELDS = {DATA_PAGE: 5, DICTIONARY_PAGE: 7, DATA_PAGE_V2: 8}

# The sizes of successive attempts to read a header. Most headers fit in the first. Statistics of
# long strings need the others.
_HEADER_BYTES = (256, 8 << 10, 1 << 20)
# Smaller chunks are read with one request, larger ones header by header.
_WHOLE_BYTES = 16 << 10
# Each page takes a read, so chunks with more pages are not located.
_MAX_PAGES = 1 << 16

Bytes = bytes | memoryview


class PageHeader(NamedTuple):
    """The description of a page by its header."""

    page_type: int
    size: int  # bytes of the page, including its header
    num_values: int  # with nulls and repeated values, 0 for pages without values
    num_rows: int | None  # only headers of version 2 have it
    needs_dictionary: bool

    @property
    def is_data(self) -> bool:
        return self.page_type in (DATA_PAGE, DATA_PAGE_V2)


def parse_page_header(page: Bytes) -> PageHeader:
    """Return the header at the start of a page. Raise `FragmentUnreadable` if it is not valid."""
    header = ThriftReader(page).read_struct()
    kind, size = _size(header, 1), _size(header, 3)
    total = header.stop + size
    _size(header, 2)
    if kind not in _DESCRIPTION_FIELDS:
        return PageHeader(kind, total, num_values=0, num_rows=None, needs_dictionary=False)
    description = header.get(_DESCRIPTION_FIELDS[kind])
    if not isinstance(description, dict):
        raise FragmentUnreadable("a page header does not describe its page")
    num_values = _size(description, 1)
    if kind != DATA_PAGE_V2:
        needs_dictionary = kind == DATA_PAGE and _size(description, 2) in _DICTIONARY_ENCODINGS
        return PageHeader(kind, total, num_values, None, needs_dictionary)
    num_rows = _size(description, 3)
    level_bytes = _size(description, 5) + _size(description, 6)
    if level_bytes > size or num_rows > num_values or _size(description, 2) > num_values:
        raise FragmentUnreadable("a page header contradicts itself")
    needs_dictionary = _size(description, 4) in _DICTIONARY_ENCODINGS
    return PageHeader(kind, total, num_values, num_rows, needs_dictionary)


def _size(fields: dict[int, Any], number: int) -> int:
    value = fields.get(number)
    if type(value) is not int or not 0 <= value < 1 << 31:
        raise FragmentUnreadable(f"a page header has {value!r:.40} instead of a size")
    return value


def walk_pages(
    read: ReadRanges,
    chunk: ColumnChunk,
    num_rows: int,
    header_at: Callable[[int], PageHeader] | None = None,
) -> PageLocations | None:
    """Locate the pages of a chunk by following its page headers.

    ``header_at`` reads the header at an offset of the file, by default without decryption. Return
    None if pages may begin inside a row, as pages of version 1 with repeated values do.
    """
    # Each row has exactly one value then, even if the schema allows repeated values.
    is_flat = chunk.num_values == num_rows
    starts, sizes, first_rows = [], [], [0]
    for start, header in _headers(chunk, header_at or _header_reader(read, chunk)):
        if not header.is_data:
            continue
        rows = header.num_values if is_flat else header.num_rows
        # A page with values but no rows begins inside a row.
        if rows is None or (header.num_values and not rows) or len(starts) == _MAX_PAGES:
            return None
        starts.append(start)
        sizes.append(header.size)
        first_rows.append(first_rows[-1] + rows)
    if first_rows[-1] != num_rows:
        raise FragmentUnreadable(f"pages have {first_rows[-1]} rows, their row group {num_rows}")
    # Readers refuse pages that lie before the place where the footer says that data begin.
    if not starts or starts[0] < chunk.data_start:
        return None
    return PageLocations(*(np.array(ints, dtype=np.int64) for ints in (starts, sizes, first_rows)))


def _headers(
    chunk: ColumnChunk, header_at: Callable[[int], PageHeader]
) -> Iterator[tuple[int, PageHeader]]:
    """Yield the start and the header of each page of a chunk."""
    start, num_values = chunk.start, 0
    while start < chunk.stop:
        header = header_at(start)
        if header.size > chunk.stop - start:
            raise FragmentUnreadable("a page reaches beyond its column chunk")
        yield start, header
        num_values += header.num_values if header.is_data else 0
        start += header.size
    # If a damaged header claimed more values than its page has, pages at the end would be left out.
    if num_values != chunk.num_values:
        raise FragmentUnreadable(f"pages have {num_values} values, their chunk {chunk.num_values}")


def _header_reader(read: ReadRanges, chunk: ColumnChunk) -> Callable[[int], PageHeader]:
    if chunk.stop - chunk.start <= _WHOLE_BYTES:
        whole_chunk = memoryview(read([(chunk.start, chunk.stop)])[0])
        return lambda start: parse_page_header(whole_chunk[start - chunk.start :])

    def header_at(start: int) -> PageHeader:
        for size in _HEADER_BYTES:
            stop = min(start + size, chunk.stop)
            (data,) = read([(start, stop)])
            try:
                return parse_page_header(data)
            except MalformedThrift:
                # The header may be longer than the read. If all was read, it is malformed.
                if stop == chunk.stop or size == _HEADER_BYTES[-1]:
                    raise
        raise AssertionError("the last size returns or raises")

    return header_at
