"""Turn the hashes of a column into zones of equal length, each with a filter and a null flag.

A zone never crosses a fragment boundary. The last zone of a fragment may be short.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from zonebloom.base.arrays import allocate_array
from zonebloom.index.zone_bloom.parameters import ZoneParameters
from zonebloom.index.zone_bloom.table import Zones
from zonebloom.sbbf.hashing import Hashes, hash_in_batches

# Each worker keeps about this many bytes of unfinished filters in memory.
_BUFFER_BYTES = 4 << 20


class ZoneTrainer:
    """Builder of the zones of one fragment from the hashes of its rows.

    If the number of rows is known, pass it, so that a short fragment gets a small buffer.
    """

    def __init__(self, parameters: ZoneParameters, num_rows: int | None = None):
        self._items = parameters.number_of_items
        self._words = parameters.filter_bytes // 4
        self._capacity = max(1, _BUFFER_BYTES // parameters.filter_bytes)
        if num_rows is not None:
            self._capacity = min(self._capacity, max(1, -(-num_rows // self._items)))
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
        from zonebloom.sbbf import blocks

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


def train_zones(
    arrays: Iterable[pa.Array], parameters: ZoneParameters, num_rows: int | None = None
) -> Iterator[Zones]:
    trainer = ZoneTrainer(parameters, num_rows)
    for array in arrays:
        for hashes in hash_in_batches(array):
            yield from trainer.add(hashes)
    yield from trainer.finish()
