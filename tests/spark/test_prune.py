"""Frames and sessions with an index return the rows of plain Spark from fewer files.

The oracle reads the same files with Spark's own pushdown off, which would lose rows.
"""

from __future__ import annotations

import datetime
import io
import os
import re
import shutil
import tempfile
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stdout
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as f
from pyspark.sql import types as st
from support.helpers import index_folder
from support.seams import replace_function, set_constant
from support.spark_data import enabled, files_read, rows, settings

import zonebloom as zb
import zonebloom.spark as zs
from zonebloom.errors import (
    IndexNotUsedWarning,
    InvalidArgument,
    StaleIndexWarning,
    ZoneBloomWarning,
)
from zonebloom.spark.pruning import optimizer_rule as listing
from zonebloom.spark.pruning.explanation import Reason
from zonebloom.spark.pruning.index_lookup import PruningResult
from zonebloom.spark.pruning.indexed_files import CatalogFiles

pytestmark = pytest.mark.usefixtures("no_pushdown")
FILES, ROWS = 6, 400
DAY = datetime.date(2020, 1, 1)
MOMENT = datetime.datetime(2020, 1, 1)
INDEXED = ["id", "name", "d", "t", "n", "dec", "x", "f", "small", "b", "st.a", "u"]


def table(number):
    """Return rows whose values are in no other file, but for `odd`."""
    ids = range(number * ROWS, (number + 1) * ROWS)
    hours = [MOMENT + datetime.timedelta(hours=i) for i in ids]
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "odd": pa.array([i % 2 for i in ids], pa.int32()),
            "name": [f"n{i}" for i in ids],
            "d": pa.array([DAY + datetime.timedelta(i) for i in ids], pa.date32()),
            "t": pa.array(hours, pa.timestamp("us", "UTC")),
            "n": pa.array(hours, pa.timestamp("us")),
            "dec": pa.array([Decimal(i) / 4 for i in ids], pa.decimal128(10, 2)),
            "x": pa.array([i / 8 for i in ids], pa.float64()),
            "f": pa.array(np.arange(ids[0], ids[-1] + 1) / 10, pa.float32()),
            "small": pa.array(ids, pa.int16()),
            "b": pa.array([f"{i:04}".encode() for i in ids], pa.binary()),
            "st": pa.array([{"a": i} for i in ids], pa.struct([("a", pa.int32())])),
            "u": pa.array([f"ü{i}" if i % 3 else None for i in ids]),
        }
    )


def write(folder, numbers=range(FILES), columns=("id",)):
    folder.mkdir(parents=True, exist_ok=True)
    for number in numbers:
        pq.write_table(table(number), folder / f"{number}.parquet")
    index(folder, columns)
    return str(folder)


def index(folder, columns=("id",), **options):
    zb.dataset(str(folder), **options).create_scalar_index(
        list(columns), number_of_items=100, spark=False
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write(tmp_path_factory.mktemp("lake"), columns=INDEXED)


@pytest.fixture
def lake(spark, folder):
    return spark.read.parquet(folder)


def names(plan):
    kept_paths = {path for relation in plan.relations for path in relation.kept_paths}
    return sorted(path.rpartition("/")[2] for path in kept_paths)


def check(frame, num_files, numbers=None, **options):
    """Check the rows and the number of files read, for a frame and for the session."""
    wanted = rows(frame)
    plan = zs.explain(zs.prune(frame, **options))
    assert sum(relation.kept_files for relation in plan.relations) == num_files, plan
    if numbers is not None:
        assert names(plan) == [f"{number}.parquet" for number in numbers]
        assert plan.is_pruned == (num_files < FILES)
    pruned = zs.prune(frame, **options)
    assert pruned.schema == frame.schema
    assert rows(pruned) == wanted
    with enabled(frame.sparkSession, **options):
        # This plans the query again.
        repeated = frame.alias("again")
        assert rows(repeated) == wanted
    for query in (pruned, repeated):
        # Empty and reused branches are not read.
        assert sum(files_read(query)) <= num_files, query._jdf.queryExecution().toString()
    return pruned


# Filters


def many(column, first, literal):
    """Return an IN with more values than Spark keeps in a list."""
    return f"{column} IN ({', '.join(map(literal, range(first, first + 13)))})"


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("id = 450", [1]),
        ("450 = id", [1]),
        ("id IN (1, 2001, 99999)", [0, 5]),
        ("id IN (1, NULL)", [0]),
        (many("id", 395, str), [0, 1]),
        (many("name", 395, lambda i: f"'n{i}'"), [0, 1]),
        (many("name", 812, lambda i: "NULL" if i == 820 else f"'n{i}'"), [2]),
        (many("d", 812, lambda i: f"'{DAY + datetime.timedelta(i)}'"), [2]),
        (many("dec", 812, lambda i: str(i / 4)), [2]),
        (many("x", 812, lambda i: f"{i / 8}D"), [2]),
        (many("f", 812, lambda i: f"float({i / 10})"), [2]),
        (many("b", 812, lambda i: f"X'{f'{i:04}'.encode().hex()}'"), [2]),
        ("id = 450 OR name = 'n1999'", [1, 4]),
        ("id = 450 AND name = 'n1999'", []),
        ("id = 450 AND odd = 0", [1]),
        ("id = 450 OR odd = 5", range(FILES)),
        ("NOT (id <> 450)", [1]),
        ("id <=> 450", [1]),
        ("u = 'ü1000'", [2]),
        ("name = 'n450 '", []),
        ("d = DATE'2020-01-31'", [0]),
        ("d = '2021-03-26'", [1]),
        ("t = TIMESTAMP'2020-01-02 03:00:00Z'", [0]),
        ("t = TIMESTAMP'2020-01-02 03:00:00.000001Z'", []),
        ("n = TIMESTAMP_NTZ'2020-02-01 03:00:00'", [1]),
        ("dec = 112.5", [1]),
        ("dec = 112.5BD AND id = 450", [1]),
        ("x = 100.125", [2]),
        ("f = float(100.1)", [2]),
        ("small = 450", [1]),
        ("small = 450S", [1]),
        ("b = X'30343530'", [1]),
        ("st.a = 450", [1]),
        ("st.a IN (450, 451) AND st IS NOT NULL", [1]),
        ("id = 450.0", [1]),
        ("id = '450'", [1]),
        ("ID = 450", [1]),
        # The index cannot answer these filters.
        ("id > 2350", range(FILES)),
        ("CAST(id AS string) = '450'", range(FILES)),
        ("id + 1 = 451", range(FILES)),
        ("name LIKE 'n45_'", range(FILES)),
        ("x = double('NaN')", range(FILES)),
        ("d = DATE'1500-01-01'", range(FILES)),
        ("odd = 1", range(FILES)),
    ],
)
def test_prune_keeps_files_that_may_match(lake, text, numbers):
    check(lake.where(text), len(numbers), numbers)


def explained(frame, mode="simple"):
    text = io.StringIO()
    with redirect_stdout(text):
        frame.explain(mode=mode)
    return text.getvalue()


def test_the_plan_says_what_is_read_and_why_not_fewer(spark, tmp_path):
    path = write(tmp_path / "t")
    frame = zs.prune(spark.read.parquet(path))
    assert "FileScan parquet (zonebloom: 2 of 6 files by id_idx)[id#" in explained(
        frame.where("id IN (450, 2000)")
    )
    text = explained(frame.where("id = 450 AND odd = 0"), "formatted")
    assert "Scan parquet (zonebloom: 1 of 6 files by id_idx; not answered by" in text
    assert "(zonebloom: all files; no index on odd)" in explained(frame.where("odd = 0"))
    assert "zonebloom:" not in explained(frame)
    shutil.copy(tmp_path / "t/1.parquet", tmp_path / "t/new.parquet")
    with pytest.warns(StaleIndexWarning):
        text = explained(zs.prune(spark.read.parquet(path)).where("id = 450"))
    assert "(zonebloom: 2 of 7 files by id_idx; not indexed, so kept: new.parquet)" in text


def test_struct_fields_are_pushed_into_parquet_as_without_an_index(spark, tmp_path):
    path = write(tmp_path / "t")
    spark.sql(f"CREATE TABLE nested_keys USING parquet LOCATION '{path}'")

    def pushed():
        frames = spark.read.parquet(path), spark.table("nested_keys")
        texts = [explained(frame.where("st.a = 450 AND id < 900")) for frame in frames]
        return [re.search(r"PushedFilters: \[[^]]*\]", text)[0] for text in texts], texts

    try:
        with settings(spark, **{"spark.sql.parquet.filterPushdown": "true"}):
            expected, _ = pushed()
            assert all("EqualTo(st.a,450)" in filters for filters in expected)
            with enabled(spark):
                filters, texts = pushed()
        assert filters == expected
        assert "FileScan parquet (zonebloom: " in texts[0]
        assert "nested_keys (zonebloom: " in texts[1]
    finally:
        spark.sql("DROP TABLE nested_keys")


def test_a_planned_frame_asks_the_index_again_when_it_runs(spark, tmp_path):
    path = write(tmp_path / "t")
    frame = zs.prune(spark.read.parquet(path)).where("id = 450")
    assert "1 of 6 files" in explained(frame)
    pq.write_table(table(1), tmp_path / "t/4.parquet")
    with pytest.warns(StaleIndexWarning):
        result = frame.collect()
    assert result == spark.read.parquet(path).where("id = 450").collect()
    assert frame.count() == 2
    assert zs.explain(frame).relations[0].kept_files == 2


def test_collations_and_char_are_left_to_spark(spark, tmp_path):
    path = str(tmp_path / "t")
    frame = spark.range(0, 900, 1, 3).selectExpr("id", "concat('N', id) COLLATE UTF8_LCASE AS name")
    frame.write.parquet(path)
    index(path, ["name"])
    result = spark.read.parquet(path).where("name = 'n77'")
    assert result.count() == 1
    check(result, 3)
    assert zs.explain(zs.prune(result)).reasons == {Reason.FILTER_NOT_ANSWERED}
    with spark_table(spark, "padded (c CHAR(5), v VARCHAR(5), part INT)", tmp_path / "c") as name:
        for part in range(3):
            spark.sql(f"INSERT INTO {name} VALUES ('c{part}', 'v{part}', {part})")
        index(tmp_path / "c", ["c", "v"])
        assert check(spark.table(name).where("c = 'c1'"), 3).count() == 1
        assert check(spark.table(name).where("v = 'v1'"), 1).count() == 1


@contextmanager
def spark_table(spark, ddl, folder, clauses=""):
    """Make a catalog table outside the warehouse folder."""
    name = ddl.split()[0]
    spark.sql(f"CREATE TABLE {ddl} USING parquet {clauses} LOCATION '{folder}'")
    try:
        yield name
    finally:
        spark.sql(f"DROP TABLE {name}")


def test_column_defaults_are_not_looked_up(spark, tmp_path):
    with spark_table(spark, "grown (id BIGINT)", tmp_path / "g") as name:
        spark.sql(f"INSERT INTO {name} VALUES (1)")
        spark.sql(f"ALTER TABLE {name} ADD COLUMN y BIGINT DEFAULT 7")
        spark.sql(f"INSERT INTO {name} VALUES (2, 9)")
        ds = zb.dataset(sorted(str(p) for p in (tmp_path / "g").glob("*.parquet")))
        if "y" not in ds.schema.names:
            files = sorted((tmp_path / "g").glob("*.parquet"))
            os.rename(files[0], tmp_path / "g" / "z.parquet")
            spark.catalog.refreshTable(name)
        index(tmp_path / "g", ["y"])
        assert check(spark.table(name).where("y = 7"), 2).count() == 1


def test_a_column_in_another_case_is_not_taken_for_missing(spark, tmp_path):
    pq.write_table(pa.table({"id": [1, 2]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"ID": [3, 4]}), tmp_path / "b.parquet")
    pq.write_table(pa.table({"x": [3, 4]}), tmp_path / "c.parquet")
    index(tmp_path)
    frame = spark.read.schema("id BIGINT").parquet(str(tmp_path)).where("id = 3")
    check(frame, 1)
    assert names(zs.explain(zs.prune(frame))) == ["b.parquet"]
    with settings(spark, **{"spark.sql.caseSensitive": "true"}):
        frame = spark.read.schema("ID BIGINT").parquet(str(tmp_path)).where("ID IS NULL")
        assert check(frame, 3).count() == 4


def test_the_active_session_does_not_decide_the_case_of_columns(spark, tmp_path):
    pq.write_table(pa.table({"id": [1, 2]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"ID": [3, 4]}), tmp_path / "b.parquet")
    index(tmp_path)
    frame = spark.read.schema("id BIGINT").parquet(str(tmp_path)).where("id = 3")
    active = spark.newSession()
    active.conf.set("spark.sql.caseSensitive", "true")
    active.createDataFrame([(1,)], "x int")
    try:
        assert names(zs.explain(zs.prune(frame))) == ["b.parquet"]
        # An RDD lists its files in the calling thread.
        assert [row.id for row in zs.prune(frame).rdd.collect()] == [3]
    finally:
        spark.createDataFrame([(1,)], "x int")


def test_old_days_of_another_calendar_lose_no_rows(spark, tmp_path):
    with settings(spark, **{"spark.sql.parquet.datetimeRebaseModeInWrite": "LEGACY"}):
        for number, text in enumerate(["DATE'1500-01-01'", "DATE'2000-01-01'"]):
            frame = spark.range(1).selectExpr(f"{text} AS d", f"CAST({text} AS TIMESTAMP) AS t")
            frame.write.parquet(str(tmp_path / f"part={number}"))
    index(tmp_path, ["d"])
    whole = spark.read.parquet(str(tmp_path))
    assert check(whole.where("d = DATE'1500-01-01'"), 2).count() == 1
    assert check(whole.where("d = DATE'2000-01-01'"), 1).count() == 1


# Operations on pruned frames


QUERIES = {
    "SELECT * FROM (SELECT id, count(*) FROM lake GROUP BY id) WHERE id = 450": 1,
    "SELECT * FROM (SELECT * FROM lake ORDER BY id DESC LIMIT 10) WHERE id = 450": FILES,
    "SELECT * FROM lake JOIN (SELECT id FROM lake WHERE name = 'n2000') USING (id)": FILES + 1,
    "SELECT * FROM lake WHERE id = 450 UNION ALL SELECT * FROM lake WHERE name = 'n2000'": 2,
    "WITH c AS (SELECT * FROM lake) SELECT a.name, b.x FROM c a JOIN c b "
    "ON a.odd = b.odd WHERE a.id = 450 AND b.id = 2000": 2,
    "WITH c AS (SELECT *, rand() r FROM lake) SELECT id FROM c WHERE id = 450": 1,
    "WITH RECURSIVE r AS (SELECT id, 1 AS n FROM lake WHERE id = 450 UNION ALL "
    "SELECT lake.id, r.n + 1 FROM r JOIN lake ON lake.id = r.id + 400 WHERE r.n < 3) "
    "SELECT * FROM r": 0,
    "SELECT * FROM lake WHERE id = 450 AND x < (SELECT avg(x) FROM lake)": FILES + 1,
    "SELECT * FROM lake WHERE id = (SELECT max(id) - 5 FROM lake)": 2 * FILES,
    "SELECT * FROM lake WHERE x > (SELECT max(x) FROM lake WHERE id = 2000)": FILES + 1,
}


@pytest.mark.parametrize(("text", "num_files"), QUERIES.items())
def test_each_scan_of_a_query_skips_files_by_its_own_filter(spark, lake, text, num_files):
    lake.createOrReplaceTempView("lake")
    check(spark.sql(text), num_files)


def test_metadata_columns_are_unchanged(lake):
    columns = ["_metadata.file_name", "_metadata.file_size", "_metadata.row_index", "id"]
    check(lake.where("id IN (450, 2000)").select(*columns), 2)
    check(lake.where("id = 450 AND _metadata.file_name <> '1.parquet'").select("id"), 0)


def test_writes_of_pruned_frames_store_the_same_rows(spark, lake, tmp_path):
    zs.prune(lake.where("id IN (450, 2000)")).write.parquet(str(tmp_path / "out"))
    assert rows(spark.read.parquet(str(tmp_path / "out"))) == rows(lake.where("id IN (450, 2000)"))


def test_spark_refuses_to_overwrite_a_table_that_a_pruned_frame_reads(spark, tmp_path):
    path = write(tmp_path / "t")
    with spark_table(spark, "kept", path) as name:
        new_ids = "id >= 2000"
        plain = spark.table(name)
        zs.prune(spark.table(name)).createOrReplaceTempView("pruned_view")
        frames = [
            plain.where(new_ids),
            zs.prune(spark.table(name)).where(new_ids),
            zs.prune(plain.where(new_ids)),
            spark.sql(
                f"SELECT l.* FROM pruned_view l JOIN pruned_view USING (id) WHERE l.{new_ids}"
            ),
            zs.prune(plain).where(new_ids).union(zs.prune(plain.limit(3))).distinct(),
        ]
        for frame in frames:
            writer = frame.write.mode("overwrite")
            for overwrite in (writer.saveAsTable, writer.insertInto):
                with pytest.raises(PySparkException, match=r"UNSUPPORTED_OVERWRITE\.TABLE"):
                    overwrite(name)
        assert spark.table(name).count() == FILES * ROWS
        pruned = zs.prune(spark.table(name)).where("id = 450")
        assert len(pruned.collect()) == 1 and files_read(pruned) == [1]
        spark.catalog.dropTempView("pruned_view")


# Caches


def test_spark_reuses_cached_frames_only_for_equal_rows(spark, folder, lake):
    whole, part = zs.prune(lake).cache(), zs.prune(lake).where("id IN (450, 2000)").cache()
    try:
        assert (whole.count(), part.count()) == (FILES * ROWS, 2)
        fresh = spark.read.parquet(folder)
        assert fresh.count() == zs.prune(fresh).count() == FILES * ROWS
        for key in (450, 451):
            for frame in (fresh, zs.prune(fresh), whole):
                assert [row.id for row in frame.where(f"id = {key}").collect()] == [key]
    finally:
        whole.unpersist()
        part.unpersist()
    other_frame = zs.prune(spark.read.parquet(folder)).where("id = 451")
    assert len(other_frame.collect()) == 1 and files_read(other_frame) == [1]


def test_a_cached_pruned_frame_follows_its_table(spark, tmp_path):
    # Spark truncates only managed tables, which are in the folder of their database.
    spark.sql(f"CREATE DATABASE changing LOCATION '{tmp_path}'")
    changes = [
        ("parts", "INSERT INTO {} VALUES (100, 9)", 36),
        ("parts", "ALTER TABLE {} DROP PARTITION (part = 2)", 26),
        ("parts", "INSERT OVERWRITE {} PARTITION (part = 4) VALUES (200)", 17),
        ("whole", "TRUNCATE TABLE {}", 0),
    ]
    new_frame = spark.range(0, 50, 1, 1).selectExpr("id", "CAST(id DIV 10 AS INT) AS part")
    try:
        new_frame.write.partitionBy("part").saveAsTable("changing.parts")
        new_frame.write.saveAsTable("changing.whole")
        for name, change, num_rows in changes:
            table_name = f"changing.{name}"
            frame = zs.prune(spark.table(table_name)).where("id >= 15").cache()
            frame.count()
            spark.sql(change.format(table_name))
            assert frame.count() == num_rows, change
            assert spark.table(table_name).where("id >= 15").count() == num_rows, change
            frame.unpersist()
    finally:
        spark.sql("DROP DATABASE changing CASCADE")


def test_a_pruned_frame_reads_a_cached_one(lake):
    cached = lake.where("odd = 0").cache()
    try:
        assert cached.count() == FILES * ROWS // 2
        frame = cached.where("id = 450")
        pruned = zs.prune(frame)
        assert rows(pruned) == rows(frame) and files_read(pruned) == []
        (relation,) = zs.explain(zs.prune(frame)).relations
        assert relation.reasons == {Reason.CACHED}
        assert relation.name.startswith("file:/")
        for combined in (
            frame.union(lake.where("id = 2000")),
            frame.join(lake.where("id = 2000"), "odd"),
        ):
            pruned = check(combined, 1)
            plan = pruned._jdf.queryExecution().executedPlan().toString()
            assert "InMemoryTableScan" in plan
    finally:
        cached.unpersist()


def test_refresh_sees_newer_files(spark, tmp_path):
    path = write(tmp_path / "t")
    frame = spark.read.parquet(path).where("id IN (450, 9999)")
    pruned = zs.prune(frame).cache()
    try:
        assert pruned.count() == 1
        new = pa.table({**{n: table(0)[n].slice(0, 1) for n in table(0).column_names}})
        new = new.set_column(0, "id", pa.array([9999], pa.int64()))
        pq.write_table(new, tmp_path / "t" / "new.parquet")
        with pytest.warns(StaleIndexWarning, match="new.parquet"):
            spark.catalog.refreshByPath(path)
            assert pruned.count() == 2
    finally:
        pruned.unpersist()


# Locations of files


@pytest.fixture
def partitioned(spark, tmp_path):
    path = str(tmp_path / "by part")
    frame = spark.range(0, 1200, 1, 1).selectExpr(
        "id",
        "id * 2 AS x",
        "CAST(id DIV 200 AS INT) AS part",
        "IF(id % 400 < 200, 'a b', 'ü=1%') AS kind",
    )
    frame.write.partitionBy("kind", "part").parquet(path)
    index(path)
    return path


def test_partitions_keep_their_values(spark, partitioned):
    whole = spark.read.parquet(partitioned)
    assert len(whole.inputFiles()) == 6
    check(whole.where("id IN (5, 777)"), 2)
    check(whole.where("id IN (5, 777) AND kind = 'ü=1%'"), 1)
    check(whole.where("id IN (5, 777) AND part < 3").groupBy("kind", "part").count(), 1)
    check(whole.where("id = 5 AND part = 3"), 0)
    check(whole.where("id = 5 OR part = 3"), 6)
    # Dynamic partition pruning still works on the remaining files.
    parts = spark.range(3).selectExpr("CAST(id AS INT) AS part").where("part > 0 AND part < 99")
    check(whole.where("id IN (5, 250, 777)").join(parts.hint("broadcast"), "part"), 2)
    check(spark.read.parquet(f"{partitioned}/kind=a b").where("id = 5"), 1)
    reader = spark.read.option("basePath", partitioned).parquet(f"{partitioned}/kind=a b/part=0")
    check(reader.where("id IN (5, 777)"), 1)
    check(spark.read.option("recursiveFileLookup", "true").parquet(partitioned).where("id = 5"), 1)
    plan = zs.explain(zs.prune(whole.where("id IN (5, 777) AND kind = 'ü=1%'")))
    assert plan.relations[0].num_files == 3


def test_partition_values_win_over_columns_in_files(spark, tmp_path):
    for part, ids in ((1, [5, 6]), (2, [7, 8])):
        (tmp_path / f"k={part}").mkdir()
        pq.write_table(pa.table({"id": ids, "k": [9, 9]}), tmp_path / f"k={part}" / "a.parquet")
    zb.dataset(str(tmp_path), partitioning=None).create_scalar_index(["k", "id"], spark=False)
    whole = spark.read.parquet(str(tmp_path))
    for text in ("k = 1", "k = 9", "k = 1 OR id = 7", "id = 7"):
        assert rows(zs.prune(whole.where(text))) == rows(whole.where(text)), text


@pytest.mark.parametrize("clauses", ["", "PARTITIONED BY (part)"])
def test_catalog_tables_skip_files(spark, tmp_path, clauses):
    path = tmp_path / "t"
    with spark_table(spark, "told (id BIGINT, x DOUBLE, part INT)", path, clauses) as name:
        new_frame = spark.range(0, 900, 1, 3).selectExpr("id", "id / 8", "CAST(id DIV 300 AS INT)")
        new_frame.write.insertInto(name)
        index(path)
        check(spark.table(name).where("id = 450"), 1)
        check(spark.sql(f"SELECT part, count(*) FROM {name} WHERE id IN (5, 450) GROUP BY 1"), 2)
        frame = spark.table(name).where("id IN (5, 450) AND part > 0")
        assert zs.explain(zs.prune(frame)).relations[0].kept_files == (1 if clauses else 2)
        assert rows(zs.prune(frame)) == rows(frame)


def test_several_folders_and_files_can_be_pruned(spark, tmp_path):
    one, two = write(tmp_path / "one", range(3)), write(tmp_path / "two", range(3, 6))
    check(spark.read.parquet(one, two).where("id IN (450, 2000)"), 2)
    check(spark.read.parquet(f"{one}/1.parquet", f"{two}/5.parquet").where("id = 450"), 1)
    check(spark.read.parquet(f"{one}/[01].parquet").where("id = 450"), 1)
    check(spark.read.parquet(f"{one}/1.parquet").where("id = 5"), 0)
    shutil.rmtree(index_folder(two))
    check(spark.read.parquet(one, two).where("id = 450"), 4)


@pytest.mark.parametrize("is_partitioned", [False, True])
def test_paths_that_overlap_are_read_as_spark_reads_them(spark, tmp_path, is_partitioned):
    names = ["p=1/1", "p=2/2"] if is_partitioned else ["0", "1", "b/2"]
    for number, name in enumerate(names):
        path = tmp_path / f"{name}.parquet"
        path.parent.mkdir(exist_ok=True)
        pq.write_table(pa.table({"id": range(number * 100, number * 100 + 100)}), path)
    index(str(tmp_path))
    top = str(tmp_path)
    below = str((tmp_path / names[-1]).parent)
    for paths in ([top, top], [top, below], [below, top], [below, below], [f"{top}/", top]):
        for condition in ("id = 50", "id = 150", "id IN (50, 150, 250)", "id = 7777"):
            try:
                wanted = rows(spark.read.parquet(*paths).where(condition))
            except PySparkException:
                # Some partition folders are beside a path that is itself one.
                continue
            result = zs.prune(spark.read.parquet(*paths)).where(condition)
            assert rows(result) == wanted, (paths, condition)


def test_an_index_may_lie_in_another_folder(spark, tmp_path):
    place = tmp_path / "indices 1"
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        for number in range(3):
            pq.write_table(table(number), folder / f"{number}.parquet")
        index(folder, index_dir=str(place) if name == "one" else None)
    # This index is on another column than the one in the given folder.
    index(tmp_path / "one", ["name"])
    for name in ("one", "two"):
        frame = spark.read.parquet(str(tmp_path / name))
        check(frame.where("id = 450"), 1, index_dir=f"file:{place}/")
        check(frame.where("name = 'n450'"), 1 if name == "one" else 3, index_dir=place)


def test_an_index_dir_without_an_index_raises_a_warning(spark, tmp_path):
    path = write(tmp_path / "t")
    frame = spark.read.parquet(path).where("id = 450")
    wrong = str(tmp_path / "indicse")
    message = f"index_dir {wrong} is not used: there is no index in it"
    with pytest.warns(IndexNotUsedWarning, match=message) as caught:
        zs.enable(spark, index_dir=wrong)
    # The index beside the data is still used.
    again = frame.alias("again")
    assert len(again.collect()) == 1 and files_read(again) == [1]
    zs.disable(spark)
    assert [warning.filename for warning in caught] == [__file__]
    with pytest.raises(InvalidArgument, match="index_dir is 5"):
        zs.enable(spark, index_dir=5)


def test_changed_files_are_kept(spark, tmp_path):
    path = write(tmp_path / "t")
    before = spark.read.parquet(path)
    pq.write_table(table(9), tmp_path / "t" / "2.parquet")
    pq.write_table(table(8), tmp_path / "t" / "8.parquet")
    frame = spark.read.parquet(path).where("id IN (450, 3601)")
    with pytest.warns(StaleIndexWarning, match="2 of 7 files"):
        check(frame, 3)
    plan = zs.explain(zs.prune(frame))
    assert names(plan) == ["1.parquet", "2.parquet", "8.parquet"]
    assert plan.reasons == {Reason.NEW_FILES, Reason.STALE_FILES}
    assert "changed since they were indexed, so kept: 2.parquet" in str(plan)
    # The file is indexed again, but Spark listed an older file with this name.
    zb.dataset(path).optimize.optimize_indices(spark=False)
    assert names(zs.explain(zs.prune(before.where("id = 450")))) == ["1.parquet", "2.parquet"]
    assert names(zs.explain(zs.prune(spark.read.parquet(path).where("id = 450")))) == ["1.parquet"]


def test_a_frame_follows_the_index(spark, tmp_path):
    """Files are chosen by the index that exists when a query is planned."""
    path = write(tmp_path / "t")
    indexed = zs.prune(spark.read.parquet(path))

    def reader():
        result = indexed.where("id = 450")
        assert result.count() == 1 and len(rows(result)) == 1
        return files_read(result)

    assert reader() == [1]
    shutil.rmtree(index_folder(path))
    with pytest.warns(IndexNotUsedWarning, match="is gone since it was last read"):
        assert reader() == [FILES]
    assert reader() == [FILES]
    index(tmp_path / "t")
    assert reader() == [1]
    with pytest.warns(StaleIndexWarning):
        pq.write_table(table(9), tmp_path / "t" / "3.parquet")
        assert reader() == [2]
    zb.dataset(path).optimize.optimize_indices(spark=False)
    # This is not the file that Spark listed.
    assert reader() == [2]
    spark.catalog.refreshByPath(path)
    zb.dataset(path).drop_index("id_idx")
    assert reader() == [FILES]


def test_a_later_index_is_used_although_the_jvm_knew_that_there_was_none(spark, tmp_path):
    path = tmp_path / "t"
    path.mkdir()
    for number in range(2):
        pq.write_table(table(number), path / f"{number}.parquet")
    frame = spark.read.parquet(str(path))

    def kept(condition):
        result = frame.where(condition)
        assert rows(result) == [], condition
        return files_read(result)

    with enabled(spark):
        assert [kept(f"odd = {number}") for number in (5, 6, 7)] == [[2]] * 3
        index(path)
        assert kept("id = 99999") == [0]
        assert [kept(f"odd = {number}") for number in (5, 6, 7)] == [[2]] * 3
        index(path, ["odd"])
        assert kept("odd = 5") == [0]


def test_a_damaged_index_loses_no_rows(spark, tmp_path):
    path = write(tmp_path / "t")
    (segment,) = (index_folder(tmp_path / "t") / "segments").glob("*/bloomfilter.arrow")
    segment.write_bytes(segment.read_bytes()[:-100] + b"x" * 100)
    frame = spark.read.parquet(path).where("id = 450")
    with pytest.warns(IndexNotUsedWarning, match="id_idx"):
        check(frame, FILES)
    assert Reason.INDEX_DAMAGED in zs.explain(zs.prune(frame)).reasons


# Unsupported relations, and messages


def test_other_sources_are_unchanged(spark, folder, lake, tmp_path):
    lake.select("id").write.json(str(tmp_path / "json"))
    for frame in (
        spark.range(5).where("id = 3"),
        spark.read.schema("id long").json(str(tmp_path / "json")).where("id = 3"),
        spark.readStream.schema(lake.schema).parquet(folder).where("id = 3"),
    ):
        assert zs.prune(frame) is frame
        assert zs.explain(zs.prune(frame)).reasons == {Reason.UNSUPPORTED_RELATION}
    scanned = zs.scan(spark, folder, "id = 450")
    assert zs.prune(scanned) is scanned
    check(lake, FILES)
    assert zs.explain(zs.prune(lake)).reasons == {Reason.NO_FILTER}
    check(lake.where("id = 450").join(spark.read.json(str(tmp_path / "json")), "id"), 1)


def test_a_plan_shows_kept_files_and_reasons(lake, folder):
    plan = zs.explain(zs.prune(lake.where("id IN (450, 2000) AND odd = 0 AND upper(name) <> 'X'")))
    (relation,) = plan.relations
    sizes = [os.path.getsize(f"{folder}/{number}.parquet") for number in range(FILES)]
    assert (relation.kept_bytes, relation.num_bytes) == (sizes[1] + sizes[5], sum(sizes))
    assert relation.indices == ("id_idx",)
    assert relation.reasons == {Reason.NO_INDEX_ON_COLUMN, Reason.FILTER_NOT_ANSWERED}
    assert str(plan).startswith(f"ZoneBloomExplanation: 2 of {FILES} files kept")
    assert "not answered by an index: odd = 0 (no index on odd)" in str(plan)
    (unasked,) = zs.explain(zs.prune(lake.where("odd = 0"))).relations
    assert (unasked.filter, unasked.indices, unasked.kept_files) == (None, (), FILES)
    keys = ", ".join(str(number * ROWS) for number in range(FILES))
    plan = zs.explain(zs.prune(lake.where(f"id IN ({keys})")))
    assert plan.reasons == {Reason.ALL_FILES_KEPT}
    with pytest.raises(InvalidArgument, match="df is 'lake'; give a DataFrame"):
        zs.prune("lake")


def test_last_scans_show_what_was_read(spark, folder, lake):
    result = zs.prune(lake).where("id IN (450, 2000)")
    other = spark.read.parquet(folder).where("id = 7")
    union = result.union(other)
    union.collect()
    ours, theirs = zs.explain(union).relations
    assert (ours.kept_files, ours.num_files, ours.indices) == (2, FILES, ("id_idx",))
    assert (ours.metrics["numFiles"], ours.metrics["numOutputRows"]) == (2, 2 * ROWS)
    assert theirs.reasons == {Reason.NOT_ASKED}
    assert theirs.metrics["numFiles"] == FILES
    assert "Spark read 2 files, " in str(zs.explain(union))
    with enabled(spark):
        joined = lake.where("id = 450").join(lake.withColumnRenamed("id", "i"), f.expr("id = i"))
        joined.collect()
    relations = zs.explain(joined).relations
    assert sum(relation.metrics["numFiles"] for relation in relations) == sum(files_read(joined))
    assert [relation.kept_files for relation in relations] == [
        relation.metrics["numFiles"] for relation in relations
    ]


def test_last_scans_belong_to_their_frame(spark, tmp_path):
    path = write(tmp_path / "t")
    other = str(tmp_path / "other")
    zb.dataset(path, index_dir=other).create_scalar_index("id", name="other_idx", spark=False)
    # All frames make the same request, because their columns have the same ids.
    whole = spark.read.parquet(path)

    def run(frame):
        frame = frame.where("id = 450")
        assert len(frame.collect()) == 1
        return frame

    with enabled(spark):
        beside = run(whole)
    with enabled(spark, index_dir=other):
        elsewhere = run(whole)
    frames = [beside, elsewhere, run(whole), run(zs.prune(whole))]
    zb.dataset(path).drop_index("id_idx")
    frames.append(run(zs.prune(whole)))
    relations = [zs.explain(frame).relations[0] for frame in frames]
    names = [relation.indices for relation in relations]
    assert names == [("id_idx",), ("other_idx",), (), ("id_idx",), ()]
    num_files = [relation.metrics["numFiles"] for relation in relations]
    assert num_files == [1, 1, FILES, 1, FILES]
    assert relations[2].reasons == {Reason.NOT_ASKED}
    assert relations[4].reasons == {Reason.NO_INDEX_ON_COLUMN}


def test_a_warning_that_is_an_error_does_not_fail_a_query(spark, tmp_path):
    path = write(tmp_path / "t")
    pq.write_table(table(9), tmp_path / "t" / "3.parquet")
    frame = zs.prune(spark.read.parquet(path)).where("id IN (450, 3601)")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert sorted(row.id for row in frame.collect()) == [450, 3601]
    assert files_read(frame) == [FILES]
    (relation,) = zs.explain(frame).relations
    assert relation.reasons == {Reason.INDEX_DAMAGED} and "StaleIndexWarning" in str(relation)


@pytest.mark.parametrize("step", ["read", "ask", "kept_mask"])
def test_spark_reads_all_files_if_the_index_fails(spark, folder, monkeypatch, step):
    def fail(*_):
        raise LookupError("out of order")

    owner = {"read": listing.JvmScan, "ask": CatalogFiles, "kept_mask": PruningResult}[step]
    replace_function(monkeypatch, owner, "__init__" if step == "read" else step, fail)
    # A session issues each warning once, so use a new one.
    session = spark.newSession()
    with enabled(session), pytest.warns(IndexNotUsedWarning, match="out of order"):
        frame = session.read.parquet(folder).where("id = 450")
        result = frame.collect()
    monkeypatch.undo()
    assert [row.id for row in result] == [450] and files_read(frame) == [FILES]
    (relation,) = zs.explain(frame).relations
    assert relation.reasons == {Reason.INDEX_DAMAGED} and "out of order" in str(relation)


def test_spark_does_not_wait_for_a_slow_index(spark, lake, monkeypatch):
    is_released, has_answered = threading.Event(), threading.Event()
    ask = CatalogFiles.ask

    def ask_late(*arguments):
        assert is_released.wait(60)
        return ask(*arguments)

    def hear(_, warning, *__):
        warned.append(str(warning))
        has_answered.set()

    warned = []
    set_constant(monkeypatch, listing, "MAX_ANSWER_SECONDS", 0.2)
    replace_function(monkeypatch, CatalogFiles, "ask", ask_late)
    replace_function(monkeypatch, listing, "warn_once", hear)
    with enabled(spark):
        frame = lake.where("id = 450").alias("late")
        assert [row.id for row in frame.collect()] == [450]
        assert files_read(frame) == [FILES]
        is_released.set()
        assert has_answered.wait(60)
    assert any("too late" in text for text in warned)
    text = "the index gave no answer within 0.2 s"
    assert text in str(zs.explain(frame)) and text in explained(frame)


def test_an_index_that_an_overwrite_deletes_raises_a_warning(spark, tmp_path):
    # In such a folder, the index lies inside the data.
    tmp_path.chmod(0o1777)
    with pytest.warns(ZoneBloomWarning, match="lies inside it"):
        path = write(tmp_path / "t")
    with enabled(spark):
        assert spark.read.parquet(path).where("id = 450").count() == 1
        spark.range(10).write.mode("overwrite").parquet(path)
        with pytest.warns(IndexNotUsedWarning, match="is gone since it was last read"):
            assert spark.read.parquet(path).where("id = 5").count() == 1
        assert spark.read.parquet(path).where("id = 6").count() == 1
    with pytest.warns(ZoneBloomWarning, match="lies inside it"):
        index(path)
    ds = zb.dataset(path)
    spark.range(10).write.mode("overwrite").parquet(path)
    with pytest.warns(IndexNotUsedWarning, match="is gone since it was last read"):
        ds.refresh()
    assert ds.count_rows("id = 5") == 1


def test_an_index_beside_the_data_outlives_an_overwrite(spark, tmp_path):
    path = write(tmp_path / "t")
    spark.range(900, numPartitions=3).write.mode("overwrite").parquet(path)
    assert index_folder(path).is_dir()
    # The index does not know the new files, so all are read.
    check(spark.read.parquet(path).where("id = 450"), 3)
    with pytest.warns(StaleIndexWarning, match="3 of 3 files"):
        assert zb.dataset(path).count_rows("id = 450") == 1
    zb.dataset(path).optimize.optimize_indices(spark=False)
    check(spark.read.parquet(path).where("id = 450"), 1)


def test_an_index_is_found_by_every_spelling(spark, tmp_path):
    path = write(tmp_path / "lake" / "t")
    # An index folder of a child must not count as an index of the parent.
    other = write(tmp_path / "lake" / "other", range(FILES, FILES + 2))
    link = tmp_path / "link"
    link.symlink_to(path)
    for spelling in (path, f"{path}/", str(link), f"{tmp_path}/lake/../lake/t", f"{path}/*"):
        check(spark.read.parquet(spelling).where("id = 450"), 1)
    check(spark.read.parquet(path, other).where("id IN (450, 2450)"), 2)
    check(spark.read.parquet(path, str(link)).where("id = 450"), 2)
    assert zs.scan(spark, path, filter="id = 450").count() == 1
    assert "1 of 24 zones kept" in str(zs.explain(zs.scan(spark, path, filter="id = 450")).scans[0])
    index(tmp_path / "lake")
    check(spark.read.parquet(path).where("id = 450"), 1)


# Public functions


def test_files_with_unusual_names_are_pruned(spark, tmp_path):
    path = tmp_path / "a b%20{c}"
    path.mkdir()
    odd_names = ["x y.parquet", "p%20q.parquet", "k=v[1].parquet", "s{a,b}*.parquet", "ü+#.parquet"]
    for number, name in enumerate(odd_names):
        pq.write_table(table(number), path / name)
    index(path)
    reader = spark.read.option("pathGlobFilter", "*.parquet")
    whole = reader.parquet(f"file:{str(path).replace('{', chr(92) + '{')}")
    for number, name in enumerate(odd_names):
        key = f"id = {number * ROWS + 7}"
        check(whole.where(key), 1)
        assert names(zs.explain(zs.prune(whole.where(key)))) == [name]


def test_several_partitions_may_have_one_folder(spark, tmp_path):
    path = write(tmp_path / "t")
    ddl = "twice (id BIGINT, p INT)"
    with spark_table(spark, ddl, f"{path}/table", "PARTITIONED BY (p)") as name:
        for part in (1, 2):
            spark.sql(f"ALTER TABLE {name} ADD PARTITION (p={part}) LOCATION '{path}'")
        check(spark.table(name).where("id = 450"), 2)
        check(spark.table(name).where("id = 450 AND p = 2"), 1)


def test_leaves_that_spark_finds_by_field_id_lose_no_rows(spark, conf, tmp_path):
    def table(name, values):
        inner = pa.struct([pa.field(name, pa.int64(), metadata={"PARQUET:field_id": "1"})])
        column = pa.array([{name: value} for value in values], inner)
        return pa.table({"s": column}, schema=pa.schema([pa.field("s", inner)]))

    pq.write_table(table("a", [1, 2]), tmp_path / "a.parquet")
    pq.write_table(table("old", [3, 4]), tmp_path / "b.parquet")
    zb.dataset(tmp_path).create_scalar_index("s.a", spark=False)
    leaf = st.StructField("a", st.LongType(), metadata={"parquet.field.id": 1})
    schema = st.StructType([st.StructField("s", st.StructType([leaf]))])
    conf.set("spark.sql.parquet.fieldId.read.enabled", "true")
    result = spark.read.schema(schema).parquet(str(tmp_path)).where("s.a = 3")
    assert result.count() == 1
    assert zs.prune(result).count() == 1


# Sessions


def test_sessions_are_enabled_separately_and_threads_share_a_session(spark, folder):
    other = spark.newSession()
    with enabled(spark):
        assert "InMemoryFileIndex" in plan_text(other.read.parquet(folder).where("id = 450"))
        assert "IndexedFiles" in plan_text(spark.read.parquet(folder).where("id = 450"))

        def count(number):
            return spark.read.parquet(folder).where(f"id IN ({number}, {number} + 1)").count()

        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(count, range(0, 2000, 100))) == [2] * 20
    assert "InMemoryFileIndex" in plan_text(spark.read.parquet(folder).where("id = 450"))


def test_a_stream_reads_new_files(spark, lake, folder):
    counts = []
    with enabled(spark):
        result = spark.readStream.schema(lake.schema).parquet(folder).where("id IN (450, 2000)")
        query = (
            result.writeStream.foreachBatch(lambda frame, _: counts.append(frame.count()))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    assert sum(counts) == 2


def plan_text(frame):
    return frame._jdf.queryExecution().executedPlan().toString()


def write_days(root, days: range) -> None:
    """Write a folder for each day, whose file holds 10 ids that are in no other."""
    for day in days:
        (root / f"d{day:03}").mkdir(parents=True)
        ids = pa.array(range(day * 10, day * 10 + 10), pa.int64())
        pq.write_table(pa.table({"id": ids}), root / f"d{day:03}" / "0.parquet")


def test_a_glob_of_many_folders_asks_their_index(spark, tmp_path):
    root = tmp_path / "rows"
    write_days(root, range(80))
    zb.dataset(str(root)).create_scalar_index("id", spark=False)
    frame = zs.prune(spark.read.parquet(f"{root}/*"))
    for id_ in (405, 31, 10**6):
        result = frame.where(f"id = {id_}")
        assert [row.id for row in result.collect()] == [id_] * (id_ < 800)
        assert zs.explain(result).relations[0].kept_files == (id_ < 800)
    # A file that the index does not know is read.
    write_days(root, range(80, 81))
    with pytest.warns(StaleIndexWarning):
        assert zs.prune(spark.read.parquet(f"{root}/*")).where("id = 805").count() == 1


def test_roots_without_a_common_folder_use_an_index_dir(spark, tmp_path):
    """The paths of such roots have only the scheme in common."""
    index_dir = str(tmp_path / "index")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as elsewhere:
        roots = [str(tmp_path / "rows"), elsewhere]
        for number, root in enumerate(roots):
            write_days(Path(root), range(number * 3, number * 3 + 3))
        files = [str(path) for root in roots for path in sorted(Path(root).rglob("*.parquet"))]
        zb.dataset(files, index_dir=index_dir).create_scalar_index("id", spark=False)
        paths = [f"{root}/*" for root in roots]
        frame = zs.prune(spark.read.parquet(*paths), index_dir=index_dir).where("id IN (11, 41)")
        assert sorted(row.id for row in frame.collect()) == [11, 41]
        assert zs.explain(frame).relations[0].kept_files == 2


def test_other_relations_are_left_to_other_strategies(spark, lake):
    """Delta plans the scans of its tables in a strategy that comes after those of the session."""
    zs.prune(lake)
    strategies = spark._jsparkSession.experimental().extraStrategies()
    found = [strategies.apply(i) for i in range(strategies.size())]
    (ours,) = [s for s in found if s.getClass().getSimpleName() == "DescribedScanStrategy"]
    for frame in (lake, zs.prune(lake)):
        plan = frame.where("id = 3")._jdf.queryExecution().optimizedPlan()
        has_index = "IndexedFiles" in plan.collectLeaves().head().relation().location().toString()
        assert ours.apply(plan).isEmpty() != has_index


def test_folders_of_a_glob_with_an_index_of_their_own_are_asked_it(spark, tmp_path):
    root = tmp_path / "rows"
    write_days(root, range(6))
    zb.dataset(str(root / "d001")).create_scalar_index("id", spark=False)
    zb.dataset(str(root / "d004")).create_scalar_index("id", spark=False)
    result = zs.prune(spark.read.parquet(f"{root}/*")).where("id = 11")
    assert [row.id for row in result.collect()] == [11]
    # Four folders have no index.
    assert zs.explain(result).relations[0].kept_files == 5
    zb.dataset(str(root)).create_scalar_index("id", spark=False)
    result = zs.prune(spark.read.parquet(f"{root}/*")).where("id = 11")
    assert [row.id for row in result.collect()] == [11]
    assert zs.explain(result).relations[0].kept_files == 1


def test_folders_of_several_datasets_are_not_mixed(spark, tmp_path):
    for name, days in (("one", range(3)), ("two", range(3, 6))):
        write_days(tmp_path / name, days)
        zb.dataset(str(tmp_path / name)).create_scalar_index("id", spark=False)
    write_days(tmp_path / "three", range(6, 9))
    frame = zs.prune(spark.read.parquet(*(f"{tmp_path}/{n}/*" for n in ("one", "two", "three"))))
    for id_, kept in ((11, 4), (41, 4), (71, 3)):
        result = frame.where(f"id = {id_}")
        assert [row.id for row in result.collect()] == [id_]
        assert zs.explain(result).relations[0].kept_files == kept
