"""Random queries return the same rows after enable() as before it.

Over folders, partitioned folders, tables and bucketed tables, as SQL and as frames, while files
come, change and go. The oracle is Spark with its own pushdown off, which loses rows.
"""

from __future__ import annotations

import random
import warnings
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from support import spark_data
from support.helpers import cases
from support.spark_data import enabled, files_read, rows, settings

import zonebloom as zb
from zonebloom.errors import StaleIndexWarning

FILES, ROWS = 6, 60
KINDS = ["folder", "partitioned", "table", "bucketed"]
# The change of the files before each part of the queries.
MOMENTS = ["indexed", "stale", "indexed anew", "stale again"]
QUERIES = cases(300, 48)


def part_of(number: int) -> pa.Table:
    """Return rows of one file. Other files have the same values of `k`."""
    rows = spark_data.table(number).slice(0, ROWS)
    keys = [number * 10 + row % 25 for row in range(rows.num_rows)]
    return rows.append_column("k", pa.array(keys, pa.int64()))


@dataclass
class Lake:
    """A relation of files, and the changes that may happen to it."""

    spark: SparkSession
    kind: str
    folder: Path

    @property
    def name(self) -> str:
        return f"lake_{self.kind}"

    def make(self) -> None:
        if self.kind in ("folder", "partitioned"):
            for number in range(FILES):
                self._write(number, part_of(number))
        else:
            frame = self._rows(range(FILES))
            writer = frame.repartition(FILES, "row").write.option("path", str(self.folder))
            is_bucketed = self.kind == "bucketed"
            writer = writer.bucketBy(3, "k") if is_bucketed else writer.partitionBy("p")
            writer.saveAsTable(self.name)
        self.index()

    def index(self) -> None:
        index_type = "HASH" if self.kind in ("folder", "table") else "BLOOMFILTER"
        zb.dataset(str(self.folder)).create_scalar_index(
            [*spark_data.INDEXED, "k"], index_type, number_of_items=20, spark=False
        )

    def open(self) -> None:
        """Register the current files as a view or table under the name of the relation."""
        if self.kind in ("folder", "partitioned"):
            self.spark.read.parquet(str(self.folder)).createOrReplaceTempView(self.name)
        else:
            self.spark.sql(f"REFRESH TABLE {self.name}")

    def change(self, number: int) -> None:
        """Add one file, change one, and delete one."""
        if self.kind in ("folder", "partitioned"):
            self._write(number, part_of(number))
        else:
            self._rows([number]).coalesce(1).write.insertInto(self.name)
        files = sorted(self.folder.rglob("*.parquet"))
        changed, deleted = files[1], files[-2]
        # A part of the rows of a bucket belongs to the same bucket.
        pq.write_table(pq.ParquetFile(changed).read().slice(5), changed)
        changed.with_name(f".{changed.name}.crc").unlink(missing_ok=True)
        deleted.unlink()

    def drop(self) -> None:
        if self.kind in ("folder", "partitioned"):
            self.spark.catalog.dropTempView(self.name)
        else:
            self.spark.sql(f"DROP TABLE IF EXISTS {self.name}")

    def _rows(self, numbers) -> DataFrame:
        tables = [
            part_of(number).append_column("p", pa.array([number % 3] * ROWS, pa.int64()))
            for number in numbers
        ]
        return self.spark.createDataFrame(pa.concat_tables(tables))

    def _write(self, number: int, rows: pa.Table) -> None:
        if self.kind == "partitioned":
            path = self.folder / f"p={number % 3}" / f"{number}.parquet"
        else:
            path = self.folder / f"{number}.parquet"
            rows = rows.append_column("p", pa.array([number % 3] * ROWS, pa.int64()))
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows, path, row_group_size=25)


# Queries over two relations, with two conditions for each.

SQL = {
    "where": "SELECT * FROM {a} WHERE {p}",
    "columns": "SELECT row, name FROM {a} WHERE {p}",
    "aggregate": "SELECT p, count(*), max(name), sum(row) FROM {a} WHERE {p} GROUP BY p",
    "having": "SELECT k, count(*) n FROM {a} WHERE {p} GROUP BY k HAVING k % 2 = 0",
    "distinct": "SELECT DISTINCT k, flag FROM {a} WHERE {p}",
    "self-join": "SELECT l.row, r.row FROM {a} l JOIN {a} r ON l.k = r.k "
    "WHERE (SELECT max(row) FROM {a} WHERE {p}) = l.row OR r.id = 5",
    "two branches": "SELECT one.row, two.row FROM (SELECT * FROM {a} WHERE {p}) one "
    "JOIN (SELECT * FROM {a} WHERE {q}) two ON one.k = two.k",
    "join": "SELECT one.row, two.row, two.p FROM (SELECT * FROM {a} WHERE {p}) one "
    "JOIN {b} two ON one.k = two.k AND one.p = two.p",
    "left join": "SELECT one.row, two.row FROM (SELECT * FROM {a} WHERE {p}) one "
    "LEFT JOIN (SELECT * FROM {b} WHERE {q}) two ON one.k = two.k",
    "full join": "SELECT one.row, two.row FROM (SELECT * FROM {a} WHERE {p}) one "
    "FULL JOIN (SELECT * FROM {b} WHERE {q}) two ON one.k = two.k",
    "anti join": "SELECT one.row FROM {a} one LEFT ANTI JOIN (SELECT * FROM {b} WHERE {q}) two "
    "ON one.k = two.k WHERE {p}",
    "in": "SELECT row FROM {a} WHERE k IN (SELECT k FROM {b} WHERE {q}) AND ({p})",
    "not in": "SELECT row FROM {a} WHERE k NOT IN (SELECT k FROM {b} WHERE {q}) OR ({p})",
    "exists": "SELECT row FROM {a} one WHERE EXISTS "
    "(SELECT 1 FROM {b} two WHERE two.k = one.k AND ({q})) AND ({p})",
    "scalar": "SELECT row, (SELECT count(*) FROM {b} WHERE {q}) c, "
    "(SELECT max(row) FROM {b} WHERE {p}) m FROM {a} WHERE {p}",
    "union all": "SELECT row FROM {a} WHERE {p} UNION ALL SELECT row FROM {b} WHERE {q} "
    "UNION ALL SELECT row FROM {a} WHERE {q}",
    "filter above a union": "SELECT * FROM (SELECT * FROM {a} UNION ALL SELECT * FROM {a}) "
    "WHERE {p}",
    "except": "SELECT row FROM {a} WHERE {p} EXCEPT SELECT row FROM {a} WHERE {q}",
    "intersect": "SELECT k FROM {a} WHERE {p} INTERSECT SELECT k FROM {b} WHERE {q}",
    "window": "SELECT * FROM (SELECT row, k, id, name, x, f, d, t, n, b, dec, small, flag, st, "
    "row_number() OVER (PARTITION BY k ORDER BY row) r FROM {a}) WHERE {p}",
    "limit": "SELECT row FROM {a} WHERE {p} ORDER BY row LIMIT 7",
    "filter above a limit": "SELECT row FROM (SELECT * FROM {a} ORDER BY row LIMIT 90) WHERE {p}",
    "common tables": "WITH c AS (SELECT * FROM {a} WHERE {p}), d AS (SELECT * FROM c WHERE {q}) "
    "SELECT c.row, d.row FROM c JOIN d ON c.k = d.k",
    "explode": "SELECT row, e FROM {a} LATERAL VIEW explode(array(k, id)) t AS e WHERE {p}",
    "rollup": "SELECT p, flag, count(*) FROM {a} WHERE {p} GROUP BY ROLLUP (p, flag)",
    "partitions": "SELECT row, p FROM {a} WHERE p = 1 AND ({p})",
    "partitions of a join": "SELECT one.row, two.row FROM {b} one "
    "JOIN (SELECT * FROM {a} WHERE {p}) two ON one.p = two.p WHERE two.k < 30 AND one.k < 12",
    "lateral": "SELECT one.row, w FROM {a} one, "
    "LATERAL (SELECT max(row) w FROM {b} two WHERE two.k = one.k AND two.id > 5) WHERE {p}",
}


def two_wheres(a, b, p, q):
    """Return queries in which parts of one frame have different filters."""
    return a.where(p).select("row").union(a.where(q).select("row")).union(a.select("row"))


FRAMES = {
    "where where": lambda a, b, p, q: a.where(p).where(q),
    "two wheres": two_wheres,
    "semi join": lambda a, b, p, q: a.where(p).join(b.where(q), "k", "left_semi"),
    "broadcast": lambda a, b, p, q: a.join(sf.broadcast(b.where(q).select("k", "p")), ["k", "p"]),
    "drop duplicates": lambda a, b, p, q: a.where(p).select("k", "p").dropDuplicates(),
    "aggregate of a join": lambda a, b, p, q: (
        a.where(p).join(b, "p").groupBy("p").agg(sf.count("*"), sf.min(b["row"]))
    ),
    "repartition": lambda a, b, p, q: a.repartition(3, "k").where(p).sortWithinPartitions("row"),
    "pivot": lambda a, b, p, q: a.where(p).groupBy("k").pivot("p", [0, 1, 2]).count(),
    "union by name": lambda a, b, p, q: (
        a.select("row", "id").unionByName(b.select("id", "row")).where("id IN (5, 12, 77)")
    ),
    "metadata": lambda a, b, p, q: a.where(p).select("row", "_metadata.row_index"),
    "old reference": lambda a, b, p, q: a.where(p).where(a["k"] > 11).select(a["row"]),
    "count": lambda a, b, p, q: a.where(p).groupBy().count(),
}


def key_condition(dice: random.Random) -> str:
    """Return a condition that only some files can meet."""
    keys = [str(dice.randrange(-5, FILES * 10 + 40)) for _ in range(dice.randint(1, 3))]
    return f"k IN ({', '.join(keys)})" if len(keys) > 1 else f"k = {keys[0]}"


def condition(dice: random.Random) -> str:
    kind = dice.random()
    if kind < 0.4:
        return key_condition(dice)
    other = spark_data.condition(dice)
    return f"{key_condition(dice)} AND ({other})" if kind < 0.7 else other


def drawn(dice: random.Random):
    """Return a query over two named relations, and its text."""
    p, q = condition(dice), condition(dice)
    if dice.random() < 0.6:
        form = dice.choice(list(SQL))

        def from_text(spark, a, b):
            return spark.sql(SQL[form].format(a=a, b=b, p=f"({p})", q=f"({q})"))

        return from_text, f"{form}: {p} | {q}"
    form = dice.choice(list(FRAMES))

    def from_frames(spark, a, b):
        return FRAMES[form](spark.table(a), spark.table(b), p, q)

    return from_frames, f"{form}: {p} | {q}"


@pytest.fixture(scope="module")
def lakes(spark, tmp_path_factory):
    path = tmp_path_factory.mktemp("transparent")
    new_lakes = [Lake(spark, kind, path / kind) for kind in KINDS]
    tables = {
        "spark.sql.parquet.filterPushdown": "false",
        "spark.sql.shuffle.partitions": "2",
        # PyArrow reads INT96 as nanoseconds.
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    }
    with settings(spark, **tables):
        for lake in new_lakes:
            lake.make()
        yield new_lakes
    for lake in new_lakes:
        lake.drop()


@pytest.mark.parametrize("moment", range(len(MOMENTS)))
def test_an_enabled_session_returns_the_rows_of_a_disabled_one(spark, lakes, moment):
    dice = random.Random(moment)
    for number, lake in enumerate(lakes):
        if MOMENTS[moment].startswith("stale"):
            lake.change(10 * moment + number)
        elif moment:
            zb.dataset(str(lake.folder)).optimize.optimize_indices(spark=False)
        lake.open()
    rows_read = {"on": 0, "off": 0}
    compared = 0
    while compared < -(-QUERIES // len(MOMENTS)):
        query, query_text = drawn(dice)
        one, other = dice.choice(lakes), dice.choice(lakes)
        adaptive = str(dice.random() < 0.5).lower()
        with settings(spark, **{"spark.sql.adaptive.enabled": adaptive}):
            try:
                off = query(spark, one.name, other.name)
                wanted = rows(off)
            except PySparkException:
                # Spark refuses this query too.
                continue
            with enabled(spark), warnings.catch_warnings():
                warnings.simplefilter("ignore", StaleIndexWarning)
                on = query(spark, one.name, other.name)
                result = rows(on)
        case = f"{MOMENTS[moment]}, {one.kind} and {other.kind}, adaptive {adaptive}: {query_text}"
        assert result == wanted, case
        counts = {"on": sum(files_read(on)), "off": sum(files_read(off))}
        assert counts["on"] <= counts["off"], case
        for switch, count in counts.items():
            rows_read[switch] += count
        compared += 1
    assert rows_read["on"] < 0.8 * rows_read["off"], rows_read
