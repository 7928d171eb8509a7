"""Kernels that group rows by the codes of their keys."""

from __future__ import annotations

from numba import boolean, int32, int64, uint64, void

from zonebloom.base.row_ranges import OFFSET_BITS
from zonebloom.sbbf.jit import inlined, kernel, readonly


@kernel(void(readonly(int32), readonly(int64), int64[::1], int64[::1]))
def rows_by_code(codes, places, ends, out):
    """Write the places of rows to ``out``, grouped by code, without rows of negative codes.

    The order within a code is kept. ``ends`` must be zeros, with one item more than there are
    codes. It receives the end of each code's rows in ``out``.
    """
    for i in range(codes.shape[0]):
        if codes[i] >= 0:
            ends[codes[i] + 1] += 1
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
