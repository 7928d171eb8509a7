"""Write the file of a hash index from pairs of a hash and a zone.

PairSpool -> sort and measure each partition -> choose groups and the shape of blocks
          -> encode blocks into slots and heap -> file
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterable
from contextlib import closing
from functools import partial

import numpy as np
import xxhash

from zonebloom.errors import InvalidArgument
from zonebloom.index.hash.file import (
    MAGIC,
    MAX_ZONES,
    Groups,
    Head,
    compress_nulls,
    compress_runs,
    encode_tail,
    slot_offset,
)
from zonebloom.index.hash.parameters import HashParameters, hash_bits_to_keep
from zonebloom.index.hash.plan import KeptPairs, choose_plan, keep_pairs, map_in_threads
from zonebloom.index.hash.spool import (
    NUM_PARTITIONS,
    PARTITION_BITS,
    PairBits,
    PairSpool,
    sort_distinct,
    temporary_file_errors,
)
from zonebloom.index.row_keys.zone_hashes import ZoneHashCollector, ZoneHashes
from zonebloom.index.table import HashingFile, WrittenTable, ZoneRuns
from zonebloom.sbbf.hashing import Hashes, RowHashes
from zonebloom.storage.files import FileCreator

_SAMPLED_PAIRS = 1 << 18
_MIN_SAMPLED_PARTITIONS = 4
# Zones have 32 bits in a spool.
_SAMPLE_BITS = PairBits(32, 32)
# Above this, the heap of a file that is being written is in a temporary file.
_MAX_HEAP_IN_MEMORY = 64 << 20
_COPY_BYTES = 4 << 20


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
        self._collector = ZoneHashCollector(parameters.number_of_items)
        self._num_zones = 0
        self._num_rows = 0
        self._runs: list[tuple[int, int, int, int]] = []
        self._null_zones: list[np.ndarray] = []

    def add(self, fragment_id: int, part: Hashes | RowHashes) -> None:
        if isinstance(part, RowHashes):
            self._add_zones(self._collector.add(part))
            return
        if part.null_count:
            rows = np.flatnonzero(~part.is_valid()) + self._num_rows
            zones = rows // self._parameters.number_of_items + self._num_zones
            self._null_zones.append(np.unique(zones))
        self._spool.add(part, self._num_rows, self._num_zones)
        self._num_rows += part.values.size

    def _add_zones(self, zones: Iterable[ZoneHashes]) -> None:
        for zone in zones:
            number = self._num_zones + self._num_rows // self._parameters.number_of_items
            self._spool.add_zone(zone.hashes, number)
            if zone.has_null:
                self._null_zones.append(np.array([number], dtype=np.int64))
            self._num_rows += zone.num_rows

    def end_fragment(self, fragment_id: int) -> None:
        self._add_zones(self._collector.finish())
        num_zones = -(-self._num_rows // self._parameters.number_of_items)
        if num_zones:
            self._runs.append((fragment_id, 0, num_zones, self._num_rows))
        self._num_zones += num_zones
        self._num_rows = 0
        require_numbered_zones(self._num_zones)

    def close(self) -> WrittenTable:
        try:
            return self._write()
        except BaseException:
            self.abort()
            raise

    def _write(self) -> WrittenTable:
        ids, first_rows, num_zones, num_rows = np.array(self._runs, np.uint64).reshape(-1, 4).T
        items = self._parameters.number_of_items
        runs = ZoneRuns(ids, first_rows, num_zones, num_rows, items)
        nulls = np.unique(np.concatenate([np.empty(0, dtype=np.int64), *self._null_zones]))
        try:
            self._spool.finish()
            estimated_pairs = _estimate_pairs(self._spool)
            kept_pairs = keep_pairs(
                (partial(self._spool.partition, number) for number in range(NUM_PARTITIONS)),
                PARTITION_BITS,
                estimated_pairs,
                hash_bits_to_keep(estimated_pairs, self._parameters.probability),
                Groups.of_runs(num_zones, shift=0),
                self._memory // 4,
            )
        finally:
            self._spool.close()
        try:
            return write_file(self._sink, kept_pairs, runs, nulls, self._parameters)
        finally:
            kept_pairs.pairs.close()

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


def _estimate_pairs(spool: PairSpool) -> int:
    """Estimate the number of distinct pairs from those of some partitions.

    Distinct hashes are spread evenly over the partitions, but rows are not: a frequent key has all
    its rows in one partition.
    """
    num_pairs = num_distinct = 0
    for number in range(NUM_PARTITIONS):
        arrays = spool.partition(number)
        num_pairs += sum(array.size for array in arrays)
        num_distinct += sort_distinct(arrays, _SAMPLE_BITS, number, PARTITION_BITS).size
        num_partitions = number + 1
        if num_pairs >= _SAMPLED_PAIRS and num_partitions >= _MIN_SAMPLED_PARTITIONS:
            return min(spool.num_pairs, num_distinct * NUM_PARTITIONS // num_partitions)
    return num_distinct


def write_file(
    sink: HashingFile,
    kept_pairs: KeptPairs,
    runs: ZoneRuns,
    null_zones: np.ndarray,
    parameters: HashParameters,
) -> WrittenTable:
    """Write the file of a segment, and close it."""
    kept_pairs, plan = choose_plan(kept_pairs, runs, parameters)
    shape, groups = plan.shape, plan.measure.groups
    needs = plan.block_needs()
    slot_bytes, heap_bytes = plan.slots_and_heap()
    heap_starts = slot_offset(shape.num_blocks, slot_bytes) + np.cumsum(heap_bytes) - heap_bytes
    salt = secrets.randbits(64)
    part_bits = kept_pairs.pairs.part_bits
    blocks_per_task = 1 << max(0, shape.block_bits - part_bits)
    parts_per_task = 1 << max(0, part_bits - shape.block_bits)

    def encode(task: int) -> tuple[np.ndarray, np.ndarray]:
        from zonebloom.index.hash import encode_kernels

        first_block = task * blocks_per_task
        blocks = slice(first_block, first_block + blocks_per_task)
        slots = np.zeros(blocks_per_task * slot_bytes // 8, dtype=np.uint64)
        heap = np.zeros(int(heap_bytes[blocks].sum()), dtype=np.uint8)
        encode_kernels.encode_blocks(
            kept_pairs.pairs.parts(task * parts_per_task, (task + 1) * parts_per_task),
            kept_pairs.pairs.bits.zone_bits,
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
        closing(kept_pairs.pairs),
        tempfile.SpooledTemporaryFile(_MAX_HEAP_IN_MEMORY, prefix="zonebloom-") as heap_file,
    ):
        sink.write(MAGIC)
        for slots, heap in map_in_threads(encode, range(shape.num_blocks // blocks_per_task)):
            sink.write(slots.data.cast("B"))
            with temporary_file_errors():
                heap_file.write(heap.data)
        with temporary_file_errors():
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
            group_bits=shape.group_bits,
            zone_shift=groups.shift,
        )
        tail = encode_tail(head, compressed_runs)
        sink.write(tail)
    return WrittenTable(sink.size, xxhash.xxh3_64_hexdigest(tail), num_zones)
