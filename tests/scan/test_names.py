"""Test how names find columns and leaves of structs, in the same case and in another."""

import pyarrow as pa
import pytest

from zonebloom.values.columns import column_path, find_column, find_leaf, find_leaf_type

SCHEMA = pa.schema(
    {
        "id": pa.int64(),
        "ID": pa.int32(),
        "Day": pa.int16(),
        "a.b": pa.int8(),
        "s": pa.struct({"X": pa.int64(), "y.z": pa.string(), "t": pa.struct({"W": pa.int8()})}),
    }
)


@pytest.mark.parametrize(
    ("name", "meant"),
    [("id", "id"), ("ID", "ID"), ("Id", None), ("day", "Day"), ("A.B", "a.b"), ("no", None)],
)
def test_a_name_is_found_in_its_own_or_in_one_other_case(name, meant):
    assert find_column(SCHEMA.names, name) == meant


@pytest.mark.parametrize(
    ("names", "path"),
    [
        (["s", "x"], ("s", "X")),
        (["S", "T", "w"], ("s", "t", "W")),
        (["s", "y.z"], ("s", "y.z")),
        (["s", "no"], None),
        (["day", "x"], None),
    ],
)
def test_leaves_are_found_level_by_level(names, path):
    assert find_leaf(SCHEMA, names) == path


def test_an_ambiguous_name_matches_no_leaf():
    twice = pa.struct([pa.field("x", pa.int8()), pa.field("x", pa.int8())])
    assert find_leaf(pa.schema({"s": twice}), ["s", "x"]) is None
    assert find_leaf_type(pa.schema({"s": twice}), ["s", "x"]) is None


@pytest.mark.parametrize(
    ("text", "path"),
    [("a.b", ("a.b",)), ("s.X", ("s", "X")), ("s.x", ("s", "x")), ("no.x", ("no", "x"))],
)
def test_a_name_with_a_dot_wins_over_a_path(text, path):
    assert column_path(SCHEMA, text) == path


def test_names_are_compared_without_case_as_in_java():
    assert column_path(SCHEMA, "A.B", ignore_case=True) == ("a.b",)
    assert column_path(SCHEMA, "S.T.w", ignore_case=True) == ("s", "t", "W")
    assert column_path(SCHEMA, "Id", ignore_case=True) == ("Id",)
