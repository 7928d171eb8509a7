"""From the batches of a column to zones of 8192 rows: one filter and one null flag for each.

A zone never crosses a fragment, and the last one is short. Inserting commutes, so a run of
rows may begin and end anywhere: filters of the two parts of a zone are OR-ed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pyarrow as pa

from zonebloom.catalog.model import ZoneParameters
from zonebloom.index.table import Zones
from zonebloom.sbbf.hashing import Hashes, hash_array

# Filters in the making take about this much memory a worker, bytes.
_BUFFER_BYTES = 4 << 20
# Hashes of this many rows stay in the processor's cache between hashing and inserting.
_HASH_ROWS = 1 << 16


class ZoneTrainer:
    """Builds the zones of a run of rows, array by array."""

    def __init__(
        self,
        parameters: ZoneParameters,
        first_row: int = 0,
        hashed: Callable[[Hashes], None] | None = None,
    ):
        self._items = parameters.number_of_items
        self._words = parameters.filter_bytes // 4
        self._capacity = _capacity(parameters)
        self._hashed = hashed
        self._base = first_row // self._items
        self._row = self._start = first_row
        self._clear()

    def _clear(self) -> None:
        self._filters = np.zeros((self._capacity, self._words), dtype=np.uint32)
        self._has_null = np.zeros(self._capacity, dtype=bool)

    def add(self, array: pa.Array) -> Iterator[Zones]:
        """Take the next rows; gives the zones that are done, a few megabytes at a time."""
        from zonebloom.sbbf import blocks

        at = 0
        # The values of a dictionary are hashed anew for each piece: then the pieces are large.
        step = len(array) if pa.types.is_dictionary(array.type) else _HASH_ROWS
        while at < len(array):
            end = (self._base + self._capacity) * self._items
            room = min(end - self._row, step, len(array) - at)
            hashes = hash_array(array.slice(at, room))
            blocks.insert_zones(
                self._filters,
                hashes.values,
                hashes.validity,
                hashes.validity_offset,
                self._row - self._base * self._items,
                self._items,
                self._has_null,
            )
            if self._hashed is not None:
                self._hashed(hashes)
            at += room
            self._row += room
            if self._row == end:
                yield self._cut()
                self._base += self._capacity
                self._start = self._row
                self._clear()

    def finish(self) -> Iterator[Zones]:
        """Yield what is left; the last zone may be a part of one."""
        if self._row > self._start:
            yield self._cut()

    def _cut(self) -> Zones:
        count = -(-self._row // self._items) - self._base
        zones = self._base + np.arange(count + 1, dtype=np.uint64)
        bounds = zones * np.uint64(self._items)
        bounds[0], bounds[-1] = self._start, self._row
        starts = bounds[:-1].copy()
        return Zones(starts, bounds[1:] - starts, self._has_null[:count], self._filters[:count])


def train(
    arrays: Iterable[pa.Array], parameters: ZoneParameters, first_row: int = 0
) -> Iterator[Zones]:
    trainer = ZoneTrainer(parameters, first_row)
    for array in arrays:
        yield from trainer.add(array)
    yield from trainer.finish()


class ZoneJoiner:
    """Joins the runs of one fragment, zones parted between two of them too; gives as many at a time
    as one thread makes, so that a table does not show how it was made."""

    def __init__(self, parameters: ZoneParameters):
        self._items = parameters.number_of_items
        self._capacity = _capacity(parameters)
        self._part: Zones | None = None
        self._whole: list[Zones] = []
        self._count = 0

    def add(self, run: Zones) -> Iterator[Zones]:
        """Take the next zones, in row order and without gaps; they are modified."""
        if self._part is not None:
            if int(run.starts[0]) % self._items:
                _merge_into_first(run, self._part)
            else:
                yield from self._give(self._part)
            self._part = None
        if int(run.starts[-1] + run.lengths[-1]) % self._items == 0:
            yield from self._give(run)
            return
        if len(run) > 1:
            yield from self._give(run.slice(0, len(run) - 1))
        self._part = run.slice(len(run) - 1, len(run))

    def finish(self) -> Iterator[Zones]:
        if self._part is not None:
            yield from self._give(self._part)
        if self._whole:
            yield _concatenate(self._whole)

    def _give(self, run: Zones) -> Iterator[Zones]:
        at = 0
        while at < len(run):
            part = run.slice(at, at + self._capacity - self._count)
            self._whole.append(part)
            self._count += len(part)
            at += len(part)
            if self._count == self._capacity:
                yield _concatenate(self._whole)
                self._whole, self._count = [], 0


def _merge_into_first(run: Zones, part: Zones) -> None:
    run.filters[0] |= part.filters[0]
    run.has_null[0] |= part.has_null[0]
    run.lengths[0] += part.lengths[0]
    run.starts[0] = part.starts[0]


def _capacity(parameters: ZoneParameters) -> int:
    """How many zones are made, and written, at a time."""
    return max(1, _BUFFER_BYTES // parameters.filter_bytes)


def _concatenate(parts: list[Zones]) -> Zones:
    if len(parts) == 1:
        return parts[0]
    return Zones(
        np.concatenate([part.starts for part in parts]),
        np.concatenate([part.lengths for part in parts]),
        np.concatenate([part.has_null for part in parts]),
        np.concatenate([part.filters for part in parts]),
    )
