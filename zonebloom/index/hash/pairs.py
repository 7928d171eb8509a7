"""Hold pairs of a hash and a zone in memory during a build, and sort them.

rows -> PairBuffer.add     partitioned by the leading bits of the hash, in chunks
     -> PairBuffer.sort    a part, which is some partitions: sorted, and without duplicates
     -> PairBuffer.sorted_part
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from zonebloom.sbbf.hashing import Hashes

# Each chunk is partitioned when it has about this many rows. Larger chunks do not fit in the cache.
_CHUNK_ROWS = 1 << 18
# If a partition has so many times the mean number of pairs, a frequent key is in it.
_MAX_SKEW = 4
PARTITION_BITS = 8
NUM_PARTITIONS = 1 << PARTITION_BITS
_PARTITION_SHIFT = np.uint64(64 - PARTITION_BITS)
# An unsorted pair has this many bits of the hash after those that choose the partition.
_MORE_HASH_BITS = 32
# A buffer keeps this many leading bits of each hash.
MAX_BUFFERED_HASH_BITS = PARTITION_BITS + _MORE_HASH_BITS
_SAMPLED_PAIRS = 1 << 18
_MIN_SAMPLED_PARTS = 4


class PairBits(NamedTuple):
    """The bits of a pair in one number: those of the hash come before those of the zone."""

    hash_bits: int
    zone_bits: int


# Sampled pairs keep 32 of the 40 bits of their hashes, which is enough for an estimate.
_SAMPLE_BITS = PairBits(32, 32)
_NO_PAIRS = np.empty(0, dtype=np.uint64)


class _Rows(NamedTuple):
    """Hashes of consecutive rows of a fragment, and where they begin."""

    hashes: Hashes
    first_row: int
    first_zone: int
    # Rows of each zone.
    items: int


class PairBuffer:
    """The pairs of some rows of a segment, partitioned by the leading bits of the hash."""

    def __init__(self, items: int):
        self._items = items
        self._rows: list[_Rows] = []
        self._num_waiting = 0
        # The pairs of each chunk, and where its partitions begin.
        self._chunks: list[tuple[np.ndarray, np.ndarray]] = []
        self._num_pairs = 0
        # How many pairs each part has after it was sorted.
        self._num_sorted = [0] * NUM_PARTITIONS

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
            self.finish()

    def finish(self) -> None:
        """Partition the rows that wait for it."""
        from zonebloom.index.hash import sort_kernels

        waiting_rows, self._rows, self._num_waiting = self._rows, [], 0
        if not waiting_rows:
            return
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
        self._chunks.append((pairs, offsets))
        self._num_pairs += pairs.size

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

    def __len__(self) -> int:
        """Return the number of pairs, among them duplicates and waiting rows."""
        return self._num_pairs + self._num_waiting

    def sort(self, number: int, part_bits: int, bits: PairBits) -> np.ndarray:
        """Sort a part once. Return its distinct pairs as numbers: uint64.

        There are ``1 << part_bits`` parts, which consist of whole partitions. All rows must be
        partitioned before. Threads may sort different parts.
        """
        part = self._part(number, part_bits)
        pairs = part.distinct(bits)
        self._num_sorted[number] = pairs.size
        start = 0
        for array in part.arrays:
            moved = pairs[start : start + array.size]
            array[: moved.size] = moved
            start += array.size
        return pairs

    def sorted_part(self, number: int, part_bits: int) -> np.ndarray:
        """Return what `sort` returned for a part."""
        arrays = self._part(number, part_bits).arrays
        return np.concatenate([_NO_PAIRS, *arrays])[: self._num_sorted[number]]

    def _part(self, number: int, part_bits: int) -> _Part:
        spare_bits = PARTITION_BITS - part_bits
        first, stop = number << spare_bits, (number + 1) << spare_bits
        return _Part(
            first,
            [pairs[offsets[first] : offsets[stop]] for pairs, offsets in self._chunks],
            [offsets[first : stop + 1] - offsets[first] for _, offsets in self._chunks],
        )

    def estimate_distinct(self, part_bits: int) -> int:
        """Estimate the number of distinct pairs from those of some parts.

        Distinct hashes are spread evenly over the parts, but rows are not: a frequent key has all
        its rows in one of them.
        """
        num_pairs = num_distinct = 0
        num_parts = 1 << part_bits
        for number in range(num_parts):
            part = self._part(number, part_bits)
            num_pairs += sum(array.size for array in part.arrays)
            num_distinct += part.distinct(_SAMPLE_BITS).size
            num_sampled = number + 1
            if num_pairs >= _SAMPLED_PAIRS and num_sampled >= _MIN_SAMPLED_PARTS:
                return min(self._num_pairs, num_distinct * num_parts // num_sampled)
        return num_distinct


class _Part(NamedTuple):
    """Some partitions: the first one, and their pairs in each chunk, with the offsets of each."""

    first_partition: int
    arrays: list[np.ndarray]
    offsets: list[np.ndarray]

    def distinct(self, bits: PairBits) -> np.ndarray:
        """Return the distinct pairs as numbers, sorted."""
        from zonebloom.index.hash import sort_kernels

        if not self.arrays:
            return _NO_PAIRS
        addresses = np.array([array.ctypes.data for array in self.arrays], dtype=np.uint64)
        pairs = np.empty(sum(array.size for array in self.arrays), dtype=np.uint64)
        sort_kernels.pack_pairs(
            addresses, np.array(self.offsets), self.first_partition, PARTITION_BITS, *bits, pairs
        )
        return sort_packed(pairs)


def _drop_repeated(pairs: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Drop repeated pairs of the large partitions of a chunk. Return its pairs and offsets."""
    parts = np.split(pairs, offsets[1:-1])
    mean_size = pairs.size // NUM_PARTITIONS
    parts = [np.unique(part) if part.size > _MAX_SKEW * mean_size else part for part in parts]
    return np.concatenate(parts), np.cumsum([0, *(part.size for part in parts)])


def sort_packed(pairs: np.ndarray) -> np.ndarray:
    """Sort pairs in place, and return them without duplicates."""
    from zonebloom.index.hash import sort_kernels

    pairs.sort()
    count = sort_kernels.drop_duplicates(pairs)
    return pairs[:count].copy() if 2 * count < pairs.size else pairs[:count]
