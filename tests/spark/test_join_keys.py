"""Joins with a small side read the files that its keys may be in, and return the rows of Spark.

The oracle is the same query with the indices disabled. Files are small here, so the least size of
a scan that keys choose files of is set to 0.
"""

from __future__ import annotations

import datetime
import random
import threading
import time
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import spark_data
from helpers import cases
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import functions as sf
from seams import set_constant

import zonebloom as zb
import zonebloom.spark as zs
from zonebloom.spark.pruning import optimizer_rule
from zonebloom.spark.pruning.explanation import Reason
from zonebloom.spark.versions import frame_of_arrow
from zonebloom.storage.paths import plain_path

FILES, ROWS = 8, 3_000
INDEXED = ["id", "small", "name", "dec", "d", "t", "b"]
AQE = "spark.sql.adaptive.enabled"
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
    chosen = chosen.append_column("p", pa.array([1] * chosen.num_rows, pa.int32()))
    chosen = chosen.append_column("wide", chosen["small"].cast(pa.int64()))
    pq.write_table(chosen, root / "dim.parquet")
    spark.read.parquet(str(root / "dim.parquet")).createOrReplaceTempView("dim")
    every = pa.table({"id": pa.array(range(5, FILES * 1_000, 500), pa.int64())})
    pq.write_table(every, root / "every.parquet")
    spark.read.parquet(str(root / "every.parquet")).createOrReplaceTempView("every")
    frame_of_arrow(spark, every).createOrReplaceTempView("given")
    listed = [(1_003, "a"), (6_007, "b"), (None, "c")]
    spark.createDataFrame(listed, "id long, label string").createOrReplaceTempView("listed")
    return root


@pytest.fixture
def enabled(spark, monkeypatch):
    set_constant(monkeypatch, optimizer_rule, "MIN_JOIN_SCAN_BYTES", 0)
    zs.enable(spark)
    yield
    zs.disable(spark)


def rows(frame) -> list[str]:
    return sorted(map(repr, frame.collect()))


def files_of(frame, roots: str = "fact") -> list[int]:
    """Return the numbers of files that the scans of a folder read."""
    plan = zs.explain(frame)
    return [
        scan.kept_files
        for scan in plan.relations
        if scan.filter is not None and any(root.endswith(roots) for root in scan.roots)
    ]


def check(spark, text: str) -> list[int]:
    """Check that a query returns the rows of Spark alone. Return the files that it reads."""
    zs.disable(spark)
    with spark_data.settings(spark, **NO_PUSHDOWN):
        expected = rows(spark.sql(text))
    zs.enable(spark)
    for adaptive in ("true", "false"):
        with spark_data.settings(spark, **{AQE: adaptive}):
            frame = spark.sql(text)
            assert rows(frame) == expected, text
    return files_of(frame)


PRUNED = {
    "inner": "SELECT * FROM fact JOIN dim USING (id)",
    "inner, small side first": "SELECT * FROM dim JOIN fact USING (id)",
    "list": "SELECT * FROM fact JOIN listed USING (id)",
    "semi": "SELECT * FROM fact LEFT SEMI JOIN dim USING (id)",
    "IN of a query": "SELECT * FROM fact WHERE id IN (SELECT id FROM dim)",
    "exists": "SELECT * FROM fact WHERE EXISTS (SELECT 1 FROM dim WHERE dim.id = fact.id)",
    "semi, small side first": "SELECT * FROM dim LEFT SEMI JOIN fact USING (id)",
    "left outer": "SELECT * FROM dim LEFT JOIN fact USING (id)",
    "right outer": "SELECT * FROM fact RIGHT JOIN dim USING (id)",
    "anti": "SELECT * FROM dim LEFT ANTI JOIN fact USING (id)",
    "existence": "SELECT id, x FROM dim WHERE x = 3 OR id IN (SELECT id FROM fact)",
    "filtered dimension": "SELECT fact.row FROM fact JOIN dim USING (id) WHERE dim.x < 5",
    "more conditions": "SELECT * FROM fact f JOIN dim d ON f.id = d.id AND f.x + d.x > 9",
    "aggregated side": (
        "SELECT * FROM fact JOIN (SELECT id, count(*) n FROM dim GROUP BY id) USING (id)"
    ),
    "limit": (
        "SELECT * FROM fact JOIN (SELECT id FROM dim WHERE x < 9 ORDER BY id, row LIMIT 3) "
        "USING (id)"
    ),
    "union": (
        "SELECT row FROM fact JOIN (SELECT id FROM dim UNION SELECT id FROM listed) USING (id)"
    ),
    "aggregate of the result": "SELECT d.x, count(*) FROM fact f JOIN dim d USING (id) GROUP BY 1",
    "grouped large side": (
        "SELECT * FROM (SELECT id, sum(x) FROM fact GROUP BY id) JOIN dim USING (id)"
    ),
    "star": ("SELECT f.row FROM fact f JOIN dim d ON f.id = d.id JOIN listed l ON f.id = l.id"),
    "CTE": "WITH k AS (SELECT id FROM dim) SELECT f.row FROM fact f JOIN k USING (id)",
    "wider integers": "SELECT fact.row FROM fact JOIN dim ON fact.small = dim.wide",
    "merge hint": "SELECT /*+ MERGE(fact) */ * FROM fact JOIN dim USING (id)",
    "shuffle hint": "SELECT /*+ SHUFFLE_HASH(dim) */ * FROM fact JOIN dim USING (id)",
    **{name: f"SELECT f.row, d.row FROM fact f JOIN dim d USING ({name})" for name in INDEXED[1:]},
}


@pytest.mark.parametrize("text", PRUNED.values(), ids=PRUNED)
def test_keys_of_the_small_side_choose_files(spark, lake, enabled, text):
    [files] = check(spark, text)
    # "listed" has keys of two files, "dim" of two and a null.
    assert 1 <= files <= 2


@pytest.mark.parametrize("adaptive", ["true", "false"])
def test_keys_choose_files_and_are_not_pushed_into_parquet(spark, lake, enabled, adaptive):
    part = "SELECT /*+ MERGE(f, l) */ f.row FROM fact f JOIN {} l ON f.id = l.id"
    # Both scans of the table have the same filters, but other keys.
    text = part.format("listed") + " UNION ALL " + part.format("(SELECT id + 1000 AS id FROM dim)")
    check(spark, text)
    with spark_data.settings(spark, **{AQE: adaptive}):
        frame = spark.sql(text)
        frame.collect()
        assert sorted(files_of(frame)) == [2, 2]
        nodes = spark_data.scan_nodes(frame)
    pushed = [node.metadata().apply("PushedFilters") for node in nodes]
    assert "[IsNotNull(id)]" in pushed and not any("In(" in filters for filters in pushed)


WHOLE = {
    "outer, large side preserved": "SELECT * FROM fact LEFT JOIN dim USING (id)",
    "full outer": "SELECT * FROM fact FULL JOIN dim USING (id)",
    "anti, large side preserved": "SELECT * FROM fact LEFT ANTI JOIN dim USING (id)",
    "NOT IN": "SELECT * FROM fact WHERE id NOT IN (SELECT id FROM listed)",
    "null-safe": "SELECT * FROM fact f JOIN dim d ON f.id <=> d.id",
    "range": "SELECT * FROM fact f JOIN listed l ON f.id BETWEEN l.id AND l.id + 1",
    "one term of OR": "SELECT * FROM fact f JOIN dim d ON f.id = d.id OR f.x = d.x",
    "column without index": "SELECT f.row, d.row FROM fact f JOIN dim d ON f.x = d.x AND d.x = 4",
    "double": "SELECT f.row, d.row FROM fact f JOIN dim d ON f.f = d.f",
    "keys of all files": "SELECT * FROM fact JOIN every USING (id)",
    "limit of the large side": (
        "SELECT * FROM (SELECT * FROM fact ORDER BY row LIMIT 2000) JOIN dim USING (id)"
    ),
    "window of the large side": (
        "SELECT * FROM (SELECT *, row_number() OVER (ORDER BY row) n FROM fact) JOIN dim USING (id)"
    ),
}


@pytest.mark.parametrize("text", WHOLE.values(), ids=WHOLE)
def test_other_joins_read_all_files(spark, lake, enabled, text):
    assert check(spark, text) in ([], [FILES])


def test_small_side_without_rows_reads_no_file(spark, lake, enabled):
    assert check(
        spark, "SELECT * FROM fact JOIN (SELECT * FROM dim WHERE x < -1) d USING (id)"
    ) in (
        [],
        [0],
    )


def test_a_random_side_is_not_computed_early(spark, lake, enabled):
    frame = spark.table("fact").join(
        spark.table("listed").where(sf.rand() * sf.col("id") >= 0), "id"
    )
    expected = spark.table("fact").where("id IN (1003, 6007)").count()
    assert frame.count() == expected
    frame.collect()
    assert files_of(frame) == [FILES]


def test_a_limit_without_order_gives_the_keys_that_are_joined(spark, lake, enabled):
    keys = spark.table("dim").where("id < 9000").repartition(3).select("id").limit(2)
    frame = keys.join(spark.table("fact"), "id", "left").groupBy("id").count()
    assert [row["count"] for row in frame.collect()] == [3, 3]


def test_partitions_are_still_pruned_by_the_dimension(spark, lake, enabled):
    text = "SELECT f.row FROM parted f JOIN dim d ON f.p = d.p AND f.id = d.id WHERE d.x < 50"
    check(spark, text)
    frame = spark.sql(text)
    frame.collect()
    [metrics] = [count for count in spark_data.files_read(frame) if count != 1] or [1]
    assert metrics <= 2


def test_a_cached_dimension_gives_keys(spark, lake, enabled):
    cached = spark.table("dim").select("id").cache()
    try:
        assert cached.count() == 29
        frame = spark.table("fact").join(cached, "id")
        found = rows(frame)
        assert files_of(frame) == [2]
        zs.disable(spark)
        assert rows(spark.table("fact").join(cached, "id")) == found
    finally:
        cached.unpersist()


def test_a_frame_that_is_cached_keeps_its_rows(spark, lake, enabled):
    joined = spark.sql("SELECT f.row FROM fact f JOIN listed USING (id)").cache()
    try:
        assert joined.count() == 6
        assert spark.table("fact").count() == FILES * ROWS
        zs.disable(spark)
        assert rows(joined) == rows(spark.sql("SELECT f.row FROM fact f JOIN listed USING (id)"))
    finally:
        joined.unpersist()


def test_the_large_side_is_broadcast_if_few_of_its_files_are_read(spark, lake, enabled):
    limit = (lake / "fact" / "1.parquet").stat().st_size // 2
    with spark_data.settings(
        spark, **{"spark.sql.autoBroadcastJoinThreshold": str(limit), AQE: "false"}
    ):
        text = "SELECT a.row FROM fact a JOIN parted b USING (row) WHERE b.id = 1003"
        frame = spark.sql(text)
        found = rows(frame)
        assert "BroadcastHashJoin" in frame._jdf.queryExecution().executedPlan().toString()
        zs.disable(spark)
        alone = spark.sql(text)
        assert rows(alone) == found
        assert "BroadcastHashJoin" not in alone._jdf.queryExecution().executedPlan().toString()


def test_no_side_is_computed_early_if_broadcasts_are_off(spark, lake, enabled):
    with spark_data.settings(spark, **{"spark.sql.autoBroadcastJoinThreshold": "-1"}):
        frame = spark.sql(PRUNED["inner"])
        frame.collect()
        assert files_of(frame) == [FILES]


def test_scans_below_the_least_size_are_left_as_they_are(spark, lake):
    zs.enable(spark)
    frame = spark.sql(PRUNED["inner"])
    frame.collect()
    zs.disable(spark)
    assert files_of(frame) == [FILES]


def test_an_error_of_the_small_side_is_the_error_of_spark(spark, lake, enabled):
    text = "SELECT * FROM fact JOIN (SELECT raise_error('no key') AS e, id FROM dim) USING (id)"
    frame = spark.sql(text)
    frame.explain()
    # Spark 3.5 raises the error of the JVM.
    with pytest.raises((PySparkException, Py4JJavaError), match="no key"):
        frame.collect()


def test_a_self_join_of_an_indexed_lookup(spark, lake, enabled):
    text = "SELECT a.row, b.row FROM fact a JOIN fact b ON a.id = b.id WHERE a.name = 'n2007'"
    # The filtered side reads one file, but that is no small part of the other side.
    check(spark, text)


def test_a_new_file_and_a_changed_one_are_read(spark, tmp_path, lake, enabled):
    folder = tmp_path / "fact"
    folder.mkdir()
    for number in range(4):
        pq.write_table(facts(number), folder / f"{number}.parquet")
    zb.dataset(str(folder)).create_scalar_index("id", spark=False)
    pq.write_table(facts(5), folder / "9.parquet")
    pq.write_table(facts(6).slice(10), folder / "2.parquet")
    spark.read.parquet(str(folder)).createOrReplaceTempView("moving")
    text = "SELECT m.row FROM moving m JOIN dim USING (id)"
    with pytest.warns(zb.errors.StaleIndexWarning):
        check(spark, text)
    frame = spark.sql(text)
    frame.collect()
    assert files_of(frame) == [3]
    spark.catalog.dropTempView("moving")


WHY = {
    "no index": ("fact f JOIN dim d ON f.x = d.x", "no index on a column"),
    "preserved": ("fact f LEFT JOIN dim d ON f.id = d.id", "neither side is small"),
    "most files": ("fact f JOIN every d ON f.id = d.id AND d.id > 3", "in most files"),
    "rows of the plan": ("fact f JOIN given d ON f.id = d.id", "in most files"),
    "both large": ("fact f JOIN parted d ON f.id = d.id", "neither side is small"),
}


@pytest.mark.parametrize(("join", "reason"), WHY.values(), ids=WHY)
def test_the_plan_says_why_a_join_chooses_no_files(spark, lake, enabled, join, reason):
    zs.disable(spark)
    plan = zs.explain(zs.prune(spark.sql(f"SELECT f.row FROM {join}")))
    assert not plan.is_pruned
    [note] = [note for note in plan.notes if note.reason is Reason.JOIN_NOT_USED]
    assert reason in note.text


def test_the_plan_and_a_pruned_frame_show_what_a_join_chooses(spark, lake, enabled):
    zs.disable(spark)
    frame = spark.sql(PRUNED["inner"])
    expected = rows(frame)
    plan = zs.explain(zs.prune(frame))
    assert [scan.kept_files for scan in plan.relations if scan.num_files == FILES] == [2]
    assert not plan.notes
    pruned = zs.prune(frame)
    assert rows(pruned) == expected
    assert files_of(pruned) == [2]
    # The frame itself is not changed.
    assert rows(frame) == expected
    assert files_of(frame) == []


def test_a_side_with_too_many_rows_is_left_to_spark(spark, lake, enabled):
    many = spark.range(20_000).where("id % 2000 > 1000").selectExpr("id AS id", "id AS y")
    frame = spark.table("fact").join(many, "id")
    zs.disable(spark)
    expected = rows(spark.table("fact").join(many, "id"))
    zs.enable(spark)
    with spark_data.settings(spark, **{"spark.sql.autoBroadcastJoinThreshold": "1g"}):
        assert rows(frame) == expected
    assert files_of(frame) == [FILES]


DIMENSIONS = ["dim", "every", "listed"]
TYPES = ["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "LEFT SEMI JOIN", "LEFT ANTI JOIN"]


def random_join(dice: random.Random) -> str:
    """Return a random query with one or two joins of a large view and small ones."""
    large = dice.choice(["fact", "fact", "parted"])
    small = dice.choice(DIMENSIONS)
    columns = [*INDEXED, "f", "x"] if small == "dim" else ["id"]
    column = dice.choice(columns)
    condition = f"f.{column} {dice.choice(['=', '=', '=', '<=>'])} d.{column}"
    if small == "dim" and dice.random() < 0.3:
        condition += dice.choice([" AND f.x < d.x", " AND f.name = d.name", " OR f.row = d.row"])
    side = dice.choice(
        [
            small,
            small,
            f"(SELECT DISTINCT * FROM {small})",
            f"(SELECT * FROM {small} WHERE id % 3 = {dice.randrange(3)})",
            f"(SELECT * FROM {small} WHERE id > 10000000000)",
        ]
    )
    filtered = dice.choice(
        [
            large,
            large,
            f"(SELECT * FROM {large} WHERE x < 50)",
            f"(SELECT * FROM {large} WHERE id IN (1003, 6007, 12))",
            f"(SELECT * FROM {large} UNION ALL SELECT * FROM {large} WHERE x = 1)",
        ]
    )
    type_ = dice.choice(TYPES)
    if dice.random() < 0.5:
        left, right, key = f"{filtered} f", f"{side} d", "f.row"
    else:
        left, right, key = f"{side} d", f"{filtered} f", "d.id"
    selected = "*" if dice.random() < 0.4 else f"{key}, count(*) OVER () AS n"
    text = f"SELECT {selected} FROM {left} {type_} {right} ON {condition}"
    if dice.random() < 0.3:
        text = f"SELECT count(*), min({key.split('.')[1]}) FROM ({text.replace('*', key, 1)})"
    return text


@pytest.mark.parametrize("part", range(4))
def test_random_joins_return_the_rows_of_spark(spark, lake, enabled, part):
    dice = random.Random(part)
    pruned = 0
    for _ in range(cases(300, 40) // 4):
        text = random_join(dice)
        zs.disable(spark)
        with spark_data.settings(spark, **NO_PUSHDOWN):
            expected = rows(spark.sql(text))
        zs.enable(spark)
        with spark_data.settings(spark, **{AQE: dice.choice(["true", "false"])}):
            frame = spark.sql(text)
            assert rows(frame) == expected, text
        pruned += any(files < FILES for files in files_of(frame))
    assert pruned


def test_a_changed_dimension_gives_new_keys(spark, lake, enabled):
    """The keys are those of the dimension at each query, after inserts, a TRUNCATE and REFRESH."""
    spark.sql("CREATE TABLE keys (id BIGINT) USING parquet")
    try:
        text = "SELECT count(*), min(k.id) FROM fact JOIN keys k USING (id)"
        spark.sql("INSERT INTO keys VALUES (1003)")
        frame = spark.sql(text)
        assert [tuple(row) for row in frame.collect()] == [(3, 1_003)]
        assert files_of(frame) == [1]
        spark.sql("INSERT INTO keys VALUES (6007)")
        assert [tuple(row) for row in spark.sql(text).collect()] == [(6, 1_003)]
        path, *_ = spark.table("keys").inputFiles()
        folder = Path(plain_path(path, encoded=True)).parent
        pq.write_table(pa.table({"id": [2_011]}), folder / "other.parquet")
        spark.sql("REFRESH TABLE keys")
        assert [tuple(row) for row in spark.sql(text).collect()] == [(9, 1_003)]
        spark.sql("INSERT OVERWRITE keys VALUES (4002)")
        assert [tuple(row) for row in spark.sql(text).collect()] == [(3, 4_002)]
        spark.sql("TRUNCATE TABLE keys")
        assert [tuple(row) for row in spark.sql(text).collect()] == [(0, None)]
    finally:
        spark.sql("DROP TABLE keys")


def test_a_write_of_joined_rows_is_that_of_spark(spark, tmp_path, lake, enabled):
    """A table that the join reads cannot be overwritten, and another gets the rows of Spark."""
    spark.sql(f"CREATE TABLE target USING parquet LOCATION '{tmp_path / 't'}' AS TABLE dim")
    try:
        joined = spark.table("fact").join(spark.table("target"), "id").select("target.*")
        with pytest.raises(PySparkException):
            joined.write.mode("overwrite").saveAsTable("target")
        assert spark.table("target").count() == spark.table("dim").count()
        spark.sql("INSERT INTO target SELECT d.* FROM fact JOIN dim d USING (id) LIMIT 5")
        assert spark.table("target").count() == spark.table("dim").count() + 5
    finally:
        spark.sql("DROP TABLE target")


def test_a_chain_of_small_sides(spark, lake, enabled):
    """The keys of `listed` leave few files of `fact`, which is then a small side itself."""
    zs.disable(spark)
    text = (
        "SELECT p.row FROM parted p JOIN "
        "(SELECT f.name FROM fact f JOIN listed USING (id) GROUP BY f.name) s ON p.name = s.name"
    )
    expected = rows(spark.sql(text))
    assert expected
    zs.enable(spark)
    size = (lake / "fact" / "1.parquet").stat().st_size
    with spark_data.settings(spark, **{"spark.sql.autoBroadcastJoinThreshold": str(3 * size)}):
        frame = spark.sql(text)
        assert rows(frame) == expected
    # A side of two files is no eighth of the other, but one of a file is.
    assert files_of(frame, "parted") in ([FILES], [2])


def test_a_limited_side_with_dynamic_partitions_is_left_to_spark(spark, lake, enabled):
    """Spark may compute a filter of partitions from the limited side once more."""
    text = (
        "SELECT count(*) FROM parted f JOIN (SELECT p, id FROM dim WHERE x < 90 LIMIT 4) d "
        "ON f.p = d.p AND f.id = d.id"
    )
    frame = spark.sql(text)
    frame.collect()
    assert "LocalTableScan" not in frame._jdf.queryExecution().optimizedPlan().toString()


def test_a_computed_key_does_not_fail_for_other_rows(spark, lake, enabled):
    """A cast of a stored key is no key, because it fails for rows that other conditions drop."""
    dimension = spark.sql("SELECT id, CAST(id AS INT) AS n FROM listed WHERE id IS NOT NULL")
    dimension.createOrReplaceTempView("numbered")
    text = (
        "SELECT f.row FROM fact f JOIN listed l ON f.id = l.id JOIN numbered n "
        "ON CAST(substr(f.name, 2) AS INT) = n.n AND f.id = n.id"
    )
    check(spark, text)


def test_a_long_list_is_no_small_side(spark, lake, enabled):
    rows_of_list = [(number % 5, str(number) * 50) for number in range(5_000)]
    long = spark.createDataFrame(rows_of_list, "id long, text string")
    frame = spark.table("fact").join(long.groupBy("id").count(), "id")
    frame.collect()
    assert files_of(frame) == [FILES]
    assert "LocalTableScan" not in frame._jdf.queryExecution().optimizedPlan().toString()


def test_a_plan_of_several_partitions_shows_the_files_of_each(spark, lake, enabled):
    zs.disable(spark)
    parted = spark.table("parted")
    parts = [parted.where(f"p = {part} AND id = 1003") for part in (1, 2)]
    plan = zs.explain(zs.prune(parts[0].union(parts[1])))
    kept = [[path.rsplit("/", 1)[1] for path in scan.kept_paths] for scan in plan.relations]
    assert kept == [["1.parquet"], []]


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
    dice = np.random.default_rng(1)
    table = pa.table({"k": keys, "v": pa.array(range(400))})
    (tmp_path / "fact").mkdir()
    for number in range(4):
        # Random numbers make the files large beside that of the keys.
        part = pa.concat_tables([table.slice(number * 100, 100)] * 40)
        part = part.append_column("x", pa.array(dice.random(part.num_rows)))
        pq.write_table(part, tmp_path / "fact" / f"{number}.parquet")
    zb.dataset(str(tmp_path / "fact")).create_scalar_index(["k", "v"], spark=False)
    pq.write_table(table.slice(5, 1), tmp_path / "keys.parquet")
    modes = {
        f"spark.sql.parquet.{name}RebaseModeInRead": "CORRECTED" for name in ("datetime", "int96")
    }
    with spark_data.settings(spark, **modes):
        fact = spark.read.parquet(str(tmp_path / "fact"))
        # The index chooses files by v.
        joined = fact.join(spark.read.parquet(str(tmp_path / "keys.parquet")), ["k", "v"])
        assert [row.v for row in joined.select("v").collect()] == [5] * 40
        assert files_of(joined) == [1]


def test_keys_of_no_use_are_not_computed_again_at_once(spark, lake, enabled):
    texts = [f"SELECT f.row FROM fact f JOIN every USING (id) WHERE id > {n}" for n in (1, 1, 2)]
    plans = []
    for text in texts:
        frame = spark.sql(text)
        assert len(frame.collect()) == 3 * len(spark.sql("SELECT * FROM every").collect())
        plans.append(frame._jdf.queryExecution().optimizedPlan().toString())
    # The rows of a side that was computed early are a part of the plan.
    assert ["LocalRelation" in plan for plan in plans] == [True, False, True]


def notes_of(spark, text: str) -> str:
    """Return why the joins of a query choose no files. The query is planned for this."""
    frame = spark.sql(text)
    expected = rows(frame)
    plan = zs.explain(zs.prune(frame))
    assert rows(zs.prune(frame)) == expected
    return "; ".join(note.text for note in plan.notes)


def test_a_column_whose_keys_are_in_most_files_is_tried_once(spark, tmp_path, enabled):
    """The keys of one small side tell about the column, for other small sides too."""
    for number in range(4):
        columns = {"id": [number * 100 + row for row in range(100)], "k": [*range(50), *range(50)]}
        pq.write_table(pa.table(columns), tmp_path / f"{number}.parquet")
    zb.dataset(str(tmp_path)).create_scalar_index(["id", "k"], spark=False)
    zs.disable(spark)
    spark.read.parquet(str(tmp_path)).createOrReplaceTempView("common")
    for name, key in (("one", 3), ("another", 5)):
        side = spark.createDataFrame([(key, key + 100)], "k long, id long")
        side.createOrReplaceTempView(name)
    join = "SELECT c.id, c.k FROM common c JOIN {} o ON c.k = o.k"
    assert "may be in most files" in notes_of(spark, join.format("one"))
    assert "ten minutes ago" in notes_of(spark, join.format("another"))
    # Other columns of these files are tried.
    both = f"{join.format('another')} AND c.id = o.id"
    for text in (both, "SELECT c.id, c.k FROM common c JOIN another o ON c.id = o.id"):
        frame = zs.prune(spark.sql(text))
        assert rows(frame) == rows(spark.sql(text))
        assert [scan.kept_files for scan in zs.explain(frame).relations if scan.filter] == [1]


def test_a_side_whose_keys_are_in_few_files_each_stays_useful(spark, lake, enabled):
    """All keys are in all files, but each in one, so another side may choose files."""
    zs.disable(spark)
    notes_of(spark, "SELECT row FROM fact JOIN every USING (id)")
    assert check(spark, PRUNED["inner"]) == [2]


def test_partition_filters_may_spell_columns_in_another_case(spark, tmp_path, enabled):
    """A catalog table that no rule has pruned yet refuses names that it does not know."""
    table = "join_keys_parted"
    spark.sql(
        f"CREATE TABLE {table} (id BIGINT, x DOUBLE, p STRING) USING parquet "
        f"PARTITIONED BY (p) LOCATION '{tmp_path}'"
    )
    try:
        dice = np.random.default_rng(2)
        for number, part in enumerate("aab"):
            (tmp_path / f"p={part}").mkdir(exist_ok=True)
            columns = {"id": np.arange(2_000) + number * 10_000, "x": dice.random(2_000)}
            pq.write_table(pa.table(columns), tmp_path / f"p={part}" / f"{number}.parquet")
        spark.sql(f"MSCK REPAIR TABLE {table}")
        zb.dataset(str(tmp_path)).create_scalar_index("id", spark=False)
        keys = spark.createDataFrame([(7,), (20_007,)], "id long")
        frame = zs.prune(spark.table(table)).where("P = 'a' AND id < 15000").join(keys, "id")
        assert [row.id for row in frame.collect()] == [7]
    finally:
        spark.sql(f"DROP TABLE {table}")


def num_jobs_of_plan(spark, text: str) -> int:
    """Return the number of jobs that Spark runs to plan a query."""
    group = f"plan {random.random()}"
    spark.sparkContext.setJobGroup(group, "")
    spark.sql(text)._jdf.queryExecution().executedPlan()
    spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)
    return len(spark.sparkContext.statusTracker().getJobIdsForGroup(group))


def test_equal_sides_are_computed_once(spark, lake, enabled):
    """Two computations of a LIMIT could give different rows."""
    text = (
        "WITH k AS (SELECT id FROM dim LIMIT 5) SELECT row FROM fact JOIN k USING (id) "
        "UNION ALL SELECT -row FROM fact JOIN k USING (id)"
    )
    assert num_jobs_of_plan(spark, text.split("UNION", maxsplit=1)[0]) == num_jobs_of_plan(
        spark, text
    )
    numbers = [row[0] for row in spark.sql(text).collect()]
    assert len(numbers) >= 3
    assert {n for n in numbers if n > 0} == {-n for n in numbers if n < 0}


def test_listings_of_two_times_are_two_sides(spark, lake, enabled, tmp_path):
    path = tmp_path / "dim"
    path.mkdir()
    pq.write_table(pa.table({"id": [1_003]}), path / "0.parquet")
    before = spark.read.parquet(str(path))
    pq.write_table(pa.table({"id": [6_007]}), path / "1.parquet")
    after = spark.read.parquet(str(path))
    fact = spark.table("fact").select("id", "row")
    both = fact.join(before, "id").union(fact.join(after, "id"))
    assert sorted(row.id for row in both.collect()) == [*[1_003] * 6, *[6_007] * 3]


def test_a_side_with_few_large_rows_is_left_to_spark(spark, lake, enabled, tmp_path):
    """Such rows are small in files, but not in the plan."""
    table = pa.table({"id": [1_003, 6_007], "long": ["a" * 6_000_000, "b" * 6_000_000]})
    options = {"compression": "zstd", "write_statistics": False}
    pq.write_table(table, tmp_path / "long.parquet", **options)
    spark.read.parquet(str(tmp_path / "long.parquet")).createOrReplaceTempView("long_rows")
    assert check(spark, "SELECT row FROM fact JOIN long_rows USING (id)") == [2]
    zs.disable(spark)
    note = notes_of(spark, "SELECT row, long FROM fact JOIN long_rows USING (id)")
    assert "too many rows or bytes" in note


def test_a_side_that_fails_is_not_tried_again_at_once(spark, lake, enabled):
    zs.disable(spark)
    side = "(SELECT assert_true(id < 0) a, id FROM dim)"
    text = f"SELECT row FROM fact f JOIN {side} d ON f.id = d.id AND (d.a IS NULL OR f.x > 3)"
    texts = []
    for _ in range(2):
        plan = zs.explain(zs.prune(spark.sql(text)))
        texts.append("; ".join(note.text for note in plan.notes))
    assert "its smaller side failed" in texts[0] and "ten minutes ago" in texts[1]


def test_a_day_that_the_time_zone_skipped(spark, tmp_path, enabled):
    """Samoa had no 2011-12-30, so that a date of java.sql cannot be this day there."""
    skipped = datetime.date(2011, 12, 30)
    dice = np.random.default_rng(3)
    (tmp_path / "fact").mkdir()
    for number in range(4):
        days = [skipped + datetime.timedelta(number * 100)]
        table = pa.table({"d": days * 4_000, "v": [number] * 4_000, "x": dice.random(4_000)})
        pq.write_table(table, tmp_path / "fact" / f"{number}.parquet")
    zb.dataset(str(tmp_path / "fact")).create_scalar_index(["d", "v"], spark=False)
    pq.write_table(pa.table({"d": [skipped], "v": [0]}), tmp_path / "keys.parquet")
    zones = spark.sparkContext._jvm.java.util.TimeZone
    zone = zones.getDefault()
    zones.setDefault(zones.getTimeZone("Pacific/Apia"))
    try:
        fact = spark.read.parquet(str(tmp_path / "fact"))
        joined = fact.join(spark.read.parquet(str(tmp_path / "keys.parquet")), ["d", "v"])
        assert joined.count() == 4_000
        assert files_of(joined) == [1]
    finally:
        zones.setDefault(zone)


def test_a_cancelled_job_of_a_small_side_ends_the_query(spark, lake, enabled):
    """Otherwise Spark would go on and run the query without the rule."""
    # This takes about two seconds. Tasks that are cancelled still end their computation.
    text = "sha2(repeat(CAST(id AS STRING), 1000000), 512)"
    side = f"(SELECT id FROM range(400) WHERE {text} = 'no hash')"
    errors = []

    def run() -> None:
        try:
            spark.sql(f"SELECT * FROM fact JOIN {side} USING (id)").collect()
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
