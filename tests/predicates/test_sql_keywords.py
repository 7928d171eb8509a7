"""Check that unquoted columns named like SQL keywords mean the same as in quotes."""

from __future__ import annotations

import re

import duckdb
import pyarrow as pa
import pytest
from sqlglot.tokens import Tokenizer

import zonebloom as zb
from zonebloom.errors import FilterError

# The rows of each `g` show one part.
CONDITION = """
{} > 5 AND ({} <> 7) AND g = 0 OR ({}) NOT IN (5, 6) AND g = 1 OR NOT {} < 5 AND g = 2 OR {} IS NULL
AND g = 3 OR g IN (4) AND (5 = {} OR {} > x) AND x < {} OR NOT ({} BETWEEN 1 AND 5) AND
CAST({} AS BIGINT) = 6 AND {} IS NOT NULL AND g = 5
"""
VALUES = [None, 0, 1, 4, 5, 6, 7]
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


def rows_with(condition: str, columns: dict[str, pa.Array]) -> list[int]:
    table = pa.table(columns)
    # No word has a space.
    table = table.append_column("the row", pa.array(range(len(table))))
    return zb.dataset(table).to_table(["the row"], filter=condition)["the row"].to_pylist()


@pytest.mark.slow
def test_a_keyword_is_a_column_without_quotes_unless_conditions_or_queries_have_it(caplog):
    assert {"set", "if", "values", "date", "order", "current_date"} <= keywords().keys()
    values = pa.array(VALUES * 6)
    groups = [group for group in range(6) for _ in VALUES]
    others = {"x": pa.array([4] * len(groups)), "g": pa.array(groups)}
    rows = pa.table({"row": range(len(values)), "word": values, **others})  # noqa: F841 - DuckDB
    wanted = duckdb.sql(f"SELECT row FROM rows WHERE {CONDITION.replace('{}', 'word')} ORDER BY 1")
    expected = [row for (row,) in wanted.fetchall()]
    for word, kind in keywords().items():
        columns = {word: values, **others}
        try:
            assert rows_with(CONDITION.replace("{}", word.upper()), columns) == expected, word
        except FilterError:
            assert kind == "reserved" or word in OPERATORS | QUERY_WORDS | NESTED_TYPES, word
            assert rows_with(CONDITION.replace("{}", f'"{word}"'), columns) == expected, word
    assert caplog.records == []


@pytest.mark.parametrize(
    "text",
    [
        "x = 1 AND NOT x IN (5) OR NOT (x IS NOT NULL)",
        "day = DATE '2024-01-31' AND x NOT BETWEEN 1 AND 2",
        "at > TIMESTAMP '2024-01-31 12:00:00' AND took > INTERVAL '5' SECOND",
        "x IS DISTINCT FROM 5 AND s LIKE 'a!%' ESCAPE '!' AND s NOT LIKE 'b'",
        "CAST(x AS DATE) IS NULL OR CAST(s AS TIMESTAMP) = at",
        "TRY_CAST(s AS DATE) IS NOT NULL OR TRY_CAST(s AS TIMESTAMP) = at",
    ],
)
def test_columns_named_like_keywords_do_not_change_the_keywords(text):
    columns = {
        "x": pa.array([1, 3, 5, None, 0]),
        "s": pa.array(["a%c", "b", "2024-01-31", None, "a%"]),
        "day": pa.array([19753, 19753, 0, None, 19753], pa.date32()),
        "at": pa.array([1706702400_000000, 1706702400_000001, 0, None, 2**60], pa.timestamp("us")),
        "took": pa.array([5_000_000, 5_000_001, 0, None, 2**40], pa.duration("us")),
    }
    crowded = {**{word: pa.array([1, 2, 3, 4, 5]) for word in keywords()}, **columns}
    try:
        expected = rows_with(text, columns)
    except FilterError as error:
        with pytest.raises(FilterError, match=re.escape(str(error))):
            rows_with(text, crowded)
    else:
        assert expected
        assert rows_with(text, crowded) == expected


def test_parts_of_structs_may_be_keywords():
    columns = {"values": pa.array([{"set": 5, "order": n} for n in (5, 6, 7)])}
    assert rows_with('("values"."set" = 5) AND "values"."order" = 6', columns) == [1]
    assert rows_with("(values.set = 5) AND values.order = 6", columns) == [1]


@pytest.mark.parametrize(
    "text", ["SET x = 5", "SHOW x", "EXPLAIN x = 1", "DROP TABLE x", "SELECT 1", "ALTER TABLE x"]
)
def test_statements_raise_without_a_sqlglot_warning(text, caplog):
    with pytest.raises(FilterError, match="a filter is a condition, not a query"):
        rows_with(text, {"x": pa.array([1])})
    assert caplog.records == []
