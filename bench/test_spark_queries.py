"""Run queries over the tables of TPC-H under `enable`, compared with Spark alone.

The tables are in the layout of tpchgen-cli, lineitem in eight files, and all columns by which the
queries join have an index. The queries are about the questions of TPC-H. Few of them choose files,
so this measures what an index costs when it cannot help.
"""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
import time
from pathlib import Path

import pytest
from support.spark_data import settings

import zonebloom as zb
import zonebloom.spark as zs
from bench.conftest import NOTES
from bench.data import DATA_FOLDER

_LINEITEM_ROWS = 6_000_000
_PARTS = {"lineitem": 8, "orders": 4, "partsupp": 2}
_INDEXED = {
    "customer": ["c_custkey", "c_nationkey"],
    "lineitem": ["l_orderkey", "l_partkey", "l_suppkey"],
    "nation": ["n_nationkey"],
    "orders": ["o_orderkey", "o_custkey"],
    "part": ["p_partkey"],
    "partsupp": ["ps_partkey", "ps_suppkey"],
    "region": ["r_regionkey"],
    "supplier": ["s_suppkey", "s_nationkey"],
}

QUERIES = {
    "prices": """
        SELECT l_returnflag, l_linestatus, sum(l_quantity), avg(l_discount), count(*)
        FROM lineitem WHERE l_shipdate <= DATE'1998-09-01' GROUP BY ALL""",
    "cheapest supplier": """
        WITH offers AS (
            SELECT * FROM partsupp JOIN supplier ON ps_suppkey = s_suppkey
            JOIN nation ON s_nationkey = n_nationkey
            JOIN region ON n_regionkey = r_regionkey WHERE r_name = 'EUROPE')
        SELECT s_name, n_name, p_partkey, o.ps_supplycost FROM part
        JOIN offers o ON p_partkey = o.ps_partkey
        JOIN (SELECT ps_partkey, min(ps_supplycost) least FROM offers GROUP BY ps_partkey) m
            ON m.ps_partkey = p_partkey AND o.ps_supplycost = m.least
        WHERE p_size = 15 AND p_type LIKE '%BRASS'""",
    "unshipped orders": """
        SELECT l_orderkey, sum(l_extendedprice * (1 - l_discount)) revenue, o_orderdate
        FROM customer JOIN orders ON c_custkey = o_custkey JOIN lineitem ON l_orderkey = o_orderkey
        WHERE c_mktsegment = 'BUILDING' AND o_orderdate < DATE'1995-03-15'
            AND l_shipdate > DATE'1995-03-15'
        GROUP BY l_orderkey, o_orderdate ORDER BY revenue DESC, l_orderkey LIMIT 10""",
    "late orders": """
        SELECT o_orderpriority, count(*) FROM orders
        WHERE o_orderdate >= DATE'1993-07-01' AND o_orderdate < DATE'1993-10-01' AND EXISTS (
            SELECT 1 FROM lineitem WHERE l_orderkey = o_orderkey AND l_commitdate < l_receiptdate)
        GROUP BY o_orderpriority""",
    "local suppliers": """
        SELECT n_name, sum(l_extendedprice * (1 - l_discount)) FROM customer
        JOIN orders ON c_custkey = o_custkey JOIN lineitem ON l_orderkey = o_orderkey
        JOIN supplier ON l_suppkey = s_suppkey AND c_nationkey = s_nationkey
        JOIN nation ON s_nationkey = n_nationkey JOIN region ON n_regionkey = r_regionkey
        WHERE r_name = 'ASIA' AND year(o_orderdate) = 1994 GROUP BY n_name""",
    "discounts": """
        SELECT sum(l_extendedprice * l_discount) FROM lineitem
        WHERE l_shipdate >= DATE'1994-01-01' AND l_shipdate < DATE'1995-01-01'
            AND l_discount BETWEEN 0.05 AND 0.07 AND l_quantity < 24""",
    "trade of two nations": """
        SELECT a.n_name AS seller, b.n_name AS buyer, year(l_shipdate), sum(l_extendedprice)
        FROM supplier JOIN lineitem ON s_suppkey = l_suppkey JOIN orders ON o_orderkey = l_orderkey
        JOIN customer ON c_custkey = o_custkey JOIN nation a ON s_nationkey = a.n_nationkey
        JOIN nation b ON c_nationkey = b.n_nationkey
        WHERE (a.n_name, b.n_name) IN (('FRANCE', 'GERMANY'), ('GERMANY', 'FRANCE'))
            AND l_shipdate BETWEEN DATE'1995-01-01' AND DATE'1996-12-31' GROUP BY ALL""",
    "share of a market": """
        SELECT year(o_orderdate), sum(if(b.n_name = 'BRAZIL', l_extendedprice, 0)), count(*)
        FROM part JOIN lineitem ON p_partkey = l_partkey JOIN supplier ON s_suppkey = l_suppkey
        JOIN orders ON l_orderkey = o_orderkey JOIN customer ON o_custkey = c_custkey
        JOIN nation a ON c_nationkey = a.n_nationkey JOIN region ON a.n_regionkey = r_regionkey
        JOIN nation b ON s_nationkey = b.n_nationkey
        WHERE r_name = 'AMERICA' AND p_type = 'ECONOMY ANODIZED STEEL'
            AND o_orderdate BETWEEN DATE'1995-01-01' AND DATE'1996-12-31' GROUP BY ALL""",
    "profit of a kind of part": """
        SELECT n_name, year(o_orderdate), sum(l_extendedprice - ps_supplycost * l_quantity)
        FROM part JOIN lineitem ON p_partkey = l_partkey JOIN supplier ON s_suppkey = l_suppkey
        JOIN partsupp ON ps_suppkey = l_suppkey AND ps_partkey = l_partkey
        JOIN orders ON o_orderkey = l_orderkey JOIN nation ON s_nationkey = n_nationkey
        WHERE p_name LIKE '%green%' GROUP BY ALL""",
    "returned goods": """
        SELECT c_custkey, c_name, sum(l_extendedprice * (1 - l_discount)) revenue, n_name
        FROM customer JOIN orders ON c_custkey = o_custkey JOIN lineitem ON l_orderkey = o_orderkey
        JOIN nation ON c_nationkey = n_nationkey
        WHERE o_orderdate >= DATE'1993-10-01' AND o_orderdate < DATE'1994-01-01'
            AND l_returnflag = 'R'
        GROUP BY c_custkey, c_name, n_name ORDER BY revenue DESC, c_custkey LIMIT 20""",
    "important stock": """
        SELECT ps_partkey, sum(ps_supplycost * ps_availqty) worth FROM partsupp
        JOIN supplier ON ps_suppkey = s_suppkey JOIN nation ON s_nationkey = n_nationkey
        WHERE n_name = 'GERMANY' GROUP BY ps_partkey ORDER BY worth DESC, ps_partkey LIMIT 50""",
    "ways of shipping": """
        SELECT l_shipmode, count_if(o_orderpriority IN ('1-URGENT', '2-HIGH')), count(*)
        FROM orders JOIN lineitem ON o_orderkey = l_orderkey
        WHERE l_shipmode IN ('MAIL', 'SHIP') AND l_commitdate < l_receiptdate
            AND l_shipdate < l_commitdate AND year(l_receiptdate) = 1994 GROUP BY l_shipmode""",
    "orders of customers": """
        SELECT num_orders, count(*) FROM (
            SELECT c_custkey, count(o_orderkey) num_orders FROM customer
            LEFT JOIN orders ON c_custkey = o_custkey AND o_comment NOT LIKE '%special%requests%'
            GROUP BY c_custkey) GROUP BY num_orders""",
    "promotions": """
        SELECT sum(if(p_type LIKE 'PROMO%', l_extendedprice, 0)), sum(l_extendedprice)
        FROM lineitem JOIN part ON l_partkey = p_partkey
        WHERE l_shipdate >= DATE'1995-09-01' AND l_shipdate < DATE'1995-10-01'""",
    "best supplier": """
        WITH revenue AS (
            SELECT l_suppkey, sum(l_extendedprice * (1 - l_discount)) total FROM lineitem
            WHERE l_shipdate >= DATE'1996-01-01' AND l_shipdate < DATE'1996-04-01'
            GROUP BY l_suppkey)
        SELECT s_suppkey, s_name, total FROM supplier JOIN revenue ON s_suppkey = l_suppkey
        WHERE total = (SELECT max(total) FROM revenue)""",
    "suppliers of parts": """
        SELECT p_brand, p_size, count(DISTINCT ps_suppkey) FROM partsupp
        JOIN part ON p_partkey = ps_partkey
        WHERE p_brand <> 'Brand#45' AND p_size IN (49, 14, 23, 45) AND ps_suppkey NOT IN (
            SELECT s_suppkey FROM supplier WHERE s_comment LIKE '%Customer%Complaints%')
        GROUP BY ALL""",
    "small orders": """
        SELECT sum(l_extendedprice) FROM lineitem JOIN part ON p_partkey = l_partkey
        WHERE p_brand = 'Brand#23' AND p_container = 'MED BOX' AND l_quantity < (
            SELECT 0.2 * avg(l_quantity) FROM lineitem WHERE l_partkey = p_partkey)""",
    "large orders": """
        SELECT c_name, o_orderkey, sum(l_quantity) FROM customer
        JOIN orders ON c_custkey = o_custkey JOIN lineitem ON o_orderkey = l_orderkey
        WHERE o_orderkey IN (
            SELECT l_orderkey FROM lineitem GROUP BY l_orderkey HAVING sum(l_quantity) > 300)
        GROUP BY c_name, o_orderkey""",
    "discounted revenue": """
        SELECT sum(l_extendedprice * (1 - l_discount)) FROM lineitem
        JOIN part ON p_partkey = l_partkey
        WHERE (p_brand = 'Brand#12' AND l_quantity BETWEEN 1 AND 11 AND p_size <= 5)
            OR (p_brand = 'Brand#23' AND l_quantity BETWEEN 10 AND 20 AND p_size <= 10)""",
    "suppliers with stock": """
        SELECT s_name FROM supplier JOIN nation ON s_nationkey = n_nationkey
        WHERE n_name = 'CANADA' AND s_suppkey IN (
            SELECT ps_suppkey FROM partsupp WHERE ps_partkey IN (
                SELECT p_partkey FROM part WHERE p_name LIKE 'forest%'))""",
    "suppliers who kept orders waiting": """
        SELECT s_name, count(*) FROM supplier JOIN lineitem a ON s_suppkey = a.l_suppkey
        JOIN orders ON o_orderkey = a.l_orderkey JOIN nation ON s_nationkey = n_nationkey
        WHERE o_orderstatus = 'F' AND a.l_receiptdate > a.l_commitdate
            AND n_name = 'SAUDI ARABIA' AND EXISTS (
            SELECT 1 FROM lineitem b
            WHERE b.l_orderkey = a.l_orderkey AND b.l_suppkey <> a.l_suppkey)
        GROUP BY s_name""",
    "customers without orders": """
        SELECT substring(c_phone, 1, 2) code, count(*), sum(c_acctbal) FROM customer
        WHERE substring(c_phone, 1, 2) IN ('13', '31', '23') AND c_acctbal > 0
            AND NOT EXISTS (SELECT 1 FROM orders WHERE o_custkey = c_custkey) GROUP BY code""",
}

# The seconds of the first run of each query with an index, and of Spark's next run.
FIRST_RUNS: list[tuple[float, float]] = []


@pytest.fixture(scope="module")
def tables(request: pytest.FixtureRequest) -> Path:
    """Write the tables of TPC-H, with an index on each column of `_INDEXED`."""
    program = shutil.which("tpchgen-cli", path=sysconfig.get_path("scripts"))
    assert program is not None
    scale = request.config.getoption("--rows") / _LINEITEM_ROWS
    folder = DATA_FOLDER / f"tpch-{scale:.3g}" / "tables"
    if not (folder / "_done").exists():
        for name, columns in _INDEXED.items():
            options = [f"-s={scale:.3g}", f"--tables={name}", f"--output-dir={folder}"]
            options.append(f"--parts={_PARTS.get(name, 1)}")
            subprocess.run([program, "parquet", *options], check=True, capture_output=True)
            dataset = zb.dataset(folder / name)
            for column in columns:
                dataset.create_scalar_index(column, spark=False)
        (folder / "_done").touch()
    return folder


@pytest.fixture(scope="module")
def sessions(spark, tables: Path):
    """Yield a session with `enable` and one without. Both have the tables as views."""
    enabled = spark.newSession()
    for session in (enabled, spark):
        for name in _INDEXED:
            session.read.parquet(str(tables / name)).createOrReplaceTempView(name)
    zs.enable(enabled)
    yield enabled, spark
    zs.disable(enabled)
    if not FIRST_RUNS:
        return
    ours, theirs = map(sum, zip(*FIRST_RUNS, strict=True))
    NOTES.append(
        f"{len(FIRST_RUNS)} queries: the first runs with an index take "
        f"{ours / theirs:.2f} of the time of Spark's second runs."
    )


@pytest.mark.parametrize("adaptive", [True, False], ids=["AQE on", "AQE off"])
@pytest.mark.parametrize("name", QUERIES)
def test_query_with_enable(versus, sessions, name: str, adaptive: bool):
    """Run a query again and again in both sessions. The rows must be the same."""
    seconds, rows = [], []

    def run_in(session):
        def run() -> None:
            with settings(session, **{"spark.sql.adaptive.enabled": adaptive}):
                start = time.perf_counter()
                result = session.sql(QUERIES[name]).collect()
            seconds.append(time.perf_counter() - start)
            rows.append(sorted(map(str, result)))

        return run

    enabled, plain = map(run_in, sessions)
    plain()
    versus(enabled, {"Spark": plain}, rounds=5, in_turn=True)
    assert rows[0] and all(result == rows[0] for result in rows)
    if adaptive:
        FIRST_RUNS.append((seconds[1], seconds[2]))
