"""Helpers of kernels that read the bytes of a page. An end of -1 means that the bytes run out.

Source: thrift-compact-protocol.md, and Encodings.md of the Parquet format.
"""

from __future__ import annotations

import numpy as np

from zonebloom.sbbf.addresses import copy_1, copy_8, copy_64, load_8, load_32, load_64
from zonebloom.sbbf.jit import linked

# The longest run, in values or in groups of eight. No page holds more.
_MAX_RUN_LENGTH = (1 << 31) - 1


@linked
def zigzag(value):
    return np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1))


@linked
def byte_at(address, offset):
    return load_8(address + np.uint64(offset))


@linked
def copy_bytes(target, source, length):
    """Copy bytes between two areas that do not overlap."""
    size = np.uint64(length)
    num_copied = np.uint64(0)
    while num_copied + np.uint64(64) <= size:
        copy_64(target + num_copied, source + num_copied)
        num_copied += np.uint64(64)
    while num_copied + np.uint64(8) <= size:
        copy_8(target + num_copied, source + num_copied)
        num_copied += np.uint64(8)
    if num_copied < size and size >= np.uint64(8):
        # Copy some bytes again instead of the last ones one by one.
        num_copied = size - np.uint64(8)
        copy_8(target + num_copied, source + num_copied)
        num_copied = size
    while num_copied < size:
        copy_1(target + num_copied, source + num_copied)
        num_copied += np.uint64(1)


@linked
def varint_at(address, offset, stop):
    """Return an unsigned varint and its end. The end is -1 if the bytes run out."""
    value = np.uint64(0)
    shift = np.uint64(0)
    while offset < stop and shift < np.uint64(64):
        byte = byte_at(address, offset)
        offset += 1
        value |= (byte & np.uint64(0x7F)) << shift
        if byte < np.uint64(0x80):
            return value, offset
        shift += np.uint64(7)
    return value, -1


@linked
def run_at(address, offset, stop, width, max_values):
    """Read the header of a run in the hybrid encoding of RLE and bit-packing.

    Values have ``width`` bits, at most 32, and a page has at most ``max_values`` more of them.
    Return the number of values, or -1 if there is no valid run; the repeated value, or -1 if the
    values are bit-packed; the start of the values; and their end.
    """
    header, offset = varint_at(address, offset, stop)
    length = np.int64(header >> np.uint64(1))
    if offset < 0 or length <= 0 or length > _MAX_RUN_LENGTH:
        return np.int64(-1), np.int64(-1), offset, offset
    if header & np.uint64(1):
        # Writers pad the last run to eight values, or to many more.
        if length * width > stop - offset:
            return np.int64(-1), np.int64(-1), offset, offset
        return min(length * 8, max_values), np.int64(-1), offset, offset + length * width
    num_bytes = (width + 7) >> 3
    if length > max_values or num_bytes > stop - offset:
        return np.int64(-1), np.int64(-1), offset, offset
    value = np.int64(0)
    for i in range(num_bytes):
        value |= np.int64(byte_at(address, offset + i)) << (8 * i)
    if value >> width:
        return np.int64(-1), np.int64(-1), offset, offset
    return length, value, offset, offset + num_bytes


@linked
def bits_at(address, bit, width, stop):
    """Return the value of up to 32 bits that begins at a bit. The bytes end at ``stop``."""
    offset = bit >> 3
    shift = np.uint64(bit & 7)
    if stop - offset >= 8:
        value = load_64(address + np.uint64(offset)) >> shift
    else:
        value = np.uint64(0)
        for i in range(stop - offset):
            value |= byte_at(address, offset + i) << np.uint64(8 * i)
        value >>= shift
    return value & ((np.uint64(1) << np.uint64(width)) - np.uint64(1))


@linked
def text_at(address, offset, size, width):
    """Return the start and the length of a value. The length is -1 if the bytes run out.

    If ``width`` is 0, a length of 4 bytes precedes each value.
    """
    if width:
        return offset, width if width <= size - offset else -1
    if size - offset < 4:
        return offset, -1
    length = np.int64(load_32(address + np.uint64(offset)))
    offset += 4
    return offset, length if length <= size - offset else -1
