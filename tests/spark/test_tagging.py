"""Test that locating keys on Spark returns exactly the rows that a full scan returns."""

from __future__ import annotations

import datetime
import math
import os
from collections import Counter, defaultdict
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as sf
from support import spark_data
from support.seams import replace_function, set_constant

import zonebloom as zb
import zonebloom.spark.tagging.locate
from zonebloom.errors import (
    ColumnNotFound,
    IndexNotUsedWarning,
    InvalidArgument,
    SchemaMismatch,
    StaleIndexWarning,
    UnsupportedType,
)
from zonebloom.spark import files_with_keys, tag_location

FILES = 3
WAYS = ["here", "tasks", "dense"]


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    return spark_data.write(tmp_path_factory.mktemp("lake") / "data", FILES)


@pytest.fixture(scope="module")
def rows():
    """Return all rows of the lake, with file and offset."""
    return [
        (f"{number}.parquet", offset, row)
        for number in range(FILES)
        for offset, row in enumerate(spark_data.table(number).to_pylist())
    ]


@pytest.fixture
def way(request, monkeypatch):
    """Force one of the ways of locating keys."""
    go(request.param, monkeypatch)
    return request.param


def go(way, monkeypatch):
    if way == "dense":
        set_constant(monkeypatch, zonebloom.spark.tagging.locate, "MAX_SEARCHED_KEYS", 0)
    if way != "here":
        set_constant(monkeypatch, zonebloom.spark.tagging.locate, "_MAX_DRIVER_ROWS", -1)


def same(value):
    """Return a value as Spark compares it, or None if it equals nothing."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    return value


def brute(keys, rows, on):
    """Return the expected counts of (number of the key row, file, offset)."""
    places = defaultdict(list)
    for file, offset, row in rows:
        key_values = tuple(same(row[name]) for name in on)
        if None not in key_values:
            places[key_values].append((file, offset))
    expected = Counter()
    for key in keys:
        wanted = tuple(same(key[name]) for name in on)
        for file, offset in places.get(wanted, []) or [(None, None)]:
            expected[key["number"], file, offset] += 1
    return expected


def tagged(frame):
    counts = Counter()
    for row in frame.select("number", "fragment_id", "path", "row_offset").collect():
        assert (row.path is None) == (row.row_offset is None) == (row.fragment_id is None)
        name = None if row.path is None else os.path.basename(row.path)
        counts[row.number, name, row.row_offset] += 1
    return counts


def frame_of(spark, keys, schema):
    table = pa.Table.from_pylist(keys, pa.schema([*schema, ("number", pa.int64())]))
    frame = spark.createDataFrame(table)
    # Spark reads every timestamp as an instant.
    return (
        frame.withColumn("n", sf.col("n").cast("timestamp_ntz")) if "n" in frame.columns else frame
    )


def some_keys(rows, on, seed, count=40):
    """Return existing keys, some twice, absent keys made from parts of others, and nulls."""
    generator = np.random.default_rng(seed)
    drawn_keys = [rows[i][2] for i in generator.integers(0, len(rows), count)]
    keys = [{name: row[name] for name in on} for row in drawn_keys]
    other_picked = [rows[i][2] for i in generator.integers(0, len(rows), count)]
    keys += [
        {name: (other if i else row)[name] for i, name in enumerate(on)}
        for row, other in zip(drawn_keys, other_picked, strict=True)
    ]
    keys += [*keys[:5], dict.fromkeys(on)]
    return [{**key, "number": number} for number, key in enumerate(keys)]


ABSENT = {
    "id": 10**15,
    "small": -77,
    "name": "nobody",
    "x": 0.123,
    "f": 0.1234,
    "dec": Decimal("-7.25"),
    "d": datetime.date(1999, 1, 1),
    "t": datetime.datetime(1999, 1, 1, tzinfo=datetime.UTC),
    "n": datetime.datetime(1999, 1, 1),
    "b": b"nobody",
}
ODD = {"x": [float("nan"), -0.0, 0.0, float("inf")], "f": [float("nan"), -0.0]}


@pytest.mark.parametrize("column", ABSENT)
def test_every_type_is_tagged_in_every_way(spark, lake, rows, column, monkeypatch):
    keys = some_keys(rows, [column], 5)
    for value in [ABSENT[column], *ODD.get(column, [])]:
        keys.append({column: value, "number": len(keys)})
    schema = [spark_data.table(0).schema.field(column)]
    expected = brute(keys, rows, [column])
    assert any(file is None for _, file, _ in expected)
    for way in ("here", "dense"):
        with monkeypatch.context() as patch:
            go(way, patch)
            result = tagged(tag_location(frame_of(spark, keys, schema), lake, column))
        assert result == expected, way


@pytest.fixture(scope="module")
def hashed_lake(lake, tmp_path_factory):
    """Return the lake with a hash index of every column."""
    dataset = zb.dataset(lake, index_dir=str(tmp_path_factory.mktemp("hashed")))
    for column in ABSENT:
        dataset.create_scalar_index(column, "HASH", number_of_items=50, spark=False)
    return dataset


@pytest.mark.parametrize("on", [*([column] for column in ABSENT), ["id", "name"]], ids=str)
def test_many_keys_are_looked_up_in_a_hash_index(spark, hashed_lake, rows, on, monkeypatch):
    set_constant(monkeypatch, zonebloom.spark.tagging.locate, "MAX_SEARCHED_KEYS", 0)
    keys = some_keys(rows, on, 7)
    for name in on:
        extra = [ABSENT[name], *ODD.get(name, [])]
        keys += [{**keys[0], name: value, "number": len(keys) + n} for n, value in enumerate(extra)]
    schema = [hashed_lake.schema.field(name) for name in on]
    expected = brute(keys, rows, on)
    assert tagged(tag_location(frame_of(spark, keys, schema), hashed_lake, on)) == expected


@pytest.mark.parametrize("way", WAYS, indirect=True)
def test_composite_keys_are_tagged(spark, lake, rows, way):
    on = ["small", "x", "flag"]
    keys = some_keys(rows, on, 8)
    schema = [spark_data.table(0).schema.field(name) for name in on]
    expected = brute(keys, rows, on)
    assert len({file for _, file, _ in expected}) > 2
    assert tagged(tag_location(frame_of(spark, keys, schema), lake, on)) == expected


@pytest.mark.parametrize("way", ["here", "dense"], indirect=True)
def test_numbers_match_as_in_sparks_join(spark, lake, no_pushdown, way):
    """Compare with Spark's own join, for keys of other types than the column."""
    data = spark.read.parquet(lake).withColumn("at", sf.col("_metadata.row_index"))
    data = data.withColumn("path", sf.col("_metadata.file_name"))
    texts = ["5", "7", "12.5", "40000", "3000000000", "0.143", "-0.0", "NaN", "1.5"]
    for column, kind in [("small", "bigint"), ("f", "double"), ("dec", "decimal(20,4)")]:
        keys = spark.createDataFrame(list(enumerate(texts)), "number int, s string")
        keys = keys.select("number", sf.col("s").try_cast(kind).alias(column))
        right = data.select(sf.col(column).alias("k"), "path", "at")
        joined = keys.join(right, keys[column] == right["k"], "left").collect()
        expected = Counter((row.number, row.path, row["at"]) for row in joined)
        assert any(path for _, path, _ in expected)
        assert tagged(tag_location(keys, lake, column)) == expected


def test_columns_of_the_keys_are_unchanged(spark, lake):
    keys = spark.sql("SELECT 5L AS id, array(1, 2) AS `a.b`, map('k', 1.5) AS m, NULL AS nothing")
    result = tag_location(keys, lake, "id")
    assert result.columns == ["id", "a.b", "m", "nothing", "fragment_id", "path", "row_offset"]
    types = dict(result.dtypes)
    assert (types["fragment_id"], types["path"], types["row_offset"]) == (
        "bigint",
        "string",
        "bigint",
    )
    row = result.collect()[0]
    assert row["a.b"] == [1, 2] and row["m"] == {"k": Decimal("1.5")}
    dataset = zb.dataset(lake)
    assert row.path in dataset.files
    stored_row = dataset.take_rows([row.fragment_id << 32 | row.row_offset], ["id"])
    assert stored_row["id"].to_pylist() == [5]


def test_an_empty_frame_of_keys_is_tagged(spark, lake):
    empty = spark.createDataFrame([], "id bigint, number bigint")
    assert tag_location(empty, lake, "id").count() == 0
    assert files_with_keys(empty, lake, "id").count() == 0


def test_a_dataset_without_rows_tags_every_key_as_new(spark, tmp_path):
    pq.write_table(pa.table({"id": pa.array([], pa.int64())}), tmp_path / "a.parquet")
    with pytest.warns(IndexNotUsedWarning, match="read whole"):
        result = tag_location(spark.range(3), tmp_path, "id")
    assert [row.path for row in result.collect()] == [None] * 3


def test_random_keys_are_computed_once(spark, lake, rows, monkeypatch):
    """The result is right for the keys that it contains."""
    go("dense", monkeypatch)
    keys = spark.range(60).select((sf.rand() * 4_000).cast("bigint").alias("id"))
    result = tag_location(keys, lake, "id")
    counts = Counter(row["id"] for _, _, row in rows)
    twice = [Counter((row.id, row.path is None) for row in result.collect()) for _ in range(2)]
    assert twice[0] == twice[1]
    assert {new == (counts[key] == 0) for key, new in twice[0]} == {True}


# Files that changed after they were indexed


@pytest.mark.parametrize("way", WAYS, indirect=True)
@pytest.mark.parametrize("kind", ["BLOOMFILTER", "HASH"])
def test_new_and_changed_files_are_read(spark, tmp_path, way, kind):
    def write(name, ids):
        pq.write_table(pa.table({"id": pa.array(ids, pa.int64())}), tmp_path / f"{name}.parquet")

    write("a", range(0, 100))
    write("b", range(100, 200))
    write("c", range(200, 300))
    zb.dataset(tmp_path).create_scalar_index("id", kind, number_of_items=10, spark=False)
    write("b", range(1_000, 1_150))
    write("d", [7, 150, 2_000])
    os.remove(tmp_path / "c.parquet")
    keys = [{"id": i, "number": i} for i in (7, 150, 250, 1_100, 2_000, 5_000)]
    frame = frame_of(spark, keys, [("id", pa.int64())])
    dataset = zb.dataset(tmp_path)
    if way == "dense" and kind == "BLOOMFILTER":
        result = tag_location(frame, dataset, "id")
    else:
        with pytest.warns(StaleIndexWarning, match="2 of 3 files are not covered"):
            result = tag_location(frame, dataset, "id")
    assert tagged(result) == Counter(
        [
            (7, "a.parquet", 7),
            (7, "d.parquet", 0),
            (150, "d.parquet", 1),
            (250, None, None),
            (1_100, "b.parquet", 100),
            (2_000, "d.parquet", 2),
            (5_000, None, None),
        ]
    )


@pytest.mark.parametrize("is_indexed", [False, True])
def test_a_wider_type_of_a_later_file_is_refused(spark, tmp_path, is_indexed):
    data = tmp_path / "d"
    data.mkdir()
    pq.write_table(pa.table({"id": pa.array([1, 2], pa.int32())}), data / "a.parquet")
    if is_indexed:
        zb.dataset(data).create_scalar_index("id", spark=False)
    pq.write_table(pa.table({"id": pa.array([10**12], pa.int64())}), data / "b.parquet")
    frame = frame_of(spark, [{"id": 10**12, "number": 0}], [("id", pa.int64())])
    with pytest.raises(SchemaMismatch, match=r'b\.parquet holds column .* schema="union"'):
        tag_location(frame, zb.dataset(data), "id")
    united = zb.dataset(data, schema="union")
    with pytest.warns(zb.errors.ZoneBloomWarning):
        assert tagged(tag_location(frame, united, "id")) == Counter([(0, "b.parquet", 0)])


def test_a_file_replaced_between_plan_and_read_is_refused(spark, lake, tmp_path, monkeypatch):
    spark_data.write(tmp_path / "data", 2)
    dataset = zb.dataset(tmp_path / "data")
    go("tasks", monkeypatch)
    before = zonebloom.spark.tagging.locate.split_into_partitions

    def replaced(*arguments):
        planned = before(*arguments)
        pq.write_table(spark_data.table(9), tmp_path / "data" / "1.parquet")
        return planned

    replace_function(monkeypatch, zonebloom.spark.tagging.locate, "split_into_partitions", replaced)
    with pytest.raises(PySparkException, match=r"FragmentChanged: .*1\.parquet changed"):
        tag_location(spark.range(3_000).limit(50), dataset, "id")


# Partitions


@pytest.fixture(scope="module")
def partitioned(tmp_path_factory):
    root = tmp_path_factory.mktemp("partitioned")
    for day in ("2024-05-01", "2024-05-02"):
        for part in range(2):
            folder = root / f"day={day}" / f"part={part}"
            folder.mkdir(parents=True)
            ids = pa.array(np.arange(part * 50, part * 50 + 100), pa.int64())
            pq.write_table(pa.table({"id": ids}), folder / "f.parquet")
    zb.dataset(root).create_scalar_index("id", number_of_items=10, spark=False)
    return root


@pytest.mark.parametrize("way", WAYS, indirect=True)
def test_keys_are_located_in_one_partition_or_in_all(spark, partitioned, way):
    keys = spark.createDataFrame(
        [(7, "2024-05-01", 0), (60, "2024-05-02", 1), (7, "2024-05-02", 1), (60, None, 1)],
        "id bigint, day string, part int",
    ).withColumn("day", sf.col("day").cast("date"))

    def places(frame):
        return Counter(
            (row.id, str(row.day), row.path and row.path.split("partitioned")[-1].split("/", 1)[1])
            for row in frame.collect()
        )

    scoped = places(tag_location(keys, partitioned, "id", partition_by=["day", "part"]))
    assert scoped == Counter(
        [
            (7, "2024-05-01", "day=2024-05-01/part=0/f.parquet"),
            (60, "2024-05-02", "day=2024-05-02/part=1/f.parquet"),
            (7, "2024-05-02", None),
            (60, "None", None),
        ]
    )
    everywhere = Counter(row.id for row in tag_location(keys, partitioned, "id").collect())
    assert everywhere == {7: 2 * 2, 60: 2 * 4}


# Which files


@pytest.mark.parametrize("way", ["here", "dense"], indirect=True)
def test_files_with_keys_are_listed(spark, lake, rows, way):
    keys = [5, 5, 7, None, 123_456_789, 40, 41, 42]
    frame = spark.createDataFrame([(k,) for k in keys], "id bigint")
    expected = {}
    for file, _, row in rows:
        if row["id"] in keys and row["id"] is not None:
            result = expected.setdefault(file, [set(), 0])
            result[0].add(row["id"])
            result[1] += 1
    assert expected
    result = {os.path.basename(r.path): r for r in files_with_keys(frame, lake, "id").collect()}
    assert {file: (r.num_keys, r.num_rows) for file, r in result.items()} == {
        file: (len(ids), count) for file, (ids, count) in expected.items()
    }


# Names


@pytest.mark.filterwarnings("ignore::zonebloom.errors.IndexNotUsedWarning")
@pytest.mark.parametrize("way", WAYS, indirect=True)
@pytest.mark.parametrize("is_indexed", [False, True])
def test_a_column_in_another_case_is_refused(spark, conf, tmp_path, way, is_indexed):
    """Spark reads the column, but pyarrow returns nulls."""
    pq.write_table(pa.table({"id": [1, 2], "n": [1, 2]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"ID": [3, 4], "n": [3, 4]}), tmp_path / "b.parquet")
    pq.write_table(pa.table({"n": [5, 6]}), tmp_path / "c.parquet")
    assert spark.read.parquet(str(tmp_path)).where("id = 3").count() == 1
    dataset = zb.dataset(tmp_path)
    if is_indexed:
        dataset.create_scalar_index(["id", "n"], spark=False)
    keys = frame_of(spark, [{"id": 3, "number": 0}], [("id", pa.int64())])
    # Without an index, a task of Spark opens the file, and raises Spark's exception with our text.
    raised = SchemaMismatch if is_indexed else PySparkException
    with pytest.raises(raised, match=r"b\.parquet has column 'ID' in place of 'id'"):
        tag_location(keys, dataset, "id")
    with pytest.raises(raised, match=r"b\.parquet"):
        files_with_keys(keys.withColumn("n", sf.lit(3)), dataset, ["n", "id"])
    assert tag_location(keys.withColumn("n", sf.lit(3)), dataset, "n").count() == 1
    conf.set("spark.sql.caseSensitive", "true")
    assert tagged(tag_location(keys, dataset, "id")) == Counter([(0, None, None)])


@pytest.mark.filterwarnings("ignore::zonebloom.errors.IndexNotUsedWarning")
def test_columns_with_unusual_names_are_tagged(spark, tmp_path):
    names = ["file", "fragment_id", "row_offset", "path"]
    table = pa.table({name: pa.array([7, 8], pa.int64()) for name in names})
    pq.write_table(table, tmp_path / "a.parquet")
    keys = spark.sql("SELECT 8L AS file, 'mine' AS File2, 0 AS number")
    assert tagged(tag_location(keys, tmp_path, "file")) == Counter([(0, "a.parquet", 1)])
    carried = tag_location(keys.withColumnRenamed("File2", "num_rows"), tmp_path, "file").collect()[
        0
    ]
    assert (carried.file, carried.num_rows, carried.row_offset) == (8, "mine", 1)
    for name in names:
        keys = spark.sql(f"SELECT 8L AS {name}, 'x' AS carried")
        result = files_with_keys(keys, tmp_path, name).collect()
        assert [(os.path.basename(r.path), r.num_keys, r.num_rows) for r in result] == [
            ("a.parquet", 1, 1)
        ]
        if name != "file":
            with pytest.raises(InvalidArgument, match="in the dataset's files and in the keys"):
                tag_location(keys, tmp_path, name)
    other = spark.sql("SELECT 8L AS fragment_key, 'mine' AS file")
    pq.write_table(pa.table({"fragment_key": [7, 8]}), tmp_path / "a.parquet")
    assert [r.file for r in tag_location(other, tmp_path, "fragment_key").collect()] == ["mine"]


# Values


@pytest.mark.parametrize("way", ["here", "dense"], indirect=True)
def test_times_beyond_the_year_9999_are_tagged(spark, tmp_path, way):
    """Python's times end there, but Spark's do not."""
    table = pa.table(
        {
            "d": pa.array([19_000, 4_000_000], pa.int32()).cast(pa.date32()),
            "t": pa.array([5, 2**61], pa.int64()).cast(pa.timestamp("us", "UTC")),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    dataset = zb.dataset(tmp_path)
    dataset.create_scalar_index(["d", "t"], spark=False)
    keys = spark.sql(
        "SELECT date_add(DATE'1970-01-01', days) AS d, timestamp_micros(us) AS t, number "
        "FROM VALUES (19000, 5L, 0), (4000000, 2305843009213693952L, 1), (19001, 6L, 2) "
        "AS k(days, us, number)"
    )
    expected = Counter([(0, "a.parquet", 0), (1, "a.parquet", 1), (2, None, None)])
    for on in ("d", "t"):
        result = tag_location(keys, dataset, on).select(
            "number", "fragment_id", "path", "row_offset"
        )
        assert tagged(result) == expected


def test_int96_raises_a_warning_that_no_index_is_used(spark, conf, tmp_path):
    conf.set("spark.sql.parquet.outputTimestampType", "INT96")
    keys = spark.sql("SELECT TIMESTAMP'2024-01-01 00:00:00' AS t, 5L AS id")
    keys.coalesce(1).write.parquet(str(tmp_path / "data"))
    dataset = zb.dataset(tmp_path / "data")
    dataset.create_scalar_index("t", spark=False)
    with pytest.warns(IndexNotUsedWarning, match="is INT96") as warned:
        assert [row.row_offset for row in tag_location(keys, dataset, "t").collect()] == [0]
    assert not [warning for warning in warned if "build it again" in str(warning.message)]
    dataset.create_scalar_index("id", spark=False)
    assert [row.num_keys for row in files_with_keys(keys, dataset, ["t", "id"]).collect()] == [1]


@pytest.mark.filterwarnings("ignore::zonebloom.errors.IndexNotUsedWarning")
def test_partition_texts_that_no_number_prints_need_keys_of_text(spark, tmp_path):
    for text in ("1e3", "2"):
        (tmp_path / f"p={text}").mkdir()
        pq.write_table(pa.table({"id": [1]}), tmp_path / f"p={text}" / "a.parquet")
    keys = spark.sql("SELECT 1L AS id, 2D AS p, 0 AS number")
    with pytest.raises(InvalidArgument, match=r"'1e3', '2'.*these very texts") as error:
        tag_location(keys, tmp_path, "id", partition_by="p")
    assert "cast the keys" not in str(error.value)
    result = tag_location(keys.withColumn("p", sf.lit("2")), tmp_path, "id", partition_by="p")
    assert [row.path.split("/")[-2] for row in result.collect()] == ["p=2"]


# Errors


def test_invalid_arguments_raise(spark, lake):
    keys = spark.sql("SELECT 5L AS id, 'x' AS path, 1 AS name, 'a' COLLATE UNICODE_CI AS b")
    with pytest.raises(InvalidArgument, match="withColumnRenamed"):
        tag_location(keys, lake, "id")
    keys = keys.drop("path")
    with pytest.raises(InvalidArgument, match="cast the keys"):
        tag_location(keys, lake, "name")
    with pytest.raises(UnsupportedType, match="collation"):
        tag_location(
            keys.withColumnRenamed("name", "c").withColumnRenamed("b", "name"), lake, "name"
        )
    with pytest.raises(InvalidArgument, match="cast the keys"):
        tag_location(spark.sql("SELECT 5D AS id"), lake, "id")
    with pytest.raises(ColumnNotFound, match="key column 'nope'"):
        tag_location(keys, lake, "nope")
    for on in ([], 5, None, [5]):
        with pytest.raises(InvalidArgument, match="on is"):
            tag_location(keys, lake, on)
    for function in (tag_location, files_with_keys):
        with pytest.raises(InvalidArgument, match="keys is None; give a DataFrame"):
            function(None, lake, "id")
    with pytest.raises(InvalidArgument, match="partition_by names 'id'"):
        tag_location(keys, lake, "id", partition_by="id")
    with pytest.raises(InvalidArgument, match="in memory"):
        tag_location(keys, zb.dataset(pa.table({"id": [1]})), "id")


def test_the_filter_of_a_dataset_is_refused(spark, lake):
    few = zb.dataset(lake).filter("id = 42")
    keys = spark.range(1)
    for function in (tag_location, files_with_keys):
        with pytest.raises(InvalidArgument, match=r"^zonebloom\.spark does not apply"):
            function(keys, few, "id")


@pytest.mark.parametrize("way", WAYS, indirect=True)
def test_deleted_rows_are_not_tagged(spark, tmp_path, way):
    from deltalake import DeltaTable
    from support.delta_by_hand import MappedTable

    table = MappedTable(tmp_path / "t", "name")
    table.set_fields([table.field("id", "long", "id"), table.field("x", "long", "x")])
    name = table.append([{"id": key, "x": -key} for key in range(100)])
    zb.dataset(DeltaTable(table.path)).create_scalar_index("id", spark=False)
    table.delete(name, [41, 42])
    keys = spark.createDataFrame([(key,) for key in (40, 41, 42, 43, 500)], "id long")
    tagged = tag_location(keys, zb.dataset(DeltaTable(table.path)), on="id")
    result = {row["id"]: row["row_offset"] for row in tagged.collect()}
    assert result == {40: 40, 41: None, 42: None, 43: 43, 500: None}
    table.fields[0]["name"], table.fields[1]["name"] = "x", "id"
    table.set_fields(table.fields)
    with pytest.raises(InvalidArgument, match="other names for its columns"):
        tag_location(keys, zb.dataset(DeltaTable(table.path)), on="id")
