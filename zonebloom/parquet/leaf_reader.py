"""Read leaves of one row group with kernels: find the rows of keys, and take values at rows."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from zonebloom.base.row_ranges import RowRanges
from zonebloom.errors import FragmentUnreadable
from zonebloom.parquet import header_kernels, row_kernels
from zonebloom.parquet.dictionaries import DICTIONARY_CACHE, Dictionary
from zonebloom.parquet.key_set import StoredKeys
from zonebloom.parquet.leaf_type import LeafChunk, LeafType, Undecodable
from zonebloom.parquet.opened_pages import OpenedPages
from zonebloom.storage.random_access import FragmentFile, read_merged_ranges

# The most results of `find_rows` that are cached for `take`. Threads read several row groups at
# once.
_MAX_CACHED_FINDS = 16
# Pages are read and decompressed in batches of about this size, so that they fit a cache.
_BATCH_BYTES = 1 << 21
_NO_ROWS = np.empty(0, dtype=np.int64)


class PlacedPages(NamedTuple):
    """A table of pages as `row_kernels.place_pages` fills it, and their total bytes and rows."""

    pages: np.ndarray
    num_bytes: int
    num_rows: int


class PageTable:
    """The pages of some leaves of one row group, leaf after leaf."""

    def __init__(self, columns: Sequence[LeafChunk]):
        self.columns = columns
        pages = [column.pages for column in columns]
        self.starts = np.concatenate([locations.starts for locations in pages])
        self.sizes = np.concatenate([locations.sizes for locations in pages])
        first_rows = np.concatenate([locations.first_rows[:-1] for locations in pages])
        stop_rows = np.concatenate([locations.first_rows[1:] for locations in pages])
        self.rows = np.stack([first_rows, stop_rows])
        # The first page of each leaf, and the end of the last one.
        self.bounds = np.cumsum([0, *(locations.starts.size for locations in pages)])
        self.levels_and_codecs = np.array(
            [[c.leaf.max_level, c.chunk.codec] for c in columns], np.int64
        )
        self._subsets: dict[tuple[int, ...], PageTable] = {}

    def find_pages(self, starts: np.ndarray, stops: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the numbers of the pages that hold a row of some ranges.

        The second array has for each leaf the place where its page numbers start in the first.
        """
        numbers = np.empty(self.starts.size, dtype=np.int64)
        bounds = np.empty_like(self.bounds)
        count = row_kernels.find_pages(self.rows, self.bounds, starts, stops, numbers, bounds)
        return numbers[:count], bounds

    def place_pages(self, numbers: np.ndarray) -> PlacedPages:
        """Return where the numbered pages lie, and which rows they have."""
        pages = np.empty((header_kernels.PAGE_FIELDS, numbers.size), dtype=np.int64)
        totals = row_kernels.place_pages(self.starts, self.sizes, self.rows, numbers, pages)
        return PlacedPages(pages, *totals)

    def subset(self, numbers: tuple[int, ...]) -> PageTable:
        """Return a table of only the leaves with these numbers, distinct and ascending."""
        if len(numbers) == len(self.columns):
            return self
        if numbers not in self._subsets:
            self._subsets[numbers] = PageTable([self.columns[number] for number in numbers])
        return self._subsets[numbers]


class LeafReader:
    """Reads those leaves of one file that are not inside lists or maps."""

    def __init__(self, file: FragmentFile):
        self._file = file
        # The rows that `find_rows` found and their values, for a `take` of the same rows.
        self._cached_finds: OrderedDict[tuple[int, LeafType], tuple[np.ndarray, pa.Array]] = (
            OrderedDict()
        )

    def find_rows(
        self, table: PageTable, keys: StoredKeys, nulls: bool, rows: RowRanges
    ) -> np.ndarray:
        """Return the rows that hold one of the keys in a leaf, ascending.

        Parameters
        ----------
        table : PageTable
            The pages of the leaf.
        keys : StoredKeys
        nulls : bool
            Whether to return rows with a null too.
        rows : RowRanges
            The rows to search.

        Raises
        ------
        Undecodable
        FragmentUnreadable
        """
        (column,) = table.columns
        # The dictionary is read only if a page needs it, and searched once for all batches.
        dictionary_hits: list[np.ndarray] = []

        def find_in_dictionary() -> np.ndarray:
            if not dictionary_hits:
                dictionary_hits.append(self._dictionary(column).find_keys(keys))
            return dictionary_hits[0]

        parts, values = [], []
        numbers, _ = table.find_pages(rows.starts, rows.stops)
        for placed in self._batches(table, numbers):
            opened = self._open_pages(table, placed, np.array([0, placed.pages.shape[1]]))
            part = opened.find_rows(keys, nulls, find_in_dictionary)
            part = part[: row_kernels.rows_within(rows.starts, rows.stops, part)]
            if part.size:
                parts.append(part)
                values.extend(opened.take(part))
        if not parts:
            return _NO_ROWS
        matches = parts[0] if len(parts) == 1 else np.concatenate(parts)
        # Assigning to an existing key would leave it at its old place in the order, so remove it.
        self._cached_finds.pop(_cache_key(column), None)
        self._cached_finds[_cache_key(column)] = matches, _concatenate(values)
        if len(self._cached_finds) > _MAX_CACHED_FINDS:
            self._cached_finds.popitem(last=False)
        return matches

    def take(self, table: PageTable, ranges: RowRanges) -> list[pa.Array | None]:
        """Return the values of each leaf at some rows, with None for undecodable leaves."""
        rows = ranges.rows()
        arrays: list[pa.Array | None] = [None] * len(table.columns)
        to_read = []
        for number, column in enumerate(table.columns):
            matches, values = self._cached_finds.pop(_cache_key(column), (_NO_ROWS, None))
            if values is not None and np.array_equal(matches, rows):
                arrays[number] = values
            else:
                to_read.append(number)
        if not to_read:
            return arrays
        arrays_read = self._take_columns(table, to_read, ranges, rows)
        for number, values in zip(to_read, arrays_read, strict=True):
            arrays[number] = values
        return arrays

    def _take_columns(
        self, table: PageTable, columns: Sequence[int], ranges: RowRanges, rows: np.ndarray
    ) -> list[pa.Array | None]:
        """Return the values of some leaves at some rows, with None for undecodable leaves."""
        subset = table.subset(tuple(columns))
        numbers, bounds = subset.find_pages(ranges.starts, ranges.stops)
        placed = subset.place_pages(numbers)
        try:
            if self._is_one_batch(placed):
                return list(self._open_pages(subset, placed, bounds).take(rows))
            if len(columns) == 1:
                return [self._take_in_batches(subset, numbers, rows)]
        except Undecodable:
            if len(columns) == 1:
                return [None]
        # The pages are many, or a leaf is undecodable. Thousands of leaves are read in a few parts.
        half = len(columns) // 2
        return [
            values
            for half_of_columns in (columns[:half], columns[half:])
            for values in self._take_columns(table, half_of_columns, ranges, rows)
        ]

    def _take_in_batches(self, table: PageTable, numbers: np.ndarray, rows: np.ndarray) -> pa.Array:
        """Return the values of a leaf at some rows. Open its pages in batches."""
        parts = []
        for placed in self._batches(table, numbers):
            first, last = placed.pages[:, 0], placed.pages[:, -1]
            stop = last[header_kernels.FIRST_ROW] + last[header_kernels.NUM_ROWS]
            begin, end = np.searchsorted(rows, [first[header_kernels.FIRST_ROW], stop]).tolist()
            opened = self._open_pages(table, placed, np.array([0, placed.pages.shape[1]]))
            parts.extend(opened.take(rows[begin:end]))
        return _concatenate(parts)

    def _is_one_batch(self, placed: PlacedPages) -> bool:
        """Return whether to read pages together, as always from an object store."""
        return not self._file.is_local or placed.num_bytes <= _BATCH_BYTES

    def _batches(self, table: PageTable, numbers: np.ndarray) -> Iterator[PlacedPages]:
        placed = table.place_pages(numbers)
        if self._is_one_batch(placed):
            yield placed
            return
        batch = placed.pages[header_kernels.READ_START] // _BATCH_BYTES
        for part in np.split(numbers, np.flatnonzero(np.diff(batch)) + 1):
            yield table.place_pages(part)

    def _open_pages(self, table: PageTable, placed: PlacedPages, bounds: np.ndarray) -> OpenedPages:
        """Read and open the placed pages of all leaves of a table."""
        pages, num_bytes, num_rows = placed
        data = self._read(
            pages[header_kernels.FILE_START], pages[header_kernels.NUM_BYTES], num_bytes
        )
        return OpenedPages(
            table.columns,
            table.levels_and_codecs,
            data,
            pages,
            num_rows,
            bounds,
            self._dictionary,
        )

    def _dictionary(self, column: LeafChunk) -> Dictionary:
        """Return the dictionary of a chunk, from the cache if possible."""
        # The dictionary ends at the first data page. Some writers let ``data_start`` point to the
        # dictionary instead.
        start, stop = column.chunk.start, int(column.pages.starts[0])

        def read() -> Dictionary:
            size = stop - start
            data = self._read(np.array([start]), np.array([size]), size) if size > 0 else None
            return Dictionary(column.leaf, column.chunk.codec, data)

        identity = self._file.identity
        # Without an inode or a tag, a replaced file may have the same identity: do not cache it.
        key = None
        if identity.inode or identity.tag:
            key = self._file.path, identity, start, stop, column.chunk.codec, column.leaf
        return DICTIONARY_CACHE.get(key, read)

    def _read(self, starts: np.ndarray, sizes: np.ndarray, num_bytes: int) -> np.ndarray:
        """Return pieces of the file, one after another, uint8."""
        if self._file.is_local:
            # Arrow's pool reuses memory. New memory would cost more time than the read.
            data = np.frombuffer(pa.allocate_buffer(num_bytes), dtype=np.uint8)
            if self._file.read_pieces(starts, sizes, data) != data.size:
                raise FragmentUnreadable("it ends before the end of its pages")
            return data
        spans = list(zip(starts.tolist(), (starts + sizes).tolist(), strict=True))
        pieces = read_merged_ranges(self._file.read, spans, self._file.coalesce)
        return np.frombuffer(b"".join(pieces), dtype=np.uint8)


def _concatenate(parts: Sequence[pa.Array]) -> pa.Array:
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)


def _cache_key(column: LeafChunk) -> tuple[int, LeafType]:
    return column.chunk.start, column.leaf
