"""From the hashes of a column to zones of 8192 rows: one filter and one null flag for each. A zone
never crosses a fragment, and the last one is short."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from zonebloom.catalog.model import ZoneParameters
from zonebloom.index.table import Zones
from zonebloom.sbbf.hashing import Hashes, hash_array

# Filters in the making take about this much memory a worker, bytes.
_BUFFER_BYTES = 4 << 20
# Hashes of this many rows stay in the processor's cache between hashing and inserting.
_HASH_ROWS = 1 << 16


def hash_in_batches(array: pa.Array) -> Iterator[Hashes]:
    """The hashes of an array, a piece at a time."""
    # The values of a dictionary are hashed anew for each piece: then there is one.
    step = len(array) or 1 if pa.types.is_dictionary(array.type) else _HASH_ROWS
    for at in range(0, len(array), step):
        yield hash_array(array.slice(at, step))


class ZoneTrainer:
    """Builder of the zones of one fragment from the hashes of its rows.

    Give the number of rows where it is known: a short fragment then needs a small buffer only.
    """

    def __init__(self, parameters: ZoneParameters, num_rows: int | None = None):
        self._items = parameters.number_of_items
        self._words = parameters.filter_bytes // 4
        self._capacity = max(1, _BUFFER_BYTES // parameters.filter_bytes)
        if num_rows is not None:
            self._capacity = min(self._capacity, max(1, -(-num_rows // self._items)))
        self._base = 0
        self._rows = 0

    def _begin_buffer(self) -> None:
        self._filters = np.zeros((self._capacity, self._words), dtype=np.uint32)
        self._has_null = np.zeros(self._capacity, dtype=bool)

    def add(self, hashes: Hashes) -> Iterator[Zones]:
        """Take the next rows; gives the zones that are done, a few megabytes at a time."""
        from zonebloom.sbbf import blocks

        at = 0
        while at < hashes.values.size:
            if not self._rows:
                self._begin_buffer()
            room = self._capacity * self._items - self._rows
            values = hashes.values[at : at + room]
            blocks.insert_zones(
                self._filters,
                values,
                hashes.validity,
                hashes.validity_offset + at,
                self._rows,
                self._items,
                self._has_null,
            )
            at += values.size
            self._rows += values.size
            if values.size == room:
                yield from self.finish()

    def finish(self) -> Iterator[Zones]:
        if not self._rows:
            return
        count = -(-self._rows // self._items)
        starts = (self._base + np.arange(count, dtype=np.uint64)) * np.uint64(self._items)
        lengths = np.full(count, self._items, dtype=np.uint64)
        lengths[-1] = self._rows - (count - 1) * self._items
        yield Zones(starts, lengths, self._has_null[:count], self._filters[:count])
        self._base += count
        self._rows = 0


def train_zones(
    arrays: Iterable[pa.Array], parameters: ZoneParameters, num_rows: int | None = None
) -> Iterator[Zones]:
    trainer = ZoneTrainer(parameters, num_rows)
    for array in arrays:
        for hashes in hash_in_batches(array):
            yield from trainer.add(hashes)
    yield from trainer.finish()
