"""What one index says of the rows of a dataset, over the files that are as they were indexed."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import numpy as np

from zonebloom.index.loaded import LoadedIndex, Table
from zonebloom.index.sliced import SlicedTable
from zonebloom.index.table import ZoneTable
from zonebloom.index.table_search import search_rows
from zonebloom.ranges import OFFSET_BITS, RowRanges
from zonebloom.sbbf.blocks_numpy import check_one
from zonebloom.values.probe import Probe

# With fewer block checks NumPy has answered before Numba would have loaded: in one search, and
# in all of a process, after which loading it pays.
_NUMPY_CHECKS = 1 << 16
_NUMPY_CHECKS_IN_ALL = 1 << 20
_checked = [0]


class IndexView:
    """A loaded index over the fragments that are as they were when it was built."""

    def __init__(self, index: LoadedIndex, live: frozenset[int], universe: RowRanges):
        self.index = index
        self._parts = _parts(index.tables(), live)
        self.num_zones = sum(part.num_zones for part in self._parts)
        self.fragment_ids = frozenset().union(*(part.fragment_ids for part in self._parts))
        indexed_rows = _union([part.covered for part in self._parts])
        self.covered = indexed_rows & universe
        self._uncovered = universe - self.covered
        # A damaged table may claim rows its fragments do not have.
        self._universe = universe if self.covered != indexed_rows else None

    def matches(self, found: Probe) -> RowRanges:
        """Rows of zones that may hold a probe's values, and all rows not covered."""
        return self._rows([part.matches(found.hashes) for part in self._parts])

    def nulls(self) -> RowRanges:
        """Rows of zones that hold a null, and all rows not covered."""
        return self._rows([part.nulls() for part in self._parts])

    def pairs(self, hashes: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Which zones may hold each of many hashes.

        Position in ``hashes``, fragment and first row of a zone; each pair once.
        """
        for part in self._parts:
            yield from part.pairs(hashes)

    def zones(self, hashes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Fragment and first row of the zones that may hold any of some hashes."""
        found = [part.matches(hashes)[0] for part in self._parts]
        firsts = np.concatenate(found) if found else np.empty(0, dtype=np.int64)
        firsts = firsts.astype(np.uint64)
        return firsts >> np.uint64(OFFSET_BITS), firsts & np.uint64((1 << OFFSET_BITS) - 1)

    def kept_zones(self, rows: RowRanges) -> int:
        """How many zones have a row in a set."""
        return sum(part.kept_zones(rows) for part in self._parts)

    def _rows(self, found: Sequence[_Bounds]) -> RowRanges:
        rows = _union(found)
        if self._universe is not None:
            rows &= self._universe
        return rows | self._uncovered


# First address and end of some zones, int64, shape (n,) each.
_Bounds = tuple[np.ndarray, np.ndarray]
# Position of a hash, fragment and first row of a zone.
_Pairs = tuple[np.ndarray, np.ndarray, np.ndarray]


def _union(bounds: Sequence[_Bounds]) -> RowRanges:
    if not bounds:
        return RowRanges()
    starts, stops = zip(*bounds, strict=True)
    return RowRanges.from_arrays(np.concatenate(starts), np.concatenate(stops))


def _addresses(fragment_ids: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> _Bounds:
    firsts = ((fragment_ids << np.uint64(OFFSET_BITS)) + starts).astype(np.int64)
    return firsts, firsts + lengths.astype(np.int64)


def _parts(tables: Sequence[Table], live: frozenset[int]) -> list[_Rows | _Slices]:
    rows = [table for table in tables if isinstance(table, ZoneTable)]
    parts: list[_Rows | _Slices] = [_Rows(rows, live)] if rows else []
    return parts + [_Slices(table, live) for table in tables if isinstance(table, SlicedTable)]


class _Rows:
    """Tables in the row layout: all of their zones are in memory, and looked at."""

    def __init__(self, tables: Sequence[ZoneTable], live: frozenset[int]):
        stops = np.cumsum([len(table) for table in tables]).tolist()
        # Zones of all tables are numbered through.
        self._tables = [
            (table, slice(stop - len(table), stop))
            for table, stop in zip(tables, stops, strict=True)
        ]
        fragment_ids = np.concatenate([table.fragment_ids for table in tables])
        starts = np.concatenate([table.starts for table in tables])
        lengths = np.concatenate([table.lengths for table in tables])
        wanted = np.fromiter(live, dtype=np.uint64, count=len(live))
        kept = np.asarray(np.isin(fragment_ids, wanted))
        self._kept = None if kept.all() else kept
        self._starts, self._stops = _addresses(fragment_ids, starts, lengths)
        self.num_zones = int(np.count_nonzero(kept))
        self.fragment_ids = live & set(np.unique(fragment_ids).tolist())
        self.covered = self._starts[kept], self._stops[kept]

    def matches(self, hashes: np.ndarray) -> _Bounds:
        hit = np.zeros(self._starts.size, dtype=bool)
        for table, zones in self._tables:
            _check(table, hashes, hit[zones])
        return self._at(hit)

    def nulls(self) -> _Bounds:
        return self._at(np.concatenate([table.has_null for table, _ in self._tables]))

    def kept_zones(self, rows: RowRanges) -> int:
        touched = _touched(self._starts, self._stops, rows)
        return int(np.count_nonzero(touched if self._kept is None else touched & self._kept))

    def pairs(self, hashes: np.ndarray) -> Iterator[_Pairs]:
        for table, numbers in self._tables:
            kept_here = None if self._kept is None else self._kept[numbers]
            for keys, zones in search_rows(table, hashes):
                if kept_here is not None:
                    kept = kept_here[zones]
                    keys, zones = keys[kept], zones[kept]
                yield keys, table.fragment_ids[zones], table.starts[zones]

    def _at(self, hit: np.ndarray) -> _Bounds:
        zones = (hit if self._kept is None else hit & self._kept).nonzero()[0]
        return self._starts[zones], self._stops[zones]


class _Slices:
    """A sliced table: of its zones only those found are known one by one."""

    def __init__(self, table: SlicedTable, live: frozenset[int]):
        self._table = table
        runs = table.directory.runs
        self._live = np.fromiter(live, dtype=np.uint64, count=len(live))
        kept = np.asarray(np.isin(runs.fragment_ids, self._live))
        self._all_live = bool(kept.all())
        self.num_zones = int(runs.num_zones[kept].sum())
        self.fragment_ids = live & set(np.unique(runs.fragment_ids).tolist())
        self.covered = _addresses(
            runs.fragment_ids[kept], runs.first_rows[kept], runs.num_rows[kept]
        )

    def matches(self, hashes: np.ndarray) -> _Bounds:
        return self._at(self._table.find(hashes))

    def nulls(self) -> _Bounds:
        return self._at(np.flatnonzero(self._table.has_null))

    def kept_zones(self, rows: RowRanges) -> int:
        every = np.arange(len(self._table), dtype=np.int64)
        return int(np.count_nonzero(_touched(*self._at(every), rows)))

    def pairs(self, hashes: np.ndarray) -> Iterator[_Pairs]:
        for keys, zones in self._table.search_many(hashes):
            fragment_ids, starts, _ = self._table.locate(zones)
            if not self._all_live:
                kept = np.isin(fragment_ids, self._live)
                keys, fragment_ids, starts = keys[kept], fragment_ids[kept], starts[kept]
            yield keys, fragment_ids, starts

    def _at(self, zones: np.ndarray) -> _Bounds:
        fragment_ids, starts, lengths = self._table.locate(zones)
        if not self._all_live:
            kept = np.isin(fragment_ids, self._live)
            fragment_ids, starts, lengths = fragment_ids[kept], starts[kept], lengths[kept]
        return _addresses(fragment_ids, starts, lengths)


def _touched(starts: np.ndarray, stops: np.ndarray, rows: RowRanges) -> np.ndarray:
    """Which zones have a row in a set."""
    before = np.searchsorted(rows.stops, starts, side="right")
    return before < np.searchsorted(rows.starts, stops, side="left")


def _check(table: ZoneTable, hashes: np.ndarray, hit: np.ndarray) -> None:
    """Set the zones of a table that may hold one of some hashes."""
    blocks = sys.modules.get("zonebloom.sbbf.blocks")
    if blocks is None:
        count = hashes.size * len(table)
        if count <= _NUMPY_CHECKS and _checked[0] < _NUMPY_CHECKS_IN_ALL:
            _checked[0] += count
            for hashed in hashes.tolist():
                hit |= check_one(table.words, table.first_words, table.num_blocks, hashed)
            return
        from zonebloom.sbbf import blocks
    blocks.check_any(table.words, table.first_words, table.num_blocks, hashes, hit)
