"""What one index says of the rows of a dataset, over the files that are as they were indexed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np

from zonebloom.index.loaded import LoadedIndex
from zonebloom.index.table import Table
from zonebloom.ranges import OFFSET_BITS, RowRanges
from zonebloom.values.probe import Probe

# First address and end of some zones, int64, shape (n,) each.
_Bounds = tuple[np.ndarray, np.ndarray]
# Position of a hash, fragment and first row of a zone.
_Pairs = tuple[np.ndarray, np.ndarray, np.ndarray]


class IndexView:
    """A loaded index over the fragments that are as they were when it was built."""

    def __init__(self, index: LoadedIndex, live: frozenset[int], universe: RowRanges):
        self.index = index
        self._parts = [_LiveZones(table, live) for table in index.tables()]
        self.num_zones = sum(part.num_zones for part in self._parts)
        self.fragment_ids = frozenset().union(*(part.fragment_ids for part in self._parts))
        indexed_rows = _union([part.covered for part in self._parts])
        self.covered = indexed_rows & universe
        self._uncovered = universe - self.covered
        # A damaged table may claim rows its fragments do not have.
        self._universe = universe if self.covered != indexed_rows else None

    def matches(self, values: Probe) -> RowRanges:
        """Rows of zones that may hold a probe's values, and all rows not covered."""
        return self._rows([part.matches(values.hashes) for part in self._parts])

    def nulls(self) -> RowRanges:
        """Rows of zones that hold a null, and all rows not covered."""
        return self._rows([part.nulls() for part in self._parts])

    def pairs(self, hashes: np.ndarray) -> Iterator[_Pairs]:
        """Position of a hash, fragment and first row of a zone that may hold it, each pair once."""
        for part in self._parts:
            yield from part.pairs(hashes)

    def zones(self, hashes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        parts = [np.empty(0, dtype=np.int64), *(part.matches(hashes)[0] for part in self._parts)]
        firsts = np.concatenate(parts).astype(np.uint64)
        return firsts >> np.uint64(OFFSET_BITS), firsts & np.uint64((1 << OFFSET_BITS) - 1)

    def kept_zones(self, rows: RowRanges) -> int:
        """How many zones have a row in a set."""
        return sum(part.kept_zones(rows) for part in self._parts)

    def _rows(self, bounds: Sequence[_Bounds]) -> RowRanges:
        rows = _union(bounds)
        if self._universe is not None:
            rows &= self._universe
        return rows | self._uncovered


def _union(bounds: Sequence[_Bounds]) -> RowRanges:
    if not bounds:
        return RowRanges()
    starts, stops = zip(*bounds, strict=True)
    return RowRanges.from_arrays(np.concatenate(starts), np.concatenate(stops))


def _addresses(fragment_ids: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> _Bounds:
    firsts = ((fragment_ids << np.uint64(OFFSET_BITS)) + starts).astype(np.int64)
    return firsts, firsts + lengths.astype(np.int64)


class _LiveZones:
    """Those zones of a table whose fragments are as they were."""

    def __init__(self, table: Table, live: frozenset[int]):
        self._table = table
        runs = table.runs
        self._live = np.fromiter(live, dtype=np.uint64, count=len(live))
        is_live = np.asarray(np.isin(runs.fragment_ids, self._live))
        self._all_live = bool(is_live.all())
        self.num_zones = int(runs.num_zones[is_live].sum())
        self.fragment_ids = live & set(np.unique(runs.fragment_ids).tolist())
        self.covered = _addresses(
            runs.fragment_ids[is_live], runs.first_rows[is_live], runs.num_rows[is_live]
        )

    def matches(self, hashes: np.ndarray) -> _Bounds:
        return self._at(self._table.find(hashes))

    def nulls(self) -> _Bounds:
        return self._at(np.flatnonzero(self._table.has_null))

    def kept_zones(self, rows: RowRanges) -> int:
        starts, stops = self._bounds
        before = np.searchsorted(rows.stops, starts, side="right")
        is_kept = before < np.searchsorted(rows.starts, stops, side="left")
        return int(np.count_nonzero(is_kept))

    def pairs(self, hashes: np.ndarray) -> Iterator[_Pairs]:
        for keys, zones in self._table.pairs(hashes):
            fragment_ids, starts, _ = self._table.runs.locate(zones)
            if not self._all_live:
                is_live = np.isin(fragment_ids, self._live)
                keys, fragment_ids, starts = keys[is_live], fragment_ids[is_live], starts[is_live]
            yield keys, fragment_ids, starts

    @cached_property
    def _bounds(self) -> _Bounds:
        return self._at(np.arange(len(self._table), dtype=np.int64))

    def _at(self, zones: np.ndarray) -> _Bounds:
        if not zones.size:
            # Most tables do not hold the key, and a lookup asks all of them.
            return zones, zones
        fragment_ids, starts, lengths = self._table.runs.locate(zones)
        firsts, stops = _addresses(fragment_ids, starts, lengths)
        if self._all_live:
            return firsts, stops
        is_live = np.isin(fragment_ids, self._live)
        return firsts[is_live], stops[is_live]
