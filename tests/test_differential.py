"""The same filter in every language gives the rows that plain Python finds.

A filter is drawn as a tree; each language writes it in its own words, with SQL's three values
where the languages agree on them. Values on which engines differ by design (NaN) have tests of
their own.
"""

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from helpers import cases

import zonebloom as zb

PARTS = 4
FILTERS = cases(250)
ROWS = 3_000
DAY = dt.date(2024, 1, 1)
UTC = dt.UTC

# Of each column: its type, and the value of a number.
COLUMNS = {
    "id": (pa.int64(), lambda n: n),
    "small": (pa.int8(), lambda n: n % 100),
    "unsigned": (pa.uint32(), lambda n: n),
    "price": (pa.decimal128(9, 2), lambda n: Decimal(n) / 100),
    "share": (pa.float64(), lambda n: n / 8),
    "name": (pa.string(), lambda n: f"n{n % 700}'\"é"),
    "raw": (pa.binary(), lambda n: n.to_bytes(3, "big")),
    "day": (pa.date32(), lambda n: DAY + dt.timedelta(n % 900)),
    "at": (pa.timestamp("us"), lambda n: dt.datetime(2024, 1, 1) + dt.timedelta(microseconds=n)),
    "instant": (
        pa.timestamp("ms", "UTC"),
        lambda n: dt.datetime(2024, 1, 1, tzinfo=UTC) + dt.timedelta(milliseconds=n),
    ),
    "odd name.x": (pa.int32(), lambda n: n % 1_500),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    rng = random.Random(5)
    drawn = {
        name: [None if rng.random() < 0.05 else value(rng.randrange(2_000)) for _ in range(ROWS)]
        for name, (_, value) in COLUMNS.items()
    }
    drawn["inner"] = [None if rng.random() < 0.05 else rng.randrange(900) for _ in range(ROWS)]
    table = pa.table(
        {
            **{name: pa.array(drawn[name], kind) for name, (kind, _) in COLUMNS.items()},
            "st": pa.array(
                [None if each is None else {"inner": each} for each in drawn["inner"]],
                pa.struct({"inner": pa.int64()}),
            ),
            "row": pa.array(range(ROWS)),
        }
    )
    folder = tmp_path_factory.mktemp("differential")
    for number in range(3):
        pq.write_table(
            table.slice(number * 1_000, 1_000),
            folder / f"{number}.parquet",
            write_page_index=True,
            max_rows_per_page=100,
            row_group_size=500,
        )
    ds = zb.dataset(str(folder))
    ds.create_scalar_index([*COLUMNS, "st.inner"], spark=False, number_of_items=50)
    return ds, drawn


def draw(rng: random.Random, depth: int = 0) -> tuple:
    kind = rng.random()
    if depth < 3 and kind < 0.45:
        terms = [draw(rng, depth + 1) for _ in range(rng.randint(2, 3))]
        return (rng.choice(["and", "or"]), *terms)
    if depth < 3 and kind < 0.55:
        return ("not", draw(rng, depth + 1))
    name = rng.choice([*COLUMNS, "inner"])
    value = COLUMNS[name][1] if name in COLUMNS else int

    def literal():
        return value(rng.randrange(2_000))

    operator = rng.choice(["=", "=", "=", "in", "in", "null", "<>", "<", ">=", "between"])
    if operator == "in":
        return ("in", name, [literal() for _ in range(rng.randint(1, 5))])
    if operator == "null":
        return ("null", name)
    if operator == "between":
        low = literal()
        return ("between", name, low, rng.choice([low, literal()]))
    return (operator, name, literal())


def truth(tree: tuple, drawn: dict) -> tuple[np.ndarray, np.ndarray]:
    """Which rows a filter is true for, and which it is false for; it is null for the others."""
    kind = tree[0]
    if kind == "not":
        true, false = truth(tree[1], drawn)
        return false, true
    if kind in ("and", "or"):
        true, false = zip(*(truth(each, drawn) for each in tree[1:]), strict=True)
        if kind == "and":
            return np.logical_and.reduce(true), np.logical_or.reduce(false)
        return np.logical_or.reduce(true), np.logical_and.reduce(false)
    values = drawn[tree[1]]
    null = np.array([value is None for value in values])
    if kind == "null":
        return null, ~null
    found = np.array([value is not None and holds(tree, value) for value in values])
    return found, ~found & ~null


def holds(tree: tuple, value) -> bool:
    match tree[0]:
        case "=":
            return value == tree[2]
        case "<>":
            return value != tree[2]
        case "<":
            return value < tree[2]
        case ">=":
            return value >= tree[2]
        case "in":
            return value in tree[2]
        case "between":
            return tree[2] <= value <= tree[3]
    raise AssertionError(tree)


# SQL


def sql_literal(value) -> str:
    match value:
        case str():
            return "'" + value.replace("'", "''") + "'"
        case bytes():
            return f"X'{value.hex()}'"
        case dt.datetime():
            return f"TIMESTAMP '{value}'"
        case dt.date():
            return f"DATE '{value}'"
    return str(value)


def sql(tree: tuple, rng: random.Random) -> str:
    kind = tree[0]
    if kind == "not":
        return f"NOT ({sql(tree[1], rng)})"
    if kind in ("and", "or"):
        return f" {kind.upper()} ".join(f"({sql(each, rng)})" for each in tree[1:])
    name = {"inner": "st.inner", "odd name.x": '"odd name.x"'}.get(tree[1], tree[1])
    if kind == "null":
        return f"{name} IS NULL"
    literals = [sql_literal(each) for each in (tree[2] if kind == "in" else tree[2:])]
    if kind == "in":
        return f"{name} IN ({', '.join(literals)})"
    if kind == "between":
        return f"{name} BETWEEN {literals[0]} AND {literals[1]}"
    if kind == "=" and rng.random() < 0.3:
        return f"{literals[0]} = {name}"
    return f"{name} {kind} {literals[0]}"


# PyArrow and Polars: one walk, since both have operators of Python's


def arrow_literal(name: str, value):
    return pa.scalar(value, COLUMNS[name][0] if name in COLUMNS else pa.int64())


def arrow(tree: tuple) -> pc.Expression:
    kind = tree[0]
    if kind == "not":
        return ~arrow(tree[1])
    if kind in ("and", "or"):
        first, *others = (arrow(each) for each in tree[1:])
        for each in others:
            first = first & each if kind == "and" else first | each
        return first
    name = tree[1]
    field = pc.field("st", "inner") if name == "inner" else pc.field(name)
    if kind == "null":
        return field.is_null()
    if kind == "in":
        values = pa.array(tree[2], arrow_literal(name, tree[2][0]).type)
        # PyArrow says false where SQL says null; NOT makes that a difference.
        return field.isin(values) | (field.is_null() & pc.scalar(pa.scalar(None, pa.bool_())))
    return operated(kind, field, [arrow_literal(name, each) for each in tree[2:]])


def polars(tree: tuple) -> pl.Expr:
    kind = tree[0]
    if kind == "not":
        return ~polars(tree[1])
    if kind in ("and", "or"):
        first, *others = (polars(each) for each in tree[1:])
        for each in others:
            first = first & each if kind == "and" else first | each
        return first
    name = tree[1]
    field = pl.col("st").struct.field("inner") if name == "inner" else pl.col(name)
    if kind == "null":
        return field.is_null()
    literals = [polars_literal(name, each) for each in (tree[2] if kind == "in" else tree[2:])]
    if kind == "in":
        first, *others = (field == each for each in literals)
        return pl.any_horizontal(first, *others)
    return operated(kind, field, literals)


def polars_literal(name: str, value):
    kind = {"price": pl.Decimal(9, 2), "instant": pl.Datetime("ms", "UTC")}.get(name)
    return pl.lit(value, kind)


def operated(kind: str, field, literals):
    match kind:
        case "=":
            return field == literals[0]
        case "<>":
            return field != literals[0]
        case "<":
            return field < literals[0]
        case ">=":
            return field >= literals[0]
        case "between":
            return (field >= literals[0]) & (field <= literals[1])


# PyArrow's tuples: a disjunction of conjunctions, without NOT


def dnf(tree: tuple) -> list[list[tuple]] | None:
    kind = tree[0]
    if kind == "or":
        parts = [dnf(each) for each in tree[1:]]
        return None if None in parts else [each for part in parts for each in part]
    if kind == "and":
        found: list[list[tuple]] = [[]]
        for each in tree[1:]:
            part = dnf(each)
            if part is None:
                return None
            found = [left + right for left in found for right in part]
        return found
    if kind in ("not", "null") or tree[1] == "inner":
        return None
    if kind == "between":
        return [[(tree[1], ">=", tree[2]), (tree[1], "<=", tree[3])]]
    return [[(tree[1], {"<>": "!="}.get(kind, kind), tree[2])]]


@pytest.mark.parametrize("part", range(PARTS))
def test_every_language_finds_the_same_rows(data, part):
    ds, drawn = data
    rng = random.Random(part)
    skipped = in_tuples = 0
    for number in range(FILTERS):
        tree = draw(rng)
        wanted = np.flatnonzero(truth(tree, drawn)[0]).tolist()
        written = {"SQL": sql(tree, rng), "PyArrow": arrow(tree), "Polars": polars(tree)}
        tuples = dnf(tree)
        if tuples is not None:
            written["DNF"] = tuples
            in_tuples += 1
        for language, filter in written.items():
            found = ds.to_table(columns=["row"], filter=filter)["row"].to_pylist()
            assert found == wanted, (number, language, written["SQL"])
        kept = [len(ds.search(filter).at_most) for filter in written.values()]
        assert min(kept) >= len(wanted)
        skipped += max(kept) < ROWS
    # The test is of the index as well: many a filter has to leave rows out, in each language.
    assert skipped > FILTERS // 4
    assert in_tuples > FILTERS // 4
