"""Check the rows of predicates that are used as filters, against plain Python."""

from __future__ import annotations

import math
import uuid
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.helpers import cases

import zonebloom as zb
from zonebloom.errors import FilterError, InvalidArgument
from zonebloom.predicates import (
    And,
    Compares,
    Constant,
    Equals,
    IsIn,
    IsNull,
    Not,
    Or,
    Unknown,
)

ROWS = [
    {"i": i, "f": f, "s": s, "k": s, "st": st_, "row": row}
    for row, (i, f, s, st_) in enumerate(
        [
            (1, 0.0, "a", {"x": 1}),
            (2, -0.0, "b", {"x": None}),
            (None, math.nan, None, None),
            (2, None, "a", {"x": 2}),
            (3, 2.5, "", {"x": 1}),
        ]
        * 30
    )
]
TABLE = pa.Table.from_pylist(
    ROWS,
    pa.schema(
        {
            "i": pa.int32(),
            "f": pa.float64(),
            "s": pa.string(),
            "k": pa.dictionary(pa.int8(), pa.string()),
            "st": pa.struct({"x": pa.int64()}),
            "row": pa.int64(),
        }
    ),
)
PATHS = {
    ("i",): [1, 2, 3, 7],
    ("f",): [0.0, -0.0, 2.5, 9.0],
    ("s",): ["a", "", "zz"],
    ("k",): ["a", "b", "c"],
    ("st", "x"): [1, 2],
}


@pytest.fixture(scope="module")
def ds():
    opened = zb.dataset(TABLE)
    opened.create_scalar_index(["i", "f", "s", "k", "st.x"], spark=False, number_of_items=8)
    return opened


columns = st.sampled_from(list(PATHS))
leaves = columns.flatmap(
    lambda path: st.one_of(
        st.sampled_from(PATHS[path]).map(lambda v: Equals(path, pa.scalar(v))),
        st.builds(
            lambda values, null: IsIn(path, pa.array(values, pa.scalar(PATHS[path][0]).type), null),
            st.lists(st.sampled_from(PATHS[path]), max_size=3),
            st.booleans(),
        ),
        st.builds(
            lambda symbol, v: Compares(path, symbol, pa.scalar(v)),
            st.sampled_from(["<", "<=", ">", ">="]),
            st.sampled_from(PATHS[path]),
        ),
        st.just(IsNull(path)),
        st.sampled_from([True, False, None]).map(Constant),
    )
)
predicates = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(lambda terms: And(tuple(terms))),
        st.lists(inner, min_size=1, max_size=3).map(lambda terms: Or(tuple(terms))),
        inner.map(Not),
    ),
    max_leaves=6,
)


def truth(predicate, row) -> bool | None:
    """Return whether a predicate is true for a row, or None for null, as SQL defines it."""
    match predicate:
        case Constant(value):
            return value
        case Not(term):
            inner = truth(term, row)
            return None if inner is None else not inner
        case And(terms):
            results = [truth(term, row) for term in terms]
            return False if False in results else None if None in results else True
        case Or(terms):
            results = [truth(term, row) for term in terms]
            return True if True in results else None if None in results else False
    value = row
    for name in predicate.column:
        value = value and value[name] if name != predicate.column[0] else row[name]
    match predicate:
        case IsNull():
            return value is None
        case IsIn(_, values, null_matches):
            if value is None:
                return True if null_matches else None
            return value in values.to_pylist()
    if value is None:
        return None
    literal = predicate.value.as_py()
    match predicate:
        case Equals():
            return value == literal
        case Compares(_, symbol, _):
            return {"<": value < literal, "<=": value <= literal, ">": value > literal}.get(
                symbol, value >= literal
            )


@pytest.mark.slow
@settings(max_examples=cases(300))
@given(predicates)
def test_random_predicates_match_the_rows_of_the_oracle(ds, predicate):
    wanted = [row["row"] for row in ROWS if truth(predicate, row) is True]
    assert ds.to_table(filter=predicate)["row"].to_pylist() == wanted


def test_unsupported_predicates_raise(ds):
    for predicate, message in [
        (Unknown("f(x) = 1", "why"), "is unknown, so it cannot be evaluated"),
        (Equals(("nope",), pa.scalar(1)), "no column nope; the columns are i, f"),
        (Equals(("f",), pa.scalar(Decimal("0.1"))), "would round a decimal128"),
        (IsIn(("f",), pa.array([Decimal("0.1")])), "give the literal as double"),
    ]:
        with pytest.raises(FilterError, match=message):
            ds.to_table(filter=predicate)


def test_sets_that_pyarrow_would_round_are_compared_one_by_one(ds):
    wanted = sum(row["i"] == 2 for row in ROWS)
    assert ds.count_rows(IsIn(("i",), pa.array([1.5, 2.0, 2.0**40]))) == wanted


def test_empty_and_or_are_constants(ds):
    assert ds.to_table(filter=Or(())).num_rows == 0
    assert ds.count_rows(filter=And(())) == len(ROWS)
    assert ds.search(Or(())).kind == "Exact"


def test_null_among_values_raises():
    with pytest.raises(InvalidArgument, match="hold a null; drop it"):
        IsIn(("i",), pa.array([1, None]))


UUIDS = [uuid.UUID(int=number).bytes for number in range(4)]


@pytest.mark.parametrize(
    ("type_", "values"),
    [
        (pa.float16(), [np.float16(number) for number in (-1, 0.5, 2, 2)]),
        (pa.string_view(), ["", "a", "é", "é"]),
        (pa.binary_view(), [b"", b"a", b"\xff", b"\xff"]),
        (pa.uuid(), UUIDS),
        (pa.dictionary(pa.int8(), pa.string()), ["", "a", "é", "é"]),
    ],
    ids=str,
)
def test_types_that_pyarrow_does_not_compare_are_filtered(type_, values):
    column = pa.array([*values, None], type_)
    rows = column.to_pylist()
    ds = zb.dataset(pa.table({"c": column}))
    for literal, value in zip(column[:-1], rows[:-1], strict=True):
        num_equal = sum(row == value for row in rows)
        assert ds.count_rows(Equals(("c",), literal)) == num_equal
        assert ds.count_rows(Not(Equals(("c",), literal))) == len(values) - num_equal
        num_less = sum(row < value for row in rows[:-1])
        assert ds.count_rows(Compares(("c",), "<", literal)) == num_less
    assert ds.count_rows(IsIn(("c",), column[1:3])) == sum(row in rows[1:3] for row in rows)
    assert ds.count_rows(IsNull(("c",))) == 1


@pytest.mark.parametrize("word", ["= X'62'", "IN (X'62', X'6262', X'00')"])
def test_row_groups_are_skipped_by_fixed_size_binary_values(word, tmp_path):
    rows = [b"a", None, b"b", b"b", b"c", None]
    pq.write_table(pa.table({"c": pa.array(rows, pa.binary(1))}), tmp_path / "a", row_group_size=2)
    ds = zb.dataset(tmp_path / "a")
    scanner = ds.scanner(filter=f"c {word}")
    assert scanner.to_table()["c"].to_pylist() == [b"b", b"b"]
    fragment = next(pads.dataset(tmp_path / "a").get_fragments())
    parts = fragment.split_by_row_group(scanner.plan().filter)
    assert [group.id for part in parts for group in part.row_groups] == [1]
    for none in ("= X'6262'", "IN (X'6262')", "IN (X'')"):
        assert ds.count_rows(f"c {none}") == 0
        assert ds.count_rows(f"NOT c {none}") == 4
    assert ds.count_rows("c < X'62'") == 1 and ds.count_rows("c <= X'6200'") == 3
