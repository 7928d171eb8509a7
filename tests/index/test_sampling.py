"""Compare estimates from sampled zones with counts over all zones."""

from __future__ import annotations

import numpy as np
import pytest

from zonebloom.advise.sample import (
    draw_zones,
    estimate_distinct,
    estimate_zones_with_key,
    find_overlaps,
)

ZONE = 250
ROWS = 100_000
ZONES = ROWS // ZONE
AT = np.arange(ROWS)


def rng():
    return np.random.default_rng(7)


def zipf(exponent, values):
    weights = 1 / np.arange(1, values + 1) ** exponent
    return rng().choice(values, ROWS, p=weights / weights.sum())


# Values, and the factors by which estimates of distinct values and of zones may be off.
COLUMNS = {
    "unique": (rng().permutation(ROWS), 1.01, 1.01),
    "sorted": (AT, 1.01, 1.01),
    "twenty of each, anywhere": (rng().permutation(ROWS) // 20, 1.2, 1.05),
    "many of each, anywhere": (rng().integers(0, 2_500, ROWS), 1.05, 1.05),
    "two": (AT % 2, 1.0, 1.001),
    "constant": (AT * 0, 1.0, 1.001),
    "sorted with repeats": (AT // 20, 1.1, 1.1),
    "runs of one and a half zones": (AT // (3 * ZONE // 2), 1.6, 1.5),
    "runs of five zones": (AT // (5 * ZONE), 1.6, 1.6),
    "runs of twenty zones": (AT // (20 * ZONE), 2.5, 2.5),
    "clustered": (AT // ZONE * 25 + rng().integers(0, 250, ROWS), 1.4, 1.4),
    "half rare": (np.where(rng().random(ROWS) < 0.5, -1, rng().permutation(ROWS)), 1.1, 1.05),
    "zipf 0.8": (zipf(0.8, 20_000), 2, 1.05),
    "zipf 1.2": (zipf(1.2, 20_000), 3, 1.05),
}


def hashed(values):
    return values.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)


def brute_force(values):
    """Return the number of distinct values, and the mean number of zones with a row's value."""
    pairs = np.unique(np.stack([values, AT // ZONE]), axis=1)
    distinct, zone_counts = np.unique(pairs[0], return_counts=True)
    return distinct.size, zone_counts[np.searchsorted(distinct, values)].mean()


def estimates(values, wanted):
    positions = draw_zones(ZONES, wanted)
    result = find_overlaps([hashed(values[zone * ZONE : (zone + 1) * ZONE]) for zone in positions])
    shares = result.shared_rows / result.num_rows[:, None]
    return (
        estimate_distinct(result, positions, ZONES, ROWS),
        estimate_zones_with_key(shares, result.num_rows, positions, ZONES),
    )


@pytest.mark.parametrize("name", COLUMNS)
def test_estimates_are_near_the_exact_figures(name):
    values, distinct_factor, zones_factor = COLUMNS[name]
    distinct, zones = brute_force(values)
    guessed_distinct, guessed_zones = estimates(values, 50)
    assert distinct / distinct_factor <= guessed_distinct <= distinct * distinct_factor
    assert zones / zones_factor <= guessed_zones <= zones * zones_factor


@pytest.mark.parametrize("name", COLUMNS)
def test_a_sample_of_all_zones_gives_the_exact_figures(name):
    values, *_ = COLUMNS[name]
    distinct, zones = brute_force(values)
    assert estimates(values, ZONES) == (distinct, pytest.approx(zones))


def test_overlaps_count_rows_and_values():
    zones = [[1, 1, 2, 3], [1, 3, 3], [], [4]]
    result = find_overlaps([np.array(zone, dtype=np.uint64) for zone in zones])
    assert result.num_rows.tolist() == [4, 3, 0, 1]
    assert result.num_distinct.tolist() == [3, 2, 0, 1]
    assert result.num_keys == 4
    assert result.shared_rows.tolist() == [[4, 3, 0, 0], [3, 3, 0, 0], [0] * 4, [0, 0, 0, 1]]
    assert result.shared_values.tolist() == [[3, 2, 0, 0], [2, 2, 0, 0], [0] * 4, [0, 0, 0, 1]]
    assert sorted(result.zone_counts(np.array([0, 1]))) == [1, 2, 2]


@pytest.mark.parametrize("num_zones", [0, 1, 2, 10, 49, 50, 51, 60, 99, 100, 1000, 10**7])
@pytest.mark.parametrize("wanted", [10, 50])
def test_the_sample_covers_all_parts_of_the_data(num_zones, wanted):
    positions = draw_zones(num_zones, wanted)
    assert np.array_equal(positions, np.unique(positions))
    assert positions.size <= wanted and positions.size >= min(num_zones, wanted) * 0.6
    assert positions.size == 0 or (positions[0] >= 0 and positions[-1] < num_zones)
    if num_zones > wanted:
        assert 1 in np.diff(positions)
        assert np.diff(positions).max() < num_zones / 2


def test_an_empty_sample_has_no_overlaps():
    result = find_overlaps([])
    none = np.empty(0, dtype=np.int64)
    assert estimate_distinct(result, none, 0, 0) == 0
    assert estimate_zones_with_key(result.shared_rows, result.num_rows, none, 0) == 0.0


@pytest.mark.parametrize("num_zones", [1, 2, 3, 1000])
def test_estimates_from_one_zone(num_zones):
    result = find_overlaps([hashed(np.arange(100))])
    position = np.zeros(1, dtype=np.int64)
    shares = result.shared_rows / result.num_rows[:, None]
    assert estimate_distinct(result, position, num_zones, 100 * num_zones) == 100 * num_zones
    assert estimate_zones_with_key(shares, result.num_rows, position, num_zones) == 1.0
