"""Spark skips files by elements, entries, words, texts, ranges and tuples, and loses no row."""

from __future__ import annotations

import datetime
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as sf
from support.helpers import cases
from support.spark_data import files_read, settings

import zonebloom as zb
import zonebloom.spark as zs

WORDS = ["error", "GET", "Error", "timeout", "Größe", "GRÖẞE", "disk", "user1", "İstanbul", "ΣΑΣ"]
START = datetime.datetime(2024, 1, 31, tzinfo=datetime.UTC)
FILES, ROWS = 8, 50


def part(number: int) -> pa.Table:
    rng = random.Random(number)
    numbers = range(number * ROWS, (number + 1) * ROWS)

    def text(row: int) -> str | None:
        words = rng.choices(WORDS, k=rng.randint(0, 3))
        return None if row % 17 == 0 else " ".join([*words, f"id={row // 25}"])

    return pa.table(
        {
            "row": numbers,
            "tags": pa.array([rng.choice([None, [], ["a", None, f"t{n // 40}"]]) for n in numbers]),
            "nums": pa.array(
                [rng.choice([None, [], [n // 40, None]]) for n in numbers], pa.list_(pa.int32())
            ),
            "attrs": pa.array(
                [rng.choice([None, [("host", f"h{n // 40}"), ("k", None)]]) for n in numbers],
                pa.map_(pa.string(), pa.string()),
            ),
            "message": list(map(text, numbers)),
            "ts": pa.array(
                [START + datetime.timedelta(minutes=n) for n in numbers], pa.timestamp("us", "UTC")
            ),
            "region": [rng.choice(["eu", "us", None]) for _ in numbers],
            "key": pa.array([n // 20 for n in numbers], pa.int32()),
            "events": pa.array(
                [rng.choice([None, [None, {"id": n // 40, "kind": "x"}]]) for n in numbers]
            ),
        }
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("requirements") / "events"
    folder.mkdir()
    for number in range(FILES):
        pq.write_table(part(number), folder / f"{number}.parquet")
    ds = zb.dataset(folder)
    options = {"number_of_items": 16, "spark": False}
    ds.create_scalar_index(
        ["tags[]", "nums[]", "attrs[]", "events[].id", ("region", "key")], "HASH", **options
    )
    ds.create_scalar_index("message", tokens="words", lower=True, **options)
    ds.create_scalar_index("message", tokens="trigrams", **options)
    ds.create_scalar_index("ts", "ZONEMAP", **options)
    return folder


@pytest.fixture
def enabled(spark):
    zs.enable(spark)
    yield spark
    zs.disable(spark)


def some_text(rng: random.Random) -> str:
    word = rng.choice([*WORDS, "id=", "nothing", f"id={rng.randrange(16)}"])
    return rng.choice([word, word.lower(), word.upper(), word[1:], f"{word} {rng.choice(WORDS)}"])


def term(rng: random.Random) -> str:
    number, text = rng.randrange(12), some_text(rng)
    moment = START + datetime.timedelta(minutes=rng.randrange(FILES * ROWS))
    terms = [
        f"array_contains(tags, 't{number}')",
        f"array_contains(nums, {number})",
        f"attrs['host'] = 'h{number}'",
        f"array_contains(events.id, {number}L)",
        f"array_contains(events.id, {number})",
        f"element_at(attrs, 'host') = 'h{number}'",
        f"attrs['host'] IN ('h{number}', 'h1')",
        f"attrs['host'] IN ('h{number}', NULL)",
        f"attrs['host'] NOT IN ('h{number}', 'h1')",
        f"message NOT LIKE '%{text}%'",
        f"lower(message) NOT LIKE '%{text.lower()}%'",
        f"lower(message) = '{text.lower()}'",
        f"lower(message) IN ('{text.lower()}', 'x')",
        f"startswith(lower(message), '{text}')",
        f"lower(attrs['host']) = 'h{number}'",
        f"message LIKE '%{text}%'",
        f"message LIKE '{text}%'",
        f"message LIKE '%{text}_%{number}'",
        f"message ILIKE '%{text}%'",
        f"startswith(message, '{text}')",
        f"endswith(message, '{text}')",
        f"contains(message, '{text}')",
        f"message RLIKE '{text}[0-9]*$'",
        f"message RLIKE '(?i){text}'",
        f"lower(message) LIKE '%{text}%'",
        f"region = 'eu' AND key = {number}",
        f"ts >= TIMESTAMP '{moment:%Y-%m-%d %H:%M:%S}+00:00'",
        f"ts < TIMESTAMP '{moment:%Y-%m-%d %H:%M:%S}+00:00'",
        f"ts BETWEEN TIMESTAMP '{moment:%Y-%m-%d %H:%M:%S}+00:00' AND "
        f"TIMESTAMP '{moment + datetime.timedelta(minutes=40):%Y-%m-%d %H:%M:%S}+00:00'",
        "message IS NOT NULL",
    ]
    return rng.choice(terms)


def condition(rng: random.Random) -> str:
    text = term(rng)
    for _ in range(rng.choice([0, 0, 1, 2])):
        text = f"({text}) {rng.choice(['AND', 'AND', 'OR'])} ({term(rng)})"
    return f"NOT ({text})" if rng.random() < 0.15 else text


def numbers_of(frame) -> list[int]:
    return sorted(row["row"] for row in frame.select("row").collect())


@pytest.fixture(scope="module")
def expected(spark, folder) -> dict[str, list[int]]:
    """Return the rows that Spark finds without indices."""
    rng = random.Random(3)
    conditions = [condition(rng) for _ in range(cases(400, 120))]
    with settings(spark, **{"spark.sql.parquet.filterPushdown": "false"}):
        frame = spark.read.parquet(str(folder))
        return {text: numbers_of(frame.where(text)) for text in conditions}


def test_generated_conditions_find_the_rows_of_spark(enabled, folder, expected):
    for text, wanted in expected.items():
        assert numbers_of(enabled.read.parquet(str(folder)).where(text)) == wanted, text


def test_a_scan_finds_the_rows_of_spark(spark, folder, expected):
    for text, wanted in list(expected.items())[:40]:
        assert numbers_of(zs.scan(spark, str(folder), filter=text)) == wanted, text


@pytest.mark.parametrize(
    ("condition", "num_files"),
    [
        ("array_contains(tags, 't7')", 2),
        ("array_contains(nums, 3)", 2),
        ("array_contains(events.id, 3L)", 2),
        ("attrs['host'] = 'h9'", 1),
        ("element_at(attrs, 'host') = 'h9'", 1),
        ("attrs['host'] IN ('h9', 'h9')", 1),
        ("attrs['host'] IN ('h9', 'nothing')", 1),
        ("'h9' = attrs['host']", 1),
        ("message ILIKE '%ID=9'", 1),
        ("message ILIKE 'NOTHING %'", 0),
        ("lower(message) LIKE '%_=9'", 1),
        ("'nothing' = lower(message)", 0),
        ("contains(lower(message), ' nothing ')", 0),
        ("message LIKE '%id=9'", 1),
        ("message LIKE '%nothing%at%all%'", 0),
        ("message LIKE '%nothing!%at%all%' ESCAPE '!'", FILES),
        ("contains(message, ' id=15')", 1),
        ("startswith(message, 'nothing at all')", 0),
        ("message RLIKE 'id=9$'", 1),
        ("region = 'eu' AND key = 7", 2),
        ("ts < TIMESTAMP '2024-01-31 00:50:00+00:00'", 1),
        ("ts >= TIMESTAMP '2024-01-31 06:00:00+00:00'", 1),
    ],
)
def test_spark_reads_few_files(enabled, folder, condition, num_files):
    frame = enabled.read.parquet(str(folder)).where(condition).select("row")
    frame.collect()
    assert sum(files_read(frame)) == num_files


def test_no_row_is_lost_where_an_engine_searches_otherwise(enabled, tmp_path):
    """The text may be the literal, and Java ends lines and names spaces as no other engine does."""
    texts = ["b", "ab\x85", "c\u2028ab", "ab\n", "ab", "*ab", "a", "", None, "zz", "xa%b"]
    table = pa.table({"row": range(len(texts)), "message": texts})
    pq.write_table(table, tmp_path / "0.parquet")
    ds = zb.dataset(tmp_path)
    options = {"number_of_items": 1, "spark": False}
    ds.create_scalar_index("message", "HASH", tokens="words", **options)
    ds.create_scalar_index("message", "HASH", tokens="trigrams", **options)
    message = sf.col("message")
    for condition in (
        sf.contains(sf.lit("xxabxx"), message),
        sf.startswith(sf.lit("abxxxx"), message),
        sf.endswith(sf.lit("xxxxab"), message),
        sf.array_contains(sf.array(sf.lit("ab"), sf.lit("zz")), message),
        message.rlike("ab$"),
        message.rlike("(?m)^ab"),
        message.rlike("ab\\v"),
        message.rlike("^*ab"),
        message.like("%a_%"),
        sf.expr("message LIKE '%a!%b' ESCAPE '!'"),
        ~message.contains("ab"),
        message.contains("ab").isNull(),
        message.contains("ab") == sf.lit(False),
        message.contains("ab").eqNullSafe(sf.lit(None)),
        sf.coalesce(message.contains("ab"), sf.lit(True)),
    ):
        zs.disable(enabled)
        expected = numbers_of(enabled.read.parquet(str(tmp_path)).where(condition))
        zs.enable(enabled)
        assert len(expected) > 0, condition
        frame = enabled.read.parquet(str(tmp_path)).where(condition)
        assert numbers_of(frame) == expected, condition


def test_a_file_with_a_column_in_another_case_is_read(enabled, tmp_path):
    """Spark reads TAGS as tags, but the index holds only nulls for it."""
    rows = part(0).select(["row", "tags", "message", "ts", "region", "key"])
    pq.write_table(rows, tmp_path / "0.parquet")
    names = [name if name in ("row", "region") else name.upper() for name in rows.column_names]
    other = part(1).select(rows.column_names).rename_columns(names)
    pq.write_table(other, tmp_path / "1.parquet")
    ds = zb.dataset(tmp_path)
    ds.create_scalar_index(["tags[]", ("region", "key")], spark=False)
    ds.create_scalar_index("message", tokens="trigrams", spark=False)
    ds.create_scalar_index("ts", "ZONEMAP", spark=False)
    frame = enabled.read.schema(enabled.read.parquet(str(tmp_path / "0.parquet")).schema).parquet(
        str(tmp_path)
    )
    for condition in (
        "array_contains(tags, 't2')",
        "message LIKE '%id=3%'",
        "ts >= TIMESTAMP '2024-01-31 00:50:00+00:00'",
        "region = 'eu' AND key = 4",
    ):
        zs.disable(enabled)
        expected = numbers_of(frame.where(condition))
        zs.enable(enabled)
        assert len(expected) > 0
        assert numbers_of(frame.where(condition)) == expected, condition


def test_tuples_are_tagged_by_their_index(spark, folder):
    keys = spark.createDataFrame([("eu", 7), ("us", 9), ("zz", 7)], "region string, key int")
    tagged = zs.tag_location(keys, str(folder), on=["region", "key"])
    rows = [row for number in range(FILES) for row in part(number).to_pylist()]
    expected = sum((row["region"], row["key"]) in (("eu", 7), ("us", 9)) for row in rows)
    assert tagged.where("path IS NOT NULL").count() == expected
