"""Compare filters of PyArrow's DNF tuples with ``pyarrow.parquet.filters_to_expression``."""

from __future__ import annotations

import datetime as dt
import itertools
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import zonebloom as zb
from zonebloom.errors import FilterError

MOMENT = 1_706_659_200_000_000_000
COLUMNS = {
    "i8": pa.array([-128, 0, 5, None, 127], pa.int8()),
    "i64": pa.array([-(2**63), 0, 5, None, 2**63 - 1], pa.int64()),
    "u64": pa.array([0, 5, None, 2**63, 2**64 - 1], pa.uint64()),
    "f32": pa.array([0.0, -0.0, 0.1, None, float("nan")], pa.float32()),
    "f64": pa.array([0.0, -0.0, 0.1, None, float("nan")], pa.float64()),
    "dec": pa.array(
        [Decimal("5.00"), Decimal("1.50"), None, Decimal(0), None], pa.decimal128(5, 2)
    ),
    "s": pa.array(["a", "", "5", None, "é"], pa.string()),
    "d": pa.array(["a", "", "5", None, "é"]).dictionary_encode(),
    "bin": pa.array([b"a", b"", b"5", None, b"b"], pa.binary()),
    "b": pa.array([True, False, None, True, False]),
    "n": pa.nulls(5),
    "day": pa.array([dt.date(2024, 1, 31), None, dt.date(1970, 1, 1), None, None]),
    "us": pa.array([dt.datetime(2024, 1, 31), None, dt.datetime(1970, 1, 1), None, None]),
    "ns": pa.array([MOMENT, MOMENT + 1, None, 0, 1], pa.timestamp("ns")),
    "clock": pa.array([dt.time(12), None, dt.time(0), None, None], pa.time64("us")),
    "length": pa.array([dt.timedelta(seconds=5), None, None, None, None], pa.duration("us")),
}
KEYS = [f"key-{number:06}-{'x' * 30}" for number in range(100)]
OPERATORS = ("=", "==", "!=", "<", "<=", ">", ">=")
VALUES = (
    *(None, True, False, 0, 5, -1, 128, 2**53 + 1, 2**63 - 1, -(2**63), -(2**63) - 1, 2**64),
    *(0.0, -0.0, 5.0, 5.5, 0.1, float("nan"), float("inf"), Decimal("5.00"), Decimal("1.501")),
    *("a", "", "5", "é", b"a", b"", dt.date(2024, 1, 31), dt.datetime(2024, 1, 31)),
    *(dt.time(12), dt.timedelta(seconds=5)),
    *(np.int8(5), np.float32(0.1), np.bool_(True), pa.scalar("a"), pa.scalar(5, pa.int8())),
    *(np.datetime64(MOMENT + 1, "ns"), pa.scalar(MOMENT + 1, pa.timestamp("ns"))),
)
SETS = (
    *((value,) for value in VALUES),
    *((), (5, None), ("a", "b", None), (5, 5.5), (True, None), {"a"}, frozenset({5}), range(6)),
    *(np.array([5, 0]), pa.array([5, None]), pa.chunked_array([["a"], ["5"]])),
)


def matching_rows(table, expression):
    """Return the rows that an expression keeps, or None if PyArrow cannot evaluate it."""
    try:
        return table.filter(expression)["row"].to_pylist()
    except (pa.ArrowException, TypeError):
        return None


@pytest.mark.many
@pytest.mark.parametrize("column", COLUMNS)
def test_rows_are_those_of_pyarrow(column):
    values = COLUMNS[column]
    table = pa.table({column: values, "row": range(len(values))})
    ds = zb.dataset(table)
    terms = [
        *((column, *pair) for pair in itertools.product(OPERATORS, VALUES)),
        *((column, *pair) for pair in itertools.product(("in", "not in"), SETS)),
    ]
    num_compared = 0
    for term in terms:
        try:
            expected = matching_rows(table, pq.filters_to_expression([term]))
        except (pa.ArrowException, OverflowError, TypeError, ValueError):
            continue
        if expected is not None:
            assert ds.to_table(["row"], [term])["row"].to_pylist() == expected, term
            num_compared += 1
    assert num_compared > 20


@pytest.mark.parametrize(
    ("operator", "value", "rows"),
    [
        *(("=", 2**63, [3]), ("!=", 2**64 - 1, [0, 1, 3]), ("<", 2**63, [0, 1])),
        *((">=", 2**63, [3, 4]), ("in", [5, 2**64 - 1, None], [1, 2, 4])),
        *(("not in", [2**63, -1, 2**64], [0, 1, 2, 4]), ("in", {2**64, -1}, [])),
    ],
)
def test_integers_for_which_pyarrow_fails_are_compared_exactly(operator, value, rows):
    table = pa.table({"u64": COLUMNS["u64"], "row": range(5)})
    found = zb.dataset(table).to_table(filter=[("u64", operator, value)])
    assert found["row"].to_pylist() == rows


def test_a_tuple_of_names_is_a_leaf_of_a_struct():
    structs = [{"x": 5}, {"x": 2**64 - 1}, {"x": None}, None]
    table = pa.table({"s": pa.array(structs, pa.struct({"x": pa.uint64()})), "row": range(4)})
    for value, rows in ((5, [0]), (2**64 - 1, [1])):
        found = zb.dataset(table).to_table(filter=[[(("s", "x"), "=", value)]])
        assert found["row"].to_pylist() == rows
    # PyArrow fails for the large integer.
    small = table.slice(0, 1)
    assert matching_rows(small, pq.filters_to_expression([[(("s", "x"), "=", 5)]])) == [0]


@pytest.mark.parametrize("filter", [42, {"id": 42}, b"id = 42", [], [("id", "~", 1)], [1], ()])
def test_the_error_lists_accepted_kinds_of_filters(filter):
    with pytest.raises(FilterError, match=r"a SQL string .* a pyarrow.compute Expression"):
        zb.dataset(pa.table({"id": [1]})).count_rows(filter)
