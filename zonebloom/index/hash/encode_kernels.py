"""Kernels that measure and encode blocks from sorted pairs of a hash and a zone.

A pair is one number: the kept bits of the hash, then the bits of the zone. Pairs are sorted and
distinct. A group is 2**shift zones of one run. Arrays that describe the groups are those of
`zonebloom.index.hash.file.Groups`.
"""

from __future__ import annotations

import numpy as np
from numba import int64, uint8, uint32, uint64, void

from zonebloom.index.hash.file import BITMAP, GAPS, HEAD_WORDS, OVERFLOW, RUNS
from zonebloom.sbbf.addresses import address_of
from zonebloom.sbbf.jit import kernel, linked, readonly
from zonebloom.sbbf.xxh64 import hash_memory

# Columns of the cells of `measure_pairs`.
ENTRIES, POSTINGS, POSTING_BYTES = range(3)
# Positions in its sums.
NUM_PAIRS, LARGEST = range(2)

_U0, _U1, _U6, _U32, _U63, _U64 = map(np.uint64, (0, 1, 6, 32, 63, 64))
_OVERFLOW_HEAD = np.uint64(OVERFLOW)
# A checksum, then the encoding and the number of groups.
_POSTING_HEAD_BYTES = 16
_REFERENCE_BITS = 128


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
def _next_key(pairs, start, stop, zone_bits, shift, first_zones, first_groups, groups):
    """Collect the groups of the hash at ``start``. Return the end of its pairs, and the groups."""
    zone_mask = (_U1 << zone_bits) - _U1
    prefix = pairs[start] >> zone_bits
    count = np.int64(0)
    i = start
    while i < stop and pairs[i] >> zone_bits == prefix:
        zone = np.int64(pairs[i] & zone_mask)
        group = np.uint32(_group_of(zone, shift, first_zones, first_groups))
        if count == 0 or groups[count - 1] != group:
            groups[count] = group
            count += 1
        i += 1
    return i, count


@linked
def _bytes_if_posting(groups, count, entry_bits):
    """Return the bytes of a posting of the groups, or 0 if entries are smaller."""
    # The smallest posting is 24 bytes; skip measuring if entries are not larger.
    if count * entry_bits <= 8 * (_POSTING_HEAD_BYTES + 8) + _REFERENCE_BITS + entry_bits:
        return np.int64(0)
    size = _posting_bytes(groups, count)
    if count * entry_bits <= 8 * size + _REFERENCE_BITS + entry_bits:
        return np.int64(0)
    return size


@kernel(
    void(
        readonly(uint64),
        int64,
        int64,
        readonly(int64),
        readonly(int64),
        int64,
        int64,
        int64,
        uint32[::1],
        int64[:, ::1],
        int64[::1],
    )
)
def measure_pairs(
    pairs,
    zone_bits,
    shift,
    first_zones,
    first_groups,
    entry_bits,
    cell_shift,
    first_cell,
    groups,
    cells,
    sums,
):
    """Add up what pairs need.

    Parameters
    ----------
    pairs : uint64 array
    zone_bits : int
    shift, first_zones, first_groups
        The groups of zones.
    entry_bits : int
        The width of an entry, about. A hash gets a posting where that is smaller than entries.
    cell_shift, first_cell : int
        The row of ``cells`` of a pair is ``(pair >> cell_shift) - first_cell``.
    groups : uint32 array
        Scratch memory with room for all groups.
    cells : int64 array, shape (n, 3)
        Receives entries, postings and bytes of postings.
    sums : int64 array, shape (2,)
        Receives the pairs of a hash and a group, and the largest number of groups of a hash.
    """
    width, cell_width = np.uint64(zone_bits), np.uint64(cell_shift)
    start, stop = np.int64(0), pairs.shape[0]
    while start < stop:
        cell = np.int64(pairs[start] >> cell_width) - first_cell
        start, count = _next_key(
            pairs, start, stop, width, shift, first_zones, first_groups, groups
        )
        size = _bytes_if_posting(groups, count, entry_bits)
        cells[cell, ENTRIES] += 1 if size else count
        cells[cell, POSTINGS] += 1 if size else 0
        cells[cell, POSTING_BYTES] += size
        sums[NUM_PAIRS] += count
        sums[LARGEST] = max(sums[LARGEST], count)


@kernel(void(readonly(uint64), int64, readonly(uint32), int64[::1]))
def count_distinct(pairs, zone_bits, groups, counts):
    """Add the number of distinct hashes of each group. ``groups`` has the group of each zone."""
    width = np.uint64(zone_bits)
    zone_mask = (_U1 << width) - _U1
    last_prefix, last_group = _U0, np.uint32(0)
    for i in range(pairs.shape[0]):
        prefix, group = pairs[i] >> width, groups[pairs[i] & zone_mask]
        if i == 0 or prefix != last_prefix or group != last_group:
            counts[group] += 1
            last_prefix, last_group = prefix, group


@linked
def _words_of(num_bits):
    return (num_bits + 63) >> 6


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
        int64,
        int64,
        readonly(int64),
        readonly(int64),
        int64,
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
    pairs,
    zone_bits,
    shift,
    first_zones,
    first_groups,
    entry_bits,
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

    Parameters
    ----------
    pairs, zone_bits, shift, first_zones, first_groups, entry_bits, groups
        The same as for `measure_pairs`.
    shape : int64 array
        The fields of `BlockShape`.
    first_block : int
    sizes : int64 array, shape (blocks, 3)
        Words, entries and postings of each block.
    slots_offset, heap_offset : int
        The offsets of the first bytes of ``slots`` and ``heap`` in the file.
    salt : int
    slots : uint64 array of zeros
    heap : uint8 array of zeros
    """
    width = np.uint64(zone_bits)
    bucket_bits = np.uint64(shape[1])
    remainder_bits, group_bits = np.uint64(shape[2]), np.uint64(shape[3])
    entry_width = remainder_bits + group_bits
    block_shift = bucket_bits + remainder_bits
    bucket_mask, remainder_mask = (_U1 << bucket_bits) - _U1, (_U1 << remainder_bits) - _U1
    mark = (_U1 << group_bits) - _U1
    num_blocks = sizes.shape[0]
    slot_words = slots.shape[0] // num_blocks
    heap_words = heap.view(np.uint64)
    heap_at = np.int64(0)
    start, stop = np.int64(0), pairs.shape[0]
    for row in range(num_blocks):
        num_words, num_entries, num_postings = sizes[row, 0], sizes[row, 1], sizes[row, 2]
        slot = row * slot_words
        words, block, block_bytes = slots, slot, slot_words * 8
        block_offset = slots_offset + slot * 8
        if num_words > slot_words:
            slots[slot + 1] = _OVERFLOW_HEAD
            slots[slot + 2] = np.uint64(heap_offset + heap_at)
            slots[slot + 3] = np.uint64(num_words * 8)
            seed = salt + np.uint64(block_offset)
            slots[slot] = _seal(address_of(slots) + np.uint64(slot * 8), block_bytes, seed)
            words, block, block_bytes = heap_words, heap_at >> 3, num_words * 8
            block_offset = heap_offset + heap_at
            heap_at += block_bytes
        words[block + 1] = np.uint64(num_entries) | (np.uint64(num_postings) << _U32)
        counts = block + HEAD_WORDS
        entries = counts + _words_of(num_entries + (np.int64(1) << np.int64(bucket_bits)))
        references = entries + _words_of(num_entries * np.int64(entry_width))
        entry = _U0
        while start < stop:
            prefix = pairs[start] >> width
            if np.int64(prefix >> block_shift) != first_block + row:
                break
            bucket = (prefix >> remainder_bits) & bucket_mask
            remainder = prefix & remainder_mask
            start, count = _next_key(
                pairs, start, stop, width, shift, first_zones, first_groups, groups
            )
            size = _bytes_if_posting(groups, count, entry_bits)
            if size:
                _put_bits(words, counts, bucket + entry, _U1, _U1)
                value = (remainder << group_bits) | mark
                _put_bits(words, entries, entry * entry_width, value, entry_width)
                entry += _U1
                words[references] = np.uint64(heap_offset + heap_at)
                words[references + 1] = np.uint64(size)
                references += 2
                offset = heap_offset + heap_at
                heap_at += _write_posting(groups, count, heap, heap_at, offset, salt)
            else:
                for i in range(count):
                    _put_bits(words, counts, bucket + entry, _U1, _U1)
                    value = (remainder << group_bits) | np.uint64(groups[i])
                    _put_bits(words, entries, entry * entry_width, value, entry_width)
                    entry += _U1
        address = address_of(words) + np.uint64(block * 8)
        words[block] = _seal(address, block_bytes, salt + np.uint64(block_offset))
