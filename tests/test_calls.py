"""Test how many functions of Python a lookup calls, which is most of its time in cached files."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import zonebloom as zb

FILES, ROWS = 4, 40_000
# The numbers depend a little on the version of Python.
MOST_CALLS = {("lookup", True): 185, ("lookup", False): 66, ("to_table", True): 290}


@pytest.fixture(scope="module", params=[2048, 8192])
def ds(tmp_path_factory, request) -> zb.Dataset:
    """Return a dataset with pages of so many rows, and with every kernel loaded."""
    zb.warmup()
    folder = tmp_path_factory.mktemp("calls") / "data"
    folder.mkdir()
    keys = np.random.default_rng(0).permutation(FILES * ROWS).reshape(FILES, ROWS) * 3
    for number, part in enumerate(keys):
        table = pa.table({"key": part, "row": np.arange(ROWS), "x": part / 7})
        options = {"write_page_index": True, "max_rows_per_page": request.param}
        path = folder / f"{number}.parquet"
        pq.write_table(table, path, row_group_size=20_000, use_dictionary=False, **options)
        # Files that were just written are compared with the index anew by each lookup.
        os.utime(path, ns=(10**18, 10**18))
    zb.dataset(folder).create_scalar_index("key", spark=False)
    # The time of the last change of a file's status cannot be set, so wait until it is past.
    time.sleep(2.5)
    return zb.dataset(folder)


def count_calls(action: Callable[[int], Any], keys: list[int]) -> float:
    """Return the mean number of calls of Python functions, after a first action for each key."""
    count = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "call"

    for key in keys:
        action(key)
    sys.setprofile(note)
    try:
        for key in keys:
            action(key)
    finally:
        sys.setprofile(None)
    return count / len(keys)


@pytest.mark.parametrize("name, is_present", MOST_CALLS)
def test_a_warm_lookup_calls_few_functions(ds, name, is_present):
    keys = [3 * number + (0 if is_present else 1) for number in range(40)]
    actions = {
        "lookup": lambda key: ds.lookup("key", [key]),
        "to_table": lambda key: ds.to_table(filter=f"key = {key}"),
    }
    for key in keys[:5]:
        assert actions[name](key).num_rows == is_present
    assert count_calls(actions[name], keys) <= MOST_CALLS[name, is_present]
