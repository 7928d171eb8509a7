"""Which pages hold some rows, and which rows of pages hold a value.

Source: Encodings.md (RLE, for definition levels) of the Parquet format.
"""

from __future__ import annotations

import numpy as np
from numba import int64, types, uint8, uint64

from zonebloom.sbbf.addresses import load_32
from zonebloom.sbbf.jit import inlined, kernel, readonly
from zonebloom.storage.parquet.header_kernels import (
    ADDRESS,
    AT,
    BASE,
    CHECKED,
    FIRST_ROW,
    LEVEL_BYTES,
    NUM_BYTES,
    NUM_ROWS,
    SIZE,
    START,
    STORED,
)
from zonebloom.storage.parquet.page_bytes import bits_at, run_at


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


@kernel(
    types.UniTuple(int64, 2)(
        readonly(int64), readonly(int64), readonly(int64, 2), readonly(int64), int64[:, ::1]
    )
)
def place_pages(starts, sizes, rows, numbers, pages):
    """Say of some pages where they lie and which rows they have; the bytes and rows of them all.

    They are read one after another. ``rows`` is as in `pages_with`.
    """
    num_bytes = num_rows = 0
    for i in range(numbers.shape[0]):
        page = numbers[i]
        pages[START, i], pages[NUM_BYTES, i], pages[AT, i] = starts[page], sizes[page], num_bytes
        pages[FIRST_ROW, i] = rows[0, page]
        pages[NUM_ROWS, i] = rows[1, page] - rows[0, page]
        num_bytes += sizes[page]
        num_rows += pages[NUM_ROWS, i]
    return num_bytes, num_rows


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
        readonly(uint8), int64[:, ::1], readonly(int64), readonly(int64, 2), uint8[::1], int64[::1]
    )
)
def read_levels(data, pages, bounds, columns, present, levels):
    """Which rows of pages hold a value, those of optional columns one after another; 0, or -1.

    Of each page, how many it stores and the position of the first: where every row of its column
    holds a value, rows and positions are the same. Levels that are among the other bytes of a
    page are left out of its address and size. Of each column, where its rows begin in
    ``present``, -1 where none is null. The other parameters are those of
    `header_kernels.open_pages`.
    """
    base = 0
    for column in range(bounds.shape[0] - 1):
        first, stop = bounds[column], bounds[column + 1]
        levels[column] = base
        nulls = 0
        for page in range(first, stop):
            num_rows = pages[NUM_ROWS, page]
            pages[STORED, page] = num_rows
            if not columns[column, 0]:
                continue
            if num_rows < 0 or num_rows > present.shape[0] - base:
                return -1
            if pages[LEVEL_BYTES, page] < 0:
                if pages[SIZE, page] < 4:
                    return -1
                at = np.uint64(pages[ADDRESS, page])
                num_bytes = np.int64(load_32(at))
                if num_bytes > pages[SIZE, page] - 4:
                    return -1
                at += np.uint64(4)
                pages[ADDRESS, page] += 4 + num_bytes
                pages[SIZE, page] -= 4 + num_bytes
            else:
                num_bytes = pages[LEVEL_BYTES, page]
                at = np.uint64(data.ctypes.data) + np.uint64(pages[CHECKED, page])
            of_page = present[base : base + num_rows]
            count = _read_levels(at, num_bytes, columns[column, 0], of_page)
            if count < 0:
                return -1
            pages[STORED, page] = count
            nulls += num_rows - count
            base += num_rows
        if not nulls:
            levels[column] = -1
        position = 0
        for page in range(first, stop):
            pages[BASE, page] = position if nulls else pages[FIRST_ROW, page]
            position += pages[STORED, page]
    return 0


@kernel(int64(uint64, int64, uint8[::1]))
def read_booleans(address, stop, values):
    """Booleans that are written as levels are; how many are true, or -1."""
    return _read_levels(address, stop, 1, values)


@kernel(int64(readonly(uint8), readonly(int64, 2), readonly(int64), int64, int64[::1]))
def rows_of_values(present, pages, positions, nulls, out):
    """Turn positions of stored values, ascending, into rows, with ``nulls`` those of none too.

    How many, or -1. Of the rows of the pages, one after another, ``present`` tells.
    """
    count = which = before = at = 0
    for page in range(pages.shape[1]):
        first_row, num_rows = pages[FIRST_ROW, page], pages[NUM_ROWS, page]
        if num_rows > present.shape[0] - at or num_rows > out.shape[0] - count:
            return -1
        for row in range(num_rows):
            if present[at]:
                if which < positions.shape[0] and positions[which] == before:
                    out[count] = first_row + row
                    count += 1
                    which += 1
                before += 1
            elif nulls:
                out[count] = first_row + row
                count += 1
            at += 1
    return count
