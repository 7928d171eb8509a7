"""Test the counts of kept zones in plans against walks over all rows."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.helpers import cases

import zonebloom as zb

FILE_ROWS = 40, 1, 17, 25
ITEMS = 1, 3, 8, 17, 100
MOST_ROWS = 100


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Return folders by the rows of a zone of ``id``. Each index has two segments."""
    folders = {}
    for items in ITEMS:
        folders[items] = folder = tmp_path_factory.mktemp("data") / "files"
        folder.mkdir()
        for number, num_rows in enumerate(FILE_ROWS):
            rows = pa.array(range(num_rows))
            table = pa.table({"id": rows, "row": pc.add(rows, number * MOST_ROWS)})
            pq.write_table(table, folder / f"{number}.parquet")
            if number == 1:
                ds = zb.dataset(folder)
                ds.create_scalar_index("id", "ZONEMAP", number_of_items=items, spark=False)
                ds.create_scalar_index("row", "ZONEMAP", number_of_items=1, spark=False)
        outcomes = zb.dataset(folder).optimize.optimize_indices(spark=False)
        assert [outcome.num_segments for outcome in outcomes] == [2, 2]
    return folders


some_ranges = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 39), st.integers(1, 40)), max_size=12
)


@settings(max_examples=cases(200, 25))
@given(st.sampled_from(ITEMS), some_ranges, st.frozensets(st.integers(0, 3), min_size=1))
@example(1, [(0, 0, 2), (0, 3, 1)], frozenset({0, 1, 2, 3}))
@example(8, [(0, 0, 1), (0, 3, 1), (0, 6, 3), (0, 12, 1)], frozenset({0}))
def test_kept_zones_are_those_with_a_row_of_any_range(
    folders: dict[int, Path],
    items: int,
    ranges: list[tuple[int, int, int]],
    files: frozenset[int],
) -> None:
    rows = {
        (file, row)
        for file, start, count in ranges
        for row in range(start, min(start + count, FILE_ROWS[file]))
    }
    every_row = {(file, row) for file in files for row in range(FILE_ROWS[file])}
    all_zones = {(file, row // items) for file, row in every_row}
    kept_zones = {(file, row // items) for file, row in every_row & rows}
    numbers = [-1, *(file * MOST_ROWS + row for file, row in rows)]
    ds = zb.dataset([folders[items] / f"{file}.parquet" for file in sorted(files)])
    filter = f"id >= 0 AND row IN ({', '.join(map(str, numbers))})"
    plan = str(ds.scanner(filter=filter).explain_plan())
    kept, total = re.findall(r"index id_idx on id: (\d+) of (\d+) zones kept", plan)[0]
    assert (int(kept), int(total)) == (len(kept_zones), len(all_zones))
