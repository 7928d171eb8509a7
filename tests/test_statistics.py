"""Test row group statistics that are not bounds: every way of reading returns the same rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from e2e_helpers import build, write_files
from footers import set_statistics

import zonebloom as zb
from zonebloom.predicates.row_group_statistics import statistics_safe_filter
from zonebloom.scan.plan import ScanStats
from zonebloom.scan.recheck import matching_rows

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


def some(*values: float | None) -> pa.Array:
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
    F.isin(some(73)),
    ~F.isin(some(73)),
    F.isin(some(0.0)),
    F.isin(some(-0.0)),
    ~F.isin(some(0.0)),
    F.isin(some(NAN)),
    F.isin(some(NAN, 73)),
    F.isin(some(None, 73)),
    ~F.isin(some(None, 73)),
    F.is_null(),
    F.is_valid(),
    F.is_null(nan_is_null=True),
    ~F.is_null(nan_is_null=True),
    pc.is_nan(F),  # pyright: ignore[reportAttributeAccessIssue]
    pc.coalesce(F, pc.scalar(1.0)) == 1.0,  # pyright: ignore[reportAttributeAccessIssue]
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


def batched(ds: zb.Dataset, filter: Any) -> list[Any]:
    return [row for batch in ds.to_batches(["i"], filter=filter) for row in batch["i"].to_pylist()]


# Each way of reading returns the values of ``i`` of matching rows, and an upper bound of their
# number.
WAYS: dict[str, tuple[Callable[[zb.Dataset, Any], list[Any]], int | None]] = {
    "to_table": (lambda ds, filter: ds.to_table(filter=filter)["i"].to_pylist(), None),
    "head": (lambda ds, filter: ds.head(3, filter)["i"].to_pylist(), 3),
    "computed": (lambda ds, filter: ds.to_table({"i": I + 0}, filter)["i"].to_pylist(), None),
    "one column": (lambda ds, filter: ds.to_table(["i"], filter)["i"].to_pylist(), None),
    "limit": (lambda ds, filter: ds.to_table(filter=filter, limit=2)["i"].to_pylist(), 2),
    "no index": (
        lambda ds, filter: ds.to_table(filter=filter, use_scalar_index=False)["i"].to_pylist(),
        None,
    ),
    "to_batches": (batched, None),
}


def check_ways(ds: zb.Dataset, filter: Any, wanted: list[Any], case: str) -> None:
    assert ds.count_rows(filter) == len(wanted), (case, str(filter))
    for way, (read, most) in WAYS.items():
        assert read(ds, filter) == wanted[:most], (case, str(filter), way)


def table(values: Sequence[Any], kind: pa.DataType, first: int = 0) -> pa.Table:
    i = pa.array(range(first, first + len(values)), pa.int64())
    return pa.table({"f": pa.array(values, kind), "i": i})


def unindexed(folder: Path) -> zb.Dataset:
    return zb.dataset(folder)


def indexed(folder: Path) -> zb.Dataset:
    ds = zb.dataset(folder)
    build(ds, "f", number_of_items=8)
    return ds


def indexed_elsewhere(folder: Path) -> zb.Dataset:
    ds = zb.dataset(folder)
    build(ds, "i", number_of_items=8)
    return ds


OPENED = [unindexed, indexed, indexed_elsewhere]


def every_case(folder: Path, kind: pa.DataType) -> pa.Table:
    """Write one file of two row groups per case, with embedded Bloom filters."""
    tables, first = [], 0
    for values in FLOATS.values():
        tables.append(table(values, kind, first))
        first += len(values)
    options = {"bloom_filter_options": {"f": {"ndv": 10, "fpp": 0.01}}}
    write_files(folder, tables, row_group_size=10, **options)
    return pa.concat_tables(tables)


@pytest.mark.parametrize("opened", OPENED)
@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()], ids=str)
def test_floating_point_against_arrow_in_memory(
    tmp_path: Path, kind: pa.DataType, opened: Callable[[Path], zb.Dataset]
) -> None:
    whole = every_case(tmp_path, kind)
    ds = opened(tmp_path)
    for condition in CONDITIONS:
        check_ways(ds, condition, whole.filter(condition)["i"].to_pylist(), str(kind))


def test_pyarrow_treats_statistics_as_bounds(tmp_path: Path) -> None:
    """This pyarrow bug is why filters are pruned. Once it is fixed, more can be pushed down."""
    path = tmp_path / "data.parquet"
    pq.write_table(table([73.0, NAN], pa.float64()), path)
    assert pads.dataset(path).to_table(filter=F != 73).num_rows == 0


def test_zeros_where_a_column_is_sorted(tmp_path: Path) -> None:
    values = [-1.0, -0.0, -0.0, 0.0, 0.0, 1.0, NAN, NAN]
    whole = table(values, pa.float64())
    write_files(tmp_path, [whole], row_group_size=2)
    ds = zb.dataset(tmp_path)
    for condition in CONDITIONS:
        wanted = whole.filter(condition)["i"].to_pylist()
        check_ways(ds, condition, wanted, "sorted")
        result = ds.to_table(filter=condition, batch_size=3)
        assert result["i"].to_pylist() == wanted, str(condition)


@pytest.mark.parametrize(
    "text",
    ["f <> 73", "NOT f = 73", "NOT f IN (73)", "f NOT IN (73, 5)", "NOT (f > 73 AND i < 5)"],
)
def test_sql(tmp_path: Path, text: str) -> None:
    whole = table([73.0, NAN, 73.0, None], pa.float64())
    write_files(tmp_path, [whole])
    wanted = {
        "NOT (f > 73 AND i < 5)": [0, 1, 2],
    }.get(text, [1])
    check_ways(zb.dataset(tmp_path), text, wanted, text)


def test_a_leaf_of_a_struct(tmp_path: Path) -> None:
    rows = [{"x": 73.0}, {"x": NAN}, {"x": None}, None]
    whole = pa.table({"s": pa.array(rows, pa.struct({"x": pa.float64()})), "i": range(4)})
    pq.write_table(whole, tmp_path / "data.parquet")
    leaf = pc.field("s", "x")
    for condition in (leaf != 73, ~(leaf == 73), ~leaf.isin(some(73.0)), leaf > 73, leaf == 73):
        wanted = [int(row) for row in matching_rows(whole, condition)]
        check_ways(zb.dataset(tmp_path), condition, wanted, "struct")


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()], ids=str)
def test_polars_keeps_its_own_order_of_nan(tmp_path: Path, kind: pa.DataType) -> None:
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
    whole = every_case(tmp_path, kind)
    for opened in OPENED:
        ds = opened(tmp_path)
        for condition in conditions:
            wanted = pl.DataFrame(whole).filter(condition)["i"].to_list()
            result = ds.to_polars().filter(condition).collect()["i"].to_list()
            assert result == wanted, (opened.__name__, str(condition))
            check_ways(ds, condition, wanted, str(kind))


@pytest.mark.parametrize("value", ["nan", "73.0", "-0.0", "0.0"])
def test_partition_value(tmp_path: Path, value: str) -> None:
    (tmp_path / f"f={value}").mkdir()
    pq.write_table(pa.table({"i": [0, 1]}), tmp_path / f"f={value}" / "data.parquet")
    schema = pa.schema({"i": pa.int64(), "f": pa.float64()})
    partitioning = pads.partitioning(pa.schema({"f": pa.float64()}), flavor="hive")
    ds = zb.dataset(tmp_path, partitioning=partitioning)
    assert ds.schema == schema
    whole = pa.table({"i": [0, 1], "f": [float(value)] * 2}, schema)
    for condition in CONDITIONS:
        check_ways(ds, condition, whole.filter(condition)["i"].to_pylist(), value)
    f = pl.col("f")
    for each in (f != 73, f > 73, ~(f > 73), f == NAN, f.is_in([0.0]), ~(f == 73), f >= NAN):
        wanted = pl.DataFrame(whole).filter(each)["i"].to_list()
        assert ds.to_polars().filter(each).collect()["i"].to_list() == wanted, str(each)


def ordered_by_bytes(path: Path, written_by: bytes | None) -> pa.Table:
    """Write decimals from 1 to 24 with a stated minimum of 2, as in some old files."""
    values = [Decimal(each) for each in range(1, 25)]
    whole = pa.table({"d": pa.array(values, pa.decimal128(25, 2)), "i": range(24)})
    pq.write_table(whole, path, bloom_filter_options={"d": {"ndv": 24}})
    low, high = ((100 * n).to_bytes(11, "big", signed=True) for n in (2, 24))
    set_statistics(path, 0, minimum=low, maximum=high, null_count=0, created_by=written_by)
    return whole


@pytest.mark.parametrize("written_by", [b"parquet-mr version 1.8.1 (build 4aba4da)", None])
def test_decimals_of_old_writers(tmp_path: Path, written_by: bytes | None) -> None:
    whole = ordered_by_bytes(tmp_path / "data.parquet", written_by)
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
            wanted = whole.filter(condition)["i"].to_pylist()
            assert wanted
            check_ways(ds, condition, wanted, str(index))
        check_ways(ds, "d = 1.00", [0], str(index))
        result = ds.to_polars().filter(pl.col("d") == pl.lit(one)).collect()
        assert result["i"].to_list() == [0]


def test_text_of_old_writers(tmp_path: Path) -> None:
    """Old writers ordered bytes as signed numbers.

    Neither pyarrow nor zonebloom uses such bounds.
    """
    path = tmp_path / "data.parquet"
    whole = pa.table({"s": ["a", "é", "z", "zé"], "i": range(4)})
    pq.write_table(whole, path)
    s = pc.field("s")
    for writer in (b"parquet-mr version 1.8.1 (build 4aba4da)", b"impala version 2.0", None):
        low, high = "é".encode(), b"z"
        set_statistics(path, 0, minimum=low, maximum=high, null_count=0, created_by=writer)
        ds = zb.dataset(path)
        for row, value in enumerate(whole["s"].to_pylist()):
            check_ways(ds, s == value, [row], str(writer))


def test_missing_null_counts(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    n = pc.field("n")
    for values in ([1, None, 3], [1, None, 1], [None, None]):
        whole = pa.table({"n": pa.array(values, pa.int64()), "i": range(len(values))})
        pq.write_table(whole, path)
        numbers = [each.to_bytes(8, "little") for each in values if each is not None]
        if numbers:
            set_statistics(path, 0, min_value=numbers[0], max_value=numbers[-1])
        else:
            set_statistics(path, 0)
        for condition in (n.is_null(), n.is_valid(), n == 1, ~n.isin([1]), ~(n == 1)):
            wanted = whole.filter(condition)["i"].to_pylist()
            check_ways(zb.dataset(path), condition, wanted, str(values))


def read_of(ds: zb.Dataset, condition: pc.Expression) -> int:
    seen: list[ScanStats] = []
    ds.scanner(filter=condition, scan_stats_callback=seen.append).to_table()
    return seen[0].data_bytes


def test_valid_statistics_still_skip_row_groups(tmp_path: Path) -> None:
    rows = 40_000
    rng = np.random.default_rng(1)
    whole = pa.table(
        {
            "f": np.arange(rows, dtype=float),
            "n": pa.array(range(rows), pa.int64()),
            "other": rng.random(rows),
        }
    )
    pq.write_table(whole, tmp_path / "data.parquet", row_group_size=2_000)
    ds = zb.dataset(tmp_path)
    f, n, other = pc.field("f"), pc.field("n"), pc.field("other")
    all_of_it = read_of(ds, other != 2)
    for condition in (
        f == 7,
        f < 100,
        (f >= 39_000) & (f != 39_500),
        f.isin([7.0, 8.0]),
        (f < 5) | (f > 39_990),
        (n < 100) & (other != 2),
        (n == 7) & ~(other > 2),
        (n < 100) & pc.is_finite(other),  # pyright: ignore[reportAttributeAccessIssue]
    ):
        assert ds.to_table(filter=condition).equals(whole.filter(condition))
        assert read_of(ds, condition) < all_of_it / 4, str(condition)


def test_filter_pushed_into_pyarrow() -> None:
    schema = pa.schema(
        {"n": pa.int64(), "f": pa.float64(), "d": pa.decimal128(9, 2), "s": pa.string()}
    )
    n, f, d, s = (pc.field(name) for name in schema.names)
    for whole in (
        ~(n == 5) & pc.starts_with(s, "a"),  # pyright: ignore[reportAttributeAccessIssue]
        ~s.isin(["a", None]),
        (f > 5) | (n != 3),
        f.isin(some(1, 2)) & n.is_null(),
    ):
        assert statistics_safe_filter(whole, schema) is whole
    part = statistics_safe_filter((n == 5) & (f != 3) & (d == Decimal("1.00")), schema)
    assert part is not None and part.equals(n == pa.scalar(5))
    for nothing in (f != 3, ~f.isin(some(3)), f.isin(some(0.0)), (n == 5) | (d == Decimal(1))):
        assert statistics_safe_filter(nothing, schema) is None


def test_float16_is_compared_as_sql_compares_it(tmp_path: Path) -> None:
    numbers = np.arange(100).astype(np.float16)
    pq.write_table(pa.table({"h": numbers, "n": range(100)}), tmp_path / "data.parquet")
    ds = zb.dataset(tmp_path)
    for text, count in (("h = 7.0", 1), ("h > 90 AND n <> 95", 8), ("h IN (1, 2)", 2)):
        assert ds.count_rows(text) == ds.count_rows(text, use_scalar_index=False) == count
