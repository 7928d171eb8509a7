"""Which pages hold some rows, and which rows of pages hold a value.

Source: Encodings.md (RLE, for definition levels) of the Parquet format.
"""

from __future__ import annotations

import numpy as np
from numba import int64, uint8, uint64

from zonebloom.sbbf.jit import inlined, kernel, readonly
from zonebloom.sbbf.xxh64 import load_32
from zonebloom.storage.parquet.header_kernels import CHECKED, LEVEL_BYTES
from zonebloom.storage.parquet.page_bytes import bits_at, run_at

# Types of which rows hold a value, and of where the rows of pages begin and how many they are.
_PRESENT = (readonly(uint8), readonly(int64), readonly(int64))


@kernel(
    int64(
        readonly(int64, 2),
        readonly(int64),
        readonly(int64),
        readonly(int64),
        int64[::1],
        int64[::1],
    )
)
def pages_with(rows, bounds, starts, stops, out, out_bounds):
    """Numbers of the pages of each column that hold a row of some ranges, ascending; how many.

    Page i holds the rows ``rows[0, i]`` to ``rows[1, i]``. ``bounds`` and ``out_bounds`` say where
    the pages of each column begin, and end.
    """
    count = 0
    out_bounds[0] = 0
    for column in range(bounds.shape[0] - 1):
        which = 0
        for page in range(bounds[column], bounds[column + 1]):
            while which < starts.shape[0] and stops[which] <= rows[0, page]:
                which += 1
            if which == starts.shape[0]:
                break
            # pyarrow writes pages without rows at times.
            if rows[0, page] < rows[1, page] and starts[which] < rows[1, page]:
                out[count] = page
                count += 1
        out_bounds[column + 1] = count
    return count


@kernel(int64(readonly(int64), readonly(int64), int64[::1]))
def rows_within(starts, stops, rows):
    """Move the rows, ascending, that lie in some ranges to the front; how many."""
    count = 0
    which = 0
    for i in range(rows.shape[0]):
        while which < starts.shape[0] and stops[which] <= rows[i]:
            which += 1
        if which == starts.shape[0]:
            break
        if starts[which] <= rows[i]:
            rows[count] = rows[i]
            count += 1
    return count


@inlined
def _read_levels(address, stop, most, present):
    """Which values of a page are there, by their levels up to ``most``: how many, or -1."""
    width = 0
    while most >> width:
        width += 1
    if width > 8:
        return -1
    at = 0
    done = 0
    total = 0
    while done < present.shape[0]:
        count, value, begin, at = run_at(address, at, stop, width, present.shape[0] - done)
        if count < 0 or value > most:
            return -1
        if value < 0:
            for i in range(count):
                level = np.int64(bits_at(address, begin * 8 + i * width, width, stop))
                if level > most:
                    return -1
                present[done + i] = level == most
                total += np.int64(level == most)
        else:
            present[done : done + count] = value == most
            total += count * np.int64(value == most)
        done += count
    return total


@kernel(
    int64(
        uint64[::1],
        int64[::1],
        uint64,
        readonly(int64, 2),
        readonly(int64),
        readonly(int64),
        readonly(int64, 2),
        uint8[::1],
        int64[::1],
        int64[::1],
    )
)
def read_levels(addresses, sizes, data, pages, num_rows, bounds, columns, present, stored, nulls):
    """Which rows of pages hold a value, those of optional columns one after another; 0, or -1.

    Of each page, how many are ``stored``; of each column, how many rows have none. Levels that
    are among the other bytes of a page are left out of its address and size. ``data`` is the
    address of what `open_pages` was given, and ``bounds`` and ``columns`` are as there.
    """
    base = 0
    for column in range(bounds.shape[0] - 1):
        nulls[column] = 0
        for page in range(bounds[column], bounds[column + 1]):
            stored[page] = num_rows[page]
            if columns[column, 0]:
                if num_rows[page] < 0 or num_rows[page] > present.shape[0] - base:
                    return -1
                if pages[page, LEVEL_BYTES] < 0:
                    if sizes[page] < 4:
                        return -1
                    stop = np.int64(load_32(addresses[page]))
                    if stop > sizes[page] - 4:
                        return -1
                    levels = addresses[page] + np.uint64(4)
                    addresses[page] += np.uint64(4 + stop)
                    sizes[page] -= 4 + stop
                else:
                    stop = pages[page, LEVEL_BYTES]
                    levels = data + np.uint64(pages[page, CHECKED])
                most = columns[column, 0]
                of_page = present[base : base + num_rows[page]]
                count = _read_levels(levels, stop, most, of_page)
                if count < 0:
                    return -1
                stored[page] = count
                nulls[column] += num_rows[page] - count
                base += num_rows[page]
    return 0


@kernel(int64(uint64, int64, uint8[::1]))
def read_booleans(address, stop, values):
    """Booleans that are written as levels are; how many are true, or -1."""
    return _read_levels(address, stop, 1, values)


@kernel(int64(*_PRESENT, readonly(int64), uint8[::1], int64[::1]))
def ranks(present, first_rows, num_rows, rows, valid, positions):
    """Of some rows, ascending, those that are there, and their positions among those; how many.

    Pages begin at ``first_rows``; of their rows, one page after another, ``present`` tells.
    """
    base = 0
    at = 0
    before = 0
    count = 0
    page = 0
    for i in range(rows.shape[0]):
        while page < first_rows.shape[0] and rows[i] >= first_rows[page] + num_rows[page]:
            base += num_rows[page]
            page += 1
        if page == first_rows.shape[0]:
            return -1
        row = base + rows[i] - first_rows[page]
        if row < at or row >= present.shape[0]:
            return -1
        while at < row:
            before += np.int64(present[at])
            at += 1
        valid[i] = present[at]
        if present[at]:
            positions[count] = before
            count += 1
    return count


@kernel(int64(*_PRESENT, readonly(int64), int64, int64[::1]))
def rows_of_values(present, first_rows, num_rows, positions, nulls, out):
    """Turn positions of stored values, ascending, into rows, with ``nulls`` those of none too.

    How many, or -1; the other parameters are those of `ranks`.
    """
    count = which = before = at = 0
    for page in range(first_rows.shape[0]):
        if num_rows[page] > present.shape[0] - at or num_rows[page] > out.shape[0] - count:
            return -1
        for row in range(num_rows[page]):
            if present[at]:
                if which < positions.shape[0] and positions[which] == before:
                    out[count] = first_rows[page] + row
                    count += 1
                    which += 1
                before += 1
            elif nulls:
                out[count] = first_rows[page] + row
                count += 1
            at += 1
    return count
