"""Frames with all kinds of plans: an index may skip files, but must not lose rows.

A key that a plan computes, or takes from several places, keeps the name of the files' column, and
often its id. The oracle is Spark's own join and filter, with its pushdown off, which loses rows.
"""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as sf
from support.joined import explain_join
from support.spark_data import settings

import zonebloom as zb

FILES, ROWS = 4, 20
UNION = "(SELECT id, g FROM a UNION ALL SELECT id, z FROM b)"

# Queries whose key is the stored column, so that the global filter may be used.
OWN = {
    "table": "SELECT * FROM a",
    "filter": "SELECT id FROM a WHERE g = 2 AND y > 105",
    "subquery": "SELECT id FROM a WHERE id IN (SELECT id FROM b)",
    "other columns": "SELECT id, y + id AS g, cast(y AS string) AS y FROM a",
    "nested": "SELECT id FROM (SELECT id, y AS g FROM (SELECT * FROM a) WHERE g < 4) WHERE g > 104",
    "common tables": """
        WITH c AS (SELECT id AS k, id FROM a), d AS (SELECT id, k FROM c WHERE k < 30)
        SELECT d.id FROM c JOIN d ON c.id = d.k
    """,
    "left join": "SELECT a.id, z FROM a LEFT JOIN b ON a.id = b.id",
    "full join": "SELECT a.id, z FROM a FULL JOIN b ON a.id = b.id",
    "semi join": "SELECT * FROM a LEFT SEMI JOIN b ON a.id = b.id",
    "anti join": "SELECT * FROM a LEFT ANTI JOIN b ON a.id = b.id",
    "self-join, one side": "SELECT l.id, r.y FROM a l JOIN a r ON l.id = r.g",
    "self-join, other side": "SELECT r.id, l.y FROM a l JOIN a r ON l.id = r.g",
    "outer lateral join": """
        SELECT a.id, w FROM a LEFT JOIN LATERAL (SELECT z AS w FROM b WHERE b.id = a.id)
    """,
    "aggregate": "SELECT id, count(*) n FROM a GROUP BY id HAVING min(y) > 110",
    "distinct": "SELECT DISTINCT id, g FROM a",
    "window": "SELECT id, row_number() OVER (PARTITION BY g ORDER BY y) AS y FROM a",
    "outer explode": "SELECT id, e FROM a LATERAL VIEW OUTER explode(filter(s, x -> x > 9)) t AS e",
    "pivot": "SELECT id FROM (SELECT id, g, y FROM a) PIVOT (sum(y) FOR g IN (1, 2))",
    "limit": "SELECT id FROM a ORDER BY y LIMIT 50",
    "sample": lambda a, b: a.sample(0.5, seed=3),
    "except": "SELECT id FROM a EXCEPT SELECT id FROM b",
    "hints": "SELECT /*+ REPARTITION(3), SHUFFLE_HASH(a) */ id FROM a",
    "layout": lambda a, b: a.repartition(3, "g").sortWithinPartitions("y").coalesce(1),
    "metadata": lambda a, b: a.select("id", "_metadata.row_index", "_metadata.file_name"),
    "observed": lambda a, b: a.observe("seen", sf.count(sf.lit(1))),
}
# Queries whose key is not, or not certainly, the stored column.
OTHERS = {
    "union": "SELECT id FROM a UNION ALL SELECT id FROM b",
    "union with literals": "SELECT id FROM a UNION ALL SELECT 5000 UNION ALL VALUES (1007)",
    "union of wider": "SELECT id FROM a UNION ALL SELECT cast(id AS decimal(20, 0)) FROM b",
    "union of one table": lambda a, b: a.union(a),
    "filter above a union": """
        SELECT id FROM (SELECT id FROM a UNION ALL SELECT id FROM b) WHERE id > 9
    """,
    "aggregate above a union": """
        SELECT id, count(*) FROM (SELECT id FROM a UNION ALL SELECT id FROM b) GROUP BY id
    """,
    "join above a union": """
        SELECT u.id FROM (SELECT id FROM a UNION ALL SELECT id FROM b) u JOIN b ON u.id = b.id
    """,
    "union in a common table": """
        WITH u AS (SELECT id FROM a UNION ALL SELECT id FROM b), v AS (SELECT * FROM u WHERE id > 1)
        SELECT v.id FROM v JOIN u ON v.id = u.id
    """,
    "union with nothing": lambda a, b: a.where("false").union(b.selectExpr("id", "z", "z", "null")),
    "union of metadata": lambda a, b: a.select("id").union(
        a.select(a["_metadata.row_index"].alias("id"))
    ),
    "intersect above a union": f"SELECT id FROM {UNION} INTERSECT SELECT id FROM b",
    "recursion": """
        WITH RECURSIVE r(id) AS (
            SELECT id FROM a WHERE id IN (7, 41) UNION ALL SELECT id + 1000 FROM r WHERE id < 1000
        ) SELECT id FROM r
    """,
    "outer join, both keys": lambda a, b: a.join(b, "id", "full"),
    "coalesced": "SELECT coalesce(b.id + 1000, a.id) AS id FROM a LEFT JOIN b ON a.id = b.id",
    "filled": lambda a, b: b.join(a, "id", "left").select(a["id"]).fillna(5000),
    "outer lateral join, its key": """
        SELECT t.id FROM a LEFT JOIN LATERAL (SELECT b.id FROM b WHERE b.id = a.id + 50) t
    """,
    "cube": "SELECT id, g FROM a GROUP BY CUBE (id, g)",
    "dropped duplicates": lambda a, b: a.dropDuplicates(["g"]),
    "limit of a window": """
        SELECT id FROM (SELECT id, row_number() OVER (PARTITION BY g ORDER BY y) AS r FROM a)
        WHERE r <= 3
    """,
    "python beside the key": lambda a, b: a.withColumn("odd", sf.udf(lambda y: y % 2)("y")),
    "minimum": "SELECT min(id) + 1000 AS id FROM a GROUP BY g",
    "unpivot": "SELECT id FROM (SELECT g, y FROM a) UNPIVOT (id FOR name IN (g, y))",
    "exploded": "SELECT t.id FROM a LATERAL VIEW explode(array(id, id + 1000)) t AS id",
    "renamed": "SELECT y - 93 AS id FROM a",
    "swapped": "SELECT y AS id, id AS y FROM a",
    "computed": lambda a, b: a.withColumn("id", sf.col("id") + 1000),
    "cast": "SELECT cast(id AS int) AS id FROM a",
    "python": lambda a, b: a.select("id").mapInArrow(plus_1000(), "id bigint"),
    "cached": lambda a, b: a.where("g < 4").cache(),
    "rows of the driver": lambda a, b: a.sparkSession.createDataFrame([(7,), (5000,)], "id bigint"),
    "other files": lambda a, b: b,
}


def plus_1000():
    """Return a function that workers need not import from this module."""

    def work(batches):
        for batch in batches:
            added = [value + 1000 for value in batch.column(0).to_pylist()]
            yield pa.RecordBatch.from_pydict({"id": pa.array(added, pa.int64())})

    return work


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Write an indexed relation with different keys in its files, and one without an index."""
    path = tmp_path_factory.mktemp("plans")
    for name in "ab":
        (path / name).mkdir()
    for number in range(FILES):
        ids = range(number * ROWS, (number + 1) * ROWS)
        columns = {
            "id": pa.array(ids, pa.int64()),
            "g": pa.array([i % 5 for i in ids], pa.int64()),
            "y": pa.array([i + 100 for i in ids], pa.int64()),
            "s": [[i % 7, i % 11] for i in ids],
        }
        pq.write_table(pa.table(columns), path / "a" / f"{number}.parquet")
    ids = range(60, 140)
    pq.write_table(pa.table({"id": ids, "z": range(80)}), path / "b" / "0.parquet")
    zb.dataset(path / "a").create_scalar_index(
        ["id", "y"], number_of_items=10, global_filter=True, spark=False
    )
    return path


@pytest.fixture(scope="module")
def relations(spark, folder):
    """Yield both relations. Their views exist meanwhile."""
    tables = {
        "spark.sql.parquet.filterPushdown": "false",
        "spark.sql.shuffle.partitions": "1",
        # Filters are used only for joins with a shuffle.
        "spark.sql.autoBroadcastJoinThreshold": "-1",
        "spark.sql.adaptive.enabled": "false",
        # Compiling takes longer than running these queries.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    }
    with settings(spark, **tables):
        frames = {name: spark.read.parquet(str(folder / name)) for name in "ab"}
        for name, frame in frames.items():
            frame.createOrReplaceTempView(name)
        yield frames["a"], frames["b"]
    spark.catalog.clearCache()
    for name in frames:
        spark.catalog.dropTempView(name)


@pytest.fixture(scope="module")
def keys(spark, relations):
    """Return a frame with keys of each relation, computed keys, and keys of neither."""
    return spark.range(0, 1200, 1, 1).union(spark.range(5000, 5001))


def made(spark, relations, query):
    return spark.sql(query) if isinstance(query, str) else query(*relations)


def ids(frame):
    return Counter(frame.select("id").toArrow()["id"].to_pylist())


@pytest.mark.parametrize("name", OWN)
def test_a_join_by_a_key_of_the_files_uses_the_index(spark, folder, relations, keys, name):
    frame = made(spark, relations, OWN[name])
    plan = explain_join(keys, frame, "id", right_index=str(folder / "a"))
    assert plan.used, plan
    result = ids(plan.frame)
    assert result == ids(keys.join(frame, "id"))
    assert result


@pytest.mark.parametrize("name", OTHERS)
def test_a_join_by_any_other_key_is_left_to_spark(spark, folder, relations, keys, name):
    frame = made(spark, relations, OTHERS[name])
    plan = explain_join(keys, frame, "id", right_index=str(folder / "a"))
    assert not plan.used, plan
    assert plan.frame.sameSemantics(keys.join(frame, "id"))
