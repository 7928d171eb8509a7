"""What a few zones say of a column: distinct values, and zones that hold a key.

Zones are drawn in groups, the first of each spread over the dataset, the others at growing
distances from it. Near pairs tell sorted and clustered columns, whose keys fill neighbouring
zones, from those whose keys lie anywhere, which far pairs tell.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_GROUPS = 10
# Distances in a group grow by this factor from the second on: 0, 1, 3, 12, 48.
_GROWTH = 4
# Up to so many zones for a run of one key, zones are taken for drawn independently.
_SCATTERED = 1.05
_NO_HASHES = np.empty(0, dtype=np.uint64)


def draw_zones(num_zones: int, wanted: int, seed: int = 0) -> np.ndarray:
    if num_zones <= wanted:
        return np.arange(num_zones, dtype=np.int64)
    groups = max(1, min(_GROUPS, wanted // 2))
    stride = num_zones / groups
    offsets = _offsets(stride, max(2, wanted // groups))
    # A zone anywhere in its stretch, so that no period of the data is met again and again.
    room = max(0.0, stride - offsets[-1] - 1)
    jitter = np.random.default_rng(seed).random(groups) * room
    first = (np.arange(groups) * stride + jitter).astype(np.int64)
    drawn = np.unique(first[:, None] + offsets)
    return drawn[drawn < num_zones]


def _offsets(stride: float, count: int) -> np.ndarray:
    """Distances of a group's zones from its first, all within its stretch."""
    offsets, next_one = [0, 1], 3
    while len(offsets) < count and next_one < stride / 2:
        offsets.append(next_one)
        next_one *= _GROWTH
    # What is left goes where a stretch is too short for more distances: to far zones.
    left = count - len(offsets)
    if left:
        offsets += np.linspace(offsets[-1], stride - 1, left + 1)[1:].astype(int).tolist()
    return np.unique(np.array(offsets, dtype=np.int64))


@dataclass(frozen=True, slots=True)
class Overlaps:
    """The distinct values of sampled zones, and which zones share them."""

    # Rows of each zone that are not null, and its distinct values; shape (s,).
    num_rows: np.ndarray
    num_distinct: np.ndarray
    # Rows, and values, of the one zone whose value the other holds too; shape (s, s).
    shared_rows: np.ndarray
    shared_values: np.ndarray
    # Each distinct value of each zone: its number, and its zone's.
    key_numbers: np.ndarray
    key_zones: np.ndarray

    @property
    def num_keys(self) -> int:
        return int(self.key_numbers.max()) + 1 if self.key_numbers.size else 0

    def zone_counts(self, among: np.ndarray) -> np.ndarray:
        """How many of some zones hold each value they hold, shape (values,)."""
        counts = np.bincount(self.key_numbers[np.isin(self.key_zones, among)])
        return counts[counts > 0]


def find_overlaps(hashes: list[np.ndarray]) -> Overlaps:
    uniques = [np.unique(each, return_counts=True) for each in hashes]
    distinct = np.array([values.size for values, _ in uniques], dtype=np.int64)
    zones = np.repeat(np.arange(len(uniques)), distinct)
    every = np.concatenate([values for values, _ in uniques]) if uniques else _NO_HASHES
    counts = np.concatenate([counts for _, counts in uniques]) if uniques else _NO_HASHES
    # Stable: under one value the zones ascend.
    order = np.argsort(every, kind="stable")
    every, zones, counts = every[order], zones[order], counts[order]
    keys = np.cumsum(np.diff(every, prepend=every[:1]) > 0)
    sizes = np.array([each.size for each in hashes], dtype=np.int64)
    return Overlaps(sizes, distinct, *_shared(keys, zones, counts, len(uniques)), keys, zones)


def _shared(
    keys: np.ndarray, zones: np.ndarray, counts: np.ndarray, num_zones: int
) -> tuple[np.ndarray, np.ndarray]:
    """Rows and values of each zone that each zone holds, shape (s, s) both."""
    cells = num_zones * num_zones
    own = zones * (num_zones + 1)
    rows = np.bincount(own, counts, cells)
    values = np.bincount(own, minlength=cells).astype(np.float64)
    # Pairs under one value, by how far they lie apart in the list. A product of matrices would
    # be shorter, and its threads wait for each other on a busy machine.
    first = np.arange(keys.size)
    for lag in range(1, num_zones):
        first = first[: np.searchsorted(first, keys.size - lag)]
        first = first[keys[first] == keys[first + lag]]
        if not first.size:
            break
        one, other = zones[first], zones[first + lag]
        there, back = one * num_zones + other, other * num_zones + one
        rows += np.bincount(there, counts[first], cells)
        rows += np.bincount(back, counts[first + lag], cells)
        both = np.bincount(there, minlength=cells)
        values += both + both.reshape(num_zones, num_zones).T.ravel()
    return rows.reshape(num_zones, num_zones), values.reshape(num_zones, num_zones)


def estimate_zones_with_key(
    shares: np.ndarray, weights: np.ndarray, positions: np.ndarray, num_zones: int
) -> float:
    """Zones that hold a key drawn from the dataset, its own included, on average.

    Exact when every zone was sampled; else interpolated between the distances of sampled pairs.
    """
    total = weights.sum()
    if not total:
        return 0.0
    if positions.size == num_zones:
        return float(weights @ shares.sum(axis=1) / total)
    at, share = _by_distance(shares, weights, positions)
    distances = np.arange(1, num_zones)
    pairs = 2 * (num_zones - distances) / num_zones
    return float(min(num_zones, 1 + pairs @ np.interp(distances, at, share)))


def _by_distance(
    shares: np.ndarray, weights: np.ndarray, positions: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    one, other = np.nonzero(~np.eye(positions.size, dtype=bool))
    distances = np.abs(positions[one] - positions[other])
    # Distances of one power of two count as one: few pairs are as far apart as each other.
    bins = np.log2(distances).astype(int)
    count = np.bincount(bins)
    weight = np.bincount(bins, weights[one])
    used = weight > 0
    share = np.bincount(bins, weights[one] * shares[one, other])[used] / weight[used]
    if not used.any():
        return np.ones(1), np.zeros(1)
    return (np.bincount(bins, distances)[used] / count[used]), share


def estimate_distinct(overlap: Overlaps, positions: np.ndarray, num_zones: int, limit: int) -> int:
    """Distinct values of the dataset, by the lower bound of Chao and Lin (2012), "Nonparametric
    lower bounds for species richness [...] under sampling without replacement", Biometrics 68.

    Of ``t`` zones, a share ``q`` of all, ``Q1`` values are met in one and ``Q2`` in two; unseen are

        Q1**2 / (2 * Q2 * t / (t - 1) + Q1 * q / (1 - q))

    It falls short where most values are rare and a few are everywhere. Where a value fills
    neighbouring zones, only zones far apart are compared, and the result is divided by its run.
    """
    seen = overlap.num_keys
    if positions.size in (0, num_zones) or not seen:
        return seen
    starts = np.flatnonzero(np.diff(positions, prepend=-(1 << 62)) > _span(positions))
    run = _run_length(overlap, positions, num_zones)
    among = np.arange(positions.size) if run < _SCATTERED or starts.size < 2 else starts
    per_value = overlap.zone_counts(among)
    once, twice = int((per_value == 1).sum()), int((per_value == 2).sum())
    share = among.size / num_zones
    below = 2 * twice * among.size / (among.size - 1) + once * share / (1 - share)
    estimate = (per_value.size + (once**2 / below if below else 0)) / run
    return round(min(max(estimate, seen), limit))


def _span(positions: np.ndarray) -> int:
    """The widest gap that still counts as within a group."""
    return max(1, int(positions[-1] - positions[0]) // (4 * _GROUPS))


def _run_length(overlap: Overlaps, positions: np.ndarray, num_zones: int) -> float:
    """Neighbouring zones that hold a value beyond what chance would have hold it."""
    shares = overlap.shared_values / np.maximum(overlap.num_distinct, 1)[:, None]
    at, share = _by_distance(shares, overlap.num_distinct, positions)
    span = 2 * _span(positions)
    near = at <= span
    far = float(share[~near].min()) if (~near).any() else 0.0
    if far > 0.9 or not near.any():
        return 1.0
    distances = np.arange(1, span + 1)
    excess = np.maximum(np.interp(distances, at, share) - far, 0) / (1 - far)
    # Small excesses over many distances are noise.
    if share[near].max() - far < 0.02:
        return 1.0
    return float(min(1 + 2 * excess.sum(), num_zones))
