"""Check the simple conditions that are parsed without sqlglot, against sqlglot."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.seams import replace_function

from zonebloom.errors import FilterError
from zonebloom.predicates import sql

TYPES = {
    "i": pa.int32(),
    "big": pa.uint64(),
    "f": pa.float64(),
    "half": pa.float32(),
    "dec": pa.decimal128(5, 2),
    "s": pa.string(),
    "d": pa.dictionary(pa.int8(), pa.string()),
    "b": pa.bool_(),
    "n": pa.null(),
    "bin": pa.binary(),
    "key": pa.binary(16),
    "id": pa.uuid(),
    "day": pa.date32(),
    "at": pa.timestamp("us"),
    "when_at": pa.timestamp("ns", "UTC"),
    "clock": pa.time64("us"),
    "a.b": pa.int64(),
    "Ä": pa.string(),
    "Two": pa.int8(),
    "two": pa.int8(),
}
SCHEMA = pa.schema(TYPES)

ODD = """
    0 00 007 -0 - -- 5- 1. .5 1.5 -1.50 1e3 1E3 1e-3 1_000 5L 5d 5i 1n 0x1f 0b1 + +5 -+5 - 5,5 5;
    5-1 5--1 5/*a*/ /*a*/5 ٣ ５ (5) i i.x ? $1 :a @a {{a}} NaN nan inf Infinity null NULL true TRUE
    "a" `a` x'0a' X'0A' b'01' e'a' n'a' r'a' U&'a' 'a'b '' '''' 'it''s' 'a\\b' 'nan' '/*' '--' 'a;'
    '12:30' DATE'2024-01-31' '2024-01-31' '2024-01-31T12:00:00' '2024-01-31T12:00:00+00:00'
    '00000000-0000-0000-0000-000000000000'
"""
LITERALS = st.one_of(
    st.integers(-(2**70), 2**70).map(str),
    st.decimals(allow_nan=False, allow_infinity=False, places=3).map(str),
    st.text().map(lambda text: f"'{text}'"),
    st.sampled_from([*ODD.split(), "- 5", "5 5", "'a' 'b'", "'a\nb'", "'\x00'"]),
)
NAMES = st.one_of(
    st.sampled_from([*TYPES, "I", "ID", "TWO", "ä", "other", "i.x", "", "_i", "1i", "i1", "ı"]),
    st.sampled_from(["date", "end", "key", "row", "X", "timestamp", "null", "true", "not i"]),
    st.text(max_size=3),
)
QUOTES = st.sampled_from(["{}", '"{}"', "`{}`", "[{}]", "({})", "-{}"])
SPACES = st.sampled_from(["", " ", " ", "  ", "\t", "\n", "\xa0", "/**/"])


@st.composite
def conditions(draw):
    """Draw a condition that has the simple form, or nearly."""
    name = draw(QUOTES).format(draw(NAMES))
    a, b, c, d = (draw(SPACES) for _ in range(4))
    if draw(st.booleans()):
        return (
            f"{a}{name}{b}{draw(st.sampled_from(['=', '==', '<=>', '= ']))}{c}{draw(LITERALS)}{d}"
        )
    comma = draw(st.sampled_from([",", ", ", " ,", ",,"]))
    items = comma.join(draw(st.lists(LITERALS, max_size=4)))
    return f"{a}{name}{b}{draw(st.sampled_from(['IN', 'in', 'In', ' IN']))}{c}({items}){d}"


def by_sqlglot(text, schema=SCHEMA):
    with pytest.MonkeyPatch.context() as patch:
        replace_function(patch, sql, "_translate_simple", lambda *_: None)
        return sql.translate_sql(text, schema)[1]


CONJUNCTIONS = st.sampled_from(["AND", " AND ", " and ", " And  ", "\tAND ", " AND AND ", " OR "])


@given(st.lists(conditions(), min_size=1, max_size=3), CONJUNCTIONS)
def test_predicates_and_errors_are_those_of_sqlglot(texts, conjunction):
    text = conjunction.join(texts)
    try:
        expected = by_sqlglot(text)
    except FilterError as error:
        with pytest.raises(FilterError) as refusal:
            sql.translate_sql(text, SCHEMA)
        assert str(refusal.value) == str(error)
    except UnicodeEncodeError:
        with pytest.raises(FilterError):
            sql.translate_sql(text, SCHEMA)
    else:
        assert sql.translate_sql(text, SCHEMA)[1] == expected


@pytest.mark.parametrize(
    "text",
    [
        "i = 5 AND s = 'x'",
        "i IN (1, 2) and s = 'a AND b' AND dec = 1.5",
        "i = 5 AND (s = 'x')",
        "i = 5 AND",
        "i = 5 AND s",
        "i = 5 AND nope = 1",
        "i = 5 AND s = 'x' OR s = 'y'",
        "i IN (1)AND s = 'x'",
        "i = 5AND s = 'x'",
        "i = 5 AND s = 'x' AND s > 'a'",
    ],
)
def test_conjunctions_are_those_of_sqlglot(text):
    test_predicates_and_errors_are_those_of_sqlglot.hypothesis.inner_test([text], "")


@pytest.mark.parametrize(
    "text",
    [
        *("i = 42", "s='N14228'", '"f" = -1.5', "`a.b` IN (1, 2)", " S in ('a','b') "),
        *("two = 1", "dec IN (1.5, -2.50)", "date = 5"),
    ],
)
def test_simple_conditions_need_no_sqlglot(text, monkeypatch):
    def refuse(_: object) -> object:
        raise AssertionError("sqlglot was called")

    replace_function(monkeypatch, sql, "parse_sql", refuse)
    sql.translate_sql(text, SCHEMA.append(pa.field("date", pa.int64())))
