"""Check SQL filters against plain Python in three-valued logic, and against DuckDB."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal

import duckdb
import numpy as np
import pyarrow as pa
import pytest

import zonebloom as zb
from zonebloom.errors import FilterError

NAN = math.nan


TYPED = [
    # type, values, filter, rows that match
    (pa.float16(), [1.5, None, 0.0, NAN, -0.0], "c = 1.5", [0]),
    (pa.float16(), [1.5, None, 0.0, NAN, -0.0], "c IN (0, CAST('NaN' AS DOUBLE))", [2, 3, 4]),
    (pa.float16(), [1.5, None, 0.0, NAN, -0.0], "c < 1.6", [0, 2, 4]),
    (pa.float32(), [float(np.float32(0.1)), None], "c = 0.1", [0]),
    (pa.float32(), [float(np.float32(0.1)), None], "c > 0.1e0", [0]),
    (pa.float32(), [float(np.float32(0.1)), None], "c = CAST(0.1 AS FLOAT)", [0]),
    (pa.float32(), [16777216.0, None], "c = 16777217", [0]),
    (pa.string_view(), ["x", None, "y"], "c = 'x'", [0]),
    (pa.string_view(), ["x", None, "y"], "NOT c IN ('x')", [2]),
    (pa.string_view(), ["x", None, "y"], "c LIKE '_'", [0, 2]),
    (pa.large_string(), ["x", None, "y"], "c > 'x'", [2]),
    (pa.binary(), [b"\x0a", None, b"x"], "c = X'0a'", [0]),
    (pa.binary_view(), [b"\x0a", None, b"x"], "c IN (x'0A', 'x')", [0, 2]),
    (pa.binary(2), [b"xx", None, b"yy"], "c IN ('xx', 'xxx')", [0]),
    (pa.binary(2), [b"xx", None, b"yy"], "c <> 'xxx'", [0, 2]),
    (pa.decimal32(5, 1), [Decimal("1.5"), None], "c IN (1.5, 1.55)", [0]),
    (pa.decimal64(5, 1), [Decimal("1.5"), None], "c < 1.55", [0]),
    (pa.decimal128(5, 1), [Decimal("1.5"), None], "c = '1.50'", [0]),
    (pa.decimal256(60, 1), [Decimal("1.5"), None], "c = 1.5 AND c < 100", [0]),
    (pa.date32(), [dt.date(2020, 1, 1), None], "c = '2020-01-01'", [0]),
    (pa.date32(), [dt.date(2020, 1, 1), None], "c = TIMESTAMP '2020-01-01 00:00:01'", []),
    (pa.date32(), [dt.date(2020, 1, 1), None], "c < TIMESTAMP '2020-01-01 00:00:01'", [0]),
    (pa.date64(), [dt.date(2020, 1, 1), None], "c IN (DATE '2020-01-01')", [0]),
    (pa.timestamp("s"), [2**40, 0, None], "c > '1970-01-01 00:00:00.000000001'", [0]),
    (pa.timestamp("ms"), [1577836800000, None], "c = DATE '2020-01-01'", [0]),
    (pa.timestamp("ms"), [1577836800000, None], "c = TIMESTAMP '2020-01-01 00:00:00.0001'", []),
    (pa.timestamp("ms"), [1577836800000, None], "NOT c = TIMESTAMP '2020-01-01 00:00:00.01'", [0]),
    (pa.timestamp("us", "Europe/Berlin"), [1577836800000000, None],
     "c = '2020-01-01 01:00:00+01:00'", [0]),
    (pa.timestamp("us", "UTC"), [1577836800000000, None],
     "c = TIMESTAMP '2020-01-01T02:00:00+02:00'", [0]),
    (pa.timestamp("us", "UTC"), [1577836800000000, None],
     "c IN (TIMESTAMPTZ '2019-12-31 18:30:00-0530')", [0]),
    (pa.time32("s"), [dt.time(1, 2, 3), None], "c = TIME '01:02:03'", [0]),
    (pa.duration("ms"), [dt.timedelta(days=1), None], "c = INTERVAL '24' HOUR", [0]),
    (pa.dictionary(pa.int8(), pa.uint64()), [2**63, 5, None], "c = 5", [1]),
    (pa.uint64(), [0, 2**63, None], "c > -1", [0, 1]),
    (pa.bool_(), [True, False, None], "c > FALSE", [0]),
]  # fmt: skip


@pytest.mark.parametrize(("type_", "values", "text", "expected"), TYPED)
def test_literals_take_the_type_of_the_column(type_, values, text, expected):
    if isinstance(type_, pa.DictionaryType):
        column = pa.array(values, type_.value_type).dictionary_encode().cast(type_)
    else:
        values = [
            np.float16(v) if pa.types.is_float16(type_) and v is not None else v for v in values
        ]
        column = pa.array(values, type_)
    ds = zb.dataset(pa.table({"c": column, "row": range(len(column))}))
    assert ds.to_table(["row"], text)["row"].to_pylist() == expected


NAMES = pa.schema(
    {"id": "int64", "a.b": "int64", "c.d": "int64", "Kind": "int64", "kind": "int64",
     "date": "int64",
     "a": pa.struct({"b": pa.int64(), "C d": pa.int64(), "x.y": pa.int64()}), "Upper": "int64",
     "l": pa.list_(pa.int64())}
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("id = 1", ("id",)),
        ("ID = 1", ("id",)),
        ("`id` = 1", ("id",)),
        ('"UPPER" = 1', ("Upper",)),
        ("kind = 1", ("kind",)),
        ('"Kind" = 1', ("Kind",)),
        ("a.b = 1", ("a", "b")),
        ("a['b'] = 1", ("a", "b")),
        ('"a.b" = 1', ("a.b",)),
        ("c.d = 1", ("c.d",)),
        ('a."C d" = 1', ("a", "C d")),
        ("A.`c D` = 1", ("a", "C d")),
        ("a.`x.y` = 1", ("a", "x.y")),
        ("date = 1", ("date",)),
    ],
)
def test_column_names_follow_the_rules_of_sql(text, path):
    leaves = [("id",), ("a.b",), ("c.d",), ("Kind",), ("kind",), ("date",), ("Upper",)]
    leaves += [("a", "b"), ("a", "C d"), ("a", "x.y")]
    # Each row has a one in one leaf.
    rows = [{name: int(leaf == (name,)) for (name, *rest) in leaves if not rest} for leaf in leaves]
    for row, leaf in zip(rows, leaves, strict=True):
        row["a"] = {name: int(leaf == ("a", name)) for name in ("b", "C d", "x.y")}
    found = zb.dataset(pa.Table.from_pylist(rows, NAMES)).to_table(filter=text)
    assert found.equals(pa.Table.from_pylist([rows[leaves.index(path)]], NAMES))


@pytest.mark.parametrize(
    "text",
    [
        "s['a'] = 10",
        '"s"."a" = 10',
        '"s.a" = 10',
        "x['b']['c'] = 4",
        "x.b.c = 4",
        "s['a'] + 0 = 10",
    ],
)
def test_dots_between_names_are_not_part_of_a_name(text):
    columns = {"s.a": [10, 20], "s": [{"a": 1}, {"a": 10}]}
    columns |= {"x.b": [{"c": 1}, {"c": 2}], "x": [{"b": {"c": 4}}, {"b": {"c": 2}}]}
    rows = pa.table(columns)
    wanted = duckdb.sql(f'SELECT "s.a" FROM rows WHERE {text}').fetchall()
    assert zb.dataset(rows).to_table(["s.a"], text)["s.a"].to_pylist() == [row[0] for row in wanted]


@pytest.mark.parametrize("text", ["id = x", "id = `x`", 'a."x" = 1', 'id = "a"."x"'])
def test_only_names_in_double_quotes_may_be_meant_as_strings(text):
    with pytest.raises(FilterError, match="there is no column") as caught:
        zb.dataset(NAMES.empty_table()).count_rows(text)
    assert "single quotes" not in str(caught.value)


@pytest.mark.parametrize("text", [r"raw = '\x61'", r"raw IN (X'61', '\x61')"])
def test_backslash_in_string_for_binary_column_raises(text):
    with pytest.raises(FilterError, match="Write X'5c783631'"):
        zb.dataset(pa.table({"raw": [b"a"]})).count_rows(text)


@pytest.mark.parametrize(
    "text", ["s = '\ud800'", "s IN ('a', '\udfff')", "\ud800 = 1", "s LIKE '\ud83d%'"]
)
def test_half_a_surrogate_pair_raises(text):
    with pytest.raises(FilterError, match="half a character") as e:
        zb.dataset(pa.table({"s": ["a"]})).count_rows(text)
    assert e.value.__suppress_context__


def test_a_text_is_translated_for_each_schema():
    types = [pa.int64(), pa.int32(), pa.string(), pa.int64()]
    texts = ["x = 1", "x = 1", "x = '1'", "x = 1"]
    for type_, text in zip(types * 2, texts * 2, strict=True):
        assert zb.dataset(pa.table({"x": pa.array([0, 1]).cast(type_)})).count_rows(text) == 1
    with pytest.raises(FilterError, match="there is no column x"):
        zb.dataset(pa.table({"y": [1]})).count_rows("x = 1")


_REPLACED = "s"
for _ in range(5):
    _REPLACED = f"replace({_REPLACED}, 'a', '{'a' * 20}')"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x < 0 OR s IN (" + "'k', " * (1 << 18) + "'k')", "1,310,739 characters"),
        ("(id, x) IN (" + "(1, 2), " * 20_000 + "(1, 2))", "more than 10,000 parentheses"),
        (f"x = 0.{'1' * 500_000}", "500,002 digits"),
        (f"now() - INTERVAL '{'1' * 500_000}' DAY > now()", "interval has 500,000 characters"),
        (f"length({_REPLACED}) > 1", "8,000 times as long"),
        ("n" * 10_000_000 + " = 1", "there is no column n"),
        (f'"{"n" * 1_000_000}" + 1 = 1', "there is no column n"),
        (f"{'f' * 1_000_000}(s) = 1", "there is no function f"),
        (f"id = '{'x' * 1_000_000}'", "a string is compared"),
    ],
    ids=lambda value: value[:20],
)
def test_large_texts_are_refused_by_short_messages(text, says):
    ds = zb.dataset(pa.table({"id": [1], "x": [1.5], "s": ["a"]}))
    with pytest.raises(FilterError, match=says) as error:
        ds.count_rows(text)
    assert len(str(error.value)) < 5000


def test_lists_of_plain_keys_may_be_long():
    ds = zb.dataset(pa.table({"id": [1, 299_999, 300_000]}))
    keys = ", ".join(map(str, range(300_000)))
    assert ds.count_rows(f"id IN ({keys})") == 2


def test_patterns_of_many_texts_are_matched():
    texts = ["ab" * 500, "ab" * 499, "AB" * 500]
    ds = zb.dataset(pa.table({"s": texts}))
    pattern = "ab%" * 500
    assert ds.count_rows(f"s LIKE '{pattern}'") == 1
    assert ds.count_rows(f"s ILIKE '{pattern}'") == 2
