"""Test the counts of kept zones, runs of zones and pairs of hashes against walks over all zones."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import zonebloom as zb
from zonebloom.base.row_ranges import OFFSET_BITS, RowRanges
from zonebloom.index.table import IndexTable, Pairs, ZoneRuns

FILE_ROWS = 40, 1, 17, 25
NUM_ADDRESSED = 50


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> dict[int, zb.Dataset]:
    """Return datasets by the rows of their zones. Each index has two segments."""
    opened = {}
    for items in (1, 3, 8, 17, 100):
        folder = tmp_path_factory.mktemp("data")
        for number, num_rows in enumerate(FILE_ROWS):
            pq.write_table(pa.table({"id": range(num_rows)}), folder / f"{number}.parquet")
            if number == 1:
                zb.dataset(folder).create_scalar_index("id", number_of_items=items, spark=False)
        ds = zb.dataset(folder)
        ds.optimize.optimize_indices(spark=False)
        assert len(ds.opened.version.indices["id_idx"].segments) == 2
        opened[items] = ds
    return opened


def addresses_of(ranges: list[tuple[int, int, int]]) -> RowRanges:
    return RowRanges(
        (fragment << OFFSET_BITS | start, fragment << OFFSET_BITS | start + count)
        for fragment, start, count in ranges
    )


some_ranges = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, NUM_ADDRESSED), st.integers(1, NUM_ADDRESSED)),
    max_size=12,
)


@given(
    st.sampled_from([1, 3, 8, 17, 100]), some_ranges, st.frozensets(st.integers(0, 4), max_size=5)
)
@example(1, [(0, 0, 2), (0, 3, 1)], frozenset({0, 1, 2, 3}))
@example(8, [(0, 0, 1), (0, 3, 1), (0, 6, 3), (0, 12, 1)], frozenset({0}))
def test_kept_zones_are_those_with_a_row_of_any_range(
    datasets: dict[int, zb.Dataset],
    items: int,
    ranges: list[tuple[int, int, int]],
    known_ids: frozenset[int],
) -> None:
    universe = addresses_of([(i, 0, num_rows) for i, num_rows in enumerate(FILE_ROWS)])
    view = datasets[items].opened.indices["id_idx"].view(known_ids, universe)
    rows = {
        (fragment, row) for fragment, start, count in ranges for row in range(start, start + count)
    }
    all_zones, kept_zones = set(), set()
    for fragment, num_rows in enumerate(FILE_ROWS):
        for row in range(num_rows) if fragment in known_ids else ():
            all_zones.add((fragment, row // items))
            if (fragment, row) in rows:
                kept_zones.add((fragment, row // items))
    assert view.num_zones == len(all_zones)
    assert view.count_kept_zones(addresses_of(ranges)) == len(kept_zones)


fragments = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 30)), max_size=6)


@given(fragments, st.integers(1, 9))
def test_runs_have_the_zones_that_they_were_made_from(
    fragments: list[tuple[int, int]], items: int
) -> None:
    zones = [
        (fragment, start, min(items, num_rows - start))
        for fragment, num_rows in fragments
        for start in range(0, num_rows, items)
    ]
    ids, starts, lengths = (
        np.array([zone[i] for zone in zones], dtype=np.uint64) for i in range(3)
    )
    runs = ZoneRuns.from_zones(ids, starts, lengths, items)
    runs.require_valid(len(zones))
    assert len(runs) == len(zones)
    located = runs.locate(np.arange(len(zones)))
    assert list(zip(*(array.tolist() for array in located), strict=True)) == zones
    is_selected = runs.fragment_ids % np.uint64(2) == 0
    selected = runs.select(is_selected)
    located = selected.locate(np.arange(len(selected)))
    assert list(zip(*(array.tolist() for array in located), strict=True)) == [
        zone for zone in zones if zone[0] % 2 == 0
    ]


class SetTable(IndexTable):
    """A table in memory whose zones are sets of hashes."""

    def __init__(self, zones: list[set[int]]):
        one_row = np.ones(len(zones), dtype=np.uint64)
        starts = np.arange(len(zones), dtype=np.uint64)
        self.runs = ZoneRuns.from_zones(0 * starts, starts, one_row, 1)
        self.has_null = np.zeros(len(zones), dtype=bool)
        self._zone_sets = zones

    @property
    def loaded_bytes(self) -> int:
        return 0

    def _pairs(self, hashes: np.ndarray) -> Iterator[Pairs]:
        for zone, zone_set in enumerate(self._zone_sets):
            keys = np.flatnonzero([value in zone_set for value in hashes.tolist()])
            yield keys, np.full(keys.size, zone)


hash_values = st.sampled_from([0, 1, 2, 2**32, 2**63, 2**64 - 1])


@given(st.lists(st.sets(hash_values), min_size=1, max_size=8), st.data())
def test_pairs_of_a_zone_and_a_hash_are_tested_one_by_one(
    zones: list[set[int]], data: st.DataObject
) -> None:
    asked = data.draw(st.lists(st.tuples(st.integers(0, len(zones) - 1), hash_values), max_size=20))
    may_hold = SetTable(zones).may_hold(
        np.array([zone for zone, _ in asked], dtype=np.int64),
        np.array([value for _, value in asked], dtype=np.uint64),
    )
    assert may_hold.tolist() == [value in zones[zone] for zone, value in asked]
