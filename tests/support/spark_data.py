"""Rows of many types, and random conditions that Spark evaluates on them."""

from __future__ import annotations

import contextlib
import datetime
import random
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import zonebloom as zb
import zonebloom.spark as zs
from zonebloom.spark.relation import scala_items

INDEXED = ["id", "small", "name", "x", "f", "dec", "d", "t", "n", "b", "st.a"]
FILE_ROWS = 2_000
ZONE_ROWS = 250


@contextlib.contextmanager
def settings(spark, **options):
    """Change settings of a session for a while."""
    old_values = {name: spark.conf.get(name, None) for name in options}
    try:
        for name, value in options.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, value in old_values.items():
            spark.conf.unset(name) if value is None else spark.conf.set(name, value)


def table(number: int) -> pa.Table:
    """Return the rows of one file, with unique numbers in `row`."""
    generator = np.random.default_rng(number)
    rows = FILE_ROWS

    def some(values, chance=0.05):
        return [None if generator.random() < chance else value for value in values]

    ints = generator.integers(-40, 4_000, rows)
    odd = [float("nan"), -0.0, 0.0, float("inf"), float("-inf"), 1.5, 5.0]
    floats = [
        odd[i] if i < len(odd) else round(float(i) / 7, 3)
        for i in generator.integers(0, 3_000, rows)
    ]
    day = datetime.date(2024, 3, 1)
    moment = datetime.datetime(2024, 3, 30, 12)
    hours = generator.integers(0, 4_000, rows)
    return pa.table(
        {
            "row": pa.array(np.arange(rows) + number * rows, pa.int64()),
            "id": pa.array(some([int(i) for i in ints]), pa.int64()),
            "small": pa.array(some([int(i) % 30_000 for i in ints]), pa.int16()),
            "name": pa.array(some([f"n{i}" for i in ints])),
            "x": pa.array(some(floats), pa.float64()),
            "f": pa.array(some(floats), pa.float32()),
            "dec": pa.array(some([Decimal(int(i)) / 4 for i in ints]), pa.decimal128(10, 2)),
            "d": pa.array(some([day + datetime.timedelta(int(h)) for h in hours]), pa.date32()),
            "t": pa.array(
                some([moment + datetime.timedelta(hours=int(h)) for h in hours]),
                pa.timestamp("us", "UTC"),
            ),
            "n": pa.array(
                some([moment + datetime.timedelta(hours=int(h)) for h in hours]),
                pa.timestamp("us"),
            ),
            "b": pa.array(some([f"{i:04}".encode() for i in ints]), pa.binary()),
            "flag": pa.array(some([bool(i % 3) for i in ints])),
            "st": pa.array(
                some([{"a": None if i % 11 == 0 else int(i)} for i in ints]),
                pa.struct([("a", pa.int32())]),
            ),
        }
    )


def write(folder, files=3):
    """Write files with PyArrow, and index all columns that can be indexed."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(files):
        pq.write_table(
            table(number),
            folder / f"{number}.parquet",
            row_group_size=900,
            write_page_index=True,
            max_rows_per_page=100,
        )
    index(folder)
    return str(folder)


def index(folder) -> None:
    dataset = zb.dataset(str(folder))
    dataset.create_scalar_index(INDEXED, number_of_items=ZONE_ROWS, spark=False)


LITERALS = {
    "id": ["5", "-7", "5.0", "5.5", "5L", "99999999999", "99999999999999999999", "7e0", "'12'"],
    "small": ["5", "40000", "-3", "5.5", "12S", "3e1", "5D", "'17'"],
    "name": ["'n5'", "'n1234'", "'nope'", "''", "'n5 '", "'N5'", '"n7"', "'n''5'", "'n\\u0035'"],
    "x": [
        "0.0",
        "-0.0",
        "5",
        "1.5",
        "1e0",
        "0.143",
        "double('NaN')",
        "'NaN'",
        "float('inf')",
        "9D",
    ],
    "f": ["0.0", "-0.0", "5", "1.5", "0.143", "float('NaN')", "0.143F", "CAST(5 AS INT)", "1.5D"],
    "dec": ["1.25", "1.255", "7", "12.5BD", "1.25D", "999999999999", "'3.5'", "-2.50"],
    "d": ["DATE'2024-04-01'", "'2025-01-17'", "DATE '2024-4-2'", "TIMESTAMP'2024-04-05 00:00:00'"],
    "t": [
        "TIMESTAMP'2024-03-31 14:00:00Z'",
        "TIMESTAMP'2024-05-01 14:00:00'",
        "'2024-04-20 02:00:00'",
        "TIMESTAMP'2024-03-31 02:30:00'",
        "'2024-03-30 12:00:00+00:00'",
        "DATE'2024-04-02'",
        "TIMESTAMP_NTZ'2024-04-02 12:00:00'",
    ],
    "n": [
        "TIMESTAMP_NTZ'2024-04-02 12:00:00'",
        "'2024-04-05 13:00:00'",
        "TIMESTAMP'2024-04-02 12:00:00'",
        "DATE'2024-04-02'",
        "TIMESTAMP_NTZ'2024-04-02 12:00:00.000001'",
    ],
    "b": ["X'30303035'", "X'31323334'", "'0005'", "X''"],
    "flag": ["true", "false"],
    "st.a": ["5", "12", "5.5", "-1"],
}


def condition(dice: random.Random, depth: int = 0) -> str:
    """Return a random condition that Spark can evaluate on every row."""
    if depth < 3 and dice.random() < 0.45:
        kind = dice.choice(["AND", "OR", "AND", "OR", "NOT"])
        if kind == "NOT":
            return f"NOT ({condition(dice, depth + 1)})"
        parts = [f"({condition(dice, depth + 1)})" for _ in range(dice.randint(2, 3))]
        return f" {kind} ".join(parts)
    column = dice.choice(list(LITERALS))
    name = column.upper() if dice.random() < 0.1 else column

    def literal():
        return "NULL" if dice.random() < 0.06 else dice.choice(LITERALS[column])

    kind = dice.random()
    if kind < 0.5:
        sides = [name, dice.choice(["=", "=", "=", "==", "<>", "!=", "<=>"]), literal()]
        return " ".join(sides if dice.random() < 0.9 else sides[::-1])
    if kind < 0.65:
        operator = dice.choice(["<", "<=", ">", ">="])
        return f"{name} {operator} {literal()}"
    if kind < 0.85:
        items = ", ".join(literal() for _ in range(dice.randint(1, 4)))
        return f"{name} {dice.choice(['', 'NOT '])}IN ({items})"
    if kind < 0.92:
        return f"{name} {dice.choice(['', 'NOT '])}BETWEEN {literal()} AND {literal()}"
    if kind < 0.97:
        return f"{name} IS {dice.choice(['', 'NOT '])}NULL"
    return dice.choice(["flag", "upper(name) = 'N5'", "id % 7 = 3", "name LIKE 'n12'", "!flag"])


def _nodes(plan):
    yield plan
    inner = plan.executedPlan() if plan.nodeName() == "AdaptiveSparkPlan" else None
    inner = plan.plan() if "QueryStage" in plan.nodeName() else inner
    below = [inner] if inner else [*scala_items(plan.children()), *scala_items(plan.subqueries())]
    for node in below:
        yield from _nodes(node)


def files_read(frame):
    """Return the metrics of each scan of a frame that ran, without scans that were not needed."""
    return sorted(node.metrics().apply("numFiles").value() for node in scan_nodes(frame))


def scan_nodes(frame):
    """Return the nodes of the physical plan of a frame that scan Parquet files."""
    return [node for node in _plan_nodes(frame) if node.nodeName().startswith("Scan parquet")]


def shuffled_rows(frame):
    """Return the number of rows that each shuffle of a frame that ran wrote."""
    shuffles = [node for node in _plan_nodes(frame) if node.nodeName() == "Exchange"]
    return [node.metrics().apply("shuffleRecordsWritten").value() for node in shuffles]


def _plan_nodes(frame):
    return list(_nodes(frame._jdf.queryExecution().executedPlan()))


def rows(frame):
    """Return the rows of a frame in an order of their own."""
    return sorted(map(repr, frame.collect()))


@contextlib.contextmanager
def enabled(spark, **options):
    """Make all queries of a session skip files for a while."""
    zs.enable(spark, **options)
    try:
        yield
    finally:
        zs.disable(spark)
