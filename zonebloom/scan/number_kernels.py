"""Kernels that match integer keys with rows through a hash table."""

from __future__ import annotations

import numpy as np
from numba import boolean, int32, int64, uint64, void

from zonebloom.base.row_ranges import OFFSET_BITS
from zonebloom.sbbf.jit import inlined, kernel, readonly
from zonebloom.sbbf.table_slots import slot_of


@inlined
def _find_slot(value, keys, table, seed):
    """Return the slot of a value, or the free slot for it. At least half of the slots are free."""
    slot = slot_of(np.uint64(value), seed, table)
    while table[slot] and keys[table[slot] - 1] != value:
        slot = (slot + 1) & (table.shape[0] - 1)
    return slot


@kernel(void(readonly(int64), int64[::1], uint64, int64[::1]))
def number_keys(keys, table, seed, out):
    """Write the position of the first equal key for each key.

    The table must be zeros. Its size is a power of two, at least twice the number of keys. The seed
    is one of `table_slots`.
    """
    for i in range(keys.shape[0]):
        slot = _find_slot(keys[i], keys, table, seed)
        if not table[slot]:
            table[slot] = i + 1
        out[i] = table[slot] - 1


@kernel(void(readonly(int64), readonly(int64), readonly(int64), uint64, int64[::1]))
def find_keys(values, keys, table, seed, out):
    """Write the position of the key that equals each value, or -1. `number_keys` made the table."""
    for i in range(values.shape[0]):
        out[i] = table[_find_slot(values[i], keys, table, seed)] - 1


@kernel(void(readonly(int64), readonly(int64), int64[::1], int64[::1]))
def rows_by_code(codes, places, ends, out):
    """Write the places of rows to ``out``, grouped by code, without rows of code -1.

    The order within a code is kept. ``ends`` must be zeros, with one item more than there are
    codes. It receives the end of each code's rows in ``out``.
    """
    for i in range(codes.shape[0]):
        ends[codes[i] + 1] += 1
    ends[0] = 0
    for code in range(1, ends.shape[0]):
        ends[code] += ends[code - 1]
    # Each item of ``ends`` is now where the code's rows start. The loop moves it to their end.
    for i in range(codes.shape[0]):
        if codes[i] >= 0:
            out[ends[codes[i]]] = places[i]
            ends[codes[i]] += 1


@inlined
def _bounds(code, ends):
    if code < 0:
        return 0, 0
    return (ends[code - 1] if code else 0), ends[code]


@kernel(int64(readonly(int64), readonly(int64)))
def count_rows(codes, ends):
    """Return the total number of rows of the codes, counting one for each code without rows."""
    count = 0
    for i in range(codes.shape[0]):
        first, end = _bounds(codes[i], ends)
        count += max(end - first, 1)
    return count


@kernel(
    void(
        readonly(int64),
        readonly(int64),
        readonly(int64),
        readonly(uint64),
        int64[::1],
        int32[::1],
        uint64[::1],
        int64[::1],
        boolean[::1],
    )
)
def rows_by_key(codes, ends, places, ids, key_out, files_out, ids_out, rows_out, is_held):
    """Write the rows of each code, as `rows_by_code` grouped them: file, fragment id, row number.

    A code without rows gets one row with ``is_held`` false.
    """
    row = 0
    for i in range(codes.shape[0]):
        first, end = _bounds(codes[i], ends)
        if first == end:
            key_out[row], files_out[row], ids_out[row], rows_out[row] = i, 0, 0, 0
            is_held[row] = False
            row += 1
        for place in places[first:end]:
            file = place >> OFFSET_BITS
            key_out[row], files_out[row], ids_out[row] = i, file, ids[file]
            rows_out[row] = place - (file << OFFSET_BITS)
            is_held[row] = True
            row += 1
