"""Kernels that decompress the bodies of pages, as far as their values are wanted.

Source: format_description.txt of Snappy.
"""

from __future__ import annotations

import numpy as np
from numba import int64, types, uint8, uint64

from zonebloom.parquet.header_kernels import (
    CODEC,
    MAX_LEVEL,
    WIDTH,
)
from zonebloom.parquet.leaf_type import SNAPPY
from zonebloom.parquet.page_bytes import byte_at, copy_bytes, varint_at
from zonebloom.parquet.page_table import PAGES
from zonebloom.sbbf.addresses import copy_1, copy_8, copy_16, load_32
from zonebloom.sbbf.jit import kernel, linked, readonly

# Each element begins with a tag of one byte. The low two bits are the kind of the element: a
# literal, or a copy with a distance of one, two or four bytes. The other bits are its length, less
# one.
_TAG_BYTES = np.uint64(1)
_LITERAL, _COPY_1, _COPY_2, _COPY_4 = map(np.uint64, (0, 1, 2, 3))
_KIND_MASK, _KIND_BITS = np.uint64(3), np.uint64(2)
# The tag of a copy with a distance of one byte has three bits of its length, less four. The high
# three bits of the tag belong to the distance.
_SHORT_LENGTH_MASK, _MIN_COPY_LENGTH, _DISTANCE_SHIFT = map(np.uint64, (7, 4, 5))
# The length of a literal of up to 60 bytes is in its tag. That of a longer one follows the tag.
_MAX_SHORT_LITERAL = np.uint64(60)
_BITS_PER_BYTE = np.uint64(8)
# The loop without branches copies 64 bytes in steps of 16, whatever the length of the element is.
# It may touch some bytes more, so it needs this many at both ends.
_STEP, _MARGIN = np.uint64(16), np.uint64(80)
_ZERO, _ONE = np.uint64(0), np.uint64(1)
# The bytes of a length that precedes levels, or a string.
_LENGTH_BYTES = 4
# Strings are decompressed in steps of at least this many bytes.
_MIN_STEP_BYTES = 1 << 12


@linked
def _decompress_without_branches(source, source_stop, target_start, target, target_stop):
    """Decompress elements while both ends are far away. Return the next source and target.

    A processor cannot predict whether an element is a literal or a copy, so the difference is
    computed instead of tested. The loop stops before a long element, and before a copy whose origin
    is near its target.
    """
    while source_stop - source > _MARGIN and target_stop - target > _MARGIN:
        word = load_32(source)
        tag = word & np.uint64(0xFF)
        kind = tag & _KIND_MASK
        is_copy_1 = np.uint64(kind == _COPY_1)
        # All bits are set for a literal, and none for a copy.
        literal_mask = _ZERO - np.uint64(kind == _LITERAL)
        length = (tag >> _KIND_BITS) + _ONE
        high_bits = length - _ONE & ~_SHORT_LENGTH_MASK
        length += is_copy_1 * (_MIN_COPY_LENGTH - _ONE - high_bits)
        # ``kind`` is also the number of bytes of the distance, except for `_COPY_4`.
        distance = word >> _BITS_PER_BYTE & ((_ONE << kind * _BITS_PER_BYTE) - _ONE)
        distance += is_copy_1 * (tag >> _DISTANCE_SHIFT << _BITS_PER_BYTE)
        if kind == _COPY_4 or (literal_mask & length) > _MAX_SHORT_LITERAL:
            break
        if (distance | literal_mask) < _STEP or distance > target - target_start:
            break
        origin = (source + _TAG_BYTES) & literal_mask | (target - distance) & ~literal_mask
        copy_16(target, origin)
        if length > _STEP:
            for step in range(1, 4):
                offset = np.uint64(step) * _STEP
                copy_16(target + offset, origin + offset)
        target += length
        source += _TAG_BYTES + kind + (length & literal_mask)
    return source, target


@kernel(types.UniTuple(uint64, 2)(uint64, uint64, uint64, uint64, uint64, uint64))
def _decompress(source, source_stop, target_start, target, target_stop, wanted_stop):
    """Decompress elements until the data end, or the target has reached ``wanted_stop``.

    Return the next source and target. Both are 0 if the data are not valid.
    """
    invalid = _ZERO, _ZERO
    fast_stop = min(target_stop, wanted_stop + _MARGIN)
    while source < source_stop and target < wanted_stop:
        source, target = _decompress_without_branches(
            source, source_stop, target_start, target, fast_stop
        )
        tag = byte_at(source, 0)
        source += _TAG_BYTES
        kind = tag & _KIND_MASK
        length = (tag >> _KIND_BITS) + _ONE
        if kind == _LITERAL:
            if length > _MAX_SHORT_LITERAL:
                width = length - _MAX_SHORT_LITERAL
                if source_stop - source < width:
                    return invalid
                length = _ONE
                for i in range(np.int64(width)):
                    length += byte_at(source, i) << np.uint64(8 * i)
                source += width
            if length > source_stop - source or length > target_stop - target:
                return invalid
            copy_bytes(target, source, length)
            source += length
            target += length
            continue
        if kind == _COPY_1:
            if source == source_stop:
                return invalid
            length = (length - _ONE & _SHORT_LENGTH_MASK) + _MIN_COPY_LENGTH
            distance = tag >> _DISTANCE_SHIFT << _BITS_PER_BYTE | byte_at(source, 0)
            source += np.uint64(1)
        elif kind == _COPY_2:
            if source_stop - source < np.uint64(2):
                return invalid
            distance = byte_at(source, 0) | byte_at(source, 1) << _BITS_PER_BYTE
            source += np.uint64(2)
        else:
            if source_stop - source < np.uint64(4):
                return invalid
            distance = load_32(source)
            source += np.uint64(4)
        if distance == 0 or distance > target - target_start or length > target_stop - target:
            return invalid
        origin = target - distance
        if target_stop - target >= length + _STEP:
            # The copy repeats with the period ``distance``, so the bytes at twice the distance are
            # the same. Double it until eight bytes can be copied together.
            num_copied = np.uint64(0)
            while distance < np.uint64(8) and num_copied < length:
                for i in range(np.int64(distance)):
                    copy_1(target + num_copied + np.uint64(i), origin + np.uint64(i))
                num_copied += distance
                distance *= np.uint64(2)
            while num_copied < length:
                copy_8(target + num_copied, target + num_copied - distance)
                num_copied += np.uint64(8)
        else:
            for i in range(np.int64(length)):
                copy_1(target + np.uint64(i), origin + np.uint64(i))
        target += length
    return source, target


@kernel(int64(uint64, int64, uint64, int64))
def decompress_snappy(source, num_bytes, target, size):
    """Decompress Snappy data from one address into ``size`` bytes at another.

    Return 0, or -1 if the data are not valid or have another size.
    """
    claimed_size, offset = varint_at(source, 0, num_bytes)
    if offset < 0 or claimed_size != np.uint64(size):
        return -1
    source_stop, target_stop = source + np.uint64(num_bytes), target + np.uint64(size)
    source, end = _decompress(
        source + np.uint64(offset), source_stop, target, target, target_stop, target_stop
    )
    return 0 if source == source_stop and end == target_stop else -1


# `bytes_to_decompress` keeps these between calls: the start of the values, or 0 before it is known,
# and the end and the count of the strings that are complete.
_VALUES_START, _TEXTS_END, _NUM_TEXTS = range(3)


@kernel(int64(uint64, int64, int64, int64, int64, int64[::1]))
def bytes_to_decompress(address, available, has_levels, width, num_values, progress):
    """Return how many bytes of a page of PLAIN values to decompress for some first values.

    If that is no more than the ``available`` bytes at ``address``, the values are complete. Else
    decompress as many bytes, or all if the page has fewer, and call this again.

    Parameters
    ----------
    address, available : int
    has_levels : int
        1 if definition levels and their length precede the values, else 0.
    width : int
        The number of bytes of a value, or 0 for strings.
    num_values : int
    progress : int64 array, shape (3,)
        Zeros at the first call.
    """
    if has_levels and not progress[_VALUES_START]:
        if available < _LENGTH_BYTES:
            return _LENGTH_BYTES
        progress[_VALUES_START] = _LENGTH_BYTES + np.int64(load_32(address))
        progress[_TEXTS_END] = progress[_VALUES_START]
    if width:
        return progress[_VALUES_START] + width * num_values
    end, count = progress[_TEXTS_END], progress[_NUM_TEXTS]
    while count < num_values and available - end >= _LENGTH_BYTES:
        length = np.int64(load_32(address + np.uint64(end)))
        if length > available - end - _LENGTH_BYTES:
            break
        end += _LENGTH_BYTES + length
        count += 1
    progress[_TEXTS_END], progress[_NUM_TEXTS] = end, count
    if count == num_values:
        return end
    # Assume that the other strings have the same average length.
    mean_bytes = (end - progress[_VALUES_START]) // max(count, 1) + 1
    return available + max((num_values - count) * mean_bytes, _MIN_STEP_BYTES)


@kernel(int64(uint64, int64, uint64, int64, int64, int64, int64))
def decompress_first_values(source, num_bytes, target, size, has_levels, width, num_values):
    """Decompress a page of PLAIN values with Snappy as far as some first values reach, or farther.

    The parameters are those of `decompress_snappy` and `bytes_to_decompress`. Return the number of
    decompressed bytes, or -1 if the data are not valid or claim another size.
    """
    claimed_size, offset = varint_at(source, 0, num_bytes)
    if offset < 0 or claimed_size != np.uint64(size):
        return -1
    source_stop, target_stop = source + np.uint64(num_bytes), target + np.uint64(size)
    source += np.uint64(offset)
    progress = np.zeros(3, dtype=np.int64)
    available = 0
    while available < size:
        wanted = bytes_to_decompress(target, available, has_levels, width, num_values, progress)
        if wanted <= available:
            return available
        wanted_stop = target + np.uint64(min(wanted, size))
        source, stop = _decompress(
            source, source_stop, target, target + np.uint64(available), target_stop, wanted_stop
        )
        if stop < wanted_stop:
            return -1
        available = np.int64(stop - target)
    return size if source == source_stop else -1


@linked
def _single_literal(source, num_bytes, size):
    """Return the start of the data in a body that Snappy could not compress.

    Such a body is a single literal of ``size`` bytes. Return -1 for other bodies.
    """
    claimed_size, offset = varint_at(source, 0, num_bytes)
    if offset < 0 or offset == num_bytes or claimed_size != np.uint64(size):
        return -1
    tag = byte_at(source, offset)
    # A tag with a length of more than 60 says how many bytes of length follow it.
    width = np.int64(tag >> _KIND_BITS) - 59
    start = offset + 1 + max(width, 0)
    if tag & _KIND_MASK != _LITERAL or num_bytes - start != size:
        return -1
    length = tag >> _KIND_BITS
    if width > 0:
        length = _ZERO
        for i in range(width):
            length |= byte_at(source, offset + 1 + i) << np.uint64(8 * i)
    return start if length + _ONE == claimed_size else -1


@kernel(int64(readonly(uint8), uint64, PAGES, readonly(int64), readonly(int64, 2)))
def read_bodies(data, target, pages, bounds, columns):
    """Set the address and size of the body of each page. Return 0, or -1 if a body is not valid.

    Bodies that Snappy compressed are decompressed to ``decompressed_start``, counted from the
    address ``target``, as far as their rows are wanted. There is room for all of their bytes.
    Bodies that it could not compress stay where they are. Bodies that another codec compressed
    have their address already. The other parameters are those of `header_kernels.open_pages`.
    """
    base = np.uint64(data.ctypes.data)
    for column in range(bounds.shape[0] - 1):
        codec = columns[column, CODEC]
        for i in range(bounds[column], bounds[column + 1]):
            page = pages[i]
            size = page.decompressed_size
            if page.is_decoded or (size >= 0 and codec != SNAPPY):
                continue
            body, body_size = base + np.uint64(page.body_start), page.body_size
            page.address, page.size = np.int64(body), body_size
            if size < 0:
                continue
            start = _single_literal(body, body_size, size)
            if start >= 0:
                page.address, page.size = np.int64(body) + start, size
                continue
            decompressed = target + np.uint64(page.decompressed_start)
            if size and page.unwanted_rows:
                size = decompress_first_values(
                    body,
                    body_size,
                    decompressed,
                    size,
                    np.int64(columns[column, MAX_LEVEL] and page.level_bytes < 0),
                    columns[column, WIDTH],
                    page.num_rows - page.unwanted_rows,
                )
            # Even empty data have one byte in Snappy's format, but some writers omit it.
            elif size and decompress_snappy(body, body_size, decompressed, size) < 0:
                return -1
            if size < 0:
                return -1
            page.address, page.size = np.int64(decompressed), size
    return 0
