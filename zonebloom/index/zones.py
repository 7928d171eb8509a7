"""From the batches of a column to zones: one filter and one null flag for each.

    rows     0        8192      16384     20000   of one fragment
             |--zone---|--zone---|--zone---|
    filter   SBBF      SBBF      SBBF             has_null each

A zone never crosses a fragment, and the last one is short. Inserting commutes, so a run of
rows may begin and end anywhere: filters of the two parts of a zone are OR-ed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from zonebloom.errors import InvalidArgument
from zonebloom.sbbf.hashing import hash_array
from zonebloom.sbbf.sizing import SIZINGS, size_for

DEFAULT_ITEMS = 8192
DEFAULT_PROBABILITY = 0.00057

# Filters in the making take about this much memory a worker, bytes.
_BUFFER_BYTES = 4 << 20
# Hashes of this many rows stay in the processor's cache between hashing and inserting.
_HASH_ROWS = 1 << 16


@dataclass(frozen=True, slots=True)
class ZoneParameters:
    """Parameters of a BLOOMFILTER index.

    Attributes
    ----------
    number_of_items : int
        Rows a zone, and the distinct values its filter is sized for.
    probability : float
        Target false positive probability.
    sizing : {"log2", "exact"}
        A power of two as Lance takes it, or the least number of blocks.
    fold : bool
        Whether filters of few distinct values are halved as often as the probability allows.
    """

    number_of_items: int = DEFAULT_ITEMS
    probability: float = DEFAULT_PROBABILITY
    sizing: str = SIZINGS[0]
    fold: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.number_of_items, int) and self.number_of_items > 1 << 32:
            raise InvalidArgument(
                f"number_of_items is {self.number_of_items}; a fragment has at most 2**32 rows"
            )
        size_for(self.number_of_items, self.probability, self.sizing)

    @property
    def filter_bytes(self) -> int:
        """Size of one zone's filter, bytes."""
        return size_for(self.number_of_items, self.probability, self.sizing)


@dataclass(frozen=True, slots=True)
class Zones:
    """Consecutive zones of one fragment.

    Attributes
    ----------
    starts, lengths : uint64 array, shape (n,)
        Rows of each zone, as offsets in the fragment.
    has_null : bool array, shape (n,)
    filters : uint32 array, shape (n, words)
    """

    starts: np.ndarray
    lengths: np.ndarray
    has_null: np.ndarray
    filters: np.ndarray

    def __len__(self) -> int:
        return self.starts.size

    def slice(self, start: int, stop: int) -> Zones:
        """Some of the zones, sharing memory."""
        part = slice(start, stop)
        return Zones(self.starts[part], self.lengths[part], self.has_null[part], self.filters[part])


def train(
    arrays: Iterable[pa.Array], parameters: ZoneParameters, first_row: int = 0
) -> Iterator[Zones]:
    """Build the zones of a run of rows.

    Parameters
    ----------
    arrays : iterable of pyarrow.Array
        The column's values, in row order.
    parameters : ZoneParameters
    first_row : int
        Offset in the fragment of the run's first row.

    Yields
    ------
    Zones
        In order, a few megabytes at a time. The first and the last zone of the run may be
        parts of a zone.
    """
    from zonebloom.sbbf import blocks

    items = parameters.number_of_items
    words = parameters.filter_bytes // 4
    capacity = _capacity(parameters)
    base = first_row // items
    filters = np.zeros((capacity, words), dtype=np.uint32)
    has_null = np.zeros(capacity, dtype=bool)
    row = start = first_row

    for array in arrays:
        at = 0
        # The values of a dictionary are hashed anew for each piece: then the pieces are large.
        step = len(array) if pa.types.is_dictionary(array.type) else _HASH_ROWS
        while at < len(array):
            room = min((base + capacity) * items - row, step, len(array) - at)
            hashes = hash_array(array.slice(at, room))
            blocks.insert_zones(
                filters,
                hashes.values,
                hashes.validity,
                hashes.validity_offset,
                row - base * items,
                items,
                has_null,
            )
            at += room
            row += room
            if row == (base + capacity) * items:
                yield _cut(filters, has_null, base, start, row, items)
                base += capacity
                start = row
                filters = np.zeros((capacity, words), dtype=np.uint32)
                has_null = np.zeros(capacity, dtype=bool)
    if row > start:
        yield _cut(filters, has_null, base, start, row, items)


def _cut(
    filters: np.ndarray, has_null: np.ndarray, base: int, start: int, stop: int, items: int
) -> Zones:
    count = -(-stop // items) - base
    bounds = (base + np.arange(count + 1, dtype=np.uint64)) * np.uint64(items)
    starts = bounds[:-1].copy()
    starts[0] = start
    stops = bounds[1:]
    stops[-1] = stop
    return Zones(starts, stops - starts, has_null[:count], filters[:count])


def join(runs: Iterable[Zones], number_of_items: int) -> Iterator[Zones]:
    """Put the runs of one fragment together: parts of one zone become that zone.

    Parameters
    ----------
    runs : iterable of Zones
        In row order, without gaps; modified. A run may begin where the one before stopped
        inside a zone.
    number_of_items : int
        Rows a zone.
    """
    held: Zones | None = None
    for run in runs:
        if held is not None:
            if int(run.starts[0]) % number_of_items:
                _merge_into_first(run, held)
            else:
                yield held
            held = None
        if int(run.starts[-1] + run.lengths[-1]) % number_of_items == 0:
            yield run
            continue
        if len(run) > 1:
            yield run.slice(0, len(run) - 1)
        held = run.slice(len(run) - 1, len(run))
    if held is not None:
        yield held


def _merge_into_first(run: Zones, held: Zones) -> None:
    run.filters[0] |= held.filters[0]
    run.has_null[0] |= held.has_null[0]
    run.lengths[0] += held.lengths[0]
    run.starts[0] = held.starts[0]


def _capacity(parameters: ZoneParameters) -> int:
    """How many zones are made, and written, at a time."""
    return max(1, _BUFFER_BYTES // parameters.filter_bytes)


def regroup(runs: Iterable[Zones], parameters: ZoneParameters) -> Iterator[Zones]:
    """Cut the zones of one fragment anew, so that a table does not show how they were made.

    Parameters
    ----------
    runs : iterable of Zones
        In row order.
    parameters : ZoneParameters

    Yields
    ------
    Zones
        As many at a time as one thread makes, the last ones excepted.
    """
    capacity = _capacity(parameters)
    held: list[Zones] = []
    count = 0
    for run in runs:
        at = 0
        while at < len(run):
            part = run.slice(at, at + capacity - count)
            held.append(part)
            count += len(part)
            at += len(part)
            if count == capacity:
                yield _concatenate(held)
                held, count = [], 0
    if held:
        yield _concatenate(held)


def _concatenate(parts: list[Zones]) -> Zones:
    if len(parts) == 1:
        return parts[0]
    return Zones(
        np.concatenate([part.starts for part in parts]),
        np.concatenate([part.lengths for part in parts]),
        np.concatenate([part.has_null for part in parts]),
        np.concatenate([part.filters for part in parts]),
    )
