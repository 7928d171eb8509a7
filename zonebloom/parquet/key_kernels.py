"""Kernels that find keys among the values of pages: one, or several in a hash table or a filter.

A bitmap of the keys in a hash table is tested first. It excludes most values that are not keys, and
it usually fits the processor's cache. ``seed`` is that of the table, from `table_slots`. The bitmap
has none, because it only saves time. Pages are those of `page_table`.
"""

from __future__ import annotations

import numpy as np
from numba import int32, int64, uint8, uint32, uint64, void

from zonebloom.parquet.page_bytes import byte_at, copy_bytes, text_at
from zonebloom.parquet.page_table import STORED_PAGES
from zonebloom.sbbf import blocks
from zonebloom.sbbf.addresses import load_32, load_64
from zonebloom.sbbf.jit import kernel, linked, readonly
from zonebloom.sbbf.table_slots import slot_of
from zonebloom.sbbf.xxh64 import hash_memory, hash_width_4, hash_width_8

# This many values are compared with a single key together. The bitmap is tested for as many before
# the hash table is read, without branches, so that the processor overlaps the loads.
_GROUP_SIZE = 256
# Values are hashed in groups before they are checked by a filter, for the same reason.
_HASHED_TOGETHER = 512


@linked
def _mixed(hashed):
    # Floats may differ only in their high bits, and integers only in their low ones.
    hashed ^= hashed >> np.uint64(32)
    return (hashed * np.uint64(0x9E3779B185EBCA87)) >> np.uint64(32)


@linked
def _next_slot(slot, table):
    return (slot + 1) & (table.shape[0] - 1)


@linked
def _set_bit(hashed, bitmap):
    bit = _mixed(hashed) & np.uint64(64 * bitmap.shape[0] - 1)
    bitmap[bit >> np.uint64(6)] |= np.uint64(1) << (bit & np.uint64(63))


@linked
def _has_bit(hashed, bitmap):
    bit = _mixed(hashed) & np.uint64(64 * bitmap.shape[0] - 1)
    return np.int64(bitmap[bit >> np.uint64(6)] >> (bit & np.uint64(63)) & np.uint64(1))


@linked
def _sample(address, length):
    """Return a number made of both ends of a string and its length. Few strings share it."""
    if length < 8:
        sample = np.uint64(0)
        for j in range(length):
            sample |= byte_at(address, j) << np.uint64(8 * j)
    else:
        last = load_64(address + np.uint64(length - 8))
        sample = load_64(address) ^ ((last << np.uint64(29)) | (last >> np.uint64(35)))
    return sample + np.uint64(length)


@linked
def _is_equal(one, other, length):
    j = 0
    while j + 8 <= length and load_64(one + np.uint64(j)) == load_64(other + np.uint64(j)):
        j += 8
    if j + 8 <= length:
        return False
    while j < length and byte_at(one, j) == byte_at(other, j):
        j += 1
    return j == length


@linked
def _slot_of_text(start, length, address, starts, table, seed):
    """Return the slot of a string in the table, or the empty slot where it belongs."""
    slot = slot_of(hash_memory(start, np.uint64(length), seed), seed, table)
    while table[slot]:
        number = table[slot] - 1
        key_start = starts[number]
        if length == starts[number + 1] - key_start and _is_equal(
            start, address + np.uint64(key_start), length
        ):
            break
        slot = _next_slot(slot, table)
    return slot


@kernel(int64(readonly(uint64), int32[::1], uint64[::1], uint64))
def fill_number_table(keys, table, bitmap, seed):
    """Fill a hash table and a bitmap with keys.

    A slot of the table holds the position in ``keys`` of the first occurrence of a distinct key,
    plus 1. An empty slot holds 0. ``table`` and ``bitmap`` must be zeros, and have a power of two
    items. Return the number of distinct keys, or -1 if the table has no room.
    """
    if keys.shape[0] >= table.shape[0]:
        return -1
    num_distinct = 0
    for i in range(keys.shape[0]):
        slot = slot_of(keys[i], seed, table)
        while table[slot] and keys[table[slot] - 1] != keys[i]:
            slot = _next_slot(slot, table)
        if not table[slot]:
            table[slot] = np.int32(i + 1)
            _set_bit(keys[i], bitmap)
            num_distinct += 1
    return num_distinct


@kernel(int64(readonly(uint8), readonly(int64), int32[::1], uint64[::1], uint64))
def fill_text_table(keys, starts, table, bitmap, seed):
    """Fill a hash table and a bitmap of texts. See `fill_number_table`.

    Key i is the bytes ``starts[i]`` to ``starts[i + 1]`` of ``keys``.
    """
    address = np.uint64(keys.ctypes.data)
    if starts.shape[0] > table.shape[0]:
        return -1
    num_distinct = 0
    for i in range(starts.shape[0] - 1):
        start, length = address + np.uint64(starts[i]), starts[i + 1] - starts[i]
        slot = _slot_of_text(start, length, address, starts, table, seed)
        if not table[slot]:
            table[slot] = np.int32(i + 1)
            _set_bit(_sample(start, length), bitmap)
            num_distinct += 1
    return num_distinct


@linked
def _number_at(address, i, width):
    offset = address + np.uint64(i * width)
    return load_64(offset) if width == 8 else load_32(offset)


@linked
def _find_one_number(address, count, width, key, first_position, positions, hits):
    """Write the positions of the values that equal one key. Return the new number of hits."""
    for first in range(0, count, _GROUP_SIZE):
        stop = min(first + _GROUP_SIZE, count)
        # The processor counts the hits of a group with vector instructions. Few groups have one.
        num_equal = 0
        if width == 8:
            for i in range(first, stop):
                num_equal += np.int64(load_64(address + np.uint64(i * 8)) == key)
        else:
            for i in range(first, stop):
                num_equal += np.int64(load_32(address + np.uint64(i * 4)) == key)
        if num_equal:
            for i in range(first, stop):
                positions[hits] = first_position + i
                hits += np.int64(_number_at(address, i, width) == key)
    return hits


@kernel(
    int64(
        STORED_PAGES,
        int64,
        readonly(uint64),
        readonly(int32),
        readonly(uint64),
        uint64,
        int64[::1],
    )
)
def find_numbers(pages, width, keys, table, bitmap, seed, positions):
    """Write the positions of the values that are keys. Return their number, or -1.

    The values have 4 or 8 bytes. A single key needs no table.
    """
    candidates = np.empty(_GROUP_SIZE, dtype=np.int64)
    hits = 0
    if width not in (4, 8):
        return -1
    for page in range(pages.shape[0]):
        address, count = np.uint64(pages[page].address), pages[page].num_stored
        first_position = pages[page].first_position
        if count < 0 or count * width > pages[page].size or hits + count > positions.shape[0]:
            return -1
        if keys.shape[0] == 1:
            hits = _find_one_number(address, count, width, keys[0], first_position, positions, hits)
            continue
        for first in range(0, count, _GROUP_SIZE):
            stop = min(first + _GROUP_SIZE, count)
            num_candidates = 0
            if width == 8:
                for i in range(first, stop):
                    candidates[num_candidates] = i
                    num_candidates += _has_bit(load_64(address + np.uint64(i * 8)), bitmap)
            else:
                for i in range(first, stop):
                    candidates[num_candidates] = i
                    num_candidates += _has_bit(load_32(address + np.uint64(i * 4)), bitmap)
            for candidate in range(num_candidates):
                i = candidates[candidate]
                value = _number_at(address, i, width)
                slot = slot_of(value, seed, table)
                while table[slot]:
                    if keys[table[slot] - 1] == value:
                        positions[hits] = first_position + i
                        hits += 1
                        break
                    slot = _next_slot(slot, table)
    return hits


@kernel(
    int64(
        STORED_PAGES,
        int64,
        readonly(uint8),
        readonly(int64),
        readonly(int32),
        readonly(uint64),
        uint64,
        int64[::1],
    )
)
def find_texts(pages, width, keys, key_starts, table, bitmap, seed, positions):
    """Write the positions of the values that are keys. Return their number, or -1.

    Values are ``width`` bytes long, or follow a length of 4 bytes if ``width`` is 0. A single key
    needs no table.
    """
    num_keys = key_starts.shape[0] - 1
    key_address = np.uint64(keys.ctypes.data)
    hits = 0
    for page in range(pages.shape[0]):
        address, size = np.uint64(pages[page].address), pages[page].size
        count, first_position = pages[page].num_stored, pages[page].first_position
        if hits + count > positions.shape[0]:
            return -1
        offset = 0
        for i in range(count):
            offset, length = text_at(address, offset, size, width)
            if length < 0:
                return -1
            start = address + np.uint64(offset)
            offset += length
            if num_keys == 1:
                positions[hits] = first_position + i
                is_equal = length == key_starts[1] - key_starts[0] and _is_equal(
                    start, key_address + np.uint64(key_starts[0]), length
                )
                hits += np.int64(is_equal)
            elif _has_bit(_sample(start, length), bitmap):
                slot = _slot_of_text(start, length, key_address, key_starts, table, seed)
                positions[hits] = first_position + i
                hits += np.int64(table[slot] != 0)
    return hits


@kernel(
    void(readonly(uint64), readonly(uint64), readonly(int32), readonly(uint64), uint64, int32[::1])
)
def key_numbers(values, keys, table, bitmap, seed, numbers):
    """Write the number of the key that each value equals, counted from 0, or -2 for no key."""
    for i in range(values.shape[0]):
        number = np.int32(-2)
        if _has_bit(values[i], bitmap):
            slot = slot_of(values[i], seed, table)
            while table[slot] and keys[table[slot] - 1] != values[i]:
                slot = _next_slot(slot, table)
            if table[slot]:
                number = table[slot] - np.int32(1)
        numbers[i] = number


@kernel(
    void(
        uint64,
        readonly(int64),
        readonly(uint8),
        readonly(int64),
        readonly(int32),
        readonly(uint64),
        uint64,
        int32[::1],
    )
)
def text_key_numbers(address, starts, keys, key_starts, table, bitmap, seed, numbers):
    """Write the number of the key that each text equals, counted from 0, or -2 for no key.

    Text i is the bytes ``starts[i]`` to ``starts[i + 1]`` from an address.
    """
    key_address = np.uint64(keys.ctypes.data)
    for i in range(starts.shape[0] - 1):
        start, length = address + np.uint64(starts[i]), starts[i + 1] - starts[i]
        number = np.int32(-2)
        if _has_bit(_sample(start, length), bitmap):
            slot = _slot_of_text(start, length, key_address, key_starts, table, seed)
            if table[slot]:
                number = table[slot] - np.int32(1)
        numbers[i] = number


@kernel(int64(STORED_PAGES, int64, readonly(uint32), int64[::1]))
def find_hashed(pages, width, words, positions):
    """Write the positions of the values that a filter may hold. Return their number, or -1."""
    values = np.empty(_HASHED_TOGETHER, dtype=np.uint64)
    halves = values.view(np.uint32)
    values_address = np.uint64(values.ctypes.data)
    hashes = np.empty(_HASHED_TOGETHER, dtype=np.uint64)
    are_hits = np.empty(_HASHED_TOGETHER, dtype=np.bool_)
    hits = 0
    for page in range(pages.shape[0]):
        address, size = np.uint64(pages[page].address), pages[page].size
        count, first_position = pages[page].num_stored, pages[page].first_position
        if count < 0 or count * width > size or hits + count > positions.shape[0]:
            return -1
        offset = 0
        for first in range(0, count, _HASHED_TOGETHER):
            num = min(count - first, _HASHED_TOGETHER)
            if width in (4, 8):
                copy_bytes(values_address, address + np.uint64(first * width), num * width)
            if width == 8:
                hash_width_8(values[:num], hashes[:num])
            elif width == 4:
                hash_width_4(halves[:num], hashes[:num])
            else:
                for i in range(num):
                    offset, length = text_at(address, offset, size, width)
                    if length < 0:
                        return -1
                    start = address + np.uint64(offset)
                    hashes[i] = hash_memory(start, np.uint64(length), np.uint64(0))
                    offset += length
            blocks.check(words, hashes[:num], are_hits)
            for i in range(num):
                positions[hits] = first_position + first + i
                hits += np.int64(are_hits[i])
    return hits
