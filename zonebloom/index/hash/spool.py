"""Hold pairs of a hash and a zone during a build, in memory or in a temporary file.

rows -> PairSpool     partitioned by the leading bits of the hash, in chunks
     -> SortedPairs   one sorted part for each partition, without duplicates
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from zonebloom.errors import CatalogError
from zonebloom.sbbf.hashing import Hashes

# Each chunk is partitioned when it has about this many rows. Larger chunks do not fit in the cache.
_CHUNK_ROWS = 1 << 18
# If a partition has so many times the mean number of pairs, a frequent key is in it.
_MAX_SKEW = 4
# Enough that a partition of a billion rows fits in memory several times.
PARTITION_BITS = 8
NUM_PARTITIONS = 1 << PARTITION_BITS
_PARTITION_SHIFT = np.uint64(64 - PARTITION_BITS)

# An unsorted pair has this many bits of the hash after those that choose the partition.
MORE_HASH_BITS = 32
# Arrays of unsorted pairs, uint64; see `zonebloom.index.hash.sort_kernels`.
PairArrays = Sequence[np.ndarray]


class _Rows(NamedTuple):
    """Hashes of consecutive rows of a fragment, and where they begin."""

    hashes: Hashes
    first_row: int
    first_zone: int
    # Rows of each zone.
    items: int


class _FileSlice(NamedTuple):
    """The place of an array in a temporary file."""

    offset: int
    dtype: np.dtype
    size: int


# An array in memory or in a temporary file.
_Stored = np.ndarray | _FileSlice


@contextlib.contextmanager
def temporary_file_errors() -> Iterator[None]:
    """Name the folder of temporary files, which is not that of the index."""
    try:
        yield
    except OSError as error:
        folder = tempfile.tempdir or "the folder for temporary files"
        raise CatalogError(
            f"cannot write a temporary file of the build to {folder} ({error}); make room there, "
            "or set TMPDIR to another folder"
        ) from None


class _TemporaryArrays:
    """A temporary file of arrays, which the system deletes when it is closed."""

    def __init__(self) -> None:
        with temporary_file_errors():
            self._file = tempfile.TemporaryFile(prefix="zonebloom-")  # noqa: SIM115
        self._size = 0

    def append(self, array: np.ndarray) -> _FileSlice:
        stored = _FileSlice(self._size, array.dtype, array.size)
        with temporary_file_errors():
            self._file.write(array.data)
            self._file.flush()
        self._size += array.nbytes
        return stored

    def read(self, stored: _FileSlice, start: int, stop: int) -> np.ndarray:
        array = np.empty(stop - start, dtype=stored.dtype)
        view = array.data.cast("B")
        offset = stored.offset + start * stored.dtype.itemsize
        num_read = 0
        while num_read < len(view):
            size = os.preadv(self._file.fileno(), [view[num_read:]], offset + num_read)
            if not size:
                raise OSError("the temporary file of a build is too short")
            num_read += size
        return array

    def close(self) -> None:
        self._file.close()


class _ArrayStore:
    """Arrays in memory up to a number of bytes, and then in a temporary file."""

    def __init__(self, memory_bytes: int):
        self._free_bytes = memory_bytes
        self._file: _TemporaryArrays | None = None

    def keep(self, array: np.ndarray) -> _Stored:
        if array.nbytes <= self._free_bytes:
            self._free_bytes -= array.nbytes
            return array
        if self._file is None:
            self._file = _TemporaryArrays()
        return self._file.append(array)

    def slice(self, stored: _Stored, start: int, stop: int) -> np.ndarray:
        if isinstance(stored, np.ndarray):
            return stored[start:stop]
        assert self._file is not None
        return self._file.read(stored, start, stop)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class PairSpool:
    """The pairs of the rows of a segment, partitioned by the leading bits of the hash."""

    def __init__(self, items: int, memory_bytes: int):
        self._items = items
        self._store = _ArrayStore(memory_bytes)
        self._rows: list[_Rows] = []
        self._num_waiting = 0
        # The pairs of each chunk, and where its partitions begin.
        self._chunks: list[tuple[_Stored, np.ndarray]] = []

    def add(self, hashes: Hashes, first_row: int, first_zone: int) -> None:
        """Add rows of a fragment whose first zone is given."""
        self._add(_Rows(hashes, first_row, first_zone, self._items))

    def add_zone(self, hashes: np.ndarray, zone: int) -> None:
        """Add the distinct hashes of one zone, of any number."""
        as_rows = Hashes(hashes, np.empty(0, dtype=np.uint8), 0, 0)
        self._add(_Rows(as_rows, 0, zone, hashes.size + 1))

    def _add(self, rows: _Rows) -> None:
        self._rows.append(rows)
        self._num_waiting += rows.hashes.values.size
        if self._num_waiting >= _CHUNK_ROWS:
            self._finish_chunk()

    def _finish_chunk(self) -> None:
        from zonebloom.index.hash import sort_kernels

        waiting_rows, self._rows, self._num_waiting = self._rows, [], 0
        counts = np.zeros(NUM_PARTITIONS, dtype=np.int64)
        for rows in waiting_rows:
            sort_kernels.count_partitions(*self._kernel_args(rows), counts)
        ends = np.cumsum(counts)
        starts = ends - counts
        offsets = np.append(starts, ends[-1])
        size = int(ends[-1])
        pairs = np.empty(size, dtype=np.uint64)
        for rows in waiting_rows:
            sort_kernels.scatter_pairs(*self._kernel_args(rows), starts, pairs)
        if counts.max() > _MAX_SKEW * max(1, size // NUM_PARTITIONS):
            pairs, offsets = _drop_repeated(pairs, offsets)
        self._chunks.append((self._store.keep(pairs), offsets))

    def _kernel_args(self, rows: _Rows) -> tuple:
        hashes = rows.hashes
        return (
            hashes.values,
            hashes.validity,
            hashes.validity_offset,
            hashes.null_count > 0,
            rows.first_row,
            rows.items,
            rows.first_zone,
            _PARTITION_SHIFT,
        )

    def finish(self) -> None:
        if self._rows:
            self._finish_chunk()

    @property
    def num_pairs(self) -> int:
        return sum(int(offsets[-1]) for _, offsets in self._chunks)

    def partition(self, number: int) -> PairArrays:
        return [
            self._store.slice(stored, *offsets[number : number + 2].tolist())
            for stored, offsets in self._chunks
        ]

    def close(self) -> None:
        self._store.close()


def _drop_repeated(pairs: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Drop repeated pairs of the large partitions of a chunk. Return its pairs and offsets."""
    parts = np.split(pairs, offsets[1:-1])
    mean_size = pairs.size // NUM_PARTITIONS
    parts = [np.unique(part) if part.size > _MAX_SKEW * mean_size else part for part in parts]
    return np.concatenate(parts), np.cumsum([0, *(part.size for part in parts)])


class PairBits(NamedTuple):
    """The bits of a pair in one number: those of the hash come before those of the zone."""

    hash_bits: int
    zone_bits: int


def zone_bits_for(num_zones: int) -> int:
    """Return the bits of a zone in a pair."""
    return max(1, num_zones.bit_length())


def pack_unsorted(hashes: np.ndarray, zones: np.ndarray, partition_bits: int) -> np.ndarray:
    """Return pairs of a partition as numbers; see `zonebloom.index.hash.sort_kernels`."""
    shift = np.uint64(MORE_HASH_BITS)
    more_bits = hashes << np.uint64(partition_bits) >> shift
    return more_bits << shift | zones.astype(np.uint64)


def sort_distinct(
    arrays: PairArrays, bits: PairBits, partition: int, partition_bits: int
) -> np.ndarray:
    """Return the pairs of a partition as numbers, sorted and distinct: uint64."""
    from zonebloom.index.hash import sort_kernels

    sizes = np.array([array.size for array in arrays], dtype=np.int64)
    addresses = np.array([array.ctypes.data for array in arrays], dtype=np.uint64)
    pairs = np.empty(sizes.sum(), dtype=np.uint64)
    sort_kernels.pack_pairs(addresses, sizes, partition, partition_bits, *bits, pairs)
    pairs.sort()
    count = sort_kernels.drop_duplicates(pairs)
    return pairs[:count].copy() if 2 * count < pairs.size else pairs[:count]


class SortedPairs:
    """Pairs as sorted and distinct numbers, in parts by the leading bits of the hash.

    Parts are appended in order. There are ``1 << part_bits`` of them.
    """

    def __init__(self, bits: PairBits, part_bits: int, memory_bytes: int):
        self.bits = bits
        self.part_bits = part_bits
        self.memory_bytes = memory_bytes
        self._store = _ArrayStore(memory_bytes)
        self._parts: list[tuple[_Stored, int]] = []

    def append(self, pairs: np.ndarray) -> None:
        self._parts.append((self._store.keep(pairs), pairs.size))

    def part(self, number: int) -> np.ndarray:
        stored, size = self._parts[number]
        return self._store.slice(stored, 0, size)

    def part_with_fewer_bits(self, number: int, hash_bits: int) -> np.ndarray:
        """Return the pairs of a part with the first bits of each hash, sorted and distinct."""
        pairs, zone_bits = self.part(number), np.uint64(self.bits.zone_bits)
        dropped_bits = np.uint64(self.bits.hash_bits - hash_bits)
        zones = pairs & ((np.uint64(1) << zone_bits) - np.uint64(1))
        return np.unique((pairs >> (zone_bits + dropped_bits) << zone_bits) | zones)

    def parts(self, start: int, stop: int) -> np.ndarray:
        """Return the pairs of parts that follow one another."""
        if stop - start == 1:
            return self.part(start)
        return np.concatenate([self.part(number) for number in range(start, stop)])

    def close(self) -> None:
        self._store.close()
