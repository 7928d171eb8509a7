"""Check datasets of files with different schemas, with a given schema or their union by name."""

from __future__ import annotations

import warnings
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
from pyarrow import feather
from support.e2e_helpers import build

import zonebloom as zb

ROWS = 40


def first() -> pa.Table:
    return pa.table(
        {
            "row": pa.array(range(ROWS), pa.int64()),
            "id": pa.array(range(ROWS), pa.int32()),
            "x": pa.array([i / 4 for i in range(ROWS)], pa.float32()),
        }
    )


def second() -> pa.Table:
    rows = range(ROWS, 2 * ROWS)
    return pa.table(
        {
            "later": pa.array([None if row % 5 == 0 else f"name {row}" for row in rows]),
            "row": pa.array(rows, pa.int64()),
            "id": pa.array([row + (1 << 40) if row % 2 else row for row in rows], pa.int64()),
            "x": pa.array([row / 3 for row in rows], pa.float64()),
        }
    )


def third() -> pa.Table:
    rows = range(2 * ROWS, 3 * ROWS)
    ids = pa.array([row % 100 for row in rows], "u1")
    return pa.table({"row": pa.array(rows, pa.int64()), "id": ids})


WRITERS = {
    "parquet": lambda table, path: pq.write_table(table, path, row_group_size=10),
    "feather": lambda table, path: feather.write_feather(table, path, chunksize=10),
}
UNION = pa.schema({"row": pa.int64(), "id": pa.int64(), "x": pa.float64(), "later": pa.string()})
SCHEMAS: dict[str, Any] = {"given": UNION, "union": "union"}


def written(folder: Path, tables: list[pa.Table], format: str = "parquet") -> Path:
    folder.mkdir(exist_ok=True)
    for number, table in enumerate(tables):
        WRITERS[format](table, folder / f"part-{number}.{format}")
    return folder


@pytest.fixture(params=list(WRITERS))
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, str]:
    return written(tmp_path, [first(), second(), third()], request.param), request.param


ID, X, LATER, ROW = (pc.field(name) for name in ("id", "x", "later", "row"))
SET = [3, 42, 85, 53 + (1 << 40)]
I_, X_, LATER_ = pl.col("id"), pl.col("x"), pl.col("later")
FILTERS: list[tuple[pc.Expression, pl.Expr]] = [
    (ID == 7, I_ == 7),
    (ID == 41 + (1 << 40), I_ == 41 + (1 << 40)),
    (ID == 1 << 50, I_ == 1 << 50),
    (ID.isin(pa.array(SET, pa.int64())), I_.is_in(SET)),
    (ID > 1 << 32, I_ > 1 << 32),
    (ID != 5, I_ != 5),
    (X == 0.25, X_ == 0.25),
    (X == 41 / 3, X_ == 41 / 3),
    (X.is_null(), X_.is_null()),
    (X.is_valid(), X_.is_not_null()),
    (X != 0.25, X_ != 0.25),
    (LATER == "name 42", LATER_ == "name 42"),
    (LATER.is_null(), LATER_.is_null()),
    (LATER.is_valid(), LATER_.is_not_null()),
    (LATER.isin(["name 43", None]), LATER_.is_in(["name 43", None], nulls_equal=True)),
    (LATER.is_null() & (ID == 7), LATER_.is_null() & (I_ == 7)),
    ((LATER == "name 42") | (ID == 81), (LATER_ == "name 42") | (I_ == 81)),
    (~(LATER == "name 42"), ~(LATER_ == "name 42")),
]


@pytest.mark.many
@pytest.mark.parametrize("schema", list(SCHEMAS))
@pytest.mark.parametrize("column", [None, "id", "x", "later"])
def test_rows_equal_those_of_pyarrow(
    folder: tuple[Path, str], schema: str, column: str | None
) -> None:
    path, format = folder
    oracle = pads.dataset(path, format=format, schema=UNION).to_table()
    ds = zb.dataset(path, format, schema=SCHEMAS[schema])
    assert ds.schema == UNION
    if column is not None:
        build(ds, column, number_of_items=10)
        ds = zb.dataset(path, format, schema=SCHEMAS[schema])
    assert ds.to_table().equals(oracle)
    for condition, for_polars in FILTERS:
        wanted = oracle.filter(condition)
        assert ds.to_table(filter=condition).equals(wanted), str(condition)
        assert ds.to_table(["row"], filter=condition) == wanted.select(["row"]), str(condition)
        assert ds.count_rows(condition) == wanted.num_rows, str(condition)
        assert ds.to_table(filter=condition, use_scalar_index=False).equals(wanted)
        lazy = ds.to_polars().filter(for_polars).collect()
        assert lazy.to_arrow().cast(UNION).equals(wanted), str(condition)
    if column is not None:
        indices = ds.scanner(filter=pc.field(column).is_null()).plan().indices
        assert [index.column for index in indices] == [column]


PROMOTED: list[tuple[pa.Array, pa.Array, Any]] = [
    (pa.array([1, 2], "i1"), pa.array([300, 2], "i4"), 2),
    (pa.array([1, 2], "u4"), pa.array([-1, 2], "i1"), 2),
    (pa.array([1, 2], "i4"), pa.array([0.5, 2.0], "f8"), 2.0),
    (pa.array([1, 2], "i1"), pa.array([0.5, 2.0], "f4"), 2.0),
    (pa.array([0.5, 2.0], "f4"), pa.array([1, 2], "i4"), 2.0),
    (pa.array(["a", "b"]), pa.array(["b", "c"], pa.large_string()), "b"),
    (pa.array([b"a", b"b"]), pa.array([b"b", b"c"], pa.large_binary()), b"b"),
    (
        pa.array([date(2024, 1, 1), date(2024, 1, 2)], pa.date32()),
        pa.array([date(2024, 1, 2), date(2024, 1, 3)], pa.date64()),
        date(2024, 1, 2),
    ),
    (
        pa.array([datetime(2024, 1, 1), datetime(2024, 1, 2)], pa.timestamp("ms")),
        pa.array([datetime(2024, 1, 2), datetime(2024, 1, 3)], pa.timestamp("us")),
        datetime(2024, 1, 2),
    ),
    (
        pa.array([Decimal("1.00"), Decimal("2.00")], pa.decimal128(9, 2)),
        pa.array([Decimal("2.000"), Decimal("3.000")], pa.decimal128(12, 3)),
        Decimal("2.000"),
    ),
    (pa.nulls(2), pa.array([1, 2], "i4"), 2),
]


@pytest.mark.parametrize(
    ("one", "other", "key"), PROMOTED, ids=[f"{a.type}-{b.type}" for a, b, _ in PROMOTED]
)
@pytest.mark.parametrize("format", list(WRITERS))
def test_types_widen_as_in_pyarrow(
    tmp_path: Path, one: pa.Array, other: pa.Array, key: Any, format: str
) -> None:
    tables = [pa.table({"v": values, "row": [0, 1]}) for values in (one, other)]
    if format == "parquet":
        # Parquet changes some types, so write and read the tables once to have the final types.
        tables = [roundtrip(table, tmp_path / "once.parquet") for table in tables]
    path = written(tmp_path / "data", tables, format)
    wanted = pa.concat_tables(tables, promote_options="permissive")
    ds = zb.dataset(path, format, schema="union")
    assert ds.schema.field("v").type == wanted.schema.field("v").type
    literal = pa.scalar(key, wanted.schema.field("v").type)
    condition = pc.field("v") == literal
    for index in (False, True):
        if index:
            build(ds, "v", number_of_items=1)
            assert ds.scanner(filter=condition).plan().indices
        for filter in (condition, ~condition, pc.field("v").is_null()):
            assert ds.to_table(filter=filter).equals(wanted.filter(filter)), (index, str(filter))
        assert ds.to_polars().filter(pl.col("v") == pl.lit(key)).collect()["row"].to_list() == (
            wanted.filter(condition)["row"].to_pylist()
        )


def roundtrip(table: pa.Table, path: Path) -> pa.Table:
    pq.write_table(table, path)
    return pq.read_table(path)


def test_values_that_would_be_rounded_are_not_indexed(tmp_path: Path) -> None:
    whole = [pa.table({"v": pa.array([1 << 53], "i8")}), pa.table({"v": [0.5]})]
    ds = zb.dataset(written(tmp_path, whole), schema="union")
    assert ds.schema.field("v").type == pa.float64()
    with pytest.raises(zb.errors.SchemaMismatch, match="part-0"):
        build(ds, "v")


def test_leaves_of_structs_are_united(tmp_path: Path) -> None:
    tables = [
        pa.table({"s": pa.array([{"a": 1}, {"a": 2}], pa.struct({"a": pa.int32()}))}),
        pa.table(
            {"s": pa.array([{"a": 2, "b": "x"}, None], pa.struct({"a": "i8", "b": pa.string()}))}
        ),
    ]
    wanted = pa.concat_tables(tables, promote_options="permissive")
    ds = zb.dataset(written(tmp_path, tables), schema="union")
    leaf_a, leaf_b = pc.field("s", "a"), pc.field("s", "b")
    for index in (None, "s.a", "s.b"):
        if index is not None:
            build(ds, index, number_of_items=1)
        for filter in (leaf_a == 2, leaf_b == "x", leaf_b.is_null(), leaf_a.is_null()):
            values = ds.to_table(filter=filter)["s"].to_pylist()
            assert values == wanted.filter(filter)["s"].to_pylist(), (index, str(filter))


def test_path_columns_are_added_to_the_union(tmp_path: Path) -> None:
    for day, table in (("1", first()), ("2", second())):
        written(tmp_path / f"day={day}", [table])
    union = zb.dataset(tmp_path, schema="union")
    assert union.schema.names == ["row", "id", "x", "later", "day"]
    build(union, "later", number_of_items=10)
    assert union.to_table(filter="later = 'name 42' AND day = 2")["row"].to_pylist() == [42]
    assert union.count_rows("later IS NULL AND day = 1") == ROWS
    for schema in (UNION, pa.schema([*UNION, pa.field("day", pa.string())])):
        oracle = pads.dataset(tmp_path, schema=schema, partitioning="hive").to_table()
        ds = zb.dataset(tmp_path, schema=schema)
        assert ds.to_table().equals(oracle)
        for condition in (ID == 7, LATER.is_null()):
            assert ds.to_table(filter=condition).equals(oracle.filter(condition))
        assert ds.to_polars().collect()["row"].to_list() == list(range(2 * ROWS))
    texts = zb.dataset(tmp_path, schema=schema)
    assert texts.count_rows("day = '1'") == ROWS


def test_a_schema_may_have_fewer_columns_in_another_order(tmp_path: Path) -> None:
    path = written(tmp_path, [first(), second()])
    schema = pa.schema({"x": pa.float64(), "row": pa.int64()})
    oracle = pads.dataset(path, schema=schema).to_table()
    ds = zb.dataset(path, schema=schema)
    build(ds, "row", number_of_items=10)
    assert ds.to_table(filter="row = 43").equals(oracle.filter(ROW == 43))
    assert ds.to_polars().filter(pl.col("row") == 43).collect().columns == ["x", "row"]


def test_added_file_may_widen_the_union(tmp_path: Path) -> None:
    path = written(tmp_path, [first()])
    ds = zb.dataset(path, schema="union")
    build(ds, "row", number_of_items=10)
    pq.write_table(second(), path / "part-1.parquet")
    ds.refresh()
    assert ds.schema == UNION
    build(ds, "id", number_of_items=10)
    assert ds.validate_index("id_idx", sample="all")
    assert ds.to_table(filter=f"id = {41 + (1 << 40)}")["later"].to_pylist() == ["name 41"]


def test_build_warns_about_columns_missing_in_the_first_file(tmp_path: Path) -> None:
    path = written(tmp_path, [first().drop_columns(["id"]), second().drop_columns(["id"])])
    with pytest.warns(zb.errors.HiddenColumnsWarning, match="'later' of .*part-1"):
        build(zb.dataset(path), "row")
    for schema in SCHEMAS.values():
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            build(zb.dataset(path, schema=schema), "row")


def test_source_with_its_own_schema_rejects_another(tmp_path: Path) -> None:
    path = written(tmp_path, [first()])
    for source in (first(), pads.dataset(path)):
        with pytest.raises(zb.errors.InvalidArgument, match="schema of its own"):
            zb.dataset(source, schema="union")


@pytest.mark.parametrize("kind", [pa.string_view(), pa.binary_view()], ids=str)
@pytest.mark.parametrize("is_indexed", [False, True])
def test_non_nullable_view_column_may_be_missing_in_a_file(tmp_path, kind, is_indexed):
    schema = pa.schema([pa.field("v", kind, nullable=False), pa.field("id", pa.int64())])
    values = pa.array(["a", "b", "c"]).cast(kind)
    pq.write_table(pa.table([values, pa.array([0, 1, 2])], schema=schema), tmp_path / "0.parquet")
    ids = pa.array(range(3, 200))
    pq.write_table(pa.table({"id": ids}), tmp_path / "1.parquet")
    ds = zb.dataset(tmp_path)
    if is_indexed:
        ds.create_scalar_index("id", spark=False)
    text = "v = 'b'" if pa.types.is_string_view(kind) else "v = X'62'"
    filters = [(text, [1]), ("id = 5", [5]), ("v IS NULL", list(range(3, 200))), ("id = 2", [2])]
    for filter, expected in [*filters, ("id >= 1 AND id < 5", [1, 2, 3, 4])]:
        assert ds.to_table(filter=filter)["id"].to_pylist() == expected
    # Scattered rows take another path: they are gathered instead of sliced.
    odd = list(range(1, 200, 2))
    assert ds.to_table(filter=f"id IN ({', '.join(map(str, odd))})")["id"].to_pylist() == odd
