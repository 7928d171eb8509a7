"""Test that the rows of Parquet files that pyarrow reads are those of the file that was opened."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from support.seams import replace_function, set_constant

from zonebloom import RowRanges
from zonebloom.errors import FragmentUnreadable
from zonebloom.parquet.whole_row_groups import WholeRowGroups
from zonebloom.sources import parquet_rows
from zonebloom.sources.parquet_rows import ParquetRows
from zonebloom.storage.files import ReadCounter
from zonebloom.storage.random_access import FragmentFile
from zonebloom.storage.store import identities

ROWS, GROUP = 4000, 1000
LOCAL = pafs.LocalFileSystem()
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
RANGES = [
    RowRanges([(5, 6)]),
    RowRanges([(0, 100)]),
    RowRanges([(row, row + 1) for row in range(0, 100, 2)]),
]


def opened_file(path: Path) -> FragmentFile:
    (identity,) = identities(LOCAL, [str(path)])
    assert identity is not None
    return FragmentFile(LOCAL, str(path), identity, ReadCounter())


@pytest.mark.parametrize("has_kernels", [True, False])
def test_columns_that_kernels_do_not_decode_are_read_by_pyarrow(tmp_path, monkeypatch, has_kernels):
    path = tmp_path / "0.parquet"
    codec = "brotli" if has_kernels else "snappy"
    pq.write_table(MIXED, path, row_group_size=100, compression=codec)
    set_constant(monkeypatch, parquet_rows.KERNELS, "are_loaded", has_kernels)
    replace_function(monkeypatch, parquet_rows.KERNELS, "are_worth", lambda checks: False)
    with opened_file(path) as file:
        reader = ParquetRows(file, None, MIXED.schema, {})
        for rows in RANGES:
            for names in (MIXED.column_names, ["a.b"], ["a"], ["list", "id"]):
                table, whole = reader.read(2, names, rows), MIXED.select(names).slice(200, 100)
                slices = [whole.slice(start, stop - start) for start, stop in rows]
                assert table.schema == whole.schema
                assert table.to_pylist() == pa.concat_tables(slices).to_pylist()
        reason = "its codec" if has_kernels else "kernels are not loaded for so few rows"
        assert reader.pyarrow_columns == dict.fromkeys(MIXED.column_names, reason)


def test_whole_row_groups_come_from_the_opened_file(tmp_path):
    """Another file that takes its place has other rows."""
    path, other = tmp_path / "0.parquet", tmp_path / "1.parquet"
    pq.write_table(pa.table({"id": range(100)}), path)
    pq.write_table(pa.table({"id": range(1000, 1100)}), other)
    with opened_file(path) as file:
        os.replace(other, path)
        columns = WholeRowGroups(file, None, None).read(0, ["id"], RANGES[0])
        assert columns["id"].to_pylist() == [5]


def test_row_groups_are_read_up_to_the_last_wanted_row(tmp_path):
    path = tmp_path / "0.parquet"
    kinds = {"compression": "none", "use_dictionary": False, "write_page_checksum": True}
    table = pa.table({"id": range(200_000), "text": map(str, range(200_000))})
    pq.write_table(table, path, **kinds)
    chunk = pq.read_metadata(path).row_group(0).column(0)
    data = bytearray(path.read_bytes())
    last_page = chunk.data_page_offset + chunk.total_compressed_size - 100
    data[last_page : last_page + 50] = bytes(50)
    path.write_bytes(data)
    many = RowRanges([(row, row + 1) for row in range(0, 70_000, 300)])
    with opened_file(path) as file:
        row_groups = WholeRowGroups(file, None, None)
        for rows in (RANGES[0], RowRanges([(65_530, 65_540)]), many):
            columns = row_groups.read(0, ["id", "text"], rows)
            assert columns["id"].to_pylist() == rows.rows().tolist()
            assert columns["text"].to_pylist() == [str(row) for row in rows.rows()]
        with pytest.raises(FragmentUnreadable, match=r"0\.parquet"):
            row_groups.read(0, ["id"], RowRanges([(199_999, 200_000)]))
