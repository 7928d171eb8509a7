"""Estimate the size of the zone Bloom index of a column from the pairs of its hash index."""

from __future__ import annotations

from bisect import bisect_right
from functools import cache
from statistics import NormalDist

import numpy as np

from zonebloom.index.hash.file import Groups
from zonebloom.index.hash.spool import SortedPairs
from zonebloom.index.table import ZoneRuns
from zonebloom.sbbf.sizing import (
    DEFAULT_ZONE_PROBABILITY,
    false_positive_probability,
    size_for,
)
from zonebloom.sbbf.spec import BYTES_PER_BLOCK

_ZONE_ROWS = 8192
# Bytes of a row of a table of zone filters without the filter.
_ROW_BYTES = 25
# Distinct values estimated from set bits have a standard deviation of 0.92 * √values.
_FOLD_DEVIATION = 0.92
# Deviations of a normal distribution, all equally likely.
_NORMAL_STEPS = [NormalDist().inv_cdf((i + 0.5) / 16) for i in range(16)]
# An estimate may be wrong by so many standard deviations.
_DEVIATIONS = 2.5
_MIN_SAMPLED_PAIRS = 1 << 18
# The number of distinct hashes of a zone is extrapolated from this many.
_SAMPLED_PAIRS_PER_ZONE = 1024


def estimate_bloom_bytes(pairs: SortedPairs, runs: ZoneRuns, stop_at: float) -> float:
    """Return the size that the zone Bloom index of the same rows has at least, very likely.

    Count a sample of the pairs if that shows that the size is at least ``stop_at``.
    """
    from zonebloom.index.hash import encode_kernels

    shift = max(0, (_ZONE_ROWS // runs.items).bit_length() - 1) if runs.items > 0 else 0
    groups = Groups.of_runs(runs.num_zones, shift)
    group_of_zone = groups.by_zone()
    counts = np.zeros(len(groups), dtype=np.int64)
    if shift or runs.items <= _ZONE_ROWS:
        num_filters = np.ones(len(groups), dtype=np.int64)
    else:
        _, _, num_rows = runs.locate(np.arange(len(groups)))
        num_filters = -(-num_rows.astype(np.int64) // _ZONE_ROWS)
    num_sampled = max(_MIN_SAMPLED_PAIRS, _SAMPLED_PAIRS_PER_ZONE * len(groups))
    num_parts = 1 << pairs.part_bits
    num_pairs = 0
    # Every part has a random share of the hashes of each zone.
    for number in range(num_parts):
        part = pairs.part(number)
        encode_kernels.count_distinct(part, pairs.bits.zone_bits, group_of_zone, counts)
        if num_pairs <= num_sampled < num_pairs + part.size:
            scale = num_parts / (number + 1)
            fewest = counts - _DEVIATIONS * np.sqrt(counts)
            size = _bloom_bytes(fewest.clip(min=0) * scale, num_filters)
            if size >= stop_at:
                return size
        num_pairs += part.size
    return _bloom_bytes(counts, num_filters)


def _bloom_bytes(counts: np.ndarray, num_filters: np.ndarray) -> float:
    """Return the size that zone filters have at least, very likely.

    Each of ``counts`` is the distinct values of so many filters together.
    """
    sizes, most_values = _folded_sizes()
    # Filters are smallest if each value is in one of them only.
    ndv = counts / num_filters
    # A filter is folded by its set bits, and so as if it had a few values more or less.
    deviations = _FOLD_DEVIATION * np.sqrt(ndv)
    outcomes = np.array(
        [sizes[np.searchsorted(most_values, ndv + step * deviations)] for step in _NORMAL_STEPS]
    )
    variance = (outcomes.var(axis=0) * num_filters).sum()
    likely = (outcomes.mean(axis=0) * num_filters).sum() - _DEVIATIONS * np.sqrt(variance)
    smallest = (outcomes.min(axis=0) * num_filters).sum()
    return float(max(likely, smallest) + _ROW_BYTES * num_filters.sum())


@cache
def _folded_sizes() -> tuple[np.ndarray, np.ndarray]:
    """Return the sizes of a folded zone filter, and the distinct values up to which each is used.

    There is no such number for the last size.
    """
    probability = DEFAULT_ZONE_PROBABILITY
    full_size = size_for(_ZONE_ROWS, probability)
    sizes = [BYTES_PER_BLOCK << i for i in range((full_size // BYTES_PER_BLOCK).bit_length())]
    most_values = [
        bisect_right(
            range(1, _ZONE_ROWS),
            probability,
            key=lambda ndv, size=size: false_positive_probability(ndv, size),
        )
        for size in sizes[:-1]
    ]
    return np.array(sizes), np.array(most_values)
