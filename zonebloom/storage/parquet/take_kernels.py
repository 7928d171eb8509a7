"""Values at chosen rows, out of what pages and dictionaries store.

Nothing of a page is trusted: what runs out or contradicts itself is -1.

Source: Encodings.md of the Parquet format.
"""

from __future__ import annotations

import numpy as np
from numba import int32, int64, uint8, uint32, uint64

from zonebloom.sbbf.addresses import copy_4, copy_8, load_32
from zonebloom.sbbf.jit import inlined, kernel, readonly
from zonebloom.storage.parquet.header_kernels import (
    ADDRESS,
    ENCODING,
    FIRST_ROW,
    NUM_ROWS,
    SIZE,
    STORED,
    of_dictionary,
)
from zonebloom.storage.parquet.page_bytes import bits_at, byte_at, copy_bytes, run_at, text_at

# What `take` is told of a column: the width of its values, 0 for texts; where its levels begin
# among those of all, -1 where every row holds a value; where its values go in the output, or which
# of the texts it is; addresses of its dictionary and of where texts begin in that, and its size.
WIDTH, LEVELS, TARGET, DICTIONARY, TEXT_STARTS, NUM_ENTRIES = range(6)
_LENGTH_BYTES = 4


@inlined
def _indices(address, size, count, positions, num_positions):
    """Turn positions in a page of dictionary indices into those: 0, or -1."""
    if count == 0:
        return 0
    if size < 1 or byte_at(address, 0) > np.uint64(32):
        return -1
    width = np.int64(byte_at(address, 0))
    at = 1
    done = 0
    taken = 0
    while done < count:
        wanted, value, begin, at = run_at(address, at, size, width, count - done)
        if wanted < 0:
            return -1
        while taken < num_positions and positions[taken] < done + wanted:
            index = value
            if value < 0:
                bit = begin * 8 + (positions[taken] - done) * width
                index = np.int64(bits_at(address, bit, width, size))
            positions[taken] = index
            taken += 1
        done += wanted
    return 0


@inlined
def _copy_value(target, source, width):
    if width == 8:
        copy_8(target, source)
    elif width == 4:
        copy_4(target, source)
    else:
        copy_bytes(target, source, width)


@kernel(int64(readonly(int64, 2), int64, int64))
def have_values(pages, width, are_indices):
    """Whether pages have as many values, or dictionary indices, as they are to: 0, or -1."""
    nothing = np.empty(0, dtype=np.int64)
    for page in range(pages.shape[1]):
        address = np.uint64(pages[ADDRESS, page])
        size, count = pages[SIZE, page], pages[STORED, page]
        if are_indices:
            if _indices(address, size, count, nothing, 0) < 0:
                return -1
        elif width:
            if count * width > size:
                return -1
        else:
            at = 0
            for _ in range(count):
                at, length = text_at(address, at, size, 0)
                if length < 0:
                    return -1
                at += length
    return 0


@kernel(
    int64(
        readonly(int64, 2),
        readonly(int64),
        readonly(int64, 2),
        readonly(uint8),
        readonly(int64),
        uint8[:, ::1],
        uint8[::1],
        uint64[:, ::1],
        int64[:, ::1],
    )
)
def take(pages, bounds, leaves, present, rows, valid, out, starts, lengths):
    """Take the values of some columns at some rows, ascending.

    The pages of column i are ``bounds[i]`` to ``bounds[i + 1]``, with every one of the rows, and
    ``leaves[i]`` is what is known of it. Values that have a width are copied; of texts it is said
    where in memory they begin, and their lengths. What is null is zeros, and not ``valid[i]``,
    which of columns without nulls is not set. The bytes of all texts, or -1.

    Of pages with a wanted row all values must be there: with one missing, they may be others.
    """
    num_bytes = 0
    positions = np.empty(rows.shape[0], dtype=np.int64)
    slots = np.empty(rows.shape[0], dtype=np.int64)
    for leaf in range(leaves.shape[0]):
        width, level, place = leaves[leaf, WIDTH], leaves[leaf, LEVELS], leaves[leaf, TARGET]
        optional = level >= 0
        target = np.uint64(out.ctypes.data) + np.uint64(place)
        if width and rows.shape[0] * width > out.shape[0] - place:
            return -1
        taken = 0
        for page in range(bounds[leaf], bounds[leaf + 1]):
            address = np.uint64(pages[ADDRESS, page])
            size, count = pages[SIZE, page], pages[STORED, page]
            first_row, num_rows = pages[FIRST_ROW, page], pages[NUM_ROWS, page]
            if optional and num_rows > present.shape[0] - level:
                return -1
            is_indices = of_dictionary(pages[ENCODING, page])
            num_positions = row = before = 0
            already = taken
            last = taken + num_rows - 1
            if (
                width
                and not (optional or is_indices)
                and taken <= last < rows.shape[0]
                and rows[taken] == first_row
                and rows[last] == first_row + num_rows - 1
            ):
                # All rows: as their page has them.
                if count < num_rows or count * width > size:
                    return -1
                copy_bytes(target + np.uint64(taken * width), address, num_rows * width)
                taken += num_rows
                continue
            while taken < rows.shape[0] and rows[taken] < first_row + num_rows:
                wanted = rows[taken] - first_row
                if wanted < row:
                    return -1
                if optional:
                    while row < wanted:
                        before += np.int64(present[level + row])
                        row += 1
                    valid[leaf, taken] = present[level + row]
                    if present[level + row]:
                        positions[num_positions], slots[num_positions] = before, taken
                        num_positions += 1
                    elif width:
                        for k in range(width):
                            out[place + taken * width + k] = 0
                    else:
                        starts[place, taken] = lengths[place, taken] = 0
                else:
                    positions[num_positions], slots[num_positions] = wanted, taken
                    num_positions += 1
                taken += 1
            level += num_rows
            if taken == already:
                continue
            if is_indices:
                if _indices(address, size, count, positions, num_positions) < 0:
                    return -1
                source = np.uint64(leaves[leaf, DICTIONARY])
                text_starts = np.uint64(leaves[leaf, TEXT_STARTS])
                for i in range(num_positions):
                    index, slot = positions[i], slots[i]
                    if index >= leaves[leaf, NUM_ENTRIES]:
                        return -1
                    if width:
                        to = target + np.uint64(slot * width)
                        _copy_value(to, source + np.uint64(index * width), width)
                    else:
                        start = load_32(text_starts + np.uint64(4 * index))
                        stop = load_32(text_starts + np.uint64(4 * index + 4))
                        starts[place, slot] = source + start
                        lengths[place, slot] = np.int64(stop - start) - _LENGTH_BYTES
                        num_bytes += lengths[place, slot]
            elif width:
                if count * width > size:
                    return -1
                for i in range(num_positions):
                    to = target + np.uint64(slots[i] * width)
                    _copy_value(to, address + np.uint64(positions[i] * width), width)
            else:
                at = i = 0
                for position in range(count):
                    at, length = text_at(address, at, size, 0)
                    if length < 0:
                        return -1
                    if i < num_positions and positions[i] == position:
                        starts[place, slots[i]] = address + np.uint64(at)
                        lengths[place, slots[i]] = length
                        num_bytes += length
                        i += 1
                    at += length
        if taken < rows.shape[0]:
            return -1
    return num_bytes


@kernel(int64(readonly(uint64, 2), readonly(int64, 2), int32[:, ::1], uint8[::1]))
def copy_texts(starts, lengths, offsets, out):
    """Copy the texts of some columns, one after another, of each where they begin and end.

    Offsets count from the first text of their column, whose bytes must be fewer than 2 ** 31.
    The bytes copied, or -1 where there is no room.
    """
    base = 0
    for column in range(starts.shape[0]):
        end = 0
        offsets[column, 0] = 0
        for i in range(starts.shape[1]):
            length = lengths[column, i]
            if length < 0 or length > out.shape[0] - base - end:
                return -1
            place = np.uint64(out.ctypes.data) + np.uint64(base + end)
            copy_bytes(place, starts[column, i], length)
            end += length
            offsets[column, i + 1] = np.int32(end)
        base += end
    return base


@kernel(int64(uint64, int64, uint32[::1]))
def text_starts(address, size, out):
    """Where the texts of a dictionary begin, and where one more would: their bytes, or -1."""
    at = 0
    for i in range(out.shape[0] - 1):
        out[i] = np.uint32(at + _LENGTH_BYTES)
        at, length = text_at(address, at, size, 0)
        if length < 0:
            return -1
        at += length
    out[out.shape[0] - 1] = np.uint32(at + _LENGTH_BYTES)
    return at
