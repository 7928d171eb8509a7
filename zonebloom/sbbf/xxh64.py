"""XXH64 with seed 0 over Arrow buffers, one 64-bit hash a value.

Source: the xxHash specification (doc/xxhash_spec.md, section "XXH64 algorithm"). A value of
up to 31 bytes is absorbed by 8, 4 and 1 bytes at a time; a longer one first runs through
four accumulators, 32 bytes a stripe. For a fixed width the branches fold away and LLVM
vectorises the loop over values.

The kernels hash what lies under a null too: that costs less than a branch, and the caller
leaves nulls out of the filter. View arrays are the exception: a null's view may hold
anything, so it is never followed.
"""

# Numba promotes uint32 * uint32 to 64 bits and mixes of signed and unsigned to float64:
# every operand below is therefore a typed constant.

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import int32, int64, uint8, uint16, uint32, uint64, void

from zonebloom.sbbf.jit import inlined, intrinsic, kernel, readonly

PRIME_1 = np.uint64(0x9E3779B185EBCA87)
PRIME_2 = np.uint64(0xC2B2AE3D27D4EB4F)
PRIME_3 = np.uint64(0x165667B19E3779F9)
PRIME_4 = np.uint64(0x85EBCA77C2B2AE63)
PRIME_5 = np.uint64(0x27D4EB2F165667C5)

_LANE_1 = np.uint64((int(PRIME_1) + int(PRIME_2)) % 2**64)
_LANE_4 = np.uint64(-int(PRIME_1) % 2**64)
_ZERO = np.uint64(0)
_ONE = np.uint64(1)
_FOUR = np.uint64(4)
_EIGHT = np.uint64(8)
_TWELVE = np.uint64(12)
_SIXTEEN = np.uint64(16)
_STRIPE = np.uint64(32)


def _loader(bits: int):
    """Make an intrinsic that reads an unaligned little-endian integer at an address."""

    @intrinsic
    def load(typing_context, address):
        def generate(context, builder, signature, arguments):
            pointer = builder.inttoptr(arguments[0], ir.IntType(bits).as_pointer())
            value = builder.load(pointer, align=1)
            return builder.zext(value, ir.IntType(64)) if bits < 64 else value

        return uint64(uint64), generate

    return load


_load_8 = _loader(8)
_load_32 = _loader(32)
_load_64 = _loader(64)


@inlined
def _rotate(value, left, right):
    return (value << left) | (value >> right)


@inlined
def _round(accumulator, lane):
    accumulator = accumulator + lane * PRIME_2
    accumulator = (accumulator << np.uint64(31)) | (accumulator >> np.uint64(33))
    return accumulator * PRIME_1


@inlined
def _merge_round(accumulator, lane):
    return (accumulator ^ _round(_ZERO, lane)) * PRIME_1 + PRIME_4


@inlined
def _absorb_64(hashed, lane):
    hashed = hashed ^ _round(_ZERO, lane)
    return ((hashed << np.uint64(27)) | (hashed >> np.uint64(37))) * PRIME_1 + PRIME_4


@inlined
def _absorb_32(hashed, lane):
    hashed = hashed ^ (lane * PRIME_1)
    return ((hashed << np.uint64(23)) | (hashed >> np.uint64(41))) * PRIME_2 + PRIME_3


@inlined
def _absorb_8(hashed, lane):
    hashed = hashed ^ (lane * PRIME_5)
    return ((hashed << np.uint64(11)) | (hashed >> np.uint64(53))) * PRIME_1


@inlined
def _avalanche(hashed):
    hashed = (hashed ^ (hashed >> np.uint64(33))) * PRIME_2
    hashed = (hashed ^ (hashed >> np.uint64(29))) * PRIME_3
    return hashed ^ (hashed >> np.uint64(32))


@inlined
def _hash_bytes(address, length):
    remaining = length
    if length >= _STRIPE:
        lane_1 = _LANE_1
        lane_2 = PRIME_2
        lane_3 = _ZERO
        lane_4 = _LANE_4
        while remaining >= _STRIPE:
            lane_1 = _round(lane_1, _load_64(address))
            lane_2 = _round(lane_2, _load_64(address + _EIGHT))
            lane_3 = _round(lane_3, _load_64(address + _SIXTEEN))
            lane_4 = _round(lane_4, _load_64(address + np.uint64(24)))
            address += _STRIPE
            remaining -= _STRIPE
        hashed = (
            _rotate(lane_1, np.uint64(1), np.uint64(63))
            + _rotate(lane_2, np.uint64(7), np.uint64(57))
            + _rotate(lane_3, np.uint64(12), np.uint64(52))
            + _rotate(lane_4, np.uint64(18), np.uint64(46))
        )
        hashed = _merge_round(hashed, lane_1)
        hashed = _merge_round(hashed, lane_2)
        hashed = _merge_round(hashed, lane_3)
        hashed = _merge_round(hashed, lane_4)
    else:
        hashed = PRIME_5
    hashed += length
    while remaining >= _EIGHT:
        hashed = _absorb_64(hashed, _load_64(address))
        address += _EIGHT
        remaining -= _EIGHT
    if remaining >= _FOUR:
        hashed = _absorb_32(hashed, _load_32(address))
        address += _FOUR
        remaining -= _FOUR
    while remaining > _ZERO:
        hashed = _absorb_8(hashed, _load_8(address))
        address += _ONE
        remaining -= _ONE
    return _avalanche(hashed)


@kernel(void(readonly(uint8), uint64[::1]))
def hash_width_1(values, out):
    """Hash each 1-byte value; ``values`` and ``out`` have one shape ``(n,)``."""
    for i in range(values.shape[0]):
        out[i] = _avalanche(_absorb_8(PRIME_5 + _ONE, np.uint64(values[i])))


@kernel(void(readonly(uint16), uint64[::1]))
def hash_width_2(values, out):
    """Hash each 2-byte value; ``values`` and ``out`` have one shape ``(n,)``."""
    for i in range(values.shape[0]):
        value = np.uint64(values[i])
        hashed = _absorb_8(PRIME_5 + np.uint64(2), value & np.uint64(0xFF))
        out[i] = _avalanche(_absorb_8(hashed, value >> _EIGHT))


@kernel(void(readonly(uint32), uint64[::1]))
def hash_width_4(values, out):
    """Hash each 4-byte value; ``values`` and ``out`` have one shape ``(n,)``."""
    for i in range(values.shape[0]):
        out[i] = _avalanche(_absorb_32(PRIME_5 + _FOUR, np.uint64(values[i])))


@kernel(void(readonly(uint64), uint64[::1]))
def hash_width_8(values, out):
    """Hash each 8-byte value; ``values`` and ``out`` have one shape ``(n,)``."""
    for i in range(values.shape[0]):
        out[i] = _avalanche(_absorb_64(PRIME_5 + _EIGHT, values[i]))


@kernel(void(uint64, uint64, uint64[::1]))
def hash_stride(address, width, out):
    """Hash ``out.size`` values of ``width`` bytes each, lying one after another."""
    if width == _SIXTEEN:
        for i in range(out.shape[0]):
            at = address + np.uint64(i) * _SIXTEEN
            hashed = _absorb_64(PRIME_5 + _SIXTEEN, _load_64(at))
            out[i] = _avalanche(_absorb_64(hashed, _load_64(at + _EIGHT)))
    elif width == _STRIPE:
        for i in range(out.shape[0]):
            out[i] = _hash_bytes(address + np.uint64(i) * _STRIPE, _STRIPE)
    else:
        for i in range(out.shape[0]):
            out[i] = _hash_bytes(address + np.uint64(i) * width, width)


@kernel(
    void(uint64, readonly(int32), uint64[::1]),
    void(uint64, readonly(int64), uint64[::1]),
)
def hash_offsets(address, offsets, out):
    """Hash values of variable length: value i is bytes ``offsets[i]`` to ``offsets[i + 1]``.

    ``offsets`` has shape ``(n + 1,)`` and counts from ``address``.
    """
    for i in range(out.shape[0]):
        start = np.uint64(offsets[i])
        out[i] = _hash_bytes(address + start, np.uint64(offsets[i + 1]) - start)


@kernel(void(uint64, readonly(uint64), uint64, uint64, uint64[::1]))
def hash_views(views, buffers, validity, validity_offset, out):
    """Hash the values of an Arrow view array.

    Parameters
    ----------
    views : uint64
        Address of the first 16-byte view: length, then 12 inlined bytes or prefix,
        buffer number and offset (Arrow columnar format, "Variable-size Binary View").
    buffers : uint64 array, shape (b,)
        Addresses of the data buffers.
    validity : uint64
        Address of the validity bitmap, 0 when there are no nulls.
    validity_offset : uint64
        Bit of the first value.
    out : uint64 array, shape (n,)
        The hashes; 0 under a null.
    """
    for i in range(out.shape[0]):
        if validity != _ZERO:
            bit = validity_offset + np.uint64(i)
            byte = _load_8(validity + (bit >> np.uint64(3)))
            if (byte >> (bit & np.uint64(7))) & _ONE == _ZERO:
                out[i] = _ZERO
                continue
        view = views + np.uint64(i) * _SIXTEEN
        length = _load_32(view)
        if length <= _TWELVE:
            out[i] = _hash_bytes(view + _FOUR, length)
        else:
            start = _load_32(view + _TWELVE)
            out[i] = _hash_bytes(buffers[_load_32(view + _EIGHT)] + start, length)
