"""Compare SQL filters with DuckDB, with and without indices, and check what DuckDB is given."""

from __future__ import annotations

import datetime as dt
import itertools
import math
import random
import subprocess
import sys
import threading
from decimal import Decimal

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from support.helpers import cases, run_python

import zonebloom as zb
from zonebloom import predicates
from zonebloom.errors import FilterError, InvalidArgument
from zonebloom.predicates import Compares, Equals, is_same_filter, sql, translate_filter, unknowns
from zonebloom.predicates.duckdb_engine import DuckDBFilter
from zonebloom.scan.recheck import matching_rows

NAN, INF = math.nan, math.inf
SMALL_FLOAT = float(np.float32(0.1))
WHOLE = [0, 1, -1, 5, None, 100, 7]
TEXTS = ["", "a", "Ab b", "éß", None, "x%_\\", "a\nb", "5", "disk 42 full", "İıſK", "2020-01-01"]
DAYS = [dt.date(2020, 1, 1), dt.date(1969, 12, 31), None, dt.date(2020, 2, 29)]
MICROS = [0, 1577836800000000, None, 1577836800500000, 1577836800000001, -1, 1582977600000000]
LONG = [957030400.0, SMALL_FLOAT, 1 / 3, 1e22, 5.0]
COLUMNS = {
    "b": (pa.bool_(), [True, False, None]),
    "i8": (pa.int8(), [*WHOLE, 127, -128]),
    "i32": (pa.int32(), [*WHOLE, 2**31 - 1, 16777217]),
    "i64": (pa.int64(), [*WHOLE, 2**53, 2**53 + 1, 2**63 - 1, -(2**63)]),
    "u64": (pa.uint64(), [0, 1, 5, None, 2**64 - 1, 2**53 + 1]),
    "f32": (pa.float32(), [0.0, -0.0, 1.5, SMALL_FLOAT, None, NAN, INF, -INF, 2.0**24, *LONG]),
    "f64": (pa.float64(), [0.0, -0.0, 1.5, 0.1, None, NAN, INF, -INF, 2.0**53, *LONG]),
    "dec": (pa.decimal128(5, 2), [Decimal("1.50"), Decimal("5.55"), None, Decimal("-1.5")]),
    "s": (pa.string(), TEXTS),
    "d": (pa.dictionary(pa.int8(), pa.string()), TEXTS[::-1]),
    "raw": (pa.binary(), [b"", b"a", b"\x0a", None]),
    "day": (pa.date32(), DAYS),
    "sec": (pa.timestamp("s"), [None if m is None else m // 10**6 for m in MICROS]),
    "ts": (pa.timestamp("us"), MICROS),
    "ns": (pa.timestamp("ns"), [None if m is None else m * 1000 + 1 for m in MICROS]),
    "moment": (pa.timestamp("us", "UTC"), MICROS),
    "clock": (pa.time64("us"), [0, 3600 * 10**6, None, 43200500000]),
    "took": (pa.duration("us"), [0, 10**6, None, 86400 * 10**6]),
    "tags": (pa.list_(pa.string()), [["a", "Ab b"], [], None, [None], ["x", None, "éß"]]),
    "numbers": (pa.list_(pa.int32()), [[1, 2], [], None, [None, 5], [-7, 0]]),
    "attrs": (pa.map_(pa.string(), pa.int64()), [[("a", 1)], [], None, [("b", 5), ("a", None)]]),
    "st": (pa.struct({"x": pa.int32(), "name": pa.string()}),
           [{"x": 1, "name": "a"}, None, {"x": None, "name": ""}, {"x": 5, "name": "Ab b"}]),
}  # fmt: skip
NUM_ROWS = 240


def make_column(name: str) -> pa.Array:
    type_, values = COLUMNS[name]
    step = list(COLUMNS).index(name) + 2
    rows = [values[(row + row // step) % len(values)] for row in range(NUM_ROWS)]
    return pa.array(rows).dictionary_encode().cast(type_) if name == "d" else pa.array(rows, type_)


TABLE = pa.table({name: make_column(name) for name in COLUMNS})
TABLE = TABLE.append_column("row", pa.array(range(NUM_ROWS)))
CONNECTION = duckdb.connect()
CONNECTION.execute("SET TimeZone = 'UTC'; SET threads = 1; PRAGMA disable_optimizer")
CONNECTION.register("rows", TABLE)

NUMBERS = [
    *("0", "1", "-1", "5", "5.0", "5.5", "0.1", "1.50", "5e0", "0.1e0", "-0.0", "127", "128"),
    *("16777217", "9007199254740993", "9007199254740993.0", "9007199254740992e0", "1e30", "5.555"),
    *("18446744073709551615", "NULL", "40+2-37", "10/2", "0.1::FLOAT", "'NaN'::DOUBLE"),
    *("957030400.0", "0.3333333333333333", "10000000000000000000000.00", "957030400"),
    *("'Infinity'::DOUBLE", "NULL::DOUBLE", "5::DECIMAL(10,3)", "1.5::DECIMAL(38,20)"),
]
STRINGS = ["''", "'a'", "'Ab b'", "'éß'", "'5'", "upper('a')", "'2020-01-' || '01'", "NULL"]
PATTERNS = ["'%'", "'a%'", "'%b'", "'_b%'", r"'%\%'", "'%42%'", "'a'", "'%disk 42 full%'"]
MOMENTS = [
    *("'2020-01-01'", "'2020-01-01 00:00:00.5'", "DATE '2020-01-01'", "DATE '2020-01-02' - 1"),
    *("TIMESTAMP '2020-01-01'", "TIMESTAMP '2020-01-01 00:00:00.0000010'", "NULL"),
    "CAST('2020-01-01 00:00:00.000001001' AS TIMESTAMP_NS)",
]
INSTANTS = ["'2020-01-01 00:00:00+00:00'", "TIMESTAMPTZ '2020-01-01 01:00:00.5+01:00'"]
LITERALS = [
    (["i8", "i32", "i64", "u64", "f32", "f64", "dec", "st.x"], NUMBERS),
    (["s", "d", "st['name']"], STRINGS),
    (["day", "sec", "ts", "ns"], MOMENTS),
    (["moment"], INSTANTS),
    (["raw"], ["X'0a'", "'a'", "X''", "NULL"]),
    (["clock"], ["TIME '12:00:00.5'", "'01:00'", "'12:00:00.5'"]),
    (["took"], ["INTERVAL 1 SECOND", "INTERVAL '1' DAY", "INTERVAL 1 MONTH"]),
    (["b"], ["TRUE", "FALSE", "NULL", "1 = 1"]),
]
# Each kind of condition of docs/filters.md that is no comparison of a column with literals.
OTHER_CONDITIONS = [
    *("b", "NOT b", "i8 = i64", "f32 < f64", "s = d", "ts > day", "b = (i8 = 1) IS NULL"),
    *("{text} LIKE {pattern}", "{text} NOT LIKE {pattern}", "{text} ILIKE {pattern}"),
    *("s LIKE 'x!%!_%' ESCAPE '!'", "lower(s) LIKE 'ab%'", "s SIMILAR TO 'a|b'", "s GLOB 'a*'"),
    *("lower(s) = 'ab b'", "upper(d) = 'A'", "contains(s, '42')", "starts_with(s, 'Ab')"),
    *("ends_with(s, 'full')", "regexp_matches(s, 'disk (42|7)')", "regexp_full_match(s, 'a|b')"),
    *("list_contains(tags, {string})", "{string} = ANY(tags)", "list_has_any(tags, ['a', 'x'])"),
    *("list_has_all(tags, ['a', 'Ab b'])", "list_contains(numbers, {number})", "tags[1] = 'a'"),
    *("tags[-1] = 'éß'", "tags[1:1] = ['a']", "len(numbers) = 2"),
    *("attrs['a'] = {number}", "attrs['b'] IN (5, 6)", "attrs['a'] IS NULL", "st.name = 'a'"),
    *("(i8, s) IN ((1, 'a'), (5, 'Ab b'), (0, ''))", "(i8, s) NOT IN ((1, 'a'), (NULL, ''))"),
    *("(i8, upper(s)) = (1, 'A')", "(i8, f32) IN ((1, 0.1), (5, 1.5))", "(i8, s) = (1, NULL)"),
    *("i8 % 7 = 1", "i8 // 2 = 3", "-i8 < 0", "i8 + 1 IN (1, 2)", "f64 * 2 = 3", "dec / 2 > 1"),
    *("round(dec) = 2", "greatest(f64, 1) > 1", "isnan(f32)", "1 / f64 < 0", "abs(f32) = 1.5"),
    *("CASE WHEN i8 > 1 THEN length(s) ELSE 0 END = 1", "if(b, i8, 5) = 5", "nullif(s, '') = 'a'"),
    *("coalesce(i8, i32, 0) = 0", "ifnull(f64, 1) = 1", "least(day, ts) = day", "s || i8 = 'a1'"),
    *("date_trunc('hour', day) = DATE '2020-02-29'", "year(ts) = 2020", "hour(moment) = 0"),
    *("extract(month FROM day) = 2", "moment::DATE = '2020-01-01'", "ts + INTERVAL 1 DAY > day"),
    *("day + 1 > DATE '2020-01-01'", "ts - sec > INTERVAL '1' SECOND", "day::TEXT > '2'"),
    *("TRY_CAST(s AS INT) = 5", "CAST(f32 AS DOUBLE) = 0.1", "i8::DOUBLE = {number}"),
    *("i8::DECIMAL(10, 2) = {number}", "day::TIMESTAMP > {moment}", "f64::TEXT > '1'"),
    *("list_filter(tags, x -> x = 'a') = ['a']", "substring(s, 1, 1) = 'a'", "trim(s) = 'a'"),
    *("({literal}) IS TRUE", "({literal}) IS NOT FALSE", "({literal}) IS NULL"),
]  # fmt: skip


def draw_comparison(rng: random.Random) -> str:
    columns, literals = rng.choice(LITERALS)
    column = rng.choice(columns)
    some = [rng.choice(literals) for _ in range(3)]
    op = rng.choice(["=", "=", "<>", "<", "<=", ">", ">="])
    return rng.choice(
        [
            *(f"{column} {op} {some[0]}", f"{some[0]} {op} {column}"),
            *(f"{column} IN ({some[0]}, {some[1]})", f"{column} NOT IN ({', '.join(some)})"),
            f"{column} {rng.choice(['', 'NOT '])}BETWEEN {some[0]} AND {some[1]}",
            f"{column} IS {rng.choice(['', 'NOT '])}NULL",
            f"{column} IS {rng.choice(['', 'NOT '])}DISTINCT FROM {some[0]}",
        ]
    )


def draw_condition(rng: random.Random, depth: int = 2) -> str:
    kind = rng.randrange(8)
    if depth and kind == 0:
        return f"NOT ({draw_condition(rng, depth - 1)})"
    if depth and kind <= 3:
        terms = [draw_condition(rng, depth - 1) for _ in range(rng.randint(2, 3))]
        return f" {rng.choice(['AND', 'AND', 'OR'])} ".join(f"({term})" for term in terms)
    if kind <= 5:
        return draw_comparison(rng)
    parts = {
        "text": rng.choice(["s", "d", "st.name", "s || 'x'"]),
        "pattern": rng.choice(PATTERNS),
        "string": rng.choice(STRINGS),
        "number": rng.choice(NUMBERS),
        "moment": rng.choice(MOMENTS),
        "literal": draw_comparison(rng),
    }
    return rng.choice(OTHER_CONDITIONS).format(**parts)


def duckdb_rows(text: str) -> list[int]:
    query = f"SELECT row FROM (SELECT row, ({text}) AS m FROM rows) WHERE m ORDER BY row"
    return [row for (row,) in CONNECTION.execute(query).fetchall()]


def our_rows(text: str, table: pa.Table = TABLE) -> list[int]:
    row_filter, predicate = translate_filter(text, table.schema)
    assert row_filter is not None
    return matching_rows(table, row_filter, predicate).tolist()


@pytest.fixture(scope="module")
def indexed_dataset(tmp_path_factory) -> zb.Dataset:
    """Return the rows in files of small row groups, with indices of all kinds."""
    folder = tmp_path_factory.mktemp("indexed") / "data"
    folder.mkdir()
    for number, start in enumerate((0, 90, 200)):
        table = TABLE.slice(start, [90, 110, 40][number])
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=10)
    ds = zb.dataset(folder)
    hashed = ["i32", "f32", "f64", "dec", "s", "d", "day", "ts", "ns", "moment", "st.x"]
    for column in hashed:
        ds.create_scalar_index(column, number_of_items=8)
    ds.create_scalar_index(["tags[]", "numbers[]", "attrs[]", "i64", "u64"], "HASH")
    ds.create_scalar_index(("i8", "s"), "HASH")
    for column in ("f32", "f64", "i8", "ts", "s"):
        ds.create_scalar_index(column, "ZONEMAP", name=f"{column}_zones")
    ds.create_scalar_index("s", "HASH", tokens="words", lower=True)
    ds.create_scalar_index("s", "HASH", tokens="trigrams")
    return ds


# We are stricter than DuckDB here, as docs/filters.md says.
OUR_REFUSALS = ("fails on values of the rows", "is not a date or timestamp", "ends in its escape")


@pytest.mark.parametrize("seed", range(cases(20, 5)))
def test_conditions_keep_the_rows_of_duckdb_with_and_without_indices(indexed_dataset, seed):
    rng = random.Random(seed)
    num_compared = 0
    for _ in range(100):
        text = draw_condition(rng)
        try:
            expected = duckdb_rows(text)
        except duckdb.Error:
            # Some of these conditions fail on values of some rows.
            continue
        try:
            found = indexed_dataset.to_table(["row"], text)["row"].to_pylist()
            found_without_index = our_rows(text)
        except FilterError as error:
            assert any(part in str(error) for part in OUR_REFUSALS), (text, error)
            continue
        assert (sorted(found), found_without_index) == (expected, expected), text
        num_compared += 1
    assert num_compared > 50


def test_each_column_and_literal_is_compared_as_duckdb_does():
    for columns, literals in LITERALS:
        for column, literal in itertools.product(columns, literals):
            for form in ("{} = {}", "{} > {}", "NOT {} IN ({})", "CAST({} AS DOUBLE) < {}"):
                text = form.format(column, literal)
                try:
                    expected = duckdb_rows(text)
                except duckdb.Error:
                    continue
                try:
                    assert our_rows(text) == expected, text
                except FilterError as error:
                    assert any(part in str(error) for part in OUR_REFUSALS), (text, error)


PLAIN = [
    *("i64 = 42", "i64 IN (1, 2) AND s = 'x'", "f64 > 1.5 OR NOT (day <= DATE '2020-01-01')"),
    *("st.x BETWEEN 1 AND 2", "b", "ts < '2020-01-01'", "(i64, s) IN ((1, 'x'), (2, 'y'))"),
    *("s LIKE 'x'", "i32::BIGINT = 5", "f32 = 0.5", "i64 IS NOT DISTINCT FROM 42", "raw = X'0a'"),
]


def test_plain_conditions_need_no_duckdb():
    code = f"""
import sys, pyarrow as pa
from zonebloom.predicates import translate_filter, unknowns
sys.modules["duckdb"] = None
fields = {{"i32": "int32", "i64": "int64", "f32": "float32", "f64": "float64", "s": "string",
    "day": "date32", "ts": pa.timestamp("us"), "b": "bool", "st": pa.struct({{"x": "int32"}}),
    "raw": "binary"}}
schema = pa.schema(fields)
for text in {PLAIN!r}:
    assert not unknowns(translate_filter(text, schema)[1]), text
try:
    translate_filter("upper(s) = 'X'", schema)
except ImportError as error:
    assert "pip install 'zonebloom[sql]'" in str(error)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_duckdb_prints_no_progress():
    # A process without a script is interactive for DuckDB, which then prints bars by default.
    code = """
        import pyarrow as pa
        from zonebloom.predicates.duckdb_engine import DuckDBExpression, evaluate_by_duckdb

        setting = DuckDBExpression("current_setting('enable_progress_bar')", ())
        print(evaluate_by_duckdb([setting], pa.table({"a": [1]})).column(0).to_pylist())
    """
    assert run_python(code) == "[False]\n"


def test_plain_terms_are_applied_first():
    row_filter, predicate = translate_filter("i8 = 5 AND (NOT b OR b) AND s::INT = 5", TABLE.schema)
    assert isinstance(row_filter, DuckDBFilter)
    assert len(row_filter.terms) == 1
    assert row_filter.columns == {"i8", "b", "s"}
    assert len(unknowns(predicate)) == 1
    table = pa.table({"a": [1, 5, 5], "text": ["x", "7", "8"]})
    assert our_rows("text::INT = 7 AND a = 5", table) == [1]
    assert our_rows("(a = 5 AND text::INT = 7) OR (a = 5 AND text::INT = 8)", table) == [1, 2]
    # An index may exclude rows by a text, so they must not make the filter fail without it.
    assert our_rows("text::INT = 7 AND contains(text, '7')", table) == [1]
    with pytest.raises(FilterError, match=r"fails on values of the rows.*TRY_CAST"):
        our_rows("text::INT = 7", table)
    assert our_rows("TRY_CAST(text AS INT) = 7", table) == [1]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        *((f"s = {text}", "no function") for text in ("getenv('HOME')", "version()", "uuid()")),
        *((f"{text} = 1", "no function") for text in ("current_setting('threads')", "random()")),
        *((f"{text} = s", "no function") for text in ("read_text('x')", "repeat(s, 9)")),
        *((f"{text} = 1", "no function") for text in ("sum(i8)", "nextval('x')", "query('x')")),
        *((text, "queries inside a filter") for text in ("i8 = (SELECT 1)", "EXISTS (SELECT 1)")),
        *((text, "queries inside a filter") for text in ("i8 IN (SELECT 1)", "5 = ANY(SELECT 1)")),
        *((text, "is not understood") for text in ("count(*) = 1", "? = i8", ":x = i8", "i8 ^ 2")),
        *((text, "is not understood") for text in ("s COLLATE nocase = 'a'", "{'a': i8} = 1")),
        *((text, "is not understood") for text in ('i8::"a b" = 1', "s -> 'a' = 'b'")),
        *((text, "there is no column") for text in ("TABLE = 1", "rowid = 1", "$1 = i8")),
        *((text, "comparisons are chained") for text in ("1 < i8 < 3", "i8 = 1 = b")),
        ("lowr(s) = 'a'", "Did you mean lower"),
        ("upper(i8) = 'A'", "DuckDB refuses"),
        ("upper(s)", "not a condition"),
        ("replace(" * 4 + "s" + ", 'a', 'aaaaaaaaaa')" * 4 + " = 'x'", "10,000 times as long"),
        ("contains_token(s, 'a b')", "one word"),
        ("moment = ts", "cannot|are compared"),
        ("ts < now()", "Write now.. AT TIME ZONE 'UTC'"),
    ],
)  # fmt: skip
def test_what_a_filter_must_not_do_is_refused(text, says):
    with pytest.raises(FilterError, match=says):
        translate_filter(text, TABLE.schema)


@pytest.mark.parametrize(
    "type_",
    [pa.decimal256(60, 1), pa.duration("ns"), pa.dense_union([pa.field("a", pa.int8())]),
     pa.list_(pa.float16())],
)  # fmt: skip
def test_types_that_duckdb_lacks_are_refused(type_):
    schema = pa.schema({"c": type_, "id": pa.int64()})
    with pytest.raises(FilterError, match="DuckDB has no type"):
        translate_filter("c::TEXT = 'a' AND id = 1", schema)
    assert not unknowns(translate_filter("id = 1", schema)[1])


def test_half_floats_and_views_are_handed_over():
    columns = {"h": pa.array([1.5, NAN, None], pa.float16()), "v": pa.array(["a", "b", None])}
    table = pa.table(columns).set_column(1, "v", pa.array(["a", "b", None], pa.string_view()))
    assert our_rows("h + 1 = 2.5", table) == [0]
    assert our_rows("h > 1", table) == [0, 1]
    assert our_rows("h IS NOT NULL AND upper(v) = 'B'", table) == [1]


def test_names_that_differ_by_case_and_lists_of_structs_are_handed_over():
    struct = pa.struct({"A": pa.string(), "a": pa.string(), 'q"t': pa.int8()})
    rows = {"x": [1, 2], "X": [3, 4], "": [5, 6], "at": [7, 8], "row id": [9, 10]}
    table = pa.table(rows).append_column(
        "st", pa.array([{"A": "u", "a": "v", 'q"t': 1}, {"A": "v", "a": "u", 'q"t': 2}], struct)
    )
    table = table.append_column("events", pa.array([[{"id": 7}], [{"id": 8}]]))
    assert our_rows('"x" + 0 = 1 AND "X" + 0 = 3', table) == [0]
    assert our_rows("upper(st.A) = 'V' AND upper(st.a) = 'U'", table) == [1]
    assert our_rows('at % 2 = 0 AND "row id" + 1 = 11 AND st."q""t" * 2 = 4', table) == [1]
    assert our_rows("list_contains(events.id, 7)", table) == [0]


CONSTANTS = [
    ("i64 = 40 + 2", "i64 = 42"),
    ("i64 = 84 / 2", "i64 = 42"),
    ("i64 IN (6 * 7, -(1))", "i64 IN (42, -1)"),
    ("s = lower('AB')", "s = 'ab'"),
    ("s LIKE 'a' || 'b'", "s = 'ab'"),
    ("day = DATE '2024-03-01' - 1", "day = '2024-02-29'"),
    ("ts > DATE '2024-03-31' - INTERVAL 1 MONTH", "ts > '2024-02-29 00:00:00'"),
    ("i64 = NULL + 1", "NULL"),
    ("1 = 1 OR upper(s) = 'X'", "TRUE OR upper(s) = 'X'"),
    ("st['x'] = 5", "st.x = 5"),
    ("(i64, s) IN ((1, 'x'), (2, 'y'))", "(i64 = 1 AND s = 'x') OR (i64 = 2 AND s = 'y')"),
]


@pytest.mark.parametrize(("text", "predicate"), CONSTANTS)
def test_constants_are_computed(text, predicate):
    assert str(translate_filter(text, TABLE.schema)[1]) == predicate


def test_plans_use_the_index_for_the_parts_that_it_can_answer(tmp_path):
    table = pa.table({"id": range(3000), "name": [f"N{n}" for n in range(3000)]})
    pq.write_table(table, tmp_path / "data.parquet")
    ds = zb.dataset(tmp_path)
    for column in ("id", "name"):
        ds.create_scalar_index(column, number_of_items=100)
    for text in (
        "id = 42 AND lower(name) = 'n42'",
        "id = 40 + 2 AND length(name) = 3",
        "(id, name) IN ((42, 'N42'), (43, 'N1'))",
        "(id, lower(name)) IN ((42, 'n42'), (43, 'n1'))",
        "name = upper('n') || 42 AND id % 2 = 0",
        "(id = 42) IS TRUE",
    ):
        assert ds.to_table(filter=text)["id"].to_pylist() == [42]
        ranges = ds.search(text).ranges
        assert ranges is not None
        assert 0 < sum(map(len, ranges.values())) < 3000, text


def test_a_clock_is_read_once_for_each_filter():
    schema = pa.schema({"moment": pa.timestamp("us", "UTC"), "day": "date32"})
    for text in ("moment > now()", "moment > current_timestamp - INTERVAL 1 DAY"):
        (_, first), (_, second) = (translate_filter(text, schema) for _ in range(2))
        assert isinstance(first, Compares)
        assert isinstance(second, Compares)
        assert first.value.as_py() < second.value.as_py()
    _, predicate = translate_filter("now() = current_timestamp AND moment > now()", schema)
    assert str(predicate).startswith("TRUE AND moment > '")
    _, predicate = translate_filter("day = current_date OR day = today()", schema)
    assert str(dt.datetime.now(dt.UTC).date()) in str(predicate)
    filters = [translate_filter("year(moment) < year(now())", schema)[0] for _ in range(2)]
    assert not is_same_filter(*filters)
    # A cached translation would have the time of the first call.
    assert all(map(predicates._CLOCK.search, sql._CLOCK_FUNCTIONS))


def test_lists_of_filters_must_all_match():
    table = pa.table(
        {"id": range(100), "name": [f"N{n % 7}" for n in range(100)], "tags": [["x", "y"], []] * 50}
    )
    ds = zb.dataset(table)
    parts = ["id > 10", pc.field("id") < 50, Equals(("name",), pa.scalar("N1"))]
    expected = [n for n in range(11, 50) if n % 7 == 1]
    assert ds.to_table(filter=parts)["id"].to_pylist() == expected
    with_list = ["list_contains(tags, 'x')", "tags[-1] = 'y'", *parts]
    expected = [n for n in expected if n % 2 == 0]
    assert ds.to_table(filter=with_list)["id"].to_pylist() == expected
    assert ds.filter("list_contains(tags, 'x')").count_rows(parts) == len(expected)
    # Tuples are still a disjunction in its normal form.
    assert ds.count_rows([("id", "<", 5)]) == 5
    assert ds.count_rows([[("id", "<", 5)], [("id", "=", 7)]]) == 6
    for mixture in (["id = 1", ("id", "=", 1)], [None, "id = 1"]):
        with pytest.raises(FilterError, match="which must all match, or only DNF tuples"):
            ds.count_rows(mixture)
    with pytest.raises(InvalidArgument, match="cannot be combined"):
        ds.count_rows(["id = 1", pl.col("id") == 1])


def test_columns_are_computed_by_duckdb():
    table = pa.table({"id": [1, 2, 3], "name": ["a", None, "c"], "st": [{"x": 5}] * 3})
    ds = zb.dataset(table)
    columns = {
        "who": "upper(name)",
        "id": "id",
        "next": pc.field("id") + 1,
        "x": "st.x",
        "n": "now()",
    }
    found = ds.to_table(columns, filter="id % 2 = 1")
    assert found.drop("n").to_pylist() == [
        {"who": "A", "id": 1, "next": 2, "x": 5}, {"who": "C", "id": 3, "next": 4, "x": 5}
    ]  # fmt: skip
    assert found.schema == ds.scanner(columns, "id % 2 = 1").schema
    assert ds.to_table({"a": "1 + 1"}).to_pylist() == [{"a": 2}] * 3
    with pytest.raises(InvalidArgument, match="cannot be computed from values of the rows"):
        ds.to_table({"number": "name::INT"})
    with pytest.raises(FilterError, match="DuckDB refuses"):
        ds.to_table({"who": "upper(id)"})


def test_threads_have_their_own_connections():
    results: list[list[int]] = []
    threads = [
        threading.Thread(target=lambda: results.append(our_rows("upper(s) = 'A'")))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [duckdb_rows("upper(s) = 'A'")] * 4
