"""Kernels that index the entries of a large dictionary by their hashes, and find keys with that.

Source: Encodings.md (PLAIN) of the Parquet format.
"""

from __future__ import annotations

import numpy as np
from numba import int32, int64, types, uint8, uint32, uint64

from zonebloom.parquet.page_bytes import byte_at
from zonebloom.sbbf.addresses import load_32, load_64
from zonebloom.sbbf.jit import inlined, kernel, readonly
from zonebloom.sbbf.xxh64 import hash_memory

# Equal entries share their place in a table, so many of them would make each insertion slow.
_MAX_PROBES = 256
_LENGTH_BYTES = 4


@inlined
def _slot(hashed, table):
    hashed ^= hashed >> np.uint64(32)
    mixed = (hashed * np.uint64(0x9E3779B185EBCA87)) >> np.uint64(32)
    return np.int64(mixed & np.uint64(table.shape[0] - 1))


@inlined
def _entry(address, starts, width, number):
    """Return the address and the length of an entry. ``starts`` is empty if it has a width."""
    if width:
        return address + np.uint64(number * width), width
    length = np.int64(starts[number + 1]) - np.int64(starts[number]) - _LENGTH_BYTES
    return address + np.uint64(starts[number]), length


@inlined
def _number(address, width):
    return load_64(address) if width == 8 else load_32(address)


@kernel(int64(uint64, readonly(uint32), int64, int64, types.boolean, int32[::1]))
def index_entries(address, starts, width, size, are_numbers, table):
    """Fill a hash table, which is zeros, with the numbers of entries, counted from 1.

    ``are_numbers`` says whether the hash of an entry is its number of 4 or 8 bytes. Return -1 if
    too many entries share a place.
    """
    for number in range(size):
        at, length = _entry(address, starts, width, number)
        hashed = (
            _number(at, width) if are_numbers else hash_memory(at, np.uint64(length), np.uint64(0))
        )
        slot = _slot(hashed, table)
        num_probes = 0
        while table[slot]:
            slot = (slot + 1) & (table.shape[0] - 1)
            num_probes += 1
            if num_probes > _MAX_PROBES:
                return -1
        table[slot] = number + 1
    return 0


@kernel(int64(uint64, int64, readonly(uint64), readonly(int32), uint8[::1]))
def find_number_entries(address, width, keys, table, hits):
    """Set ``hits`` to 1 for each entry that is a key. Return how many are."""
    count = 0
    for key in keys:
        slot = _slot(key, table)
        while table[slot]:
            number = table[slot] - 1
            if _number(address + np.uint64(number * width), width) == key:
                hits[number] = 1
                count += 1
            slot = (slot + 1) & (table.shape[0] - 1)
    return count


@kernel(
    int64(
        uint64,
        readonly(uint32),
        int64,
        readonly(uint8),
        readonly(int64),
        readonly(int32),
        uint8[::1],
    )
)
def find_text_entries(address, starts, width, keys, key_starts, table, hits):
    """Set ``hits`` to 1 for each entry that is a key. Return how many are.

    Key i is the bytes ``key_starts[i]`` to ``key_starts[i + 1]`` of ``keys``.
    """
    count = 0
    for i in range(key_starts.shape[0] - 1):
        key = np.uint64(keys.ctypes.data) + np.uint64(key_starts[i])
        size = key_starts[i + 1] - key_starts[i]
        slot = _slot(hash_memory(key, np.uint64(size), np.uint64(0)), table)
        while table[slot]:
            number = np.int64(table[slot] - 1)
            at, length = _entry(address, starts, width, number)
            j = 0
            if length == size:
                while j < length and byte_at(at, j) == byte_at(key, j):
                    j += 1
                if j == length:
                    hits[number] = 1
                    count += 1
            slot = (slot + 1) & (table.shape[0] - 1)
    return count
