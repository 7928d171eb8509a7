"""Test ranged reads that fail in the system."""

from __future__ import annotations

import pyarrow.compute as pc
import pytest
from e2e_helpers import build, plain_dataset
from trust.injection import ERRORS, PythonCalls
from trust.small import quiet

import zonebloom as zb


@pytest.mark.parametrize("error", ERRORS.values(), ids=list(ERRORS))
def test_pyarrow_repeats_a_failed_read(tmp_path, error):
    plain_dataset(tmp_path, write_page_index=True, max_rows_per_page=100)
    ds = zb.dataset(tmp_path)
    build(ds, "id", number_of_items=100)
    calls = PythonCalls(tmp_path)
    # The first scan opens the index, so only the second one is counted.
    for _ in range(2):
        with calls.armed():
            assert ds.to_table(filter=pc.field("id") == 12340).num_rows == 1
    num_calls = calls.count
    num_refused = 0
    for number in range(num_calls):
        with quiet(), calls.armed(number, error):
            try:
                matches = ds.to_table(filter=pc.field("id") == 12340)
            except zb.errors.ZoneBloomError:
                num_refused += 1
                continue
        assert matches["row"].to_pylist() == [1234]
    assert num_refused < num_calls
