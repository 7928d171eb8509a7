"""Kernels that map rows to pages, decompress pages, and map stored values to rows.

Source: Encodings.md (RLE, for definition levels) of the Parquet format.
"""

from __future__ import annotations

import numpy as np
from numba import int64, types, uint8, uint64

from zonebloom.parquet.decompression_kernels import read_bodies
from zonebloom.parquet.header_kernels import (
    BODY_ADDRESS,
    BODY_SIZE,
    CHECKED_START,
    FILE_START,
    FIRST_POSITION,
    FIRST_ROW,
    LEVEL_BYTES,
    MAX_LEVEL,
    NUM_BYTES,
    NUM_ROWS,
    NUM_STORED,
    PAGE_FIELDS,
    READ_START,
    UNWANTED_ROWS,
)
from zonebloom.parquet.page_bytes import bits_at, run_at
from zonebloom.sbbf.addresses import load_32
from zonebloom.sbbf.jit import inlined, kernel, readonly


@kernel(
    types.Tuple((int64[:, ::1], int64[::1], int64, int64))(
        readonly(int64),
        readonly(int64),
        readonly(int64, 2),
        readonly(int64),
        readonly(int64),
        readonly(int64),
    )
)
def choose_pages(starts, sizes, rows, bounds, range_starts, range_stops):
    """Return a table of the pages of each column that hold rows of some ranges, in order.

    Page i lies at ``starts[i]`` of the file, has ``sizes[i]`` bytes, and holds the rows
    ``rows[0, i]`` to ``rows[1, i]``. The pages of column i are ``bounds[i]`` to ``bounds[i + 1]``.
    The table has the places and rows of the pages, which are read one after another. Then follow
    the bounds of the columns in the table, and the total numbers of bytes and rows.
    """
    numbers, wanted_stops = np.empty((2, starts.shape[0]), dtype=np.int64)
    table_bounds = np.zeros(bounds.shape[0], dtype=np.int64)
    count = num_bytes = num_rows = 0
    for column in range(bounds.shape[0] - 1):
        # The first range that ends after the start of a page, and the first that begins after it.
        which = following = 0
        for page in range(bounds[column], bounds[column + 1]):
            while which < range_starts.shape[0] and range_stops[which] <= rows[0, page]:
                which += 1
            if which == range_starts.shape[0]:
                break
            while following < range_starts.shape[0] and range_starts[following] < rows[1, page]:
                following += 1
            # pyarrow sometimes writes pages without rows.
            if rows[0, page] < rows[1, page] and which < following:
                numbers[count] = page
                wanted_stops[count] = range_stops[following - 1]
                count += 1
        table_bounds[column + 1] = count
    pages = np.empty((PAGE_FIELDS, count), dtype=np.int64)
    for i in range(count):
        page = numbers[i]
        pages[FILE_START, i], pages[NUM_BYTES, i], pages[READ_START, i] = (
            starts[page],
            sizes[page],
            num_bytes,
        )
        pages[FIRST_ROW, i] = rows[0, page]
        pages[NUM_ROWS, i] = rows[1, page] - rows[0, page]
        pages[UNWANTED_ROWS, i] = max(rows[1, page] - wanted_stops[i], 0)
        num_bytes += sizes[page]
        num_rows += pages[NUM_ROWS, i]
    return pages, table_bounds, num_bytes, num_rows


@kernel(int64(readonly(int64), readonly(int64), int64[::1]))
def rows_within(starts, stops, rows):
    """Move the rows that lie in some ranges to the front of ``rows``. Return their number.

    Rows and ranges are ascending.
    """
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
def _read_levels(address, stop, max_level, present):
    """Set ``present`` for each row that holds a value: its level is ``max_level``.

    Return the number of these rows, or -1.
    """
    width = 0
    while max_level >> width:
        width += 1
    if width > 8:
        return -1
    offset = 0
    num_read = 0
    num_present = 0
    while num_read < present.shape[0]:
        run, value, begin, offset = run_at(
            address, offset, stop, width, present.shape[0] - num_read
        )
        if run < 0 or value > max_level:
            return -1
        if value < 0:
            for i in range(run):
                level = np.int64(bits_at(address, begin * 8 + i * width, width, stop))
                if level > max_level:
                    return -1
                present[num_read + i] = level == max_level
                num_present += np.int64(level == max_level)
        else:
            present[num_read : num_read + run] = value == max_level
            num_present += run * np.int64(value == max_level)
        num_read += run
    return num_present


@kernel(
    int64(
        readonly(uint8),
        uint8[::1],
        int64[:, ::1],
        readonly(int64),
        readonly(int64, 2),
        uint8[::1],
        int64[::1],
    )
)
def read_pages(data, bodies, pages, bounds, columns, present, levels):
    """Decompress the bodies of pages into ``bodies``, and read their definition levels.

    Return 0, or -1 if a body cannot be decompressed, or -2 if levels are damaged. ``present`` is
    set for each row that holds a value, for one optional column after another, but not for unwanted
    rows of a page with UNWANTED_ROWS. ``levels`` is set to the start of each column in ``present``,
    or -1 if it has no null. In each page, NUM_STORED and FIRST_POSITION are set. If a column has no
    null, positions and rows are the same. If the levels precede the values in a page body, its
    address and size are changed to exclude them. The other parameters are those of
    `header_kernels.open_pages`.
    """
    if read_bodies(data, bodies, pages, bounds, columns) < 0:
        return -1
    base = 0
    for column in range(bounds.shape[0] - 1):
        first, stop = bounds[column], bounds[column + 1]
        levels[column] = base
        nulls = 0
        for page in range(first, stop):
            num_rows = pages[NUM_ROWS, page]
            num_wanted = num_rows - pages[UNWANTED_ROWS, page]
            pages[NUM_STORED, page] = num_wanted
            if not columns[column, MAX_LEVEL]:
                continue
            if num_rows < 0 or num_rows > present.shape[0] - base:
                return -2
            if pages[LEVEL_BYTES, page] < 0:
                if pages[BODY_SIZE, page] < 4:
                    return -2
                address = np.uint64(pages[BODY_ADDRESS, page])
                num_bytes = np.int64(load_32(address))
                if num_bytes > pages[BODY_SIZE, page] - 4:
                    return -2
                address += np.uint64(4)
                pages[BODY_ADDRESS, page] += 4 + num_bytes
                pages[BODY_SIZE, page] -= 4 + num_bytes
            else:
                num_bytes = pages[LEVEL_BYTES, page]
                address = np.uint64(data.ctypes.data) + np.uint64(pages[CHECKED_START, page])
            page_present = present[base : base + num_rows]
            count = _read_levels(address, num_bytes, columns[column, MAX_LEVEL], page_present)
            if count < 0:
                return -2
            nulls += num_rows - count
            for i in range(num_wanted, num_rows):
                count -= np.int64(page_present[i])
                page_present[i] = 0
            pages[NUM_STORED, page] = count
            base += num_rows
        if not nulls:
            levels[column] = -1
        position = 0
        for page in range(first, stop):
            pages[FIRST_POSITION, page] = position if nulls else pages[FIRST_ROW, page]
            position += pages[NUM_STORED, page]
    return 0


@kernel(int64(uint64, int64, uint8[::1]))
def read_booleans(address, stop, values):
    """Decode booleans in RLE encoding. Return the number of true ones, or -1."""
    return _read_levels(address, stop, 1, values)


@kernel(int64(readonly(uint8), readonly(int64, 2), readonly(int64), int64, int64[::1]))
def rows_of_values(present, pages, positions, nulls, out):
    """Convert positions of stored values, ascending, to rows. With ``nulls``, add the null rows.

    Return the number of rows, or -1. ``present`` says for each row of the pages, one page after
    another, whether it holds a value.
    """
    count = next_position = num_values = i = 0
    for page in range(pages.shape[1]):
        first_row, num_rows = pages[FIRST_ROW, page], pages[NUM_ROWS, page]
        if num_rows > present.shape[0] - i or num_rows > out.shape[0] - count:
            return -1
        for row in range(num_rows):
            if present[i]:
                if next_position < positions.shape[0] and positions[next_position] == num_values:
                    out[count] = first_row + row
                    count += 1
                    next_position += 1
                num_values += 1
            elif nulls:
                out[count] = first_row + row
                count += 1
            i += 1
    return count
