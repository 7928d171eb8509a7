"""Draw zones, and find out which of them share values. `test_advise.py` tests the estimates."""

from __future__ import annotations

import numpy as np
import pytest

from zonebloom.advise.sample import (
    draw_zones,
    estimate_distinct,
    estimate_zones_with_key,
    find_overlaps,
)


def hashed(values):
    return values.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)


def test_overlaps_count_rows_and_values():
    zones = [[1, 1, 2, 3], [1, 3, 3], [], [4]]
    result = find_overlaps([np.array(zone, dtype=np.uint64) for zone in zones])
    assert result.num_rows.tolist() == [4, 3, 0, 1]
    assert result.num_distinct.tolist() == [3, 2, 0, 1]
    assert result.num_keys == 4
    assert result.shares.tolist() == [[1, 0.75, 0, 0], [1, 1, 0, 0], [0] * 4, [0, 0, 0, 1]]
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
    assert estimate_zones_with_key(result.shares, result.num_rows, none, 0) == 0.0


@pytest.mark.parametrize("num_zones", [1, 2, 3, 1000])
def test_estimates_from_one_zone(num_zones):
    result = find_overlaps([hashed(np.arange(100))])
    position = np.zeros(1, dtype=np.int64)
    assert estimate_distinct(result, position, num_zones, 100 * num_zones) == 100 * num_zones
    assert estimate_zones_with_key(result.shares, result.num_rows, position, num_zones) == 1.0
