"""Kernels that decompress the bodies of pages.

Source: format_description.txt of Snappy.
"""

from __future__ import annotations

import numpy as np
from numba import int64, uint8, uint64

from zonebloom.parquet.header_kernels import BODY_ADDRESS, BODY_SIZE, BODY_START, DECOMPRESSED_SIZE
from zonebloom.parquet.leaf_type import SNAPPY
from zonebloom.parquet.page_bytes import byte_at, copy_bytes, varint_at
from zonebloom.sbbf.addresses import copy_1, copy_8, copy_16, load_32
from zonebloom.sbbf.jit import inlined, kernel, readonly

_0, _1, _2, _3, _4, _5, _7, _8 = map(np.uint64, (0, 1, 2, 3, 4, 5, 7, 8))
_16, _32, _48, _80 = map(np.uint64, (16, 32, 48, 80))
# The kinds of elements: literals, and copies with an offset of one, two or four bytes.
_LITERAL, _COPY_1, _COPY_2 = map(np.uint64, (0, 1, 2))
# The length of a literal of up to 60 bytes is in its tag. That of a longer one follows the tag.
_MAX_SHORT_LITERAL = np.uint64(60)


@inlined
def _without_branches(at, stop, target, end, room):
    """Decompress elements while both ends are far away. Return the next positions in both.

    A processor cannot predict whether an element is a literal or a copy, so the difference is
    computed instead of tested. The loop stops before a long element, and before a copy whose source
    is near its target.
    """
    while stop - at > _80 and room - end > _80:
        word = load_32(at)
        tag = word & np.uint64(0xFF)
        kind = tag & _3
        is_short = np.uint64(kind == _COPY_1)
        every_bit_if_literal = _0 - np.uint64(kind == _LITERAL)
        length = (tag >> _2) + _1
        length += is_short * (_3 - (length - _1 & ~_7))
        distance = word >> _8 & ((_1 << kind * _8) - _1)
        distance += is_short * (tag >> _5 << _8)
        if kind == _3 or (every_bit_if_literal & length) > _MAX_SHORT_LITERAL:
            break
        if (distance | every_bit_if_literal) < _16 or distance > end - target:
            break
        source = (at + _1) & every_bit_if_literal | (end - distance) & ~every_bit_if_literal
        copy_16(end, source)
        if length > _16:
            copy_16(end + _16, source + _16)
            copy_16(end + _32, source + _32)
            copy_16(end + _48, source + _48)
        end += length
        at += _1 + kind + (length & every_bit_if_literal)
    return at, end


@kernel(int64(uint64, int64, uint64, int64))
def decompress_snappy(source, num_bytes, target, size):
    """Decompress Snappy data from one address into ``size`` bytes at another.

    Return 0, or -1 if the data are not valid or have another size.
    """
    claimed, start = varint_at(source, 0, num_bytes)
    if start < 0 or claimed != np.uint64(size):
        return -1
    at, stop = source + np.uint64(start), source + np.uint64(num_bytes)
    end, room = target, target + np.uint64(size)
    while at < stop:
        at, end = _without_branches(at, stop, target, end, room)
        tag = byte_at(at, 0)
        at += _1
        kind = tag & _3
        length = (tag >> _2) + _1
        if kind == _LITERAL:
            if length > _MAX_SHORT_LITERAL:
                width = length - _MAX_SHORT_LITERAL
                if stop - at < width:
                    return -1
                length = _1
                for i in range(np.int64(width)):
                    length += byte_at(at, i) << np.uint64(8 * i)
                at += width
            if length > stop - at or length > room - end:
                return -1
            copy_bytes(end, at, length)
            at += length
            end += length
            continue
        if kind == _COPY_1:
            if at == stop:
                return -1
            length = (length - _1 & _7) + _4
            distance = tag >> _5 << _8 | byte_at(at, 0)
            at += _1
        elif kind == _COPY_2:
            if stop - at < _2:
                return -1
            distance = byte_at(at, 0) | byte_at(at, 1) << _8
            at += _2
        else:
            if stop - at < _4:
                return -1
            distance = load_32(at)
            at += _4
        if distance == 0 or distance > end - target or length > room - end:
            return -1
        copy_source = end - distance
        if room - end >= length + _16:
            # The copy repeats with the period ``distance``, so the bytes at twice the distance are
            # the same. Double it until eight bytes can be copied together.
            num_copied = np.uint64(0)
            while distance < _8 and num_copied < length:
                for i in range(np.int64(distance)):
                    copy_1(end + num_copied + np.uint64(i), copy_source + np.uint64(i))
                num_copied += distance
                distance *= _2
            while num_copied < length:
                copy_8(end + num_copied, end + num_copied - distance)
                num_copied += _8
        else:
            for i in range(np.int64(length)):
                copy_1(end + np.uint64(i), copy_source + np.uint64(i))
        end += length
    return 0 if end == room else -1


@inlined
def _single_literal(source, num_bytes, size):
    """Return the start of the data in a body that Snappy could not compress.

    Such a body is a single literal of ``size`` bytes. Return -1 for other bodies.
    """
    claimed, at = varint_at(source, 0, num_bytes)
    if at < 0 or at == num_bytes or claimed != np.uint64(size):
        return -1
    tag = byte_at(source, at)
    width = np.int64(tag >> _2) - 59
    begin = at + 1 + max(width, 0)
    if tag & _3 != _LITERAL or num_bytes - begin != size:
        return -1
    length = tag >> _2
    if width > 0:
        length = _0
        for i in range(width):
            length |= byte_at(source, at + 1 + i) << np.uint64(8 * i)
    return begin if length + _1 == claimed else -1


@kernel(int64(readonly(uint8), uint8[::1], int64[:, ::1], readonly(int64), readonly(int64, 2)))
def read_bodies(data, out, pages, bounds, columns):
    """Set the address and size of the body of each page. Return 0, or -1 if a body is not valid.

    Bodies that Snappy compressed are decompressed into ``out``, one after another. Bodies that it
    could not compress, and those of other codecs, stay where they are. The other parameters are
    those of `header_kernels.open_pages`.
    """
    base = np.uint64(data.ctypes.data)
    target = np.uint64(out.ctypes.data)
    end = 0
    for column in range(bounds.shape[0] - 1):
        for i in range(bounds[column], bounds[column + 1]):
            body = base + np.uint64(pages[BODY_START, i])
            pages[BODY_ADDRESS, i] = np.int64(body)
            size = pages[DECOMPRESSED_SIZE, i]
            if columns[column, 1] != SNAPPY or size < 0:
                continue
            if size > out.shape[0] - end:
                return -1
            begin = _single_literal(body, pages[BODY_SIZE, i], size)
            if begin >= 0:
                pages[BODY_ADDRESS, i] = np.int64(body) + begin
                pages[BODY_SIZE, i] = size
                continue
            plain = target + np.uint64(end)
            # Even empty data have one byte in Snappy's format, but some writers omit it.
            if size and decompress_snappy(body, pages[BODY_SIZE, i], plain, size) < 0:
                return -1
            pages[BODY_ADDRESS, i] = np.int64(plain)
            pages[BODY_SIZE, i] = size
            end += size
    return 0
