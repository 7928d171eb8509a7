"""Reading rows of a row group by touching only the pages that hold them.

For each leaf the pages that overlap the wanted rows are found in its page locations, read in
few requests, held against their headers, and decoded by pyarrow out of a synthetic file. A
chunk without page locations, and a struct whose leaves have their pages cut at different rows,
is read as if it were one page.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from zonebloom.errors import FragmentUnreadable
from zonebloom.ranges import RowRanges
from zonebloom.storage.parquet.headers import check_dictionary, data_page, whole_chunk
from zonebloom.storage.parquet.layout import Chunk, FileSchema, Pages, ReadRanges, RowGroup
from zonebloom.storage.parquet.synthetic import CopiedChunk, synthetic_file

# Reads with less than this between them become one, bytes.
COALESCE_BYTES = 4096

# Up to here pieces are sliced; beyond it a gather is quicker.
_SLICED_RANGES = 32


@dataclass(frozen=True, slots=True)
class _PageSelection:
    """Some of the pages of a chunk: those that hold the wanted rows.

    Columns whose selections have the same ``bounds`` travel in one file.
    """

    pages: np.ndarray
    first_rows: np.ndarray
    stop_rows: np.ndarray
    bounds: bytes
    num_rows: int


@dataclass(frozen=True, slots=True)
class _ChunkRead:
    """What is read of one chunk; ``dictionary`` and ``spans`` are (start, stop) in the file."""

    leaf: int
    chunk: Chunk
    path: tuple[str, ...]
    repeated: bool
    whole: bool
    selection: _PageSelection
    dictionary: tuple[int, int]
    spans: list[tuple[int, int]]


class RowGroupReader:
    """Reads rows of one row group; ``whole`` says which fields' chunks it read whole, and why."""

    def __init__(
        self,
        schema: FileSchema,
        group: RowGroup,
        pages: Callable[[int], Pages | None],
        read: ReadRanges,
        coalesce: int = COALESCE_BYTES,
    ):
        self._schema = schema
        self._group = group
        self._pages = pages
        self._read = read
        self._coalesce = coalesce
        self.whole: dict[int, str] = {}

    def read(self, fields: Sequence[int], rows: RowRanges) -> dict[int, pa.ChunkedArray]:
        """The values of some top-level fields at some rows, by field, in row order."""
        selections: dict[bytes, _PageSelection] = {}
        runs = {field: self._runs(field, rows, selections) for field in sorted(set(fields))}
        copied = self._copied([run for each in runs.values() for run in each])
        together: dict[bytes, list[int]] = {}
        for field, each in runs.items():
            together.setdefault(each[0].selection.bounds, []).append(field)
        values: dict[int, pa.ChunkedArray] = {}
        for members in together.values():
            selection = runs[members[0]][0].selection
            chunks = [copied[run.leaf] for field in members for run in runs[field]]
            kept = _take(self._decode(members, chunks, selection.num_rows), selection, rows)
            for at, field in enumerate(members):
                values[field] = kept.column(at)
        return values

    def _runs(
        self, field: int, rows: RowRanges, selections: dict[bytes, _PageSelection]
    ) -> list[_ChunkRead]:
        leaves = self._schema.field_leaves[field]
        if not leaves:
            raise FragmentUnreadable(f"column {self._schema.names[field]!r} has no leaf")
        pages = [self._pages(leaf) for leaf in leaves]
        runs = [
            self._run(leaf, each, rows, selections)
            for leaf, each in zip(leaves, pages, strict=True)
        ]
        if any(run.selection.bounds != runs[0].selection.bounds for run in runs):
            self.whole[field] = "pages of its leaves are cut at different rows"
            return [self._run(leaf, None, rows, selections) for leaf in leaves]
        if any(run.whole for run in runs):
            self.whole[field] = "page locations are not known"
        elif any(each is not None and each.starts.size == 1 for each in pages):
            self.whole[field] = "it is one page"
        return runs

    def _run(
        self,
        leaf: int,
        pages: Pages | None,
        rows: RowRanges,
        selections: dict[bytes, _PageSelection],
    ) -> _ChunkRead:
        chunk, described = self._group.chunks[leaf], self._schema.leaves[leaf]
        whole = pages is None
        first_rows = np.array([0, self._group.num_rows]) if pages is None else pages.first_rows
        key = first_rows.tobytes()
        selection = selections.get(key)
        if selection is None:
            selection = selections[key] = _select_pages(first_rows, rows)
        if pages is None:
            dictionary, spans = (chunk.start, chunk.start), [(chunk.start, chunk.stop)]
        else:
            # Not up to ``data_start``: some writers have it point to the dictionary.
            dictionary = chunk.start, int(pages.starts[0])
            starts = pages.starts[selection.pages]
            stops = starts + pages.sizes[selection.pages]
            spans = list(zip(starts.tolist(), stops.tolist(), strict=True))
        return _ChunkRead(
            leaf, chunk, described.path, described.repeated, whole, selection, dictionary, spans
        )

    def _copied(self, runs: Sequence[_ChunkRead]) -> dict[int, CopiedChunk]:
        """What goes into synthetic files, by leaf; every page held against its header."""
        fetched = _Fetched(self._read, self._coalesce)
        small = [run.dictionary for run in runs if 0 < _length(run.dictionary) <= self._coalesce]
        fetched.fetch([span for run in runs for span in run.spans] + small)
        checked = [_checked(fetched, run) for run in runs]
        # A chunk can have a dictionary that these pages do not use: it is read when one does.
        needed = [
            run.dictionary
            for run, (*_, needs) in zip(runs, checked, strict=True)
            if needs and _length(run.dictionary) > self._coalesce
        ]
        fetched.fetch(needed)
        copied: dict[int, CopiedChunk] = {}
        for run, (pages, num_values, needs) in zip(runs, checked, strict=True):
            dictionary = b""
            if needs and _length(run.dictionary):
                dictionary = fetched.view(*run.dictionary)
                check_dictionary(dictionary)
            copied[run.leaf] = CopiedChunk(run.chunk, run.path, dictionary, pages, num_values)
        return copied

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


class _Fetched:
    """Byte ranges of a file: read in few requests, handed out as views."""

    def __init__(self, read: ReadRanges, coalesce: int):
        self._read = read
        self._coalesce = coalesce
        # Of each fetch, its spans in order. Those of one fetch are apart from each other;
        # those of two can overlap.
        self._fetches: list[tuple[list[int], list[memoryview]]] = []

    def fetch(self, ranges: Iterable[tuple[int, int]]) -> None:
        merged: list[tuple[int, int]] = []
        for start, stop in sorted(ranges):
            if merged and start - merged[-1][1] <= self._coalesce:
                merged[-1] = merged[-1][0], max(merged[-1][1], stop)
            else:
                merged.append((start, stop))
        if not merged:
            return
        views = []
        for (start, stop), data in zip(merged, self._read(merged), strict=True):
            if len(data) != stop - start:
                raise FragmentUnreadable(
                    f"bytes {start}-{stop} were asked for, {len(data)} came: the file was cut"
                )
            # Cast: the view of an Arrow buffer is one of signed bytes.
            views.append(memoryview(data).cast("B"))
        self._fetches.append(([start for start, _ in merged], views))

    def view(self, start: int, stop: int) -> memoryview:
        """The bytes of a range that was fetched, alone or within another."""
        for starts, views in self._fetches:
            at = bisect_right(starts, start) - 1
            if at >= 0 and stop - starts[at] <= len(views[at]):
                return views[at][start - starts[at] : stop - starts[at]]
        raise LookupError(f"bytes {start}-{stop} were not fetched")


def _select_pages(first_rows: np.ndarray, rows: RowRanges) -> _PageSelection:
    """The pages that overlap the wanted rows."""
    firsts, stops = first_rows[:-1], first_rows[1:]
    # A page is wanted when a range begins before its end and ends after its start.
    begun = np.searchsorted(rows.starts, stops, side="left")
    ended = np.searchsorted(rows.stops, firsts, side="right")
    # pyarrow writes pages without rows at times, and reads one as the end of its chunk.
    pages = np.flatnonzero((begun > ended) & (stops > firsts))
    firsts, stops = firsts[pages], stops[pages]
    bounds = firsts.tobytes() + stops.tobytes()
    return _PageSelection(pages, firsts, stops, bounds, int((stops - firsts).sum()))


def _checked(fetched: _Fetched, run: _ChunkRead) -> tuple[list[memoryview], int, bool]:
    """Pages, number of values, and whether a dictionary is to come before them."""
    pages = [fetched.view(start, stop) for start, stop in run.spans]
    if run.whole:
        pieces = whole_chunk(pages[0], run.chunk, run.selection.num_rows, run.repeated)
        return pieces, run.chunk.num_values, False
    num_values = 0
    needs_dictionary = False
    lengths = (run.selection.stop_rows - run.selection.first_rows).tolist()
    for page, num_rows in zip(pages, lengths, strict=True):
        header = data_page(page, num_rows, run.repeated)
        num_values += header.num_values
        needs_dictionary = needs_dictionary or header.needs_dictionary
    return pages, num_values, needs_dictionary


def _length(span: tuple[int, int]) -> int:
    return span[1] - span[0]


def _take(table: pa.Table, selection: _PageSelection, rows: RowRanges) -> pa.Table:
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
