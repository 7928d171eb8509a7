"""Test zones over files of every shape: where zones begin and end, and that they hold every row."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.e2e_helpers import (
    assert_equals_pyarrow,
    at_most_rows,
    build,
    numbered,
    write_files,
    zones_of,
)

import zonebloom as zb


def dataset_of_lengths(folder: Path, lengths: list[int], **options) -> zb.Dataset:
    """Write files with these numbers of rows, where ``id`` is 3 * row number."""
    tables, first_row = [], 0
    for rows in lengths:
        ids = pa.array(3 * np.arange(first_row, first_row + rows, dtype=np.int64))
        tables.append(numbered(first_row, rows, id=ids))
        first_row += rows
    write_files(folder, tables, **options)
    return zb.dataset(folder)


def expected_zones(lengths: list[int], items: int) -> list[tuple[int, int, int]]:
    return [
        (fragment, start, min(items, rows - start))
        for fragment, rows in enumerate(lengths)
        for start in range(0, rows, items)
    ]


def assert_rows_are_found(ds: zb.Dataset, folder: Path, rows: list[int]) -> None:
    for row in rows:
        filter = pc.field("id") == 3 * row
        assert assert_equals_pyarrow(ds, folder, filter, filter)["row"].to_pylist() == [row]
        assert row in at_most_rows(ds, filter)


def test_three_files_of_10000_rows_have_two_zones_each(tmp_path: Path):
    """The shape that made Lance 1.0 lose rows."""
    ds = dataset_of_lengths(tmp_path, [10_000] * 3)
    build(ds, "id")
    assert zones_of(ds, "id_idx") == expected_zones([10_000] * 3, 8192)
    edges = [0, 1, 8191, 8192, 9999, 10_000, 18_191, 18_192, 19_999, 20_000, 28_192, 29_999]
    assert_rows_are_found(ds, tmp_path, edges)
    filter = pc.field("id").isin([3 * row for row in edges])
    assert_equals_pyarrow(ds, tmp_path, filter, filter)
    assert at_most_rows(ds, "id = 54573") == set(range(10_000, 18_192))


def test_a_dataset_of_empty_files_is_searched(tmp_path: Path):
    ds = dataset_of_lengths(tmp_path, [0, 0])
    build(ds, "id")
    assert zones_of(ds, "id_idx") == []
    assert ds.to_table(filter="id = 3").equals(ds.schema.empty_table())
    assert ds.search("id = 3").kind == "Exact"
    assert ds.count_rows("id IS NULL") == 0
    statistics = ds.index_statistics("id_idx")
    assert (statistics["num_zones"], statistics["num_indexed_rows"]) == (0, 0)


def test_a_file_without_row_groups_is_searched(tmp_path: Path):
    schema = pa.schema({"row": pa.int64(), "id": pa.int64()})
    pq.ParquetWriter(tmp_path / "0.parquet", schema).close()
    write_files(tmp_path / "x", [numbered(0, 5, id=pa.array(range(5)))])
    (tmp_path / "x" / "part-000.parquet").rename(tmp_path / "1.parquet")
    (tmp_path / "x").rmdir()
    ds = zb.dataset(tmp_path)
    build(ds, "id")
    assert zones_of(ds, "id_idx") == [(1, 0, 5)]
    assert ds.count_rows("id = 4") == 1


@pytest.mark.slow
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(st.integers(0, 60), min_size=1, max_size=5),
    items=st.integers(1, 40),
    row_group_size=st.integers(1, 40),
    keys=st.randoms(use_true_random=False),
)
def test_any_shape_finds_every_row(
    tmp_path_factory: pytest.TempPathFactory, lengths, items, row_group_size, keys
):
    folder = tmp_path_factory.mktemp("shape")
    tables, first_row, values = [], 0, []
    for rows in lengths:
        ids = [keys.choice([None, *range(40)]) for _ in range(rows)]
        values += ids
        tables.append(numbered(first_row, rows, id=pa.array(ids, pa.int16())))
        first_row += rows
    write_files(folder, tables, row_group_size=row_group_size)
    ds = zb.dataset(folder)
    build(ds, "id", number_of_items=items)
    assert zones_of(ds, "id_idx") == expected_zones(lengths, items)
    for key in range(0, 45, 4):
        expected = [row for row, value in enumerate(values) if value == key]
        result = ds.to_table(["row"], pc.field("id") == key)["row"].to_pylist()
        assert result == expected
    nulls = [row for row, value in enumerate(values) if value is None]
    assert ds.to_table(["row"], pc.field("id").is_null())["row"].to_pylist() == nulls
