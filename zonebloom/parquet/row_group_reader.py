"""Reading rows of a row group by touching only the pages that hold them, held against their headers
and decoded by pyarrow out of a synthetic file. A chunk without page locations, and a struct of
misaligned leaves, is read as if it were one page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

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

# Up to here pieces are sliced; beyond it a gather is quicker.
_SLICED_RANGES = 32


@dataclass(frozen=True, slots=True)
class PageSelection:
    """The pages of a chunk that hold the wanted rows; columns of the same ``bounds`` travel
    together."""

    pages: np.ndarray
    first_rows: np.ndarray
    stop_rows: np.ndarray
    bounds: bytes
    num_rows: int


@dataclass(frozen=True, slots=True)
class _ChunkRead:
    """What is read of one chunk; ``dictionary`` and ``spans`` are (start, stop) in the file."""

    leaf: int
    whole: bool
    selection: PageSelection
    dictionary: tuple[int, int]
    spans: list[tuple[int, int]]

    @property
    def dictionary_bytes(self) -> int:
        return self.dictionary[1] - self.dictionary[0]


class RowGroupReader:
    """Reads rows of one row group; ``whole`` says which fields' chunks it read whole, and why."""

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
        """The values of some top-level fields at some rows, by field, in row order."""
        selections: dict[bytes, PageSelection] = {}
        reads = {field: self._reads(field, rows, selections) for field in sorted(set(fields))}
        copied = self._copied([read for of_field in reads.values() for read in of_field])
        together: dict[bytes, list[int]] = {}
        for field, of_field in reads.items():
            together.setdefault(of_field[0].selection.bounds, []).append(field)
        values: dict[int, pa.ChunkedArray] = {}
        for members in together.values():
            selection = reads[members[0]][0].selection
            chunks = [copied[read.leaf] for field in members for read in reads[field]]
            kept = _take(self._decode(members, chunks, selection.num_rows), selection, rows)
            values.update(zip(members, kept.columns, strict=True))
        return values

    def _reads(
        self, field: int, rows: RowRanges, selections: dict[bytes, PageSelection]
    ) -> list[_ChunkRead]:
        leaves = self._schema.field_leaves[field]
        if not leaves:
            raise FragmentUnreadable(f"column {self._schema.names[field]!r} has no leaf")
        pages = [self._pages(leaf) for leaf in leaves]
        reads = [
            self._chunk_read(leaf, of_leaf, rows, selections)
            for leaf, of_leaf in zip(leaves, pages, strict=True)
        ]
        if any(read.selection.bounds != reads[0].selection.bounds for read in reads):
            self.whole[field] = "pages of its leaves are cut at different rows"
            return [self._chunk_read(leaf, None, rows, selections) for leaf in leaves]
        if any(read.whole for read in reads):
            self.whole[field] = "page locations are not known"
        elif any(of_leaf is not None and of_leaf.starts.size == 1 for of_leaf in pages):
            self.whole[field] = "it is one page"
        return reads

    def _chunk_read(
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
            nothing, all_of_it = (chunk.start, chunk.start), [(chunk.start, chunk.stop)]
            return _ChunkRead(leaf, True, selection, nothing, all_of_it)
        starts = pages.starts[selection.pages]
        stops = starts + pages.sizes[selection.pages]
        spans = list(zip(starts.tolist(), stops.tolist(), strict=True))
        # Not up to ``data_start``: some writers have it point to the dictionary.
        return _ChunkRead(leaf, False, selection, (chunk.start, int(pages.starts[0])), spans)

    def _copied(self, reads: Sequence[_ChunkRead]) -> dict[int, CopiedChunk]:
        """What goes into synthetic files, by leaf; every page held against its header."""
        small = {r.dictionary for r in reads if 0 < r.dictionary_bytes <= self._coalesce}
        spans = [*(span for read in reads for span in read.spans), *small]
        views = iter(read_merged_ranges(self._read, spans, self._coalesce))
        checked = [self._checked([next(views) for _ in read.spans], read) for read in reads]
        dictionaries = dict(zip(small, views, strict=True))
        # A chunk can have a dictionary that these pages do not use: it is read when one does.
        needed = {
            read.dictionary
            for read, (*_, needs) in zip(reads, checked, strict=True)
            if needs and read.dictionary_bytes
        }
        large = list(needed - small)
        dictionaries |= zip(
            large, read_merged_ranges(self._read, large, self._coalesce), strict=True
        )
        for span in needed:
            check_dictionary_page(dictionaries[span])
        copied: dict[int, CopiedChunk] = {}
        for read, (pages, num_values, needs) in zip(reads, checked, strict=True):
            chunk, path = self._group.chunks[read.leaf], self._schema.leaves[read.leaf].path
            dictionary = dictionaries[read.dictionary] if needs and read.dictionary_bytes else b""
            copied[read.leaf] = CopiedChunk(chunk, path, dictionary, pages, num_values)
        return copied

    def _checked(
        self, pages: list[memoryview], read: _ChunkRead
    ) -> tuple[list[memoryview], int, bool]:
        """Pages, number of values, and whether a dictionary is to come before them."""
        chunk, repeated = self._group.chunks[read.leaf], self._schema.leaves[read.leaf].is_repeated
        selection = read.selection
        if read.whole:
            pieces = split_whole_chunk(pages[0], chunk, selection.num_rows, repeated)
            return pieces, chunk.num_values, False
        num_rows = (selection.stop_rows - selection.first_rows).tolist()
        headers = [
            checked_data_page(page, rows, repeated)
            for page, rows in zip(pages, num_rows, strict=True)
        ]
        num_values = sum(header.num_values for header in headers)
        return pages, num_values, any(header.needs_dictionary for header in headers)

    def _decode(
        self, fields: Sequence[int], chunks: Sequence[CopiedChunk], num_rows: int
    ) -> pa.Table:
        import pyarrow.parquet as pq

        # One row more is claimed, which pyarrow does not mind: so pages that hold more rows
        # than they should are noticed as well as those that hold fewer.
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
            raise FragmentUnreadable(
                f"pages hold {table.num_rows} rows where {num_rows} were to be"
            )
        return table


def select_pages(first_rows: np.ndarray, rows: RowRanges) -> PageSelection:
    firsts, stops = first_rows[:-1], first_rows[1:]
    # A page is wanted when a range begins before its end and ends after its start.
    begun = np.searchsorted(rows.starts, stops, side="left")
    ended = np.searchsorted(rows.stops, firsts, side="right")
    # pyarrow writes pages without rows at times, and reads one as the end of its chunk.
    pages = np.flatnonzero((begun > ended) & (stops > firsts))
    firsts, stops = firsts[pages], stops[pages]
    bounds = firsts.tobytes() + stops.tobytes()
    return PageSelection(pages, firsts, stops, bounds, int((stops - firsts).sum()))


def _take(table: pa.Table, selection: PageSelection, rows: RowRanges) -> pa.Table:
    """The wanted rows of a table that holds the rows of some pages one after another."""
    if len(rows) == table.num_rows:
        return table
    lengths = selection.stop_rows - selection.first_rows
    bases = np.cumsum(lengths) - lengths
    # A wanted range may span pages, which are neighbours then.
    page = np.searchsorted(selection.first_rows, rows.starts, side="right") - 1
    starts = rows.starts - selection.first_rows[page] + bases[page]
    counts = rows.stops - rows.starts
    if starts.size > _SLICED_RANGES:
        offsets = np.repeat(starts - (np.cumsum(counts) - counts), counts)
        try:
            return table.take(pa.array(offsets + np.arange(offsets.size)))
        except pa.ArrowNotImplementedError:
            # pyarrow has no kernel that gathers views.
            return _sliced(table, starts, counts).combine_chunks()
    return _sliced(table, starts, counts)


def _sliced(table: pa.Table, starts: np.ndarray, counts: np.ndarray) -> pa.Table:
    pieces = [
        table.slice(start, count)
        for start, count in zip(starts.tolist(), counts.tolist(), strict=True)
    ]
    return pieces[0] if len(pieces) == 1 else pa.concat_tables(pieces)
