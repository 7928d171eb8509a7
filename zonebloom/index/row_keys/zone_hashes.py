"""Collect the hashes of rows that have any number of them into the distinct hashes of zones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from zonebloom.index.row_keys.tokens import distinct_hashes
from zonebloom.sbbf.hashing import RowHashes


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

    def add(self, part: RowHashes) -> Iterator[ZoneHashes]:
        """Add the next rows. Yield finished zones."""
        row = first_hash = 0
        while row < part.num_rows:
            stop = min(row + self._items - self._num_rows, part.num_rows)
            end = int(part.ends[stop - 1])
            self._hashes.append(part.values[first_hash:end])
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
