"""Scans with offset, order_by, fragments, row addresses and computed columns, against DuckDB."""

from __future__ import annotations

import decimal
import math
import random
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.e2e_helpers import build
from support.limits import set_limit

import zonebloom as zb
from zonebloom import errors

# One file of the dataset is not indexed.
pytestmark = pytest.mark.filterwarnings("ignore::zonebloom.errors.StaleIndexWarning")

ROWS = 900
WORDS = ["", "a", "A", "b", "ä", "zz", None]


def rows_of(seed: int) -> pa.Table:
    rng = random.Random(seed)
    numbers = [rng.choice([None, *range(40)]) for _ in range(ROWS)]
    floats = [rng.choice([None, math.nan, 0.0, -0.0, 1.5, -math.inf, 7.25]) for _ in range(ROWS)]
    return pa.table(
        {
            "id": np.arange(ROWS) + seed * ROWS,
            "number": pa.array(numbers, pa.int32()),
            "double": pa.array(floats, pa.float64()),
            "word": pa.array([rng.choice(WORDS) for _ in range(ROWS)]),
            "day": pa.array([rng.choice([None, 1, 500]) for _ in range(ROWS)], pa.date32()),
            "price": pa.array([decimal.Decimal(rng.randrange(9)) for _ in range(ROWS)]),
        }
    )


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> zb.Dataset:
    folder = tmp_path_factory.mktemp("scans") / "data"
    folder.mkdir()
    for number in range(3):
        pq.write_table(rows_of(number), folder / f"{number}.parquet", row_group_size=250)
    dataset = zb.dataset(folder)
    for column in ("number", "id"):
        build(dataset, column, number_of_items=100)
    # The last file is not indexed.
    pq.write_table(rows_of(3), folder / "3.parquet")
    dataset.refresh()
    return dataset


@pytest.fixture(scope="module")
def table(ds: zb.Dataset) -> pa.Table:
    return ds.unindexed().to_table()


FILTERS = [None, "number = 7", "number IN (1, 2, 3) AND word > 'a'", "number IS NULL", "id >= 2000"]
SORTABLE = ["id", "number", "double", "word", "day", "price"]
sort_keys = st.lists(
    st.tuples(st.sampled_from(SORTABLE), st.sampled_from(["ascending", "descending"])),
    max_size=3,
    unique_by=lambda key: key[0],
)


def expected_rows(
    table: pa.Table,
    filter: str | None,
    order_by: list[tuple[str, str]],
    offset: int,
    limit: int | None,
) -> list[int]:
    """Return the ids that DuckDB returns. Rows with equal keys stay in the order of their ids."""
    keys = [f'"{name}" {order} NULLS LAST' for name, order in order_by]
    sql = f"SELECT id FROM rows {'' if filter is None else 'WHERE ' + filter}"
    sql += f" ORDER BY {', '.join([*_with_nan_after_numbers(keys), 'id'])}"
    sql += f" {'' if limit is None else f'LIMIT {limit}'} OFFSET {offset}"
    with duckdb.connect() as connection:
        connection.register("rows", table)
        return [row[0] for row in connection.sql(sql).fetchall()]


def _with_nan_after_numbers(keys: list[str]) -> list[str]:
    """DuckDB sorts NaN as the greatest number."""
    rank = 'CASE WHEN "double" IS NULL THEN 2 WHEN isnan("double") THEN 1 ELSE 0 END'
    return [f"{rank}, {key}" if "double" in key else key for key in keys]


@pytest.mark.slow
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    filter=st.sampled_from(FILTERS),
    order_by=sort_keys,
    offset=st.integers(0, 60) | st.sampled_from([3000, 4000]),
    limit=st.none() | st.integers(0, 50) | st.just(5000),
    columns=st.sampled_from(
        [None, ["id"], ["word", "id"], {"id": pc.field("id"), "number": "id % 7"}]
    ),
    collected=st.sampled_from([1, 1 << 17]),
)
def test_rows_are_those_of_duckdb(
    ds: zb.Dataset, table: pa.Table, filter, order_by, offset, limit, columns, collected
):
    if isinstance(columns, dict):
        # A name means the column of the result first.
        table = table.set_column(
            1, "number", pc.subtract(table["id"], pc.multiply(pc.divide(table["id"], 7), 7))
        )
        if filter is not None and "number" in filter:
            return
    scan = ds.scanner(
        columns, filter, order_by=order_by or None, offset=offset, limit=limit, batch_size=70
    )
    with pytest.MonkeyPatch.context() as patch:
        set_limit(patch, "rows that are sorted in batches", collected)
        rows = scan.to_table()
    assert rows["id"].to_pylist() == expected_rows(table, filter, order_by, offset, limit)
    names = table.schema.names if columns is None else list(columns)
    assert rows.schema.names == scan.schema.names == names
    assert scan.count_rows() == rows.num_rows


@pytest.mark.parametrize("filter", FILTERS)
@pytest.mark.parametrize("order_by", [None, "word"])
def test_addresses_lead_to_their_rows(ds: zb.Dataset, filter: str | None, order_by: str | None):
    options: dict[str, Any] = {"with_row_address": True, "order_by": order_by}
    rows = ds.to_table(["id", "double"], filter, **options)
    assert rows.schema.field("_rowaddr").type == pa.uint64()
    assert (
        rows["id"].to_pylist() == ds.to_table(["id"], filter, order_by=order_by)["id"].to_pylist()
    )
    taken = ds.take_rows(rows["_rowaddr"], ["id"])
    assert taken["id"].to_pylist() == rows["id"].to_pylist()
    scan = ds.scanner({"x": "id + 1"}, filter, limit=5, **options)
    assert scan.schema.names == ["x", "_rowaddr"]
    assert scan.to_table()["x"].to_pylist() == [number + 1 for number in rows["id"].to_pylist()[:5]]


def test_only_chosen_files_are_read(ds: zb.Dataset, table: pa.Table):
    ids = table["id"].to_numpy()
    for filter, matches in ((None, ids >= 0), ("number = 7", table["number"].to_numpy() == 7)):
        for files in ([ds.files[1]], [ds.files[3], ds.files[0]], list(ds.get_fragments())[1:3], []):
            paths = [file if isinstance(file, str) else file.path for file in files]
            numbers = {ds.files.index(path) for path in paths}
            expected = [i for i in ids[matches].tolist() if i // ROWS in numbers]
            scan = ds.scanner(["id"], filter, fragments=files)
            assert scan.to_table()["id"].to_pylist() == expected
            assert scan.plan().fragments or not expected
    assert ds.to_table(["id"], fragments=ds.files[0]).num_rows == ROWS
    with pytest.raises(errors.InvalidArgument, match="fragments"):
        ds.scanner(fragments=["other.parquet"])


SQL_COLUMNS = {
    "upper(word)": lambda row: None if row["word"] is None else row["word"].upper(),
    "number + 1": lambda row: None if row["number"] is None else row["number"] + 1,
    "number": lambda row: row["number"],
    "'x'": lambda row: "x",
    "5": lambda row: 5,
    "number > 3 AND word = 'a'": None,
    "CASE WHEN number < 5 THEN 'few' ELSE 'many' END": None,
    "length(word) * 2": None,
    "day": lambda row: row["day"],
}


@pytest.mark.parametrize("sql", SQL_COLUMNS)
def test_columns_are_computed_as_duckdb_computes_them(ds: zb.Dataset, table: pa.Table, sql: str):
    rows = ds.to_table({"id": "id", "x": sql}, "number IN (3, 4, 5)")
    with duckdb.connect() as connection:
        connection.register("rows", table)
        query = f"SELECT id, {sql} AS x FROM rows WHERE number IN (3, 4, 5) ORDER BY id"
        expected = connection.sql(query).fetchall()
    assert list(zip(rows["id"].to_pylist(), rows["x"].to_pylist(), strict=True)) == expected
    oracle = SQL_COLUMNS[sql]
    if oracle is not None:
        matches = [row for row in table.to_pylist() if row["number"] in (3, 4, 5)]
        assert rows["x"].to_pylist() == [oracle(row) for row in matches]


def test_types_without_an_order_and_a_taken_name_are_refused(tmp_path: Path):
    table = pa.table({"list": [[1]], "_rowaddr": [5], "view": pa.array(["b"], pa.string_view())})
    pq.write_table(table, tmp_path / "0.parquet")
    dataset = zb.dataset(tmp_path)
    with pytest.raises(errors.InvalidArgument, match="cannot be sorted by column 'list'"):
        dataset.scanner(order_by="list")
    with pytest.raises(errors.InvalidArgument, match="_rowaddr"):
        dataset.scanner(with_row_address=True)
    assert dataset.to_table(["view"], order_by="view")["view"].to_pylist() == ["b"]


def test_a_file_that_changes_gives_no_wrong_addresses(tmp_path: Path):
    pq.write_table(pa.table({"id": range(100)}), tmp_path / "0.parquet")
    dataset = zb.dataset(tmp_path)
    scan = dataset.scanner(with_row_address=True)
    plan = scan.plan()
    pq.write_table(pa.table({"id": range(50)}), tmp_path / "0.parquet")
    with pytest.raises(errors.FragmentChanged):
        scan.planned(plan).to_table()


@pytest.mark.parametrize("kind", ["BLOOMFILTER", "HASH"])
def test_an_index_without_training_is_trained_by_a_refresh(tmp_path: Path, kind: str):
    for number in range(2):
        pq.write_table(rows_of(number), tmp_path / f"{number}.parquet")
    dataset = zb.dataset(tmp_path, index_dir=str(tmp_path.parent / f"{kind} index"))
    dataset.create_scalar_index("id", kind, train=False, spark=False)
    (description,) = dataset.describe_indices()
    assert (description.num_fragments_indexed, description.num_fragments) == (0, 2)
    assert dataset.to_table(filter="id = 5").num_rows == 1
    dataset.optimize.optimize_indices(spark=False)
    (description,) = dataset.describe_indices()
    assert (description.num_fragments_indexed, description.num_fragments) == (2, 2)
    plan = dataset.scanner(filter="id = 5").plan()
    assert plan.skipped == 1
    with pytest.raises(errors.InvalidArgument, match="train"):
        dataset.create_scalar_index("number", train=2, spark=False)  # pyright: ignore[reportArgumentType]
