"""Decode the postings of a hash index: the zones of a key that many zones hold."""

from __future__ import annotations

import struct

import numpy as np

_HEAD = struct.Struct("<QQ")


def decode_posting(piece: bytes, num_zones: int) -> np.ndarray:
    """Return the zones of a posting, int64, ascending. Raise `ValueError` if it is impossible.

    ``piece`` begins with the checksum, which was verified.
    """
    _, count = _HEAD.unpack_from(piece)
    data = np.frombuffer(piece, dtype=np.uint8, offset=_HEAD.size)
    if not 0 < count <= num_zones:
        raise ValueError(f"a posting claims {count:,} of {num_zones:,} zones")
    steps = _decode_numbers(data, count) + 1
    # A sum of forged numbers may overflow 64 bits.
    if steps.sum(dtype=float) > num_zones:
        raise ValueError("a posting has zones that do not exist")
    return np.cumsum(steps) - 1


def _decode_numbers(data: np.ndarray, count: int) -> np.ndarray:
    """Decode the first ``count`` LEB128 numbers, each below 2**35."""
    ends = np.flatnonzero(data < 128)[:count]
    if ends.size < count:
        raise ValueError("a posting has fewer zones than it claims")
    starts = np.concatenate(([0], ends[:-1] + 1))
    if (ends - starts > 4).any():
        raise ValueError("a posting has a number that is too large")
    used = data[: ends[-1] + 1].astype(np.int64)
    shifts = 7 * (np.arange(used.size) - np.repeat(starts, ends - starts + 1))
    return np.add.reduceat((used & 127) << shifts, starts)
