"""Compare the line about the sizes of pages with the pages that a plain loop counts."""

from __future__ import annotations

import re

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

import zonebloom as zb

ROWS = 120_000


@pytest.fixture(scope="module")
def keys() -> pa.Table:
    return pa.table({"id": np.random.default_rng(0).permutation(ROWS), "v": np.arange(ROWS)})


def factor_of(line: str) -> tuple[int, int]:
    match = re.fullmatch(
        r"pages of ([\d,]+) rows; pages of 2,048 would read (\d+) times less", line
    )
    assert match, line
    return int(match[1].replace(",", "")), int(match[2])


@pytest.mark.parametrize("writes_index", [True, False])
def test_large_pages_are_named_with_what_small_ones_save(tmp_path, keys, writes_index):
    options = {"max_rows_per_page": ROWS, "data_page_size": 1 << 30, "use_dictionary": False}
    pq.write_table(keys, tmp_path / "a.parquet", write_page_index=writes_index, **options)
    ds = zb.dataset(tmp_path / "a.parquet")
    # A zone of 8,192 rows is in 4 of the small pages.
    assert factor_of(ds.advise("id").page_sizes) == (ROWS, round(ROWS / 8192))
    assert ds.advise("id").page_sizes in str(ds.advise("id"))
    ds.create_scalar_index("id", spark=False)
    assert factor_of(ds.advise("id").page_sizes) == (ROWS, round(ROWS / 8192))
    run = ds.scanner(filter="id = 42").analyze_plan()
    assert factor_of(run.page_sizes) == (ROWS, round(ROWS / 8192))
    assert run.page_sizes in run and run.page_sizes in run._repr_html_()
    # Without a search of rows there is nothing to save.
    assert ds.scanner().analyze_plan().page_sizes == ""
    assert ds.scanner(filter="id = 42", limit=1).analyze_plan().page_sizes == ""


def test_small_pages_are_not_named(tmp_path, keys):
    options = {"write_page_index": True, "max_rows_per_page": 2048, "use_dictionary": False}
    pq.write_table(keys, tmp_path / "a.parquet", **options)
    ds = zb.dataset(tmp_path / "a.parquet")
    ds.create_scalar_index("id", spark=False)
    assert ds.advise("id").page_sizes == ""
    assert ds.scanner(filter="id = 42").analyze_plan().page_sizes == ""


def test_files_of_duckdb_have_one_page_for_a_row_group(tmp_path, keys):
    duckdb.sql(f"COPY (FROM keys) TO '{tmp_path}/a.parquet' (ROW_GROUP_SIZE 122880)")
    rows_per_page, factor = factor_of(zb.dataset(tmp_path / "a.parquet").advise("id").page_sizes)
    assert (rows_per_page, factor) == (ROWS, round(ROWS / 8192))


def test_other_files_have_no_line(tmp_path, keys):
    assert zb.dataset(keys).advise("id").page_sizes == ""
    pa.feather.write_feather(keys, tmp_path / "a.feather")
    ds = zb.dataset(tmp_path / "a.feather", format="feather")
    assert ds.advise("id").page_sizes == ""
