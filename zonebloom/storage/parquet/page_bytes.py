"""What kernels read of the bytes of a page; the end of what is there is -1 where they run out.

Source: thrift-compact-protocol.md, and Encodings.md of the Parquet format.
"""

from __future__ import annotations

import numpy as np

from zonebloom.sbbf.jit import inlined
from zonebloom.sbbf.xxh64 import load_8, load_32, load_64


@inlined
def varint(data, at, stop):
    """An unsigned varint and where it ends; the end is -1 when the bytes run out."""
    value = np.uint64(0)
    shift = np.uint64(0)
    while at < stop and shift < np.uint64(64):
        byte = np.uint64(data[at])
        at += 1
        value |= (byte & np.uint64(0x7F)) << shift
        if byte < np.uint64(0x80):
            return value, at
        shift += np.uint64(7)
    return value, -1


@inlined
def zigzag(value):
    return np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1))


@inlined
def byte_at(address, at):
    return load_8(address + np.uint64(at))


@inlined
def varint_at(address, at, stop):
    """An unsigned varint at an address and where it ends; the end is -1 when the bytes run out."""
    value = np.uint64(0)
    shift = np.uint64(0)
    while at < stop and shift < np.uint64(35):
        byte = byte_at(address, at)
        at += 1
        value |= (byte & np.uint64(0x7F)) << shift
        if byte < np.uint64(0x80):
            return value, at
        shift += np.uint64(7)
    return value, -1


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
