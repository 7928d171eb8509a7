"""Kernels that map rows to pages, decompress pages, and map stored values to rows.

Source: Encodings.md (RLE, for definition levels) of the Parquet format.
"""

from __future__ import annotations

import numpy as np
from numba import int64, types, uint8, uint64

from zonebloom.parquet.decompression_kernels import read_bodies
from zonebloom.parquet.header_kernels import (
    IS_BOOLEAN,
    MAX_LEVEL,
    NUMBER,
    PLAIN,
    PRESENT,
    STARTS,
    VALUE_ENCODING,
    VALUE_WIDTH,
    VALUES,
)
from zonebloom.parquet.page_bytes import bits_at, byte_at, copy_bytes, run_at
from zonebloom.parquet.page_table import PAGE, PAGES, STORED_PAGES
from zonebloom.sbbf.addresses import load_32, load_64
from zonebloom.sbbf.jit import kernel, linked, readonly

_LENGTH_BYTES = 4
# Ranges of a decoded page with fewer rows between them are taken together.
_MERGED_ROWS = 64


@kernel(int64(readonly(int64, 2), readonly(int64), readonly(int64), readonly(int64), int64[:, ::1]))
def find_pages_of_ranges(rows, bounds, range_starts, range_stops, out):
    """Write the numbers of the pages that hold rows of some ranges. Return how many these are.

    See `choose_pages`. The second row of ``out`` receives the end of the last range that touches
    each page.
    """
    count = 0
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
                out[0, count], out[1, count] = page, range_stops[following - 1]
                count += 1
    return count


@linked
def _add_decoded_rows(decoded, first_row, stop_row, range_starts, range_stops, which, pages, size):
    """Add the rows of the ranges from ``which`` on in a decoded page to the table of pages.

    Return the new size of the table, and the number of rows.
    """
    values, starts = np.uint64(decoded[VALUES]), np.uint64(decoded[STARTS])
    present, width = np.uint64(decoded[PRESENT]), decoded[VALUE_WIDTH]
    # The rows passed so far, and the values that they hold.
    row = position = num_rows = 0
    while which < range_starts.shape[0] and range_starts[which] < stop_row:
        first = max(range_starts[which], first_row) - first_row
        last = which
        which += 1
        while which < range_starts.shape[0] and (
            range_starts[which] < min(range_stops[last] + _MERGED_ROWS, stop_row)
        ):
            last = which
            which += 1
        stop = min(range_stops[last], stop_row) - first_row
        next_position = position
        if present:
            while row < first:
                position += np.int64(byte_at(present, row))
                row += 1
            next_position = position
            while row < stop:
                next_position += np.int64(byte_at(present, row))
                row += 1
        else:
            position, next_position = first, stop
        begin, end = position * width, next_position * width
        if not width:
            begin = np.int64(load_32(starts + np.uint64(4 * position))) - 4
            end = np.int64(load_32(starts + np.uint64(4 * next_position))) - 4
        page = pages[size]
        page.is_decoded, page.num_bytes, page.read_start, page.file_start = 1, 0, 0, 0
        page.checksum = page.decompressed_size = -1
        page.first_row, page.num_rows, page.unwanted_rows = first_row + first, stop - first, 0
        page.first_slot, page.num_slots = first_row + first, stop - first
        page.encoding, page.num_stored = decoded[VALUE_ENCODING], next_position - position
        page.address, page.size = np.int64(values) + begin, end - begin
        page.present = np.int64(present) + first if present else 0
        position = next_position
        num_rows += stop - first
        size += 1
    return size, num_rows


@kernel(
    types.Tuple((PAGES, int64[::1], int64, int64))(
        readonly(int64),
        readonly(int64),
        readonly(int64, 2),
        readonly(int64),
        readonly(int64),
        readonly(int64),
        readonly(int64, 2),
    )
)
def choose_pages(starts, sizes, rows, bounds, range_starts, range_stops, decoded):
    """Return a table of the pages of each column that hold rows of some ranges, in order.

    Page i lies at ``starts[i]`` of the file, has ``sizes[i]`` bytes, and holds the rows
    ``rows[0, i]`` to ``rows[1, i]``. The pages of column i are ``bounds[i]`` to ``bounds[i + 1]``.
    The table has the places and rows of the pages, which are read one after another. Then follow
    the bounds of the columns in the table, and the total numbers of bytes and rows.

    ``decoded`` describes pages in memory, ordered by their numbers. In their places, the table has
    the wanted rows of each range, or of near ones together.
    """
    found = np.empty((2, starts.shape[0]), dtype=np.int64)
    count = find_pages_of_ranges(rows, bounds, range_starts, range_stops, found)
    # A range may begin in one page and end in another one.
    capacity = count
    if decoded.shape[0]:
        capacity += (bounds.shape[0] - 1) * range_starts.shape[0]
    pages = np.empty(capacity, dtype=PAGE)
    table_bounds = np.zeros(bounds.shape[0], dtype=np.int64)
    size = num_bytes = num_rows = column = next_decoded = which = 0
    for i in range(count):
        page, wanted_stop = found[0, i], found[1, i]
        first_row, stop_row = rows[0, page], rows[1, page]
        while page >= bounds[column + 1]:
            column += 1
            table_bounds[column] = size
            which = 0
        if next_decoded < decoded.shape[0] and decoded[next_decoded, NUMBER] == page:
            while range_stops[which] <= first_row:
                which += 1
            part = decoded[next_decoded]
            size, num_added = _add_decoded_rows(
                part, first_row, stop_row, range_starts, range_stops, which, pages, size
            )
            num_rows += num_added
            next_decoded += 1
            continue
        pages[size].file_start, pages[size].num_bytes = starts[page], sizes[page]
        pages[size].read_start, pages[size].is_decoded = num_bytes, 0
        pages[size].first_row, pages[size].num_rows = first_row, stop_row - first_row
        pages[size].unwanted_rows = max(stop_row - wanted_stop, 0)
        num_bytes += sizes[page]
        num_rows += stop_row - first_row
        size += 1
    table_bounds[column + 1 :] = size
    return pages[:size], table_bounds, num_bytes, num_rows


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


@kernel(int64(uint64, int64, int64, uint8[::1]))
def decode_levels(address, stop, max_level, out):
    """Decode a level for each item of ``out``. Return 0, or -1."""
    width = 0
    while max_level >> width:
        width += 1
    if width > 8:
        return -1
    offset = num_read = 0
    while num_read < out.shape[0]:
        run, value, begin, offset = run_at(address, offset, stop, width, out.shape[0] - num_read)
        if run < 0 or value > max_level:
            return -1
        if value < 0:
            # Eight levels have ``width`` bytes, so one load has all of them.
            mask = np.uint64((1 << width) - 1)
            highest = np.uint64(0)
            i = 0
            while i + 8 <= run and stop - begin >= 8:
                word = load_64(address + np.uint64(begin))
                for j in range(8):
                    level = word >> np.uint64(j * width) & mask
                    highest = max(highest, level)
                    out[num_read + i + j] = np.uint8(level)
                i += 8
                begin += width
            for j in range(run - i):
                level = bits_at(address, begin * 8 + j * width, width, stop)
                highest = max(highest, level)
                out[num_read + i + j] = np.uint8(level)
            if np.int64(highest) > max_level:
                return -1
        else:
            out[num_read : num_read + run] = np.uint8(value)
        num_read += run
    return 0


@linked
def strip_levels(page):
    """Return the address and size of levels at the start of a body, which is cut after them.

    The size is -1 if they do not fit.
    """
    address = np.uint64(page.address)
    num_bytes = np.int64(-1)
    if page.size >= _LENGTH_BYTES:
        num_bytes = np.int64(load_32(address))
        if num_bytes > page.size - _LENGTH_BYTES:
            num_bytes = np.int64(-1)
        else:
            page.address += _LENGTH_BYTES + num_bytes
            page.size -= _LENGTH_BYTES + num_bytes
    return address + np.uint64(_LENGTH_BYTES), num_bytes


@kernel(int64(PAGES, uint8[::1]))
def unpack_booleans(pages, out):
    """Write the booleans of pages as bytes, which become their bodies. Return 0, or -1."""
    end = 0
    for i in range(pages.shape[0]):
        page = pages[i]
        if page.is_decoded:
            continue
        address, size, count = np.uint64(page.address), page.size, page.num_stored
        if count > out.shape[0] - end:
            return -1
        values = out[end : end + count]
        if page.encoding == PLAIN:
            if (count + 7) // 8 > size:
                return -1
            for j in range(count):
                values[j] = byte_at(address, j >> 3) >> np.uint64(j & 7) & np.uint64(1)
        else:
            address, size = strip_levels(page)
            if size < 0 or decode_levels(address, size, 1, values) < 0:
                return -1
        page.address, page.size, page.encoding = np.int64(values.ctypes.data), count, PLAIN
        end += count
    return 0


@kernel(int64(STORED_PAGES, readonly(int64), readonly(int64, 2)))
def level_bytes(pages, bounds, columns):
    """Return the bytes that `read_pages` needs for levels and booleans."""
    total = 0
    for column in range(bounds.shape[0] - 1):
        is_optional = np.int64(columns[column, MAX_LEVEL] > 0)
        for i in range(bounds[column], bounds[column + 1]):
            total += pages[i].num_rows * (is_optional + columns[column, IS_BOOLEAN])
    return total


@kernel(
    int64(
        readonly(uint8),
        uint64,
        PAGES,
        readonly(int64),
        readonly(int64, 2),
        uint8[::1],
        int64[::1],
    )
)
def read_pages(data, target, pages, bounds, columns, present, levels):
    """Decompress the bodies of pages, and read their definition levels.

    Return 0, or -1 if a body cannot be decompressed, -2 if levels are damaged, or -3 if booleans
    are. ``present`` has `level_bytes`. It is set for each row that holds a value, for one optional
    column after another, but not for unwanted rows of a page. After the levels of a column follow
    its booleans. ``levels`` is set to the start of each column in ``present``, or -1 if it has no
    null. In each page, all fields for values are set. If levels precede the values in its body,
    the address and size exclude them. The other parameters are those of
    `decompression_kernels.read_bodies`.
    """
    if read_bodies(data, target, pages, bounds, columns) < 0:
        return -1
    base = 0
    for column in range(bounds.shape[0] - 1):
        max_level = columns[column, MAX_LEVEL]
        levels[column] = base
        nulls = 0
        for i in range(bounds[column], bounds[column + 1]):
            page = pages[i]
            num_rows = page.num_rows
            page.first_slot, page.num_slots = page.first_row, num_rows
            num_wanted = num_rows - page.unwanted_rows
            if not page.is_decoded:
                page.num_stored = num_wanted
            if not max_level:
                continue
            if num_rows < 0 or num_rows > present.shape[0] - base:
                return -2
            page_present = present[base : base + num_rows]
            base += num_rows
            if page.is_decoded:
                page_present[:] = 1
                if page.present:
                    copy_bytes(
                        np.uint64(page_present.ctypes.data), np.uint64(page.present), num_rows
                    )
                nulls += num_rows - page.num_stored
                continue
            address = np.uint64(data.ctypes.data) + np.uint64(page.checked_start)
            num_bytes = page.level_bytes
            if num_bytes < 0:
                address, num_bytes = strip_levels(page)
            if num_bytes < 0 or decode_levels(address, num_bytes, max_level, page_present) < 0:
                return -2
            if max_level > 1:
                for row in range(num_rows):
                    page_present[row] = page_present[row] == max_level
            count = 0
            for row in range(num_rows):
                count += np.int64(page_present[row])
            nulls += num_rows - count
            for row in range(num_wanted, num_rows):
                count -= np.int64(page_present[row])
                page_present[row] = 0
            page.num_stored = count
        if not nulls:
            levels[column] = -1
        position = 0
        for i in range(bounds[column], bounds[column + 1]):
            pages[i].first_position = position if nulls else pages[i].first_slot
            position += pages[i].num_stored
        if columns[column, IS_BOOLEAN]:
            if unpack_booleans(pages[bounds[column] : bounds[column + 1]], present[base:]) < 0:
                return -3
            base += position
    return 0


@kernel(int64(readonly(uint8), STORED_PAGES, readonly(int64), int64, int64[::1]))
def rows_of_values(present, pages, positions, nulls, out):
    """Convert positions of stored values, ascending, to rows. With ``nulls``, add the null rows.

    Return the number of rows, or -1. ``present`` says for each row of the pages, one page after
    another, whether it holds a value.
    """
    count = next_position = num_values = i = 0
    for page in range(pages.shape[0]):
        first_row, num_rows = pages[page].first_slot, pages[page].num_slots
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
