"""Check the simple conditions that are parsed without sqlglot, against sqlglot."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from seams import replace_function
from sqlglot.parser import Parser
from sqlglot.tokens import Tokenizer, TokenType

from zonebloom.errors import FilterError
from zonebloom.predicates import ast, sql
from zonebloom.predicates.sql_tree import SqlTranslator

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
        return sql.predicate_from_sql(text, schema)


CONJUNCTIONS = st.sampled_from(["AND", " AND ", " and ", " And  ", "\tAND ", " AND AND ", " OR "])


@given(st.lists(conditions(), min_size=1, max_size=3), CONJUNCTIONS)
def test_predicates_and_errors_are_those_of_sqlglot(texts, conjunction):
    text = conjunction.join(texts)
    try:
        expected = by_sqlglot(text)
    except FilterError as error:
        with pytest.raises(FilterError) as refusal:
            sql.predicate_from_sql(text, SCHEMA)
        assert str(refusal.value) == str(error)
    except UnicodeEncodeError:
        with pytest.raises(FilterError):
            sql.predicate_from_sql(text, SCHEMA)
    else:
        assert sql.predicate_from_sql(text, SCHEMA) == expected


@pytest.mark.parametrize("column", TYPES)
@pytest.mark.parametrize(
    "literal",
    [
        *(
            "5",
            "-5",
            "007",
            "5.0",
            "5.5",
            "-0.0",
            "1" * 40,
            "99999999999.999",
            "''",
            "'5'",
            "'nan'",
        ),
        *("'2024-01-31'", "'2024-01-31 12:00:00'", "'2024-01-31 12:00:00+02:00'", "'12:30'"),
        *("'00000000-0000-0000-0000-000000000001'", "'É %_'", "'--'"),
    ],
)
def test_every_column_type_with_every_kind_of_literal(column, literal):
    for text in (f'"{column}" = {literal}', f"`{column}` IN ({literal}, {literal})"):
        try:
            expected = by_sqlglot(text)
        except FilterError as error:
            with pytest.raises(FilterError, match=re.escape(str(error))):
                sql.predicate_from_sql(text, SCHEMA)
        else:
            assert sql.predicate_from_sql(text, SCHEMA) == expected


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


def test_conjunctions_are_parsed_without_sqlglot(monkeypatch):
    replace_function(monkeypatch, sql, "parse_sql", lambda *_: pytest.fail("sqlglot was used"))
    predicate = sql.predicate_from_sql("i = 5 AND s = 'x' AND i IN (5, 6)", SCHEMA)
    assert predicate == ast.And(
        (
            ast.Equals(("i",), pa.scalar(5, SCHEMA.field("i").type)),
            ast.Equals(("s",), pa.scalar("x")),
            ast.IsIn(("i",), pa.array([5, 6], SCHEMA.field("i").type)),
        )
    )


@given(
    st.sampled_from([name for name, kind in TYPES.items() if kind != pa.null()]),
    st.lists(
        st.one_of(
            st.integers(-(2**70), 2**70).map(str),
            st.sampled_from(["0", "-0", "007", "9" * 41, "5.0", "1e3", "NULL", "-(5)", "- 5"]),
            st.text("ab'%\\é", max_size=3).map(lambda text: "'" + text.replace("'", "''") + "'"),
        ),
        min_size=1,
        max_size=6,
    ),
)
def test_plain_lists_equal_the_general_translation(column, literals):
    text = f'"{column}" IN ({", ".join(literals)})'
    translator = sql.DuckDBTranslator(text, SCHEMA)
    node = translator.checked(sql.parse_sql(text))
    plain = sql.plain_set(
        translator.translate_operand(node.this),
        list(map(sql.plain_value, node.expressions)),
    )
    if plain is not None:
        assert plain == SqlTranslator._translate_in(translator, node)


@pytest.mark.parametrize("column", ["i", "big", "s", "d"])
def test_long_lists_are_read_as_plain_lists(column):
    literals = [f"'k{number}'" if column in "sd" else str(number) for number in range(100)]
    for items in (literals, [*literals, "-1"]):
        text = f"{column} IN ({', '.join(items)})"
        node = sql.parse_sql(text)
        operand = sql.DuckDBTranslator(text, SCHEMA).translate_operand(node.this)
        plain = sql.plain_set(operand, list(map(sql.plain_value, node.expressions)))
        # No value of the unsigned column is -1, so files of other types have to be looked at.
        assert (plain is None) is (column != "i" and items[-1] == "-1")


def words():
    """Return every word that sqlglot's parser uses."""
    tables = [Tokenizer.KEYWORDS, *vars(Parser).values()]
    texts = {kind.name for kind in TokenType}
    for table in tables:
        if isinstance(table, dict | set | frozenset | tuple | list):
            texts.update(str(getattr(entry, "name", entry)) for entry in table)
    return {word for text in texts for word in re.findall("[A-Za-z_][A-Za-z0-9_]*", text)}


def test_sql_keywords_are_parsed_as_sqlglot_does():
    assert len(words()) > 500
    for word in sorted(words()):
        schema = pa.schema({word.lower(): pa.int64(), "x": pa.int64()})
        for text in (f"{word} = 1", f"{word.lower()}=-5", f"{word} IN (7, -2)", f"{word} = 'a'"):
            try:
                expected = by_sqlglot(text, schema)
            except FilterError as error:
                with pytest.raises(FilterError, match=re.escape(str(error))):
                    sql.predicate_from_sql(text, schema)
            else:
                assert sql.predicate_from_sql(text, schema) == expected, text


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
    sql.predicate_from_sql(text, SCHEMA.append(pa.field("date", pa.int64())))
