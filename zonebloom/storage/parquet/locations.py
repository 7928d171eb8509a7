"""Page locations out of an OffsetIndex, fast: a build reads those of every column chunk."""

from __future__ import annotations

import numpy as np
from numba import int64, uint8

from zonebloom.sbbf.jit import inlined, kernel, readonly

# A field header of the compact protocol: one field on from the last, and its type.
_NEXT_I32 = np.uint8(0x15)
_NEXT_I64 = np.uint8(0x16)
_NEXT_LIST = np.uint8(0x19)
_STOP = np.uint8(0)
_LIST_OF_STRUCTS = 0x0C
_LONG_LIST = 0xFC


@inlined
def _varint(data, at):
    """An unsigned varint and where it ends; the end is -1 when the bytes run out."""
    value = np.uint64(0)
    shift = np.uint64(0)
    while at < data.shape[0] and shift < np.uint64(64):
        byte = np.uint64(data[at])
        at += 1
        value |= (byte & np.uint64(0x7F)) << shift
        if byte < np.uint64(0x80):
            return value, at
        shift += np.uint64(7)
    return value, -1


@inlined
def _zigzag(value):
    return np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1))


@kernel(int64(readonly(uint8), int64[:, ::1]))
def page_locations(data, out):
    """Read the page locations of an OffsetIndex laid out as every known writer does.

    Pages found, or -1 when the bytes are laid out in another way or ``out`` is small.
    """
    if data.shape[0] < 2 or data[0] != _NEXT_LIST:
        return -1
    at = 2
    count = np.int64(data[1] >> np.uint8(4))
    if data[1] & np.uint8(0x0F) != _LIST_OF_STRUCTS:
        return -1
    if data[1] == _LONG_LIST:
        long_count, at = _varint(data, at)
        if at < 0 or long_count > np.uint64(out.shape[0]):
            return -1
        count = np.int64(long_count)
    if count > out.shape[0]:
        return -1
    for page in range(count):
        for field in range(3):
            expected = _NEXT_I32 if field == 1 else _NEXT_I64
            if at >= data.shape[0] or data[at] != expected:
                return -1
            value, at = _varint(data, at + 1)
            if at < 0:
                return -1
            out[page, field] = _zigzag(value)
        if at >= data.shape[0] or data[at] != _STOP:
            return -1
        at += 1
    return count
