"""The base classes of the opened files of an index, with zones that are searched for keys.

A table is the file that one segment of an index has. A writer makes it of `ZonePart`, which are
hashes or values of consecutive rows of a fragment. Each kind of index derives its own table from
`IndexTable`, or from `HashedTable`. `zonebloom.index.matching` combines the tables of an index.
"""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import xxhash

from zonebloom.base import arguments
from zonebloom.base.row_ranges import MAX_ROWS_PER_FRAGMENT
from zonebloom.predicates.ast import LeafPredicate
from zonebloom.sbbf.hashing import Hashes, RowHashes
from zonebloom.storage.files import OutputStream

_MIN_PAIRS = 1 << 16

# Positions of hashes, and the numbers of zones that may hold them; both int64, shape (n,).
Pairs: TypeAlias = tuple[np.ndarray, np.ndarray]


def require_zone_rows(number_of_items: Any) -> None:
    """Raise `InvalidArgument` if a zone cannot have so many rows."""
    is_number = isinstance(number_of_items, int) and not isinstance(number_of_items, bool)
    if not is_number or not 1 <= number_of_items <= MAX_ROWS_PER_FRAGMENT:
        advice = f"give a whole number, at least 1 and at most {MAX_ROWS_PER_FRAGMENT:,} rows"
        raise arguments.invalid_value(number_of_items, "number_of_items", advice)


class ColumnValues(NamedTuple):
    """The values of a column, without dictionaries and extension types."""

    array: pa.Array

    @property
    def num_rows(self) -> int:
        return len(self.array)

    @property
    def null_count(self) -> int:
        return self.array.null_count

    @property
    def num_bytes(self) -> int:
        return self.array.nbytes


class ValueQuestion(NamedTuple):
    """A condition on a column of a type, which is asked of an index that compares values."""

    leaf: LeafPredicate
    column_type: pa.DataType


ZonePart: TypeAlias = Hashes | RowHashes | ColumnValues


class HashingFile(io.RawIOBase):
    """An output file that computes the checksum and the size of what is written to it."""

    def __init__(self, stream: OutputStream):
        self._stream = stream
        self.checksum = xxhash.xxh3_64()
        self.size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.checksum.update(data)
        self._stream.write(data)
        self.size += len(data)
        return len(data)

    def tell(self) -> int:
        return self.size

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
        super().close()


class WrittenTable(NamedTuple):
    """The size and the checksum of a file that was written, and how many zones it has."""

    num_bytes: int
    checksum: str
    num_zones: int


@dataclass(frozen=True)
class ZoneRuns:
    """Zones in run-length encoding. Arrays are uint64, shape ``(runs,)``.

    A run is consecutive zones of a fragment. Each has ``items`` rows; the last one may have fewer.
    """

    fragment_ids: np.ndarray
    first_rows: np.ndarray
    num_zones: np.ndarray
    num_rows: np.ndarray
    items: int

    @classmethod
    def from_zones(
        cls, fragment_ids: np.ndarray, starts: np.ndarray, lengths: np.ndarray, items: int
    ) -> ZoneRuns:
        continues_run = np.zeros(starts.size, dtype=bool)
        if 0 < items <= MAX_ROWS_PER_FRAGMENT:
            zone_rows = np.uint64(items)
            continues_run[1:] = (
                (fragment_ids[1:] == fragment_ids[:-1])
                & (lengths[:-1] == zone_rows)
                & (starts[1:] == starts[:-1] + lengths[:-1])
                & (lengths[1:] > 0)
                & (lengths[1:] <= zone_rows)
            )
        run_starts = np.flatnonzero(~continues_run)
        num_zones = np.diff(run_starts, append=starts.size).astype(np.uint64)
        num_rows = np.add.reduceat(lengths, run_starts) if run_starts.size else lengths[:0]
        return cls(fragment_ids[run_starts], starts[run_starts], num_zones, num_rows, items)

    def require_valid(self, num_zones: int) -> None:
        """Raise `ValueError` if these cannot be the runs of so many zones."""
        arrays = self.fragment_ids, self.first_rows, self.num_zones, self.num_rows
        shape = (self.num_zones.size,)
        if any(array.dtype != np.uint64 or array.shape != shape for array in arrays):
            raise ValueError("its runs are not uint64 arrays of one length")
        # The first comparison keeps the sum from overflowing.
        if (self.num_zones > num_zones).any() or int(self.num_zones.sum()) != num_zones:
            raise ValueError("its runs do not add up to its zones")
        limit = np.uint64(MAX_ROWS_PER_FRAGMENT)
        if (self.num_rows > limit).any() or (self.first_rows > limit - self.num_rows).any():
            raise ValueError(f"it holds a zone past row {MAX_ROWS_PER_FRAGMENT:,}")
        has_several = self.num_zones != 1
        if not has_several.any():
            return
        if not 0 < self.items <= MAX_ROWS_PER_FRAGMENT:
            raise ValueError(f"its zones claim {self.items} rows each")
        rows = self.num_rows[has_several]
        expected = (rows + np.uint64(self.items - 1)) // np.uint64(self.items)
        if (expected != self.num_zones[has_several]).any() or (rows == 0).any():
            raise ValueError("the rows of its runs do not match their zones")

    def __len__(self) -> int:
        """Return the number of zones."""
        return int(self._run_stops[-1]) if self._run_stops.size else 0

    @cached_property
    def _run_stops(self) -> np.ndarray:
        return np.cumsum(self.num_zones).astype(np.int64)

    def rows_per_zone(self) -> np.ndarray:
        """Return the number of rows of all zones of each run but the last, uint64.

        A run of one zone has the number of rows of this zone.
        """
        return np.where(self.num_zones == 1, self.num_rows, np.uint64(max(self.items, 0)))

    def select(self, is_selected: np.ndarray) -> ZoneRuns:
        """Return the runs that a mask selects."""
        return ZoneRuns(
            self.fragment_ids[is_selected],
            self.first_rows[is_selected],
            self.num_zones[is_selected],
            self.num_rows[is_selected],
            self.items,
        )

    def locate(self, zones: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return fragment, start and length of zones by number; each uint64, shape ``(n,)``."""
        run = self._run_stops.searchsorted(zones, side="right")
        items = np.uint64(max(self.items, 0))
        rows_before = (
            (zones - self._run_stops[run]).astype(np.uint64) + self.num_zones[run]
        ) * items
        lengths = self.num_rows[run] - rows_before
        is_long = self.num_zones[run] != 1
        lengths[is_long] = np.minimum(lengths[is_long], items)
        return self.fragment_ids[run], self.first_rows[run] + rows_before, lengths


class IndexTable(ABC):
    """A file of zones, numbered from 0, in which keys and nulls are looked up.

    If a part of the file is damaged, every value counts as a possible match there, or opening the
    table fails.

    Attributes
    ----------
    path : str
    num_bytes : int
    runs : ZoneRuns
        The rows of each zone.
    has_null : numpy.ndarray
        Whether a zone may hold a null, bool, shape ``(zones,)``. A table that loads its null flags
        on demand lacks this attribute, and overrides `zones_with_null` and `require_valid`.
    """

    path: str
    num_bytes: int
    runs: ZoneRuns
    has_null: np.ndarray

    def __len__(self) -> int:
        return len(self.runs)

    def require_valid(self) -> None:
        """Raise `ValueError` if the runs and the null flags cannot be those of one table."""
        if self.has_null.dtype != np.bool_ or self.has_null.ndim != 1:
            raise ValueError("its null flags are not an array of one bool for each zone")
        self.runs.require_valid(self.has_null.size)

    def zones_with_null(self) -> np.ndarray:
        """Return the numbers of zones that may hold a null, int64, ascending."""
        return np.flatnonzero(self.has_null)

    @property
    def loaded_bytes(self) -> int:
        """Return the number of bytes of the file that were read so far, by default all."""
        return self.num_bytes

    def verify(self) -> None:
        """Read and verify everything that was not verified when the table was opened.

        By default, that is nothing.
        """
        return

    def close(self) -> None:
        """Close the file. A table in memory has none. Garbage collection closes it too."""
        return

    @cached_property
    def _zones(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self.runs.locate(np.arange(len(self), dtype=np.int64))

    @property
    def fragment_ids(self) -> np.ndarray:
        """Return the fragment id of each zone, uint64, shape ``(zones,)``."""
        return self._zones[0]

    @property
    def starts(self) -> np.ndarray:
        """Return the first row of each zone in its fragment, uint64, shape ``(zones,)``."""
        return self._zones[1]

    @property
    def lengths(self) -> np.ndarray:
        """Return the number of rows of each zone, uint64, shape ``(zones,)``."""
        return self._zones[2]


class HashedTable(IndexTable):
    """A file of zones in which hashes of keys are looked up."""

    @abstractmethod
    def _pairs(self, hashes: np.ndarray) -> Iterator[Pairs]:
        """Yield the parts of `pairs`. A part may be of any size, or empty."""

    @abstractmethod
    def find(self, hashes: np.ndarray) -> np.ndarray:
        """Return the numbers of zones that may hold any of the hashes, int64, ascending."""

    def may_hold(self, zones: np.ndarray, hashes: np.ndarray) -> np.ndarray:
        """Return for each pair of a zone and a hash whether the zone may hold the hash, bool."""
        # Search a hash once, because it may be in many zones, each with a pair of its own.
        distinct_hashes, numbers = np.unique(hashes, return_inverse=True)
        wanted, positions = np.unique(numbers * len(self) + zones, return_inverse=True)
        hit = np.zeros(wanted.size, dtype=bool)
        for keys, zones_found in self.pairs(distinct_hashes):
            pairs_found = keys * len(self) + zones_found
            nearest = np.searchsorted(wanted, pairs_found).clip(max=wanted.size - 1)
            hit[nearest[wanted[nearest] == pairs_found]] = True
        return hit[positions]

    def pairs(self, hashes: np.ndarray) -> Iterator[Pairs]:
        """Yield pairs of a hash and a zone that may hold it, each once, in bounded memory."""
        parts: list[Pairs] = []
        count = 0
        for part in self._pairs(hashes) if hashes.size and len(self) else ():
            parts.append(part)
            count += part[0].size
            if count >= _MIN_PAIRS:
                yield _concatenate_pairs(parts)
                parts, count = [], 0
        if count:
            yield _concatenate_pairs(parts)


def _concatenate_pairs(parts: list[Pairs]) -> Pairs:
    keys, zones = zip(*parts, strict=True)
    return np.concatenate(keys), np.concatenate(zones)
