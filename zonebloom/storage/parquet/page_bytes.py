"""What kernels read of the bytes of a page; the end of what is there is -1 where they run out.

Source: thrift-compact-protocol.md, and Encodings.md of the Parquet format.
"""

from __future__ import annotations

import numpy as np

from zonebloom.sbbf.addresses import copy_1, copy_8, copy_64, load_8, load_32, load_64
from zonebloom.sbbf.jit import inlined

# Of a run, in values or groups of eight: more are in no page.
_MOST_LENGTH = (1 << 31) - 1


@inlined
def zigzag(value):
    return np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1))


@inlined
def byte_at(address, at):
    return load_8(address + np.uint64(at))


@inlined
def copy_bytes(target, source, length):
    """Copy some bytes to a place that they do not reach into."""
    size = np.uint64(length)
    done = np.uint64(0)
    while done + np.uint64(64) <= size:
        copy_64(target + done, source + done)
        done += np.uint64(64)
    while done + np.uint64(8) <= size:
        copy_8(target + done, source + done)
        done += np.uint64(8)
    while done < size:
        copy_1(target + done, source + done)
        done += np.uint64(1)


@inlined
def varint_at(address, at, stop):
    """An unsigned varint at an address and where it ends; the end is -1 when the bytes run out."""
    value = np.uint64(0)
    shift = np.uint64(0)
    while at < stop and shift < np.uint64(64):
        byte = byte_at(address, at)
        at += 1
        value |= (byte & np.uint64(0x7F)) << shift
        if byte < np.uint64(0x80):
            return value, at
        shift += np.uint64(7)
    return value, -1


@inlined
def run_at(address, at, stop, width, left):
    """A run of the hybrid of RLE and bit-packing, of ``left`` values of some width at most 32.

    How many values it has, -1 where it is not one; the value, -1 where they are bit-packed; where
    its values begin, and where they end.
    """
    header, at = varint_at(address, at, stop)
    length = np.int64(header >> np.uint64(1))
    if at < 0 or length <= 0 or length > _MOST_LENGTH:
        return np.int64(-1), np.int64(-1), at, at
    if header & np.uint64(1):
        # Writers pad the last run, to eight values or to many more.
        if length * width > stop - at:
            return np.int64(-1), np.int64(-1), at, at
        return min(length * 8, left), np.int64(-1), at, at + length * width
    num_bytes = (width + 7) >> 3
    if length > left or num_bytes > stop - at:
        return np.int64(-1), np.int64(-1), at, at
    value = np.int64(0)
    for i in range(num_bytes):
        value |= np.int64(byte_at(address, at + i)) << (8 * i)
    if value >> width:
        return np.int64(-1), np.int64(-1), at, at
    return length, value, at, at + num_bytes


@inlined
def bits_at(address, bit, width, stop):
    """A value of up to 32 bits that begins at a bit, of bytes that end at ``stop``."""
    at = bit >> 3
    shift = np.uint64(bit & 7)
    if stop - at >= 8:
        value = load_64(address + np.uint64(at)) >> shift
    else:
        value = np.uint64(0)
        for i in range(stop - at):
            value |= byte_at(address, at + i) << np.uint64(8 * i)
        value >>= shift
    return value & ((np.uint64(1) << np.uint64(width)) - np.uint64(1))


@inlined
def text_at(address, at, size, width):
    """Where a value begins and its length; the length is -1 when the bytes run out.

    A width of 0 says that each value has its length before it, 4 bytes.
    """
    if width:
        return at, width if width <= size - at else -1
    if size - at < 4:
        return at, -1
    length = np.int64(load_32(address + np.uint64(at)))
    at += 4
    return at, length if length <= size - at else -1
