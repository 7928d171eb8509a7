"""Look up more keys than Bloom filters can exclude, in a hash index.

Results are compared with a search in Python over all rows.
"""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal
from support.helpers import cases
from support.seams import set_constant

import zonebloom as zb
from zonebloom import errors
from zonebloom import lazy_frame as lazy_frame_module
from zonebloom.index import key_search
from zonebloom.index.key_search import FILTERED_BY_ARROW
from zonebloom.lazy_frame import lazy_frame
from zonebloom.predicates import polars_expression
from zonebloom.scan import key_candidates, locate
from zonebloom.values import literal
from zonebloom.values.literal import hashes_among

NAN = math.nan
COLUMNS = pa.schema([("a", pa.int64()), ("b", pa.string()), ("c", pa.float64()), ("d", pa.int8())])
VALUES: dict[str, list[Any]] = {
    "a": [None, *range(-3, 7), 2**63 - 1, -(2**63)],
    "b": [None, "", "a", "É", "ab" * 20],
    "c": [None, 0.0, -0.0, NAN, 1.5, math.inf, -2.0],
    "d": [None, *range(-3, 7)],
}


def is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def lower_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat three keys as many. So few are looked up without a sample."""
    for module in (locate, key_candidates):
        set_constant(monkeypatch, module, "MAX_SEARCHED_KEYS", 2)
    set_constant(monkeypatch, key_search, "_MAX_UNITED_KEYS", 2)
    set_constant(monkeypatch, literal, "_MAX_HASHED_SINGLY", 2)


def located(tables: Sequence[pa.Table], names: Sequence[str], keys: Sequence[tuple]) -> list[tuple]:
    """Return the number of each key with the file and the row that hold it, or with None."""
    rows_by_key: dict[tuple, list[tuple[int, int]]] = {}
    for file, table in enumerate(tables):
        columns = [table[name].to_pylist() for name in names]
        for row, values in enumerate(zip(*columns, strict=True)):
            # Equal keys are equal in a dictionary: 0.0 and -0.0, but no NaN. Each NaN is new here.
            if None not in values and not any(map(is_nan, values)):
                rows_by_key.setdefault(values, []).append((file, row))
    return [
        (number, *place)
        for number, key in enumerate(keys)
        for place in (None not in key and rows_by_key.get(key)) or [(None, None)]
    ]


def assert_located(
    ds: zb.Dataset, tables: Sequence[pa.Table], names: Sequence[str], keys: pa.Table
) -> None:
    rows = ds.locate(list(names), keys)
    files = [None if path is None else ds.files.index(path) for path in rows["path"].to_pylist()]
    places = list(zip(rows["key_index"].to_pylist(), files, rows["row"].to_pylist(), strict=True))
    key_tuples = list(zip(*(keys[name].to_pylist() for name in names), strict=True))
    expected = located(tables, names, key_tuples)
    assert places == expected
    counts: dict[int, tuple[set, set]] = {}
    for number, file, row in expected:
        if file is not None:
            file_keys, file_rows = counts.setdefault(file, (set(), set()))
            file_keys.add(key_tuples[number])
            file_rows.add(row)
    assert [
        (ds.files.index(row["path"]), row["num_keys"], row["num_rows"])
        for row in ds.files_with_keys(list(names), keys).to_pylist()
    ] == [(file, len(k), len(r)) for file, (k, r) in sorted(counts.items())]


def assert_scanned(ds: zb.Dataset, tables: Sequence[pa.Table], name: str, keys: pa.Array) -> None:
    """Compare lookups and long IN lists with PyArrow over all rows."""
    is_key = pc.field(name).isin(keys)
    everything = pads.dataset(pa.concat_tables(tables))
    for filter in (is_key, ~is_key, is_key & (pc.field("n") > 5), is_key | (pc.field("n") == 3)):
        expected = everything.to_table(filter=filter)["n"].to_pylist()
        assert ds.to_table(filter=filter)["n"].to_pylist() == expected
        assert ds.scanner(filter=filter).count_rows() == len(expected)
    rows = ds.lookup(name, keys)
    found = sorted(zip(rows["key_index"].to_pylist(), rows["n"].to_pylist(), strict=True))
    key_tuples = [(key,) for key in keys.to_pylist()]
    assert found == sorted(
        (number, tables[file]["n"][row].as_py())
        for number, file, row in located(tables, [name], key_tuples)
        if file is not None
    )


def write_files(folder: Path, tables: list[pa.Table], first: int = 0) -> None:
    folder.mkdir(exist_ok=True)
    for number, table in enumerate(tables, first):
        pq.write_table(table, folder / f"{number:02d}.parquet", row_group_size=11)


def a_table(rng: random.Random, first_number: int) -> pa.Table:
    count = rng.randint(1, 30)
    columns = [
        pa.array(rng.choices(VALUES[field.name][: rng.randint(1, 20)], k=count), field.type)
        for field in COLUMNS
    ]
    numbers = pa.array(range(first_number, first_number + count))
    return pa.table([*columns, numbers], names=[*COLUMNS.names, "n"])


@settings(deadline=None, max_examples=cases(60, 20))
@given(seed=st.integers(0, 2**32))
def test_many_keys_are_found_in_every_row_that_holds_them(tmp_path_factory, seed):
    folder, rng = tmp_path_factory.mktemp("many") / "t", random.Random(seed)
    tables = [a_table(rng, 100 * number) for number in range(rng.randint(1, 4))]
    write_files(folder, tables)
    ds = zb.dataset(folder)
    for name in rng.sample(COLUMNS.names, rng.randint(1, 3)):
        ds.create_scalar_index(name, "HASH", number_of_items=4, spark=False)
        if rng.random() < 0.3:
            ds.create_scalar_index(name, name=f"bloom_{name}", number_of_items=5, spark=False)
    if rng.random() < 0.5:
        # Some files are rewritten or new after the build.
        first = rng.randint(0, len(tables))
        changed = [a_table(rng, 1000 + 100 * number) for number in range(2)]
        tables[first : first + len(changed)] = changed
        write_files(folder, changed, first)
    ds = zb.dataset(folder)
    names = rng.sample(COLUMNS.names, rng.randint(1, 3))
    count = rng.choice([0, 1, 3, 5, 25])
    keys = pa.table(
        [pa.array(rng.choices(VALUES[name], k=count), COLUMNS.field(name).type) for name in names],
        names=names,
    )
    with pytest.MonkeyPatch.context() as patched, warnings.catch_warnings():
        lower_limits(patched)
        warnings.simplefilter("ignore", errors.ZoneBloomWarning)
        assert_located(ds, tables, names, keys)
        assert_scanned(ds, tables, names[0], keys[names[0]].combine_chunks())


# 20,000 keys and more, with the limits of the package

MANY = 20_000


@pytest.fixture(scope="module")
def large(tmp_path_factory) -> tuple[zb.Dataset, list[pa.Table]]:
    folder = tmp_path_factory.mktemp("large") / "t"
    rng = np.random.default_rng(5)
    tables = []
    for number in range(4):
        ids = pa.array(rng.integers(0, 10**12, 100_000), mask=rng.random(100_000) < 0.01)
        rows = range(number * 100_000, (number + 1) * 100_000)
        tables.append(pa.table({"a": ids, "n": rows}))
        folder.mkdir(exist_ok=True)
        pq.write_table(tables[-1], folder / f"{number}.parquet", max_rows_per_page=2048)
    ds = zb.dataset(folder)
    ds.create_scalar_index("a", "HASH", probability=1e-6, spark=False)
    return ds, tables


def keys_of(tables: list[pa.Table], num_present: int) -> pa.Array:
    rng = np.random.default_rng(7)
    stored = pa.concat_tables(tables)["a"].drop_null().to_numpy()
    present_keys = rng.choice(stored, num_present, replace=False)
    new_keys = rng.integers(10**12, 10**13, MANY - num_present)
    keys = rng.permutation(np.concatenate([present_keys, new_keys]))
    return pa.concat_arrays([pa.array(keys), pa.array([None, keys[3], -1], pa.int64())])


@pytest.mark.parametrize("num_present", [0, 20, MANY // 2, MANY])
def test_twenty_thousand_keys(large, num_present):
    ds, tables = large
    keys = keys_of(tables, num_present)
    assert_located(ds, tables, ["a"], pa.table({"a": keys}))
    if num_present in (0, 20):
        assert_scanned(ds, tables, "a", keys.drop_null())


def test_new_keys_read_no_data(large):
    ds, tables = large
    keys = keys_of(tables, 0).drop_null()
    ran = ds.scanner(filter=pc.field("a").isin(keys)).analyze_plan()
    assert (ran.stats.fragments_read, ran.stats.rows_read, ran.stats.rows_found) == (0, 0, 0)
    plan = ds.scanner(filter=pc.field("a").isin(keys) | (pc.field("n") == -1)).plan()
    assert len(plan.fragments) == 4


def test_few_of_many_keys_read_few_zones(large):
    ds, tables = large
    keys = keys_of(tables, 20).drop_null()
    ran = ds.scanner(filter=pc.field("a").isin(keys)).analyze_plan()
    assert ran.stats.rows_found == 20
    assert ran.stats.rows_read <= 20 * 1024


@given(
    hashes=st.lists(st.integers(0, 20) | st.integers(0, 2**64 - 1)),
    others=st.lists(st.integers(0, 20) | st.integers(0, 2**64 - 1)),
)
def test_hashes_are_found_among_sorted_ones(hashes, others):
    ordered = np.array(sorted(others), dtype=np.uint64)
    result = hashes_among(np.array(hashes, dtype=np.uint64), ordered)
    assert result.tolist() == [hashed in others for hashed in hashes]


def scans(ds: zb.Dataset, folder: Path) -> tuple[pl.LazyFrame, pl.LazyFrame]:
    return lazy_frame(ds), pl.scan_parquet(str(folder / "*.parquet"), glob=True)


@settings(deadline=None, max_examples=cases(40, 12))
@given(seed=st.integers(0, 2**32))
def test_polars_lists_of_keys_return_the_rows_of_polars(tmp_path_factory, seed):
    rng, folder = random.Random(seed), tmp_path_factory.mktemp("polars")
    tables = [a_table(rng, 100 * number) for number in range(rng.randint(1, 3))]
    write_files(folder, tables)
    ds = zb.dataset(folder)
    for name in COLUMNS.names:
        ds.create_scalar_index(name, "HASH", number_of_items=rng.choice([1, 3, 8]))
    ours, theirs = scans(ds, folder)
    with pytest.MonkeyPatch.context() as patch:
        lower_limits(patch)
        set_constant(patch, polars_expression, "_MAX_JSON_BYTES", rng.choice([0, 1 << 14]))
        for name in COLUMNS.names:
            values = [value for value in VALUES[name] if not is_nan(value)]
            listed = pl.Series(rng.choices(values, k=6), dtype=theirs.collect_schema()[name])
            is_listed = pl.col(name).is_in(listed.implode(), nulls_equal=rng.random() < 0.3)
            for condition in (
                is_listed,
                is_listed & (pl.col("a") > 2),
                (pl.col("n") * 2 > 20) & is_listed & pl.col("b").is_in(["a", "É", "x"]),
                is_listed | (pl.col("a") == 3),
                ~is_listed,
            ):
                expected = theirs.filter(condition).collect()
                assert_frame_equal(ours.filter(condition).collect(), expected)
                assert_frame_equal(pl.DataFrame(ds.to_table(filter=condition)), expected)


@pytest.mark.parametrize("num_present", [0, 20, MANY // 2, MANY])
def test_twenty_thousand_keys_in_a_polars_list(large, num_present, monkeypatch):
    set_constant(monkeypatch, lazy_frame_module, "FILTERED_BY_POLARS", FILTERED_BY_ARROW)
    ds, tables = large
    keys = keys_of(tables, num_present).drop_null()
    expected = {key.as_py() for key in keys}
    condition = pl.col("a").is_in(pl.Series(keys).implode())
    rows = pa.concat_tables(tables)["a"].to_pylist()
    matches = [key for key in rows if key in expected]
    assert lazy_frame(ds).filter(condition).collect()["a"].to_list() == matches
    assert lazy_frame(ds).filter(condition & (pl.col("a") + 1 > 0)).collect()["a"].to_list() == [
        key for key in matches if key + 1 > 0
    ]


def test_a_file_that_changes_after_the_plan_is_read_with_all_keys_of_a_polars_list(
    tmp_path, monkeypatch
):
    lower_limits(monkeypatch)
    write_files(tmp_path, [pa.table({"a": pa.array(range(100), pa.int64())})])
    ds = zb.dataset(tmp_path)
    ds.create_scalar_index("a", "HASH", number_of_items=5)
    condition = pl.col("a").is_in([7, 8, 500, 501]) & (pl.col("a") + 1 > 0)
    scanner = ds.scanner(filter=condition)
    planned = scanner.planned(scanner.plan())
    write_files(tmp_path, [pa.table({"a": pa.array(range(450, 650), pa.int64())})])
    assert planned.to_table()["a"].to_pylist() == [500, 501]


@pytest.mark.parametrize("num_present", [0, 20, MANY])
def test_twenty_thousand_keys_in_a_duckdb_list(large, num_present):
    duckdb = pytest.importorskip("duckdb")
    ds, tables = large
    keys = keys_of(tables, num_present).drop_null()
    literals = ", ".join(str(key.as_py()) for key in keys)
    expected = {key.as_py() for key in keys}
    stored = pa.concat_tables(tables)["a"].to_pylist()
    with duckdb.connect() as connection:
        connection.register("rows", ds)
        for condition, accepts in (
            (f"a IN ({literals})", lambda key: key in expected),
            (f"a IN ({literals}) AND a > 5", lambda key: key in expected and key > 5),
            (f"a NOT IN ({literals})", lambda key: key not in expected),
        ):
            rows = connection.sql(f"SELECT a FROM rows WHERE {condition}").fetchall()
            matches = (key for key in stored if key is not None and accepts(key))
            assert sorted(rows) == sorted((key,) for key in matches)


@pytest.mark.parametrize("stored", [pa.string(), pa.large_string()])
@pytest.mark.parametrize("given_type", [pa.string(), pa.large_string()])
def test_a_list_of_texts_of_either_size_selects_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stored: pa.DataType, given_type: pa.DataType
) -> None:
    lower_limits(monkeypatch)
    texts = [None if row % 7 == 0 else f"text {row % 50}" for row in range(500)]
    table = pa.table({"key": pa.array(texts, stored), "row": range(500)})
    pq.write_table(table, tmp_path / "0.parquet", row_group_size=120)
    keys = ["text 3", "text 49", "nowhere", "text 3", "text 11"]
    condition = pc.field("key").isin(pa.array(keys, given_type))
    ds = zb.dataset(tmp_path)
    for _ in range(2):
        rows = ds.to_table(["row"], filter=condition)["row"].to_pylist()
        assert rows == [row for row, text in enumerate(texts) if text in keys]
        ds.create_scalar_index("key", number_of_items=30, spark=False)
