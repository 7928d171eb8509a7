"""Kernels that measure and encode blocks from sorted pairs of a hash and a zone.

A pair is one number: the kept bits of the hash, then the bits of the zone. Pairs are sorted and
distinct.
"""

from __future__ import annotations

import numpy as np
from numba import int64, uint8, uint64, void

from zonebloom.index.hash.file import HEAD_WORDS, OVERFLOW
from zonebloom.sbbf.addresses import address_of
from zonebloom.sbbf.jit import kernel, linked, readonly
from zonebloom.sbbf.xxh64 import hash_memory

# Columns of the cells of `measure_pairs`.
ENTRIES, POSTINGS, POSTING_BYTES = range(3)

_U0, _U1, _U6, _U32, _U63, _U64 = map(np.uint64, (0, 1, 6, 32, 63, 64))
_OVERFLOW_HEAD = np.uint64(OVERFLOW)
# A checksum, then the number of zones.
_POSTING_HEAD_BYTES = 16
_REFERENCE_BITS = 128
_MIN_POSTING_BITS = 8 * (_POSTING_HEAD_BYTES + 8) + _REFERENCE_BITS


@linked
def _varint_bytes(value):
    size = 1
    while value > 127:
        value >>= 7
        size += 1
    return size


@linked
def _end_of_key(pairs, start, stop, zone_bits):
    """Return the position after the last pair of the hash at ``start``."""
    prefix = pairs[start] >> zone_bits
    end = start + 1
    while end < stop and pairs[end] >> zone_bits == prefix:
        end += 1
    return end


@linked
def _posting_bytes(pairs, start, end, zone_mask):
    size, next_zone = np.int64(0), np.int64(0)
    for i in range(start, end):
        zone = np.int64(pairs[i] & zone_mask)
        size += _varint_bytes(zone - next_zone)
        next_zone = zone + 1
    return _POSTING_HEAD_BYTES + ((size + 7) & ~np.int64(7))


@linked
def _bytes_if_posting(pairs, start, end, zone_mask, entry_bits):
    """Return the bytes of a posting of the zones of a hash, or 0 if entries are smaller."""
    size = _posting_bytes(pairs, start, end, zone_mask)
    is_smaller = 8 * size + _REFERENCE_BITS + entry_bits < (end - start) * entry_bits
    return size if is_smaller else np.int64(0)


@kernel(void(readonly(uint64), int64, int64, int64, int64, int64[:, ::1]))
def measure_pairs(pairs, zone_bits, entry_bits, cell_shift, first_cell, cells):
    """Add up what pairs need.

    Parameters
    ----------
    pairs : uint64 array
    zone_bits : int
    entry_bits : int
        The width of an entry, about. A hash gets a posting where that is smaller than entries.
    cell_shift, first_cell : int
        The row of ``cells`` of a pair is ``(pair >> cell_shift) - first_cell``.
    cells : int64 array, shape (n, 3)
        Receives entries, postings and bytes of postings.
    """
    width, cell_width = np.uint64(zone_bits), np.uint64(cell_shift)
    zone_mask = (_U1 << width) - _U1
    start, stop = np.int64(0), pairs.shape[0]
    while start < stop:
        cell = np.int64(pairs[start] >> cell_width) - first_cell
        end = _end_of_key(pairs, start, stop, width)
        size = np.int64(0)
        # The smallest posting has three words, so most keys need no look at their zones.
        if (end - start) * entry_bits > _MIN_POSTING_BITS + entry_bits:
            size = _bytes_if_posting(pairs, start, end, zone_mask, entry_bits)
        if size:
            cells[cell, ENTRIES] += 1
            cells[cell, POSTINGS] += 1
            cells[cell, POSTING_BYTES] += size
        else:
            cells[cell, ENTRIES] += end - start
        start = end


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
def _write_posting(pairs, start, end, zone_mask, size, heap, at, seed):
    """Write a posting of ``size`` bytes to the heap at a byte."""
    data, next_zone = at + _POSTING_HEAD_BYTES, np.int64(0)
    for i in range(start, end):
        zone = np.int64(pairs[i] & zone_mask)
        data = _put_varint(heap, data, zone - next_zone)
        next_zone = zone + 1
    words, word = heap.view(np.uint64), at >> 3
    words[word + 1] = np.uint64(end - start)
    words[word] = _seal(address_of(heap) + np.uint64(at), size, seed)


@kernel(
    void(
        readonly(uint64),
        int64,
        readonly(int64),
        int64,
        readonly(int64, 2),
        int64,
        uint64,
        int64,
        uint64[::1],
        uint8[::1],
    )
)
def encode_blocks(
    pairs,
    entry_bits,
    shape,
    first_block,
    sizes,
    slots_offset,
    salt,
    heap_offset,
    slots,
    heap,
):
    """Write blocks into slots, and their postings and the blocks that do not fit into the heap.

    Parameters
    ----------
    pairs, entry_bits
        The same as for `measure_pairs`.
    shape : int64 array
        The fields of `BlockShape`. A zone has as many bits in a pair as in an entry.
    first_block : int
    sizes : int64 array, shape (blocks, 3)
        Words, entries and postings of each block.
    slots_offset, heap_offset : int
        The offsets of the first bytes of ``slots`` and ``heap`` in the file.
    salt : int
    slots : uint64 array of zeros
    heap : uint8 array of zeros
    """
    bucket_bits = np.uint64(shape[1])
    remainder_bits, width = np.uint64(shape[2]), np.uint64(shape[3])
    entry_width = remainder_bits + width
    block_shift = bucket_bits + entry_width
    bucket_mask, entry_mask = (_U1 << bucket_bits) - _U1, (_U1 << entry_width) - _U1
    # This zone marks a posting, too.
    zone_mask = (_U1 << width) - _U1
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
            if np.int64(pairs[start] >> block_shift) != first_block + row:
                break
            bucket = (pairs[start] >> entry_width) & bucket_mask
            end = _end_of_key(pairs, start, stop, width)
            size = np.int64(0)
            if (end - start) * entry_bits > _MIN_POSTING_BITS + entry_bits:
                size = _bytes_if_posting(pairs, start, end, zone_mask, entry_bits)
            if size:
                _put_bits(words, counts, bucket + entry, _U1, _U1)
                value = (pairs[start] | zone_mask) & entry_mask
                _put_bits(words, entries, entry * entry_width, value, entry_width)
                entry += _U1
                words[references] = np.uint64(heap_offset + heap_at)
                words[references + 1] = np.uint64(size)
                references += 2
                seed = salt + np.uint64(heap_offset + heap_at)
                _write_posting(pairs, start, end, zone_mask, size, heap, heap_at, seed)
                heap_at += size
            else:
                for i in range(start, end):
                    _put_bits(words, counts, bucket + entry, _U1, _U1)
                    value = pairs[i] & entry_mask
                    _put_bits(words, entries, entry * entry_width, value, entry_width)
                    entry += _U1
            start = end
        address = address_of(words) + np.uint64(block * 8)
        words[block] = _seal(address, block_bytes, salt + np.uint64(block_offset))
