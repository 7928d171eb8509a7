"""Test the counts of kept zones, runs of zones and pairs of hashes against walks over all zones."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import zonebloom as zb
from zonebloom import RowRanges
from zonebloom.base.row_ranges import OFFSET_BITS
from zonebloom.index.matching import IndexView

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
    view = IndexView(datasets[items].opened.indices["id_idx"], known_ids, universe)
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
