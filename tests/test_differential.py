"""Check that a filter gives the rows that plain Python finds, in every language.

Filters follow SQL's three-valued logic. A language is left out where it differs from SQL. NaN,
which engines treat differently by design, has its own tests.
"""

from __future__ import annotations

import contextlib
import random
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from e2e_helpers import array_of
from helpers import cases
from trust import filters
from trust.lakes import Column

import zonebloom as zb

PARTS = 4
FILTERS = cases(250)
ROWS = 3_000
DAY = 19_723

# The type of each column, and a function that makes its value from a number.
COLUMNS = {
    "id": (pa.int64(), lambda n: n),
    "small": (pa.int8(), lambda n: n % 100),
    "unsigned": (pa.uint32(), lambda n: n),
    "price": (pa.decimal128(9, 2), lambda n: Decimal(n) / 100),
    "share": (pa.float64(), lambda n: n / 8),
    "name": (pa.string(), lambda n: f"n{n % 700}'\"é"),
    "raw": (pa.binary(), lambda n: n.to_bytes(3, "big")),
    "day": (pa.date32(), lambda n: DAY + n % 900),
    "at": (pa.timestamp("us"), lambda n: DAY * 86_400 * 10**6 + n),
    "instant": (pa.timestamp("ms", "UTC"), lambda n: DAY * 86_400 * 10**3 + n),
    "odd name.x": (pa.int32(), lambda n: n % 1_500),
    "inner": (pa.int64(), lambda n: n % 900),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    rng = random.Random(5)
    columns, arrays = [], {}
    for name, (kind, value) in COLUMNS.items():
        column_values = [
            None if rng.random() < 0.05 else value(rng.randrange(2_000)) for _ in range(ROWS)
        ]
        raws = [raw for raw in dict.fromkeys(column_values) if raw is not None]
        codes = {raw: code for code, raw in enumerate(raws)}
        path = ("st", "inner") if name == "inner" else (name,)
        numbers = np.array([codes.get(raw, -1) for raw in column_values])
        columns.append(Column(".".join(path), kind, raws, numbers, path))
        arrays[name] = array_of(kind, column_values)
    inner = arrays.pop("inner")
    struct = pa.StructArray.from_arrays([inner], ["inner"], mask=inner.is_null())
    table = pa.table({**arrays, "st": struct, "row": range(ROWS)})
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
    names = [column.name for column in columns]
    # Each kind has half of the columns, and both have one.
    ds.create_scalar_index(names[::2], spark=False, number_of_items=50)
    ds.create_scalar_index(names[1::2], "HASH", spark=False, number_of_items=50)
    ds.create_scalar_index(names[0], "HASH", "hash", spark=False, number_of_items=40)
    return ds, columns


def draw(columns: list[Column], rng: random.Random, depth: int = 0) -> filters.Tree:
    kind = rng.random()
    if depth < 3 and kind < 0.45:
        terms = [draw(columns, rng, depth + 1) for _ in range(rng.randint(2, 3))]
        return (rng.choice(["and", "or"]), *terms)
    if depth < 3 and kind < 0.55:
        return ("not", draw(columns, rng, depth + 1))
    column = rng.choice(columns)
    operator = rng.choice(["=", "=", "=", "in", "in", "null", "<>", "<", ">=", "between"])
    count = {"in": rng.randint(1, 5), "null": 0, "between": 2}.get(operator, 1)
    value = COLUMNS[column.path[-1]][1]
    literals = [(column.type, value(rng.randrange(2_000))) for _ in range(count)]
    return (operator, column, literals)


def operators(tree: filters.Tree) -> set[str]:
    if tree[0] in ("and", "or", "not"):
        return {tree[0]}.union(*map(operators, tree[1:]))
    return {tree[0]}


def python_values(tuples: list[list[tuple]]) -> list[list[tuple]]:
    """Return PyArrow's tuples with Python values, as users mostly write them."""
    return [
        [(name, op, value if op == "in" else value.as_py()) for name, op, value in terms]
        for terms in tuples
    ]


class Plain(random.Random):
    """A generator that draws the simplest way to write a filter, such as a closed BETWEEN."""

    def random(self) -> float:
        return 0.5

    def choice(self, seq):
        return seq[0]


def written_in_all(tree: filters.Tree, rng: random.Random) -> dict:
    written = {"SQL": filters.sql(tree, rng), "Polars": filters.polars(tree, Plain())}
    used = operators(tree)
    if not {"not", "in"} <= used:
        # For a null, IN is false in PyArrow and null in SQL. Below a NOT this makes a difference.
        written["PyArrow"] = filters.arrow(tree)
    with contextlib.suppress(filters.NotWritten):
        written["DNF"] = python_values(filters.tuples(tree))
    return written


@pytest.mark.parametrize("part", range(PARTS))
def test_every_language_finds_the_same_rows(data, part):
    ds, columns = data
    rng = random.Random(part)
    skipped = in_tuples = 0
    for number in range(FILTERS):
        tree = draw(columns, rng)
        expected = np.flatnonzero(filters.truth(tree, ROWS)[0]).tolist()
        written = written_in_all(tree, rng)
        in_tuples += "DNF" in written
        for language, filter in written.items():
            rows = ds.to_table(columns=["row"], filter=filter)["row"].to_pylist()
            assert rows == expected, (number, language, written["SQL"])
        num_candidates = [len(ds.search(filter).at_most) for filter in written.values()]
        assert min(num_candidates) >= len(expected)
        skipped += max(num_candidates) < ROWS
    # Make sure that the index was used: in each language, many filters must rule rows out.
    assert skipped > FILTERS // 4
    assert in_tuples > FILTERS // 4
