"""Measure sorted pairs of a hash and a zone, and encode them as the file of a segment."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import xxhash

from zonebloom.base.threads import map_in_order, num_cores, thread_pool
from zonebloom.index.hash.file import (
    HEAD_WORDS,
    MAGIC,
    MIN_SLOT_BYTES,
    Head,
    compress_nulls,
    compress_runs,
    encode_tail,
    slot_offset,
)
from zonebloom.index.hash.pairs import PairBits
from zonebloom.index.hash.parameters import BlockShape, choose_shape
from zonebloom.index.table import HashingFile, WrittenTable, ZoneRuns

# An entry takes about this many bits for its bucket.
_BUCKET_BITS_PER_ENTRY = 2
# Pairs of a cell, on average. A block consists of whole cells.
_PAIRS_PER_CELL = 256
PAIR_BITS = 64
# A heap of more bytes is not held in memory. Its blocks are encoded again after all slots.
_MAX_HEAP_IN_MEMORY = 256 << 20


def map_in_threads(work: Callable, items: Iterable) -> Iterator:
    """Yield the results of ``work`` in the order of the items, computed on all cores."""
    threads = num_cores()
    with thread_pool(threads) as pool:
        yield from map_in_order(pool, work, items, threads + 1)


@dataclass(frozen=True, slots=True)
class SortedPairs:
    """The pairs of a segment, in parts by the leading bits of the hash, and what they need.

    Attributes
    ----------
    bits : PairBits
    part_bits : int
        There are ``1 << part_bits`` parts.
    part : function
        Returns the distinct pairs of a part as numbers, sorted: uint64.
    entry_bits : int
        The width of an entry by which postings are chosen.
    num_pairs : int
    cells : int64 array, shape (n, 3)
        Entries, postings and bytes of postings of each cell, which is a range of hashes.
    """

    bits: PairBits
    part_bits: int
    part: Callable[[int], np.ndarray]
    entry_bits: int
    num_pairs: int
    cells: np.ndarray

    @classmethod
    def measured(
        cls,
        bits: PairBits,
        part_bits: int,
        estimated_pairs: int,
        measured_part: Callable[[int], np.ndarray],
        part: Callable[[int], np.ndarray],
    ) -> SortedPairs:
        """Return pairs after measuring them.

        ``measured_part`` may sort a part in place, so it is called once for each. Afterwards
        ``part`` returns the same parts. Both are called by several threads.
        """
        # Expected remainder bits, if there is about one bucket per entry.
        remainder_bits = max(1, bits.hash_bits - estimated_pairs.bit_length())
        entry_bits = remainder_bits + _BUCKET_BITS_PER_ENTRY + bits.zone_bits
        cell_bits = (estimated_pairs // _PAIRS_PER_CELL).bit_length()
        cell_bits = min(max(cell_bits, part_bits), bits.hash_bits)
        cells = np.zeros((1 << part_bits, 1 << (cell_bits - part_bits), 3), dtype=np.int64)

        def measure(number: int) -> int:
            from zonebloom.index.hash import encode_kernels

            pairs = measured_part(number)
            first_cell = number << (cell_bits - part_bits)
            encode_kernels.measure_pairs(
                pairs, bits.zone_bits, entry_bits, sum(bits) - cell_bits, first_cell, cells[number]
            )
            return pairs.size

        num_pairs = sum(map_in_threads(measure, range(1 << part_bits)))
        return cls(bits, part_bits, part, entry_bits, num_pairs, cells.reshape(-1, 3))

    def parts(self, start: int, stop: int) -> np.ndarray:
        """Return the pairs of parts that follow one another."""
        if stop - start == 1:
            return self.part(start)
        return np.concatenate([self.part(number) for number in range(start, stop)])


@dataclass(frozen=True, slots=True)
class Plan:
    """The shape and the needs of the blocks of a file.

    Attributes
    ----------
    shape : BlockShape
    needs : int64 array, shape (blocks, 3)
        Words, entries and postings of each block.
    slot_bytes : int
    heap_bytes : int64 array
        The bytes that each block has in the heap.
    """

    shape: BlockShape
    needs: np.ndarray
    slot_bytes: int
    heap_bytes: np.ndarray

    @classmethod
    def of(cls, pairs: SortedPairs, num_zones: int) -> Plan:
        num_entries, num_postings, _ = pairs.cells.sum(axis=0).tolist()
        # Blocks consist of whole cells.
        max_block_bits = len(pairs.cells).bit_length() - 1
        shape = choose_shape(
            max(1, num_entries), num_postings, num_zones, pairs.bits.hash_bits, max_block_bits
        )
        sums = pairs.cells.reshape(shape.num_blocks, -1, 3).sum(axis=1)
        entries, postings, posting_bytes = sums.T
        words = HEAD_WORDS + -(-(entries + shape.num_buckets) // 64) + 2 * postings
        words += -(-(entries * shape.entry_bits) // 64)
        slot_bytes = choose_slot_bytes(8 * words)
        heap_bytes = posting_bytes + np.where(8 * words > slot_bytes, 8 * words, 0)
        return cls(shape, np.column_stack([words, entries, postings]), slot_bytes, heap_bytes)


def choose_slot_bytes(block_bytes: np.ndarray) -> int:
    """Return the size of slots that makes the file smallest; larger blocks are in the heap."""
    sizes = np.sort(block_bytes)
    bytes_after = sizes.sum() - np.cumsum(sizes)
    candidates = np.maximum(sizes, MIN_SLOT_BYTES)
    return int(candidates[np.argmin(candidates * sizes.size + bytes_after)])


def write_file(
    sink: HashingFile,
    pairs: SortedPairs,
    runs: ZoneRuns,
    null_zones: np.ndarray,
    probability: float,
) -> WrittenTable:
    """Write the file of a segment, and close it."""
    num_zones = len(runs)
    plan = Plan.of(pairs, num_zones)
    shape, slot_bytes, heap_bytes = plan.shape, plan.slot_bytes, plan.heap_bytes
    heap_starts = slot_offset(shape.num_blocks, slot_bytes) + np.cumsum(heap_bytes) - heap_bytes
    salt = secrets.randbits(64)
    blocks_per_task = 1 << max(0, shape.block_bits - pairs.part_bits)
    parts_per_task = 1 << max(0, pairs.part_bits - shape.block_bits)

    def encode(task: int) -> tuple[np.ndarray, np.ndarray]:
        from zonebloom.index.hash import encode_kernels

        first_block = task * blocks_per_task
        blocks = slice(first_block, first_block + blocks_per_task)
        slots = np.zeros(blocks_per_task * slot_bytes // 8, dtype=np.uint64)
        heap = np.zeros(int(heap_bytes[blocks].sum()), dtype=np.uint8)
        encode_kernels.encode_blocks(
            pairs.parts(task * parts_per_task, (task + 1) * parts_per_task),
            pairs.entry_bits,
            np.array(shape, dtype=np.int64),
            first_block,
            plan.needs[blocks],
            slot_offset(first_block, slot_bytes),
            np.uint64(salt),
            int(heap_starts[first_block]),
            slots,
            heap,
        )
        return slots, heap

    tasks = range(shape.num_blocks // blocks_per_task)
    holds_heap = heap_bytes.sum() <= _MAX_HEAP_IN_MEMORY
    heaps: list[np.ndarray] = []
    with sink:
        sink.write(MAGIC)
        for slots, heap in map_in_threads(encode, tasks):
            sink.write(slots.data.cast("B"))
            if holds_heap:
                heaps.append(heap)
        for heap in heaps if holds_heap else (heap for _, heap in map_in_threads(encode, tasks)):
            sink.write(heap.data)
        nulls = compress_nulls(num_zones, null_zones)
        sink.write(nulls)
        compressed_runs = compress_runs(runs)
        num_entries, num_postings, _ = pairs.cells.sum(axis=0).tolist()
        head = Head(
            number_of_items=runs.items,
            probability=probability,
            num_zones=num_zones,
            num_runs=runs.num_zones.size,
            num_entries=num_entries,
            num_postings=num_postings,
            num_pairs=pairs.num_pairs,
            slot_bytes=slot_bytes,
            heap_bytes=int(heap_bytes.sum()),
            null_bytes=len(nulls),
            null_checksum=xxhash.xxh64_intdigest(nulls),
            runs_bytes=len(compressed_runs),
            salt=salt,
            content=sink.checksum.intdigest(),
            block_bits=shape.block_bits,
            bucket_bits=shape.bucket_bits,
            remainder_bits=shape.remainder_bits,
            zone_bits=shape.zone_bits,
        )
        tail = encode_tail(head, compressed_runs)
        sink.write(tail)
    return WrittenTable(sink.size, xxhash.xxh3_64_hexdigest(tail), num_zones)
