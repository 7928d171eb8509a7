"""Check that unquoted columns named like SQL keywords mean the same as in quotes."""

from __future__ import annotations

import re

import duckdb
import pyarrow as pa
import pytest
from sqlglot.tokens import Tokenizer

from zonebloom.errors import FilterError
from zonebloom.predicates import translate_filter
from zonebloom.predicates.duckdb_engine import DuckDBFilter

CONDITION = """
{} > 5 OR ({} <> 5) OR ({}) NOT IN (5, 6) OR NOT {} < 5 OR {} IS NULL OR x IN (1) AND (5 = {} OR
{} > x) AND x < {} OR NOT ({} BETWEEN 1 AND 5) AND CAST({} AS BIGINT) = 5 AND {} IS NOT NULL
"""
# These words are always literals.
LITERALS = {"null", "true", "false"}
# Words of conditions, beyond those that DuckDB reserves, too.
OPERATORS = {"between", "glob", "ilike", "like", "notnull", "regexp", "rlike", "xor"}
# Words of queries that DuckDB takes for the names of functions and types only.
QUERY_WORDS = {"cross", "inner", "join", "outer", "partitioned_by", "tablesample", "uncache"}
# After these types, a < begins the types of their elements.
NESTED_TYPES = {"map", "struct"}


def keywords() -> dict[str, str]:
    """Return the words with a special meaning for DuckDB or sqlglot, and their kind in DuckDB."""
    words = {word.lower(): "" for word in Tokenizer.KEYWORDS if re.fullmatch("[A-Z_]+", word)}
    query = "SELECT keyword_name, keyword_category FROM duckdb_keywords()"
    words |= dict(duckdb.sql(query).fetchall())
    return {word: kind for word, kind in words.items() if word not in LITERALS}


def expression_of(text: str, schema: pa.Schema) -> str:
    row_filter, predicate = translate_filter(text, schema)
    if isinstance(row_filter, DuckDBFilter):
        return f"{row_filter.plain} {row_filter.terms} {predicate}".replace('"', "").lower()
    return str(row_filter)


@pytest.mark.slow
def test_a_keyword_is_a_column_without_quotes_unless_conditions_or_queries_have_it(caplog):
    assert {"set", "if", "values", "date", "order", "current_date"} <= keywords().keys()
    for word, kind in keywords().items():
        schema = pa.schema({word: pa.int64(), "x": pa.int64()})
        expected = expression_of(CONDITION.replace("{}", f'"{word}"'), schema)
        try:
            assert expression_of(CONDITION.replace("{}", word.upper()), schema) == expected
        except FilterError:
            assert kind == "reserved" or word in OPERATORS | QUERY_WORDS | NESTED_TYPES, word
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
    crowded = pa.schema({**{word: pa.int64() for word in keywords()}, **fields})
    try:
        expected = expression_of(text, schema)
    except FilterError as error:
        with pytest.raises(FilterError, match=re.escape(str(error))):
            expression_of(text, crowded)
    else:
        assert expression_of(text, crowded) == expected


def test_parts_of_structs_may_be_keywords():
    inner = pa.struct({"set": pa.int64(), "order": pa.int64()})
    schema = pa.schema({"values": inner})
    expected = expression_of('("values"."set" = 5) AND "values"."order" = 6', schema)
    assert expression_of("(values.set = 5) AND values.order = 6", schema) == expected


@pytest.mark.parametrize(
    "text", ["SET x = 5", "SHOW x", "EXPLAIN x = 1", "DROP TABLE x", "SELECT 1", "ALTER TABLE x"]
)
def test_statements_raise_without_a_sqlglot_warning(text, caplog):
    with pytest.raises(FilterError, match="a filter is a condition, not a query"):
        translate_filter(text, pa.schema({"x": pa.int64()}))
    assert caplog.records == []
