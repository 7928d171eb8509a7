"""Apply one index to a dataset: find the rows of unchanged fragments that may match."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property

import numpy as np

from zonebloom.base.row_ranges import OFFSET_BITS, RowRanges
from zonebloom.errors import CorruptIndex
from zonebloom.index.loaded import LoadedIndex
from zonebloom.index.table import ZoneTable
from zonebloom.values.probe import Probe

# The first address of zones and the address after their last row; both int64, shape (n,).
_AddressBounds = tuple[np.ndarray, np.ndarray]
# The position of a hash, and the fragment id and the first row of a zone.
_ZonePairs = tuple[np.ndarray, np.ndarray, np.ndarray]


class IndexView:
    """A loaded index, restricted to the fragments that have not changed since it was built."""

    def __init__(self, index: LoadedIndex, live: frozenset[int], universe: RowRanges):
        self.index = index
        self._tables = index.tables()
        self._live = np.fromiter(live, dtype=np.uint64, count=len(live))
        self._parts = parts = [(t.runs, self._is_live(t.runs.fragment_ids)) for t in self._tables]
        self._all_live = all(is_live.all() for _, is_live in parts)
        self.num_zones: int = sum(int(runs.num_zones[is_live].sum()) for runs, is_live in parts)
        indexed_rows = _union(
            _addresses(runs.fragment_ids[is_live], runs.first_rows[is_live], runs.num_rows[is_live])
            for runs, is_live in parts
        )
        if not indexed_rows.issubset(universe):
            # Either the table or the list of files is wrong, and both could lose rows.
            raise CorruptIndex(
                f"index {index.entry.name!r} has zones with rows that its files do not have; build "
                "the index again"
            )
        self.covered: RowRanges = indexed_rows
        self._uncovered = universe - indexed_rows

    @cached_property
    def fragment_ids(self) -> frozenset[int]:
        """Return the ids of the unchanged fragments that the index covers."""
        ids = (runs.fragment_ids[is_live].tolist() for runs, is_live in self._parts)
        return frozenset[int]().union(*ids)

    def _is_live(self, fragment_ids: np.ndarray) -> np.ndarray:
        return np.asarray(np.isin(fragment_ids, self._live))

    def matches(self, probe: Probe) -> RowRanges:
        """Return the rows of zones that may hold a probe's values, and all rows not covered."""
        return self._rows(self._bounds(table, table.find(probe.hashes)) for table in self._tables)

    def nulls(self) -> RowRanges:
        """Return the rows of zones that hold a null, and all rows not covered."""
        return self._rows(self._bounds(t, np.flatnonzero(t.has_null)) for t in self._tables)

    def pairs(self, hashes: np.ndarray) -> Iterator[_ZonePairs]:
        """Yield each pair of a hash and a zone that may hold it once.

        An item is the positions of hashes, and the fragment ids and first rows of zones.
        """
        for table in self._tables:
            for keys, zones in table.pairs(hashes):
                fragment_ids, starts, _ = table.runs.locate(zones)
                live = slice(None) if self._all_live else self._is_live(fragment_ids)
                yield keys[live], fragment_ids[live], starts[live]

    def zones(self, hashes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return fragment ids and first rows of the zones that may hold any of the hashes."""
        parts = [np.empty(0, dtype=np.int64)]
        parts += [self._bounds(table, table.find(hashes))[0] for table in self._tables]
        firsts = np.concatenate(parts).astype(np.uint64)
        return firsts >> np.uint64(OFFSET_BITS), firsts & np.uint64((1 << OFFSET_BITS) - 1)

    def count_kept_zones(self, rows: RowRanges) -> int:
        """Return the number of zones that have a row among ``rows``."""
        starts, stops = self._all_bounds
        num_before = np.searchsorted(rows.stops, starts, side="right")
        is_kept = num_before < np.searchsorted(rows.starts, stops, side="left")
        return int(np.count_nonzero(is_kept))

    @cached_property
    def _all_bounds(self) -> _AddressBounds:
        parts = [self._bounds(table, np.arange(len(table))) for table in self._tables]
        starts, stops = zip(_NO_BOUNDS, *parts, strict=True)
        return np.concatenate(starts), np.concatenate(stops)

    def _rows(self, bounds: Iterable[_AddressBounds]) -> RowRanges:
        return _union(bounds) | self._uncovered

    def _bounds(self, table: ZoneTable, zones: np.ndarray) -> _AddressBounds:
        if not zones.size:
            # A lookup searches all tables, and most of them do not hold the key.
            return _NO_BOUNDS
        fragment_ids, starts, lengths = table.runs.locate(zones)
        firsts, stops = _addresses(fragment_ids, starts, lengths)
        if self._all_live:
            return firsts, stops
        is_live = self._is_live(fragment_ids)
        return firsts[is_live], stops[is_live]


_NO_BOUNDS: _AddressBounds = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)


def _union(bounds: Iterable[_AddressBounds]) -> RowRanges:
    starts, stops = zip(_NO_BOUNDS, *bounds, strict=True)
    return RowRanges.from_arrays(np.concatenate(starts), np.concatenate(stops))


def _addresses(fragment_ids: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> _AddressBounds:
    firsts = ((fragment_ids << np.uint64(OFFSET_BITS)) + starts).astype(np.int64)
    return firsts, firsts + lengths.astype(np.int64)
