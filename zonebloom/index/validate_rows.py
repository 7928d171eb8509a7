"""Validate an index against rows of the data files: it must not exclude a value that they hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from operator import itemgetter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zonebloom.base.row_ranges import RowRanges
from zonebloom.catalog.coverage import PresentFragment
from zonebloom.errors import CorruptIndex, FragmentChanged, FragmentUnreadable
from zonebloom.index.key_ranges import KeyRangeBuilder
from zonebloom.index.matching import LoadedIndex
from zonebloom.index.table import IndexTable
from zonebloom.parquet.field_names import pages_with_names
from zonebloom.parquet.file_layout import FilePages
from zonebloom.parquet.page_map import PageMap
from zonebloom.sbbf.hashing import Hashes, hash_array
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

# Hashes to collect before a lookup, because each lookup reads a sliced table whole.
_MAX_PENDING_HASHES = 1 << 22


@dataclass(frozen=True, slots=True)
class _TableZone:
    """A zone: rows ``start`` to ``stop`` of a fragment, with its number in a table."""

    table: IndexTable
    number: int
    start: int
    stop: int


@dataclass(frozen=True)
class _ZoneRows:
    """The values of one zone, read from the data file."""

    fragment: PresentFragment
    zone: _TableZone
    arrays: Sequence[pa.Array]

    @cached_property
    def hashes(self) -> list[Hashes]:
        return [hash_array(array) for array in self.arrays]

    def __str__(self) -> str:
        start, stop = self.zone.start, self.zone.stop
        return f"rows {start:,} to {stop:,} of {self.fragment.fragment.path}"


def _sample_zones(
    tables: Sequence[IndexTable], known: Sequence[PresentFragment], sample: int | None
) -> Iterator[tuple[PresentFragment, list[_TableZone]]]:
    fragment_numbers = {fragment.fragment_id: number for number, fragment in enumerate(known)}
    zones = sorted(
        (fragment_numbers[fragment_id], table_number, start, number)
        for table_number, table in enumerate(tables)
        for number, (fragment_id, start) in enumerate(
            zip(table.fragment_ids.tolist(), table.starts.tolist(), strict=True)
        )
        if fragment_id in fragment_numbers
    )
    if sample is not None and sample < len(zones):
        chosen = np.linspace(0, len(zones) - 1, sample).round().astype(np.int64)
        zones = [zones[number] for number in chosen.tolist()]
    for (fragment_number, table_number), group in groupby(zones, itemgetter(0, 1)):
        table = tables[table_number]
        yield (
            known[fragment_number],
            [
                _TableZone(table, number, start, start + int(table.lengths[number]))
                for _, _, start, number in group
            ],
        )


def _read_zones(
    reader: ColumnsReader | TableColumns, fragment: PresentFragment, zones: Sequence[_TableZone]
) -> Iterator[_ZoneRows]:
    """Yield the values of each zone. Zones must be in the order of their rows."""
    num_done, arrays = 0, []
    for run in reader.runs(split=True):
        start = run.first_row
        if num_done == len(zones):
            return
        if run.num_rows is not None and start + run.num_rows <= zones[num_done].start:
            continue
        for (array,) in reader.read(run):
            end = start + len(array)
            while num_done < len(zones) and zones[num_done].start < end:
                zone = zones[num_done]
                first, last = max(zone.start, start), min(zone.stop, end)
                arrays.append(array.slice(first - start, last - first))
                if zone.stop > end:
                    break
                yield _ZoneRows(fragment, zone, arrays)
                num_done, arrays = num_done + 1, []
            start = end
            if num_done == len(zones):
                return
    if num_done < len(zones):
        raise CorruptIndex(
            f"{fragment.fragment.path} was indexed up to row {zones[num_done].stop:,}, but has "
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
        column: Column,
        present: Sequence[PresentFragment],
    ):
        self._index = index
        self._page_maps = page_maps
        self._source = source
        self._column = column
        self._present = present
        self._ranges = index.key_ranges(column.type)
        self._global = index.global_filter(column.type, present)
        # Hashes of zones of the same table, which are looked up together.
        self._pending: list[tuple[_TableZone, np.ndarray, str]] = []
        self._num_pending = 0

    def check(self, sample: int | None) -> int:
        """Read sampled zones, or all if None, and return their number.

        Raise `CorruptIndex` if a filter, null flag, key range or page map excludes a value of them.
        """
        unchanged = [fragment for fragment in self._present if fragment.is_known]
        count = 0
        for fragment, zones in _sample_zones(self._index.tables(), unchanged, sample):
            self._check_all(fragment, zones)
            count += len(zones)
        self._check_pending()
        return count

    def _check_all(self, fragment: PresentFragment, zones: Sequence[_TableZone]) -> None:
        reader = columns_reader(self._source, fragment.fragment, [self._column])
        fragment_id = pa.scalar(fragment.fragment_id, pa.uint64())
        is_fragment = pc.call_function("equal", [self._ranges["fragment_id"], fragment_id])
        ranges = self._ranges.filter(is_fragment)
        pages = None
        page_map = self._page_maps.get(fragment.fragment_id)
        # Values of partition columns come from the path, so no pages hold them.
        if page_map is not None and self._column.path[0] not in self._source.partition_columns():
            size, num_rows = fragment.identity.size, fragment.num_rows or 0
            pages = page_map.file_pages(fragment.fragment_id, size, num_rows)
            pages = None if pages is None else pages_with_names(pages, fragment.fragment.names)
        for rows in _read_zones(reader, fragment, zones):
            self._check_filters(rows)
            self._check_ranges(ranges, rows)
            if pages is not None:
                self._check_pages(pages, rows)

    def _check_pending(self) -> None:
        if not self._pending:
            return
        sizes = [hashes.size for _, hashes, _ in self._pending]
        zones = np.repeat([zone.number for zone, _, _ in self._pending], sizes)
        table = self._pending[0][0].table
        hit = table.may_hold(zones, np.concatenate([hashes for _, hashes, _ in self._pending]))
        for part, (_, _, rows) in zip(
            np.split(hit, np.cumsum(sizes)[:-1]), self._pending, strict=True
        ):
            if not part.all():
                raise self._excluded_value_error(
                    rows, "the filter", f"{np.count_nonzero(~part):,} values"
                )
        self._pending, self._num_pending = [], 0

    def _excluded_value_error(self, rows: str, part: str, values: str = "a value") -> CorruptIndex:
        return CorruptIndex(
            f"index {self._index.entry.name!r}: {part} of {rows} excludes {values} they hold: the "
            "file was replaced by another unnoticed, or the index is damaged or of another column; "
            "build the index again"
        )

    def _check_filters(self, rows: _ZoneRows) -> None:
        zone, global_filter = rows.zone, self._global
        hashes = np.concatenate([part.of_valid_rows() for part in rows.hashes])
        if any(part.null_count for part in rows.hashes) and not zone.table.has_null[zone.number]:
            raise self._excluded_value_error(str(rows), "the null flag", "a null")
        is_other = self._pending and zone.table is not self._pending[0][0].table
        if is_other or self._num_pending >= _MAX_PENDING_HASHES:
            self._check_pending()
        self._pending.append((zone, hashes, str(rows)))
        self._num_pending += hashes.size
        if global_filter is None or rows.fragment.fragment_id not in global_filter.covered:
            return
        if not global_filter.sbbf.check_hashes(hashes).all():
            raise self._excluded_value_error(str(rows), "the filter over all keys")

    def _check_ranges(self, ranges: pa.Table, rows: _ZoneRows) -> None:
        values = KeyRangeBuilder(self._column.type)
        nulls = sum(part.null_count for part in rows.hashes)
        for array in rows.arrays:
            # The builder would add all values of a dictionary, but only these rows were read.
            values.add(hashed_values(array))
        for row in range(len(ranges)):
            stored = {name: ranges[name][row] for name in ranges.column_names}
            is_consistent = stored["num_rows"].as_py() == rows.fragment.num_rows
            is_consistent &= stored["null_count"].as_py() >= nulls
            if not is_consistent or not values.is_within(stored):
                raise self._excluded_value_error(str(rows), "the key range")

    def _check_pages(self, pages: FilePages, rows: _ZoneRows) -> None:
        """Read the rows again through the page map, and compare them."""
        by_map = self._read_by_pages(pages, rows)
        # Some columns cannot be read page by page even with the file's own footer.
        if by_map is None and self._read_by_pages(None, rows) is None:
            return
        expected = _valid_hashes(rows.hashes)
        if by_map is None or not all(map(np.array_equal, _valid_hashes(by_map), expected)):
            raise CorruptIndex(
                f"index {self._index.entry.name!r}: {rows} read through the page map are not what "
                "the file holds; build the index again"
            )

    def _read_by_pages(self, pages: FilePages | None, rows: _ZoneRows) -> list[Hashes] | None:
        """Return the hashes of rows, read page by page, or None if that is not possible."""
        name, fragment = self._column.path[0], rows.fragment
        wanted = RowRanges([(rows.zone.start, rows.zone.stop)])
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
