"""Estimate from sampled zones how many distinct values a column has, and which zones share them.

The sample is made of groups of zones. The first zones of the groups are spread over the dataset,
and the other zones of a group lie at growing distances from its first. In a sorted or clustered
column, only near zones share keys. In an unsorted one, far zones share as many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zonebloom.index.zone_map.bounds import order_type, ordered_values

_GROUPS = 10
# The distances of the third and later zones of a group from its first.
_LATER_OFFSETS = (3, 12, 48)
# If a key fills no more neighbouring zones than this on average, zones count as independent.
_MAX_INDEPENDENT_RUN = 1.05
# So many values of each zone are compared with the least and greatest values of the zones.
_VALUES_PER_ZONE = 256
_NO_HASHES = np.empty(0, dtype=np.uint64)


def draw_zones(num_zones: int, max_zones: int) -> np.ndarray:
    """Return the numbers of at most ``max_zones`` sampled zones, int64, ascending."""
    if num_zones <= max_zones:
        return np.arange(num_zones, dtype=np.int64)
    num_groups = max(1, min(_GROUPS, max_zones // 2))
    stride = num_zones / num_groups
    offsets = _offsets_in_group(stride, max(2, max_zones // num_groups))
    # Start each group at a random place, because data may repeat with the period of the stride.
    room = max(0.0, stride - offsets[-1] - 1)
    jitter = np.random.default_rng(0).random(num_groups) * room
    first_zones = (np.arange(num_groups) * stride + jitter).astype(np.int64)
    zones = np.unique(first_zones[:, None] + offsets)
    return zones[zones < num_zones]


def _offsets_in_group(stride: float, count: int) -> np.ndarray:
    """Return the distances of the zones of a group from its first, all less than the stride."""
    offsets = [0, 1, *(offset for offset in _LATER_OFFSETS if offset < stride / 2)][:count]
    # If the stride is too short for more growing distances, spread the other zones. Keep room for
    # the random places of groups.
    num_missing = count - len(offsets)
    if num_missing:
        last_offset = offsets[-1] + (stride - 1 - offsets[-1]) / 2
        offsets += np.linspace(offsets[-1], last_offset, num_missing + 1)[1:].astype(int).tolist()
    return np.unique(np.array(offsets, dtype=np.int64))


@dataclass(frozen=True, slots=True)
class Overlaps:
    """The distinct values of s sampled zones, and which zones share them."""

    # The number of rows of each zone that are not null, and of its distinct values, shape (s,).
    num_rows: np.ndarray
    num_distinct: np.ndarray
    # Element [i, j] is the share of the rows of zone i whose value zone j holds too, shape (s, s).
    shares: np.ndarray
    # One element for each distinct value of each zone: the number of the value, and of the zone.
    key_numbers: np.ndarray
    key_zones: np.ndarray

    @property
    def num_keys(self) -> int:
        return int(self.key_numbers.max()) + 1 if self.key_numbers.size else 0

    def zone_counts(self, zones: np.ndarray) -> np.ndarray:
        """Return for each value in some zones how many of them hold it, shape (values,)."""
        counts = np.bincount(self.key_numbers[np.isin(self.key_zones, zones)])
        return counts[counts > 0]


def find_overlaps(hashes: Sequence[np.ndarray]) -> Overlaps:
    """Return the overlaps of zones, given the hashes of the rows of each."""
    uniques = [np.unique(zone_hashes, return_counts=True) for zone_hashes in hashes]
    num_distinct = np.array([values.size for values, _ in uniques], dtype=np.int64)
    zones = np.repeat(np.arange(len(uniques)), num_distinct)
    values = np.concatenate([_NO_HASHES, *(values for values, _ in uniques)])
    counts = np.concatenate([num_distinct[:0], *(counts for _, counts in uniques)])
    # A stable sort keeps the zones of one value ascending.
    order = np.argsort(values, kind="stable")
    values, zones, counts = values[order], zones[order], counts[order]
    numbers = np.cumsum(np.diff(values, prepend=values[:1]) > 0)
    num_rows = np.array([zone_hashes.size for zone_hashes in hashes], dtype=np.int64)
    shares = _count_shared(numbers, zones, counts, len(hashes)) / np.maximum(num_rows, 1)[:, None]
    return Overlaps(num_rows, num_distinct, shares, numbers, zones)


def _count_shared(
    keys: np.ndarray, zones: np.ndarray, counts: np.ndarray, num_zones: int
) -> np.ndarray:
    """Return the rows of each zone whose value each zone holds, shape (s, s)."""
    num_pairs = num_zones * num_zones
    rows = np.bincount(zones * (num_zones + 1), counts, num_pairs)
    # Find the pairs of zones that share a value, by their distance in the sorted list. A product
    # of matrices would be shorter, but its threads wait for each other on a busy machine.
    first = np.arange(keys.size)
    for lag in range(1, num_zones):
        first = first[: np.searchsorted(first, keys.size - lag)]
        first = first[keys[first] == keys[first + lag]]
        if not first.size:
            break
        first_zone, second_zone = zones[first], zones[first + lag]
        rows += np.bincount(first_zone * num_zones + second_zone, counts[first], num_pairs)
        rows += np.bincount(second_zone * num_zones + first_zone, counts[first + lag], num_pairs)
    return rows.reshape(num_zones, num_zones)


def find_bound_shares(zones: Sequence[pa.ChunkedArray]) -> np.ndarray | None:
    """Return the shares of values that lie between the least and greatest values of zones.

    Element [i, j] is that of the values of zone i and the bounds of zone j. The result is None if
    PyArrow cannot compare the values.
    """
    try:
        parts = [part for zone in zones for part in _bounds_and_values(zone)]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    options = pc.RankOptions(tiebreaker="dense")
    ranks = pc.call_function("rank", [pa.concat_arrays(parts)], options).to_numpy()
    ranks_of_parts = np.split(ranks, np.cumsum([len(part) for part in parts])[:-1])
    shares = np.zeros((len(zones), len(zones)))
    for j, bounds in enumerate(ranks_of_parts[::2]):
        for i, values in enumerate(ranks_of_parts[1::2]):
            if bounds.size and values.size:
                shares[i, j] = np.mean((values >= bounds[0]) & (values <= bounds[1]))
    return shares


def _bounds_and_values(zone: pa.ChunkedArray) -> tuple[pa.Array, pa.Array]:
    """Return the least and the greatest value of a zone, and some of its values. No nulls."""
    chunks = [ordered_values(chunk) for chunk in zone.chunks]
    values = pa.chunked_array(chunks, order_type(zone.type)).drop_null().combine_chunks()
    bounds = pc.call_function("min_max", [values])
    ends = pa.array([bounds["min"], bounds["max"]], values.type).drop_null()
    places = np.linspace(0, len(values) - 1, min(len(values), _VALUES_PER_ZONE))
    return ends, values.take(places.round().astype(np.int64))


def estimate_zones_with_key(
    shares: np.ndarray, weights: np.ndarray, positions: np.ndarray, num_zones: int
) -> float:
    """Return the mean number of zones that hold the key of a random row, its own zone included.

    ``shares[i, j]`` is the share of the rows of zone i whose key zone j holds, and ``weights`` are
    the rows of each zone. The result is exact if all zones are sampled. Otherwise, shares are
    interpolated between the distances of the sampled pairs of zones.
    """
    total = weights.sum()
    if not total:
        return 0.0
    if positions.size == num_zones:
        return float(weights @ shares.sum(axis=1) / total)
    sampled_distances, mean_shares = _mean_shares_by_distance(shares, weights, positions)
    distances = np.arange(1, num_zones)
    # The mean number of zones at each distance from a zone.
    num_zones_at = 2 * (num_zones - distances) / num_zones
    estimate = 1 + num_zones_at @ np.interp(distances, sampled_distances, mean_shares)
    return float(min(num_zones, estimate))


def _mean_shares_by_distance(
    shares: np.ndarray, weights: np.ndarray, positions: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return ascending distances, and the mean share of keys that zones at each distance share."""
    first, second = np.nonzero(~np.eye(positions.size, dtype=bool))
    distances = np.abs(positions[first] - positions[second])
    # Few pairs have exactly the same distance, so distances are grouped by powers of two.
    bins = np.log2(distances).astype(int)
    num_pairs = np.bincount(bins)
    bin_weights = np.bincount(bins, weights[first])
    has_weight = bin_weights > 0
    if not has_weight.any():
        return np.ones(1), np.zeros(1)
    totals = np.bincount(bins, weights[first] * shares[first, second])
    mean_distances = np.bincount(bins, distances)[has_weight] / num_pairs[has_weight]
    return mean_distances, totals[has_weight] / bin_weights[has_weight]


def estimate_distinct(
    overlap: Overlaps, positions: np.ndarray, num_zones: int, num_non_null_rows: int
) -> int:
    """Return an estimate of the distinct values of the dataset.

    The estimate does not exceed ``num_non_null_rows``, the rows of the dataset that are not null.

    This is the lower bound of Chao and Lin (2012), "Nonparametric lower bounds for species richness
    [...] under sampling without replacement", Biometrics 68. If ``t`` zones are sampled, with a
    share ``q`` of all rows, and ``Q1`` values are found in one of them and ``Q2`` in two, then the
    number of values that are in no sampled zone is

        Q1**2 / (2 * Q2 * t / (t - 1) + Q1 * q / (1 - q))

    The estimate is too low if most values are rare and a few are frequent. If values fill runs of
    neighbouring zones, only zones far apart are compared, and the result is divided by the length
    of a run.
    """
    num_sampled_values = overlap.num_keys
    if positions.size in (0, num_zones) or not num_sampled_values:
        return num_sampled_values
    is_start = np.diff(positions, prepend=-num_zones) > _max_gap_in_group(positions)
    group_starts = np.flatnonzero(is_start)
    run_length = _run_length(overlap, positions, num_zones)
    is_independent = run_length < _MAX_INDEPENDENT_RUN or group_starts.size < 2
    zones = np.arange(positions.size) if is_independent else group_starts
    zones_per_value = overlap.zone_counts(zones)
    q1, q2 = int((zones_per_value == 1).sum()), int((zones_per_value == 2).sum())
    # Zones at the ends of files are shorter, so count rows.
    share = min(overlap.num_rows[zones].sum() / max(num_non_null_rows, 1), 1 - 1 / num_zones)
    # One zone alone has no values in two zones, so q2 is 0 and its factor does not matter.
    q2_factor = 2 * zones.size / max(zones.size - 1, 1)
    denominator = q2 * q2_factor + q1 * share / (1 - share)
    num_unseen = q1**2 / denominator if denominator else 0
    estimate = (zones_per_value.size + num_unseen) / run_length
    return round(min(max(estimate, num_sampled_values), num_non_null_rows))


def _max_gap_in_group(positions: np.ndarray) -> int:
    """Return the widest gap between zones that still belong to one group."""
    return max(1, int(positions[-1] - positions[0]) // (4 * _GROUPS))


def _run_length(overlap: Overlaps, positions: np.ndarray, num_zones: int) -> float:
    """Return the mean number of neighbouring zones that hold a value, beyond what chance gives."""
    sampled_distances, mean_shares = _mean_shares_by_distance(
        overlap.shares, overlap.num_rows, positions
    )
    max_distance = 2 * _max_gap_in_group(positions)
    is_near = sampled_distances <= max_distance
    far_share = float(mean_shares[~is_near].min()) if (~is_near).any() else 0.0
    if far_share > 0.9 or not is_near.any():
        return 1.0
    distances = np.arange(1, max_distance + 1)
    near_shares = np.interp(distances, sampled_distances, mean_shares)
    excess = np.maximum(near_shares - far_share, 0) / (1 - far_share)
    # Small excesses over many distances are noise.
    if mean_shares[is_near].max() - far_share < 0.02:
        return 1.0
    return float(min(1 + 2 * excess.sum(), num_zones))
