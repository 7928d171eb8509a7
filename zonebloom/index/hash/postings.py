"""Decode the postings of a hash index: the groups of zones of a key that many zones hold."""

from __future__ import annotations

import struct

import numpy as np

from zonebloom.index.hash.file import BITMAP, GAPS, RUNS

_HEAD = struct.Struct("<QII")


def decode_posting(piece: bytes, num_groups: int) -> np.ndarray:
    """Return the groups of a posting, int64, ascending. Raise `ValueError` if it is impossible.

    ``piece`` begins with the checksum, which was verified.
    """
    _, encoding, count = _HEAD.unpack_from(piece)
    data = np.frombuffer(piece, dtype=np.uint8, offset=_HEAD.size)
    if not 0 < count <= num_groups:
        raise ValueError(f"a posting claims {count:,} of {num_groups:,} groups")
    if encoding == BITMAP:
        first = int(data[:8].view("<u8")[0]) if data.size >= 8 else num_groups
        groups = np.flatnonzero(np.unpackbits(data[8:], bitorder="little"))
        if first >= num_groups or groups.size != count:
            raise ValueError("a bitmap does not have as many groups as it claims")
        groups += first
    elif encoding == GAPS:
        steps = _varints(data, count) + 1
        if steps.sum(dtype=float) > num_groups:
            raise ValueError("a posting has groups that do not exist")
        groups = np.cumsum(steps) - 1
    elif encoding == RUNS:
        groups = _decode_runs(data, count, num_groups)
    else:
        raise ValueError(f"a posting has the unknown encoding {encoding}")
    if groups[0] < 0 or groups[-1] >= num_groups or groups.size != count:
        raise ValueError("a posting has groups that do not exist")
    return groups


def _decode_runs(data: np.ndarray, count: int, num_groups: int) -> np.ndarray:
    # A run has at least one group, so there are at most `count` runs.
    values = _varints(data, None)
    gaps, lengths = values[0 : 2 * count : 2], values[1 : 2 * count : 2] + 1
    gaps = gaps[: lengths.size]
    num_runs = int(np.searchsorted(np.cumsum(lengths), count)) + 1
    gaps, lengths = gaps[:num_runs], lengths[:num_runs]
    if num_runs > lengths.size or lengths.sum() != count:
        raise ValueError("the runs of a posting do not have as many groups as it claims")
    if gaps.sum(dtype=float) > num_groups:
        raise ValueError("a posting has groups that do not exist")
    before = np.cumsum(lengths) - lengths
    firsts = np.cumsum(gaps) + before
    if firsts[-1] + lengths[-1] > num_groups:
        raise ValueError("a posting has groups that do not exist")
    return np.repeat(firsts - before, lengths) + np.arange(count)


def _varints(data: np.ndarray, count: int | None) -> np.ndarray:
    """Decode LEB128 numbers below 2**35: the first ``count``, or all."""
    ends = np.flatnonzero(data < 128)
    if count is not None:
        if ends.size < count:
            raise ValueError("a posting has fewer numbers than it claims")
        ends = ends[:count]
    if not ends.size:
        raise ValueError("a posting has no numbers")
    starts = np.concatenate(([0], ends[:-1] + 1))
    if (ends - starts > 4).any():
        raise ValueError("a posting has a number that is too large")
    used = data[: ends[-1] + 1].astype(np.int64)
    shifts = 7 * (np.arange(used.size) - np.repeat(starts, ends - starts + 1))
    return np.add.reduceat((used & 127) << shifts, starts)
