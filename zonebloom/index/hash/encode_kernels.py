"""Kernels that measure and encode blocks from sorted pairs of a hash and a zone.

Pairs are sorted by hash, then zone, and distinct. A group is 2**shift zones of one run. Arrays that
describe the groups are those of `zonebloom.index.hash.file.Groups`.
"""

from __future__ import annotations

import numpy as np
from numba import int64, uint8, uint32, uint64, void

from zonebloom.index.hash.file import BITMAP, GAPS, HEAD_WORDS, OVERFLOW, RUNS
from zonebloom.sbbf.jit import kernel, linked, readonly
from zonebloom.sbbf.slices import address_of
from zonebloom.sbbf.xxh64 import hash_memory

# Positions in the sums of `measure_pairs`.
NUM_ENTRIES, NUM_POSTINGS, POSTING_BYTES, NUM_PAIRS, LARGEST = range(5)

_U0, _U1, _U3, _U6, _U7, _U32, _U63, _U64, _U127, _U128 = map(
    np.uint64, (0, 1, 3, 6, 7, 32, 63, 64, 127, 128)
)
_OVERFLOW_HEAD = np.uint64(OVERFLOW)
# A checksum, then the encoding and the number of groups.
_POSTING_HEAD_BYTES = 16
_POINTER_BITS = 128


@linked
def _group_of(zone, shift, first_zones, first_groups):
    if shift == 0:
        return zone
    low, high = np.int64(0), np.int64(first_zones.shape[0] - 1)
    while high - low > 1:
        middle = (low + high) >> 1
        if first_zones[middle] <= zone:
            low = middle
        else:
            high = middle
    return first_groups[low] + ((zone - first_zones[low]) >> shift)


@linked
def _varint_bytes(value):
    size = 1
    while value > 127:
        value >>= 7
        size += 1
    return size


@linked
def _round_up(size):
    return (size + 7) & ~np.int64(7)


@linked
def _posting_sizes(groups, count):
    """Return the bytes of the groups in each encoding, without the head."""
    first, last = np.int64(groups[0]), np.int64(groups[count - 1])
    bitmap = 8 + 8 * ((last - first + 64) >> 6)
    gaps = runs = _varint_bytes(first)
    length = np.int64(1)
    for i in range(1, count):
        gap = np.int64(groups[i]) - np.int64(groups[i - 1]) - 1
        size = _varint_bytes(gap)
        gaps += size
        if gap == 0:
            length += 1
        else:
            runs += _varint_bytes(length - 1) + size
            length = 1
    runs += _varint_bytes(length - 1)
    return bitmap, gaps, runs


@linked
def _posting_bytes(groups, count):
    bitmap, gaps, runs = _posting_sizes(groups, count)
    return _POSTING_HEAD_BYTES + _round_up(min(bitmap, gaps, runs))


@linked
def _next_key(hashes, zones, start, stop, shift, first_zones, first_groups, groups):
    """Collect the groups of the hash at ``start``. Return the end of its pairs, and the groups."""
    hashed = hashes[start]
    count = np.int64(0)
    i = start
    while i < stop and hashes[i] == hashed:
        group = np.uint32(_group_of(np.int64(zones[i]), shift, first_zones, first_groups))
        if count == 0 or groups[count - 1] != group:
            groups[count] = group
            count += 1
        i += 1
    return i, count


@linked
def _bytes_if_posting(groups, count, entry_bits):
    """Return the bytes of a posting of the groups, or 0 if entries are smaller."""
    # Even runs of groups need this much.
    if count * entry_bits <= 8 * (_POSTING_HEAD_BYTES + 8) + _POINTER_BITS + entry_bits:
        return np.int64(0)
    size = _posting_bytes(groups, count)
    if count * entry_bits <= 8 * size + _POINTER_BITS + entry_bits:
        return np.int64(0)
    return size


@kernel(
    void(
        readonly(uint64),
        readonly(uint32),
        int64,
        readonly(int64),
        readonly(int64),
        int64,
        uint32[::1],
        int64[::1],
    )
)
def measure_pairs(hashes, zones, shift, first_zones, first_groups, entry_bits, groups, sums):
    """Add up what the pairs need: entries, postings, bytes of postings, pairs of hash and group.

    The last of ``sums`` is the largest number of groups of one hash. ``groups`` is scratch memory
    with room for all groups.
    """
    start, stop = np.int64(0), hashes.shape[0]
    while start < stop:
        start, count = _next_key(
            hashes, zones, start, stop, shift, first_zones, first_groups, groups
        )
        size = _bytes_if_posting(groups, count, entry_bits)
        sums[NUM_ENTRIES] += 1 if size else count
        sums[NUM_POSTINGS] += 1 if size else 0
        sums[POSTING_BYTES] += size
        sums[NUM_PAIRS] += count
        sums[LARGEST] = max(sums[LARGEST], count)


@kernel(
    void(readonly(uint64), readonly(uint32), int64, readonly(int64), readonly(int64), int64[::1])
)
def count_distinct(hashes, zones, shift, first_zones, first_groups, counts):
    """Add the number of distinct hashes of each group."""
    last_hash, last_group = _U0, np.int64(-1)
    for i in range(hashes.shape[0]):
        group = _group_of(np.int64(zones[i]), shift, first_zones, first_groups)
        if hashes[i] != last_hash or group != last_group:
            counts[group] += 1
            last_hash, last_group = hashes[i], group


@linked
def _words_of(num_bits):
    return (num_bits + 63) >> 6


@linked
def _block_words(num_entries, num_postings, bucket_bits, entry_bits):
    counts = _words_of(num_entries + (np.int64(1) << bucket_bits))
    return HEAD_WORDS + counts + _words_of(num_entries * entry_bits) + 2 * num_postings


@linked
def _block_of(hashed, block_bits):
    return np.int64(hashed >> (_U64 - block_bits)) if block_bits else np.int64(0)


@kernel(
    void(
        readonly(uint64),
        readonly(uint32),
        int64,
        readonly(int64),
        readonly(int64),
        readonly(int64),
        int64,
        uint32[::1],
        int64[:, ::1],
    )
)
def measure_blocks(
    hashes, zones, shift, first_zones, first_groups, shape, first_block, groups, sizes
):
    """Compute the words, entries, postings and bytes of postings of each block; a row of ``sizes``.

    ``shape`` is the fields of `BlockShape`. The hashes are those of the blocks from ``first_block``
    on.
    """
    block_bits, bucket_bits, entry_bits = np.uint64(shape[0]), shape[1], shape[2] + shape[3]
    start, stop = np.int64(0), hashes.shape[0]
    while start < stop:
        row = _block_of(hashes[start], block_bits) - first_block
        start, count = _next_key(
            hashes, zones, start, stop, shift, first_zones, first_groups, groups
        )
        size = _bytes_if_posting(groups, count, entry_bits)
        sizes[row, 1] += 1 if size else count
        sizes[row, 2] += 1 if size else 0
        sizes[row, 3] += size
    for row in range(sizes.shape[0]):
        sizes[row, 0] = _block_words(sizes[row, 1], sizes[row, 2], bucket_bits, entry_bits)


@linked
def _put_bits(words, first_word, position, value, width):
    word = first_word + np.int64(position >> _U6)
    offset = position & _U63
    words[word] |= value << offset
    if offset + width > _U64:
        words[word + 1] |= value >> (_U64 - offset)


@linked
def _put_varint(data, at, value):
    while value > 127:
        data[at] = np.uint8((value & 127) | 128)
        value >>= 7
        at += 1
    data[at] = np.uint8(value)
    return at + 1


@linked
def _seal(address, num_bytes, seed):
    """Return the checksum of a piece that begins at an address."""
    return hash_memory(address + np.uint64(8), np.uint64(num_bytes - 8), seed)


@linked
def _write_posting(groups, count, heap, at, offset, salt):
    """Write a posting to the heap at a byte. Return its size. ``offset`` is that in the file."""
    bitmap, gaps, runs = _posting_sizes(groups, count)
    smallest = min(bitmap, gaps, runs)
    size = _POSTING_HEAD_BYTES + _round_up(smallest)
    words = heap.view(np.uint64)
    word = at >> 3
    data = at + _POSTING_HEAD_BYTES
    first = np.int64(groups[0])
    if bitmap == smallest:
        encoding = BITMAP
        words[word + 2] = np.uint64(first)
        for i in range(count):
            bit = np.uint64(np.int64(groups[i]) - first)
            words[word + 3 + np.int64(bit >> _U6)] |= _U1 << (bit & _U63)
    elif gaps == smallest:
        encoding = GAPS
        data = _put_varint(heap, data, first)
        for i in range(1, count):
            data = _put_varint(heap, data, np.int64(groups[i]) - np.int64(groups[i - 1]) - 1)
    else:
        encoding = RUNS
        data = _put_varint(heap, data, first)
        length = np.int64(1)
        for i in range(1, count):
            gap = np.int64(groups[i]) - np.int64(groups[i - 1]) - 1
            if gap == 0:
                length += 1
            else:
                data = _put_varint(heap, data, length - 1)
                data = _put_varint(heap, data, gap)
                length = 1
        _put_varint(heap, data, length - 1)
    words[word + 1] = np.uint64(encoding) | (np.uint64(count) << _U32)
    words[word] = _seal(address_of(heap) + np.uint64(at), size, salt + np.uint64(offset))
    return size


@kernel(
    void(
        readonly(uint64),
        readonly(uint32),
        int64,
        readonly(int64),
        readonly(int64),
        readonly(int64),
        int64,
        readonly(int64, 2),
        int64,
        uint64,
        int64,
        uint32[::1],
        uint64[::1],
        uint8[::1],
    )
)
def encode_blocks(
    hashes,
    zones,
    shift,
    first_zones,
    first_groups,
    shape,
    first_block,
    sizes,
    slots_offset,
    salt,
    heap_offset,
    groups,
    slots,
    heap,
):
    """Write blocks into slots, and their postings and the blocks that do not fit into the heap.

    ``sizes`` come from `measure_blocks`. ``slots`` and ``heap`` are zeros, and the offsets are
    those of their first byte in the file.
    """
    block_bits, bucket_bits = np.uint64(shape[0]), np.uint64(shape[1])
    remainder_bits, zone_bits = np.uint64(shape[2]), np.uint64(shape[3])
    entry_bits = remainder_bits + zone_bits
    mark = (_U1 << zone_bits) - _U1
    num_blocks = sizes.shape[0]
    slot_words = slots.shape[0] // num_blocks
    heap_words = heap.view(np.uint64)
    heap_at = np.int64(0)
    start, stop = np.int64(0), hashes.shape[0]
    for row in range(num_blocks):
        num_words, num_entries, num_postings = sizes[row, 0], sizes[row, 1], sizes[row, 2]
        slot = row * slot_words
        is_inside = num_words <= slot_words
        words, block, block_bytes = slots, slot, slot_words * 8
        block_offset = slots_offset + slot * 8
        if not is_inside:
            slots[slot + 1] = _OVERFLOW_HEAD
            slots[slot + 2] = np.uint64(heap_offset + heap_at)
            slots[slot + 3] = np.uint64(num_words * 8)
            slots[slot] = _seal(
                address_of(slots) + np.uint64(slot * 8),
                slot_words * 8,
                salt + np.uint64(slots_offset + slot * 8),
            )
            words, block, block_bytes = heap_words, heap_at >> 3, num_words * 8
            block_offset = heap_offset + heap_at
            heap_at += num_words * 8
        words[block + 1] = np.uint64(num_entries) | (np.uint64(num_postings) << _U32)
        counts = block + HEAD_WORDS
        entries = counts + _words_of(num_entries + (np.int64(1) << np.int64(bucket_bits)))
        pointers = entries + _words_of(num_entries * np.int64(entry_bits))
        entry = _U0
        while start < stop and _block_of(hashes[start], block_bits) == first_block + row:
            # A hash of 64 kept bits has no more bits below, so shift step by step.
            low = hashes[start] << block_bits
            bucket = (low >> _U1) >> (_U63 - bucket_bits)
            remainder = (low << bucket_bits) >> (_U64 - remainder_bits)
            start, count = _next_key(
                hashes, zones, start, stop, shift, first_zones, first_groups, groups
            )
            size = _bytes_if_posting(groups, count, np.int64(entry_bits))
            if size:
                _put_bits(words, counts, bucket + entry, _U1, _U1)
                value = (remainder << zone_bits) | mark
                _put_bits(words, entries, entry * entry_bits, value, entry_bits)
                entry += _U1
                words[pointers] = np.uint64(heap_offset + heap_at)
                words[pointers + 1] = np.uint64(size)
                pointers += 2
                heap_at += _write_posting(groups, count, heap, heap_at, heap_offset + heap_at, salt)
            else:
                for i in range(count):
                    _put_bits(words, counts, bucket + entry, _U1, _U1)
                    value = (remainder << zone_bits) | np.uint64(groups[i])
                    _put_bits(words, entries, entry * entry_bits, value, entry_bits)
                    entry += _U1
        address = address_of(words) + np.uint64(block * 8)
        words[block] = _seal(address, block_bytes, salt + np.uint64(block_offset))
