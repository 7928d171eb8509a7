"""Check the predicate tree: its text, equality, and the functions that walk over it."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pyarrow as pa
import pytest

from zonebloom.errors import FilterError
from zonebloom.predicates import (
    And,
    Constant,
    Equals,
    IsIn,
    IsNull,
    Not,
    Or,
    Unknown,
    probed_columns,
    translate_filter,
    unknowns,
)
from zonebloom.predicates.ast import fold_predicate, simplify

ID = Equals(("id",), pa.scalar(42))
NAMES = IsIn(("name",), pa.array(["a", "b", *"cdefghi"]))
LEAF = IsNull(("st", "x"))
RANGE = Unknown("id > 5", "a range")


@pytest.mark.parametrize(
    ("predicate", "text"),
    [
        (ID, "id = 42"),
        (Equals(("a b", "c.d"), pa.scalar("it's")), "\"a b\".\"c.d\" = 'it''s'"),
        (Equals(("x",), pa.scalar(b"\x0a")), "x = X'0a'"),
        (Equals(("x",), pa.scalar(True)), "x = TRUE"),
        (Equals(("x",), pa.scalar(0, pa.date32())), "x = '1970-01-01'"),
        (NAMES, "name IN ('a', 'b', ... 7 more)"),
        (IsIn(("name",), pa.array(["a", "b", "c"])), "name IN ('a', 'b', 'c')"),
        (IsIn(("id",), pa.array([1, 2]), null_matches=True), "id IN (1, 2, NULL)"),
        (LEAF, "st.x IS NULL"),
        (Not(ID), "NOT (id = 42)"),
        (And((ID, Or((LEAF, RANGE)))), "id = 42 AND (st.x IS NULL OR id > 5)"),
        (Constant(None), "NULL"),
        (Constant(True), "TRUE"),
    ],
)
def test_predicates_have_a_readable_text(predicate, text):
    assert str(predicate) == text


def test_timestamp_after_year_9999_has_a_text():
    predicate = Equals(("t",), pa.scalar(2**60, pa.timestamp("s")))
    assert str(predicate) == f"t = {2**60} (timestamp[s])"


def test_equality_compares_arrow_values():
    assert Equals(("id",), pa.scalar(42)) == ID
    assert Equals(("id",), pa.scalar(43)) != ID
    assert Equals(("id",), pa.scalar(42, pa.int8())) != ID
    assert IsIn(("a",), pa.array([1, 2])) == IsIn(("a",), pa.array([1, 2]))
    assert IsIn(("a",), pa.array([1, 2])) != IsIn(("a",), pa.array([1, 3]))
    assert IsIn(("a",), pa.array([1, 2])) != IsIn(("a",), pa.array([1, 2]), null_matches=True)
    assert len({ID, NAMES, IsIn(NAMES.column, NAMES.values), Or((ID, NAMES))}) == 3


def test_nodes_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        ID.column = ("other",)


def test_columns_and_unknowns_of_a_predicate_are_listed():
    other = Unknown("f(x)", "a function")
    tree = Or((And((ID, RANGE)), Not(LEAF), Not(other), NAMES, Constant(True)))
    assert probed_columns(tree) == {("id",), ("st", "x"), ("name",)}
    assert unknowns(tree) == [RANGE, other]


def test_walk_handles_deep_trees():
    tree = LEAF
    for _ in range(5000):
        tree = Not(tree)
    assert probed_columns(tree) == {("st", "x")}


def test_fold_visits_leaves_in_order_including_shared_ones():
    shared = And((ID, LEAF))
    tree = Or((shared, Not(And((shared, RANGE)))))
    visited_leaves: list[str] = []
    text = fold_predicate(
        tree,
        lambda leaf: visited_leaves.append(str(leaf)) or str(leaf),
        lambda terms: f"({' & '.join(terms)})",
        lambda terms: f"({' | '.join(terms)})",
        lambda term: f"~{term}",
    )
    assert text == f"(({ID} & {LEAF}) | ~(({ID} & {LEAF}) & {RANGE}))"
    assert visited_leaves == [str(leaf) for leaf in (ID, LEAF, ID, LEAF, RANGE)]
    assert simplify(tree) == Or((shared, Not(And((ID, LEAF, RANGE)))))


def test_many_inequalities_become_one_set():
    terms = tuple(Not(Equals(("id",), pa.scalar(number))) for number in range(100))
    assert simplify(And(terms)) == Not(IsIn(("id",), pa.array(range(100))))


SCHEMA = pa.schema({"id": pa.int64(), "name": pa.string()})


def test_translate_accepts_every_kind_of_filter():
    import pyarrow.compute as pc

    assert translate_filter(None, SCHEMA) == (None, Constant(True))
    for filter in ("id = 42", pc.field("id") == 42, [("id", "=", 42)], [[("id", "==", 42)]]):
        expression, predicate = translate_filter(filter, SCHEMA)
        assert predicate == ID
        assert expression is not None
        assert expression.equals(pc.field("id") == 42)
    _, predicate = translate_filter([[("id", "=", 42)], [("name", "in", ["a", "b"])]], SCHEMA)
    assert predicate == Or((ID, IsIn(("name",), pa.array(["a", "b"]))))


@pytest.mark.parametrize("filter", [42, {"id": 42}, b"id = 42", [], [("id", "~", 1)], [1], ()])
def test_translate_error_lists_accepted_kinds(filter):
    with pytest.raises(FilterError, match=r"a SQL string .* a pyarrow.compute Expression"):
        translate_filter(filter, SCHEMA)


def test_import_loads_no_heavy_modules():
    code = (
        "import sys, zonebloom.predicates;"
        "heavy = {'sqlglot', 'polars', 'pyspark', 'pandas', 'pyarrow.dataset', 'pyarrow.parquet'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert run.stdout.strip() == "[]"
