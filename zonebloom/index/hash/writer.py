"""Write the segment of a hash index from the hashes of rows, or from other segments.

rows -> PairBuffer -> file of the segment

If the buffer is full before all rows are there, it becomes a segment that only this writer reads:

rows -> PairBuffer -> temporary segments -> merge -> file of the segment

A merge goes in the order of the hashes. If there are many pairs, it holds only those of a few
parts: it reads the tables twice, to measure their pairs and to encode them, and once more if the
heap of the file does not fit in memory either.
"""

from __future__ import annotations

import posixpath
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass

import numpy as np
import xxhash

from zonebloom.base.threads import map_in_order, num_cores, thread_pool
from zonebloom.errors import CorruptIndex, InvalidArgument
from zonebloom.index.hash.file import (
    HEAD_WORDS,
    MAGIC,
    MIN_SLOT_BYTES,
    Head,
    compress_nulls,
    compress_runs,
    encode_tail,
    require_numbered_zones,
    slot_offset,
)
from zonebloom.index.hash.pairs import (
    MAX_BUFFERED_HASH_BITS,
    PARTITION_BITS,
    PairBits,
    PairBuffer,
    sort_packed,
)
from zonebloom.index.hash.parameters import (
    MAX_BUFFERED_PAIRS,
    BlockShape,
    HashParameters,
    choose_shape,
    hash_bits_to_keep,
    zone_bits_for,
)
from zonebloom.index.hash.table import HashTable
from zonebloom.index.row_keys.zone_hashes import ZoneHashCollector, ZoneHashes
from zonebloom.index.table import HashingFile, WrittenTable, ZoneRuns
from zonebloom.sbbf.hashing import Hashes, RowHashes
from zonebloom.storage.encryption import IndexStore
from zonebloom.storage.files import FileCreator

# An entry takes about this many bits for its bucket.
_BUCKET_BITS_PER_ENTRY = 2
# Pairs of a cell, on average. A block consists of whole cells.
_PAIRS_PER_CELL = 256
PAIR_BITS = 64
# A heap of more bytes is not held in memory. Its blocks are encoded again after all slots.
_MAX_HEAP_IN_MEMORY = 256 << 20
_MIN_PAIRS_PER_WRITER = 1 << 20
# A merge of at most this many pairs holds them in memory, in 64 MiB. To read them again would take
# 1.6 times as long.
_MAX_HELD_PAIRS = 1 << 23
_NO_ZONES = np.empty(0, dtype=np.int64)
# A part has fewer pairs than this on average. More and smaller parts would take longer.
_PAIRS_PER_PART = 1 << 17


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


def merge_hash_tables(tables: Sequence[HashTable], creator: FileCreator, path: str) -> WrittenTable:
    """Write the zones of all tables, in order, as one file.

    The merged file keeps as many bits of each hash as the table that has the fewest. So a key that
    is absent has more false zones in it than in a file that was built from the rows.
    """
    all_parameters = {(table.head.number_of_items, table.head.probability) for table in tables}
    if len(all_parameters) != 1:
        raise InvalidArgument(
            f"{len(tables)} tables with {len(all_parameters)} sets of parameters cannot become one"
        )
    ((items, probability),) = all_parameters
    num_zones = [len(table) for table in tables]
    require_numbered_zones(sum(num_zones))
    all_runs = [table.runs for table in tables]
    runs = ZoneRuns(
        np.concatenate([runs.fragment_ids for runs in all_runs]),
        np.concatenate([runs.first_rows for runs in all_runs]),
        np.concatenate([runs.num_zones for runs in all_runs]),
        np.concatenate([runs.num_rows for runs in all_runs]),
        items,
    )
    first_zones = np.cumsum([0, *num_zones])[:-1].tolist()
    nulls = [
        table.zones_with_null() + first for table, first in zip(tables, first_zones, strict=True)
    ]
    sink = HashingFile(creator.open_output_stream(path))
    null_zones = np.concatenate(nulls)
    return write_merged(
        sink, tables, first_zones, runs, null_zones, probability, max_held_pairs=_MAX_HELD_PAIRS
    )


def write_merged(
    sink: HashingFile,
    tables: Sequence[HashTable],
    first_zones: Iterable[int],
    runs: ZoneRuns,
    null_zones: np.ndarray,
    probability: float,
    *,
    max_held_pairs: int = 0,
) -> WrittenTable:
    """Write the pairs of some tables as one file, and close it.

    ``first_zones`` has the number in the file of the first zone of each table. At most
    ``max_held_pairs`` pairs are held in memory. If there are more, the tables are read twice.
    """
    try:
        pairs = _measured_pairs(tables, first_zones, len(runs), probability, max_held_pairs)
        return write_file(sink, pairs, runs, null_zones, probability)
    except BaseException:
        sink.close()
        raise


def _measured_pairs(
    tables: Sequence[HashTable],
    first_zones: Iterable[int],
    num_zones: int,
    probability: float,
    max_held_pairs: int,
) -> SortedPairs:
    # An upper bound, because pairs become equal where fewer bits of their hashes are kept.
    max_pairs = sum(table.head.num_pairs for table in tables)
    zone_bits = zone_bits_for(num_zones)
    hash_bits = min(
        hash_bits_to_keep(max_pairs, probability),
        PAIR_BITS - zone_bits,
        *(table.shape.hash_bits for table in tables),
    )
    # At least one kept bit has to follow those that choose the part.
    part_bits = min(hash_bits - 1, _part_bits_for(max_pairs))
    bits = PairBits(hash_bits, zone_bits)
    readers = [
        _PartReader(table, bits, part_bits, first)
        for table, first in zip(tables, first_zones, strict=True)
    ]

    def read(number: int) -> np.ndarray:
        return sort_packed(np.concatenate([reader.part(number) for reader in readers]))

    if max_pairs <= max_held_pairs:
        held: dict[int, np.ndarray] = {}

        def read_and_hold(number: int) -> np.ndarray:
            return held.setdefault(number, read(number))

        return SortedPairs.measured(bits, part_bits, max_pairs, read_and_hold, held.__getitem__)
    digests: dict[int, int] = {}

    def read_unchanged(number: int) -> np.ndarray:
        pairs = read(number)
        digest = xxhash.xxh3_64_intdigest(pairs.data)
        # The kernels that encode pairs write as much as was measured.
        if digests.setdefault(number, digest) != digest:
            raise CorruptIndex(f"{tables[0].path}, or a file beside it, changed during a merge")
        return pairs

    return SortedPairs.measured(bits, part_bits, max_pairs, read_unchanged, read_unchanged)


def _part_bits_for(num_pairs: int) -> int:
    return max(1, (num_pairs // _PAIRS_PER_PART).bit_length())


class _PartReader:
    """A reader of the pairs of a table by the leading bits of the hash.

    Several threads may use it.
    """

    def __init__(self, table: HashTable, bits: PairBits, part_bits: int, first_zone: int):
        self._table = table
        self._bits = bits
        self._part_bits = part_bits
        self._first_zone = first_zone
        # The slot that was read last, and its pairs. With fewer slots than parts, a slot has the
        # pairs of several parts.
        self._last = -1, np.empty(0, np.uint64)

    def part(self, number: int) -> np.ndarray:
        """Return the pairs of a part as numbers. They may not be sorted."""
        spare_bits = self._table.shape.block_bits - self._part_bits
        if spare_bits >= 0:
            return self._pairs_of(range(number << spare_bits, (number + 1) << spare_bits))
        slot = number >> -spare_bits
        last, pairs = self._last
        if slot != last:
            pairs = self._pairs_of(range(slot, slot + 1))
            self._last = slot, pairs
        return pairs[pairs >> np.uint64(sum(self._bits) - self._part_bits) == np.uint64(number)]

    def _pairs_of(self, slots: range) -> np.ndarray:
        return self._table.packed_pairs(slots, *self._bits, self._first_zone)


class HashSegmentWriter:
    """The writer of a segment of a build.

    ``store`` reads the temporary segments. Their folders have the name of the segment and a
    number, so the build deletes them at its end, as it deletes all segments that are not committed.
    """

    def __init__(
        self,
        creator: FileCreator,
        store: IndexStore,
        path: str,
        parameters: HashParameters,
        num_writers: int = 1,
    ):
        self._creator = creator
        self._store = store
        self._path = path
        self._parameters = parameters
        self._max_pairs = max(_MIN_PAIRS_PER_WRITER, MAX_BUFFERED_PAIRS // num_writers)
        # Create the file at once, so that an error of the store is raised before the data is read.
        self._sink = HashingFile(creator.open_output_stream(path))
        self._buffer = PairBuffer(parameters.number_of_items)
        self._collector = ZoneHashCollector(parameters.number_of_items)
        self._num_zones = 0
        self._num_rows = 0
        self._runs: list[tuple[int, int, int, int]] = []
        self._null_zones: list[np.ndarray] = []
        self._temporary: list[tuple[str, WrittenTable]] = []

    def add(self, fragment_id: int, part: Hashes | RowHashes) -> None:
        if isinstance(part, RowHashes):
            self._add_zones(fragment_id, self._collector.add(part))
            return
        if part.null_count:
            rows = np.flatnonzero(~part.is_valid()) + self._num_rows
            zones = rows // self._parameters.number_of_items + self._num_zones
            self._null_zones.append(np.unique(zones))
        self._buffer.add(part, self._num_rows, self._num_zones)
        self._num_rows += part.values.size
        self._write_if_full(fragment_id)

    def _add_zones(self, fragment_id: int, zones: Iterable[ZoneHashes]) -> None:
        for zone in zones:
            number = self._num_zones + self._num_rows // self._parameters.number_of_items
            self._buffer.add_zone(zone.hashes, number)
            if zone.has_null:
                self._null_zones.append(np.array([number], dtype=np.int64))
            self._num_rows += zone.num_rows
            self._write_if_full(fragment_id)

    def end_fragment(self, fragment_id: int) -> None:
        self._add_zones(fragment_id, self._collector.finish())
        self._runs += self._run_of(fragment_id)
        self._num_zones += self._num_fragment_zones
        self._num_rows = 0
        require_numbered_zones(self._num_zones)

    @property
    def _num_fragment_zones(self) -> int:
        return -(-self._num_rows // self._parameters.number_of_items)

    def _run_of(self, fragment_id: int) -> list[tuple[int, int, int, int]]:
        """Return the run of the rows so far of a fragment, or nothing if there are none."""
        num_zones = self._num_fragment_zones
        return [(fragment_id, 0, num_zones, self._num_rows)] if num_zones else []

    def close(self) -> WrittenTable:
        try:
            return self._write()
        except BaseException:
            self.abort()
            raise

    def _write(self) -> WrittenTable:
        runs, probability = self._zone_runs(self._runs), self._parameters.probability
        null_zones = np.unique(np.concatenate([_NO_ZONES, *self._null_zones]))
        if not self._temporary:
            pairs = self._take_pairs(len(runs), probability)
            return write_file(self._sink, pairs, runs, null_zones, probability)
        self._write_temporary(runs)
        with ExitStack() as stack:
            tables = [
                stack.enter_context(
                    closing(HashTable(self._store, path, written.num_bytes, written.checksum))
                )
                for path, written in self._temporary
            ]
            first_zones = [0] * len(tables)
            return write_merged(self._sink, tables, first_zones, runs, null_zones, probability)

    def _write_if_full(self, fragment_id: int) -> None:
        if len(self._buffer) >= self._max_pairs:
            self._write_temporary(self._zone_runs([*self._runs, *self._run_of(fragment_id)]))

    def _write_temporary(self, runs: ZoneRuns) -> None:
        """Write the buffered pairs as a segment whose zones have the numbers of this one."""
        folder, name = posixpath.split(self._path)
        path = posixpath.join(f"{folder}-{len(self._temporary)}", name)
        sink = HashingFile(self._creator.open_output_stream(path))
        try:
            pairs = self._take_pairs(len(runs), None)
            written = write_file(sink, pairs, runs, _NO_ZONES, self._parameters.probability)
        except BaseException:
            sink.close()
            raise
        self._temporary.append((path, written))

    def _take_pairs(self, num_zones: int, probability: float | None) -> SortedPairs:
        """Return the buffered pairs, and empty the buffer.

        They keep the bits of each hash that a probability needs, or all without one.
        """
        buffer, self._buffer = self._buffer, PairBuffer(self._parameters.number_of_items)
        buffer.finish()
        part_bits = min(PARTITION_BITS, _part_bits_for(len(buffer)))
        estimated_pairs = buffer.estimate_distinct(part_bits)
        zone_bits = zone_bits_for(num_zones)
        hash_bits = min(MAX_BUFFERED_HASH_BITS, PAIR_BITS - zone_bits)
        if probability is not None:
            hash_bits = min(hash_bits, hash_bits_to_keep(estimated_pairs, probability))
        bits = PairBits(hash_bits, zone_bits)
        return SortedPairs.measured(
            bits,
            part_bits,
            estimated_pairs,
            lambda number: buffer.sort(number, part_bits, bits),
            lambda number: buffer.sorted_part(number, part_bits),
        )

    def _zone_runs(self, runs: list[tuple[int, int, int, int]]) -> ZoneRuns:
        ids, first_rows, num_zones, num_rows = np.array(runs, np.uint64).reshape(-1, 4).T
        items = self._parameters.number_of_items
        return ZoneRuns(ids, first_rows, num_zones, num_rows, items)

    def abort(self) -> None:
        """Close the file after a failure. It is not a valid table."""
        self._sink.close()
