"""Conditions in Spark SQL whose meaning this package cannot know are unknown."""

from __future__ import annotations

import pyarrow as pa
import pytest

from zonebloom.predicates import unknowns
from zonebloom.predicates.spark import translate_spark_sql

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("x", pa.float64()),
        ("f", pa.float32()),
        ("dec", pa.decimal128(10, 2)),
        ("d", pa.date32()),
        ("t", pa.timestamp("us", "UTC")),
        ("b", pa.binary()),
    ]
)


@pytest.mark.parametrize(
    "text",
    [
        'name = "n5"',
        "name = 'a\\'b'",
        "name = '${spark.app.name}'",
        "x = double('NaN')",
        "id = '5'",
        "name = 5",
        "dec = 1.25D",
        "f = 0.1",
        "t = TIMESTAMP'2024-04-01 00:00:00'",
        "d = TIMESTAMP'2024-04-01 00:00:00'",
        "name = 'it''s'",
        "name COLLATE UTF8_LCASE = 'N5'",
        "id = 9007199254740993e0",
        "id IN (1, 2e0)",
        "id = id",
        "id = (SELECT 1)",
        "nonsense(",
        "nowhere = 5",
        "isnull(id)",
        "every(b)",
        "decode(id, 5, true, false)",
        "CASE WHEN id = 5 THEN true ELSE false END",
        "id = 5; DROP TABLE t",
        "",
    ],
)
def test_conditions_that_depend_on_settings_or_casts_are_unknown(text):
    result = translate_spark_sql(text, SCHEMA)
    assert unknowns(result.predicate), result.predicate
    assert result.row_filter(SCHEMA) is None


def test_exact_parts_of_a_conjunction_are_applied():
    result = translate_spark_sql("id = 5 AND upper(name) = 'N5'", SCHEMA)
    assert unknowns(result.predicate)
    assert str(result.row_filter(SCHEMA)) == "(id == 5)"
    assert result.columns == {"id", "name"}


def test_opaque_columns_are_unknown():
    result = translate_spark_sql("name = 'n5' AND id = 5", SCHEMA, frozenset({"name"}))
    assert [part.text for part in unknowns(result.predicate)] == ["name = 'n5'"]
