"""Test that the rows of Parquet files that pyarrow reads are those of the file that was opened."""

from __future__ import annotations

import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.e2e_helpers import build
from support.helpers import run_python

import zonebloom as zb
from zonebloom.errors import FragmentUnreadable

MIXED = pa.table(
    {
        "id": range(300),
        "a.b": [str(row) for row in range(300)],
        "a": [{"b": row} if row % 5 else None for row in range(300)],
        "list": [list(range(row % 4)) for row in range(300)],
        "view": pa.array([f"view {row}" for row in range(300)], pa.string_view()),
        "color": pa.array([f"color {row % 3}" for row in range(300)]).dictionary_encode(),
    }
)
ROWS = [[205], list(range(200, 300)), list(range(200, 300, 2)), [199, 200]]
COLUMNS = [MIXED.column_names, ["a.b"], ["a"], ["list", "id"]]


def test_columns_that_kernels_do_not_decode_are_read_by_pyarrow(tmp_path):
    pq.write_table(MIXED, tmp_path / "0.parquet", row_group_size=100, compression="brotli")
    ds = zb.dataset(tmp_path)
    for rows in ROWS:
        for names in COLUMNS:
            table, wanted = ds.take_rows(rows, names), MIXED.select(names).to_pylist()
            assert table.schema == MIXED.select(names).schema
            assert table.to_pylist() == [wanted[row] for row in rows]
    stats = []
    build(ds, "id", number_of_items=10)
    ds.scanner(filter="id = 205", scan_stats_callback=stats.append).to_table()
    assert stats[0].by_pyarrow == dict.fromkeys(MIXED.column_names, "its codec")


def test_few_rows_are_read_by_pyarrow_before_kernels_are_loaded(tmp_path):
    pq.write_table(MIXED, tmp_path / "0.parquet", row_group_size=100)
    build(zb.dataset(tmp_path), "id", number_of_items=10)
    output = run_python(
        """
        import sys
        import zonebloom as zb

        stats = []
        ds = zb.dataset(sys.argv[1])
        table = ds.scanner(filter="id = 205", scan_stats_callback=stats.append).to_table()
        print((table.to_pylist(), stats[0].by_pyarrow))
        """,
        tmp_path,
    )
    reason = "kernels are not loaded for so few rows"
    rows = MIXED.slice(205, 1).to_pylist()
    assert output == f"{(rows, dict.fromkeys(MIXED.column_names, reason))}\n"


def test_whole_row_groups_come_from_the_opened_file(tmp_path):
    """Another file that takes its place has other rows."""
    (tmp_path / "rows").mkdir()
    path, other = tmp_path / "rows/0.parquet", tmp_path / "other"
    options = {"compression": "brotli", "row_group_size": 10}
    pq.write_table(pa.table({"id": range(100)}), path, **options)
    pq.write_table(pa.table({"id": range(1000, 1100)}), other, **options)
    ds = zb.dataset(tmp_path / "rows")
    build(ds, "id", number_of_items=10)
    batches = ds.to_batches(filter="id % 10 = 5 AND id IN (5, 15, 25, 35, 45, 55, 65, 75, 85, 95)")
    rows = next(batches)["id"].to_pylist()
    os.replace(other, path)
    assert rows + [row for batch in batches for row in batch["id"].to_pylist()] == [
        *range(5, 100, 10)
    ]


def test_row_groups_are_read_up_to_the_last_wanted_row(tmp_path):
    path = tmp_path / "0.parquet"
    options = {"compression": "brotli", "use_dictionary": False, "write_page_checksum": True}
    pq.write_table(pa.table({"id": range(200_000)}), path, **options)
    chunk = pq.read_metadata(path).row_group(0).column(0)
    data = bytearray(path.read_bytes())
    last_page = chunk.data_page_offset + chunk.total_compressed_size - 100
    data[last_page : last_page + 50] = bytes(50)
    path.write_bytes(data)
    ds = zb.dataset(tmp_path)
    for rows in ([5], range(65_530, 65_540), range(0, 70_000, 300)):
        assert ds.take_rows(rows)["id"].to_pylist() == list(rows)
    with pytest.raises(FragmentUnreadable, match=r"0\.parquet"):
        ds.take_rows([199_999])
