"""Kernels for XXH64 with seed 0 over Arrow buffers (doc/xxhash_spec.md of xxHash).

Each value gives one 64-bit hash. LLVM vectorises the loop over values of a fixed width. The bytes
under a null are hashed too, because that costs less than a branch.
"""

# Numba promotes uint32 * uint32 to 64 bits, and a mix of signed and unsigned integers to float64.
# Therefore every operand below is a typed constant.

from __future__ import annotations

import numpy as np
from numba import int32, int64, uint8, uint16, uint32, uint64, void

from zonebloom.sbbf.addresses import load_8, load_32, load_64
from zonebloom.sbbf.jit import kernel, linked, readonly

PRIME_1 = np.uint64(0x9E3779B185EBCA87)
PRIME_2 = np.uint64(0xC2B2AE3D27D4EB4F)
PRIME_3 = np.uint64(0x165667B19E3779F9)
PRIME_4 = np.uint64(0x85EBCA77C2B2AE63)
PRIME_5 = np.uint64(0x27D4EB2F165667C5)

_U0, _U1, _U2, _U4, _U8, _U16, _U24, _U32 = map(np.uint64, (0, 1, 2, 4, 8, 16, 24, 32))


# The rotations are written out, because LLVM does not vectorise a loop that calls a function.


@linked
def _round(accumulator, lane):
    accumulator = accumulator + lane * PRIME_2
    return ((accumulator << np.uint64(31)) | (accumulator >> np.uint64(33))) * PRIME_1


@linked
def _absorb_64(hashed, lane):
    hashed = hashed ^ _round(_U0, lane)
    return ((hashed << np.uint64(27)) | (hashed >> np.uint64(37))) * PRIME_1 + PRIME_4


@linked
def _absorb_32(hashed, lane):
    hashed = hashed ^ (lane * PRIME_1)
    return ((hashed << np.uint64(23)) | (hashed >> np.uint64(41))) * PRIME_2 + PRIME_3


@linked
def _absorb_8(hashed, lane):
    hashed = hashed ^ (lane * PRIME_5)
    return ((hashed << np.uint64(11)) | (hashed >> np.uint64(53))) * PRIME_1


@linked
def _avalanche(hashed):
    hashed = (hashed ^ (hashed >> np.uint64(33))) * PRIME_2
    hashed = (hashed ^ (hashed >> np.uint64(29))) * PRIME_3
    return hashed ^ (hashed >> _U32)


@linked
def _merge_lane(hashed, lane):
    return (hashed ^ _round(_U0, lane)) * PRIME_1 + PRIME_4


@linked
def hash_memory(address, length, seed):
    remaining = length
    hashed = seed + PRIME_5
    if length >= _U32:
        lane_1, lane_2 = seed + PRIME_1 + PRIME_2, seed + PRIME_2
        lane_3, lane_4 = seed, seed - PRIME_1
        while remaining >= _U32:
            lane_1 = _round(lane_1, load_64(address))
            lane_2 = _round(lane_2, load_64(address + _U8))
            lane_3 = _round(lane_3, load_64(address + _U16))
            lane_4 = _round(lane_4, load_64(address + _U24))
            address += _U32
            remaining -= _U32
        hashed = (lane_1 << _U1) | (lane_1 >> np.uint64(63))
        hashed += (lane_2 << np.uint64(7)) | (lane_2 >> np.uint64(57))
        hashed += (lane_3 << np.uint64(12)) | (lane_3 >> np.uint64(52))
        hashed += (lane_4 << np.uint64(18)) | (lane_4 >> np.uint64(46))
        hashed = _merge_lane(hashed, lane_1)
        hashed = _merge_lane(hashed, lane_2)
        hashed = _merge_lane(hashed, lane_3)
        hashed = _merge_lane(hashed, lane_4)
    hashed += length
    while remaining >= _U8:
        hashed = _absorb_64(hashed, load_64(address))
        address += _U8
        remaining -= _U8
    if remaining >= _U4:
        hashed = _absorb_32(hashed, load_32(address))
        address += _U4
        remaining -= _U4
    while remaining > _U0:
        hashed = _absorb_8(hashed, load_8(address))
        address += _U1
        remaining -= _U1
    return _avalanche(hashed)


@kernel(void(readonly(uint8), uint64[::1]))
def hash_width_1(values, out):
    for i in range(values.shape[0]):
        out[i] = _avalanche(_absorb_8(PRIME_5 + _U1, np.uint64(values[i])))


@kernel(void(readonly(uint16), uint64[::1]))
def hash_width_2(values, out):
    for i in range(values.shape[0]):
        value = np.uint64(values[i])
        hashed = _absorb_8(PRIME_5 + _U2, value & np.uint64(0xFF))
        out[i] = _avalanche(_absorb_8(hashed, value >> _U8))


@kernel(void(readonly(uint32), uint64[::1]))
def hash_width_4(values, out):
    for i in range(values.shape[0]):
        out[i] = _avalanche(_absorb_32(PRIME_5 + _U4, np.uint64(values[i])))


@kernel(void(readonly(uint64), uint64[::1]))
def hash_width_8(values, out):
    for i in range(values.shape[0]):
        out[i] = _avalanche(_absorb_64(PRIME_5 + _U8, values[i]))


@kernel(void(uint64, uint64, uint64[::1]))
def hash_stride(address, width, out):
    if width == _U16:
        for i in range(out.shape[0]):
            start = address + np.uint64(i) * _U16
            hashed = _absorb_64(PRIME_5 + _U16, load_64(start))
            out[i] = _avalanche(_absorb_64(hashed, load_64(start + _U8)))
    else:
        for i in range(out.shape[0]):
            out[i] = hash_memory(address + np.uint64(i) * width, width, _U0)


@kernel(
    void(uint64, readonly(int32), uint64[::1]),
    void(uint64, readonly(int64), uint64[::1]),
)
def hash_offsets(address, offsets, out):
    """Hash values of variable length. Value i lies from ``offsets[i]`` to ``offsets[i + 1]``."""
    for i in range(out.shape[0]):
        start = np.uint64(offsets[i])
        out[i] = hash_memory(address + start, np.uint64(offsets[i + 1]) - start, _U0)
