"""Test row group statistics that are not bounds: every way of reading returns the same rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
from support.e2e_helpers import build, write_files
from support.footers import set_statistics

import zonebloom as zb
from zonebloom.results import ScanStats

NAN = float("nan")
FLOATS: dict[str, Sequence[float | None]] = {
    "NaN last": [73.0] * 19 + [NAN],
    "NaN first": [NAN] + [73.0] * 19,
    "NaN only": [NAN] * 20,
    "one value": [73.0] * 20,
    "nulls": [None] * 20,
    "NaN and null": [NAN, None] * 10,
    "all kinds": [NAN, None, 73.0, 74.0] * 5,
    "zero": [0.0] * 20,
    "minus zero": [-0.0] * 20,
    "both zeros": [0.0, -0.0] * 10,
    "zeros and NaN": [NAN, -0.0] * 10,
}


F, I = pc.field("f"), pc.field("i")  # noqa: E741


def float_array(*values: float | None) -> pa.Array:
    return pa.array(values, pa.float64())


CONDITIONS: list[pc.Expression] = [
    F == 73,
    F != 73,
    ~(F == 73),
    ~(F != 73),
    F > 73,
    F >= 73,
    F < 73,
    F <= 73,
    ~(F > 73),
    ~(F >= 73),
    ~(F < 73),
    ~(F <= 73),
    F == 0.0,
    F == -0.0,
    F != -0.0,
    F < 0.0,
    ~(F >= 0.0),
    F == NAN,
    F != NAN,
    ~(F < NAN),
    F.isin(float_array(73)),
    ~F.isin(float_array(73)),
    F.isin(float_array(0.0)),
    F.isin(float_array(-0.0)),
    ~F.isin(float_array(0.0)),
    F.isin(float_array(NAN)),
    F.isin(float_array(NAN, 73)),
    F.isin(float_array(None, 73)),
    ~F.isin(float_array(None, 73)),
    F.is_null(),
    F.is_valid(),
    F.is_null(nan_is_null=True),
    ~F.is_null(nan_is_null=True),
    pc.is_nan(F),
    pc.coalesce(F, pc.scalar(1.0)) == 1.0,
    F + 1 != 74,
    (F != 73) & (I < 15),
    (F != 73) | (I == 3),
    (F > 73) & (I < 15),
    (F > 73) & ~(I == 3),
    ~((F == 73) & (I < 15)),
    ~((F == 73) | (I == 3)),
    (F == 73) & ~I.isin([3, None]),
    ~(F == 73) & I.isin([1, 18, 19]),
]


def read_batches(ds: zb.Dataset, filter: Any) -> list[Any]:
    return [row for batch in ds.to_batches(["i"], filter=filter) for row in batch["i"].to_pylist()]


# Functions that return the values of ``i`` of matching rows, with the maximum number of rows that
# they return.
READERS: dict[str, tuple[Callable[[zb.Dataset, Any], list[Any]], int | None]] = {
    "to_table": (lambda ds, filter: ds.to_table(filter=filter)["i"].to_pylist(), None),
    "head": (lambda ds, filter: ds.head(3, filter=filter)["i"].to_pylist(), 3),
    "computed": (lambda ds, filter: ds.to_table({"i": I + 0}, filter)["i"].to_pylist(), None),
    "one column": (lambda ds, filter: ds.to_table(["i"], filter)["i"].to_pylist(), None),
    "limit": (lambda ds, filter: ds.to_table(filter=filter, limit=2)["i"].to_pylist(), 2),
    "no index": (
        lambda ds, filter: ds.to_table(filter=filter, use_scalar_index=False)["i"].to_pylist(),
        None,
    ),
    "to_batches": (read_batches, None),
}


def check_readers(
    ds: zb.Dataset, filter: Any, expected: list[Any], case: str, names: Iterable[str] = READERS
) -> None:
    assert ds.count_rows(filter) == len(expected), (case, str(filter))
    for name in names:
        read, max_rows = READERS[name]
        assert read(ds, filter) == expected[:max_rows], (case, str(filter), name)


def table(values: Sequence[Any], kind: pa.DataType, first: int = 0) -> pa.Table:
    i = pa.array(range(first, first + len(values)), pa.int64())
    return pa.table({"f": pa.array(values, kind), "i": i})


def open_without_index(folder: Path) -> zb.Dataset:
    return zb.dataset(folder)


def open_with_index(folder: Path) -> zb.Dataset:
    ds = zb.dataset(folder)
    build(ds, "f", number_of_items=8)
    return ds


def open_with_other_index(folder: Path) -> zb.Dataset:
    ds = zb.dataset(folder)
    build(ds, "i", number_of_items=8)
    return ds


OPENERS = [open_without_index, open_with_index, open_with_other_index]


def write_all_cases(folder: Path, kind: pa.DataType) -> pa.Table:
    """Write one file of two row groups per case, with embedded Bloom filters."""
    tables, first = [], 0
    for values in FLOATS.values():
        tables.append(table(values, kind, first))
        first += len(values)
    options = {"bloom_filter_options": {"f": {"ndv": 10, "fpp": 0.01}}}
    write_files(folder, tables, row_group_size=10, **options)
    return pa.concat_tables(tables)


@pytest.mark.parametrize("open_dataset", OPENERS)
@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()], ids=str)
def test_conditions_on_floats_return_the_rows_of_a_table_in_memory(
    tmp_path: Path, kind: pa.DataType, open_dataset: Callable[[Path], zb.Dataset]
) -> None:
    all_rows = write_all_cases(tmp_path, kind)
    ds = open_dataset(tmp_path)
    # An index decides which rows are read, and not how.
    names = READERS if open_dataset is open_without_index else ("to_table", "limit")
    for condition in CONDITIONS:
        expected = all_rows.filter(condition)["i"].to_pylist()
        check_readers(ds, condition, expected, str(kind), names)


def test_conditions_on_a_sorted_column_with_both_zeros_return_all_rows(tmp_path: Path) -> None:
    values = [-1.0, -0.0, -0.0, 0.0, 0.0, 1.0, NAN, NAN]
    all_rows = table(values, pa.float64())
    write_files(tmp_path, [all_rows], row_group_size=2)
    ds = zb.dataset(tmp_path)
    for condition in CONDITIONS:
        expected = all_rows.filter(condition)["i"].to_pylist()
        check_readers(ds, condition, expected, "sorted")
        result = ds.to_table(filter=condition, batch_size=3)
        assert result["i"].to_pylist() == expected, str(condition)


@pytest.mark.parametrize(
    "text",
    ["f <> 73", "NOT f = 73", "NOT f IN (73)", "f NOT IN (73, 5)", "NOT (f > 73 AND i < 5)"],
)
def test_negated_sql_filters_return_rows_with_nan(tmp_path: Path, text: str) -> None:
    all_rows = table([73.0, NAN, 73.0, None], pa.float64())
    write_files(tmp_path, [all_rows])
    # NaN is greater than every number.
    expected = {"NOT (f > 73 AND i < 5)": [0, 2]}.get(text, [1])
    check_readers(zb.dataset(tmp_path), text, expected, text)


def test_conditions_on_a_struct_leaf_return_rows_with_nan(tmp_path: Path) -> None:
    rows = [{"x": 73.0}, {"x": NAN}, {"x": None}, None]
    all_rows = pa.table({"s": pa.array(rows, pa.struct({"x": pa.float64()})), "i": range(4)})
    pq.write_table(all_rows, tmp_path / "data.parquet")
    leaf = pc.field("s", "x")
    for condition in (
        leaf != 73,
        ~(leaf == 73),
        ~leaf.isin(float_array(73.0)),
        leaf > 73,
        leaf == 73,
    ):
        expected = pads.dataset(all_rows).to_table(filter=condition)["i"].to_pylist()
        check_readers(zb.dataset(tmp_path), condition, expected, "struct")


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()], ids=str)
def test_polars_filters_use_the_nan_order_of_polars(tmp_path: Path, kind: pa.DataType) -> None:
    f = pl.col("f")
    conditions = [
        f != 73,
        ~(f == 73),
        ~f.is_in([73.0]),
        f > 73,
        f >= 73,
        ~(f > 73),
        ~(f < 73),
        f == NAN,
        f.is_in([NAN]),
        f.is_in([0.0]),
        ~f.is_in([-0.0]),
        f.is_nan(),
        f.ne_missing(73.0),
    ]
    all_rows = write_all_cases(tmp_path, kind)
    for open_dataset in OPENERS:
        ds = open_dataset(tmp_path)
        for condition in conditions:
            expected = pl.DataFrame(all_rows).filter(condition)["i"].to_list()
            result = ds.to_polars().filter(condition).collect()["i"].to_list()
            assert result == expected, (open_dataset.__name__, str(condition))
            check_readers(ds, condition, expected, str(kind))


@pytest.mark.parametrize("value", ["nan", "73.0", "-0.0", "0.0"])
def test_float_partition_values_are_compared(tmp_path: Path, value: str) -> None:
    (tmp_path / f"f={value}").mkdir()
    pq.write_table(pa.table({"i": [0, 1]}), tmp_path / f"f={value}" / "data.parquet")
    schema = pa.schema({"i": pa.int64(), "f": pa.float64()})
    partitioning = pads.partitioning(pa.schema({"f": pa.float64()}), flavor="hive")
    ds = zb.dataset(tmp_path, partitioning=partitioning)
    assert ds.schema == schema
    all_rows = pa.table({"i": [0, 1], "f": [float(value)] * 2}, schema)
    for condition in CONDITIONS:
        check_readers(ds, condition, all_rows.filter(condition)["i"].to_pylist(), value)
    f = pl.col("f")
    for condition in (f != 73, f > 73, ~(f > 73), f == NAN, f.is_in([0.0]), ~(f == 73), f >= NAN):
        expected = pl.DataFrame(all_rows).filter(condition)["i"].to_list()
        assert ds.to_polars().filter(condition).collect()["i"].to_list() == expected, str(condition)


def write_wrong_statistics(path: Path, created_by: bytes | None) -> pa.Table:
    """Write decimals from 1 to 24 with a stated minimum of 2, as in some old files."""
    values = [Decimal(value) for value in range(1, 25)]
    all_rows = pa.table({"d": pa.array(values, pa.decimal128(25, 2)), "i": range(24)})
    pq.write_table(all_rows, path, bloom_filter_options={"d": {"ndv": 24}})
    low, high = ((100 * value).to_bytes(11, "big", signed=True) for value in (2, 24))
    set_statistics(path, 0, minimum=low, maximum=high, null_count=0, created_by=created_by)
    return all_rows


@pytest.mark.parametrize("created_by", [b"parquet-mr version 1.8.1 (build 4aba4da)", None])
def test_decimals_with_wrong_bounds_are_found(tmp_path: Path, created_by: bytes | None) -> None:
    all_rows = write_wrong_statistics(tmp_path / "data.parquet", created_by)
    d, one, two = pc.field("d"), Decimal("1.00"), Decimal("2.00")
    assert pads.dataset(tmp_path).to_table(filter=d == one).num_rows == 0
    for index in (None, "d", "i"):
        ds = zb.dataset(tmp_path)
        if index is not None:
            build(ds, index, number_of_items=8)
        for condition in (
            d == one,
            d < two,
            d <= one,
            d != two,
            d.isin([one]),
            (d == one) & (I < 9),
        ):
            expected = all_rows.filter(condition)["i"].to_pylist()
            assert expected
            check_readers(ds, condition, expected, str(index))
        check_readers(ds, "d = 1.00", [0], str(index))
        result = ds.to_polars().filter(pl.col("d") == pl.lit(one)).collect()
        assert result["i"].to_list() == [0]


def test_text_with_wrong_bounds_is_found(tmp_path: Path) -> None:
    """Old writers ordered bytes as signed numbers.

    Neither pyarrow nor zonebloom uses such bounds.
    """
    path = tmp_path / "data.parquet"
    all_rows = pa.table({"s": ["a", "é", "z", "zé"], "i": range(4)})
    pq.write_table(all_rows, path)
    s = pc.field("s")
    for writer in (b"parquet-mr version 1.8.1 (build 4aba4da)", b"impala version 2.0", None):
        low, high = "é".encode(), b"z"
        set_statistics(path, 0, minimum=low, maximum=high, null_count=0, created_by=writer)
        ds = zb.dataset(path)
        for row, value in enumerate(all_rows["s"].to_pylist()):
            check_readers(ds, s == value, [row], str(writer))


def test_rows_are_found_without_null_counts(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    n = pc.field("n")
    for values in ([1, None, 3], [1, None, 1], [None, None]):
        all_rows = pa.table({"n": pa.array(values, pa.int64()), "i": range(len(values))})
        pq.write_table(all_rows, path)
        bounds = [value.to_bytes(8, "little") for value in values if value is not None]
        if bounds:
            set_statistics(path, 0, min_value=bounds[0], max_value=bounds[-1])
        else:
            set_statistics(path, 0)
        for condition in (n.is_null(), n.is_valid(), n == 1, ~n.isin([1]), ~(n == 1)):
            expected = all_rows.filter(condition)["i"].to_pylist()
            check_readers(zb.dataset(path), condition, expected, str(values))


def count_read_bytes(ds: zb.Dataset, condition: pc.Expression) -> int:
    all_stats: list[ScanStats] = []
    ds.scanner(filter=condition, scan_stats_callback=all_stats.append).to_table()
    return all_stats[0].data_bytes


def test_valid_statistics_still_skip_row_groups(tmp_path: Path) -> None:
    # PyArrow sometimes reads the footer again, which takes 64 KiB.
    rows = 80_000
    rng = np.random.default_rng(1)
    all_rows = pa.table(
        {
            "f": np.arange(rows, dtype=float),
            "n": pa.array(range(rows), pa.int64()),
            "other": rng.random(rows),
        }
    )
    pq.write_table(all_rows, tmp_path / "data.parquet", row_group_size=4_000)
    ds = zb.dataset(tmp_path)
    f, n, other = pc.field("f"), pc.field("n"), pc.field("other")
    all_bytes = count_read_bytes(ds, other != 2)
    for condition in (
        f == 7,
        f < 100,
        (f >= rows - 1_000) & (f != rows - 500),
        f.isin([7.0, 8.0]),
        (f < 5) | (f > rows - 10),
        (n < 100) & (other != 2),
        (n == 7) & ~(other > 2),
        (n < 100) & pc.is_finite(other),
    ):
        assert ds.to_table(filter=condition).equals(all_rows.filter(condition))
        assert count_read_bytes(ds, condition) < all_bytes / 4, str(condition)
