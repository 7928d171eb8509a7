"""The split-block Bloom filter and XXH64 in plain Python. They are slow, and the tests' oracle.

They follow the specifications only (Parquet format, BloomFilter.md; xxHash, xxhash_spec.md), and
use neither NumPy nor Numba nor any code of the package.
"""

from __future__ import annotations

import struct

_MASK = 2**64 - 1
_P1, _P2, _P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_P4, _P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
_SALT = (0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D)
_SALT += (0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31)


def _rotl(x: int, r: int) -> int:
    return (x << r | x >> (64 - r)) & _MASK


def _round(acc: int, lane: int) -> int:
    return _rotl((acc + lane * _P2) & _MASK, 31) * _P1 & _MASK


def xxh64(data: bytes) -> int:
    """Return the XXH64 hash of ``data`` with seed 0."""
    offset, length = 0, len(data)
    if length >= 32:
        acc = [(_P1 + _P2) & _MASK, _P2, 0, -_P1 & _MASK]
        while length - offset >= 32:
            acc = [
                _round(a, lane)
                for a, lane in zip(acc, struct.unpack_from("<4Q", data, offset), strict=True)
            ]
            offset += 32
        h = sum(_rotl(a, r) for a, r in zip(acc, (1, 7, 12, 18), strict=True)) & _MASK
        for a in acc:
            h = ((h ^ _round(0, a)) * _P1 + _P4) & _MASK
    else:
        h = _P5
    h = (h + length) & _MASK
    while length - offset >= 8:
        h = (
            _rotl(h ^ _round(0, struct.unpack_from("<Q", data, offset)[0]), 27) * _P1 + _P4
        ) & _MASK
        offset += 8
    if length - offset >= 4:
        lane = struct.unpack_from("<I", data, offset)[0]
        h = (_rotl(h ^ (lane * _P1 & _MASK), 23) * _P2 + _P3) & _MASK
        offset += 4
    for byte in data[offset:]:
        h = _rotl(h ^ (byte * _P5 & _MASK), 11) * _P1 & _MASK
    h = (h ^ h >> 33) * _P2 & _MASK
    h = (h ^ h >> 29) * _P3 & _MASK
    return h ^ h >> 32


class ReferenceSbbf:
    """A filter of ``num_blocks`` blocks. Each block is a list of eight integers."""

    def __init__(self, num_blocks: int):
        self.blocks = [[0] * 8 for _ in range(num_blocks)]

    def _block_and_mask(self, hashed: int) -> tuple[list[int], list[int]]:
        block = self.blocks[(hashed >> 32) * len(self.blocks) >> 32]
        low = hashed & 0xFFFFFFFF
        return block, [1 << ((low * salt & 0xFFFFFFFF) >> 27) for salt in _SALT]

    def insert(self, data: bytes) -> None:
        block, mask = self._block_and_mask(xxh64(data))
        for i in range(8):
            block[i] |= mask[i]

    def check(self, data: bytes) -> bool:
        block, mask = self._block_and_mask(xxh64(data))
        return all(block[i] & mask[i] for i in range(8))

    def to_bytes(self) -> bytes:
        return b"".join(struct.pack("<8I", *block) for block in self.blocks)
