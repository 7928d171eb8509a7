"""Check datasets whose folder names give columns: paths prune files before the index does.

The oracle for rows is pyarrow's partitioned dataset. The oracle for values is the written table.
"""

from __future__ import annotations

import datetime as dt
import math
import os
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.helpers import cases, copy_dataset

import zonebloom as zb
from zonebloom.errors import FilterError, InvalidArgument, StaleIndexWarning

ROWS = 6_000
CITIES = ["a b", "x/y", "é%", None]


def rows(seed: int = 0) -> pa.Table:
    rng = np.random.default_rng(seed)
    return pa.table(
        {
            "year": pa.array(rng.choice([2018, 2019, 2020, None], ROWS), pa.int32()),
            "city": pa.array(rng.choice(CITIES, ROWS), pa.string()),
            "id": pa.array(rng.permutation(ROWS) // 2),
            "group": pa.array(rng.integers(0, 50, ROWS)),
        }
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("hive") / "data")
    pq.write_to_dataset(rows(), path, partition_cols=["year", "city"])
    ds = zb.dataset(path)
    ds.create_scalar_index(["id", "group"], spark=False, number_of_items=64)
    return path


def test_path_columns_are_in_the_schema(folder):
    ds = zb.dataset(folder)
    assert ds.schema.names == ["id", "group", "year", "city"]
    assert ds.schema.field("year").type == pa.int32()
    table = ds.to_table().select(["year", "city", "id", "group"])
    keys = [(name, "ascending") for name in table.column_names]
    assert table.sort_by(keys).equals(rows().sort_by(keys))


PATH_LEAVES = [
    pc.field("year") == 2019,
    pc.field("year") != 2019,
    pc.scalar(2019) == pc.field("year"),
    pc.field("year") > 2018,
    pc.scalar(2019) >= pc.field("year"),
    pc.field("year").isin([2018, 2020]),
    pc.field("year").isin([2018, None]),
    pc.field("year").is_null(),
    pc.field("year").is_valid(),
    pc.field("year") == 2019.5,
    pc.field("year") == 5_000_000_000,
    pc.field("year").cast("string") == "2019",
    pc.field("city") == "x/y",
    pc.field("city").isin(["a b", "é%", "none"]),
    pc.field("city") < "b",
    pc.field("city").is_null(),
    pc.starts_with(pc.field("city"), "a"),
]
leaves = st.one_of(
    st.sampled_from(PATH_LEAVES),
    st.integers(0, ROWS // 2).map(lambda i: pc.field("id") == i),
    st.lists(st.integers(0, ROWS), max_size=4).map(
        lambda i: pc.field("id").isin(pa.array(i, "int64"))
    ),
    st.integers(0, 60).map(lambda i: pc.field("group") == i),
)
filters = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds(lambda a, b: a & b, inner, inner),
        st.builds(lambda a, b: a | b, inner, inner),
        st.builds(lambda a: ~a, inner),
    ),
    max_leaves=6,
)


@pytest.mark.slow
@settings(max_examples=cases(300))
@given(filters)
def test_random_filters_give_the_rows_of_pyarrow(folder, filter):
    wanted = pads.dataset(folder, partitioning="hive").to_table(filter=filter)
    assert zb.dataset(folder).to_table(filter=filter).equals(wanted)


@pytest.mark.parametrize(
    ("filter", "fragments"),
    [
        ("year = 2019", 4),
        # NULL <> 2019 is null in SQL, but true in the comparisons of some engines.
        ("year <> 2019", 12),
        ("NOT year = 2019", 12),
        ("year IS NULL", 4),
        ("year IS NOT NULL", 12),
        ("year IN (2018, 2019)", 8),
        ("year NOT IN (2018, 2019)", 4),
        ("year >= 2019", 8),
        ("year BETWEEN 2019 AND 2019", 4),
        ("2019 > year", 4),
        ("city = 'x/y'", 4),
        ("city = 'x/y' AND year = 2020", 1),
        ("(city = 'x/y' AND year = 2020) OR (city = 'a b' AND year = 2018)", 2),
        ("year = 1999 OR year = 2019.5", 0),
        ("year = 2019 OR id >= 0", 16),
    ],
)
def test_path_pruning_keeps_matching_fragments(folder, filter, fragments):
    plan = zb.dataset(folder).scanner(filter=filter).plan()
    assert len(plan.fragments) == fragments
    assert plan.skipped == 16 - fragments
    assert plan.index_bytes == 0


def test_no_index_is_opened_if_paths_prune_all_files(folder):
    plan = zb.dataset(folder).scanner(filter="id = 5 AND year = 1999").plan()
    assert (plan.index_bytes, len(plan.fragments)) == (0, 0)
    text = str(plan)
    assert "by path: year = 1999 leaves 0 of 16 fragments" in text
    assert "index: none used" in text


def test_unindexed_files_are_pruned_too(folder, tmp_path):
    path = str(tmp_path / "data")
    copy_dataset(Path(folder), Path(path))
    new = os.path.join(path, "year=2021", "city=new")
    os.makedirs(new)
    pq.write_table(rows(1).select(["id", "group"]), os.path.join(new, "0.parquet"))
    ds = zb.dataset(path)
    with pytest.warns(StaleIndexWarning):
        table = ds.to_table(filter="id = 7 AND city = 'new'")
    expected = rows(1).filter(pc.field("id") == 7)
    assert table["group"].to_pylist() == expected["group"].to_pylist()
    assert set(table["year"].to_pylist()) == {2021}
    assert len(ds.scanner(filter="year = 2021").plan().fragments) == 1


def test_path_values_win_over_file_values(tmp_path):
    for year in (2019, 2020):
        os.makedirs(tmp_path / f"year={year}" / "day=2020-01-01")
        table = pa.table({"year": pa.array([1, 2], pa.int64()), "id": [1, year]})
        pq.write_table(table, tmp_path / f"year={year}" / "day=2020-01-01" / "0.parquet")
    ds = zb.dataset(str(tmp_path))
    assert ds.schema.field("year").type == pa.int64()
    assert ds.schema.names == ["year", "id", "day"]
    assert ds.to_table(filter="year = 2020 AND id = 2020").to_pylist() == [
        {"year": 2020, "id": 2020, "day": "2020-01-01"}
    ]
    assert ds.count_rows(filter="year = 1") == 0
    with pytest.raises(InvalidArgument, match="read from the paths"):
        ds.create_scalar_index("year", spark=False)


def test_partitionings_of_pyarrow_are_pruned(tmp_path):
    for day in (1, 2):
        os.makedirs(tmp_path / "2024" / str(day))
        pq.write_table(pa.table({"id": [day, 9]}), tmp_path / "2024" / str(day) / "0.parquet")
    scheme = pads.partitioning(pa.schema([("month", pa.date32()), ("day", pa.int8())]))
    with pytest.raises(zb.errors.FragmentUnreadable):
        zb.dataset(str(tmp_path), partitioning=scheme)
    for partitioning in (
        ["year", "day"],
        pads.partitioning(pa.schema([("year", pa.int16()), ("day", pa.int8())])),
    ):
        ds = zb.dataset(str(tmp_path), partitioning=partitioning)
        ds.create_scalar_index("id", spark=False)
        assert ds.to_table(filter="id = 9 AND day = 2").to_pylist() == [
            {"id": 9, "year": 2024, "day": 2}
        ]
    assert zb.dataset(str(tmp_path)).schema.names == ["id"]


def test_dates_and_dictionaries_in_paths_are_pruned(tmp_path):
    table = pa.table(
        {
            "day": pa.array([dt.date(2024, 1, 1), dt.date(2024, 1, 2), None]),
            "kind": pa.array(["a", "b", "b"]).dictionary_encode(),
            "id": [1, 2, 3],
        }
    )
    scheme = pads.partitioning(
        pa.schema([table.schema.field("day"), table.schema.field("kind")]),
        flavor="hive",
        dictionaries={"kind": pa.array(["a", "b"])},
    )
    pads.write_dataset(table, tmp_path, format="parquet", partitioning=scheme)
    ds = zb.dataset(str(tmp_path), partitioning=scheme)
    for filter, ids in [
        ("day = DATE '2024-01-02'", [2]),
        ("day > DATE '2024-01-01'", [2]),
        ("day IS NULL AND kind = 'b'", [3]),
        ("kind IN ('b', 'c')", [2, 3]),
    ]:
        plan = ds.scanner(filter=filter).plan()
        assert len(plan.fragments) == len(ids)
        assert sorted(ds.to_table(filter=filter)["id"].to_pylist()) == ids


def test_listed_files_have_no_path_columns(folder):
    ds = zb.dataset(folder)
    assert zb.dataset(ds.files).schema.names == ["id", "group"]
    assert zb.dataset(ds.files[0]).schema.names == ["id", "group"]
    assert zb.dataset(ds.files, partitioning="hive").schema.names[-2:] == ["year", "city"]
    assert zb.dataset(folder, partitioning=None).schema.names == ["id", "group"]
    with pytest.raises(FilterError, match="no column year"):
        zb.dataset(folder, partitioning=None).to_table(filter="year = 2019")


def test_take_and_projection_include_path_columns(folder):
    ds = zb.dataset(folder)
    candidate = ds.search("year = 2020 AND city = 'x/y'").to_table().to_pylist()[0]
    address = candidate["fragment_id"] << 32 | 3
    assert ds.take_rows([address], columns=["city", "year"]).to_pylist() == [
        {"city": "x/y", "year": 2020}
    ]


def test_floats_in_paths_are_not_rounded(tmp_path):
    for value in (0.1, 0.5):
        os.makedirs(tmp_path / f"p={value}")
        pq.write_table(pa.table({"id": [1, 2]}), tmp_path / f"p={value}" / "0.parquet")
    scheme = pads.partitioning(pa.schema([("p", pa.float64())]), flavor="hive")
    ds = zb.dataset(str(tmp_path), partitioning=scheme)
    single = pa.array([0.1, 0.5], pa.float32())
    for filter in (pc.field("p").isin(single), ~pc.field("p").isin(single)):
        for whole in (filter, filter & (pc.field("id") == 1), ~(filter | (pc.field("id") == 1))):
            wanted = ds.to_table(filter=whole, use_scalar_index=False)
            assert ds.to_table(filter=whole).equals(wanted)


@pytest.mark.parametrize("literal", [0.0, -0.0])
@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_zeros_and_nan_in_paths_lose_no_row(tmp_path, literal, kind):
    for value in ("0.0", "-0.0", "nan", "1.5"):
        os.makedirs(tmp_path / f"p={value}")
        pq.write_table(pa.table({"id": [1]}), tmp_path / f"p={value}" / "0.parquet")
    scheme = pads.partitioning(pa.schema([("p", kind)]), flavor="hive")
    ds = zb.dataset(str(tmp_path), partitioning=scheme)
    values = [literal, math.nan]
    for filter, count in [
        (pl.col("p").is_in([literal]), 2),
        (~pl.col("p").is_in([literal]), 2),
        (pl.col("p").is_in(values), 3),
        (pl.col("p") == literal, 2),
        (pl.col("p") != literal, 2),
        (f"p IN ({literal})", 2),
        (f"p NOT IN ({literal})", 2),
        (pc.field("p").isin(pa.array(values, kind)), None),
        (~pc.field("p").isin(pa.array(values, kind)), None),
    ]:
        wanted = ds.to_table(filter=filter, use_scalar_index=False)
        assert ds.to_table(filter=filter).num_rows == wanted.num_rows
        assert count in (None, wanted.num_rows)


def test_a_result_with_null_paths_is_not_exact(folder):
    ds = zb.dataset(folder)
    assert ds.search("year IN (2018, 2019)").kind == "AtMost"
    assert ds.search(~(pc.field("year") == 2019)).kind == "AtMost"
    assert ds.search("year = 1999").kind == "Exact"


def test_the_schema_may_differ_from_the_paths(tmp_path):
    os.makedirs(tmp_path / "p=1")
    pq.write_table(pa.table({"id": [1, 2]}), tmp_path / "p=1" / "0.parquet")
    source = pads.dataset(
        str(tmp_path),
        schema=pa.schema([("id", pa.int64()), ("p", pa.string())]),
        partitioning=pads.partitioning(pa.schema([("p", pa.int32())]), flavor="hive"),
        format="parquet",
    )
    ds = zb.dataset(source)
    assert ds.to_table(filter="id = 1").num_rows == 1
    assert "cannot be compared" in ds.scanner(filter="p = '1'").explain_plan()


@pytest.mark.parametrize("is_indexed", [False, True])
def test_keys_of_a_path_column_are_looked_up(tmp_path, is_indexed):
    days = [None if n % 4 == 0 else f"2024-01-0{n % 4}" for n in range(60)]
    rows = pa.table({"id": range(60), "day": days, "n": pa.array([n % 2 for n in range(60)])})
    pads.write_dataset(
        rows,
        tmp_path / "t",
        format="parquet",
        partitioning=pads.partitioning(
            pa.schema({"day": pa.string(), "n": pa.int64()}), flavor="hive"
        ),
    )
    ds = zb.dataset(tmp_path / "t")
    if is_indexed:
        ds.create_scalar_index("id", "HASH", number_of_items=4)
    for column, keys in [
        ("day", ["2024-01-02"]),
        ("day", ["2024-01-02", "2024-02-01", "2024-01-01", "2024-01-02", None]),
        ("day", pa.array([], pa.string())),
        ("n", [1, 7]),
    ]:
        for nulls in (False, True):
            found = ds.lookup(column, keys, ["id"], nulls=nulls)
            expected = [
                (position, row["id"])
                for row in rows.to_pylist()
                for position, key in enumerate(pa.array(keys).to_pylist())
                if row[column] == key and (key is not None or nulls)
            ]
            pairs = zip(found["key_index"].to_pylist(), found["id"].to_pylist(), strict=True)
            assert sorted(pairs) == sorted(expected)


@pytest.mark.parametrize("is_indexed_before", [False, True])
@pytest.mark.parametrize("kind", ["HASH", "BLOOMFILTER", "ZONEMAP"])
def test_a_column_of_some_paths_is_read_from_the_other_files(tmp_path, kind, is_indexed_before):
    """Files without a path value store the column. One file below a path lacks it, one lies."""
    stored, count = 40_000, 300
    pq.write_table(pa.table({"k": range(stored), "v": range(stored)}), tmp_path / "0.parquet")
    for value in (5, 70_000):
        (tmp_path / f"k={value}").mkdir()
    in_path = pa.table({"v": range(stored, stored + count)})
    pq.write_table(in_path, tmp_path / "k=5" / "1.parquet")
    lying = in_path.append_column("k", pa.array([80_000] * count))
    pq.write_table(lying, tmp_path / "k=70000" / "2.parquet")
    arguments = {"number_of_items": 512, "global_filter": kind != "ZONEMAP"}
    if is_indexed_before:
        # This index holds the values that the files store.
        plain = zb.dataset(str(tmp_path), partitioning=None)
        plain.create_scalar_index("k", kind, number_of_items=512, global_filter=kind != "ZONEMAP")
        assert plain.lookup("k", [80_000]).num_rows == count
    partitioning = pads.partitioning(pa.schema({"k": pa.int64()}), flavor="hive")
    ds = zb.dataset(str(tmp_path), partitioning=partitioning)
    assert ds.schema.field("k").type == pa.int64()
    if not is_indexed_before:
        ds.create_scalar_index("k", kind, **arguments)
        ds.validate_index("k_idx", sample="all")
    values = np.concatenate([np.arange(stored), np.full(count, 5), np.full(count, 70_000)])
    v = np.concatenate([np.arange(stored), *[np.arange(stored, stored + count)] * 2])
    few = [5, 17, 39_999, 70_000, 80_000, 90_000]
    for keys in (few, [*range(60_000, 90_000), 5, 17]):
        expected = np.flatnonzero(np.isin(values, keys))
        assert sorted(ds.lookup("k", keys)["v"].to_pylist()) == sorted(v[expected].tolist())
        located = ds.locate("k", keys).drop_null()
        assert located.num_rows == expected.size
        assert sum(ds.files_with_keys("k", keys)["num_rows"].to_pylist()) == expected.size
    for filter, wanted in [
        ("k = 17", values == 17),
        ("k = 5", values == 5),
        ("k = 80000", values == 80_000),
        ("k > 39990", values > 39_990),
        ("NOT k < 60000", values >= 60_000),
        ("k IN (5, 9, 70000)", np.isin(values, [5, 9, 70_000])),
    ]:
        assert ds.count_rows(filter) == wanted.sum(), filter
    assert "k_idx" in str(ds.scanner(filter="k = 17").explain_plan())
