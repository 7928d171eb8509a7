"""Check that predicates of PyArrow expressions rule out no row that PyArrow selects."""

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
from support import predicate_oracle
from support.helpers import cases
from support.seams import replace_function

from zonebloom.errors import FilterError
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
from zonebloom.predicates import arrow_form as module
from zonebloom.predicates.arrow import predicate_from_arrow

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


def bounds(predicate, row):
    return predicate_oracle.bounds(TABLE, predicate, row)


def selected(expression):
    """Return the rows that PyArrow selects, or None if it refuses the expression."""
    try:
        return pads.dataset(TABLE).to_table(filter=expression)["row"].to_pylist()
    except (pa.ArrowException, ValueError, TypeError):
        return None


@settings(max_examples=cases(1500))
@given(expressions)
def test_no_selected_row_is_ruled_out(expression):
    predicate = predicate_of(expression)
    for row in selected(expression) or []:
        assert bounds(predicate, row)[0], f"row {row} is lost by {predicate!r}"


@pytest.mark.parametrize("name", TABLE.column_names)
def test_every_column_can_be_compared_with_every_literal(name):
    # Test all pairs, because rounding affects only a few of them.
    column = pc.field(name)
    for literal in LITERALS:
        check_nothing_lost(column == literal)
        check_nothing_lost(~(column != literal))
    for values in SETS:
        check_nothing_lost(column.isin(values))
    for target in CASTS:
        for literal in LITERALS:
            check_nothing_lost(column.cast(target, safe=False) == literal)


def predicate_of(expression):
    """Return the predicate, or `Unknown` if it is refused because only one side has a zone."""
    try:
        return predicate_from_arrow(expression, TABLE.schema)
    except FilterError as error:
        assert re.search("without a zone|local_timestamp", str(error))
        return Unknown(str(expression), str(error))


def check_nothing_lost(expression):
    predicate = predicate_of(expression)
    for row in selected(expression) or []:
        assert bounds(predicate, row)[0], f"row {row} is lost: {expression} -> {predicate!r}"


F = pc.field


def as_in_duckdb(column, values):
    return pc.if_else(column.is_valid(), column.isin(values), pc.scalar(pa.scalar(None, "bool")))


ANSWERED = [
    (F("i64") == 5, Equals(("i64",), pa.scalar(5))),
    (pc.scalar(5) == F("i64"), Equals(("i64",), pa.scalar(5))),
    (F("i8") == 5.5, Equals(("i8",), pa.scalar(5.5))),
    (F("u64") == 3, Equals(("u64",), pa.scalar(3))),
    (F("d") == "a", Equals(("d",), pa.scalar("a"))),
    (F("d").cast("string") == "a", Equals(("d",), pa.scalar("a"))),
    (F("i8").cast("int64") == 5, Equals(("i8",), pa.scalar(5))),
    (F("f32").cast("float64") == 0.1, Equals(("f32",), pa.scalar(0.1))),
    (F("ls").cast("string") == "a", Equals(("ls",), pa.scalar("a"))),
    (F("fsb").cast("binary") == b"aa", Equals(("fsb",), pa.scalar(b"aa"))),
    (F("st", "x") == 5, Equals(("st", "x"), pa.scalar(5))),
    (F("dur") == dt.timedelta(1), Equals(("dur",), pa.scalar(dt.timedelta(1)))),
    (F("ts") == pa.scalar(1, pa.timestamp("ns")),
     Equals(("ts",), pa.scalar(1, pa.timestamp("ns")))),
    (F("i64") != 5, Not(Equals(("i64",), pa.scalar(5)))),
    (~(F("i64") != 5), Equals(("i64",), pa.scalar(5))),
    (F("i64") == pa.scalar(None, pa.int64()), Constant(None)),
    (F("i64") != pa.scalar(None), Constant(None)),
    (~(F("i64") == pa.scalar(None)), Constant(None)),
    (F("i64").isin([1, 2]), IsIn(("i64",), pa.array([1, 2]))),
    (F("i64").isin([1, None]), IsIn(("i64",), pa.array([1]), null_matches=True)),
    (F("f32").isin([1.5, 0.0]), IsIn(("f32",), pa.array([1.5, 0.0]))),
    (pc.is_in(F("i64"), pa.array([1, None]), skip_nulls=True), IsIn(("i64",), pa.array([1]))),
    (as_in_duckdb(F("i64"), [1, 2]), IsIn(("i64",), pa.array([1, 2]))),
    (~as_in_duckdb(F("st", "x"), [1, 2]), Not(IsIn(("st", "x"), pa.array([1, 2])))),
    (pc.if_else(F("s").is_null(), F("i8") == 5, F("i64") == 5),
     Or((And((IsNull(("s",)), Equals(("i8",), pa.scalar(5)))),
         And((Not(IsNull(("s",))), Equals(("i64",), pa.scalar(5))))))),
    (F("i64").is_null(), IsNull(("i64",))),
    (F("i64").is_null(nan_is_null=True), IsNull(("i64",))),
    (F("st", "x").is_valid(), Not(IsNull(("st", "x")))),
    (pc.scalar(True), Constant(True)),
    (pc.scalar(None), Constant(None)),
    (F("i64").is_null() & (F("i8").is_null() & F("s").is_null()),
     And((IsNull(("i64",)), IsNull(("i8",)), IsNull(("s",))))),
    (join("or", F("i64").is_null(), F("i8").is_null()), Or((IsNull(("i64",)), IsNull(("i8",))))),
    ((F("i64") >= 5) & (F("i64") <= 5), Equals(("i64",), pa.scalar(5))),
    ((F("i64") <= 5) & (F("i8") >= 5) & (pc.scalar(5) <= F("i64")) & (F("i64") >= 3),
     And((Equals(("i64",), pa.scalar(5)), Compares(("i8",), ">=", pa.scalar(5)),
          Compares(("i64",), ">=", pa.scalar(3))))),
    (pc.and_not(F("i64").is_null(), F("i8").is_null()),
     And((IsNull(("i64",)), Not(IsNull(("i8",)))))),
]  # fmt: skip


@pytest.mark.parametrize(("expression", "predicate"), ANSWERED, ids=lambda value: str(value)[:40])
def test_answerable_expressions_have_the_right_predicate(expression, predicate):
    assert predicate_from_arrow(expression, TABLE.schema) == predicate


def test_ambiguous_column_name_is_unknown():
    schema = pa.schema([("a", pa.int64()), ("a", pa.int64())])
    predicate = predicate_from_arrow(F("a") == 1, schema)
    assert isinstance(predicate, Unknown)
    assert "more than one" in predicate.reason


def test_dot_in_a_name_is_not_a_path():
    schema = pa.schema({"a.b": pa.int64(), "a": pa.struct({"b": pa.int64()})})
    assert predicate_from_arrow(F("a.b") == 1, schema) == Equals(("a.b",), pa.scalar(1))
    assert predicate_from_arrow(F("a", "b") == 1, schema) == Equals(("a", "b"), pa.scalar(1))


def test_column_names_that_look_like_the_layout():
    names = ["call", "end", "", "é", "a\x00b", "literal"]
    schema = pa.schema([(name, pa.int64()) for name in names])
    for name in names:
        assert predicate_from_arrow(F(name) == 1, schema) == Equals((name,), pa.scalar(1))


GOOD = [("call", "equal"), ("field_ref", "i64"), ("literal", "0"), ("end", "equal")]
MALFORMED = [
    [],
    GOOD[:3],
    GOOD + GOOD,
    [*GOOD[:3], ("end", "less")],
    [GOOD[0], ("novelty", "x"), *GOOD[1:]],
    [GOOD[0], GOOD[1], ("literal", "7"), GOOD[3]],
    [GOOD[0], ("nested_field_ref", "-1"), *GOOD[1:]],
    [GOOD[0], ("options", "0"), *GOOD[1:]],
    [("call", "cast"), GOOD[1], ("end", "cast")],
]


@pytest.mark.parametrize("entries", MALFORMED, ids=str)
def test_layout_of_another_pyarrow_version_is_unknown(monkeypatch, entries):
    replace_function(monkeypatch, module, "_schema_entries", lambda schema: list(entries))
    # Bypass the cache of parsed schema messages.
    replace_function(
        monkeypatch, module, "_parse_schema_message", module._parse_schema_message.__wrapped__
    )
    predicate = predicate_from_arrow(F("i64") == 5, TABLE.schema)
    assert isinstance(predicate, Unknown)
    assert "cannot be parsed" in predicate.reason
    assert predicate.text == "(i64 == 5)"


def test_the_expression_layout_of_this_pyarrow_is_known():
    with pa.ipc.open_file((F("i64") == 5).__reduce__()[1][0]) as reader:
        row = reader.get_batch(0)
    assert module._schema_entries(row.schema) == GOOD
    assert module.read_expression(F("i64") == 5)[:2] == (GOOD, row)


def test_filters_with_one_cached_schema_keep_their_literals():
    for value in range(5):
        expression = (F("i64") == value) | F("s").isin([str(value), "x"])
        assert (
            str(predicate_from_arrow(expression, TABLE.schema))
            == f"i64 = {value} OR s IN ('{value}', 'x')"
        )


def test_very_long_chains_are_translated():
    expression = F("i64") == 0
    for value in range(1, 20_000):
        expression = expression | (F("i64") == value)
    predicate = predicate_from_arrow(expression, TABLE.schema)
    assert predicate == IsIn(("i64",), pa.array(range(20_000)))


def test_very_deep_expressions_do_not_raise():
    expression = F("i64")
    for _ in range(3000):
        expression = expression + 1
    assert isinstance(predicate_from_arrow(expression == 3, TABLE.schema), Unknown)
