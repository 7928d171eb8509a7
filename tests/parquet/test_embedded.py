"""Test datasets without an index whose files hold Bloom filters: fewer row groups, the same rows.

Embedded filters are used only on request, because damaged filters cannot be detected.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
from support.e2e_helpers import assert_equals_pyarrow, build, numbered, touch_later
from support.helpers import run_command

import zonebloom as zb
from zonebloom import Sbbf

ROWS, FILES = 1000, 3


def write(path: Path, table: pa.Table, *columns: str) -> None:
    """Write row groups of 100 rows, with filters for some columns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    options = {name: {"ndv": 100, "fpp": 0.0001} for name in columns}
    pq.write_table(table, path, row_group_size=100, bloom_filter_options=options)


def table(first: int, rows: int = ROWS) -> pa.Table:
    numbers = range(first, first + rows)
    return numbered(
        first,
        rows,
        id=pa.array([10 * i for i in numbers], pa.int64()),
        name=pa.array([None if i % 10 == 3 else f"name {i}" for i in numbers]),
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(FILES):
        write(tmp_path / f"part-{number}.parquet", table(number * ROWS), "id", "name")
    return tmp_path


ID, NAME = pc.field("id"), pc.field("name")
FILTERS: list[tuple[pc.Expression, int | None]] = [
    (ID == 12340, 1),
    (ID.isin([30, 12340, 12350]), 2),
    ((ID == 30) | (NAME == "name 2500"), 2),
    ((ID == 30) & (NAME == "name 2500"), 0),
    (~~(ID == 30), 1),
    (~((ID != 30) | (NAME == "name 7")), 1),
    (ID == -1, 0),
    (ID.isin([]), 0),
    (~(ID == 30), None),
    (NAME.is_null(), None),
    ((ID == 30) | NAME.is_null(), None),
]


@pytest.mark.parametrize(("expression", "groups"), FILTERS, ids=[str(f) for f, _ in FILTERS])
def test_rows_equal_pyarrow_and_row_groups_are_skipped(
    folder: Path, expression: pc.Expression, groups: int | None
) -> None:
    ds = zb.dataset(folder, embedded_filters=True)
    assert_equals_pyarrow(ds, folder, expression, expression)
    plan = ds.scanner(filter=expression).plan()
    row_groups = [fragment.row_groups for fragment in plan.fragments]
    if groups is None:
        assert row_groups == [None] * FILES
    else:
        assert sum(len(numbers or ()) for numbers in row_groups) == groups
        assert None not in row_groups
        assert plan.skipped == FILES - len(row_groups)


def test_filters_are_not_used_without_a_request(tmp_path: Path) -> None:
    """The filters keep only the bits of the chunk's bounds."""
    path = tmp_path / "a.parquet"
    ids = pa.array(range(1000), pa.int64())
    pq.write_table(pa.table({"id": ids}), path, bloom_filter_options={"id": {"ndv": 1000}})
    chunk: Any = pq.ParquetFile(path).metadata.row_group(0).column(0)
    sound = path.read_bytes()
    start, stop = chunk.bloom_filter_offset, chunk.bloom_filter_offset + chunk.bloom_filter_length
    damaged = Sbbf.from_bytes(bytes(Sbbf.from_parquet_bytes(sound[start:stop]).nbytes))
    damaged.insert(pa.array([0, 999], pa.int64()))
    path.write_bytes(sound[:start] + damaged.to_parquet_bytes() + sound[stop:])
    keys = range(0, 1000, 7)
    plain = zb.dataset(path)
    assert all(plain.count_rows(key == ID) == 1 for key in keys)
    assert plain.scanner(filter=ID == 7).plan().data_reads == 0
    assert all(
        plain.to_polars().filter(pl.col("id") == key).collect().height == 1 for key in keys[:5]
    )
    believing = zb.dataset(path, embedded_filters=True)
    assert sum(believing.count_rows(key == ID) for key in keys) < len(keys)


def test_polars_and_the_command_line_use_filters_on_request(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scan = zb.dataset(folder, embedded_filters=True).to_polars()
    assert scan.filter(pl.col("id") == 12340).collect()["row"].to_list() == [1234]
    for option, skipped in (([], 0), (["--embedded-filters"], 2)):
        arguments = ["explain", str(folder), "id = 12340", "--output", "json", *option]
        assert run_command(*arguments) == 0
        assert json.loads(capsys.readouterr().out)["skipped"] == skipped
        assert run_command("lookup", folder, "id = 12340", *option) == 0
        assert "1234" in capsys.readouterr().out


def test_embedded_filters_are_used_for_files_that_the_index_lacks(folder: Path) -> None:
    """The index answers for the files that it covers, and the filters for a newer file."""
    build(zb.dataset(folder), "id", number_of_items=100)
    write(folder / "part-9.parquet", table(FILES * ROWS), "id")
    ds = zb.dataset(folder, embedded_filters=True)
    with pytest.warns(zb.errors.StaleIndexWarning):
        result = ds.to_table(filter=ID.isin([120, 31230]))
    assert result["row"].to_pylist() == [12, 3123]
    plan = ds.scanner(filter=ID.isin([120, 31230])).plan()
    assert [fragment.rows is not None for fragment in plan.fragments] == [True, False]
    assert plan.fragments[1].row_groups == (1,)


def test_the_filter_of_a_partition_column_in_the_file_is_not_used(tmp_path: Path) -> None:
    """The value of the path counts, but the file has a filter of other values."""
    for part in (1, 2):
        other = table(part * ROWS).append_column("p", pa.array([77] * ROWS, pa.int32()))
        write(tmp_path / f"p={part}" / "a.parquet", other, "id", "p")
    source = pads.dataset(tmp_path, partitioning="hive")
    ds = zb.dataset(source, embedded_filters=True)
    for expression in (
        (pc.field("p") == 1) & (ID == 10050),
        (pc.field("p") == 77) | (ID == 10050),
        (pc.field("p") == 1) & (pc.field("row") > 1900),
        pc.field("p") == 77,
    ):
        assert_equals_pyarrow(ds, source, expression, expression)


def test_a_column_may_be_missing_in_some_files(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", table(0).drop_columns(["name"]), "id")
    write(tmp_path / "b.parquet", table(ROWS), "id", "name")
    source = pads.dataset(tmp_path, schema=table(0).schema)
    ds = zb.dataset(source, embedded_filters=True)
    for expression in (NAME == "name 1500", NAME.is_null(), (NAME == "name 7") | (ID == 50)):
        assert_equals_pyarrow(ds, source, expression, expression)


def test_a_file_replaced_after_the_plan_is_read_whole(folder: Path) -> None:
    path = folder / "part-1.parquet"
    scanner = zb.dataset(folder, embedded_filters=True).scanner(filter=ID == 12340)
    plan = scanner.plan()
    assert [fragment.row_groups for fragment in plan.fragments] == [(2,)]
    write(path, table(ROWS).take(pa.array(range(ROWS - 1, -1, -1))), "id")
    touch_later(path)
    assert scanner.planned(plan).to_table()["row"].to_pylist() == [1234]
