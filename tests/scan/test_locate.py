"""Compare the rows that `Dataset.locate` finds with a search in Python."""

from __future__ import annotations

import datetime as dt
import math
import random
import uuid
from decimal import Decimal

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
import support.e2e_helpers as e2e
from pyarrow import feather
from support.limits import compare_all_rows

import zonebloom as zb
from zonebloom import errors

NAN = math.nan
DAY = dt.date(2024, 5, 1)
# There are few distinct values, so that keys repeat. Nulls are added to them.
KINDS = {
    "int8": (pa.int8(), [0, 5, -1, 127]),
    "int64": (pa.int64(), [0, 5, 2**53 + 1, -(2**63)]),
    "uint64": (pa.uint64(), [0, 5, 2**64 - 1]),
    "float": (pa.float32(), [0.0, -0.0, 1.5, NAN, math.inf]),
    "double": (pa.float64(), [0.0, -0.0, 0.1, NAN, -math.inf]),
    "half": (pa.float16(), [0.0, -0.0, 1.5, NAN]),
    "decimal": (pa.decimal128(20, 2), [Decimal("0.10"), Decimal("5.00"), Decimal("-1.50")]),
    "decimal256": (pa.decimal256(40, 2), [Decimal("0.10"), Decimal(10**30)]),
    "decimal32": (pa.decimal32(5, 2), [Decimal("0.10"), Decimal("5.00")]),
    "string": (pa.string(), ["", "a", "É", "ab" * 40]),
    "large_string": (pa.large_string(), ["", "a", "É"]),
    "string_view": (pa.string_view(), ["", "a", "a text too long to lie in its view"]),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), ["", "a", "b"]),
    "binary": (pa.binary(), [b"", b"\xff", b"ab"]),
    "fixed": (pa.binary(3), [b"abc", b"\0\0\0"]),
    "uuid": (pa.uuid(), [uuid.UUID(int=1).bytes, uuid.UUID(int=2**127).bytes]),
    "date": (pa.date32(), [DAY, dt.date(1960, 1, 1)]),
    "timestamp": (pa.timestamp("us"), [dt.datetime(2024, 5, 1, 1), dt.datetime(1960, 1, 1)]),
    "utc": (pa.timestamp("ms", "UTC"), [dt.datetime(2024, 5, 1, tzinfo=dt.UTC)]),
    "time": (pa.time64("us"), [dt.time(1, 2, 3, 4), dt.time(0)]),
    "duration": (pa.duration("ms"), [dt.timedelta(1), dt.timedelta(0)]),
}


def array(values, kind):
    if isinstance(kind, pa.UuidType):
        return pa.ExtensionArray.from_storage(kind, pa.array(values, pa.binary(16)))
    if pa.types.is_float16(kind):
        return pa.array([None if item is None else np.float16(item) for item in values], kind)
    return pa.array(values, kind)


def expected(tables, names, keys):
    """Return for each key the numbers of the files and rows that hold it."""
    result = []
    for number, key in enumerate(keys):
        rows = [
            (number, file, row)
            for file, table in enumerate(tables)
            for row, values in enumerate(
                zip(*(table[item].to_pylist() for item in names), strict=True)
            )
            if None not in key and all(one == other for one, other in zip(key, values, strict=True))
        ]
        result += rows or [(number, None, None)]
    return result


def answers(ds, columns, keys):
    """Return the key index, file number and row of each key, after checks of the fragment ids."""
    table = ds.locate(columns, keys)
    assert table.schema.names[:6] == ["key_index", "fragment_id", "path", "row", "_file", "_pos"]
    assert table["_file"].equals(table["path"])
    assert table["_pos"].equals(table["row"])
    files = []
    for path in table["path"].to_pylist():
        files.append(None if path is None else ds.files.index(path))
    if any(file is not None for file in files):
        ids = dict(zip(files, table["fragment_id"].to_pylist(), strict=True))
        present_rows = table.filter(table["row"].is_valid())
        addresses = [
            id_ << 32 | row
            for id_, row in zip(
                present_rows["fragment_id"].to_pylist(),
                present_rows["row"].to_pylist(),
                strict=True,
            )
        ]
        assert ds.take_rows(addresses).num_rows == len(addresses)
        assert len(set(ids.values())) == len(ids)
    return list(zip(table["key_index"].to_pylist(), files, table["row"].to_pylist(), strict=True))


def counted(result, keys):
    """Return the numbers of distinct keys and of rows per file, from `files_with_keys`."""
    files = {}
    for key_index, file, row in result:
        if file is not None:
            keys_and_rows = files.setdefault(file, (set(), set()))
            keys_and_rows[0].add(keys[key_index])
            keys_and_rows[1].add(row)
    return {file: (len(keys_and_rows), len(rows)) for file, (keys_and_rows, rows) in files.items()}


def assert_files(ds, columns, keys, result, plain_keys):
    table = ds.files_with_keys(columns, keys)
    assert {
        ds.files.index(row["path"]): (row["num_keys"], row["num_rows"]) for row in table.to_pylist()
    } == counted(result, plain_keys)
    assert table["path"].to_pylist() == sorted(table["path"].to_pylist(), key=ds.files.index)


@pytest.fixture(params=["few keys", "many keys"])
def number_of_keys(request, monkeypatch):
    """Return few keys, which select zones, or so many that all rows are compared with them."""
    if request.param == "many keys":
        compare_all_rows(monkeypatch)


@pytest.mark.many
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("index", ["none", "plain", "global"])
def test_locate_finds_keys_of_every_type(tmp_path, number_of_keys, kind, index):
    arrow_type, domain = KINDS[kind]
    rng = random.Random(kind)
    # Not every file holds every key.
    domains = [[*domain, None], domain[:1], [domain[-1], None]]
    tables = [
        pa.table({"key": array(rng.choices(values, k=60), arrow_type), "row": range(60)})
        for values in domains
    ]
    e2e.write_files(tmp_path / "t", tables, row_group_size=25)
    ds = zb.dataset(tmp_path / "t")
    if index != "none":
        e2e.build(ds, "key", number_of_items=10, global_filter=index == "global")
    keys = [domain[0], None, domain[-1], domain[0], *domain]
    given_type = pa.string() if kind in ("string_view", "dictionary") else arrow_type
    given_keys = array(keys, given_type)
    as_stored = [(item,) for item in given_keys.to_pylist()]
    result = answers(ds, "key", given_keys)
    assert result == expected(tables, ["key"], as_stored)
    # Positive and negative zero are the same key.
    plain_keys = [0.0 if key == (0.0,) else key for key in as_stored]
    assert_files(ds, "key", given_keys, result, plain_keys)


def test_locate_finds_keys_with_partition_columns(tmp_path, number_of_keys):
    rows = pa.table({"id": [1, 2, 1, 2, 3, 1], "day": pa.array([DAY, None, DAY, DAY, DAY, None])})
    rows = rows.append_column("part", pa.array(["x", "x", "y", "y", "y", "y"]))
    by = pads.partitioning(pa.schema([("part", pa.string()), ("day", pa.date32())]), flavor="hive")
    pads.write_dataset(rows, tmp_path / "t", format="parquet", partitioning=by)
    ds = zb.dataset(tmp_path / "t", partitioning=by)
    e2e.build(ds, "id", number_of_items=2)
    tables = [
        pq.ParquetFile(path).read()
        .append_column("part", pa.array(["x" if "part=x" in path else "y"] * n))
        .append_column("day", pa.array([DAY if "day=2024" in path else None] * n, pa.date32()))
        for path in ds.files
        for n in [pq.read_metadata(path).num_rows]
    ]  # fmt: skip
    keys = [(1, "x"), (2, "x"), (3, "x"), (1, "y"), (1, "z"), (None, "x"), (9, "x")]
    given_keys = pa.table({"id": [key[0] for key in keys], "part": [key[1] for key in keys]})
    assert answers(ds, ["id", "part"], given_keys) == expected(tables, ["id", "part"], keys)
    keys = [(1, "y", None), (2, "y", DAY), (1, "y", DAY)]
    given_keys = {
        "id": [1, 2, 1],
        "part": ["y", "y", "y"],
        "day": pa.array([None, DAY, DAY], pa.date32()),
    }
    names = ["id", "part", "day"]
    assert answers(ds, names, given_keys) == expected(tables, names, keys)
    # The partition of each row that is found is that of its file.
    partitions = [table.select(["part", "day"]).to_pylist()[0] for table in tables]
    for ask in (ds.locate, ds.files_with_keys):
        for row in ask("id", [1, 3, 9]).to_pylist():
            path = row["_file"]
            assert row["_partition"] == (path and partitions[ds.files.index(path)])
    with pytest.raises(errors.InvalidArgument, match="paths"):
        ds.locate(["part"], {"part": ["x"]})


def partitioned_delta(folder, rows):
    deltalake = pytest.importorskip("deltalake")
    deltalake.write_deltalake(str(folder), rows, partition_by=["part", "day"])
    return deltalake.DeltaTable(str(folder))


def partitioned_iceberg(folder, rows):
    """Return a table whose first files have no partition."""
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = SqlCatalog("lake", uri="sqlite://", warehouse=f"file://{folder}")
    catalog.create_namespace("s")
    table = catalog.create_table("s.t", rows.schema)
    table.append(rows.slice(0, 2))
    with table.update_spec() as spec:
        spec.add_identity("part")
        spec.add_identity("day")
    table.append(rows.slice(2))
    return table


@pytest.mark.parametrize("make_table", [partitioned_delta, partitioned_iceberg])
def test_the_partition_of_a_row_is_that_of_the_table(tmp_path, make_table):
    days = pa.array([DAY, None, DAY, None, dt.date(1960, 1, 1), DAY])
    rows = pa.table({"id": range(6), "part": ["x", "y", "x", None, "y z", "x"], "day": days})
    ds = zb.dataset(make_table(tmp_path, rows))
    for filter in (None, "part = 'x'"):
        located = ds.locate("id", [*range(6), 9], filter=filter)
        found = ds.take_rows(located, ["id", "part", "day"]).to_pylist()
        places = [row for row in located.to_pylist() if row["row"] is not None]
        assert [row["id"] for row in found] == [
            row["id"] for row in rows.to_pylist() if filter is None or row["part"] == "x"
        ]
        for place, row in zip(places, found, strict=True):
            is_partitioned = make_table is partitioned_delta or row["id"] >= 2
            values = {"part": row["part"], "day": row["day"]}
            # A struct of nulls is not null, so that dropping nulls drops no row that was found.
            assert place["_partition"] == (
                values if is_partitioned else {"part": None, "day": None}
            )


_FILTERS = {
    "plain": ("n >= 20 AND n < 41", lambda row: 20 <= row["n"] < 41),
    "key": ("id != 3 AND n < 50", lambda row: row["id"] != 3 and row["n"] < 50),
    "index": ("name IN ('b', 'd')", lambda row: row["name"] in ("b", "d")),
    "null": ("name IS NULL", lambda row: row["name"] is None),
    "path": ("part = 1", lambda row: row["part"] == 1),
    "engine": ("length(name) = 1 AND n % 3 = 0", lambda row: row["name"] and row["n"] % 3 == 0),
    "expression": (pc.field("n") > 70, lambda row: row["n"] > 70),
    "none": ("FALSE", lambda row: False),
}


@pytest.mark.many
@pytest.mark.parametrize("index", ["none", "BLOOMFILTER", "HASH"])
@pytest.mark.parametrize("kind", _FILTERS)
def test_located_rows_match_the_filter(tmp_path, number_of_keys, kind, index):
    rng = random.Random(5)
    names = rng.choices(["a", "b", "d", None], k=120)
    ids = rng.choices(range(8), k=120)
    rows = pa.table(
        {"id": ids, "name": names, "n": range(120), "part": [n % 3 for n in range(120)]}
    )
    pads.write_dataset(rows, tmp_path / "t", format="parquet", partitioning=["part"])
    by = pads.partitioning(pa.schema([("part", pa.int64())]))
    ds = zb.dataset(tmp_path / "t", partitioning=by)
    if index != "none":
        for name in ("id", "name"):
            ds.create_scalar_index(name, index, spark=False)
    filter, matches = _FILTERS[kind]
    stored = [rows.filter(pc.field("part") == part).to_pylist() for part in range(3)]
    keys = [1, 3, None, 9, 1]
    wanted = []
    for number, key in enumerate(keys):
        found = [
            (number, file, position)
            for file, part in enumerate(stored)
            for position, row in enumerate(part)
            if row["id"] == key and key is not None and matches(row)
        ]
        wanted += found or [(number, None, None)]
    table = ds.locate("id", keys, filter=filter)
    part = [where and where["part"] for where in table["_partition"].to_pylist()]
    columns = table["key_index"].to_pylist(), part, table["_pos"].to_pylist()
    assert list(zip(*columns, strict=True)) == wanted
    assert ds.filter(filter).locate("id", keys).equals(table)
    files = ds.files_with_keys("id", keys, filter=filter).to_pylist()
    by_file = {row["_partition"]["part"]: (row["num_keys"], row["num_rows"]) for row in files}
    assert by_file == counted(wanted, keys)


def test_a_filter_of_located_rows_is_checked(tmp_path):
    e2e.plain_dataset(tmp_path / "t")
    ds = zb.dataset(tmp_path / "t")
    for ask in (ds.locate, ds.files_with_keys):
        with pytest.raises(errors.FilterError):
            ask("id", [-1], filter="nowhere = 1")
    located = ds.locate("id", [50])
    assert "_partition" not in located.column_names
    pq.write_table(located, tmp_path / "places.parquet")
    places = duckdb.connect().sql("SELECT _file, _pos FROM located").fetchall()
    assert places == [(ds.files[0], 5)]


def test_only_the_matching_partition_is_read(tmp_path):
    rows = pa.table({"id": range(400), "part": [row % 4 for row in range(400)]})
    pads.write_dataset(rows, tmp_path / "t", format="parquet", partitioning=["part"])
    for part in (0, 2, 3):
        (tmp_path / "t" / str(part) / "part-0.parquet").write_bytes(b"no Parquet")
    by = pads.partitioning(pa.schema([("part", pa.int64())]))
    ds = zb.dataset(str(tmp_path / "t"), partitioning=by, schema=rows.schema)
    result = ds.locate(["id", "part"], pa.table({"id": [5, 6, 8], "part": [1, 1, 1]}))
    assert result["row"].to_pylist() == [1, None, None]


def test_locate_reads_added_and_changed_files(tmp_path, number_of_keys):
    tables = [
        e2e.numbered(100 * number, 100, id=range(100 * number, 100 * number + 100))
        for number in range(3)
    ]
    paths = e2e.write_files(tmp_path / "t", tables)
    ds = zb.dataset(tmp_path / "t")
    e2e.build(ds, "id", number_of_items=16, global_filter=True)
    tables[1] = e2e.numbered(0, 50, id=range(1000, 1050))
    pq.write_table(tables[1], paths[1])
    e2e.touch_later(paths[1])
    tables.append(e2e.numbered(0, 10, id=[5] * 10))
    pq.write_table(tables[3], tmp_path / "t" / "part-003.parquet")
    ds.refresh()
    keys = [5, 150, 250, 1049, 1050]
    with pytest.warns(errors.StaleIndexWarning):
        result = answers(ds, "id", keys)
    assert result == expected(tables, ["id"], [(key,) for key in keys])
    paths[0].unlink()
    with pytest.raises(errors.SourceError, match="part-000"):
        ds.locate("id", [5])


@pytest.mark.parametrize("format", ["feather", "memory", "csv"])
def test_locate_works_with_other_sources(tmp_path, number_of_keys, format):
    table = pa.table({"id": [5, 7, 5, 9], "name": ["a", "b", None, "d"]})
    if format == "memory":
        ds = zb.dataset(table)
    elif format == "feather":
        (tmp_path / "t").mkdir()
        feather.write_feather(table, tmp_path / "t" / "a.feather")
        ds = zb.dataset(tmp_path / "t", format="feather")
    else:
        pads.write_dataset(table.select(["id"]), tmp_path / "t", format="csv")
        ds = zb.dataset(tmp_path / "t", format="csv")
    e2e.build(ds, "id", number_of_items=2)
    result = ds.locate("id", [5, 8, 9])
    assert result["row"].to_pylist() == [0, 2, None, 3]
    assert ds.files_with_keys("id", [5, 8, 9])["num_rows"].to_pylist() == [3]


def test_global_filter_excludes_all_of_many_keys(tmp_path):
    """The global filter of the other column is then not searched."""
    numbers = pa.array(range(1000))
    pq.write_table(pa.table({"a": numbers, "b": numbers}), tmp_path / "a.parquet")
    ds = zb.dataset(tmp_path)
    ds.create_scalar_index(["a", "b"], spark=False, global_filter=True)
    absent = pa.array([10**6] * 20_000)
    assert not any(ds.global_filter(name).sbbf.check(absent).any() for name in "ab")
    for first in (absent, pa.array([5] * 20_000)):
        result = ds.locate(["a", "b"], {"a": first, "b": absent})
        assert result.num_rows == result["row"].null_count == 20_000


def test_rows_with_a_null_or_another_value_hold_no_key_of_several_columns():
    rows = pa.table({"a": [2, 2, 1], "b": [None, "z", "y"]})
    keys = {"a": [0, 1, 2], "b": ["x", "y", "y"]}
    assert zb.dataset(rows).locate(["a", "b"], keys)["row"].to_pylist() == [None, 2, None]


def test_keys_of_several_columns_are_a_table_or_tuples(tmp_path):
    rows = pa.table({"a": [1, 2, 2, 2], "b": ["x", "y", "x", "y"]})
    pq.write_table(rows, tmp_path / "0.parquet")
    ds, names, keys = zb.dataset(tmp_path), ["b", "a"], [("y", 2), ("y", 1), ["x", 1]]
    table = pa.table({"a": [2, 1, 1], "b": ["y", "y", "x"]})
    assert ds.locate(names, keys)["row"].to_pylist() == [1, 3, None, 0]
    for read in (ds.locate, ds.files_with_keys, ds.lookup):
        assert read(names, keys).equals(read(names, table))
        assert read(names, []).num_rows == 0
    assert ds.erase(names, keys, plan=True).num_deleted == 3
    with pytest.raises(errors.InvalidArgument, match="give tuples of 2 values"):
        ds.locate(names, [("y", 2), ("y",)])


def test_locate_converts_keys_of_other_types(tmp_path):
    e2e.plain_dataset(tmp_path / "t")
    ds = zb.dataset(tmp_path / "t")
    assert ds.locate("id", [50.0, 50.5, 1e300])["row"].to_pylist() == [5, None, None]
    assert ds.locate("id", pa.array([50], pa.uint8()))["row"].to_pylist() == [5]
    assert ds.locate("id", []).num_rows == 0
    assert ds.locate("id", [None, None])["row"].to_pylist() == [None, None]
    assert ds.files_with_keys("id", [-1]).num_rows == 0
    batch = pa.record_batch({"name": ["name 5"], "id": [50]})
    assert ds.locate(["id", "name"], batch)["row"].to_pylist() == [5]
