"""Check that predicates of Polars expressions rule out no row that Polars selects."""

from __future__ import annotations

import base64
import datetime as dt
import functools
import json
import math
import operator
import pathlib
import re
import uuid
from decimal import Decimal

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from polars.io.plugins import register_io_source
from support import predicate_oracle
from support.seams import replace_function, set_constant

import zonebloom as zb
from zonebloom.errors import FilterError
from zonebloom.predicates import (
    And,
    Equals,
    IsIn,
    Unknown,
    polars_expression,
)
from zonebloom.predicates.polars import (
    PolarsFilter,
    predicate_from_polars,
    to_frame,
    translate_polars,
)

NAN = math.nan
DAY = 86_400
MOMENT = 1_577_836_800  # 2020-01-01
UTC = dt.UTC


def ticks(type_, values):
    return pa.array(values, pa.int64()).cast(type_)


def moments(unit, zone=None):
    per = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    values = [0, MOMENT * per, MOMENT * per + 1, -1, None, 1, MOMENT * per + 999]
    return ticks(pa.timestamp(unit, zone), values)


TABLE = pa.table(
    {
        "i8": pa.array([0, 5, -1, 127, None, 6, 1], pa.int8()),
        "i32": pa.array([0, 5, -1, 2**24 + 1, None, 18262, -(2**31)], pa.int32()),
        "i64": pa.array([0, 5, 2**53, 2**53 + 1, None, -(2**63), 1]),
        "u64": pa.array([0, 5, 2**63, 2**64 - 1, None, 1, 2**53 + 1], pa.uint64()),
        "f16": pa.array([0.0, 5.0, 0.5, 1.5, None, 18.25, -1.0]).cast(pa.float16()),
        "f32": pa.array([0.0, 0.1, NAN, 1.5, None, -0.0, 16777216.0], pa.float32()),
        "f64": pa.array([0.0, 0.1, NAN, 5.0, None, -0.0, 2.0**53]),
        "dec": pa.array(
            [Decimal(v) if v else None for v in ("0.1", "5", "1.5", "0.0", "", "-1.5", "0.01")],
            pa.decimal128(20, 2),
        ),
        "dec256": pa.array(
            [Decimal(v) if v else None for v in ("0.1", "5", "1.5", "0.0", "", "-1.5", "0.01")],
            pa.decimal256(20, 2),
        ),
        "s": pa.array(["", "a", "5", "É", None, "ab", "b"]),
        "sv": pa.array(["", "a", "5", "É", None, "ab", "b"], pa.string_view()),
        "cat": pa.array(["", "a", "5", "É", None, "ab", "b"]).dictionary_encode(),
        "bin": pa.array([b"", b"a", b"5", b"\xff", None, b"ab", b"b"]),
        "fsb": pa.array([b"aa", b"ab", b"00", b"\xff\xff", None, b"xx", b"a\x00"], pa.binary(2)),
        "uuid": pa.array([None if i == 4 else uuid.UUID(int=i).bytes for i in range(7)], pa.uuid()),
        "b": pa.array([True, False, True, None, None, False, True]),
        "ts_s": moments("s"),
        "ts_ms": moments("ms"),
        "ts_us": moments("us"),
        "ts_ns": moments("ns"),
        "utc_us": moments("us", "UTC"),
        "utc_ns": moments("ns", "UTC"),
        "paris": moments("ms", "Europe/Paris"),
        "d32": pa.array([0, 18262, 18263, -1, None, 1, 5], pa.date32()),
        "d64": ticks(pa.date64(), [0, MOMENT * 1000, DAY * 1000, -DAY * 1000, None, 0, 0]),
        "t": ticks(pa.time64("us"), [0, 1, 1000, 5, None, DAY * 10**6 - 1, 3_600_000_000]),
        "du_ms": ticks(pa.duration("ms"), [0, 1, 1000, -5, None, 5, 999]),
        "du_ns": ticks(pa.duration("ns"), [0, 1, 1000, -5, None, -999, 10**9]),
        "st": pa.array([{"x": 5}, {"x": None}, None, {"x": 0}, {"x": 1}, {"x": 5}, {"x": -1}]),
        "li": pa.array([[1], None, [], [2], [3], [1, 2], [5]]),
        "row": pa.array(range(7)),
    }
)
COLUMNS = [pl.col(name) for name in TABLE.column_names if name != "li"]
FIELDS = [*COLUMNS, pl.col("st").struct.field("x")]
PLAIN = [
    0, 5, -1, 127, 128, 300, 2**24 + 1, 2**53, 2**53 + 1, 2**63, 2**64 - 1, 2**70, -(2**63),
    0.0, -0.0, 5.0, 5.5, 0.1, 1.5, 2.0**53, 2.0**64, 1e300, math.inf, NAN, -1.5,
    Decimal("0.1"), Decimal("1.50"), Decimal(5), Decimal("0.005"),
    "", "a", "5", "É", "ab", b"", b"a", b"ab", b"xx", b"\xff", b"a\x00", uuid.UUID(int=2).bytes,
    True, False, None,
    dt.date(1970, 1, 1), dt.date(2020, 1, 1), dt.date(2020, 1, 2),
    dt.datetime(1970, 1, 1), dt.datetime(2020, 1, 1), dt.datetime(2020, 1, 1, 0, 0, 0, 1),
    dt.datetime(2020, 1, 1, 0, 0, 0, 1000), dt.datetime(1969, 12, 31, 23, 59, 59, 999_999),
    dt.datetime(2020, 1, 1, tzinfo=UTC), dt.datetime(1970, 1, 1, tzinfo=UTC),
    dt.time(0), dt.time(1), dt.time(0, 0, 0, 1), dt.time(23, 59, 59, 999_999),
    dt.timedelta(0), dt.timedelta(milliseconds=1), dt.timedelta(microseconds=1),
    dt.timedelta(seconds=1), dt.timedelta(microseconds=-1), dt.timedelta(milliseconds=-5),
]  # fmt: skip
TYPED = [
    pl.lit(number, dtype=kind)
    for number, kinds in (
        (5, (pl.Int8, pl.UInt8, pl.Int16, pl.UInt32, pl.UInt64, pl.Int128, pl.Float32)),
        (2**53 + 1, (pl.Int64, pl.UInt64, pl.Float64)),
        (0.1, (pl.Float32, pl.Float64)),
    )
    for kind in kinds
] + [
    pl.lit(dt.datetime(2020, 1, 1), dtype=pl.Datetime(unit, zone))
    for unit in ("ms", "us", "ns")
    for zone in (None, "UTC", "Europe/Paris")
] + [
    pl.lit(dt.timedelta(milliseconds=1), dtype=pl.Duration("ms")),
    pl.lit(dt.timedelta(microseconds=1), dtype=pl.Duration("ns")),
    pl.lit("a", dtype=pl.Categorical()),
    pl.lit(None, dtype=pl.Int64),
    pl.lit(None, dtype=pl.Boolean),
    pl.lit(pl.Series([5])),
]  # fmt: skip
LITERALS = [pl.lit(value) for value in PLAIN] + TYPED
SETS = [
    [], [None], [5], [5, None], [0, 1, 2**53 + 1], [0.1, 5.0], [1.5, NAN], ["a", None], ["É", "5"],
    [b"a", b"xx"], [True], [Decimal("0.1"), Decimal(5)], [dt.date(2020, 1, 1), None],
    [dt.datetime(2020, 1, 1), dt.datetime(1970, 1, 1)], [dt.datetime(2020, 1, 1, tzinfo=UTC)],
    [dt.time(1), dt.time(0)], [dt.timedelta(milliseconds=1), dt.timedelta(0)],
    pl.Series([5, 0], dtype=pl.Int8), pl.Series([5, None], dtype=pl.UInt64),
    pl.Series([0.1], dtype=pl.Float32), pl.Series(["a"], dtype=pl.Categorical),
    pl.Series([0, MOMENT * 1000], dtype=pl.Int64).cast(pl.Datetime("ms")),
    pl.Series([1, MOMENT * 10**9 + 1], dtype=pl.Int64).cast(pl.Datetime("ns")),
    pl.Series([1, 10**6], dtype=pl.Int64).cast(pl.Duration("ns")),
]  # fmt: skip
CASTS = [
    pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.UInt64, pl.Int128, pl.Float32, pl.Float64, pl.String,
    pl.Binary, pl.Boolean, pl.Date, pl.Time, pl.Datetime("ms"), pl.Datetime("us"),
    pl.Datetime("ns"), pl.Datetime("us", "UTC"), pl.Duration("ms"), pl.Duration("us"),
    pl.Decimal(38, 4), pl.Decimal(10, 1), pl.Categorical(), pl.Enum(["", "a", "5"]),
]  # fmt: skip
C = pl.col
ENUM = pl.Enum(["5", "", "a"])
COMPARED = [operator.eq, operator.le, pl.Expr.eq_missing]


def bounds(predicate, row):
    return predicate_oracle.bounds(TABLE, predicate, row)


@pytest.fixture(scope="module")
def frame(tmp_path_factory):
    path = tmp_path_factory.mktemp("polars") / "table.parquet"
    pq.write_table(TABLE, path)
    # Use the frame that Polars reads from a file, as scans do.
    return pl.read_parquet(path)


def selected(frame, expression):
    """Return the rows that Polars selects, or None if it refuses the expression."""
    try:
        # Without the optimizer: that of Polars 2.1 takes ~(a.is_not_null() | a.is_in([5],
        # nulls_equal=True)) for false.
        rows = frame.lazy().filter(expression).collect(optimizations=pl.QueryOptFlags.none())
        return rows["row"].to_list()
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException):
        # Polars panics if a struct is compared with a plain value.
        return None


def check(frame, expression):
    """Check that no selected row is ruled out."""
    predicate = predicate_from_polars(expression, TABLE.schema)
    for row in selected(frame, expression) or []:
        assert bounds(predicate, row)[0], f"row {row} is lost: {expression} -> {predicate!r}"


@pytest.mark.parametrize("version", ["1.30.0", "1.44.2"])
def test_older_versions_of_polars_rule_out_nothing(monkeypatch, version):
    # Polars 1.x rounded: the uint64 literal 2**53 + 1 found 2**53 in an int64 column.
    set_constant(monkeypatch, pl, "__version__", version)
    predicate = predicate_from_polars(C("i64") == pl.lit(2**53 + 1, dtype=pl.UInt64), TABLE.schema)
    assert isinstance(predicate, Unknown) and "before 2.0" in predicate.reason
    filter, predicate = translate_polars(C("i64") == 5, TABLE.schema)
    assert isinstance(predicate, Unknown)
    assert filter.matching_rows(TABLE).tolist() == [
        row for row, value in enumerate(TABLE["i64"].to_pylist()) if value == 5
    ]


@pytest.mark.many
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("column", FIELDS, ids=str)
def test_every_column_can_be_compared_with_every_literal(frame, column):
    # Test all pairs, because rounding affects only a few of them.
    for literal in LITERALS:
        for compare in (operator.eq, operator.lt, operator.ge):
            check(frame, compare(column, literal))
        check(frame, column.is_between(literal, literal))
    for values in SETS:
        check(frame, column.is_in(values, nulls_equal=True))


@pytest.mark.many
@pytest.mark.parametrize("kind", CASTS, ids=str)
def test_every_cast_of_every_column_loses_no_row(frame, kind):
    for column in FIELDS:
        # With strict=False a failing cast gives null, so that the comparison still runs.
        cast_column = column.cast(kind, strict=False)
        for literal in LITERALS[:: 3 if kind.is_integer() else 2]:
            check(frame, cast_column == literal)
            check(frame, cast_column <= literal)
        check(frame, cast_column.is_null())


# Each line is one form in which Polars writes a literal or set, before or after the optimizer. It
# tells the versions of Polars, the column of TABLE, and the rows that these versions select.
# "@..." stands for a list of bytes in base64.
FORMS = [
    json.loads(line)
    for line in pathlib.Path(__file__)
    .with_name("polars_forms.jsonl")
    .read_text("utf-8")
    .split("\n")
    if line
]


def predicate_of_json(text: str):
    """Return the predicate of an expression in Polars' JSON."""
    expanded = re.sub(
        '"@([^"]*)"',
        lambda match: json.dumps(list(base64.b64decode(match[1]))).replace(" ", ""),
        text,
    )
    return polars_expression.predicate_from_polars_json(
        polars_expression.parse_polars_json(expanded), TABLE.schema
    )


@pytest.mark.parametrize("form", FORMS, ids=lambda form: f"{form['polars']} {form['column']}")
def test_every_recorded_form_of_a_literal(form):
    predicate = predicate_of_json(form["json"])
    for row in form["rows"]:
        assert bounds(predicate, row)[0], f"row {row} is lost: {predicate!r}"


def test_every_kind_of_literal_has_a_form():
    texts = " ".join(form["json"] for form in FORMS)
    kinds = set(re.findall(r'"(?:Scalar|Dyn)":\{"(\w+)"', texts))
    assert kinds >= {
        "Int", "Float", "Null", "Boolean", "Int8", "Int16", "Int32", "Int64", "Int128", "UInt8",
        "UInt16", "UInt32", "UInt64", "UInt128", "Float16", "Float32", "Float64", "Decimal",
        "String", "Binary", "Date", "Time", "Datetime", "Duration", "Categorical", "Enum", "List",
        "Struct",
    }  # fmt: skip


def pushed(frame, expression):
    """Return the filter that the optimizer pushes down into a scan, or None, and the rows."""
    predicates = []

    def source(columns, predicate, limit, batch_size):
        predicates.append(predicate)
        rows = frame if predicate is None else frame.filter(predicate)
        yield rows if columns is None else rows.select(columns)

    result = register_io_source(source, schema=frame.schema).filter(expression).collect()
    return (predicates[0] if predicates else None), result["row"].to_list()


@pytest.mark.many
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("column", FIELDS, ids=str)
def test_optimized_literals_lose_no_row(frame, column):
    frame = frame.select({*column.meta.root_names(), "row"})
    typed = [pl.lit(number, dtype=pl.Float16) for number in (0.1, 1.5, 18.25, NAN, math.inf)]
    sets = [*SETS, pl.Series([1.5, 5.0], dtype=pl.Float16), pl.Series(["a"], dtype=ENUM)]
    expressions = [
        *(compare(column, literal) for literal in (*LITERALS, *typed) for compare in COMPARED),
        *(column.is_in(values) for values in sets),
    ]
    for expression in expressions:
        try:
            predicate, rows = pushed(frame, expression)
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException):
            continue
        if predicate is not None:
            meaning = predicate_from_polars(predicate, TABLE.schema)
            for row in rows:
                assert bounds(meaning, row)[0], f"row {row} is lost: {predicate} -> {meaning!r}"


ANSWERED = [
    *(C("i64") == 5, 5 == C("i64"), ~(C("i64") != 5), C("i64").eq_missing(5)),  # noqa: SIM300
    *(C("i64").eq_missing(None), C("i64") == pl.lit(None), C("i8") == 5.5, C("i8") == 300),
    *(C("u64") == 2**64 - 1, C("i64") == 2**70, C("f32") == 1.5, C("f64") <= 0.1),
    *(C("dec") == Decimal("1.5"), C("s") == "a", C("s") > "a", C("cat") == "a", C("bin") == b"a"),
    *(C("cat").cast(pl.String) == "a", C("uuid") == uuid.UUID(int=2).bytes, C("t") == dt.time(1)),
    *(C("d32") == dt.date(2020, 1, 1), C("ts_us") == dt.datetime(2020, 1, 1)),
    *(C("ts_ns") == dt.datetime(2020, 1, 1), C("du_ms") == dt.timedelta(seconds=1)),
    *(C("st").struct.field("x") == 5, C("st").struct.field("x").is_null()),
    *(C("i8").cast(pl.Int64) == 5, C("i32").cast(pl.Float64) == 5, C("i64").alias("other") == 5),
    *(C("i64").is_null(), C("i64").is_in([5, 2]), C("i64").is_in([5, None])),
    *(C("i64").is_in([5, None], nulls_equal=True), C("i64").is_in([None], nulls_equal=True)),
    *(C("i64").is_in([]), C("i64").is_in(pl.Series([5], dtype=pl.Int8))),
    *(C("i64").is_in(pl.Series([[5, 2]])), C("i64").is_between(5, 5), C("i64") < 5),
    *(C("i64").is_between(5, 9**9, closed="left"), C("i64").is_between(5, 6), pl.lit(5) < C("i64")),
    *(pl.lit(None, dtype=pl.Boolean), C("i64").is_null() & C("i8").is_null() & C("s").is_null()),
    *(C("i64").is_null() | C("i8").is_null(), pl.any_horizontal(C("i64") == 5, C("i8").is_null())),
    pl.all_horizontal(C("i64").is_null(), C("i8").is_null()),
]  # fmt: skip


@pytest.fixture(scope="module")
def ds():
    """Return the rows with exact indices, whose zones have one row."""
    ds = zb.dataset(TABLE)
    options = {"number_of_items": 1, "spark": False}
    names = [name for name in TABLE.column_names if name not in ("b", "st", "li")]
    ds.create_scalar_index([*names, "st.x"], probability=1e-9, **options)
    for name in ("i64", "f64", "s"):
        ds.create_scalar_index(name, "ZONEMAP", f"zones of {name}", **options)
    return ds


@pytest.mark.parametrize("expression", ANSWERED, ids=lambda value: str(value)[:40])
def test_answerable_expressions_keep_only_their_rows(ds, frame, expression):
    assert ds.search(expression).at_most.rows().tolist() == selected(frame, expression)


def test_literal_of_coarser_unit_matches_a_thousand_values():
    predicate = predicate_from_polars(C("ts_ns") == dt.datetime(2020, 1, 1), TABLE.schema)
    assert isinstance(predicate, And)
    values = predicate.terms[0].values
    assert len(values) == 1000
    assert {values[0].value, values[-1].value} == {MOMENT * 10**9, MOMENT * 10**9 + 999}


def test_a_date_that_polars_cannot_write_becomes_unknown():
    first_date = pl.lit(-(2**31), dtype=pl.Date)
    with pytest.raises(pl.exceptions.PanicException):
        str(first_date)
    expression = C("d32").fill_null(first_date) == dt.date(2020, 1, 1)
    assert isinstance(predicate_from_polars(expression, TABLE.schema), Unknown)
    assert str(PolarsFilter(expression)) == "..."


def test_ambiguous_column_name_is_unknown():
    schema = pa.schema([("a", pa.int64()), ("a", pa.int64())])
    assert "more than one" in predicate_from_polars(C("a") == 1, schema).reason


def test_column_names_that_look_like_the_layout():
    names = ["Column", '{"Column":"a"}', "", "é", 'a"b', "a.b", '["bytes":0]', "[1,2,3]"]
    schema = pa.schema([(name, pa.int64()) for name in names])
    for name in names:
        assert predicate_from_polars(C(name) == 1, schema) == Equals((name,), pa.scalar(1))


def test_long_chains_are_translated():
    # Python parses JSON by recursion, which fails at a few hundred levels.
    chain = functools.reduce(operator.or_, [C("i64") == number for number in range(3000)])
    filter, predicate = translate_polars(chain, TABLE.schema)
    assert isinstance(predicate, IsIn)
    assert sorted(predicate.values.to_pylist()) == list(range(3000))
    assert filter.columns == {"i64"}


def test_long_sets_are_translated():
    values = list(range(100_000))
    predicate = predicate_from_polars(C("i64").is_in(values), TABLE.schema)
    assert predicate == IsIn(("i64",), pa.array(values))
    # A string that looks like a long list of bytes must stay a string.
    text = "[" + ",".join(["1"] * 3000) + "]"
    predicate = predicate_from_polars((C("s") == text) & C("i64").is_in(values), TABLE.schema)
    assert predicate.terms[0] == Equals(("s",), pa.scalar(text))
    assert predicate.terms[1] == IsIn(("i64",), pa.array(values))


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", "5", "null", '{"Column":5}', '{"Other":{}}', '{"Literal":{"Scalar":5}}',
     '{"BinaryExpr":{}}', '{"Function":{"input":[],"function":{"Boolean":"IsNull"}}}',
     '{"BinaryExpr":{"left":{"Column":"i64"},"op":"Eq","right":{"Literal":{"Dyn":{"Int":"5"}}}}}'],
)  # fmt: skip
def test_unexpected_layout_is_unknown(monkeypatch, text):
    replace_function(monkeypatch, type(C("i64").meta), "serialize", lambda *_, **__: text)
    assert isinstance(predicate_from_polars(C("i64") == 5, TABLE.schema), Unknown)


# The filter


ROW_WISE = [
    C("i64") == 5, C("i64").is_in(pl.Series([5])), C("s").str.contains("a"), C("i64") % 2 == 0,
    C("s").str.len_bytes() > 1, C("ts_us").dt.year() == 2020, C("f64").is_nan(),
    C("i64").fill_null(0) == 0, pl.coalesce("i64", "i32") == 5, pl.max_horizontal("i64", "i8") > 1,
    C("li").list.contains(1), C("i64").is_in(C("li")), pl.when(C("b")).then(1).otherwise(0) == 1,
    C("ts_us") == pl.datetime(2020, 1, 1), C("s").str.to_uppercase() == "A", pl.lit(True),
    C("i64").is_in(pl.Series([5])) & (C("i64").abs() == 5), C("i64").clip(0, 5) == 5,
    pl.struct("i8", "i64").struct.field("i8") == 5, C("f64").round(1) == 0.1,
]  # fmt: skip


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("expression", ROW_WISE, ids=lambda v: str(v)[:40])
def test_row_wise_filters_are_accepted(frame, expression):
    filter, _ = translate_polars(expression, TABLE.schema)
    assert filter.columns is not None
    assert filter.matching_rows(TABLE).tolist() == selected(frame, expression)


NOT_ROW_WISE = [
    C("i64") > C("i64").mean(), C("i64").sum() == 5, (C("i64") == 5).over("b"), pl.len() > 2,
    C("i64").shift() == 5, C("i64").cum_sum() == 5, C("i64").rank() == 1, C("i64").diff() == 5,
    C("i64").is_duplicated(), C("i64").is_unique(), C("i64").is_first_distinct(),
    C("i64").is_last_distinct(), C("b").any(), C("b").all(), C("i64").has_nulls(),
    C("i64").sample(fraction=1.0) == 5, C("i64").shuffle() == 5, C("i64").reverse() == 5,
    C("i64").sort() == 5, C("i64").forward_fill() == 5, C("i64").interpolate() == 5,
    C("i64").map_batches(lambda s: s == s.max(), return_dtype=pl.Boolean),
    C("i64").map_elements(lambda v: v == 5, return_dtype=pl.Boolean),
    C("i64") == pl.lit(pl.Series(range(7))), pl.lit(pl.Series([True] * 7)), C("i64").qcut(2) == "a",
    C("i64").rolling_mean(2) == 5, C("i64").is_in(C("i8").implode()), C("i64").rle_id() == 1,
    pl.int_range(pl.len()) == 1, C("s").str.to_date(strict=False) == dt.date(2020, 1, 1),
    C("i64").first() == 5, C("i64").clip(0, C("i64").max()) == 5, C("i64").peak_max(),
    (C("i64") == 5) & (C("i8") == C("i8").max()), pl.all().is_null(), pl.col("i8", "i64") == 5,
]  # fmt: skip


@pytest.mark.parametrize("expression", NOT_ROW_WISE, ids=lambda v: str(v)[:40])
def test_filters_over_several_rows_raise(expression):
    with pytest.raises(FilterError, match=r"other rows.*collect first, then filter"):
        translate_polars(expression, TABLE.schema)


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        (C("zz") == 1, "no column 'zz'.*the dataset has i8, i32"),
        (C("i64") == "a", "compare string with numeric"),
        (C("i64") + 1, "Boolean"),
    ],
)
def test_polars_errors_become_filter_errors(expression, words):
    with pytest.raises(FilterError, match=words):
        translate_polars(expression, TABLE.schema)[0].matching_rows(TABLE)


def test_only_expressions_are_filters():
    with pytest.raises(FilterError, match="a Polars Series is not a filter"):
        translate_polars(pl.Series([True]), TABLE.schema)


def test_frames_equal_those_that_polars_reads(frame):
    # pyarrow does not preserve that some days were stored as milliseconds.
    converted = to_frame(TABLE, frame.schema)
    assert converted.schema == frame.schema
    assert converted.equals(frame)


@pytest.mark.parametrize("name", ["lt", "le", "eq", "ge", "gt"])
@pytest.mark.parametrize("zone", [None, "UTC"])
def test_an_index_answers_microseconds_in_a_column_of_nanoseconds(tmp_path, name, zone):
    """Python's times have microseconds. Polars rounds the column down before it compares."""
    start, compare = dt.datetime(1969, 12, 31, 23, 59, 59, 999_995), getattr(operator, name)
    ticks = pa.array(range(-10_000, 10_000), pa.int64())
    pq.write_table(pa.table({"ts": ticks.cast(pa.timestamp("ns", zone))}), tmp_path / "0.parquet")
    ds = zb.dataset(tmp_path)
    ds.create_scalar_index("ts", "ZONEMAP", number_of_items=500)
    literal = start.replace(tzinfo=dt.UTC) if zone else start
    expression = compare(C("ts"), literal)
    expected = [tick for tick in ticks.to_pylist() if compare(tick // 1000, -5)]
    found = ds.to_polars().filter(expression).collect()["ts"]
    assert found.cast(pl.Int64).to_list() == expected
    # Without Polars' optimizer, which writes the literals in nanoseconds.
    assert ds.to_table(filter=expression)["ts"].cast(pa.int64()).to_pylist() == expected
    (use,) = ds.scanner(filter=expression).plan().indices
    assert use.kept_zones == len(expected) / 500 < use.num_zones == 40


@pytest.mark.parametrize("closed", ["both", "left", "right", "none"])
@pytest.mark.parametrize("kind", ["HASH", "BLOOMFILTER", "ZONEMAP"])
@pytest.mark.parametrize(("unit", "literal_unit"), [("ns", "us"), ("us", "ms"), ("ns", "ms")])
def test_bounds_in_a_coarser_unit_than_the_column_lose_no_row(
    tmp_path, closed, kind, unit, literal_unit
):
    step = {"us": 10**3, "ms": 10**6}[literal_unit] // {"ns": 1, "us": 10**3}[unit]
    one = {"us": dt.timedelta(microseconds=1), "ms": dt.timedelta(milliseconds=1)}[literal_unit]
    ticks = pa.array([number * step // 2 + 1 for number in range(-20, 20)], pa.int64())
    pq.write_table(pa.table({"ts": ticks.cast(pa.timestamp(unit))}), tmp_path / "0.parquet")
    ds = zb.dataset(tmp_path)
    ds.create_scalar_index("ts", kind, number_of_items=4)
    for low, high in ((-3, 5), (0, 0), (-8, -8), (-100, 100)):
        times = [dt.datetime(1970, 1, 1) + bound * one for bound in (low, high)]
        literals = [pl.lit(time, pl.Datetime(literal_unit)) for time in times]
        expression = C("ts").is_between(*literals, closed=closed)
        first_matches = operator.le if closed in ("both", "left") else operator.lt
        last_matches = operator.le if closed in ("both", "right") else operator.lt
        expected = [
            tick
            for tick in ticks.to_pylist()
            if first_matches(low, tick // step) and last_matches(tick // step, high)
        ]
        assert ds.to_table(filter=expression)["ts"].cast(pa.int64()).to_pylist() == expected
        found = ds.to_polars().filter(expression).collect()["ts"].to_physical().to_list()
        assert found == expected
