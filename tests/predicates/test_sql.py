"""Check SQL filters against plain Python in three-valued logic, and against DuckDB."""

from __future__ import annotations

import datetime as dt
import math
import operator
import re
import subprocess
import sys
import uuid
from decimal import Decimal
from fractions import Fraction

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pytest
from helpers import cases
from hypothesis import given, settings
from hypothesis import strategies as st

import zonebloom as zb
from zonebloom import predicates
from zonebloom.errors import FilterError
from zonebloom.predicates import Equals, IsIn, Not, probed_columns, translate_filter

NAN = math.nan
WORDS = ["", "a", "ab", "a%b", "axb", "a\nb", "É", "it's", "a\\b", "%", "_", None]
ROWS = {
    "i": [0, 1, -1, 5, 5, 2**31 - 1, -(2**31), None, 6, 7, None, 3],
    "big": [0, 2**53, 2**53 + 1, 5, -(2**63), 2**63 - 1, None, 1, 2, 3, None, 6],
    "u": [0, 2**63, 2**64 - 1, 5, None, 1, 2, 3, 4, 6, None, 7],
    "f": [0.0, -0.0, NAN, 1.5, None, 5.0, math.inf, -math.inf, 0.1, 2.0**53, None, -1.5],
    "g": [0.0, -0.0, NAN, 1.5, None, 5.0, float(np.float32(0.1)), 7.0, -1.0, None, 2.0, 3.5],
    "dec": [
        Decimal(x) / 100 if x is not None else None
        for x in (0, 150, 555, -150, None, 99999, -99999, 500, 600, None, 10, 1)
    ],
    "s": WORDS,
    "d": WORDS,
    "b": [True, False, None] * 4,
    "n": [None] * 12,
    "st": [{"x": 5}, {"x": None}, None, {"x": 6}] * 3,
}
SCHEMA = pa.schema(
    {
        "i": pa.int32(),
        "big": pa.int64(),
        "u": pa.uint64(),
        "f": pa.float64(),
        "g": pa.float32(),
        "dec": pa.decimal128(5, 2),
        "s": pa.string(),
        "d": pa.dictionary(pa.int8(), pa.string()),
        "b": pa.bool_(),
        "n": pa.null(),
        "st": pa.struct({"x": pa.int32()}),
    }
)
TABLE = pa.table({name: pa.array(values, SCHEMA.field(name).type) for name, values in ROWS.items()})
TABLE = TABLE.append_column("row", pa.array(range(12)))
DATASET = pads.dataset(TABLE)
NUMERIC = ("i", "big", "u", "f", "g", "dec", "st.x")
TEXT = ("s", "d")
NUMBERS = [
    "0", "-0.0", "1", "-1", "5", "5.0", "5.5", "5.555", "0.1", "1.5", "-1.5e0", "99999999999",
    "2147483648", "-2147483649", "9007199254740993", "18446744073709551615", "-9223372036854775809",
    "18446744073709551616", "1e30", "999.99", "999.991", "1.50",
]  # fmt: skip
PATTERNS = ["%", "_", "a%", "%b", "a_b", "ab", "a\\%b", "A%", "%x%", "a\\\\b", "%\\%", "\\_", "é",
            "%\\\\b", "_%", "\\%%", "", "a\\%%b"]  # fmt: skip
COMPARE = {
    "=": operator.eq, "==": operator.eq, "<>": operator.ne, "!=": operator.ne,
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


def to_expression(text: str, schema: pa.Schema) -> pc.Expression:
    expression, _ = translate_filter(text, schema)
    assert isinstance(expression, pc.Expression)
    return expression


def rows(text: str, dataset: pads.Dataset = DATASET) -> list[int]:
    expression = to_expression(text, dataset.schema)
    return dataset.to_table(filter=expression)["row"].to_pylist()


def mask(text: str, table: pa.Table) -> list[bool | None]:
    """Evaluate a filter in a projection, because PyArrow cannot filter tables with view types."""
    expression = to_expression(text, table.schema)
    return pads.dataset(table).to_table(columns={"is_true": expression})["is_true"].to_pylist()


def value_of(column: str, row: int):
    if column == "st.x":
        struct = ROWS["st"][row]
        return None if struct is None else struct["x"]
    return ROWS[column][row]


def literal_for(column: str, text: str):
    # A number that is compared with a float column is the nearest double. Else it is exact.
    return float(text) if column in "fg" else Fraction(text)


def compare(op: str, left, right) -> bool | None:
    if left is None or right is None:
        return None
    return COMPARE[op](Fraction(left) if isinstance(left, Decimal) else left, right)


def negate(value: bool | None) -> bool | None:
    return None if value is None else not value


def all_of(values) -> bool | None:
    values = list(values)
    return False if False in values else None if None in values else True


def any_of(values) -> bool | None:
    return negate(all_of(negate(value) for value in values))


def like(value: str | None, pattern: str, flags: int = 0) -> bool | None:
    if value is None:
        return None
    regex, characters = "", iter(pattern)
    for c in characters:
        if c == "\\":
            regex += re.escape(next(characters))
        else:
            regex += {"%": ".*", "_": "."}.get(c, re.escape(c))
    return re.fullmatch(regex, value, flags | re.DOTALL) is not None


def quote(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


# A condition is its SQL text and a function from a row to True, False or None.


@st.composite
def atoms(draw, numeric=NUMERIC, text=TEXT, with_other_atoms=True):
    kinds = ["compare", "in", "between", "null", "distinct"] + ["text", "text_in"] * bool(text)
    kinds += ["like", "bool", "constant", "columns", "null_type"] * with_other_atoms
    kind = draw(st.sampled_from(kinds))
    negated = draw(st.booleans())
    word = "NOT " if negated else ""
    turn = negate if negated else (lambda value: value)
    column = draw(st.sampled_from(numeric))
    number = st.sampled_from([*NUMBERS, "NULL"])

    def read(text):
        return None if text == "NULL" else literal_for(column, text)

    if kind == "compare":
        op, n = draw(st.sampled_from(list(COMPARE))), draw(number)
        if draw(st.booleans()):
            return f"{n} {op} {column}", lambda r: compare(
                {"<": ">", ">": "<", "<=": ">=", ">=": "<="}.get(op, op),
                value_of(column, r),
                read(n),
            )
        return f"{column} {op} {n}", lambda r: compare(op, value_of(column, r), read(n))
    if kind == "in":
        ns = draw(st.lists(number, min_size=1, max_size=4))
        return f"{column} {word}IN ({', '.join(ns)})", lambda r: turn(
            any_of(compare("=", value_of(column, r), read(n)) for n in ns)
        )
    if kind == "between":
        low, high = draw(number), draw(number)
        return f"{column} {word}BETWEEN {low} AND {high}", lambda r: turn(
            all_of(
                [
                    compare(">=", value_of(column, r), read(low)),
                    compare("<=", value_of(column, r), read(high)),
                ]
            )
        )
    if kind == "null":
        return f"{column} IS {word}NULL", lambda r: turn(value_of(column, r) is None)
    if kind == "distinct":
        n, swap = draw(number), draw(st.booleans())

        def same(r):
            value, other = value_of(column, r), read(n)
            if value is None or other is None:
                return value is other
            return bool(compare("=", value, other))

        sides = (n, column) if swap else (column, n)
        not_word = "" if negated else "NOT "  # IS NOT DISTINCT means the same
        return f"{sides[0]} IS {not_word}DISTINCT FROM {sides[1]}", lambda r: turn(same(r))
    if kind == "bool":
        form, test = draw(
            st.sampled_from(
                [
                    ("b", lambda v: v),
                    ("b = TRUE", lambda v: v),
                    ("b IN (FALSE, NULL)", lambda v: None if v is None or v else True),
                    ("b IS TRUE", lambda v: v is True),
                    ("b IS NOT TRUE", lambda v: v is not True),
                    ("b IS FALSE", lambda v: v is False),
                    ("b IS UNKNOWN", lambda v: v is None),
                ]
            )
        )
        return form, lambda r: test(ROWS["b"][r])
    if kind == "constant":
        return draw(
            st.sampled_from(
                [
                    ("TRUE", lambda r: True),
                    ("FALSE", lambda r: False),
                    ("NULL", lambda r: None),
                    ("1 = 1", lambda r: True),
                    ("NULL <=> NULL", lambda r: True),
                    ("'a' <> NULL", lambda r: None),
                ]
            )
        )
    if kind == "null_type":
        return f"n {word}IN (5)", lambda r: None
    if kind == "columns":
        other = draw(st.sampled_from(["i", "dec", "st.x"]))
        op = draw(st.sampled_from(list(COMPARE)))

        def both(r):
            left, right = value_of("i", r), value_of(other, r)
            return compare(op, left, Fraction(right) if right is not None else None)

        return f"i {op} {other}", both
    column = draw(st.sampled_from(text))
    if kind == "like":
        pattern, no_case = draw(st.sampled_from(PATTERNS)), draw(st.booleans())
        flags = re.IGNORECASE if no_case else 0
        return f"{column} {word}{'I' * no_case}LIKE {quote(pattern)}", lambda r: turn(
            like(value_of(column, r), pattern, flags)
        )
    words = draw(st.lists(st.sampled_from(WORDS), min_size=1, max_size=3))
    literals = ["NULL" if word is None else quote(word) for word in words]
    if kind == "text":
        op = draw(st.sampled_from(list(COMPARE)))

        def encoded(value):  # text is ordered by its UTF-8 bytes
            return None if value is None else value.encode()

        return f"{column} {op} {literals[0]}", lambda r: compare(
            op, encoded(value_of(column, r)), encoded(words[0])
        )
    return f"{column} {word}IN ({', '.join(literals)})", lambda r: turn(
        any_of(compare("=", value_of(column, r), w) for w in words)
    )


def trees(leaves):
    def grow(inner):
        pairs = st.lists(inner, min_size=2, max_size=3)
        joined = pairs.flatmap(
            lambda terms: st.sampled_from(
                [
                    (
                        " AND ".join(f"({t})" for t, _ in terms),
                        lambda r: all_of(e(r) for _, e in terms),
                    ),
                    (
                        " OR ".join(f"({t})" for t, _ in terms),
                        lambda r: any_of(e(r) for _, e in terms),
                    ),
                ]
            )
        )
        compound = inner.flatmap(
            lambda term: st.sampled_from(
                [
                    (f"NOT ({term[0]})", lambda r: negate(term[1](r))),
                    (f"({term[0]}) IS NULL", lambda r: term[1](r) is None),
                    (f"({term[0]}) IS NOT FALSE", lambda r: term[1](r) is not False),
                    (f"({term[0]}) = TRUE", term[1]),
                ]
            )
        )
        return st.one_of(joined, compound)

    return st.recursive(leaves, grow, max_leaves=6)


@settings(max_examples=cases(600))
@given(trees(atoms()))
def test_rows_agree_with_three_valued_logic(tree):
    text, evaluate = tree
    assert rows(text) == [r for r in range(12) if evaluate(r) is True]


@settings(max_examples=100, deadline=None)
@given(trees(atoms(numeric=("i", "big"), text=("s",), with_other_atoms=False)))
def test_rows_agree_with_duckdb(tree):
    text, _ = tree
    connection = duckdb.connect()
    connection.register("t", TABLE.select(["i", "big", "s", "row"]))
    # DuckDB rounds a number with a fraction or an exponent to a decimal or double.
    text = re.sub(r"-?\d+(\.\d+|e\d+)[e\d]*", "3", text).replace("==", "=")
    result = connection.sql(f"SELECT row FROM t WHERE {text} ORDER BY row").fetchall()
    assert rows(text) == [row for (row,) in result]


TYPED = [
    # type, values, filter, rows that match
    (pa.float16(), [1.5, None, 0.0, NAN, -0.0], "c = 1.5", [0]),
    (pa.float16(), [1.5, None, 0.0, NAN, -0.0], "c = 0.1", []),
    (pa.float16(), [1.5, None, 0.0, NAN, -0.0], "c IN (0, CAST('NaN' AS DOUBLE))", [2, 4]),
    (pa.float16(), [1.5, None, 0.0, NAN, -0.0], "c < 1.6", [0, 2, 4]),
    (pa.float32(), [float(np.float32(0.1)), None], "c = 0.1", []),
    (pa.float32(), [float(np.float32(0.1)), None], "c > 0.1", [0]),
    (pa.float32(), [float(np.float32(0.1)), None], "c = CAST(0.1 AS FLOAT)", [0]),
    (pa.float32(), [16777216.0, None], "c = 16777217", []),
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
    (pa.decimal256(60, 1), [Decimal("1.5"), None], "c = 1.5 AND c < 1e70", [0]),
    (pa.date32(), [dt.date(2020, 1, 1), None], "c = '2020-01-01'", [0]),
    (pa.date32(), [dt.date(2020, 1, 1), None], "c = TIMESTAMP '2020-01-01 00:00:01'", []),
    (pa.date32(), [dt.date(2020, 1, 1), None], "c < TIMESTAMP '2020-01-01 00:00:01'", [0]),
    (pa.date64(), [dt.date(2020, 1, 1), None], "c IN (DATE '2020-01-01')", [0]),
    (pa.timestamp("s"), [2**40, 0, None], "c > '1970-01-01 00:00:00.000000001'", [0]),
    (pa.timestamp("ms"), [1577836800000, None], "c = DATE '2020-01-01'", [0]),
    (pa.timestamp("ms"), [1577836800000, None], "c = '2020-01-01 00:00:00.0001'", []),
    (pa.timestamp("ms"), [1577836800000, None], "NOT c = '2020-01-01 00:00:00.0001'", [0]),
    (pa.timestamp("us", "Europe/Berlin"), [1577836800000000, None],
     "c = '2020-01-01 01:00:00+01:00'", [0]),
    (pa.timestamp("us", "UTC"), [1577836800000000, None],
     "c = TIMESTAMP '2020-01-01T02:00:00+02:00'", [0]),
    (pa.timestamp("us", "UTC"), [1577836800000000, None],
     "c IN (TIMESTAMPTZ '2019-12-31 18:30:00-0530')", [0]),
    (pa.time32("s"), [dt.time(1, 2, 3), None], "c = TIME '01:02:03'", [0]),
    (pa.time32("s"), [dt.time(1, 2, 3), None], "c < '01:02:03.000000001'", [0]),
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
    is_true = mask(text, pa.table({"c": column}))
    assert [row for row, value in enumerate(is_true) if value is True] == expected


@pytest.mark.parametrize(
    ("text", "column"),
    [
        ("c = 'x'", pa.array(["x"], pa.string_view())),
        ("c = X'78'", pa.array([b"x"], pa.binary_view())),
        ("c IN (1.5)", pa.array([np.float16(1.5)])),
        ("c IN (1.5)", pa.array([Decimal("1.5")], pa.decimal32(5, 1))),
        ("c = 'x'", pa.array(["x"]).dictionary_encode()),
        ("c LIKE 'x'", pa.array(["x"])),
        ("c IN ('xx')", pa.array([b"xx"], pa.binary(2))),
    ],
)
def test_widened_columns_stay_answerable(text, column):
    schema = pa.schema({"c": column.type})
    _, predicate = translate_filter(text, schema)
    assert isinstance(predicate, (Equals, IsIn))
    assert predicate.column == ("c",)


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
    _, predicate = translate_filter(text, NAMES)
    assert isinstance(predicate, Equals)
    assert predicate.column == path


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


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty"),
        (" -- nothing", "empty"),
        ("SELECT 1", "not a query"),
        ("id = 1; id = 2", "2 statements"),
        ("id", "a value, not a condition"),
        ("5", "a value, not a condition"),
        ("ident = 1", "there is no column ident"),
        ("upperr = 1", "Did you mean Upper?"),
        ("a.z = 1", "there is no column a.z"),
        ('id = "x"', "Write a string in single quotes: 'x'; the columns are id"),
        ('id IN ("it\'s")', "single quotes: 'it''s'"),
        ("KIND = 1", "more than one column"),
        ("l.x = 1", "has no fields"),
        ("id = '5'", "Write the number without quotes: 5"),
        ("id = TRUE", "a truth value is compared with a column of type int64"),
        ("id = DATE '2020-01-01'", "Write a plain number"),
        ("l = 5", "list<"),
        ("id + 'a' = 2", "the operator + does not take int64 and string"),
        ("absolute(id) = 1", "there is no function absolute"),
        ("id IN (SELECT 1)", "queries inside a filter are not supported"),
        ("id = 1 AND id = (SELECT 1)", "give them as a list"),
        ("NOT EXISTS (SELECT 1)", "queries inside a filter"),
        ("id IN ()", "the IN list is empty"),
        ("id BETWEEN SYMMETRIC 2 AND 1", "SYMMETRIC is not understood"),
        ("id LIKE 'a%'", "LIKE takes strings"),
        ("id = 1_000", "Unexpected token"),
        ("1 < id < 3", "a number is compared with a column of type bool"),
        ("TRY_CAST(id AS INT) = 1", "is not understood"),
        ("CAST(id AS INT[]) = 1", "there is no cast to"),
        ("id = CAST(5.5 AS INT)", "not exactly a value of int32"),
        ("id = 1e999999999", "out of every column's range"),
        ("id = X'0a'", "a binary literal is compared"),
        ("id = 'a", "Close every quote"),
        ("id = 1 AND id NOT", "cannot read the filter"),
        ("(" * 5000 + "id = 1" + ")" * 5000, "nested too deeply"),
    ],
)
def test_errors_name_the_problem_and_the_remedy(text, says):
    with pytest.raises(FilterError) as caught:
        to_expression(text, NAMES)
    assert says in str(caught.value)


@pytest.mark.parametrize("text", ["id = x", "id = `x`", 'a."x" = 1', 'id = "a"."x"'])
def test_only_names_in_double_quotes_may_be_meant_as_strings(text):
    with pytest.raises(FilterError, match="there is no column") as caught:
        to_expression(text, NAMES)
    assert "single quotes" not in str(caught.value)


@pytest.mark.parametrize("text", [r"raw = '\x61'", r"raw IN (X'61', CAST('\x61' AS BLOB))"])
def test_backslash_in_string_for_binary_column_raises(text):
    with pytest.raises(FilterError, match="Write X'5c783631'"):
        to_expression(text, pa.schema({"raw": pa.binary()}))


def test_errors_mark_the_place():
    with pytest.raises(FilterError) as caught:
        to_expression("id = 1 AND\n  idd = 2", NAMES)
    assert "\n    idd = 2\n    ^^^\n" in str(caught.value)
    with pytest.raises(FilterError) as caught:
        to_expression("id = 1\nAND (id = 2", NAMES)
    assert "\n  AND (id = 2\n            ^\n" in str(caught.value)


def test_unsupported_casts_raise_before_the_scan():
    with pytest.raises(FilterError, match="PyArrow cannot apply the filter"):
        zb.dataset(pa.table({"c": [True]})).search("CAST(c AS DATE) = DATE '2020-01-01'")


def test_long_chains_are_parsed():
    # The column holds 0, 1, -1, 5, 5, 2^31 - 1, -2^31, null, 6, 7, null, 3.
    assert rows(" OR ".join(f"i = {n}" for n in range(2, 3000))) == [3, 4, 8, 9, 11]


def test_columns_of_several_types_are_compared():
    def both(op, left, right):
        pairs = zip(ROWS[left], ROWS[right], strict=True)
        return [r for r, (a, b) in enumerate(pairs) if None not in (a, b) and COMPARE[op](a, b)]

    assert rows("CAST(i AS BIGINT) = 5") == [3, 4]
    assert rows("CAST(i AS DECIMAL(12, 2)) = 5.00") == [3, 4]
    assert rows("i = big") == both("=", "i", "big") != []
    assert rows("big < u") == both("<", "big", "u") != []
    assert rows("f >= g") == both(">=", "f", "g") != []
    assert rows("s = d") == both("=", "s", "d") != []


def test_sqlglot_is_imported_only_for_sql():
    code = (
        "import sys, zonebloom.predicates as p, pyarrow as pa;"
        "assert 'sqlglot' not in sys.modules;"
        "p.translate_filter('id > 1', pa.schema({'id': pa.int64()}));"
        "assert 'sqlglot' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


UUIDS = [uuid.UUID(int=7 * i) for i in range(5)]


@pytest.mark.parametrize(
    ("filter", "numbers", "answered"),
    [
        (f"u = '{UUIDS[1]}'", [1], True),
        (f"UUID '{UUIDS[2]}' = u", [2], True),
        (f"u = X'{UUIDS[3].hex}'", [3], True),
        (
            f"u IN ('{UUIDS[1]}', '{UUIDS[1].hex.upper()}', CAST('{UUIDS[3]}' AS UUID), NULL)",
            [1, 3],
            True,
        ),
        (f"u <> '{UUIDS[1]}'", [0, 2, 3, 4], False),
        (f"u > '{UUIDS[3]}'", [4], False),
        ("u IS NULL", [5], True),
        (f"u IS NOT DISTINCT FROM '{UUIDS[0]}'", [0], True),
        (f"b = UUID '{UUIDS[4]}'", [4], True),
    ],
)
def test_uuids_are_compared_as_bytes(filter, numbers, answered):
    raw = [value.bytes for value in UUIDS] + [None]
    table = pa.table(
        {"u": pa.array(raw, pa.uuid()), "b": pa.array(raw, pa.binary(16)), "row": range(6)}
    )
    expression, predicate = translate_filter(filter, table.schema)
    assert pads.dataset(table).to_table(filter=expression)["row"].to_pylist() == numbers
    assert bool(probed_columns(predicate)) is answered or isinstance(predicate, Not)


@pytest.mark.parametrize(
    ("filter", "message"),
    [
        ("u = 'not a uuid'", "'not a uuid' is not a UUID"),
        ("u = 5", "a number is compared with"),
        ("CAST(u AS VARCHAR) = 'x'", "a column of UUIDs cannot be cast"),
    ],
)
def test_invalid_uuid_comparisons_raise(filter, message):
    with pytest.raises(FilterError, match=message):
        to_expression(filter, pa.schema({"u": pa.uuid()}))


@pytest.mark.parametrize(
    "text", ["s = '\ud800'", "s IN ('a', '\udfff')", "\ud800 = 1", "s LIKE '\ud83d%'"]
)
def test_half_a_surrogate_pair_raises(text):
    with pytest.raises(FilterError, match="half a character") as e:
        to_expression(text, pa.schema({"s": pa.string()}))
    assert e.value.__suppress_context__


def test_a_text_is_translated_for_each_schema():
    types = [pa.int64(), pa.int32(), pa.string(), pa.int64()]
    texts = ["x = 1", "x = 1", "x = '1'", "x = 1"]
    for type_, text in zip(types * 2, texts * 2, strict=True):
        _, predicate = translate_filter(text, pa.schema({"x": type_}))
        expected = "1" if type_ == pa.string() else 1
        assert predicate == Equals(("x",), pa.scalar(expected, type_))
    with pytest.raises(FilterError, match="there is no column x"):
        translate_filter("x = 1", pa.schema({"y": pa.int64()}))


@pytest.mark.parametrize(
    "fields",
    [
        *([("x", kind)] for kind in (pa.int8(), pa.uint64(), pa.float32(), pa.decimal128(5, 2))),
        *([("x", kind)] for kind in (pa.timestamp("us"), pa.timestamp("us", "UTC"))),
        *([("x", kind)] for kind in (pa.string(), pa.dictionary(pa.int8(), pa.string()))),
        *([("x", kind)] for kind in (pa.uuid(), pa.binary(16), pa.null(), pa.bool_())),
        *([("y", pa.int8()), ("x", pa.int8())], [("X", pa.int8())], [("x", pa.int8())] * 2),
        *([pa.field("x", pa.int8(), nullable=False)], [("x", pa.struct({"x": pa.int8()}))]),
    ],
    ids=str,
)
def test_cached_translations_are_those_of_the_same_schema(fields):
    def translate(text, schema):
        try:
            expression, predicate = translate_filter(text, schema)
        except FilterError as error:
            return str(error)
        return str(expression), predicate

    others = [pa.schema({"x": kind}) for kind in (pa.int64(), pa.string(), pa.binary())]
    for text in ("x = 5", "x IN (5, 6)", "x = '5'", "x < 5 OR x IS NULL"):
        predicates._cached_sql.cache_clear()
        expected = translate(text, pa.schema(fields))
        predicates._cached_sql.cache_clear()
        for schema in others:
            translate(text, schema)
        assert translate(text, pa.schema(fields)) == expected
        assert translate(text, pa.schema(fields, metadata={"a": "b"})) == expected


_REPLACED = "s"
for _ in range(5):
    _REPLACED = f"replace({_REPLACED}, 'a', '{'a' * 20}')"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x < 0 OR s IN (" + "'k', " * (1 << 18) + "'k')", "1,310,739 characters"),
        ("(id, x) IN (" + "(1, 2), " * 20_000 + "(1, 2))", "more than 10,000 parentheses"),
        (f"x = 0.{'1' * 500_000}", "500,002 digits"),
        (f"x = CAST('{'1' * 500_000}' AS DOUBLE)", "500,000 digits"),
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
