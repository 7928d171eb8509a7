"""Kernels that find keys among the values of pages, in the form in which pages store them.

Pages may lie anywhere in memory. Each kernel gets for each page its address, its size, the count of
the values that it stores, and the position of the first one among all stored values. No byte of a
page is trusted: kernels return -1 if the bytes run out or contradict one another.

Source: Encodings.md of the Parquet format.
"""

from __future__ import annotations

import numpy as np
from numba import int64, uint8, uint64, void

from zonebloom.parquet.page_bytes import bits_at, byte_at, run_at, text_at
from zonebloom.sbbf.addresses import load_32, load_64
from zonebloom.sbbf.jit import inlined, kernel, readonly
from zonebloom.sbbf.xxh64 import hash_memory

# The number of values that are compared together with a single key.
_GROUP_SIZE = 256
# Types of the arguments that describe pages: addresses, sizes, counts and bases.
PAGE_TYPES = (readonly(int64), readonly(int64), readonly(int64), readonly(int64))


@inlined
def _mixed(hashed):
    # Floats may differ only in their high bits, and integers only in their low ones.
    hashed ^= hashed >> np.uint64(32)
    return (hashed * np.uint64(0x9E3779B185EBCA87)) >> np.uint64(32)


@inlined
def _slot(hashed, table):
    return np.int64(_mixed(hashed) & np.uint64(table.shape[0] - 1))


@inlined
def _bit(hashed, bitmap):
    return _mixed(hashed) & np.uint64(64 * bitmap.shape[0] - 1)


@inlined
def _may_be_in(hashed, bitmap):
    bit = _bit(hashed, bitmap)
    return bitmap[bit >> np.uint64(6)] >> (bit & np.uint64(63)) & np.uint64(1)


@inlined
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


@kernel(void(uint64, readonly(int64), uint64[::1]))
def sample_texts(address, starts, out):
    """Write a sample of each of some consecutive strings: `find_texts` compares samples first."""
    for i in range(out.shape[0]):
        out[i] = _sample(address + np.uint64(starts[i]), starts[i + 1] - starts[i])


@kernel(int64(readonly(uint64), readonly(uint64), int64[::1], uint64[::1]))
def fill_hash_table(hashes, samples, table, bitmap):
    """Fill a hash table with the numbers of hashes, counted from 1. Return -1 if it has no room.

    ``table`` and ``bitmap`` must be zeros. In ``bitmap``, the bit of each sample is set. It is a
    faster and coarser test, which excludes most values that are not keys.
    """
    if hashes.shape[0] >= table.shape[0]:
        return -1
    for i in range(hashes.shape[0]):
        slot = _slot(hashes[i], table)
        while table[slot]:
            slot = (slot + 1) & (table.shape[0] - 1)
        table[slot] = i + 1
        bit = _bit(samples[i], bitmap)
        bitmap[bit >> np.uint64(6)] |= np.uint64(1) << (bit & np.uint64(63))
    return 0


@inlined
def _number_at(address, i, width):
    offset = address + np.uint64(i * width)
    return load_64(offset) if width == 8 else load_32(offset)


@inlined
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


@kernel(int64(*PAGE_TYPES, int64, readonly(uint64), readonly(int64), readonly(uint64), int64[::1]))
def find_numbers(addresses, sizes, counts, first_positions, width, keys, table, bitmap, positions):
    """Write the positions of the values that are keys. Return their number, or -1.

    The values have 4 or 8 bytes.
    """
    hits = 0
    if width not in (4, 8):
        return -1
    for page in range(addresses.shape[0]):
        address, count = np.uint64(addresses[page]), counts[page]
        if count < 0 or count * width > sizes[page] or hits + count > positions.shape[0]:
            return -1
        if keys.shape[0] == 1:
            hits = _find_one_number(
                address, count, width, keys[0], first_positions[page], positions, hits
            )
            continue
        for i in range(count):
            value = _number_at(address, i, width)
            if not _may_be_in(value, bitmap):
                continue
            slot = _slot(value, table)
            while table[slot]:
                if keys[table[slot] - 1] == value:
                    positions[hits] = first_positions[page] + i
                    hits += 1
                    break
                slot = (slot + 1) & (table.shape[0] - 1)
    return hits


@inlined
def _is_equal(address, keys, key_start, length):
    j = 0
    while j < length and byte_at(address, j) == np.uint64(keys[key_start + j]):
        j += 1
    return j == length


@kernel(
    int64(
        *PAGE_TYPES,
        int64,
        readonly(uint8),
        readonly(int64),
        readonly(int64),
        readonly(uint64),
        int64[::1],
    )
)
def find_texts(
    addresses, sizes, counts, first_positions, width, keys, key_starts, table, bitmap, positions
):
    """Write the positions of the values that are keys. Return their number, or -1.

    Key i is the bytes ``key_starts[i]`` to ``key_starts[i + 1]`` of ``keys``. Values are ``width``
    bytes long, or follow a length of 4 bytes if ``width`` is 0.
    """
    hits = 0
    num_keys = key_starts.shape[0] - 1
    for page in range(addresses.shape[0]):
        address, size = np.uint64(addresses[page]), sizes[page]
        if hits + counts[page] > positions.shape[0]:
            return -1
        offset = 0
        for i in range(counts[page]):
            offset, length = text_at(address, offset, size, width)
            if length < 0:
                return -1
            start = address + np.uint64(offset)
            offset += length
            if num_keys == 1:
                if length == key_starts[1] and _is_equal(start, keys, 0, length):
                    positions[hits] = first_positions[page] + i
                    hits += 1
                continue
            if not _may_be_in(_sample(start, length), bitmap):
                continue
            hashed = hash_memory(start, np.uint64(length), np.uint64(0))
            slot = _slot(hashed, table)
            while table[slot]:
                number = table[slot] - 1
                key_start = key_starts[number]
                if length == key_starts[number + 1] - key_start and _is_equal(
                    start, keys, key_start, length
                ):
                    positions[hits] = first_positions[page] + i
                    hits += 1
                    break
                slot = (slot + 1) & (table.shape[0] - 1)
    return hits


@kernel(int64(*PAGE_TYPES, readonly(uint8), int64[::1]))
def find_indices(addresses, sizes, counts, first_positions, hits_of, positions):
    """Write the positions of the dictionary indices that are hits. Return their number, or -1.

    ``hits_of`` says for each entry of the dictionary whether it is a hit.
    """
    hits = 0
    for page in range(addresses.shape[0]):
        address, stop = np.uint64(addresses[page]), sizes[page]
        count, base = counts[page], first_positions[page]
        if count == 0:
            continue
        if stop < 1 or hits + count > positions.shape[0]:
            return -1
        width = np.int64(byte_at(address, 0))
        if width > 32:
            return -1
        offset = 1
        num_read = 0
        while num_read < count:
            run, index, begin, offset = run_at(address, offset, stop, width, count - num_read)
            if run < 0 or index >= hits_of.shape[0]:
                return -1
            if index < 0:
                for i in range(run):
                    index = np.int64(bits_at(address, begin * 8 + i * width, width, stop))
                    if index >= hits_of.shape[0]:
                        return -1
                    positions[hits] = base + num_read + i
                    hits += np.int64(hits_of[index])
            elif hits_of[index]:
                for i in range(run):
                    positions[hits + i] = base + num_read + i
                hits += run
            num_read += run
    return hits
