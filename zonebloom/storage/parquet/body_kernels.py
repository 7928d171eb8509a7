"""Bodies of pages, decompressed.

Source: format_description.txt of Snappy.
"""

from __future__ import annotations

import numpy as np
from numba import int64, uint8, uint64

from zonebloom.sbbf.addresses import copy_1, copy_8, copy_16, load_32
from zonebloom.sbbf.jit import inlined, kernel, readonly
from zonebloom.storage.parquet.header_kernels import ADDRESS, BEGIN, PLAIN_SIZE, SIZE
from zonebloom.storage.parquet.leaf_type import SNAPPY
from zonebloom.storage.parquet.page_bytes import byte_at, copy_bytes, varint_at

_0, _1, _2, _3, _4, _5, _7, _8 = map(np.uint64, (0, 1, 2, 3, 4, 5, 7, 8))
_16, _32, _48, _80 = map(np.uint64, (16, 32, 48, 80))
# Tags of literals, and of copies by how many bytes say from where.
_LITERAL, _COPY_1, _COPY_2 = map(np.uint64, (0, 1, 2))
# Literals of more bytes have their length behind the tag.
_SHORT = np.uint64(60)


@inlined
def _without_branches(at, stop, target, end, room):
    """Decompress elements far from both ends; where the next one is, and where it goes.

    Whether an element is a literal or a copy, which processors cannot foresee, is computed with.
    It ends before one that is long, or copied from near.
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
        if kind == _3 or (every_bit_if_literal & length) > _SHORT:
            break
        if (distance | every_bit_if_literal) < _16 or distance > end - target:
            break
        copied = (at + _1) & every_bit_if_literal | (end - distance) & ~every_bit_if_literal
        copy_16(end, copied)
        if length > _16:
            copy_16(end + _16, copied + _16)
            copy_16(end + _32, copied + _32)
            copy_16(end + _48, copied + _48)
        end += length
        at += _1 + kind + (length & every_bit_if_literal)
    return at, end


@kernel(int64(uint64, int64, uint64, int64))
def decompress_snappy(source, num_bytes, target, size):
    """Decompress Snappy's format at an address into ``size`` bytes at another: 0, or -1."""
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
            if length > _SHORT:
                width = length - _SHORT
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
        copied = end - distance
        if room - end >= length + _16:
            # Twice as far back is the same again.
            done = np.uint64(0)
            while distance < _8 and done < length:
                for i in range(np.int64(distance)):
                    copy_1(end + done + np.uint64(i), copied + np.uint64(i))
                done += distance
                distance *= _2
            while done < length:
                copy_8(end + done, end + done - distance)
                done += _8
        else:
            for i in range(np.int64(length)):
                copy_1(end + np.uint64(i), copied + np.uint64(i))
        end += length
    return 0 if end == room else -1


@inlined
def _literal_alone(source, num_bytes, size):
    """Where what Snappy could not compress begins in a body: ``size`` bytes, up to the end of that;
    -1 of other bodies."""
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
    """Where the bodies of pages are in memory, and their sizes; 0, or -1.

    Those compressed by Snappy are decompressed into ``out``, one after another, unless they are as
    long as before; those, and all of other codecs, are as they are stored. The other parameters are
    those of `header_kernels.open_pages`.
    """
    base = np.uint64(data.ctypes.data)
    target = np.uint64(out.ctypes.data)
    end = 0
    for column in range(bounds.shape[0] - 1):
        for i in range(bounds[column], bounds[column + 1]):
            body = base + np.uint64(pages[BEGIN, i])
            pages[ADDRESS, i] = np.int64(body)
            size = pages[PLAIN_SIZE, i]
            if columns[column, 1] != SNAPPY or size < 0:
                continue
            if size > out.shape[0] - end:
                return -1
            begin = _literal_alone(body, pages[SIZE, i], size)
            if begin >= 0:
                pages[ADDRESS, i] = np.int64(body) + begin
                pages[SIZE, i] = size
                continue
            plain = target + np.uint64(end)
            # Snappy has a byte at least, even of nothing; some writers leave it out.
            if size and decompress_snappy(body, pages[SIZE, i], plain, size) < 0:
                return -1
            pages[ADDRESS, i] = np.int64(plain)
            pages[SIZE, i] = size
            end += size
    return 0
