"""Validate an index against its checksums, the row counts of its fragments, and their values.

It must not exclude a value that a row of the data files holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, groupby, pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zonebloom.base import arguments
from zonebloom.base.row_ranges import RowRanges
from zonebloom.catalog.coverage import Coverage, PresentFragment
from zonebloom.catalog.freshness import are_unchanged
from zonebloom.catalog.model import DEFAULT_NUMBER_OF_ITEMS, IndexEntry, Version
from zonebloom.catalog.page_maps import load_page_map
from zonebloom.catalog.store import Catalog
from zonebloom.errors import CorruptIndex, FragmentChanged, FragmentUnreadable
from zonebloom.index.matching import LoadedIndex, indexed_columns
from zonebloom.index.row_keys.rules import VALUES
from zonebloom.index.table import ColumnValues, HashedTable, IndexTable
from zonebloom.index.zone_map.bounds import ZoneBounds, ZoneMapTable
from zonebloom.parquet.field_names import pages_with_names
from zonebloom.parquet.file_layout import FilePages
from zonebloom.parquet.page_map import PageMap
from zonebloom.sbbf.hashing import Hashes, RowHashes, hash_array
from zonebloom.sources.column_batches import (
    Column,
    ColumnsReader,
    TableColumns,
    columns_reader,
    leaf_of,
)
from zonebloom.sources.fragment_rows import open_rows
from zonebloom.sources.source import Source
from zonebloom.storage.files import ReadCounter
from zonebloom.values.normal_types import hashed_values

DEFAULT_SAMPLE = 16
# Hashes to collect before a lookup.
_MAX_PENDING_HASHES = 1 << 22
# Adjacent zones are read and checked together up to this number of rows, because a zone may be one
# row.
_MAX_SPAN_ROWS = DEFAULT_NUMBER_OF_ITEMS


@dataclass(frozen=True, slots=True)
class _ZoneSpan:
    """Consecutive zones of one run of a table: rows ``start`` to ``stop`` of a fragment."""

    fragment: PresentFragment
    table: IndexTable
    first_zone: int
    num_zones: int
    # Rows of each zone; the last one may have fewer.
    zone_rows: int
    start: int
    stop: int

    def zones_of(self, rows: np.ndarray) -> np.ndarray:
        """Return the numbers of the zones that hold rows, which count from ``start``."""
        return self.first_zone + rows // self.zone_rows

    def __str__(self) -> str:
        return self._text_of(self.start, self.stop)

    def text_of(self, zone: int) -> str:
        start = self.start + (zone - self.first_zone) * self.zone_rows
        return self._text_of(start, min(start + self.zone_rows, self.stop))

    def _text_of(self, start: int, stop: int) -> str:
        return f"rows {start:,} to {stop:,} of {self.fragment.fragment.path}"


@dataclass(frozen=True)
class _SpanRows:
    """The values of a span of zones, read from the data file."""

    span: _ZoneSpan
    # Consecutive rows, each as one array per column.
    batches: Sequence[Sequence[pa.Array]]

    @property
    def arrays(self) -> list[pa.Array]:
        """Return the values of the first column."""
        return [arrays[0] for arrays in self.batches]

    @cached_property
    def valid_hashes(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the hashes of the values that are not null, and a mask of these rows."""
        return _valid_hashes(list(map(hash_array, self.arrays)))


class _PendingHashes(NamedTuple):
    """Hashes to look up later, and the zone that has to hold each."""

    span: _ZoneSpan
    zones: np.ndarray
    hashes: np.ndarray


def _sample_zones(
    tables: Sequence[IndexTable], known: Sequence[PresentFragment], sample: int | None
) -> Iterator[tuple[PresentFragment, list[_ZoneSpan]]]:
    """Yield spans of sampled zones, or of all if None, by fragment and table in row order."""
    fragment_numbers = {fragment.fragment_id: number for number, fragment in enumerate(known)}
    runs = sorted(
        (fragment_numbers[fragment_id], table_number, first_row, run)
        for table_number, table in enumerate(tables)
        for run, (fragment_id, first_row) in enumerate(
            zip(table.runs.fragment_ids.tolist(), table.runs.first_rows.tolist(), strict=True)
        )
        if fragment_id in fragment_numbers
    )
    # Number the zones of all runs one after another, and choose some at equal distances.
    stops = list(accumulate(int(tables[number].runs.num_zones[run]) for _, number, _, run in runs))
    num_zones = stops[-1] if stops else 0
    chosen = None
    if sample is not None and sample < num_zones:
        chosen = np.linspace(0, num_zones - 1, sample).round().astype(np.int64)
    first_zones = [np.cumsum(t.runs.num_zones) - t.runs.num_zones for t in tables]
    rows_per_zone = [table.runs.rows_per_zone() for table in tables]
    numbered_runs = zip([0, *stops], stops, runs, strict=False)
    for (fragment_number, table_number), group in groupby(numbered_runs, lambda item: item[2][:2]):
        fragment, table, spans = known[fragment_number], tables[table_number], []
        for start, stop, (_, _, first_row, run) in group:
            if chosen is None:
                zones = np.arange(stop - start)
            else:
                low, high = np.searchsorted(chosen, [start, stop])
                zones = chosen[low:high] - start
            first_zone = int(first_zones[table_number][run])
            zone_rows = int(rows_per_zone[table_number][run])
            run_stop = first_row + int(table.runs.num_rows[run])
            for first, count in _split_into_spans(zones, zone_rows):
                span_start = first_row + first * zone_rows
                span_stop = min(span_start + count * zone_rows, run_stop)
                span_zone = first_zone + first
                spans.append(
                    _ZoneSpan(fragment, table, span_zone, count, zone_rows, span_start, span_stop)
                )
        if spans:
            yield fragment, spans


def _split_into_spans(zones: np.ndarray, zone_rows: int) -> Iterator[tuple[int, int]]:
    """Yield the first zone and the number of zones of spans that have ascending zones."""
    max_zones = max(1, _MAX_SPAN_ROWS // max(zone_rows, 1))
    gaps = np.flatnonzero(np.diff(zones) != 1) + 1
    for start, stop in pairwise([0, *gaps.tolist(), zones.size]):
        for position in range(start, stop, max_zones):
            yield int(zones[position]), min(max_zones, stop - position)


def _read_zones(
    reader: ColumnsReader | TableColumns, fragment: PresentFragment, spans: Sequence[_ZoneSpan]
) -> Iterator[_SpanRows]:
    """Yield the values of each span. Spans must be in the order of their rows."""
    num_done, batches = 0, []
    for run in reader.runs(split=True):
        start = run.first_row
        if num_done == len(spans):
            return
        if run.num_rows is not None and start + run.num_rows <= spans[num_done].start:
            continue
        for batch in reader.read(run):
            end = start + len(batch[0])
            while num_done < len(spans) and spans[num_done].start < end:
                span = spans[num_done]
                first, last = max(span.start, start), min(span.stop, end)
                batches.append([array.slice(first - start, last - first) for array in batch])
                if span.stop > end:
                    break
                yield _SpanRows(span, batches)
                num_done, batches = num_done + 1, []
            start = end
            if num_done == len(spans):
                return
    if num_done < len(spans):
        raise CorruptIndex(
            f"{fragment.fragment.path} was indexed up to row {spans[num_done].stop:,}, but has "
            "fewer rows: another file replaced it unnoticed, or the index is damaged; build the "
            "index again"
        )


class RowValidation:
    """A comparison of one index with rows of the data files, which are read without the index."""

    def __init__(
        self,
        index: LoadedIndex,
        page_maps: Mapping[int, PageMap],
        source: Source,
        columns: Sequence[Column],
        present: Sequence[PresentFragment],
    ):
        column = columns[0]
        self._index = index
        self._page_maps = page_maps
        self._source = source
        self._column = column
        self._columns = columns
        self._present = present
        self._has_hashes = index.hashes_values
        self._ranges = None if index.rule != VALUES else index.key_ranges(column.type)
        self._global = index.global_filter(column.type, present)
        # Hashes of zones of the same table, which are looked up together.
        self._pending: list[_PendingHashes] = []
        self._num_pending = 0
        self._null_flags: dict[IndexTable, np.ndarray] = {}

    def check(self, sample: int | None) -> int:
        """Read sampled zones, or all if None, and return their number.

        Raise `CorruptIndex` if a filter, null flag, key range or page map excludes a value of them.
        """
        unchanged = [fragment for fragment in self._present if fragment.is_known]
        count = 0
        for fragment, spans in _sample_zones(self._index.tables(), unchanged, sample):
            self._check_all(fragment, spans)
            count += sum(span.num_zones for span in spans)
        self._check_pending()
        return count

    def _check_all(self, fragment: PresentFragment, spans: Sequence[_ZoneSpan]) -> None:
        reader = columns_reader(self._source, fragment.fragment, self._columns)
        ranges = pages = None
        if self._ranges is not None:
            fragment_id = pa.scalar(fragment.fragment_id, pa.uint64())
            is_fragment = pc.call_function("equal", [self._ranges["fragment_id"], fragment_id])
            ranges = ZoneBounds.from_table(self._ranges.filter(is_fragment))
        page_map = self._page_maps.get(fragment.fragment_id)
        # Values of partition columns come from the path, so no pages hold them.
        is_in_path = self._column.path[0] in self._source.constants(fragment.fragment)
        if self._has_hashes and page_map is not None and not is_in_path:
            size, num_rows = fragment.identity.size, fragment.num_rows or 0
            pages = page_map.file_pages(fragment.fragment_id, size, num_rows)
            pages = None if pages is None else pages_with_names(pages, fragment.fragment.names)
        for rows in _read_zones(reader, fragment, spans):
            self._check_zones(rows)
            if ranges is not None:
                self._check_ranges(ranges, rows)
            if pages is not None:
                self._check_pages(pages, rows)

    def _check_pending(self) -> None:
        if not self._pending:
            return
        zones = np.concatenate([part.zones for part in self._pending])
        hashes = np.concatenate([part.hashes for part in self._pending])
        table = self._pending[0].span.table
        assert isinstance(table, HashedTable)
        hit = table.may_hold(zones, hashes)
        if not hit.all():
            sizes = np.cumsum([part.hashes.size for part in self._pending])
            missing = int(np.argmin(hit))
            span = self._pending[int(np.searchsorted(sizes, missing, side="right"))].span
            zone = int(zones[missing])
            num_missing = np.count_nonzero(~hit & (zones == zone))
            raise self._excluded_value_error(
                span.text_of(zone), "the filter", f"{num_missing:,} values"
            )
        self._pending, self._num_pending = [], 0

    def _excluded_value_error(self, rows: str, part: str, values: str = "a value") -> CorruptIndex:
        return CorruptIndex(
            f"index {self._index.entry.name!r}: {part} of {rows} excludes {values} they hold: the "
            "file was replaced by another unnoticed, or the index is damaged or of another column; "
            "build the index again"
        )

    def _check_zones(self, rows: _SpanRows) -> None:
        span, table = rows.span, rows.span.table
        if isinstance(table, ZoneMapTable):
            values = pa.concat_arrays(list(map(hashed_values, rows.arrays)))
            for number in range(span.num_zones):
                zone_values = values.slice(number * span.zone_rows, span.zone_rows)
                if table.bounds.excludes(span.first_zone + number, zone_values):
                    text = span.text_of(span.first_zone + number)
                    raise self._excluded_value_error(text, "the zone map")
            return
        self._check_hashes(rows, *self._hashes_of(rows))

    def _hashes_of(self, rows: _SpanRows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the hashes of all keys, the row of each, and the rows that are null."""
        if self._has_hashes:
            hashes, is_valid = rows.valid_hashes
            return hashes, np.flatnonzero(is_valid), np.flatnonzero(~is_valid)
        hashes, of_rows, null_rows, num_rows = [], [], [], 0
        for batch in rows.batches:
            for part in self._index.rule.parts(batch):
                assert not isinstance(part, ColumnValues)
                row_hashes = part if isinstance(part, RowHashes) else part.by_row()
                counts = np.diff(row_hashes.ends, prepend=0)
                hashes.append(row_hashes.values)
                of_rows.append(np.repeat(np.arange(counts.size), counts) + num_rows)
                null_rows.append(np.flatnonzero(row_hashes.is_null) + num_rows)
                num_rows += part.num_rows
        return np.concatenate(hashes), np.concatenate(of_rows), np.concatenate(null_rows)

    def _check_hashes(
        self, rows: _SpanRows, hashes: np.ndarray, of_rows: np.ndarray, null_rows: np.ndarray
    ) -> None:
        span, global_filter = rows.span, self._global
        zones_with_null = span.zones_of(null_rows)
        is_flagged = self._flags_of(span.table)[zones_with_null]
        if not is_flagged.all():
            zone = int(zones_with_null[np.argmin(is_flagged)])
            raise self._excluded_value_error(span.text_of(zone), "the null flag", "a null")
        is_other = self._pending and span.table is not self._pending[0].span.table
        if is_other or self._num_pending >= _MAX_PENDING_HASHES:
            self._check_pending()
        zones = span.zones_of(of_rows)
        self._pending.append(_PendingHashes(span, zones, hashes))
        self._num_pending += hashes.size
        if global_filter is None or rows.span.fragment.fragment_id not in global_filter.covered:
            return
        if not global_filter.sbbf.check_hashes(hashes).all():
            raise self._excluded_value_error(str(rows.span), "the filter over all keys")

    def _flags_of(self, table: IndexTable) -> np.ndarray:
        """Return whether each zone of a table may hold a null."""
        flags = self._null_flags.get(table)
        if flags is None:
            flags = np.zeros(len(table), dtype=bool)
            flags[table.zones_with_null()] = True
            self._null_flags[table] = flags
        return flags

    def _check_ranges(self, ranges: ZoneBounds, rows: _SpanRows) -> None:
        # Only some values of a dictionary are those of the rows.
        values = pa.concat_arrays(list(map(hashed_values, rows.arrays)))
        for zone in range(ranges.lengths.size):
            has_all_rows = ranges.lengths[zone] == rows.span.fragment.num_rows
            if not has_all_rows or ranges.excludes(zone, values):
                raise self._excluded_value_error(str(rows.span), "the key range")

    def _check_pages(self, pages: FilePages, rows: _SpanRows) -> None:
        """Read the rows again through the page map, and compare them."""
        by_map = self._read_by_pages(pages, rows)
        # Some columns cannot be read page by page even with the file's own footer.
        if by_map is None and self._read_by_pages(None, rows) is None:
            return
        expected = rows.valid_hashes
        if by_map is None or not all(map(np.array_equal, _valid_hashes(by_map), expected)):
            raise CorruptIndex(
                f"index {self._index.entry.name!r}: {rows.span} read through the page map are not "
                "what the file holds; build the index again"
            )

    def _read_by_pages(self, pages: FilePages | None, rows: _SpanRows) -> list[Hashes] | None:
        """Return the hashes of rows, read page by page, or None if that is not possible."""
        name, fragment = self._column.path[0], rows.span.fragment
        wanted = RowRanges([(rows.span.start, rows.span.stop)])
        try:
            reader = open_rows(
                self._source, fragment.fragment, fragment.identity, pages, ReadCounter()
            )
            if reader is None:
                return None
            with closing(reader):
                return [
                    hash_array(leaf_of(part, self._column.path))
                    for number, _, inside in reader.row_groups(wanted)
                    for part in reader.read(number, [name], inside)[name].chunks
                ]
        except FragmentChanged:
            raise
        except FragmentUnreadable:
            return None


def _valid_hashes(parts: Sequence[Hashes]) -> tuple[np.ndarray, np.ndarray]:
    """Return the hashes of the values that are not null, and a mask of these rows."""
    valid = [np.empty(0, dtype=bool), *(part.is_valid() for part in parts)]
    hashes = [np.empty(0, dtype=np.uint64), *(part.of_valid_rows() for part in parts)]
    return np.concatenate(hashes), np.concatenate(valid)


class ValidatedIndex(int):
    """The number of zones of an undamaged index, with details of the validation.

    ``zones_read`` is the number of zones whose rows were read from the data files. Files that
    ``changed`` since they were indexed are scanned by lookups. Files that are ``gone`` were
    deleted.
    """

    zones_read: int
    changed: tuple[str, ...]
    gone: tuple[str, ...]

    def __new__(
        cls,
        num_zones: int,
        zones_read: int = 0,
        changed: tuple[str, ...] = (),
        gone: tuple[str, ...] = (),
    ) -> ValidatedIndex:
        validated = super().__new__(cls, num_zones)
        validated.zones_read, validated.changed, validated.gone = zones_read, changed, gone
        return validated

    @property
    def state(self) -> str:
        """Return "sound", or "stale" if indexed files changed or were deleted since the build."""
        return "stale" if self.changed or self.gone else "sound"

    def __repr__(self) -> str:
        return (
            f"<ValidatedIndex {self.state}: {int(self):,} zones, {self.zones_read:,} read from the "
            f"files, {len(self.changed):,} files changed, {len(self.gone):,} gone>"
        )


def validate_index(
    catalog: Catalog,
    entry: IndexEntry,
    version: Version,
    source: Source,
    coverage: Coverage,
    sample: int | str = DEFAULT_SAMPLE,
) -> ValidatedIndex:
    if isinstance(sample, str):
        arguments.require_choice(sample, "sample", ("all",))
    else:
        sample = arguments.require_integer(sample, "sample")
    row_counts = {indexed.fragment_id: indexed.num_rows for indexed in version.fragments.values()}
    columns = indexed_columns(entry, source)
    covered_ids = entry.fragment_ids
    maps: dict[int, PageMap] = {}
    for page_map in version.page_maps:
        if not covered_ids.isdisjoint(page_map.fragment_ids):
            maps |= dict.fromkeys(page_map.fragment_ids, load_page_map(catalog, page_map))
    index = LoadedIndex(catalog, entry, strict=True)
    for segment, table in zip(entry.segments, index.tables(), strict=True):
        table.verify()
        _require_complete_zones(table, set(segment.fragment_ids), row_counts)
    sample_size = None if isinstance(sample, str) else sample
    zones_read = RowValidation(index, maps, source, columns, coverage.fragments).check(sample_size)
    changed, gone = _changed_and_deleted(entry, version, source, coverage)
    return ValidatedIndex(sum(map(len, index.tables())), zones_read, changed, gone)


def _changed_and_deleted(
    entry: IndexEntry, version: Version, source: Source, coverage: Coverage
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the keys of indexed files that changed since the build, and of those now missing."""
    covered_ids = entry.fragment_ids
    present = {fragment.fragment.key: fragment for fragment in coverage.fragments}
    changed, gone, unlisted = [], [], []
    for indexed in version.fragments.values():
        if indexed.fragment_id not in covered_ids:
            continue
        if indexed.key in coverage.missing_keys:
            gone.append(indexed.key)
        elif indexed.key not in present:
            unlisted.append(indexed)
        elif not present[indexed.key].is_known:
            changed.append(indexed.key)
    # A refresh of another index may have removed fragments from the version.
    forgotten = covered_ids.difference(
        indexed.fragment_id for indexed in version.fragments.values()
    )
    gone += [f"fragment {i}" for i in sorted(forgotten)]
    # These files are not in the dataset, which may be a selection of the indexed files.
    paths = [source.path_of(indexed.key) for indexed in unlisted]
    results = are_unchanged(source.store, paths, unlisted)
    for indexed, is_unchanged in zip(unlisted, results, strict=True):
        if not is_unchanged:
            (gone if is_unchanged is None else changed).append(indexed.key)
    return tuple(sorted(changed)), tuple(sorted(gone))


def _require_complete_zones(table: IndexTable, ids: set[int], row_counts: dict[int, int]) -> None:
    """Raise `CorruptIndex` if the zones do not cover each row of their fragments once, in order."""
    runs = table.runs
    order = np.argsort(runs.fragment_ids, kind="stable")
    found_ids, first_positions = np.unique(runs.fragment_ids[order], return_index=True)
    missing = {i for i in ids if row_counts.get(i)}.difference(found_ids.tolist())
    if missing:
        raise CorruptIndex(
            f"{table.path} has no zones of fragment {min(missing)}, which it should cover; build "
            "it again"
        )
    runs_of_fragments = np.split(order, first_positions[1:])
    for fragment_id, numbers in zip(found_ids.tolist(), runs_of_fragments, strict=False):
        starts, lengths = runs.first_rows[numbers], runs.num_rows[numbers]
        stops = np.cumsum(lengths)
        # The version may no longer know the row count of a deleted file.
        num_rows = row_counts.get(fragment_id, int(stops[-1]))
        if int(stops[-1]) != num_rows or (starts != stops - lengths).any():
            raise CorruptIndex(
                f"the zones of fragment {fragment_id} in {table.path} are not its {num_rows:,} "
                "rows; build it again"
            )
