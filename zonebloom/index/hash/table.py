"""Look up hashes in the file of a hash index.

The end of the file is read and verified when the table is opened. A lookup then reads one block,
which has its own checksum. A damaged block counts as if its keys were in every zone.

    hash     the first bits are the number of a slot; `_block` reads the block in it, which lies in
             the heap if it does not fit
    block    the next bits choose a bucket of entries
    entry    if it has the remainder of the hash, it names a zone, or a posting in the heap with
             the list of all zones of the hash

A kernel of `search_kernels` does the last two steps, for one hash or for many sorted ones.
`_find_in_block` does them without kernels, which take longer to load than few lookups.
`zonebloom.index.hash.file` has the layout of each part.
"""

from __future__ import annotations

import itertools
import struct
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import NamedTuple

import numpy as np
import xxhash

from zonebloom.base.memory_cache import MEMORY_CACHE, CacheOwner
from zonebloom.base.threads import REMOTE_THREADS, map_in_order, num_cores, thread_pool
from zonebloom.catalog.store import MissingIndexFile
from zonebloom.errors import CorruptIndex
from zonebloom.index.hash.file import (
    HEAD_WORDS,
    OVERFLOW,
    Head,
    decompress_nulls,
    read_head,
    slot_offset,
)
from zonebloom.index.hash.parameters import BlockShape
from zonebloom.index.table import HashedTable, Pairs
from zonebloom.sbbf.kernel_loader import KERNELS
from zonebloom.storage.encryption import IndexStore, open_random_access
from zonebloom.storage.files import FILE_ERRORS, ReadCounter
from zonebloom.storage.random_access import RandomAccessFile, ReopenedFile

# NumPy needs as long for one block as for testing this many blocks of filters in memory.
_NUMPY_CHECKS_PER_BLOCK = 200
# Slots that a thread holds at a time. Local ones should still be in the processor's cache when they
# are searched.
_LOCAL_BATCH_BYTES = 1 << 20
_REMOTE_BATCH_BYTES = 8 << 20
_MIN_MATCHES = 1 << 12
# Zones of several hashes are merged when there are so many.
_MIN_MERGED_ZONES = 1 << 20
# A bucket rarely has more entries of one hash than this.
_BUCKET_MATCHES = 64
# Larger buckets are searched by halving, as in `search_kernels`.
_MAX_SCANNED_ENTRIES = 64
_CHECKSUM_BYTES = 8
# The checksum of a posting, and how many zones it has.
_POSTING_HEAD = struct.Struct("<QQ")
_HASH_BITS = 64
_VERIFY_STEP_BYTES = 4 << 20

# A reference to a piece of the heap: its offset and its bytes.
_Reference = tuple[int, int]


class _Block(NamedTuple):
    """The words of a verified block."""

    words: np.ndarray

    @property
    def num_bytes(self) -> int:
        return self.words.nbytes


class _BatchMatches(NamedTuple):
    """The matches of sorted hashes in some slots, by position in the sorted hashes."""

    pairs: list[Pairs]
    # Keys with references to their postings.
    postings: list[tuple[int, _Reference]]
    # Keys whose block is damaged.
    damaged_keys: list[int]


@dataclass(slots=True)
class _SlotBatch:
    """Slots of sorted hashes: their numbers, and which hashes each has."""

    slots: np.ndarray
    key_starts: np.ndarray
    key_stops: np.ndarray


class HashTable(HashedTable):
    """The file of a hash index that is open for lookups.

    The table passes the first damage to ``report``. Without ``report`` it raises every damage.
    """

    def __init__(
        self,
        store: IndexStore,
        path: str,
        num_bytes: int | None = None,
        checksum: str | None = None,
        *,
        report: Callable[[CorruptIndex], None] | None = None,
    ):
        self.path = path
        self.counter = counter = ReadCounter()
        self._report = report
        self._has_reported = False
        self._file = ReopenedFile(lambda: open_random_access(store, path, counter, num_bytes))
        try:
            file = self.file
            try:
                self.num_bytes, self._has_round_trips = file.num_bytes, file.has_round_trips
                self.head, self.runs = read_head(file, num_bytes, checksum)
            except BaseException:
                # The error's traceback would keep the file open.
                file.close()
                raise
        except (OSError, ValueError) as error:
            kind = MissingIndexFile if isinstance(error, FileNotFoundError) else CorruptIndex
            raise kind(
                f"{path} is not a file of a hash index ({error}); build the index again"
            ) from None
        self.shape = self.head.shape
        self._slot_shift = _HASH_BITS - self.shape.block_bits
        self._shape = np.array([*self.shape, len(self)], dtype=np.int64)
        # The owner of the verified blocks that are in memory.
        self._cache_owner = CacheOwner()
        self._scratch = threading.local()

    @property
    def file(self) -> RandomAccessFile:
        return self._file.get()

    def __len__(self) -> int:
        return self.head.num_zones

    def require_valid(self) -> None:
        self.runs.require_valid(len(self))

    @property
    def loaded_bytes(self) -> int:
        return self.counter.num_bytes

    @cached_property
    def has_null(self) -> np.ndarray:
        flags = np.zeros(len(self), dtype=bool)
        flags[self.zones_with_null()] = True
        return flags

    def zones_with_null(self) -> np.ndarray:
        return self._null_zones

    @cached_property
    def _null_zones(self) -> np.ndarray:
        start = self.head.null_offset
        try:
            data = b""
            if self.head.null_bytes:
                data = self.file.read([(start, start + self.head.null_bytes)])[0]
            return decompress_nulls(data, self.head)
        except (OSError, ValueError) as error:
            self._report_damage(f"its null flags cannot be read ({error})")
            return np.arange(len(self))

    def find(self, hashes: np.ndarray) -> np.ndarray:
        if hashes.size == 1 and len(self):
            return self._zones_of(hashes)
        zones, parts, num_new = np.empty(0, dtype=np.int64), [], 0
        for _, part in self._pairs(hashes) if hashes.size and len(self) else ():
            parts.append(part)
            num_new += part.size
            if num_new > max(_MIN_MERGED_ZONES, zones.size):
                zones, parts, num_new = np.unique(np.concatenate([zones, *parts])), [], 0
                if zones.size == len(self):
                    return zones
        return np.unique(np.concatenate([zones, *parts]))

    def _pairs(self, hashes: np.ndarray) -> Iterator[Pairs]:
        checks = _NUMPY_CHECKS_PER_BLOCK * hashes.size
        if not (KERNELS.are_loaded or KERNELS.are_worth(checks)):
            for position, hashed in enumerate(hashes.tolist()):
                zones = self._zones_by_numpy(hashed)
                yield np.full(zones.size, position), zones
            return
        order = None
        if (hashes[1:] < hashes[:-1]).any():
            order = np.argsort(hashes)
            hashes = hashes[order]
        for keys, zones in self._sorted_pairs(hashes):
            yield keys if order is None else order[keys], zones

    def _zones_of(self, hashes: np.ndarray) -> np.ndarray:
        """Return the zones that may hold one hash: int64, ascending."""
        hashed = int(hashes[0])
        if not (KERNELS.are_loaded or KERNELS.are_worth(_NUMPY_CHECKS_PER_BLOCK)):
            return self._zones_by_numpy(hashed)
        words = self._block(hashed >> self._slot_shift)
        if words is None:
            return np.arange(len(self))
        out = getattr(self._scratch, "zones", None)
        if out is None:
            out = self._scratch.zones = np.empty(_BUCKET_MATCHES, dtype=np.int64)
        count = self._kernels.find_one(words, hashes, self._shape, out)
        if count < 0:
            return self._zones_by_numpy(hashed)
        return out[:count].copy()

    @cached_property
    def _kernels(self) -> ModuleType:
        from zonebloom.index.hash import search_kernels

        return search_kernels

    def _zones_by_numpy(self, hashed: int) -> np.ndarray:
        words = self._block(hashed >> self._slot_shift)
        if words is None:
            return np.arange(len(self))
        try:
            zones, reference = _find_in_block(words, hashed, self.head)
        except ValueError:
            return self._report_block()
        return zones if reference is None else self._posting(reference)

    def _sorted_pairs(self, hashes: np.ndarray) -> Iterator[Pairs]:
        """Yield pairs of the position of a sorted hash and a zone."""
        slots, starts, stops = self._slots_of(hashes)
        max_bytes = _REMOTE_BATCH_BYTES if self._has_round_trips else _LOCAL_BATCH_BYTES
        step = max(1, max_bytes // self.head.slot_bytes)
        batches = [
            _SlotBatch(slots[i : i + step], starts[i : i + step], stops[i : i + step])
            for i in range(0, slots.size, step)
        ]

        def search(batch: _SlotBatch) -> _BatchMatches:
            return self._search_batch(batch, hashes)

        if len(batches) == 1:
            yield from self._expand(search(batches[0]))
            return
        threads = REMOTE_THREADS if self._has_round_trips else num_cores()
        with thread_pool(threads) as pool:
            for matches in map_in_order(pool, search, batches, threads + 1):
                yield from self._expand(matches)

    def _slots_of(self, hashes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the slots of sorted hashes, and the half-open range of hashes of each."""
        shift, num_slots = np.uint64(self._slot_shift), self.shape.num_blocks
        if 1 < num_slots < hashes.size:
            # Many hashes are cheaper to search than to shift.
            firsts = np.arange(num_slots, dtype=np.uint64) << shift
            starts = np.searchsorted(hashes, firsts)
            stops = np.append(starts[1:], hashes.size)
            slots = np.flatnonzero(starts < stops)
            return slots, starts[slots], stops[slots]
        # A shift by 64 bits has no result.
        slots = (hashes >> shift).astype(np.int64) if num_slots > 1 else np.zeros(hashes.size, int)
        starts = np.flatnonzero(np.diff(slots, prepend=-1))
        return slots[starts], starts, np.append(starts[1:], hashes.size)

    def _expand(self, matches: _BatchMatches) -> Iterator[Pairs]:
        yield from matches.pairs
        last_reference, zones = None, np.empty(0, dtype=np.int64)
        for key, reference in matches.postings:
            # Equal hashes follow one another, and have the same posting.
            if reference != last_reference:
                last_reference, zones = reference, self._posting(reference)
            yield np.full(zones.size, key), zones
        if matches.damaged_keys:
            all_zones = self._report_block()
            for key in matches.damaged_keys:
                yield np.full(all_zones.size, key), all_zones

    def _search_batch(self, batch: _SlotBatch, hashes: np.ndarray) -> _BatchMatches:
        words, is_damaged = self._read_slots(batch.slots)
        slot_words = self.head.slot_bytes // 8
        num_entries = words.reshape(-1, slot_words)[:, 1] & np.uint64(0xFFFFFFFF)
        is_overflow = (num_entries == np.uint64(OVERFLOW)) & ~is_damaged
        matches = _BatchMatches([], [], [])
        # Leave blocks in the heap out of the search of the slots.
        self._search_words(
            words, slot_words, batch, hashes, is_damaged | is_overflow, is_overflow, matches
        )
        for number in np.flatnonzero(is_overflow).tolist():
            part = slice(number, number + 1)
            single_slot = _SlotBatch(
                batch.slots[part], batch.key_starts[part], batch.key_stops[part]
            )
            block = self._overflow(words[number * slot_words : (number + 1) * slot_words])
            if block is None:
                matches.damaged_keys.extend(_keys_of(single_slot, 0))
                continue
            no_damage = np.zeros(1, dtype=bool)
            self._search_words(
                block, block.size, single_slot, hashes, no_damage, no_damage.copy(), matches
            )
        return matches

    def _search_words(
        self,
        words: np.ndarray,
        block_words: int,
        batch: _SlotBatch,
        hashes: np.ndarray,
        is_left_out: np.ndarray,
        is_overflow: np.ndarray,
        matches: _BatchMatches,
    ) -> None:
        kernels = self._kernels
        num_keys = int(batch.key_stops[-1] - batch.key_starts[0])
        buffers = _SearchBuffers(max(_MIN_MATCHES, num_keys + num_keys // 4))
        state = buffers.state
        state[kernels.NEXT_KEY] = batch.key_starts[0]
        is_damaged = is_left_out.copy()
        first = 0
        while True:
            kernels.find_sorted(
                words,
                block_words,
                batch.key_starts,
                batch.key_stops,
                hashes,
                self._shape,
                first,
                *buffers.outputs,
                is_damaged,
                state,
            )
            next_key, num_matches, num_found_postings, needed = state.tolist()
            if num_matches:
                keys, zones = buffers.keys[:num_matches], buffers.zones[:num_matches]
                matches.pairs.append((keys.copy(), zones.copy()))
            for key, (offset, size) in zip(
                buffers.posting_keys[:num_found_postings].tolist(),
                buffers.postings[:num_found_postings].tolist(),
                strict=True,
            ):
                matches.postings.append((key, (offset, size)))
            if not needed:
                break
            if not num_matches and not num_found_postings:
                buffers.grow(needed)
            first = int(np.searchsorted(batch.key_stops, next_key, side="right"))
        damaged = [
            key
            for number in np.flatnonzero(is_damaged & ~is_overflow).tolist()
            for key in _keys_of(batch, number)
        ]
        if damaged:
            # A damaged key is in all zones, so drop what was found before the damage was noticed.
            matches.damaged_keys.extend(damaged)
            matches.pairs[:] = [
                (keys[is_kept], zones[is_kept])
                for keys, zones in matches.pairs
                for is_kept in [~np.isin(keys, damaged)]
            ]
            damaged_keys = set(damaged)
            matches.postings[:] = [
                posting for posting in matches.postings if posting[0] not in damaged_keys
            ]

    def _read_slots(self, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return slots one after another, and which of them are damaged.

        The next call in the same thread overwrites them.
        """
        size = self.head.slot_bytes
        words = self._scratch_words(slots.size * (size // 8))
        offsets = slot_offset(0, size) + slots * size
        is_damaged = np.ones(slots.size, dtype=bool)
        try:
            self.file.read_pieces(offsets, np.full(slots.size, size), words)
        except FILE_ERRORS as error:
            self._report_damage(f"it cannot be read ({error})")
            return words, is_damaged
        salt = np.uint64(self.head.salt)
        self._kernels.check_pieces(words, size // 8, offsets, salt, is_damaged)
        return words, is_damaged

    def _scratch_words(self, size: int) -> np.ndarray:
        words = getattr(self._scratch, "words", None)
        if words is None or words.size < size:
            words = self._scratch.words = np.empty(size, dtype=np.uint64)
        return words[:size]

    def _block(self, slot: int) -> np.ndarray | None:
        """Return the words of a block. Report damage, and return None, if it is damaged."""
        cache_key = self._cache_owner.token, slot
        block = MEMORY_CACHE.get(cache_key, _Block)
        if block is not None:
            return block.words
        size = self.head.slot_bytes
        words = self._read_piece(slot_offset(slot, size), size)
        if words is not None and _block_sizes(words)[0] == OVERFLOW:
            words = self._overflow(words)
        if words is None:
            self._report_block()
        else:
            MEMORY_CACHE.put(cache_key, _Block(words))
        return words

    def _overflow(self, slot_words: np.ndarray) -> np.ndarray | None:
        """Return the block in the heap that a slot refers to, or None if it is damaged."""
        offset, size = slot_words[2:4].tolist()
        return self._read_heap(offset, size, 24)

    def _read_heap(self, offset: int, size: int, min_size: int) -> np.ndarray | None:
        end = self.head.null_offset
        is_aligned = offset % 8 == size % 8 == 0
        if not is_aligned or size < min_size or not self.head.heap_offset <= offset <= end - size:
            return None
        return self._read_piece(offset, size)

    def _read_piece(self, offset: int, size: int) -> np.ndarray | None:
        """Return the words of a piece of the file, or None if its checksum does not match."""
        try:
            data = self.file.read([(offset, offset + size)])[0]
        except FILE_ERRORS as error:
            self._report_damage(f"it cannot be read ({error})")
            return None
        if len(data) != size:
            return None
        words = np.frombuffer(data, dtype=np.uint64)
        seed = (self.head.salt + offset) % (1 << 64)
        checksum = xxhash.xxh64_intdigest(memoryview(data)[_CHECKSUM_BYTES:], seed)
        return words if checksum == words[0] else None

    def _posting(self, reference: _Reference) -> np.ndarray:
        """Return the zones of a posting. If it is damaged, return all zones."""
        offset, size = reference
        words = self._read_heap(offset, size, 24)
        if words is not None:
            try:
                return decode_posting(words.tobytes(), len(self))
            except ValueError as error:
                self._report_damage(str(error))
        else:
            self._report_damage("a posting is damaged")
        return np.arange(len(self))

    def packed_pairs(
        self, slots: range, hash_bits: int, zone_bits: int, first_zone: int
    ) -> np.ndarray:
        """Return all pairs of some blocks as numbers, uint64, which may not be sorted.

        A number has the first bits of the hash, and after them the zone, counted from
        ``first_zone``. Raise `CorruptIndex` if a block is damaged.
        """
        packing = np.array([hash_bits, zone_bits, first_zone], dtype=np.int64)
        words, is_left_out = self._read_slots(np.arange(slots.start, slots.stop))
        parts = self._packed_parts(words, slots.start, is_left_out, packing)
        for slot in (np.flatnonzero(is_left_out) + slots.start).tolist():
            # The block is damaged, or lies in the heap.
            block = self._block(slot)
            is_left_out = np.zeros(1, dtype=bool)
            if block is not None:
                parts += self._packed_parts(block, slot, is_left_out, packing)
            if block is None or is_left_out[0]:
                raise self._corrupt_index("a block is damaged")
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _packed_parts(
        self, words: np.ndarray, first_slot: int, is_left_out: np.ndarray, packing: np.ndarray
    ) -> list[np.ndarray]:
        """Return the pairs of blocks of one size: those of entries, and those of each posting."""
        # There are at most this many entries: each takes one more bit, which says its bucket.
        packed = np.empty(words.size * _HASH_BITS // (self.shape.entry_bits + 1), dtype=np.uint64)
        # A posting takes two words.
        prefixes = np.empty(words.size // 2, dtype=np.uint64)
        references = np.empty((words.size // 2, 2), dtype=np.int64)
        num_pairs, num_postings = self._kernels.pack_slots(
            words,
            words.size // is_left_out.size,
            self._shape,
            first_slot,
            packing,
            is_left_out,
            packed,
            prefixes,
            references,
        )
        parts = [packed[:num_pairs]]
        for prefix, (offset, size) in zip(
            prefixes[:num_postings], references[:num_postings].tolist(), strict=True
        ):
            zones = self._posting((offset, size)) + packing[2]
            parts.append(prefix | zones.astype(np.uint64))
        return parts

    def verify(self) -> None:
        checksum = xxhash.xxh3_64()
        end = self.head.null_offset + self.head.null_bytes
        try:
            for start in range(0, end, _VERIFY_STEP_BYTES):
                checksum.update(self.file.read([(start, min(start + _VERIFY_STEP_BYTES, end))])[0])
        except FILE_ERRORS as error:
            raise self._corrupt_index(f"it cannot be read ({error})") from None
        if checksum.intdigest() != self.head.content:
            raise self._corrupt_index("its content is not what was written")

    def close(self) -> None:
        self._file.close()

    def _report_block(self) -> np.ndarray:
        """Report a damaged block, and return all zones."""
        self._report_damage("a block is damaged")
        return np.arange(len(self))

    def _report_damage(self, damage: str) -> None:
        if self._report is None:
            raise self._corrupt_index(damage)
        if not self._has_reported:
            self._has_reported = True
            self._report(self._corrupt_index(damage))

    def _corrupt_index(self, damage: str) -> CorruptIndex:
        return CorruptIndex(f"{self.path}: {damage}; build the index again")


class _SearchBuffers:
    """The arrays that a search kernel writes."""

    def __init__(self, capacity: int):
        self.state = np.zeros(4, dtype=np.int64)
        self.grow(capacity)

    def grow(self, capacity: int) -> None:
        self.keys = np.empty(capacity, dtype=np.int64)
        self.zones = np.empty(capacity, dtype=np.int64)
        self.posting_keys = np.empty(capacity, dtype=np.int64)
        self.postings = np.empty((capacity, 2), dtype=np.int64)
        self.outputs = self.keys, self.zones, self.posting_keys, self.postings


def _keys_of(batch: _SlotBatch, number: int) -> range:
    return range(int(batch.key_starts[number]), int(batch.key_stops[number]))


def _count_words(num_bits: int) -> int:
    return -(-num_bits // 64)


def _block_sizes(words: np.ndarray) -> tuple[int, int]:
    """Return the numbers of entries and of postings that a block claims."""
    sizes = int(words[1])
    return sizes & 0xFFFFFFFF, sizes >> 32


def _first_reference(words: np.ndarray, head: Head) -> int:
    """Return the first word of a block's references to postings.

    Raise `ValueError` if the block is too short.
    """
    num_entries, num_postings = _block_sizes(words)
    first = HEAD_WORDS + _count_words(num_entries + head.shape.num_buckets)
    first += _count_words(num_entries * head.shape.entry_bits)
    if first + 2 * num_postings > words.size:
        raise ValueError("a block is too short for its entries")
    return first


def _find_in_block(
    words: np.ndarray, hashed: int, head: Head
) -> tuple[np.ndarray, _Reference | None]:
    """Find a hash in a block without kernels. Return its zones, or the reference to its posting.

    Raise `ValueError` if the block contradicts itself.
    """
    shape = head.shape
    first_reference = _first_reference(words, head)
    num_entries, num_postings = _block_sizes(words)
    num_bits = num_entries + shape.num_buckets
    entries_at = HEAD_WORDS + _count_words(num_bits)
    bits = np.unpackbits(
        words[HEAD_WORDS:entries_at].view(np.uint8), count=num_bits, bitorder="little"
    )
    zeros = np.flatnonzero(bits == 0)
    prefix = hashed >> (_HASH_BITS - shape.hash_bits)
    remainder = prefix & ((1 << shape.remainder_bits) - 1)
    bucket = prefix >> shape.remainder_bits & (shape.num_buckets - 1)
    if zeros.size != shape.num_buckets:
        raise ValueError("a block does not have as many entries as it claims")
    first = int(zeros[bucket - 1]) + 1 - bucket if bucket else 0
    data = words[entries_at:first_reference].tobytes() + bytes(8)

    def entry(number: int) -> int:
        position = number * shape.entry_bits
        value = int.from_bytes(data[position >> 3 : (position >> 3) + 8], "little")
        return value >> (position & 7) & ((1 << shape.entry_bits) - 1)

    mark = shape.posting_mark
    zones, references = [], []
    bucket_entries = range(first, int(zeros[bucket]) - bucket)
    if len(bucket_entries) > _MAX_SCANNED_ENTRIES:
        limits = remainder << shape.zone_bits, (remainder + 1) << shape.zone_bits
        start, stop = (bisect_left(bucket_entries, limit, key=entry) for limit in limits)
        bucket_entries = bucket_entries[start:stop]
    for number in bucket_entries:
        value = entry(number)
        if value >> shape.zone_bits != remainder:
            continue
        if value & mark != mark:
            zones.append(value & mark)
            continue
        rank = _count_marks(words[entries_at:first_reference], number, shape)
        if rank >= num_postings:
            raise ValueError("a block has fewer postings than its entries name")
        offset, size = words[first_reference + 2 * rank :][:2].tolist()
        references.append((offset, size))
    is_ascending = all(zone < following for zone, following in itertools.pairwise(zones))
    has_too_many = len(references) > 1 or (references and zones)
    if not is_ascending or has_too_many or (zones and zones[-1] >= head.num_zones):
        raise ValueError("the zones of a hash do not ascend or do not exist")
    return np.array(zones, dtype=np.int64), references[0] if references else None


def _count_marks(words: np.ndarray, stop: int, shape: BlockShape) -> int:
    """Return how many of the first ``stop`` entries of a block are marks of postings."""
    positions = np.arange(stop, dtype=np.uint64) * np.uint64(shape.entry_bits)
    first_words = (positions >> np.uint64(6)).astype(np.int64)
    offsets = positions & np.uint64(63)
    values = words[first_words] >> offsets
    # Two shifts, because a shift by 64 bits is undefined.
    next_words = words[np.minimum(first_words + 1, words.size - 1)]
    values |= next_words << (np.uint64(63) - offsets) << np.uint64(1)
    mark = np.uint64(shape.posting_mark)
    return int(np.count_nonzero(values & mark == mark))


def decode_posting(piece: bytes, num_zones: int) -> np.ndarray:
    """Return the zones of a posting, int64, ascending. Raise `ValueError` if it is impossible.

    ``piece`` begins with the checksum, which was verified.
    """
    _, count = _POSTING_HEAD.unpack_from(piece)
    data = np.frombuffer(piece, dtype=np.uint8, offset=_POSTING_HEAD.size)
    if not 0 < count <= num_zones:
        raise ValueError(f"a posting claims {count:,} of {num_zones:,} zones")
    steps = _decode_numbers(data, count) + 1
    # A sum of forged numbers may overflow 64 bits.
    if steps.sum(dtype=float) > num_zones:
        raise ValueError("a posting has zones that do not exist")
    return np.cumsum(steps) - 1


def _decode_numbers(data: np.ndarray, count: int) -> np.ndarray:
    """Decode the first ``count`` LEB128 numbers, each below 2**35."""
    ends = np.flatnonzero(data < 128)[:count]
    if ends.size < count:
        raise ValueError("a posting has fewer zones than it claims")
    starts = np.concatenate(([0], ends[:-1] + 1))
    if (ends - starts > 4).any():
        raise ValueError("a posting has a number that is too large")
    used = data[: ends[-1] + 1].astype(np.int64)
    shifts = 7 * (np.arange(used.size) - np.repeat(starts, ends - starts + 1))
    return np.add.reduceat((used & 127) << shifts, starts)
