"""Rows of leaves of one row group, by kernels: where keys are, and values at some rows."""

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

# Row groups are read side by side, on a core each.
_MOST_FOUND = 16
# Pages are decompressed some at a time, whatever their chunk is.
_BATCH_BYTES = 1 << 21
_NO_ROWS = np.empty(0, dtype=np.int64)


class PlacedPages(NamedTuple):
    """Pages to open: what `row_kernels.place_pages` says of them, and the bytes and rows of all."""

    pages: np.ndarray
    num_bytes: int
    num_rows: int


class PageTable:
    """The pages of some leaves of one row group, those of one leaf after another."""

    def __init__(self, columns: Sequence[LeafChunk]):
        self.columns = columns
        pages = [column.pages for column in columns]
        self.starts = np.concatenate([each.starts for each in pages])
        self.sizes = np.concatenate([each.sizes for each in pages])
        first_rows = np.concatenate([each.first_rows[:-1] for each in pages])
        self.rows = np.stack([first_rows, np.concatenate([each.first_rows[1:] for each in pages])])
        self.bounds = np.cumsum([0, *(each.starts.size for each in pages)])
        self.levels_and_codecs = np.array(
            [[c.leaf.max_level, c.chunk.codec] for c in columns], np.int64
        )
        self._parts: dict[tuple[int, ...], PageTable] = {}

    def find_pages(self, starts: np.ndarray, stops: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of the pages that hold a row of some ranges, and where those of a leaf begin."""
        numbers = np.empty(self.starts.size, dtype=np.int64)
        bounds = np.empty_like(self.bounds)
        count = row_kernels.find_pages(self.rows, self.bounds, starts, stops, numbers, bounds)
        return numbers[:count], bounds

    def place_pages(self, numbers: np.ndarray) -> PlacedPages:
        """Where some of the pages lie, and what rows they have."""
        pages = np.empty((header_kernels.PAGE_FIELDS, numbers.size), dtype=np.int64)
        place = self.starts, self.sizes, self.rows, numbers, pages
        return PlacedPages(pages, *row_kernels.place_pages(*place))

    def subset(self, numbers: tuple[int, ...]) -> PageTable:
        """Some of the leaves."""
        if len(numbers) == len(self.columns):
            return self
        if numbers not in self._parts:
            self._parts[numbers] = PageTable([self.columns[number] for number in numbers])
        return self._parts[numbers]


class LeafReader:
    """Reads leaves of one file that are not repeated."""

    def __init__(self, file: FragmentFile):
        self._file = file
        # Rows that hold keys and their values, by chunk and what it is read as.
        self._found: OrderedDict[tuple[int, LeafType], tuple[np.ndarray, pa.Array]] = OrderedDict()

    def find_rows(
        self, table: PageTable, keys: StoredKeys, nulls: bool, rows: RowRanges
    ) -> np.ndarray:
        """Those of some rows that hold one of the keys, or null, in a leaf; ascending.

        Raises
        ------
        Undecodable
        FragmentUnreadable
        """
        (column,) = table.columns
        of_dictionary: list[np.ndarray] = []

        def hits_of_dictionary() -> np.ndarray:
            if not of_dictionary:
                of_dictionary.append(self._dictionary(column).find_keys(keys))
            return of_dictionary[0]

        hits, values = [], []
        numbers, _ = table.find_pages(rows.starts, rows.stops)
        for placed in self._batches(table, numbers):
            opened = self._opened(table, placed, np.array([0, placed.pages.shape[1]]))
            part = opened.find_rows(keys, nulls, hits_of_dictionary)
            part = part[: row_kernels.rows_within(rows.starts, rows.stops, part)]
            if part.size:
                hits.append(part)
                values.extend(opened.take(part))
        if not hits:
            return _NO_ROWS
        found = hits[0] if len(hits) == 1 else np.concatenate(hits)
        self._found[_name(column)] = found, _joined(values)
        if len(self._found) > _MOST_FOUND:
            self._found.popitem(last=False)
        return found

    def take(self, table: PageTable, ranges: RowRanges) -> list[pa.Array | None]:
        """The values of each leaf at some rows; None where it is undecodable."""
        rows = ranges.rows()
        arrays: list[pa.Array | None] = [None] * len(table.columns)
        others = []
        for number, column in enumerate(table.columns):
            found, values = self._found.pop(_name(column), (_NO_ROWS, None))
            if values is not None and np.array_equal(found, rows):
                arrays[number] = values
            else:
                others.append(number)
        if not others:
            return arrays
        for number, values in zip(others, self._taken(table, others, ranges, rows), strict=True):
            arrays[number] = values
        return arrays

    def _taken(
        self, table: PageTable, columns: Sequence[int], ranges: RowRanges, rows: np.ndarray
    ) -> list[pa.Array | None]:
        """Return the values of some leaves at some rows, with None for undecodable leaves."""
        part = table.subset(tuple(columns))
        numbers, bounds = part.find_pages(ranges.starts, ranges.stops)
        placed = part.place_pages(numbers)
        try:
            if self._is_small(placed):
                return list(self._opened(part, placed, bounds).take(rows))
            if len(columns) == 1:
                return [self._take_in_batches(part, numbers, rows)]
        except Undecodable:
            if len(columns) == 1:
                return [None]
        # The pages are many, or a leaf is undecodable. Thousands of leaves are read in a few parts.
        half = len(columns) // 2
        return [
            values
            for part_of_columns in (columns[:half], columns[half:])
            for values in self._taken(table, part_of_columns, ranges, rows)
        ]

    def _take_in_batches(self, table: PageTable, numbers: np.ndarray, rows: np.ndarray) -> pa.Array:
        """The values of a leaf at some rows, out of pages that are opened some at a time."""
        parts = []
        for placed in self._batches(table, numbers):
            first, last = placed.pages[:, 0], placed.pages[:, -1]
            stop = last[header_kernels.FIRST_ROW] + last[header_kernels.NUM_ROWS]
            within = np.searchsorted(rows, [first[header_kernels.FIRST_ROW], stop])
            opened = self._opened(table, placed, np.array([0, placed.pages.shape[1]]))
            parts.extend(opened.take(rows[slice(*within.tolist())]))
        return _joined(parts)

    def _is_small(self, placed: PlacedPages) -> bool:
        """Whether pages are read at once; a request to a store is long."""
        return not self._file.is_local or placed.num_bytes <= _BATCH_BYTES

    def _batches(self, table: PageTable, numbers: np.ndarray) -> Iterator[PlacedPages]:
        """The pages of a leaf, some at a time."""
        placed = table.place_pages(numbers)
        if self._is_small(placed):
            yield placed
            return
        batch = placed.pages[header_kernels.READ_START] // _BATCH_BYTES
        for part in np.split(numbers, np.flatnonzero(np.diff(batch)) + 1):
            yield table.place_pages(part)

    def _opened(self, table: PageTable, placed: PlacedPages, bounds: np.ndarray) -> OpenedPages:
        """Some pages of each leaf."""
        pages, num_bytes, num_rows = placed
        data = self._read(
            pages[header_kernels.FILE_START], pages[header_kernels.NUM_BYTES], num_bytes
        )
        place = data, pages, num_rows, bounds
        return OpenedPages(table.columns, table.levels_and_codecs, *place, self._dictionary)

    def _dictionary(self, column: LeafChunk) -> Dictionary:
        """The dictionary of a chunk: it can have one that not all of its pages use."""
        # Not up to ``data_start``: some writers have it point to the dictionary.
        start, stop = column.chunk.start, int(column.pages.starts[0])

        def read() -> Dictionary:
            size = stop - start
            data = self._read(np.array([start]), np.array([size]), size) if size > 0 else None
            return Dictionary(column.leaf, column.chunk.codec, data)

        identity = self._file.identity
        # Of other files another may have the same size and time.
        key = None
        if identity.inode or identity.tag:
            key = self._file.path, identity, start, stop, column.chunk.codec, column.leaf
        return DICTIONARY_CACHE.get(key, read)

    def _read(self, starts: np.ndarray, sizes: np.ndarray, num_bytes: int) -> np.ndarray:
        """Pieces of the file one after another, uint8."""
        if self._file.is_local:
            # Arrow's pool gives memory that was used before: fresh pages cost more than the read.
            data = np.frombuffer(pa.allocate_buffer(num_bytes), dtype=np.uint8)
            if self._file.read_pieces(starts, sizes, data) != data.size:
                raise FragmentUnreadable("it ends before pages that it is said to have")
            return data
        spans = list(zip(starts.tolist(), (starts + sizes).tolist(), strict=True))
        pieces = read_merged_ranges(self._file.read, spans, self._file.coalesce)
        return np.frombuffer(b"".join(pieces), dtype=np.uint8)


def _joined(parts: Sequence[pa.Array]) -> pa.Array:
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)


def _name(column: LeafChunk) -> tuple[int, LeafType]:
    return column.chunk.start, column.leaf
