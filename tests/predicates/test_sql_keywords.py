"""Check that unquoted columns named like SQL keywords mean the same as in quotes."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest
from sqlglot.parser import Parser
from sqlglot.tokens import Tokenizer

from zonebloom.errors import FilterError
from zonebloom.predicates import translate_filter
from zonebloom.predicates.duckdb_engine import DuckDBFilter

CONDITIONS = [
    "{} = 5",
    "({} = 5)",
    "{} IN (5, 6)",
    "({}) NOT IN (5, 6) OR NOT {} = 5 OR {} IS NULL",
    "x IN (1) AND ({} <> 5 OR 5 = {}) AND {} > x AND x < {}",
    "NOT ({} BETWEEN 1 AND 5) AND CAST({} AS BIGINT) = 5 AND {} IS NOT NULL",
]
# These words are always literals.
LITERALS = {"null", "true", "false"}


def keywords() -> list[str]:
    """Return the words that have a special meaning for sqlglot."""
    # One word of each kind is enough, because sqlglot's parser treats words of a kind alike.
    words = set(
        {kind: word for word, kind in Tokenizer.KEYWORDS.items() if word.isalpha()}.values()
    )
    words |= set(Parser.NO_PAREN_FUNCTION_PARSERS)
    words |= {kind.name for kind in Parser.STATEMENT_PARSERS}
    return sorted({word.lower() for word in words} - LITERALS)


def expression_of(text: str, schema: pa.Schema) -> str:
    row_filter, predicate = translate_filter(text, schema)
    if isinstance(row_filter, DuckDBFilter):
        return f"{row_filter.plain} {row_filter.terms} {predicate}".replace('"', "").lower()
    return str(row_filter)


def test_a_keyword_that_is_a_column_needs_no_quotes(caplog):
    assert {"set", "describe", "if", "values", "not", "and", "case", "date"} <= set(keywords())
    wrong = []
    for word in keywords():
        schema = pa.schema({word: pa.int64(), "x": pa.int64()})
        for condition in CONDITIONS:
            text = condition.replace("{}", word.upper())
            expected = expression_of(condition.replace("{}", f'"{word}"'), schema)
            try:
                if expression_of(text, schema) != expected:
                    wrong.append(text)
            except FilterError as error:
                wrong.append(f"{text}: {error}")
    assert wrong == []
    assert caplog.records == []


@pytest.mark.parametrize(
    "text",
    [
        "x = 1 AND NOT x IN (5) OR NOT (x IS NOT NULL)",
        "day = DATE '2024-01-31' AND x NOT BETWEEN 1 AND 2",
        "at > TIMESTAMP '2024-01-31 12:00:00' AND took > INTERVAL '5' SECOND",
        "x IS DISTINCT FROM 5 AND s LIKE 'a!%' ESCAPE '!' AND s NOT LIKE 'b'",
        "CAST(x AS DATE) IS NULL OR CAST(s AS TIMESTAMP) = at",
    ],
)
def test_columns_named_like_keywords_do_not_change_the_keywords(text):
    fields = {
        "x": pa.int64(),
        "s": pa.string(),
        "day": pa.date32(),
        "at": pa.timestamp("us"),
        "took": pa.duration("us"),
    }
    schema = pa.schema(fields)
    crowded = pa.schema({**fields, **{word: pa.int64() for word in keywords()}})
    try:
        expected = expression_of(text, schema)
    except FilterError as error:
        with pytest.raises(FilterError, match=re.escape(str(error))):
            expression_of(text, crowded)
    else:
        assert expression_of(text, crowded) == expected


def test_parts_of_structs_may_be_keywords():
    inner = pa.struct({"set": pa.int64(), "not": pa.int64()})
    schema = pa.schema({"values": inner})
    expected = expression_of('("values"."set" = 5) AND "values"."not" = 6', schema)
    assert expression_of("(values.set = 5) AND values.not = 6", schema) == expected


@pytest.mark.parametrize(
    "text", ["SET x = 5", "SHOW x", "EXPLAIN x = 1", "DROP TABLE x", "SELECT 1", "ALTER TABLE x"]
)
def test_statements_raise_without_a_sqlglot_warning(text, caplog):
    with pytest.raises(FilterError, match="a filter is a condition, not a query"):
        translate_filter(text, pa.schema({"x": pa.int64()}))
    assert caplog.records == []
