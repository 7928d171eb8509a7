"""Turn the hashes of a column into zones with a filter and a null flag, and write them.

A zone never crosses a fragment boundary. The last zone of a fragment may be short. Two things
decide the size of a zone's filter:

    one hash for each row         `ZoneParameters.filter_bytes`, the same for all zones; then the
                                  writer of the table folds filters of few distinct values
    several hashes for each row   the number of distinct hashes in the zone
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from zonebloom.base.arrays import allocate_array
from zonebloom.catalog.store import Catalog
from zonebloom.index.row_keys.zone_hashes import ZoneHashCollector, ZoneHashes
from zonebloom.index.table import WrittenTable
from zonebloom.index.zone_bloom.rows import RowTableWriter, ZoneParameters, Zones
from zonebloom.sbbf import blocks
from zonebloom.sbbf.hashing import Hashes, RowHashes
from zonebloom.sbbf.sizing import size_for

# Each worker keeps about this many bytes of unfinished filters in memory.
_BUFFER_BYTES = 4 << 20


class ZoneTrainer:
    """Builder of the zones of one fragment from one hash for each row."""

    def __init__(self, parameters: ZoneParameters):
        self._items = parameters.number_of_items
        self._words = parameters.filter_bytes // 4
        self._capacity = max(1, _BUFFER_BYTES // parameters.filter_bytes)
        self._num_finished = 0
        self._num_buffered_rows = 0

    def _begin_buffer(self) -> None:
        # Memory of Arrow's pool was used before, so it is faster to clear than new memory. Only the
        # filters that get rows are cleared, because a short fragment needs few.
        filters = allocate_array(self._capacity * self._words, np.uint32)
        self._filters = filters.reshape(self._capacity, self._words)
        self._num_cleared = 0
        self._has_null = np.zeros(self._capacity, dtype=bool)

    def add(self, hashes: Hashes) -> Iterator[Zones]:
        """Add the next rows. Yield finished zones, a few megabytes at a time."""
        start = 0
        while start < hashes.values.size:
            if not self._num_buffered_rows:
                self._begin_buffer()
            room = self._capacity * self._items - self._num_buffered_rows
            values = hashes.values[start : start + room]
            num_zones = -(-(self._num_buffered_rows + values.size) // self._items)
            self._filters[self._num_cleared : num_zones] = 0
            self._num_cleared = max(self._num_cleared, num_zones)
            blocks.insert_zones(
                self._filters,
                values,
                hashes.validity,
                hashes.validity_offset + start,
                self._num_buffered_rows,
                self._items,
                self._has_null,
            )
            start += values.size
            self._num_buffered_rows += values.size
            if values.size == room:
                yield from self.finish()

    def finish(self) -> Iterator[Zones]:
        if not self._num_buffered_rows:
            return
        count = -(-self._num_buffered_rows // self._items)
        starts = (self._num_finished + np.arange(count, dtype=np.uint64)) * np.uint64(self._items)
        lengths = np.full(count, self._items, dtype=np.uint64)
        lengths[-1] = self._num_buffered_rows - (count - 1) * self._items
        yield Zones(starts, lengths, self._has_null[:count], self._filters[:count])
        self._num_finished += count
        self._num_buffered_rows = 0


class ZoneSegmentWriter:
    """The writer of a segment of a BLOOMFILTER index."""

    def __init__(self, catalog: Catalog, path: str, parameters: ZoneParameters):
        self._parameters = parameters
        self._trainer = ZoneTrainer(parameters)
        self._collector = ZoneHashCollector(parameters.number_of_items)
        # Rows of the fragment in zones of the collector.
        self._num_rows = 0
        fold_to = parameters.probability, parameters.fold
        self._writer = RowTableWriter(catalog, path, parameters.number_of_items, *fold_to)

    def add(self, fragment_id: int, part: Hashes | RowHashes) -> None:
        if isinstance(part, RowHashes):
            self._write_zones(fragment_id, self._collector.add(part))
            return
        for zones in self._trainer.add(part):
            self._writer.write(fragment_id, zones)

    def _write_zones(self, fragment_id: int, zones: Iterable[ZoneHashes]) -> None:
        """Write zones with filters for the number of hashes that each holds."""
        for zone in zones:
            num_bytes = size_for(max(zone.hashes.size, 1), self._parameters.probability)
            filters = np.zeros((1, num_bytes // 4), dtype=np.uint32)
            blocks.insert(filters[0], zone.hashes)
            start, length = (
                np.array([number], dtype=np.uint64) for number in (self._num_rows, zone.num_rows)
            )
            self._writer.write(
                fragment_id, Zones(start, length, np.array([zone.has_null]), filters)
            )
            self._num_rows += zone.num_rows

    def end_fragment(self, fragment_id: int) -> None:
        self._write_zones(fragment_id, self._collector.finish())
        for zones in self._trainer.finish():
            self._writer.write(fragment_id, zones)
        self._trainer = ZoneTrainer(self._parameters)
        self._num_rows = 0

    def close(self) -> WrittenTable:
        return self._writer.close()

    def abort(self) -> None:
        self._writer.abort()
