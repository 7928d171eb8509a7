"""Encode sorted pairs of a hash and a zone as the file of a segment."""

from __future__ import annotations

import secrets

import numpy as np
import xxhash

from zonebloom.index.hash.file import (
    MAGIC,
    Head,
    compress_nulls,
    compress_runs,
    encode_tail,
    slot_offset,
)
from zonebloom.index.hash.plan import Plan, SortedPairs, map_in_threads
from zonebloom.index.table import HashingFile, WrittenTable, ZoneRuns

# A heap of more bytes is not held in memory. Its blocks are encoded again after all slots.
_MAX_HEAP_IN_MEMORY = 256 << 20


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
