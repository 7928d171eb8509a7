"""Locate the pages of a column chunk by following its page headers.

Each header has the size of its page, and the next header follows the page. A kernel parses them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from zonebloom.errors import FragmentUnreadable
from zonebloom.parquet.file_layout import ColumnChunk, PageLocations, ReadRanges

# The sizes of successive attempts to read a header. Most headers fit in the first. Statistics of
# long strings need the others.
_HEADER_BYTES = (256, 8 << 10, 1 << 20)
# Smaller chunks are read with one request, larger ones header by header.
_WHOLE_BYTES = 16 << 10
# Each page takes a read, so chunks with more pages are not located.
_MAX_PAGES = 1 << 16
# Headers that the kernel parses at once.
_BATCH_PAGES = 256

Bytes = bytes | memoryview | np.ndarray
# A function that returns the bytes from an offset on, in successive attempts to read the header
# there. With each come the bytes that the encryption of the header takes, 0 without encryption.
HeaderReader = Callable[[int], Iterable[tuple[Bytes, int]]]


def parse_headers(
    data: Bytes, num_bytes: int, num_values: int, encryption_bytes: int = 0
) -> list[tuple[int, int, int, int]]:
    """Return the first pages in ``data``, none if it has no complete header.

    ``num_bytes`` and ``num_values`` are those from here to the end of the column chunk. Each page
    is its start, size, number of values and number of rows, as
    `zonebloom.parquet.header_kernels.find_pages` writes them. Raise `FragmentUnreadable` if a
    header contradicts the chunk.
    """
    # These are imported late, because most lookups know the places of pages from the index.
    from zonebloom.parquet import header_kernels
    from zonebloom.parquet.codecs import error_for_code

    pages = np.empty((4, _BATCH_PAGES), dtype=np.int64)
    count = header_kernels.find_pages(
        np.frombuffer(data, dtype=np.uint8), num_bytes, num_values, encryption_bytes, pages
    )
    if count == header_kernels.MALFORMED:
        return []
    if count < 0:
        raise error_for_code(count)
    return list(zip(*pages[:, :count].tolist(), strict=True))


def follow_headers(
    read_header: HeaderReader, start: int, stop: int, num_values: int
) -> Iterator[tuple[int, int, int, int]]:
    """Yield the pages from ``start`` to ``stop``, as `parse_headers` returns them."""
    while start < stop:
        for data, encryption_bytes in read_header(start):
            pages = parse_headers(data, stop - start, num_values, encryption_bytes)
            if pages:
                break
        else:
            raise FragmentUnreadable("a page header is malformed")
        base = start
        for page_start, size, page_values, num_rows in pages:
            start = base + page_start + size
            num_values -= max(page_values, 0)
            yield base + page_start, size, page_values, num_rows
    # If a damaged header claimed more values than its page has, pages at the end would be left out.
    if num_values:
        raise FragmentUnreadable(f"pages have {num_values} values less than their chunk claims")


def walk_pages(
    read: ReadRanges,
    chunk: ColumnChunk,
    num_rows: int,
    read_header: HeaderReader | None = None,
) -> PageLocations | None:
    """Locate the pages of a chunk by following its page headers.

    ``read_header`` decrypts headers. Return None if pages may begin inside a row, as pages of
    version 1 with repeated values do.
    """
    starts: list[int] = []
    sizes: list[int] = []
    first_rows = [0]
    # Each row has exactly one value then, even if the schema allows repeated values.
    is_flat = chunk.num_values == num_rows
    read_header = read_header or _header_reader(read, chunk)
    pages = follow_headers(read_header, chunk.start, chunk.stop, chunk.num_values)
    for start, size, num_values, page_rows in pages:
        if num_values < 0:
            continue
        rows = num_values if is_flat else page_rows
        # A page with values but no rows begins inside a row.
        if rows < (num_values > 0) or len(starts) == _MAX_PAGES:
            return None
        starts.append(start)
        sizes.append(size)
        first_rows.append(first_rows[-1] + rows)
    if first_rows[-1] != num_rows:
        raise FragmentUnreadable(f"pages have {first_rows[-1]} rows, their row group {num_rows}")
    # Readers refuse pages that lie before the place where the footer says that data begin.
    if not starts or starts[0] < chunk.data_start:
        return None
    return PageLocations(*(np.array(ints, dtype=np.int64) for ints in (starts, sizes, first_rows)))


def _header_reader(read: ReadRanges, chunk: ColumnChunk) -> HeaderReader:
    if chunk.stop - chunk.start <= _WHOLE_BYTES:
        whole_chunk = memoryview(read([(chunk.start, chunk.stop)])[0])
        return lambda start: [(whole_chunk[start - chunk.start :], 0)]

    def read_header(start: int) -> Iterator[tuple[Bytes, int]]:
        for size in _HEADER_BYTES:
            stop = min(start + size, chunk.stop)
            yield read([(start, stop)])[0], 0
            if stop == chunk.stop:
                return

    return read_header
