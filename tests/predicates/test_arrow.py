"""Check that a search rules out no row that PyArrow selects, and all others if it can.

Zones have one row, so the rows that a search keeps are what the translated expression means.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.helpers import cases

import zonebloom as zb
from zonebloom.errors import FilterError

NAN = math.nan
DAY = 1577836800
TABLE = pa.table(
    {
        "i8": pa.array([0, 5, -1, 127, None, 6], pa.int8()),
        "i64": pa.array([0, 5, 2**53, 2**53 + 1, None, -(2**63)]),
        "u64": pa.array([0, 5, 2**63, 2**64 - 1, None, 1], pa.uint64()),
        "f32": pa.array([0.0, 0.1, NAN, 1.5, None, -0.0], pa.float32()),
        "f64": pa.array([0.0, 0.1, NAN, 5.0, None, -0.0]),
        "dec": pa.array(
            [
                Decimal("0.10000000000000000001"),
                Decimal(5),
                Decimal("1.5"),
                Decimal(0),
                None,
                Decimal("-1.5"),
            ],
            pa.decimal128(38, 20),
        ),
        "s": pa.array(["", "a", "5", "É", None, "ab"]),
        "ls": pa.array(["", "a", "5", "É", None, "ab"], pa.large_string()),
        "d": pa.array(["", "a", "5", "É", None, "ab"]).dictionary_encode(),
        "bin": pa.array([b"", b"a", b"5", b"\xff", None, b"ab"]),
        "fsb": pa.array([b"aa", b"ab", b"00", b"\xff\xff", None, b"xx"], pa.binary(2)),
        "b": pa.array([True, False, True, None, None, False]),
        "ts": pa.array([0, DAY * 1000, DAY * 1000 + 1, -1, None, 5], pa.timestamp("ms")),
        "tz": pa.array([0, DAY * 1000, DAY * 1000 + 1, -1, None, 5], pa.timestamp("ms", "UTC")),
        "d32": pa.array([0, 18262, 18263, -1, None, 1], pa.date32()),
        "d64": pa.array([0, DAY * 1000, DAY * 1000 + 5, 1, None, 5], pa.date64()),
        "t": pa.array([0, 1, 1000, 5, None, 86399999], pa.time32("ms")),
        "dur": pa.array([0, 1, 1000, -5, None, 5], pa.duration("ms")),
        "st": pa.array([{"x": 5}, {"x": None}, None, {"x": 0}, {"x": 1}, {"x": 5}]),
        "n": pa.nulls(6),
        "row": pa.array(range(6)),
    }
)
FIELDS = [pc.field(name) for name in TABLE.column_names] + [pc.field("st", "x"), pc.field("zz")]
LITERALS = [
    pa.scalar(v, t)
    for v, t in [
        (0, pa.int64()), (5, pa.int8()), (5, pa.uint64()), (-1, pa.int64()),
        (2**53 + 1, pa.int64()),
        (127, pa.int32()), (2**64 - 1, pa.uint64()), (0.0, pa.float64()), (-0.0, pa.float64()),
        (5.0, pa.float32()), (5.5, pa.float64()), (0.1, pa.float64()), (0.1, pa.float32()),
        (2.0**53, pa.float64()), (NAN, pa.float64()), (1.5, pa.float64()),
        (Decimal("0.1"), pa.decimal128(2, 1)), (Decimal("1.5"), pa.decimal128(5, 2)),
        (Decimal(5), pa.decimal256(40, 0)), ("a", pa.string()), ("5", pa.string()),
        ("É", pa.large_string()), (b"a", pa.binary()), (b"ab", pa.binary(2)), (b"xx", pa.binary()),
        (True, pa.bool_()), (None, pa.null()), (None, pa.int64()), (None, pa.bool_()),
        (0, pa.timestamp("s")), (DAY * 1000 + 1, pa.timestamp("ms")), (1, pa.timestamp("ns")),
        (DAY, pa.timestamp("s")), (DAY, pa.timestamp("s", "UTC")), (5, pa.timestamp("ms", "UTC")),
        (18262, pa.date32()), (0, pa.date32()), (DAY * 1000 + 5, pa.date64()),
        (1, pa.time32("s")), (1000, pa.time64("us")), (1, pa.time64("ns")),
        (1, pa.duration("s")), (5, pa.duration("ms")), (1, pa.duration("ns")),
    ]
]  # fmt: skip
SETS = [
    pa.array([a.as_py(), b.as_py()], type=a.type)
    for a in LITERALS
    for b in (a, pa.scalar(None, a.type))
    if a.is_valid and not pa.types.is_temporal(a.type)
] + [
    pa.array([5, 0], pa.int64()), pa.array([0.1, 5.0, NAN]), pa.array([], pa.string()),
    pa.array([DAY * 1000, 1], pa.timestamp("ms")), pa.array([1, 5], pa.timestamp("ns")),
    pa.array([DAY], pa.timestamp("s", "UTC")), pa.array([18262, None], pa.date32()),
    pa.array([1, DAY * 1000 + 5], pa.date64()), pa.array([1001, 1000], pa.time64("us")),
    pa.array([1000000, 5], pa.duration("ns")), pa.array(["a", None]).dictionary_encode(),
    pa.nulls(1),
]  # fmt: skip
CASTS = [pa.int8(), pa.int64(), pa.uint64(), pa.float32(), pa.float64(), pa.string(), pa.binary(),
         pa.large_string(), pa.date32(), pa.timestamp("ns"), pa.decimal128(38, 20), pa.bool_(),
         pa.large_binary()]  # fmt: skip

operands = st.one_of(
    st.sampled_from(FIELDS),
    st.sampled_from(FIELDS),
    st.builds(lambda f, t: f.cast(t, safe=False), st.sampled_from(FIELDS), st.sampled_from(CASTS)),
)
literals = st.sampled_from(LITERALS).map(pc.scalar)
leaves = st.one_of(
    st.builds(lambda a, b: a == b, operands, literals),
    st.builds(lambda a, b: b != a, operands, literals),
    st.builds(lambda a, b: b == a, literals, operands),
    st.builds(lambda a, b: a < b, operands, literals),
    st.builds(lambda a, b: a >= b, literals, operands),
    st.builds(lambda a, b: a > b, operands, literals),
    st.builds(
        lambda a, v, skip: pc.is_in(a, options=pc.SetLookupOptions(v, skip_nulls=skip)),
        operands,
        st.sampled_from(SETS),
        st.booleans(),
    ),
    st.builds(lambda a, nan: a.is_null(nan_is_null=nan), operands, st.booleans()),
    operands.map(lambda a: a.is_valid()),
    st.sampled_from(
        [pc.field("b"), pc.scalar(True), pc.scalar(False), pc.field("s") == pc.field("ls")]
    ),
    st.just(pc.scalar(pa.scalar(None, pa.bool_()))),
)


def join(name, left, right):
    # pc.and_ would name the function "and_", which PyArrow does not find.
    return pc.Expression._call(name, [left, right])


JOINS = ["and", "or", "and_kleene", "or_kleene", "and_not", "and_not_kleene", "xor"]
expressions = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds(join, st.sampled_from(JOINS), inner, inner),
        inner.map(pc.invert),
        inner.map(lambda a: a.is_null()),
        st.builds(pc.if_else, inner, inner, inner),
    ),
    max_leaves=5,
)


@pytest.fixture(scope="module")
def ds() -> zb.Dataset:
    """Return the rows with exact indices of all columns that can have one."""
    ds = zb.dataset(TABLE)
    hashed = [name for name in TABLE.column_names if name not in ("b", "st", "n")]
    options = {"number_of_items": 1, "spark": False}
    ds.create_scalar_index([*hashed, "st.x"], probability=1e-9, **options)
    # A zone map refuses days with a time.
    for name in [*(name for name in hashed if name != "d64"), "st.x"]:
        ds.create_scalar_index(name, "ZONEMAP", f"zones of {name}", **options)
    return ds


def kept_rows(ds, expression):
    """Return the rows that a search keeps: all if only one side has a zone, which is refused."""
    try:
        return ds.search(expression).at_most.rows().tolist()
    except FilterError as error:
        assert re.search("without a zone|local_timestamp", str(error))
        return list(range(len(TABLE)))


def selected(expression):
    """Return the rows that PyArrow selects, or None if it refuses the expression."""
    try:
        return pads.dataset(TABLE).to_table(filter=expression)["row"].to_pylist()
    except (pa.ArrowException, ValueError, TypeError):
        return None


def check_nothing_lost(ds, expression):
    rows = selected(expression)
    if rows:
        assert set(rows) <= set(kept_rows(ds, expression)), expression


@pytest.mark.slow
@settings(max_examples=cases(1500))
@given(expressions)
def test_random_expressions_keep_their_rows(ds, expression):
    rows = selected(expression)
    if rows is None:
        return
    assert set(rows) <= set(kept_rows(ds, expression))
    try:
        assert ds.to_table(filter=expression)["row"].to_pylist() == rows
    except FilterError as error:
        assert re.search("without a zone|local_timestamp", str(error))


@pytest.mark.many
@pytest.mark.parametrize("name", TABLE.column_names)
def test_every_column_can_be_compared_with_every_literal(ds, name):
    # Test all pairs, because rounding affects only a few of them.
    column = pc.field(name)
    for literal in LITERALS:
        check_nothing_lost(ds, column == literal)
        check_nothing_lost(ds, ~(column != literal))
    for values in SETS:
        check_nothing_lost(ds, column.isin(values))
    for target in CASTS:
        for literal in LITERALS:
            check_nothing_lost(ds, column.cast(target, safe=False) == literal)


F = pc.field


def as_in_duckdb(column, values):
    return pc.if_else(column.is_valid(), column.isin(values), pc.scalar(pa.scalar(None, "bool")))


ANSWERED = [
    *(F("i64") == 5, pc.scalar(5) == F("i64"), F("i8") == 5.5, F("d") == "a"),
    *(F("d").cast("string") == "a", F("i8").cast("int64") == 5, F("f32").cast("float64") == 1.5),
    *(F("ls").cast("string") == "a", F("fsb").cast("binary") == b"aa", F("st", "x") == 5),
    F("dur") == dt.timedelta(milliseconds=5),
    F("ts") == pa.scalar(5_000_000, pa.timestamp("ns")),
    *(~(F("i64") != 5), F("i64") == pa.scalar(None, pa.int64()), F("i64") != pa.scalar(None)),
    *(F("i64").isin([5, 2]), F("i64").isin([5, None]), F("f32").isin([1.5]), F("i64").is_null()),
    pc.is_in(F("i64"), pa.array([5, None]), skip_nulls=True),
    *(as_in_duckdb(F("i64"), [0, 5]), F("i64").is_null(nan_is_null=True)),
    pc.if_else(F("s").is_null(), F("i8") == 5, F("i64") == 5),
    F("i64").is_null() & (F("i8").is_null() & F("s").is_null()),
    join("or", F("i64").is_null(), F("i8").is_null()),
    (F("i64") >= 5) & (F("i64") <= 5),
    (F("i64") <= 5) & (F("i8") >= 5) & (pc.scalar(5) <= F("i64")) & (F("i64") >= 3),
    *(F("i64") > 5, pc.scalar(5) > F("i64"), F("f64") <= 0.1, F("s") < "a"),
]  # fmt: skip


@pytest.mark.parametrize("expression", ANSWERED, ids=lambda value: str(value)[:40])
def test_answerable_expressions_keep_only_their_rows(ds, expression):
    assert kept_rows(ds, expression) == selected(expression)


def test_an_ambiguous_column_name_rules_out_nothing():
    ds = zb.dataset(pa.Table.from_arrays([pa.array([1, 2]), pa.array([2, 1])], ["a", "a"]))
    assert len(ds.search(F("a") == 1).at_most) == 2


def test_dot_in_a_name_is_not_a_path():
    ds = zb.dataset(pa.table({"a.b": [1, 2], "a": [{"b": 2}, {"b": 1}]}))
    ds.create_scalar_index(["a.b"], number_of_items=1, spark=False)
    assert ds.search(F("a.b") == 1).at_most.rows().tolist() == [0]
    assert ds.count_rows(F("a", "b") == 1) == 1
    assert len(ds.search(F("a", "b") == 1).at_most) == 2


def test_column_names_that_look_like_the_layout():
    names = ["call", "end", "", "é", "a\x00b", "literal"]
    ds = zb.dataset(pa.table({name: [1, 2] for name in names}))
    for name in names:
        assert ds.to_table(filter=F(name) == 1).num_rows == 1


def test_filters_with_one_cached_schema_keep_their_literals(ds):
    for value in (0, 5, 2**53):
        expression = (F("i64") == value) | F("s").isin([str(value), "x"])
        assert kept_rows(ds, expression) == selected(expression)
