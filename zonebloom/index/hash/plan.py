"""Choose how the pairs of a hash index are encoded: groups of zones, bits of hashes, blocks.

A plan follows from what the pairs need, which is measured for ranges of hashes. Zones are grouped,
and fewer bits of hashes kept, where the file would otherwise be larger than zone filters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np

from zonebloom.base.threads import map_in_order, num_cores, thread_pool
from zonebloom.index.hash.bloom_size import estimate_bloom_bytes
from zonebloom.index.hash.file import HEAD_WORDS, MIN_SLOT_BYTES, Groups
from zonebloom.index.hash.parameters import (
    BlockShape,
    HashParameters,
    choose_shape,
    group_bits_for,
    needed_hash_bits,
)
from zonebloom.index.hash.spool import (
    MORE_HASH_BITS,
    PairArrays,
    PairBits,
    SortedPairs,
    sort_distinct,
    zone_bits_for,
)
from zonebloom.index.table import ZoneRuns

# A file may be this many times as large as the zone Bloom index of the same column, apart from null
# flags and tail.
_MAX_RELATIVE_SIZE = 1.08
# An entry takes about this many bits for its bucket.
_BUCKET_BITS_PER_ENTRY = 2
# Pairs of a cell, on average. A block consists of whole cells.
_PAIRS_PER_CELL = 256
PAIR_BITS = 64


def map_in_threads(work: Callable, items: Iterable) -> Iterator:
    """Yield the results of ``work`` in the order of the items, computed on all cores."""
    threads = num_cores()
    with thread_pool(threads) as pool:
        yield from map_in_order(pool, work, items, threads + 1)


@dataclass(frozen=True, slots=True)
class _Measure:
    """The needs of pairs if their zones are grouped in a certain way.

    Attributes
    ----------
    groups : Groups
    entry_bits : int
        The width of an entry by which postings are chosen.
    cells : int64 array, shape (n, 3)
        Entries, postings and bytes of postings of each cell, which is a range of hashes.
    num_pairs : int
        Pairs of a hash and a group.
    largest : int
        The largest number of groups of one hash.
    """

    groups: Groups
    entry_bits: int
    cells: np.ndarray
    num_pairs: int
    largest: int


class _Measurer:
    """Measures the parts of sorted pairs for groups of zones."""

    def __init__(self, groups: Groups, bits: PairBits, part_bits: int, estimated_pairs: int):
        self._groups = groups
        self._bits = bits
        # Expected remainder bits, if there is about one bucket per entry.
        remainder_bits = max(1, bits.hash_bits - estimated_pairs.bit_length())
        group_bits = group_bits_for(len(groups))
        self._entry_bits = remainder_bits + _BUCKET_BITS_PER_ENTRY + group_bits
        cell_bits = (estimated_pairs // _PAIRS_PER_CELL).bit_length()
        cell_bits = min(max(cell_bits, part_bits), bits.hash_bits)
        self._cells_per_part = 1 << (cell_bits - part_bits)
        self._cell_shift = sum(bits) - cell_bits

    def measure(self, part: int, pairs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the cells of a part, and its sums; see `encode_kernels.measure_pairs`."""
        from zonebloom.index.hash import encode_kernels

        groups = self._groups
        cells = np.zeros((self._cells_per_part, 3), dtype=np.int64)
        sums = np.zeros(2, dtype=np.int64)
        encode_kernels.measure_pairs(
            pairs,
            self._bits.zone_bits,
            groups.shift,
            groups.first_zones,
            groups.first_groups,
            self._entry_bits,
            self._cell_shift,
            part * self._cells_per_part,
            np.empty(len(groups) + 1, dtype=np.uint32),
            cells,
            sums,
        )
        return cells, sums

    def total(self, parts: Sequence[tuple[np.ndarray, np.ndarray]]) -> _Measure:
        cells = np.concatenate([cells for cells, _ in parts])
        num_pairs = sum(int(sums[0]) for _, sums in parts)
        largest = max(int(sums[1]) for _, sums in parts)
        return _Measure(self._groups, self._entry_bits, cells, num_pairs, largest)


@dataclass(frozen=True, slots=True)
class KeptPairs:
    """The sorted pairs of a file, and their measure for the smallest groups that it may have."""

    pairs: SortedPairs
    estimated_pairs: int
    measure: _Measure


def keep_pairs(
    parts: Iterable[Callable[[], PairArrays]],
    part_bits: int,
    estimated_pairs: int,
    hash_bits: int,
    groups: Groups,
    memory_bytes: int,
) -> KeptPairs:
    """Sort and measure pairs.

    Parameters
    ----------
    parts : iterable of functions
        Functions that load the pairs of each value of the leading bits of the hash, in any order.
    part_bits : int
        The number of these bits.
    estimated_pairs : int
        About the number of distinct pairs.
    hash_bits : int
        The bits to keep of each hash. If that is impossible, fewer are kept.
    groups : Groups
        The smallest groups of zones that the file may have.
    memory_bytes : int
        Above this, sorted pairs are in a temporary file.
    """
    zone_bits = zone_bits_for(int(groups.first_zones[-1]))
    hash_bits = min(hash_bits, part_bits + MORE_HASH_BITS, PAIR_BITS - zone_bits)
    bits = PairBits(hash_bits, zone_bits)
    sorted_pairs = SortedPairs(bits, part_bits, memory_bytes)
    measurer = _Measurer(groups, bits, part_bits, estimated_pairs)

    def sort(task: tuple[int, Callable[[], PairArrays]]) -> tuple:
        number, load = task
        pairs = sort_distinct(load(), bits, number, part_bits)
        return pairs, measurer.measure(number, pairs)

    measures = []
    try:
        for pairs, measure in map_in_threads(sort, enumerate(parts)):
            sorted_pairs.append(pairs)
            measures.append(measure)
    except BaseException:
        sorted_pairs.close()
        raise
    return KeptPairs(sorted_pairs, estimated_pairs, measurer.total(measures))


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a file: the groups of its zones, and the shape and the needs of its blocks."""

    measure: _Measure
    shape: BlockShape

    @classmethod
    def of(cls, measure: _Measure, hash_bits: int) -> Plan:
        num_entries, num_postings, _ = measure.cells.sum(axis=0).tolist()
        num_groups = len(measure.groups)
        # Blocks consist of whole cells.
        max_block_bits = len(measure.cells).bit_length() - 1
        return cls(
            measure,
            choose_shape(max(1, num_entries), num_postings, num_groups, hash_bits, max_block_bits),
        )

    @property
    def num_entries(self) -> int:
        return int(self.measure.cells[:, 0].sum())

    @property
    def num_bytes(self) -> int:
        """Return the size of the file without null flags and tail."""
        slot_bytes, heap_bytes = self.slots_and_heap()
        return self.shape.num_blocks * slot_bytes + int(heap_bytes.sum())

    def slots_and_heap(self) -> tuple[int, np.ndarray]:
        """Return the bytes of a slot, and those that each block has in the heap: int64."""
        needs = self.block_needs()
        block_bytes, posting_bytes = 8 * needs[:, 0], needs[:, 3]
        slot_bytes = choose_slot_bytes(block_bytes)
        return slot_bytes, posting_bytes + np.where(block_bytes > slot_bytes, block_bytes, 0)

    def block_needs(self) -> np.ndarray:
        """Return words, entries, postings and bytes of postings of blocks; int64, shape (n, 4)."""
        shape = self.shape
        sums = self.measure.cells.reshape(shape.num_blocks, -1, 3).sum(axis=1)
        num_entries, num_postings = sums[:, 0], sums[:, 1]
        words = HEAD_WORDS + -(-(num_entries + shape.num_buckets) // 64) + 2 * num_postings
        words += -(-(num_entries * shape.entry_bits) // 64)
        return np.column_stack([words, sums])


def choose_plan(
    kept_pairs: KeptPairs, runs: ZoneRuns, parameters: HashParameters
) -> tuple[KeptPairs, Plan]:
    """Choose how to write a file. Return the plan, and the pairs that it is for.

    If the file of the given pairs is too large compared with zone filters, and ``fold`` is set,
    take these steps until one makes it small enough:

    1. Drop the spare bits of each hash, which only merges need.
    2. Double the groups, until each run is one group.
    3. Drop more bits of each hash from the smallest plan so far. The result is used in any case.

    The given pairs are closed if others are returned.
    """
    plan = Plan.of(kept_pairs.measure, kept_pairs.pairs.bits.hash_bits)
    if not parameters.fold:
        return kept_pairs, plan
    min_bloom_bytes = plan.num_bytes / _MAX_RELATIVE_SIZE
    largest_bytes = _MAX_RELATIVE_SIZE * estimate_bloom_bytes(
        kept_pairs.pairs, runs, min_bloom_bytes
    )
    if plan.num_bytes <= largest_bytes:
        return kept_pairs, plan
    needed_bits = needed_hash_bits(kept_pairs.estimated_pairs, parameters.probability)
    kept_pairs = _keep_fewer_bits(kept_pairs, needed_bits)
    smallest = plan = Plan.of(kept_pairs.measure, kept_pairs.pairs.bits.hash_bits)
    largest_run = int(runs.num_zones.max(initial=0))
    while plan.num_bytes > largest_bytes and (1 << plan.measure.groups.shift) < largest_run:
        groups = Groups.of_runs(runs.num_zones, plan.measure.groups.shift + 1)
        plan = Plan.of(_measure_groups(kept_pairs, groups), kept_pairs.pairs.bits.hash_bits)
        smallest = min(smallest, plan, key=lambda plan: plan.num_bytes)
    if plan.num_bytes <= largest_bytes:
        return kept_pairs, plan
    # An entry is smaller by each bit that its hash lacks, down to a remainder of one bit.
    excess_bits = 8 * (smallest.num_bytes - largest_bytes)
    num_dropped_bits = ceil(excess_bits / max(1, smallest.num_entries))
    num_dropped_bits = min(num_dropped_bits, smallest.shape.remainder_bits - 1)
    kept_pairs = _keep_fewer_bits(kept_pairs, smallest.shape.hash_bits - num_dropped_bits)
    return kept_pairs, Plan.of(
        _measure_groups(kept_pairs, smallest.measure.groups), kept_pairs.pairs.bits.hash_bits
    )


def _keep_fewer_bits(kept_pairs: KeptPairs, hash_bits: int) -> KeptPairs:
    """Return pairs with fewer bits of each hash, and close the given ones."""
    pairs = kept_pairs.pairs
    hash_bits = max(hash_bits, pairs.part_bits + 1)
    if hash_bits >= pairs.bits.hash_bits:
        return kept_pairs
    bits = PairBits(hash_bits, pairs.bits.zone_bits)
    fewer = SortedPairs(bits, pairs.part_bits, pairs.memory_bytes)
    measurer = _Measurer(
        kept_pairs.measure.groups, bits, pairs.part_bits, kept_pairs.estimated_pairs
    )
    measures = []
    try:
        for number in range(1 << pairs.part_bits):
            part = pairs.part_with_fewer_bits(number, hash_bits)
            fewer.append(part)
            measures.append(measurer.measure(number, part))
    except BaseException:
        fewer.close()
        raise
    pairs.close()
    return KeptPairs(fewer, kept_pairs.estimated_pairs, measurer.total(measures))


def _measure_groups(kept_pairs: KeptPairs, groups: Groups) -> _Measure:
    pairs = kept_pairs.pairs
    measurer = _Measurer(groups, pairs.bits, pairs.part_bits, kept_pairs.estimated_pairs)
    numbers = range(1 << pairs.part_bits)
    parts = list(map_in_threads(lambda part: measurer.measure(part, pairs.part(part)), numbers))
    return measurer.total(parts)


def choose_slot_bytes(block_bytes: np.ndarray) -> int:
    """Return the size of slots that makes the file smallest; larger blocks are in the heap."""
    sizes = np.sort(block_bytes)
    bytes_after = sizes.sum() - np.cumsum(sizes)
    candidates = np.maximum(sizes, MIN_SLOT_BYTES)
    return int(candidates[np.argmin(candidates * sizes.size + bytes_after)])
