"""Write the file of a hash index from sorted pairs of a hash and a zone."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import xxhash

from zonebloom.base.threads import map_in_order, num_cores, thread_pool
from zonebloom.errors import InvalidArgument
from zonebloom.index.hash.file import (
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
    zone_bits_for,
)
from zonebloom.index.hash.spool import (
    NUM_PARTITIONS,
    PARTITION_BITS,
    PairArrays,
    PairSpool,
    SortedPairs,
    sort_distinct,
)
from zonebloom.index.table import HashingFile, WrittenTable, ZoneRuns
from zonebloom.sbbf.hashing import Hashes
from zonebloom.sbbf.sizing import DEFAULT_ZONE_PROBABILITY, expected_folded_size, size_for
from zonebloom.storage.files import FileCreator

# A file may be this many times as large as the zone Bloom index of the same column. The estimate
# of the latter may be a few percent too large.
_MAX_RELATIVE_SIZE = 1.05
_BLOOM_ZONE_ROWS = 8192
_BLOOM_ROW_BYTES = 25
# Entries of a posting, without remainder and zone: the bits of its bucket.
_BUCKET_BITS_PER_ENTRY = 2
_SAMPLE_PAIRS = 1 << 18
# Above this, the heap of a file that is being written is in a temporary file.
_MAX_HEAP_IN_MEMORY = 64 << 20
_COPY_BYTES = 4 << 20


class _Sums(NamedTuple):
    """What the pairs of a file need; the fields are those of `encode_kernels.measure_pairs`."""

    num_entries: int
    num_postings: int
    posting_bytes: int
    num_pairs: int
    largest: int


@dataclass(frozen=True, slots=True)
class _Plan:
    """How a file is written: groups of zones, shape of blocks, and the sums of its pairs."""

    groups: Groups
    shape: BlockShape
    sums: _Sums

    @property
    def num_bytes(self) -> int:
        sums, shape = self.sums, self.shape
        bits = sums.num_entries * (shape.entry_bits + 1) + shape.num_blocks * shape.num_buckets
        return bits // 8 + sums.posting_bytes + 16 * (sums.num_postings + shape.num_blocks)


class HashSegmentWriter:
    """The writer of a segment of a build."""

    def __init__(self, creator: FileCreator, path: str, parameters: HashParameters):
        self._parameters = parameters
        # Create the file at once, so that an error of the store is raised before the data is read.
        self._sink = HashingFile(creator.open_output_stream(path))
        # A quarter each for what was read, for sorted pairs, and for two parts that are sorted.
        self._spool = PairSpool(parameters.number_of_items, parameters.build_memory // 2)
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
        if self._num_zones >= MAX_ZONES:
            raise InvalidArgument(
                f"{self._num_zones:,} zones do not fit into one segment of a hash index; give a "
                "larger number_of_items"
            )

    def close(self) -> WrittenTable:
        ids, first_rows, num_zones, num_rows = np.array(self._runs, np.uint64).reshape(-1, 4).T
        items = self._parameters.number_of_items
        runs = ZoneRuns(ids, first_rows, num_zones, num_rows, items)
        nulls = np.unique(np.concatenate([np.empty(0, dtype=np.int64), *self._null_zones]))
        self._spool.finish()
        try:
            pairs = _sort_spool(self._spool, self._parameters)
        finally:
            self._spool.close()
        try:
            return write_pairs(self._sink, pairs, runs, nulls, self._parameters)
        finally:
            pairs.pairs.close()

    def abort(self) -> None:
        """Close the file after a failure. It is not a valid table."""
        self._spool.close()
        self._sink.close()


class KeptPairs(NamedTuple):
    """Sorted pairs, and how many leading bits of each hash they have."""

    pairs: SortedPairs
    hash_bits: int


def _sort_spool(spool: PairSpool, parameters: HashParameters) -> KeptPairs:
    hash_bits = hash_bits_to_keep(_estimate_entries(spool), parameters.probability)
    sorted_pairs = SortedPairs(PARTITION_BITS, parameters.build_memory // 4)

    def sort(number: int) -> PairArrays:
        return sort_distinct(*spool.partition(number), hash_bits, PARTITION_BITS)

    for pairs in _map_in_threads(sort, range(NUM_PARTITIONS)):
        sorted_pairs.append(pairs)
    return KeptPairs(sorted_pairs, hash_bits)


def _estimate_entries(spool: PairSpool) -> int:
    """Estimate the number of distinct pairs from some partitions, which are random hashes."""
    sizes = spool.partition_sizes()
    num_sampled = num_distinct = 0
    for number in np.flatnonzero(sizes).tolist():
        hashes, _ = sort_distinct(*spool.partition(number), 64, PARTITION_BITS)
        num_distinct += hashes.size
        num_sampled += int(sizes[number])
        if num_sampled >= _SAMPLE_PAIRS:
            break
    return round(spool.num_pairs * num_distinct / max(num_sampled, 1))


def _map_in_threads(work: Callable, items: Iterable) -> Iterator:
    threads = num_cores()
    with thread_pool(threads) as pool:
        yield from map_in_order(pool, work, items, threads + 1)


def write_pairs(
    sink: HashingFile,
    kept: KeptPairs,
    runs: ZoneRuns,
    null_zones: np.ndarray,
    parameters: HashParameters,
    min_shift: int = 0,
) -> WrittenTable:
    """Write a file with the given pairs. Groups have at least ``1 << min_shift`` zones."""
    plan = _choose_plan(kept, runs, parameters, min_shift)
    shape, groups = plan.shape, plan.groups
    num_blocks = shape.num_blocks
    sizes = _measure_blocks(kept.pairs, plan)
    slot_bytes = _choose_slot_bytes(8 * sizes[:, 0])
    is_outside = 8 * sizes[:, 0] > slot_bytes
    heap_sizes = sizes[:, 3] + np.where(is_outside, 8 * sizes[:, 0], 0)
    heap_starts = slot_offset(num_blocks, slot_bytes) + np.cumsum(heap_sizes) - heap_sizes
    salt = secrets.randbits(64)

    def encode(task: tuple[int, Callable[[], PairArrays]]) -> tuple[np.ndarray, np.ndarray]:
        from zonebloom.index.hash import encode_kernels

        first_block, load = task
        part = slice(first_block, first_block + _blocks_per_range(kept.pairs, shape))
        slots = np.zeros(sizes[part].shape[0] * slot_bytes // 8, dtype=np.uint64)
        # The kernel takes no empty array.
        heap = np.zeros(max(8, int(heap_sizes[part].sum())), dtype=np.uint8)
        encode_kernels.encode_blocks(
            *load(),
            groups.shift,
            groups.first_zones,
            groups.first_groups,
            np.array(shape, dtype=np.int64),
            first_block,
            sizes[part],
            slot_offset(first_block, slot_bytes),
            np.uint64(salt),
            int(heap_starts[first_block]),
            np.empty(plan.sums.largest + 1, dtype=np.uint32),
            slots,
            heap,
        )
        return slots, heap[: int(heap_sizes[part].sum())]

    with sink, tempfile.SpooledTemporaryFile(_MAX_HEAP_IN_MEMORY, prefix="zonebloom-") as heap_file:
        sink.write(MAGIC)
        for slots, heap in _map_in_threads(encode, _ranges(kept.pairs, shape)):
            sink.write(slots.data.cast("B"))
            heap_file.write(heap.data)
        heap_file.seek(0)
        while data := heap_file.read(_COPY_BYTES):
            sink.write(data)
        num_zones = int(runs.num_zones.sum())
        nulls = compress_nulls(num_zones, null_zones)
        sink.write(nulls)
        compressed_runs = compress_runs(runs)
        head = Head(
            number_of_items=runs.items,
            probability=parameters.probability,
            num_zones=num_zones,
            num_runs=runs.num_zones.size,
            num_entries=plan.sums.num_entries,
            num_postings=plan.sums.num_postings,
            num_pairs=plan.sums.num_pairs,
            slot_bytes=slot_bytes,
            heap_bytes=int(heap_sizes.sum()),
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
    kept: KeptPairs, runs: ZoneRuns, parameters: HashParameters, min_shift: int
) -> _Plan:
    """Return the plan with the smallest groups whose file is small enough, or the smallest file."""
    smallest = plan = _plan_for(kept, runs, min_shift)
    if not parameters.fold or plan.num_bytes <= _count_bloom_zones(runs) * _BLOOM_ROW_BYTES:
        return plan
    largest_bytes = _MAX_RELATIVE_SIZE * _estimate_bloom_bytes(kept, runs)
    while plan.num_bytes > largest_bytes and (1 << plan.groups.shift) < runs.num_zones.max():
        plan = _plan_for(kept, runs, plan.groups.shift + 1)
        smallest = min(smallest, plan, key=lambda plan: plan.num_bytes)
    return plan if plan.num_bytes <= largest_bytes else smallest


def _plan_for(kept: KeptPairs, runs: ZoneRuns, shift: int) -> _Plan:
    from zonebloom.index.hash import encode_kernels

    groups = Groups.of_runs(runs.num_zones, shift)
    zone_bits = zone_bits_for(len(groups))
    # The width of an entry depends on their number. Only the choice of postings depends on this
    # estimate.
    entry_bits = kept.hash_bits // 3 + _BUCKET_BITS_PER_ENTRY + zone_bits

    def measure(load: Callable[[], PairArrays]) -> np.ndarray:
        sums = np.zeros(5, dtype=np.int64)
        scratch = np.empty(len(groups) + 1, dtype=np.uint32)
        arrays = groups.first_zones, groups.first_groups
        encode_kernels.measure_pairs(*load(), shift, *arrays, entry_bits, scratch, sums)
        return sums

    sums = np.array(list(_map_in_threads(measure, kept.pairs.ranges(kept.pairs.part_bits))))
    num_entries, num_postings, posting_bytes, num_pairs = sums[:, :-1].sum(axis=0).tolist()
    largest = int(sums[:, -1].max(initial=0))
    totals = _Sums(num_entries, num_postings, posting_bytes, num_pairs, largest)
    shape = choose_shape(max(1, num_entries), num_postings, len(groups), kept.hash_bits)
    return _Plan(groups, shape, totals)


def _count_bloom_zones(runs: ZoneRuns) -> int:
    return int((-(-runs.num_rows.astype(np.int64) // _BLOOM_ZONE_ROWS)).sum())


def _estimate_bloom_bytes(kept: KeptPairs, runs: ZoneRuns) -> int:
    """Return the expected size of the zone Bloom index of the same rows."""
    from zonebloom.index.hash import encode_kernels

    shift = max(0, (_BLOOM_ZONE_ROWS // runs.items).bit_length() - 1) if runs.items > 0 else 0
    groups = Groups.of_runs(runs.num_zones, shift)

    def count(load: Callable[[], PairArrays]) -> np.ndarray:
        counts = np.zeros(len(groups), dtype=np.int64)
        arrays = groups.first_zones, groups.first_groups
        encode_kernels.count_distinct(*load(), shift, *arrays, counts)
        return counts

    total = np.zeros(len(groups), dtype=np.int64)
    for counts in _map_in_threads(count, kept.pairs.ranges(kept.pairs.part_bits)):
        total += counts
    full_size = size_for(_BLOOM_ZONE_ROWS, DEFAULT_ZONE_PROBABILITY)
    zones_by_ndv = np.bincount(total)
    return sum(
        int(zones_by_ndv[ndv])
        * (expected_folded_size(ndv, full_size, DEFAULT_ZONE_PROBABILITY) + _BLOOM_ROW_BYTES)
        for ndv in np.flatnonzero(zones_by_ndv).tolist()
    )


def _blocks_per_range(pairs: SortedPairs, shape: BlockShape) -> int:
    return 1 << max(0, shape.block_bits - pairs.part_bits)


def _ranges(
    pairs: SortedPairs, shape: BlockShape
) -> Iterator[tuple[int, Callable[[], PairArrays]]]:
    """Yield the first block of each range of hashes, and a function that loads its pairs."""
    step = _blocks_per_range(pairs, shape)
    for number, load in enumerate(pairs.ranges(shape.block_bits)):
        yield number * step, load


def _measure_blocks(pairs: SortedPairs, plan: _Plan) -> np.ndarray:
    """Return words, entries, postings and bytes of postings of each block; int64, shape (n, 4)."""
    from zonebloom.index.hash import encode_kernels

    groups, step = plan.groups, _blocks_per_range(pairs, plan.shape)

    def measure(task: tuple[int, Callable[[], PairArrays]]) -> np.ndarray:
        first_block, load = task
        sizes = np.zeros((step, 4), dtype=np.int64)
        encode_kernels.measure_blocks(
            *load(),
            groups.shift,
            groups.first_zones,
            groups.first_groups,
            np.array(plan.shape, dtype=np.int64),
            first_block,
            np.empty(plan.sums.largest + 1, dtype=np.uint32),
            sizes,
        )
        return sizes

    return np.concatenate(list(_map_in_threads(measure, _ranges(pairs, plan.shape))))


def _choose_slot_bytes(block_bytes: np.ndarray) -> int:
    """Return the size of slots that makes the file smallest; larger blocks are in the heap."""
    sizes = np.sort(block_bytes)
    bytes_after = sizes.sum() - np.cumsum(sizes)
    candidates = np.maximum(sizes, MIN_SLOT_BYTES)
    return int(candidates[np.argmin(candidates * sizes.size + bytes_after)])
