"""Hold pairs of a hash and a zone during a build, in memory or in a temporary file.

rows -> PairSpool     partitioned by the leading bits of the hash, in chunks
     -> SortedPairs   one sorted part for each partition, without duplicates
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from zonebloom.sbbf.hashing import Hashes

# Each chunk is partitioned when it has about this many rows.
_CHUNK_ROWS = 1 << 20
# Enough that a partition of a billion rows fits in memory several times.
PARTITION_BITS = 10
NUM_PARTITIONS = 1 << PARTITION_BITS
_PARTITION_SHIFT = np.uint64(64 - PARTITION_BITS)
BYTES_PER_PAIR = 12

# Hashes and zones of the same length: uint64 and uint32.
PairArrays = tuple[np.ndarray, np.ndarray]


def no_pairs() -> PairArrays:
    return np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.uint32)


class _Rows(NamedTuple):
    """Hashes of consecutive rows of a fragment, and where they begin."""

    hashes: Hashes
    first_row: int
    first_zone: int


@dataclass(slots=True)
class _StoredPairs:
    """Pairs in memory, or the offset of their bytes in the temporary file."""

    hashes: np.ndarray | None
    zones: np.ndarray | None
    count: int
    offset: int = 0


class _PairFile:
    """A temporary file of pairs, which the system deletes when it is closed."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="zonebloom-")  # noqa: SIM115
        self._size = 0

    def append(self, hashes: np.ndarray, zones: np.ndarray) -> _StoredPairs:
        offset = self._size
        for array in (hashes, zones):
            self._file.write(array.data)
            self._size += array.nbytes
        self._file.flush()
        return _StoredPairs(None, None, hashes.size, offset)

    def read(self, stored: _StoredPairs, start: int, stop: int) -> PairArrays:
        return (
            self._read(np.uint64, stored.offset + 8 * start, stop - start),
            self._read(np.uint32, stored.offset + 8 * stored.count + 4 * start, stop - start),
        )

    def _read(self, dtype: type, offset: int, count: int) -> np.ndarray:
        array = np.empty(count, dtype=dtype)
        view = array.data.cast("B")
        done = 0
        while done < len(view):
            size = os.preadv(self._file.fileno(), [view[done:]], offset + done)
            if not size:
                raise OSError("the temporary file of a build is too short")
            done += size
        return array

    def close(self) -> None:
        self._file.close()


class _PairStore:
    """Arrays of pairs, in memory up to a number of bytes, and then in a temporary file."""

    def __init__(self, memory_bytes: int):
        self._free_bytes = memory_bytes
        self._file: _PairFile | None = None

    def keep(self, hashes: np.ndarray, zones: np.ndarray) -> _StoredPairs:
        num_bytes = hashes.size * BYTES_PER_PAIR
        if num_bytes <= self._free_bytes:
            self._free_bytes -= num_bytes
            return _StoredPairs(hashes, zones, hashes.size)
        if self._file is None:
            self._file = _PairFile()
        return self._file.append(hashes, zones)

    def slice(self, stored: _StoredPairs, start: int, stop: int) -> PairArrays:
        if stored.hashes is not None and stored.zones is not None:
            return stored.hashes[start:stop], stored.zones[start:stop]
        assert self._file is not None
        return self._file.read(stored, start, stop)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class PairSpool:
    """The pairs of the rows of a segment, partitioned by the leading bits of the hash."""

    def __init__(self, items: int, memory_bytes: int):
        self._items = items
        self._store = _PairStore(memory_bytes)
        self._rows: list[_Rows] = []
        self._num_waiting = 0
        self._chunks: list[tuple[_StoredPairs, np.ndarray]] = []
        self.num_pairs = 0

    def add(self, hashes: Hashes, first_row: int, first_zone: int) -> None:
        """Add rows of a fragment whose first zone is given."""
        self._rows.append(_Rows(hashes, first_row, first_zone))
        self._num_waiting += hashes.values.size
        if self._num_waiting >= _CHUNK_ROWS:
            self._finish_chunk()

    def _finish_chunk(self) -> None:
        from zonebloom.index.hash import sort_kernels

        rows, self._rows, self._num_waiting = self._rows, [], 0
        counts = np.zeros(NUM_PARTITIONS, dtype=np.int64)
        for part in rows:
            sort_kernels.count_partitions(*self._arguments(part), counts)
        ends = np.cumsum(counts)
        starts = ends - counts
        offsets = np.append(starts, ends[-1])
        size = int(ends[-1])
        hashes, zones = np.empty(size, dtype=np.uint64), np.empty(size, dtype=np.uint32)
        for part in rows:
            sort_kernels.scatter_pairs(*self._arguments(part), starts, hashes, zones)
        self._chunks.append((self._store.keep(hashes, zones), offsets))
        self.num_pairs += size

    def _arguments(self, part: _Rows) -> tuple:
        hashes = part.hashes
        return (
            hashes.values,
            hashes.validity,
            hashes.validity_offset,
            hashes.null_count > 0,
            part.first_row,
            self._items,
            part.first_zone,
            _PARTITION_SHIFT,
        )

    def finish(self) -> None:
        if self._rows:
            self._finish_chunk()

    def partition_sizes(self) -> np.ndarray:
        """Return the number of pairs of each partition, int64."""
        sizes = np.zeros(NUM_PARTITIONS, dtype=np.int64)
        for _, offsets in self._chunks:
            sizes += np.diff(offsets)
        return sizes

    def partition(self, number: int) -> PairArrays:
        parts = [no_pairs()]
        for stored, offsets in self._chunks:
            start, stop = offsets[number : number + 2].tolist()
            if start < stop:
                parts.append(self._store.slice(stored, start, stop))
        hashes, zones = zip(*parts, strict=True)
        return np.concatenate(hashes), np.concatenate(zones)

    def close(self) -> None:
        self._store.close()


def sort_distinct(
    hashes: np.ndarray, zones: np.ndarray, hash_bits: int, shared_bits: int
) -> PairArrays:
    """Sort pairs by the first bits of the hash, then zone, and drop duplicates.

    The bits after ``hash_bits`` become zeros. All hashes share their first ``shared_bits`` bits.
    The given arrays are overwritten.
    """
    from zonebloom.index.hash import sort_kernels

    if not hashes.size:
        return no_pairs()
    out_hashes, out_zones = np.empty_like(hashes), np.empty_like(zones)
    # About four pairs for each bucket.
    counts = np.empty(1 << max(1, (hashes.size // 4).bit_length()), dtype=np.int64)
    mask = np.uint64((1 << 64) - (1 << (64 - hash_bits)))
    count = sort_kernels.sort_pairs(
        hashes, zones, mask, np.uint64(shared_bits), counts, out_hashes, out_zones
    )
    if 2 * count < hashes.size:
        return out_hashes[:count].copy(), out_zones[:count].copy()
    return out_hashes[:count], out_zones[:count]


class SortedPairs:
    """Sorted pairs without duplicates, in parts by the leading bits of the hash.

    Parts are appended in order. There are ``1 << part_bits`` of them.
    """

    def __init__(self, part_bits: int, memory_bytes: int):
        self.part_bits = part_bits
        self._store = _PairStore(memory_bytes)
        self._parts: list[_StoredPairs] = []

    def append(self, pairs: PairArrays) -> None:
        self._parts.append(self._store.keep(*pairs))

    def part(self, number: int) -> PairArrays:
        stored = self._parts[number]
        return self._store.slice(stored, 0, stored.count)

    def ranges(self, num_bits: int) -> Iterator[Callable[[], PairArrays]]:
        """Yield functions that load the pairs of each value of the first ``num_bits`` bits.

        A range is one part, or several if there are fewer ranges than parts.
        """
        step = 1 << max(0, self.part_bits - num_bits)
        for first in range(0, len(self._parts), step):
            yield lambda first=first: self._join(first, first + step)

    def _join(self, start: int, stop: int) -> PairArrays:
        if stop - start == 1:
            return self.part(start)
        hashes, zones = zip(*map(self.part, range(start, stop)), strict=True)
        return np.concatenate(hashes), np.concatenate(zones)

    def close(self) -> None:
        self._store.close()
