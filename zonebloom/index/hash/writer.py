"""Write the file of a hash index from pairs of a hash and a zone.

PairSpool -> sort and measure each partition -> choose groups and the shape of blocks
          -> encode blocks into slots and heap -> file
"""

from __future__ import annotations

import secrets
import tempfile
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache, partial
from math import ceil
from statistics import NormalDist

import numpy as np
import xxhash

from zonebloom.base.threads import map_in_order, num_cores, thread_pool
from zonebloom.errors import InvalidArgument
from zonebloom.index.hash.file import (
    HEAD_WORDS,
    MAGIC,
    MAX_ZONES,
    MIN_SLOT_BYTES,
    Groups,
    Head,
    compress_nulls,
    compress_runs,
    encode_tail,
    slot_offset,
)
from zonebloom.index.hash.parameters import (
    BlockShape,
    HashParameters,
    choose_shape,
    hash_bits_to_keep,
    needed_hash_bits,
    zone_bits_for,
)
from zonebloom.index.hash.spool import (
    MORE_HASH_BITS,
    NUM_PARTITIONS,
    PARTITION_BITS,
    PairArrays,
    PairBits,
    PairSpool,
    SortedPairs,
    sort_distinct,
)
from zonebloom.index.table import HashingFile, WrittenTable, ZoneRuns
from zonebloom.sbbf.hashing import Hashes
from zonebloom.sbbf.sizing import (
    DEFAULT_ZONE_PROBABILITY,
    false_positive_probability,
    size_for,
)
from zonebloom.sbbf.spec import BYTES_PER_BLOCK
from zonebloom.storage.files import FileCreator

# A file may be this many times as large as the zone Bloom index of the same column, apart from null
# flags and tail.
_MAX_RELATIVE_SIZE = 1.08
_BLOOM_ZONE_ROWS = 8192
# Bytes of a row of a table of zone filters without the filter.
_BLOOM_ROW_BYTES = 25
# Standard deviation of the distinct values that the set bits of a filter tell, over their root.
_FOLD_DEVIATION = 0.92
# Deviations of a normal distribution, all equally likely.
_NORMAL_STEPS = [NormalDist().inv_cdf((i + 0.5) / 16) for i in range(16)]
# An estimate may be wrong by so many standard deviations.
_DEVIATIONS = 2.5
# An entry takes about this many bits for its bucket.
_BUCKET_BITS_PER_ENTRY = 2
_SAMPLE_PAIRS = 1 << 18
# The number of distinct hashes of a zone is extrapolated from this many.
_SAMPLED_PAIRS_PER_ZONE = 1024
# Pairs of a cell, on average. A block consists of whole cells.
_PAIRS_PER_CELL = 256
# Above this, the heap of a file that is being written is in a temporary file.
_MAX_HEAP_IN_MEMORY = 64 << 20
_COPY_BYTES = 4 << 20
_PAIR_BITS = 64


class HashSegmentWriter:
    """The writer of a segment of a build."""

    def __init__(
        self, creator: FileCreator, path: str, parameters: HashParameters, num_writers: int = 1
    ):
        self._parameters = parameters
        self._memory = parameters.build_memory // num_writers
        # Create the file at once, so that an error of the store is raised before the data is read.
        self._sink = HashingFile(creator.open_output_stream(path))
        # The rest of the memory is for sorted pairs, and for the parts that are being sorted.
        self._spool = PairSpool(parameters.number_of_items, self._memory // 2)
        self._num_zones = 0
        self._num_rows = 0
        self._runs: list[tuple[int, int, int, int]] = []
        self._null_zones: list[np.ndarray] = []

    def add(self, fragment_id: int, hashes: Hashes) -> None:
        if hashes.null_count:
            rows = np.flatnonzero(~hashes.is_valid()) + self._num_rows
            zones = rows // self._parameters.number_of_items + self._num_zones
            self._null_zones.append(np.unique(zones))
        self._spool.add(hashes, self._num_rows, self._num_zones)
        self._num_rows += hashes.values.size

    def end_fragment(self, fragment_id: int) -> None:
        num_zones = -(-self._num_rows // self._parameters.number_of_items)
        if num_zones:
            self._runs.append((fragment_id, 0, num_zones, self._num_rows))
        self._num_zones += num_zones
        self._num_rows = 0
        require_numbered_zones(self._num_zones)

    def close(self) -> WrittenTable:
        ids, first_rows, num_zones, num_rows = np.array(self._runs, np.uint64).reshape(-1, 4).T
        items = self._parameters.number_of_items
        runs = ZoneRuns(ids, first_rows, num_zones, num_rows, items)
        nulls = np.unique(np.concatenate([np.empty(0, dtype=np.int64), *self._null_zones]))
        try:
            self._spool.finish()
            num_entries = _estimate_entries(self._spool)
            kept = keep_pairs(
                (partial(self._spool.partition, number) for number in range(NUM_PARTITIONS)),
                PARTITION_BITS,
                num_entries,
                hash_bits_to_keep(num_entries, self._parameters.probability),
                Groups.of_runs(num_zones, shift=0),
                self._memory // 4,
            )
        finally:
            self._spool.close()
        try:
            return write_file(self._sink, kept, runs, nulls, self._parameters)
        finally:
            kept.pairs.close()

    def abort(self) -> None:
        """Close the file after a failure. It is not a valid table."""
        self._spool.close()
        self._sink.close()


def require_numbered_zones(num_zones: int) -> None:
    """Raise `InvalidArgument` if a segment cannot have so many zones."""
    if num_zones >= MAX_ZONES:
        raise InvalidArgument(
            f"{num_zones:,} zones do not fit into one segment of a hash index; give a larger "
            "number_of_items"
        )


def _estimate_entries(spool: PairSpool) -> int:
    """Estimate the number of distinct pairs from some partitions, which are random hashes."""
    sizes = spool.partition_sizes()
    num_sampled = num_distinct = 0
    for number in np.flatnonzero(sizes).tolist():
        pairs = sort_distinct(spool.partition(number), _SAMPLE_BITS, number, PARTITION_BITS)
        num_distinct += pairs.size
        num_sampled += int(sizes[number])
        if num_sampled >= _SAMPLE_PAIRS:
            break
    return round(spool.num_pairs * num_distinct / max(num_sampled, 1))


# Zones have 32 bits in a spool.
_SAMPLE_BITS = PairBits(32, 32)


def _map_in_threads(work: Callable, items: Iterable) -> Iterator:
    threads = num_cores()
    with thread_pool(threads) as pool:
        yield from map_in_order(pool, work, items, threads + 1)


@dataclass(frozen=True, slots=True)
class _Measure:
    """What pairs need if their zones are grouped in a certain way.

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

    def __init__(self, groups: Groups, bits: PairBits, part_bits: int, num_entries: int):
        self._groups = groups
        self._bits = bits
        # About the bits by which an entry is told from the others of its bucket.
        remainder_bits = max(1, bits.hash_bits - num_entries.bit_length())
        zone_bits = zone_bits_for(len(groups))
        self._entry_bits = remainder_bits + _BUCKET_BITS_PER_ENTRY + zone_bits
        cell_bits = (num_entries // _PAIRS_PER_CELL).bit_length()
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
    num_entries: int
    measure: _Measure


def keep_pairs(
    parts: Iterable[Callable[[], PairArrays]],
    part_bits: int,
    num_entries: int,
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
    num_entries : int
        The number of distinct pairs, about.
    hash_bits : int
        The bits to keep of each hash. If that is impossible, fewer are kept.
    groups : Groups
        The smallest groups of zones that the file may have.
    memory_bytes : int
        Above this, sorted pairs are in a temporary file.
    """
    zone_bits = zone_bits_for(int(groups.first_zones[-1]))
    hash_bits = min(hash_bits, part_bits + MORE_HASH_BITS, _PAIR_BITS - zone_bits)
    bits = PairBits(hash_bits, zone_bits)
    sorted_pairs = SortedPairs(bits, part_bits, memory_bytes)
    measurer = _Measurer(groups, bits, part_bits, num_entries)

    def sort(task: tuple[int, Callable[[], PairArrays]]) -> tuple:
        number, load = task
        pairs = sort_distinct(load(), bits, number, part_bits)
        return pairs, measurer.measure(number, pairs)

    measures = []
    try:
        for pairs, measure in _map_in_threads(sort, enumerate(parts)):
            sorted_pairs.append(pairs)
            measures.append(measure)
    except BaseException:
        sorted_pairs.close()
        raise
    return KeptPairs(sorted_pairs, num_entries, measurer.total(measures))


@dataclass(frozen=True, slots=True)
class _Plan:
    """How a file is written: groups of zones, shape of blocks, and what the blocks need."""

    measure: _Measure
    shape: BlockShape

    @classmethod
    def of(cls, measure: _Measure, hash_bits: int) -> _Plan:
        num_entries, num_postings, _ = measure.cells.sum(axis=0).tolist()
        num_groups = len(measure.groups)
        return cls(measure, choose_shape(max(1, num_entries), num_postings, num_groups, hash_bits))

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
        slot_bytes = _choose_slot_bytes(block_bytes)
        return slot_bytes, posting_bytes + np.where(block_bytes > slot_bytes, block_bytes, 0)

    def block_needs(self) -> np.ndarray:
        """Return words, entries, postings and bytes of postings of blocks; int64, shape (n, 4)."""
        shape = self.shape
        sums = self.measure.cells.reshape(shape.num_blocks, -1, 3).sum(axis=1)
        num_entries, num_postings = sums[:, 0], sums[:, 1]
        words = HEAD_WORDS + -(-(num_entries + shape.num_buckets) // 64) + 2 * num_postings
        words += -(-(num_entries * shape.entry_bits) // 64)
        return np.column_stack([words, sums])


def write_file(
    sink: HashingFile,
    kept: KeptPairs,
    runs: ZoneRuns,
    null_zones: np.ndarray,
    parameters: HashParameters,
) -> WrittenTable:
    """Write the file of a segment, and close it."""
    kept, plan = _choose_plan(kept, runs, parameters)
    shape, groups = plan.shape, plan.measure.groups
    needs = plan.block_needs()
    slot_bytes, heap_bytes = plan.slots_and_heap()
    heap_starts = slot_offset(shape.num_blocks, slot_bytes) + np.cumsum(heap_bytes) - heap_bytes
    salt = secrets.randbits(64)
    part_bits = kept.pairs.part_bits
    blocks_per_task = 1 << max(0, shape.block_bits - part_bits)
    parts_per_task = 1 << max(0, part_bits - shape.block_bits)

    def encode(task: int) -> tuple[np.ndarray, np.ndarray]:
        from zonebloom.index.hash import encode_kernels

        first_block = task * blocks_per_task
        blocks = slice(first_block, first_block + blocks_per_task)
        slots = np.zeros(blocks_per_task * slot_bytes // 8, dtype=np.uint64)
        heap = np.zeros(int(heap_bytes[blocks].sum()), dtype=np.uint8)
        encode_kernels.encode_blocks(
            kept.pairs.parts(task * parts_per_task, (task + 1) * parts_per_task),
            kept.pairs.bits.zone_bits,
            groups.shift,
            groups.first_zones,
            groups.first_groups,
            plan.measure.entry_bits,
            np.array(shape, dtype=np.int64),
            first_block,
            np.ascontiguousarray(needs[blocks, :3]),
            slot_offset(first_block, slot_bytes),
            np.uint64(salt),
            int(heap_starts[first_block]),
            np.empty(plan.measure.largest + 1, dtype=np.uint32),
            slots,
            heap,
        )
        return slots, heap

    with (
        sink,
        closing(kept.pairs),
        tempfile.SpooledTemporaryFile(_MAX_HEAP_IN_MEMORY, prefix="zonebloom-") as heap_file,
    ):
        sink.write(MAGIC)
        for slots, heap in _map_in_threads(encode, range(shape.num_blocks // blocks_per_task)):
            sink.write(slots.data.cast("B"))
            heap_file.write(heap.data)
        heap_file.seek(0)
        while data := heap_file.read(_COPY_BYTES):
            sink.write(data)
        num_zones = len(runs)
        nulls = compress_nulls(num_zones, null_zones)
        sink.write(nulls)
        compressed_runs = compress_runs(runs)
        num_entries, num_postings, _ = plan.measure.cells.sum(axis=0).tolist()
        head = Head(
            number_of_items=runs.items,
            probability=parameters.probability,
            num_zones=num_zones,
            num_runs=runs.num_zones.size,
            num_entries=num_entries,
            num_postings=num_postings,
            num_pairs=plan.measure.num_pairs,
            slot_bytes=slot_bytes,
            heap_bytes=int(heap_bytes.sum()),
            null_bytes=len(nulls),
            null_checksum=xxhash.xxh64_intdigest(nulls),
            run_bytes=len(compressed_runs),
            salt=salt,
            content=sink.checksum.intdigest(),
            block_bits=shape.block_bits,
            bucket_bits=shape.bucket_bits,
            remainder_bits=shape.remainder_bits,
            zone_bits=shape.zone_bits,
            zone_shift=groups.shift,
        )
        tail = encode_tail(head, compressed_runs)
        sink.write(tail)
    return WrittenTable(sink.size, xxhash.xxh3_64_hexdigest(tail), num_zones)


def _choose_plan(
    kept: KeptPairs, runs: ZoneRuns, parameters: HashParameters
) -> tuple[KeptPairs, _Plan]:
    """Return the plan with the smallest groups whose file is small enough, or the smallest file.

    The pairs of the plan may have fewer bits of each hash than the given ones, which then are
    closed: first without the reserve for merges, and last where zones cannot be grouped any more.
    """
    plan = _Plan.of(kept.measure, kept.pairs.bits.hash_bits)
    if not parameters.fold:
        return kept, plan
    enough = plan.num_bytes / _MAX_RELATIVE_SIZE
    largest_bytes = _MAX_RELATIVE_SIZE * _estimate_bloom_bytes(kept.pairs, runs, enough)
    if plan.num_bytes <= largest_bytes:
        return kept, plan
    needed_bits = needed_hash_bits(kept.num_entries, parameters.probability)
    kept = _keep_fewer_bits(kept, needed_bits)
    smallest = plan = _Plan.of(kept.measure, kept.pairs.bits.hash_bits)
    largest_run = int(runs.num_zones.max(initial=0))
    while plan.num_bytes > largest_bytes and (1 << plan.measure.groups.shift) < largest_run:
        groups = Groups.of_runs(runs.num_zones, plan.measure.groups.shift + 1)
        plan = _Plan.of(_measure_groups(kept, groups), kept.pairs.bits.hash_bits)
        smallest = min(smallest, plan, key=lambda plan: plan.num_bytes)
    if plan.num_bytes <= largest_bytes:
        return kept, plan
    # An entry is smaller by each bit that its hash lacks, down to a remainder of one bit.
    too_many = ceil(8 * (smallest.num_bytes - largest_bytes) / max(1, smallest.num_entries))
    too_many = min(too_many, smallest.shape.remainder_bits - 1)
    kept = _keep_fewer_bits(kept, smallest.shape.hash_bits - too_many)
    return kept, _Plan.of(_measure_groups(kept, smallest.measure.groups), kept.pairs.bits.hash_bits)


def _keep_fewer_bits(kept: KeptPairs, hash_bits: int) -> KeptPairs:
    """Return pairs with fewer bits of each hash, and close the given ones."""
    pairs = kept.pairs
    hash_bits = max(hash_bits, pairs.part_bits + 1)
    if hash_bits >= pairs.bits.hash_bits:
        return kept
    bits = PairBits(hash_bits, pairs.bits.zone_bits)
    fewer = SortedPairs(bits, pairs.part_bits, pairs.memory_bytes)
    measurer = _Measurer(kept.measure.groups, bits, pairs.part_bits, kept.num_entries)
    measures = []
    for number in range(1 << pairs.part_bits):
        part = pairs.part_with_fewer_bits(number, hash_bits)
        fewer.append(part)
        measures.append(measurer.measure(number, part))
    pairs.close()
    return KeptPairs(fewer, kept.num_entries, measurer.total(measures))


def _measure_groups(kept: KeptPairs, groups: Groups) -> _Measure:
    pairs = kept.pairs
    measurer = _Measurer(groups, pairs.bits, pairs.part_bits, kept.num_entries)
    numbers = range(1 << pairs.part_bits)
    parts = list(_map_in_threads(lambda part: measurer.measure(part, pairs.part(part)), numbers))
    return measurer.total(parts)


def _estimate_bloom_bytes(pairs: SortedPairs, runs: ZoneRuns, enough: float) -> float:
    """Return the size that the zone Bloom index of the same rows has at least, very likely.

    Count a sample of the pairs if that shows that the size is at least ``enough``.
    """
    from zonebloom.index.hash import encode_kernels

    shift = max(0, (_BLOOM_ZONE_ROWS // runs.items).bit_length() - 1) if runs.items > 0 else 0
    groups = Groups.of_runs(runs.num_zones, shift)
    group_of_zone = groups.by_zone()
    counts = np.zeros(len(groups), dtype=np.int64)
    if shift or runs.items <= _BLOOM_ZONE_ROWS:
        num_filters = np.ones(len(groups), dtype=np.int64)
    else:
        _, _, num_rows = runs.locate(np.arange(len(groups)))
        num_filters = -(-num_rows.astype(np.int64) // _BLOOM_ZONE_ROWS)
    num_sampled = max(_SAMPLE_PAIRS, _SAMPLED_PAIRS_PER_ZONE * len(groups))
    num_parts = 1 << pairs.part_bits
    num_pairs = 0
    # Every part has a random share of the hashes of each zone.
    for number in range(num_parts):
        part = pairs.part(number)
        encode_kernels.count_distinct(part, pairs.bits.zone_bits, group_of_zone, counts)
        if num_pairs <= num_sampled < num_pairs + part.size:
            scale = num_parts / (number + 1)
            fewest = counts - _DEVIATIONS * np.sqrt(counts)
            size = _bloom_bytes(fewest.clip(min=0) * scale, num_filters)
            if size >= enough:
                return size
        num_pairs += part.size
    return _bloom_bytes(counts, num_filters)


def _bloom_bytes(counts: np.ndarray, num_filters: np.ndarray) -> float:
    """Return the size that zone filters have at least, very likely.

    Each of ``counts`` is the distinct values of so many filters together.
    """
    sizes, most_values = _folded_sizes()
    # Filters are smallest if each value is in one of them only.
    ndv = counts / num_filters
    # A filter is folded by its set bits, and so as if it had a few values more or less.
    deviations = _FOLD_DEVIATION * np.sqrt(ndv)
    outcomes = np.array(
        [sizes[np.searchsorted(most_values, ndv + step * deviations)] for step in _NORMAL_STEPS]
    )
    variance = (outcomes.var(axis=0) * num_filters).sum()
    likely = (outcomes.mean(axis=0) * num_filters).sum() - _DEVIATIONS * np.sqrt(variance)
    smallest = (outcomes.min(axis=0) * num_filters).sum()
    return float(max(likely, smallest) + _BLOOM_ROW_BYTES * num_filters.sum())


@cache
def _folded_sizes() -> tuple[np.ndarray, np.ndarray]:
    """Return the sizes of a folded zone filter, and the distinct values up to which each is used.

    There is no such number for the last size.
    """
    probability = DEFAULT_ZONE_PROBABILITY
    full_size = size_for(_BLOOM_ZONE_ROWS, probability)
    sizes = [BYTES_PER_BLOCK << i for i in range((full_size // BYTES_PER_BLOCK).bit_length())]
    most_values = [
        bisect_right(
            range(1, _BLOOM_ZONE_ROWS),
            probability,
            key=lambda ndv, size=size: false_positive_probability(ndv, size),
        )
        for size in sizes[:-1]
    ]
    return np.array(sizes), np.array(most_values)


def _choose_slot_bytes(block_bytes: np.ndarray) -> int:
    """Return the size of slots that makes the file smallest; larger blocks are in the heap."""
    sizes = np.sort(block_bytes)
    bytes_after = sizes.sum() - np.cumsum(sizes)
    candidates = np.maximum(sizes, MIN_SLOT_BYTES)
    return int(candidates[np.argmin(candidates * sizes.size + bytes_after)])
