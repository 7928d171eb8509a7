"""Joins of indexed files return the rows of Spark, and few keys of one side choose files.

The oracle is the same query without an index.
"""

from __future__ import annotations

import datetime
import threading
import time
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import functions as sf
from support import spark_data
from support.spark_data import rows

import zonebloom as zb
import zonebloom.spark as zs

FILES, ROWS = 8, 3_000
INDEXED = ["id", "small", "name", "dec", "d", "t", "b"]
AQE = "spark.sql.adaptive.enabled"
THRESHOLD = "spark.sql.autoBroadcastJoinThreshold"
NO_PUSHDOWN = {"spark.sql.parquet.filterPushdown": "false"}


def facts(number: int) -> pa.Table:
    """Return rows whose keys are in no other file. Every 50th key is null."""
    ids = [number * 1_000 + row % 1_000 for row in range(ROWS)]
    day = datetime.date(1990, 1, 1)
    moment = datetime.datetime(1990, 1, 1, 7)

    def column(make, type_):
        return pa.array([None if id_ % 50 == 0 else make(id_) for id_ in ids], type_)

    return pa.table(
        {
            "row": pa.array([number * ROWS + row for row in range(ROWS)], pa.int64()),
            "id": column(int, pa.int64()),
            "small": column(int, pa.int16()),
            "name": column(lambda i: f"n{i}", pa.string()),
            "dec": column(lambda i: Decimal(i) / 4, pa.decimal128(10, 2)),
            "d": column(lambda i: day + datetime.timedelta(i), pa.date32()),
            "t": column(lambda i: moment + datetime.timedelta(hours=i), pa.timestamp("us", "UTC")),
            "b": column(lambda i: f"{i}".encode(), pa.binary()),
            "f": column(float, pa.float64()),
            "x": pa.array([row % 97 for row in range(ROWS)], pa.int64()),
        }
    )


@pytest.fixture(scope="module")
def lake(spark, tmp_path_factory):
    """Register views of an indexed folder, of a partitioned one, and of small dimensions."""
    root = tmp_path_factory.mktemp("lake")
    (root / "fact").mkdir()
    tables = [facts(number) for number in range(FILES)]
    for number, table in enumerate(tables):
        pq.write_table(table, root / "fact" / f"{number}.parquet")
        folder = root / "parted" / f"p={number % 4}"
        folder.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, folder / f"{number}.parquet")
    for name in ("fact", "parted"):
        zb.dataset(str(root / name)).create_scalar_index(INDEXED, spark=False)
        spark.read.parquet(str(root / name)).createOrReplaceTempView(name)
    # Keys of two files, a key that is in no file, and nulls.
    chosen = pa.concat_tables(
        [tables[1].slice(0, 8), tables[6].slice(40, 20), tables[0].slice(0, 1)]
    )
    odd = [(10**9 if value.as_py() == 1_001 else value.as_py()) for value in chosen["id"]]
    chosen = chosen.set_column(1, "id", pa.array(odd, pa.int64()))
    pq.write_table(chosen, root / "dim.parquet")
    spark.read.parquet(str(root / "dim.parquet")).createOrReplaceTempView("dim")
    every = pa.table({"id": pa.array(range(5, FILES * 1_000, 500), pa.int64())})
    pq.write_table(every, root / "every.parquet")
    spark.read.parquet(str(root / "every.parquet")).createOrReplaceTempView("every")
    listed = [(1_003, "a"), (6_007, "b"), (None, "c")]
    spark.createDataFrame(listed, "id long, label string").createOrReplaceTempView("listed")
    return root


@pytest.fixture
def enabled(spark):
    zs.enable(spark)
    yield
    zs.disable(spark)


def files_of(frame, roots: str = "fact") -> list[int]:
    """Return the numbers of files that the scans of a folder read."""
    plan = zs.explain(frame)
    return [
        scan.kept_files
        for scan in plan.relations
        if any(root.endswith(roots) for root in scan.roots)
    ]


# Few keys of filter_join


HOWS = ["inner", "left_semi", "left", "right"]
SIDES = {
    "files": "SELECT * FROM dim",
    "list": "SELECT * FROM listed",
    "filter": "SELECT * FROM dim WHERE x < 5",
    "aggregate": "SELECT id, count(*) AS n FROM dim GROUP BY id",
    "limit": "SELECT id FROM dim WHERE x < 9 ORDER BY id, row LIMIT 3",
    "union": "SELECT id FROM dim UNION SELECT id FROM listed",
    "lookup in the large side": "SELECT id, 1 AS n FROM fact WHERE id = 2007",
    "many keys of a file": "SELECT id FROM range(1000, 2000) WHERE id % 3 = 0",
    "nothing": "SELECT * FROM dim WHERE x < -1",
}


def check_join(spark, small, large, on, how="inner") -> list[int]:
    """Check the rows of a join with a small side. Return the files of the large side."""
    sides = (large, small) if how == "right" else (small, large)
    joined = zs.filter_join(*sides, on, how)
    zs.disable(spark)
    with spark_data.settings(spark, **NO_PUSHDOWN):
        expected = rows(sides[0].join(sides[1], on, how))
    zs.enable(spark)
    for adaptive in ("true", "false"):
        with spark_data.settings(spark, **{AQE: adaptive}):
            frame = joined.select("*")
            assert rows(frame) == expected
    return files_of(frame)


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("side", SIDES.values(), ids=SIDES)
def test_keys_of_a_small_side_choose_files(spark, lake, enabled, side, how):
    large = spark.table("fact").select("id", sf.col("row").alias("place"))
    files = check_join(spark, spark.sql(side), large, "id", how)
    assert all(number <= 2 for number in files)


@pytest.mark.parametrize("column", [*INDEXED[1:], "f", "x"])
def test_keys_of_all_types_give_the_rows_of_spark(spark, lake, enabled, column):
    large = spark.table("fact").select(column, sf.col("row").alias("place"))
    files = check_join(spark, spark.table("dim").select(column, "row"), large, column)
    assert files == [2] if column in INDEXED else files == [FILES]


def test_integers_of_other_widths_choose_files(spark, lake, enabled):
    large = spark.table("fact").select("id", "small", "row")
    wide = spark.sql("SELECT CAST(id AS BIGINT) AS small FROM listed UNION SELECT 4294968299")
    assert check_join(spark, wide, large, "small") == [2]
    narrow = spark.sql("SELECT CAST(id AS SMALLINT) AS id FROM listed")
    assert check_join(spark, narrow, large, "id") == [2]


def test_several_keys_choose_files_together(spark, lake, enabled):
    small = spark.table("dim").select("id", "X", "NAME")
    large = spark.table("fact").select("ID", "x", "name", "row")
    assert check_join(spark, small, large, ["id", "name", "x"]) == [2]


@pytest.mark.parametrize(
    "large",
    [
        "SELECT id, sum(x) AS total FROM fact GROUP BY id",
        "SELECT id, row FROM fact WHERE x < 50",
        "SELECT id, row FROM fact UNION ALL SELECT id, row FROM parted WHERE x = 1",
        "SELECT f.id, row FROM fact f JOIN parted USING (row)",
        "SELECT id + 1 AS id, row FROM fact",
        "SELECT id, row_number() OVER (ORDER BY row) AS row FROM fact",
        "SELECT id, row FROM fact ORDER BY row LIMIT 2000",
    ],
)
def test_any_large_side_gives_the_rows_of_spark(spark, lake, enabled, large):
    check_join(spark, spark.table("dim").select("id"), spark.sql(large), "id")


@pytest.mark.parametrize("adaptive", ["true", "false"])
def test_keys_choose_files_and_are_not_pushed_into_parquet(spark, lake, enabled, adaptive):
    with spark_data.settings(spark, **{AQE: adaptive}):
        frame = zs.filter_join(spark.table("fact"), spark.table("listed"), "id")
        frame.collect()
        assert spark_data.files_read(frame) == [2]
        [node] = spark_data.scan_nodes(frame)
    assert node.metadata().apply("PushedFilters") == "[IsNotNull(id)]"


def test_a_side_that_differs_each_time_gives_the_keys_that_are_joined(spark, lake, enabled):
    keys = spark.table("dim").where("id < 9000").repartition(3).select("id").limit(2)
    frame = zs.filter_join(keys, spark.table("fact"), "id", "left").groupBy("id").count()
    assert [row["count"] for row in frame.collect()] == [3, 3]
    some = spark.range(8_000).withColumn("dice", sf.rand()).orderBy("dice").limit(5).select("id")
    frame = zs.filter_join(some, spark.sql("SELECT id, row FROM fact"), "id", "left")
    counts = [row["count"] for row in frame.groupBy("id").count().collect()]
    assert len(counts) == 5


@pytest.mark.parametrize(
    "side",
    [
        "SELECT * FROM every",
        "SELECT id FROM range(8000) WHERE id % 8 = 5",
        "SELECT id AS id, id AS y FROM range(40000) WHERE id % 2000 > 1000",
        "SELECT id, repeat('a', 12000000) AS long FROM range(1003, 1004)",
        "SELECT id, row AS place FROM parted",
    ],
    ids=["keys of all files", "many keys of all files", "many rows", "large rows", "large"],
)
def test_other_sides_read_all_files(spark, lake, enabled, side):
    with spark_data.settings(spark, **{THRESHOLD: "400kb"}):
        assert check_join(spark, spark.sql(side), spark.sql("SELECT id FROM fact"), "id") == [FILES]


def test_no_side_is_computed_if_broadcasts_are_off(spark, lake, enabled):
    with spark_data.settings(spark, **{THRESHOLD: "-1"}):
        large = spark.sql("SELECT id, row FROM fact")
        assert check_join(spark, spark.sql("SELECT id FROM dim"), large, "id") == [FILES]


def test_an_error_of_the_small_side_is_the_error_of_spark(spark, lake, enabled):
    side = spark.sql("SELECT raise_error('no key') AS e, id FROM dim")
    # Spark 3.5 raises the error of the JVM.
    with pytest.raises((PySparkException, Py4JJavaError), match="no key"):
        zs.filter_join(spark.table("fact"), side, "id")


def test_a_new_file_and_a_changed_one_are_read(spark, tmp_path, lake, enabled):
    folder = tmp_path / "fact"
    folder.mkdir()
    for number in range(4):
        pq.write_table(facts(number), folder / f"{number}.parquet")
    zb.dataset(str(folder)).create_scalar_index("id", spark=False)
    pq.write_table(facts(5), folder / "9.parquet")
    pq.write_table(facts(6).slice(10), folder / "2.parquet")
    large = spark.read.parquet(str(folder)).select("id", "row")
    with pytest.warns(zb.errors.StaleIndexWarning):
        assert check_join(spark, spark.sql("SELECT id FROM dim"), large, "id") == [3]


@pytest.mark.parametrize("kind", ["text", "date", "time"])
def test_keys_that_parquet_filters_would_not_find(spark, tmp_path, enabled, kind):
    """Spark compares texts that are no UTF-8, and Julian days, as other values in its filters."""
    make, type_ = {
        "text": (lambda i: b"\xff\xfe%03d" % i, pa.binary()),
        # Each file has eight days. Those of the first one are not in the Julian calendar.
        "date": (lambda i: i // 100 * 400 + i % 8 - 141_437, pa.int32()),
        "time": (lambda i: (i // 100 * 400 + i % 8 - 141_437) * 86_400_000_000, pa.int64()),
    }[kind]
    stored = {"text": pa.string(), "date": pa.date32(), "time": pa.timestamp("us", "UTC")}[kind]
    values = pa.array([make(i) for i in range(400)], type_)
    keys = pa.Array.from_buffers(stored, len(values), values.buffers())
    table = pa.table({"k": keys, "v": pa.array(range(400))})
    (tmp_path / "fact").mkdir()
    for number in range(4):
        pq.write_table(table.slice(number * 100, 100), tmp_path / "fact" / f"{number}.parquet")
    zb.dataset(str(tmp_path / "fact")).create_scalar_index(["k", "v"], spark=False)
    pq.write_table(table.slice(5, 1), tmp_path / "keys.parquet")
    modes = {
        f"spark.sql.parquet.{name}RebaseModeInRead": "CORRECTED" for name in ("datetime", "int96")
    }
    with spark_data.settings(spark, **modes):
        fact = spark.read.parquet(str(tmp_path / "fact"))
        # The index chooses files by v.
        small = spark.read.parquet(str(tmp_path / "keys.parquet"))
        joined = zs.filter_join(fact, small, ["k", "v"])
        assert [row.v for row in joined.select("v").collect()] == [5]
        assert files_of(joined) == [1]


def test_a_day_that_the_time_zone_skipped(spark, tmp_path, enabled):
    """Samoa had no 2011-12-30, so that a date of java.sql cannot be this day there."""
    skipped = datetime.date(2011, 12, 30)
    (tmp_path / "fact").mkdir()
    for number in range(4):
        table = pa.table({"d": [skipped + datetime.timedelta(number * 100)] * 40, "x": range(40)})
        pq.write_table(table, tmp_path / "fact" / f"{number}.parquet")
    zb.dataset(str(tmp_path / "fact")).create_scalar_index("d", spark=False)
    pq.write_table(pa.table({"d": [skipped]}), tmp_path / "keys.parquet")
    zones = spark.sparkContext._jvm.java.util.TimeZone
    zone = zones.getDefault()
    zones.setDefault(zones.getTimeZone("Pacific/Apia"))
    try:
        fact = spark.read.parquet(str(tmp_path / "fact"))
        joined = zs.filter_join(fact, spark.read.parquet(str(tmp_path / "keys.parquet")), "d")
        assert joined.count() == 40
        assert files_of(joined) == [1]
    finally:
        zones.setDefault(zone)


def test_a_cancelled_small_side_ends_the_call(spark, lake, enabled):
    # This takes about two seconds. Tasks that are cancelled still end their computation.
    text = "sha2(repeat(CAST(id AS STRING), 1000000), 512)"
    errors = []

    def run() -> None:
        small = spark.sql(f"SELECT id FROM range(400) WHERE {text} = 'no hash'")
        try:
            zs.filter_join(spark.table("fact"), small, "id")
        except (Py4JJavaError, PySparkException) as error:
            errors.append(error)

    tracker = spark.sparkContext.statusTracker()
    thread = threading.Thread(target=run)
    thread.start()
    while thread.is_alive() and not tracker.getActiveJobsIds():
        time.sleep(0.01)
    spark.sparkContext.cancelAllJobs()
    thread.join()
    assert errors
