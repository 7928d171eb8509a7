"""Test files of many columns."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import zonebloom as zb

WIDTH = 240


def test_results_of_wide_files_equal_pyarrow(tmp_path):
    numbers, texts = np.arange(100), [str(number) for number in range(100)]
    columns = {f"c{column}": numbers if column % 2 else texts for column in range(WIDTH)}
    whole = pa.table(columns)
    pq.write_table(whole, tmp_path / "a.parquet", write_page_index=True)
    ds = zb.dataset(tmp_path)
    ds.create_scalar_index("c1", spark=False)
    for row in (0, 42, 99):
        assert ds.to_table(filter=f"c1 = {row}").equals(whole.slice(row, 1))
    assert {advice.column: advice.distinct for advice in ds.advise()} == dict.fromkeys(
        whole.column_names, 100
    )
