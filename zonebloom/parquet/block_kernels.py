"""Kernels that divide decoded pages into blocks of rows, and choose the blocks to search.

A block has the form of a page, so the kernels that search pages search blocks as well.

Source: Encodings.md (PLAIN, RLE) of the Parquet format.
"""

from __future__ import annotations

import numpy as np
from numba import int64, types, uint8, uint64

from zonebloom.parquet.header_kernels import (
    BODY_ADDRESS,
    BODY_SIZE,
    ENCODING,
    FIRST_POSITION,
    FIRST_ROW,
    NUM_ROWS,
    NUM_STORED,
    PAGE_FIELDS,
    UNWANTED_ROWS,
)
from zonebloom.parquet.page_bytes import bits_at, byte_at, copy_bytes, run_at, text_at
from zonebloom.sbbf.addresses import load_64
from zonebloom.sbbf.jit import inlined, kernel, readonly

BLOCK_ROWS = 1024
# Rows of the table of blocks of a page: the address and the size of the values of a block, and
# their number.
BLOCK_FIELDS = 3
_ADDRESS, _SIZE, _STORED = range(BLOCK_FIELDS)
# Positions of the description of a page that has blocks: the address of their table, which is 0 for
# other pages; their number; the address of a byte for each row that says whether it holds a value,
# or 0 if no row is null; the encoding; and the flags of `header_kernels.open_pages`.
TABLE, NUM_BLOCKS, PRESENT, BLOCK_ENCODING, FLAGS = range(5)
# The bytes before the packed indices of a block: their width, and the number of groups of eight.
_WIDTH_BYTES, _GROUPS_BYTES = 1, 2
_MAX_WIDTH = 32


@inlined
def _begin_indices(out, offset, width, count):
    """Write what precedes the indices of a block, and set them to zero. Return their offset."""
    num_groups = (count + 7) // 8
    out[offset] = width
    # The lowest bit says that the run is packed. A varint of two bytes may have a small value.
    out[offset + 1] = (num_groups << 1 | 1) & 0x7F | 0x80
    out[offset + 2] = num_groups >> 6
    begin = offset + _WIDTH_BYTES + _GROUPS_BYTES
    out[begin : begin + num_groups * width] = 0
    return begin


@inlined
def _put_bits(out, bit, value):
    """Set the bits of ``value`` from a bit of ``out`` on, which is zeros there."""
    offset = bit >> 3
    shifted = np.uint64(value) << np.uint64(bit & 7)
    while shifted:
        out[offset] |= np.uint8(shifted & np.uint64(0xFF))
        shifted >>= np.uint64(8)
        offset += 1


@inlined
def _split_indices(address, size, blocks, out):
    """Write the indices of each block as one packed run. Return the bytes written, or -1."""
    count = 0
    for block in range(blocks.shape[1]):
        count += blocks[_STORED, block]
    width = 0
    if count:
        if size < 1 or byte_at(address, 0) > np.uint64(_MAX_WIDTH):
            return -1
        width = np.int64(byte_at(address, 0))
    offset, num_read, run, num_used = 1, 0, 0, 0
    value = begin = np.int64(0)
    end = 0
    for block in range(blocks.shape[1]):
        stored = blocks[_STORED, block]
        num_bytes = _WIDTH_BYTES + _GROUPS_BYTES + (stored + 7) // 8 * width
        if num_bytes > out.shape[0] - end:
            return -1
        blocks[_ADDRESS, block] = np.int64(out.ctypes.data) + end
        blocks[_SIZE, block] = num_bytes
        bit = 8 * _begin_indices(out, end, width, stored)
        for _ in range(stored):
            while num_used == run:
                run, value, begin, offset = run_at(address, offset, size, width, count - num_read)
                if run < 0:
                    return -1
                num_read += run
                num_used = 0
            index = value
            if value < 0:
                index = np.int64(bits_at(address, begin * 8 + num_used * width, width, size))
            _put_bits(out, bit, index)
            bit += width
            num_used += 1
        end += num_bytes
    return end


@kernel(
    int64(uint64, int64, readonly(uint8), int64, int64, types.boolean, int64[:, ::1], uint8[::1])
)
def cut_page(address, size, present, num_rows, width, are_indices, blocks, out):
    """Copy the values of a page to ``out``, and describe the blocks. Return the bytes written.

    Return -1 if the page does not have all values, or if there is no room. ``present`` says for
    each row whether it holds a value, and is empty if no row is null. ``width`` is the bytes of a
    value, 0 for strings.
    """
    for block in range(blocks.shape[1]):
        first = block * BLOCK_ROWS
        stop = min(first + BLOCK_ROWS, num_rows)
        blocks[_STORED, block] = stop - first
        if present.shape[0]:
            stored = 0
            for row in range(first, stop):
                stored += np.int64(present[row])
            blocks[_STORED, block] = stored
    if are_indices:
        return _split_indices(address, size, blocks, out)
    target = np.int64(out.ctypes.data)
    offset = 0
    for block in range(blocks.shape[1]):
        start = offset
        if width:
            offset += blocks[_STORED, block] * width
            if offset > size:
                return -1
        else:
            for _ in range(blocks[_STORED, block]):
                offset, length = text_at(address, offset, size, 0)
                if length < 0:
                    return -1
                offset += length
        blocks[_ADDRESS, block] = target + start
        blocks[_SIZE, block] = offset - start
    if offset > out.shape[0]:
        return -1
    copy_bytes(np.uint64(target), address, offset)
    return offset


@inlined
def _field(table, num_blocks, field, block):
    return np.int64(load_64(np.uint64(table + (field * num_blocks + block) * 8)))


@kernel(
    types.Tuple((int64[:, ::1], int64[::1], int64[::1], uint8[::1]))(
        readonly(int64, 2),
        readonly(int64),
        readonly(int64, 2),
        readonly(int64),
        readonly(int64),
        int64[::1],
    )
)
def choose_blocks(pages, bounds, blocks, range_starts, range_stops, column_flags):
    """Return a table of pages, with blocks that hold rows of some ranges in place of split pages.

    The pages of column i are ``bounds[i]`` to ``bounds[i + 1]``. ``blocks[i]`` describes the blocks
    of page i. The other results are the bounds, levels and present rows as `row_kernels.read_pages`
    describes them. Flags of split pages are added to ``column_flags``.
    """
    num_columns = bounds.shape[0] - 1
    most = 0
    for page in range(pages.shape[1]):
        most += max(blocks[page, NUM_BLOCKS], 1)
    # The page of each entry of the table, and its first row in that page.
    origins = np.empty((2, most), dtype=np.int64)
    chosen = np.empty((PAGE_FIELDS, most), dtype=np.int64)
    out_bounds = np.zeros(num_columns + 1, dtype=np.int64)
    levels = np.full(num_columns, -1, dtype=np.int64)
    count = num_rows = 0
    for column in range(num_columns):
        which = 0
        has_nulls = False
        column_rows = 0
        for page in range(bounds[column], bounds[column + 1]):
            table, num_blocks = blocks[page, TABLE], blocks[page, NUM_BLOCKS]
            column_flags[column] |= blocks[page, FLAGS]
            for block in range(max(num_blocks, 1)):
                first, rows = pages[FIRST_ROW, page], pages[NUM_ROWS, page]
                origins[0, count], origins[1, count] = page, block * BLOCK_ROWS
                if table:
                    first += block * BLOCK_ROWS
                    rows = min(rows - block * BLOCK_ROWS, BLOCK_ROWS)
                    while which < range_starts.shape[0] and range_stops[which] <= first:
                        which += 1
                    if which == range_starts.shape[0] or range_starts[which] >= first + rows:
                        continue
                    chosen[FIRST_ROW, count], chosen[NUM_ROWS, count] = first, rows
                    chosen[UNWANTED_ROWS, count] = 0
                    chosen[ENCODING, count] = blocks[page, BLOCK_ENCODING]
                    chosen[BODY_ADDRESS, count] = _field(table, num_blocks, _ADDRESS, block)
                    chosen[BODY_SIZE, count] = _field(table, num_blocks, _SIZE, block)
                    chosen[NUM_STORED, count] = _field(table, num_blocks, _STORED, block)
                else:
                    chosen[:, count] = pages[:, page]
                has_nulls |= chosen[NUM_STORED, count] < rows - chosen[UNWANTED_ROWS, count]
                column_rows += rows
                count += 1
        out_bounds[column + 1] = count
        if has_nulls:
            levels[column] = num_rows
            num_rows += column_rows
    present = np.ones(num_rows, dtype=np.uint8)
    for column in range(num_columns):
        level, position = levels[column], 0
        for i in range(out_bounds[column], out_bounds[column + 1]):
            if levels[column] < 0:
                chosen[FIRST_POSITION, i] = chosen[FIRST_ROW, i]
                continue
            chosen[FIRST_POSITION, i] = position
            position += chosen[NUM_STORED, i]
            address = blocks[origins[0, i], PRESENT]
            stop = level + chosen[NUM_ROWS, i]
            if address:
                target = np.uint64(present.ctypes.data) + np.uint64(level)
                copy_bytes(target, np.uint64(address + origins[1, i]), chosen[NUM_ROWS, i])
            else:
                present[stop - chosen[UNWANTED_ROWS, i] : stop] = 0
            level = stop
    return np.ascontiguousarray(chosen[:, :count]), out_bounds, levels, present
