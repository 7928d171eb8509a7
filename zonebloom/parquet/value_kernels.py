"""Kernels that find keys among the values of pages, and take the values of selected rows.

Pages may lie anywhere in memory. No byte of a page is trusted: kernels return -1 if the bytes run
out or contradict one another.

Source: Encodings.md of the Parquet format.
"""

from __future__ import annotations

import numpy as np
from numba import int32, int64, uint8, uint32, uint64

from zonebloom.parquet.header_kernels import (
    DECODED_INDICES,
    WIDTH,
    is_dictionary_encoding,
)
from zonebloom.parquet.page_bytes import bits_at, byte_at, copy_bytes, run_at, text_at
from zonebloom.parquet.page_table import STORED_PAGES
from zonebloom.sbbf.addresses import copy_4, copy_8, load_32
from zonebloom.sbbf.jit import kernel, linked, readonly

# Positions of the description of a dictionary: the addresses of its page and of the string offsets
# in that, and its number of entries.
DICTIONARY, OFFSETS, NUM_ENTRIES = range(3)
# The values of each column of a fixed width begin at a multiple of this number of bytes, as Arrow
# recommends.
ALIGNMENT = 64
_LENGTH_BYTES = 4
_DECODED_BITS = 32


@linked
def _begin_indices(address, encoding):
    """Return the bits of the indices of a page, and the offset of their first run."""
    if encoding == DECODED_INDICES:
        return np.int64(_DECODED_BITS), np.int64(0)
    return np.int64(byte_at(address, 0)), np.int64(1)


@linked
def _index_run_at(address, offset, size, width, max_values, encoding):
    """Return a run of indices as `run_at` does. All decoded indices are one run."""
    if encoding == DECODED_INDICES:
        return max_values, np.int64(-1), offset, size
    return run_at(address, offset, size, width, max_values)


@kernel(int64(STORED_PAGES, readonly(uint8), int64[::1]))
def find_indices(pages, hits_of, positions):
    """Write the positions of the dictionary indices that are hits. Return their number, or -1.

    ``hits_of`` says for each entry of the dictionary whether it is a hit.
    """
    hits = 0
    for i in range(pages.shape[0]):
        address, stop, encoding = np.uint64(pages[i].address), pages[i].size, pages[i].encoding
        count, base = pages[i].num_stored, pages[i].first_position
        if count == 0:
            continue
        if stop < 1 or hits + count > positions.shape[0]:
            return -1
        width, offset = _begin_indices(address, encoding)
        if width > 32:
            return -1
        num_read = 0
        while num_read < count:
            run, index, begin, offset = _index_run_at(
                address, offset, stop, width, count - num_read, encoding
            )
            if run < 0 or index >= hits_of.shape[0]:
                return -1
            if index < 0:
                for j in range(run):
                    index = np.int64(bits_at(address, begin * 8 + j * width, width, stop))
                    if index >= hits_of.shape[0]:
                        return -1
                    positions[hits] = base + num_read + j
                    hits += np.int64(hits_of[index])
            elif hits_of[index]:
                for j in range(run):
                    positions[hits + j] = base + num_read + j
                hits += run
            num_read += run
    return hits


@linked
def _replace_by_indices(address, size, count, encoding, positions, num_positions):
    """Replace positions in a page of dictionary indices by these indices. Return 0, or -1."""
    if count == 0:
        return 0
    if size < 1:
        return -1
    width, offset = _begin_indices(address, encoding)
    if width > 32:
        return -1
    num_read = 0
    num_replaced = 0
    while num_read < count:
        run, value, begin, offset = _index_run_at(
            address, offset, size, width, count - num_read, encoding
        )
        if run < 0:
            return -1
        while num_replaced < num_positions and positions[num_replaced] < num_read + run:
            index = value
            if value < 0:
                bit = begin * 8 + (positions[num_replaced] - num_read) * width
                index = np.int64(bits_at(address, bit, width, size))
            positions[num_replaced] = index
            num_replaced += 1
        num_read += run
    return 0


@linked
def _copy_value(target, source, width):
    if width == 8:
        copy_8(target, source)
    elif width == 4:
        copy_4(target, source)
    else:
        copy_bytes(target, source, width)


@kernel(
    int64(
        STORED_PAGES,
        readonly(int64),
        readonly(int64, 2),
        readonly(int64),
        readonly(int64, 2),
        readonly(uint8),
        readonly(int64),
        uint8[:, ::1],
        uint8[::1],
        int64[:, ::1],
        int64[:, ::1],
    )
)
def take_values(
    pages, bounds, columns, levels, dictionaries, present, rows, valid, out, starts, lengths
):
    """Take the values of columns at rows, which are ascending.

    The pages of column i are ``bounds[i]`` to ``bounds[i + 1]`` and include every row asked for.
    ``columns[i]`` and ``dictionaries[i]`` describe the column. ``levels[i]`` is the start of its
    levels in ``present``, -1 if no row is null. Values of a fixed width are copied to ``out``, one
    column after another. For strings, ``starts`` and ``lengths`` receive their addresses and
    lengths. A null becomes zeros, and its ``valid[i]`` is cleared; ``valid`` is not set for columns
    without nulls. Return the bytes of all strings, or -1.

    A page with a row that is asked for must hold all its values: if one is missing, the remaining
    ones may belong to other rows.
    """
    num_bytes = next_fixed = next_text = 0
    max_rows = 0
    for page in range(pages.shape[0]):
        max_rows = max(max_rows, pages[page].num_slots)
    # New memory takes longer than the loops below, so these hold the rows of one page at a time.
    positions = np.empty(min(max_rows, rows.shape[0]), dtype=np.int64)
    slots = np.empty(positions.shape[0], dtype=np.int64)
    for leaf in range(columns.shape[0]):
        width, level = columns[leaf, WIDTH], levels[leaf]
        # This is the start of the values in ``out``, or the number of the column among strings.
        place = next_fixed if width else next_text
        if width:
            next_fixed += (rows.shape[0] * width + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
        else:
            next_text += 1
        optional = level >= 0
        target = np.uint64(out.ctypes.data) + np.uint64(place)
        if width and rows.shape[0] * width > out.shape[0] - place:
            return -1
        num_taken = 0
        for page in range(bounds[leaf], bounds[leaf + 1]):
            address = np.uint64(pages[page].address)
            size, count = pages[page].size, pages[page].num_stored
            first_row, num_rows = pages[page].first_slot, pages[page].num_slots
            if optional and num_rows > present.shape[0] - level:
                return -1
            is_indices = is_dictionary_encoding(pages[page].encoding)
            num_positions = row = num_values = 0
            num_taken_before = num_taken
            last = num_taken + num_rows - 1
            if (
                width
                and not (optional or is_indices)
                and num_taken <= last < rows.shape[0]
                and rows[num_taken] == first_row
                and rows[last] == first_row + num_rows - 1
            ):
                # All rows of the page are asked for, so its values can be copied together.
                if count < num_rows or count * width > size:
                    return -1
                copy_bytes(target + np.uint64(num_taken * width), address, num_rows * width)
                num_taken += num_rows
                continue
            while num_taken < rows.shape[0] and rows[num_taken] < first_row + num_rows:
                target_row = rows[num_taken] - first_row
                if target_row < row or num_positions == positions.shape[0]:
                    return -1
                if optional:
                    while row < target_row:
                        num_values += np.int64(present[level + row])
                        row += 1
                    valid[leaf, num_taken] = present[level + row]
                    if present[level + row]:
                        positions[num_positions], slots[num_positions] = num_values, num_taken
                        num_positions += 1
                    elif width:
                        for k in range(width):
                            out[place + num_taken * width + k] = 0
                    else:
                        starts[place, num_taken] = lengths[place, num_taken] = 0
                else:
                    positions[num_positions], slots[num_positions] = target_row, num_taken
                    num_positions += 1
                num_taken += 1
            level += num_rows
            if num_taken == num_taken_before:
                continue
            if is_indices:
                encoding = pages[page].encoding
                status = _replace_by_indices(
                    address, size, count, encoding, positions, num_positions
                )
                if status < 0:
                    return -1
                source = np.uint64(dictionaries[leaf, DICTIONARY])
                text_starts = np.uint64(dictionaries[leaf, OFFSETS])
                for i in range(num_positions):
                    index, slot = positions[i], slots[i]
                    if index >= dictionaries[leaf, NUM_ENTRIES]:
                        return -1
                    if width:
                        to = target + np.uint64(slot * width)
                        _copy_value(to, source + np.uint64(index * width), width)
                    else:
                        start = load_32(text_starts + np.uint64(4 * index))
                        stop = load_32(text_starts + np.uint64(4 * index + 4))
                        starts[place, slot] = np.int64(source + start)
                        lengths[place, slot] = np.int64(stop - start) - _LENGTH_BYTES
                        num_bytes += lengths[place, slot]
            elif width:
                if count * width > size:
                    return -1
                for i in range(num_positions):
                    to = target + np.uint64(slots[i] * width)
                    _copy_value(to, address + np.uint64(positions[i] * width), width)
            else:
                offset = i = 0
                for position in range(count):
                    offset, length = text_at(address, offset, size, 0)
                    if length < 0:
                        return -1
                    if i < num_positions and positions[i] == position:
                        starts[place, slots[i]] = np.int64(address + np.uint64(offset))
                        lengths[place, slots[i]] = length
                        num_bytes += length
                        i += 1
                    offset += length
        if num_taken < rows.shape[0]:
            return -1
    return num_bytes


@kernel(int64(readonly(int64, 2), readonly(int64, 2), int32[:, ::1], uint8[::1]))
def copy_texts(starts, lengths, offsets, out):
    """Copy the strings of columns to ``out``, one after another, and write their offsets.

    Offsets count from the first string of their column, whose bytes must be fewer than 2 ** 31.
    Return the number of bytes copied, or -1 if there is no room.
    """
    base = 0
    for column in range(starts.shape[0]):
        end = 0
        offsets[column, 0] = 0
        for i in range(starts.shape[1]):
            length = lengths[column, i]
            if length < 0 or length > out.shape[0] - base - end:
                return -1
            target = np.uint64(out.ctypes.data) + np.uint64(base + end)
            copy_bytes(target, np.uint64(starts[column, i]), length)
            end += length
            offsets[column, i + 1] = np.int32(end)
        base += end
    return base


@kernel(int64(uint64, int64, uint32[::1]))
def decode_indices(address, size, out):
    """Write the dictionary indices of a page. Return 0, or -1."""
    if out.shape[0] == 0:
        return 0
    if size < 1 or byte_at(address, 0) > np.uint64(32):
        return -1
    width, offset, num_read = np.int64(byte_at(address, 0)), 1, 0
    while num_read < out.shape[0]:
        run, value, begin, offset = run_at(address, offset, size, width, out.shape[0] - num_read)
        if run < 0:
            return -1
        for i in range(run):
            index = np.uint64(value)
            if value < 0:
                index = bits_at(address, begin * 8 + i * width, width, size)
            out[num_read + i] = np.uint32(index)
        num_read += run
    return 0


@kernel(int64(uint64, int64, uint32[::1]))
def text_starts(address, size, out):
    """Write the offsets of the strings of a dictionary, and one past the end.

    Return the bytes of the strings, or -1.
    """
    offset = 0
    for i in range(out.shape[0] - 1):
        out[i] = np.uint32(offset + _LENGTH_BYTES)
        offset, length = text_at(address, offset, size, 0)
        if length < 0:
            return -1
        offset += length
    out[out.shape[0] - 1] = np.uint32(offset + _LENGTH_BYTES)
    return offset
