"""Read rows of a row group with pyarrow, from only the pages that hold them.

Pages are compared with their headers, and copied into a synthetic file that pyarrow decodes. A
chunk without page locations is read whole, as are structs whose leaves have pages with different
rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from zonebloom.base.row_ranges import RowRanges
from zonebloom.errors import FragmentUnreadable
from zonebloom.parquet.file_layout import FilePages, PageLocations, ReadRanges
from zonebloom.parquet.page_headers import (
    check_dictionary_page,
    checked_data_page,
    split_whole_chunk,
)
from zonebloom.parquet.synthetic_file import CopiedChunk, synthetic_file
from zonebloom.storage.random_access import LOCAL_COALESCE_GAP, read_merged_ranges

# Up to this number of ranges, slices of a table are faster than a gather.
_MAX_SLICES = 32


class PageSelection(NamedTuple):
    """The pages of a chunk that hold the wanted rows.

    Columns with the same ``bounds`` are decoded from one synthetic file.
    """

    pages: np.ndarray
    first_rows: np.ndarray
    stop_rows: np.ndarray
    bounds: bytes
    num_rows: int


class _ChunkRead(NamedTuple):
    """The parts of one chunk to read.

    ``dictionary`` and ``spans`` are (start, stop) in the file.
    """

    leaf: int
    is_whole: bool
    selection: PageSelection
    dictionary: tuple[int, int]
    spans: list[tuple[int, int]]

    @property
    def dictionary_bytes(self) -> int:
        return self.dictionary[1] - self.dictionary[0]


class RowGroupReader:
    """Reads rows of one row group.

    ``whole`` has the reasons why chunks of fields were read whole, by field.
    """

    def __init__(
        self, pages: FilePages, row_group: int, read: ReadRanges, coalesce: int = LOCAL_COALESCE_GAP
    ):
        self._schema = pages.schema
        self._group = pages.row_groups[row_group]
        self._pages = partial(pages.locations, row_group)
        self._read = read
        self._coalesce = coalesce
        self.whole: dict[int, str] = {}

    def read(self, fields: Sequence[int], rows: RowRanges) -> dict[int, pa.ChunkedArray]:
        """Return the values of top-level fields at rows, by field, in row order."""
        selections: dict[bytes, PageSelection] = {}
        reads = {field: self._plan_reads(field, rows, selections) for field in sorted(set(fields))}
        chunks = self._read_chunks([read for field_reads in reads.values() for read in field_reads])
        fields_by_bounds: dict[bytes, list[int]] = {}
        for field, field_reads in reads.items():
            fields_by_bounds.setdefault(field_reads[0].selection.bounds, []).append(field)
        values: dict[int, pa.ChunkedArray] = {}
        for group in fields_by_bounds.values():
            selection = reads[group[0]][0].selection
            group_chunks = [chunks[read.leaf] for field in group for read in reads[field]]
            decoded = self._decode(group, group_chunks, selection.num_rows)
            wanted_rows = _take_rows(decoded, selection, rows)
            values.update(zip(group, wanted_rows.columns, strict=True))
        return values

    def _plan_reads(
        self, field: int, rows: RowRanges, selections: dict[bytes, PageSelection]
    ) -> list[_ChunkRead]:
        leaves = self._schema.field_leaves[field]
        if not leaves:
            raise FragmentUnreadable(f"column {self._schema.names[field]!r} has no leaf")
        pages = [self._pages(leaf) for leaf in leaves]
        reads = [
            self._plan_chunk_read(leaf, locations, rows, selections)
            for leaf, locations in zip(leaves, pages, strict=True)
        ]
        if any(read.selection.bounds != reads[0].selection.bounds for read in reads):
            self.whole[field] = "pages of its leaves are cut at different rows"
            return [self._plan_chunk_read(leaf, None, rows, selections) for leaf in leaves]
        if any(read.is_whole for read in reads):
            self.whole[field] = "page locations are not known"
        elif any(locations is not None and locations.starts.size == 1 for locations in pages):
            self.whole[field] = "it is one page"
        return reads

    def _plan_chunk_read(
        self,
        leaf: int,
        pages: PageLocations | None,
        rows: RowRanges,
        selections: dict[bytes, PageSelection],
    ) -> _ChunkRead:
        chunk = self._group.chunks[leaf]
        first_rows = np.array([0, self._group.num_rows]) if pages is None else pages.first_rows
        key = first_rows.tobytes()
        if key not in selections:
            selections[key] = select_pages(first_rows, rows)
        selection = selections[key]
        if pages is None:
            # The dictionary page is part of the whole chunk.
            dictionary, spans = (chunk.start, chunk.start), [(chunk.start, chunk.stop)]
            return _ChunkRead(
                leaf, is_whole=True, selection=selection, dictionary=dictionary, spans=spans
            )
        starts = pages.starts[selection.pages]
        stops = starts + pages.sizes[selection.pages]
        spans = list(zip(starts.tolist(), stops.tolist(), strict=True))
        # The dictionary ends at the first data page. Some writers let ``data_start`` point to the
        # dictionary instead.
        dictionary = chunk.start, int(pages.starts[0])
        return _ChunkRead(
            leaf, is_whole=False, selection=selection, dictionary=dictionary, spans=spans
        )

    def _read_chunks(self, reads: Sequence[_ChunkRead]) -> dict[int, CopiedChunk]:
        """Return the chunks for the synthetic files, by leaf. Raise if headers do not fit pages."""
        small = {r.dictionary for r in reads if 0 < r.dictionary_bytes <= self._coalesce}
        spans = [*(span for read in reads for span in read.spans), *small]
        views = iter(read_merged_ranges(self._read, spans, self._coalesce))
        checked = [self._check_pages([next(views) for _ in read.spans], read) for read in reads]
        dictionaries = dict(zip(small, views, strict=True))
        # A large dictionary is read only if one of these pages uses it.
        needed = {
            read.dictionary
            for read, (*_, needs_dictionary) in zip(reads, checked, strict=True)
            if needs_dictionary and read.dictionary_bytes
        }
        large = list(needed - small)
        dictionaries |= zip(
            large, read_merged_ranges(self._read, large, self._coalesce), strict=True
        )
        for span in needed:
            check_dictionary_page(dictionaries[span])
        copied_chunks: dict[int, CopiedChunk] = {}
        for read, (pages, num_values, needs_dictionary) in zip(reads, checked, strict=True):
            chunk, path = self._group.chunks[read.leaf], self._schema.leaves[read.leaf].path
            has_dictionary = needs_dictionary and read.dictionary_bytes
            dictionary = dictionaries[read.dictionary] if has_dictionary else b""
            copied_chunks[read.leaf] = CopiedChunk(chunk, path, dictionary, pages, num_values)
        return copied_chunks

    def _check_pages(
        self, pages: list[memoryview], read: _ChunkRead
    ) -> tuple[list[memoryview], int, bool]:
        """Return the pages, their number of values, and whether they need a dictionary."""
        chunk = self._group.chunks[read.leaf]
        is_repeated = self._schema.leaves[read.leaf].is_repeated
        selection = read.selection
        if read.is_whole:
            pieces = split_whole_chunk(pages[0], chunk, selection.num_rows, is_repeated)
            return pieces, chunk.num_values, False
        num_rows = (selection.stop_rows - selection.first_rows).tolist()
        headers = [
            checked_data_page(page, rows, is_repeated)
            for page, rows in zip(pages, num_rows, strict=True)
        ]
        num_values = sum(header.num_values for header in headers)
        return pages, num_values, any(header.needs_dictionary for header in headers)

    def _decode(
        self, fields: Sequence[int], chunks: Sequence[CopiedChunk], num_rows: int
    ) -> pa.Table:
        import pyarrow.parquet as pq

        # Claim one more row than expected, so that pyarrow does not stop before surplus rows of the
        # pages. It accepts the missing row, and the check below counts the rows.
        file = synthetic_file(self._schema, tuple(fields), chunks, num_rows + 1)
        try:
            decoded = pq.ParquetFile(
                pa.BufferReader(file), pre_buffer=False, page_checksum_verification=True
            )
            table = decoded.read(use_threads=False)
        except (pa.ArrowException, OSError, ValueError) as error:
            names = ", ".join(self._schema.names[field] for field in fields)
            raise FragmentUnreadable(f"pages of {names} cannot be decoded: {error}") from None
        if table.num_rows != num_rows or table.num_columns != len(fields):
            raise FragmentUnreadable(f"pages hold {table.num_rows} rows instead of {num_rows}")
        return table


def select_pages(first_rows: np.ndarray, rows: RowRanges) -> PageSelection:
    """Return the pages that hold some of the rows. ``first_rows`` is as in `PageLocations`."""
    firsts, stops = first_rows[:-1], first_rows[1:]
    # A page overlaps a range that begins before the end of the page and ends after its start.
    num_begun = np.searchsorted(rows.starts, stops, side="left")
    num_ended = np.searchsorted(rows.stops, firsts, side="right")
    # pyarrow sometimes writes pages without rows, but reads them as the end of a chunk.
    pages = np.flatnonzero((num_begun > num_ended) & (stops > firsts))
    firsts, stops = firsts[pages], stops[pages]
    bounds = firsts.tobytes() + stops.tobytes()
    return PageSelection(pages, firsts, stops, bounds, int((stops - firsts).sum()))


def _take_rows(table: pa.Table, selection: PageSelection, rows: RowRanges) -> pa.Table:
    """Return the wanted rows of a table that holds the rows of the selected pages."""
    if len(rows) == table.num_rows:
        return table
    lengths = selection.stop_rows - selection.first_rows
    page_starts = np.cumsum(lengths) - lengths
    # A range may span several pages. They are neighbours, so its rows are consecutive in the table.
    page = np.searchsorted(selection.first_rows, rows.starts, side="right") - 1
    starts = rows.starts - selection.first_rows[page] + page_starts[page]
    counts = rows.stops - rows.starts
    if starts.size > _MAX_SLICES:
        offsets = np.repeat(starts - (np.cumsum(counts) - counts), counts)
        try:
            return table.take(pa.array(offsets + np.arange(offsets.size)))
        except pa.ArrowNotImplementedError:
            # pyarrow cannot gather values of view types.
            return _concatenate_slices(table, starts, counts).combine_chunks()
    return _concatenate_slices(table, starts, counts)


def _concatenate_slices(table: pa.Table, starts: np.ndarray, counts: np.ndarray) -> pa.Table:
    pieces = [
        table.slice(start, count)
        for start, count in zip(starts.tolist(), counts.tolist(), strict=True)
    ]
    return pieces[0] if len(pieces) == 1 else pa.concat_tables(pieces)
