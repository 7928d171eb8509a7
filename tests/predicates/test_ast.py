"""Check the predicate tree: its text, equality, and the functions that walk over it."""

from __future__ import annotations

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
from zonebloom.predicates.ast import simplify

ID = Equals(("id",), pa.scalar(42))
NAMES = IsIn(("name",), pa.array(["a", "b", *"cdefghi"]))
LEAF = IsNull(("st", "x"))
RANGE = Unknown("id > 5", "a range")


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


def test_columns_and_unknowns_of_a_predicate_are_listed():
    other = Unknown("f(x)", "a function")
    tree = Or((And((ID, RANGE)), Not(LEAF), Not(other), NAMES, Constant(True)))
    assert probed_columns(tree) == {("id",), ("st", "x"), ("name",)}
    assert unknowns(tree) == [RANGE, other]


def test_many_inequalities_become_one_set():
    terms = tuple(Not(Equals(("id",), pa.scalar(number))) for number in range(100))
    assert simplify(And(terms)) == Not(IsIn(("id",), pa.array(range(100))))


SCHEMA = pa.schema({"id": pa.int64(), "name": pa.string()})


@pytest.mark.parametrize("filter", [42, {"id": 42}, b"id = 42", [], [("id", "~", 1)], [1], ()])
def test_translate_error_lists_accepted_kinds(filter):
    with pytest.raises(FilterError, match=r"a SQL string .* a pyarrow.compute Expression"):
        translate_filter(filter, SCHEMA)
