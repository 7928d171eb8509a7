"""Test files of many columns: work grows with the number of columns, not with its square."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import zonebloom as zb

WIDTH = 80
# Opening a file or creating its Arrow schema takes time for each of its columns.
WORK_ON_ALL_COLUMNS = {"to_arrow_schema", "schema_arrow", "_build_nested_paths"}

ACTIONS: dict[str, Callable[[zb.Dataset], Any]] = {
    "lookup": lambda ds: ds.to_table(["c1"], "c1 = 7").num_rows,
    "lookup of all columns": lambda ds: ds.to_table(filter="c1 = 7").num_rows,
    "projection": lambda ds: ds.to_table(ds.schema.names, "c1 = 7").num_rows,
    "lookup without an index": lambda ds: ds.to_table(["c2"], "c2 = '7'").num_rows,
    "advise": lambda ds: len(ds.advise()),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[int, Path]:
    """Write datasets of few columns, of `WIDTH` columns, and of two and three times as many."""
    folders = {}
    for width in (8, WIDTH, 2 * WIDTH, 3 * WIDTH):
        folders[width] = tmp_path_factory.mktemp("wide") / "data"
        folders[width].mkdir()
        numbers, texts = np.arange(100), [str(number) for number in range(100)]
        columns = {f"c{column}": numbers if column % 2 else texts for column in range(width)}
        pq.write_table(pa.table(columns), folders[width] / "a.parquet", write_page_index=True)
        zb.dataset(folders[width]).create_scalar_index("c1", spark=False)
    return folders


def calls_of(action: Callable[[], Any]) -> Counter[str]:
    """Count the calls of each function, including those written in C."""
    calls: Counter[str] = Counter()

    def count(frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            calls[frame.f_code.co_name] += 1
        elif event == "c_call":
            calls[argument.__name__] += 1

    sys.setprofile(count)
    try:
        action()
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize("name", ACTIONS)
def test_the_number_of_calls_grows_at_most_linearly_with_the_columns(folders, name):
    action = ACTIONS[name]
    datasets = [zb.dataset(folder) for folder in folders.values()]
    # The first run also loads modules and kernels.
    _, one, two, three = [calls_of(lambda ds=ds: action(ds)) for ds in datasets]
    growth, next_growth = two.total() - one.total(), three.total() - two.total()
    assert next_growth <= 1.1 * growth + 100
    for function in WORK_ON_ALL_COLUMNS:
        assert one[function] == two[function] == three[function], function


def test_results_of_wide_files_equal_pyarrow(folders):
    ds = zb.dataset(folders[3 * WIDTH])
    whole = pq.read_table(folders[3 * WIDTH])
    for row in (0, 42, 99):
        assert ds.to_table(filter=f"c1 = {row}").equals(whole.slice(row, 1))
    assert {advice.column: advice.distinct for advice in ds.advise()} == dict.fromkeys(
        whole.column_names, 100
    )
