"""Kernels that group rows by the numbers of their keys."""

from __future__ import annotations

from numba import boolean, int32, int64, uint64, void

from zonebloom.base.row_ranges import OFFSET_BITS
from zonebloom.sbbf.jit import kernel, linked, readonly


@kernel(void(readonly(int32), readonly(int64), int64[::1], int64[::1]))
def group_rows(numbers, places, ends, out):
    """Write the places of rows to ``out``, grouped by key number, without rows of negative numbers.

    The order within a number is kept. ``ends`` must be zeros, with one item more than there are
    numbers. It receives the end of each number's rows in ``out``.
    """
    for i in range(numbers.shape[0]):
        if numbers[i] >= 0:
            ends[numbers[i] + 1] += 1
    for number in range(1, ends.shape[0]):
        ends[number] += ends[number - 1]
    # Each item of ``ends`` is now where the number's rows start. The loop moves it to their end.
    for i in range(numbers.shape[0]):
        if numbers[i] >= 0:
            out[ends[numbers[i]]] = places[i]
            ends[numbers[i]] += 1


@linked
def _bounds(number, ends):
    if number < 0:
        return 0, 0
    return (ends[number - 1] if number else 0), ends[number]


@kernel(int64(readonly(int64), readonly(int64)))
def count_rows(numbers, ends):
    """Return the number of rows of all keys, counting one for each key without rows."""
    count = 0
    for i in range(numbers.shape[0]):
        first, end = _bounds(numbers[i], ends)
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
def rows_by_key(numbers, ends, places, ids, key_out, files_out, ids_out, rows_out, is_held):
    """Write the rows of each key, as `group_rows` grouped them: file, fragment id, row number.

    A key without rows gets one row with ``is_held`` false.
    """
    row = 0
    for i in range(numbers.shape[0]):
        first, end = _bounds(numbers[i], ends)
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
