"""Collect the hashes of rows that have any number of them into the distinct hashes of zones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from zonebloom.index.row_keys.tokens import distinct_hashes
from zonebloom.sbbf.hashing import RowHashes

# The hashes of a zone are made distinct when there are this many, and again when they double.
_MIN_REPEATED = 1 << 20


@dataclass(frozen=True, slots=True)
class ZoneHashes:
    """The distinct hashes of one zone, uint64."""

    num_rows: int
    hashes: np.ndarray
    has_null: bool


class ZoneHashCollector:
    """A collector of the zones of one fragment, which have ``items`` rows each."""

    def __init__(self, items: int):
        self._items = items
        # The hashes and the null flags of the rows of a zone that is not complete.
        self._hashes: list[np.ndarray] = []
        self._has_null = False
        self._num_rows = 0
        self._num_hashes, self._max_hashes = 0, _MIN_REPEATED

    def add(self, part: RowHashes) -> Iterator[ZoneHashes]:
        """Add the next rows. Yield finished zones."""
        row = first_hash = 0
        while row < part.num_rows:
            stop = min(row + self._items - self._num_rows, part.num_rows)
            end = int(part.ends[stop - 1])
            self._add_hashes(part.values[first_hash:end])
            self._has_null |= bool(part.is_null[row:stop].any())
            self._num_rows += stop - row
            row, first_hash = stop, end
            if self._num_rows == self._items:
                yield from self.finish()

    def finish(self) -> Iterator[ZoneHashes]:
        """Yield the last zone, if there is one."""
        if not self._num_rows:
            return
        hashes = distinct_hashes(np.concatenate(self._hashes))
        yield ZoneHashes(self._num_rows, hashes, self._has_null)
        self._hashes, self._has_null, self._num_rows = [], False, 0
        self._num_hashes, self._max_hashes = 0, _MIN_REPEATED

    def _add_hashes(self, hashes: np.ndarray) -> None:
        self._hashes.append(hashes)
        self._num_hashes += hashes.size
        # Long strings repeat most of their tokens.
        if self._num_hashes > self._max_hashes:
            self._hashes = [distinct_hashes(np.concatenate(self._hashes))]
            self._num_hashes = self._hashes[0].size
            self._max_hashes = max(2 * self._num_hashes, _MIN_REPEATED)
