"""Translated conditions have the meaning that they have in Spark."""

from __future__ import annotations

import random
import re

import pytest
from support import spark_data

import zonebloom.spark as zs
from zonebloom.errors import InvalidArgument
from zonebloom.predicates import unknowns
from zonebloom.spark.load import Load, ScanRequest

pytestmark = pytest.mark.usefixtures("no_pushdown")
QUERIES = 300


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return spark_data.write(tmp_path_factory.mktemp("rows"))


def rows_of(load):
    reader = load.reader
    partitions = load.partitions(load.plan())
    batches = [batch for tasks in partitions for batch in reader.batches(tasks)]
    return [row for batch in batches for row in batch.column("row").to_pylist()]


def answers(spark, folder, conditions):
    """Return the rows that each condition keeps, from one query."""
    frame = spark.read.parquet(folder)
    table_of_results = frame.selectExpr(
        "row", *(f"({text}) AS c{i}" for i, text in enumerate(conditions))
    )
    table = table_of_results.toArrow()
    rows = table["row"].to_pylist()
    for i in range(len(conditions)):
        booleans = table[f"c{i}"].to_pylist()
        yield {row for row, is_held in zip(rows, booleans, strict=True) if is_held}


def valid(spark, folder, conditions):
    """Return the conditions that Spark can evaluate. Some literals do not fit their column."""
    frame = spark.read.parquet(folder)
    for text in conditions:
        try:
            frame.where(text)
        except Exception:  # noqa: BLE001 - Spark refuses it
            continue
        yield text


@pytest.mark.parametrize(
    ("zone", "ansi"), [("UTC", "true"), ("Europe/Berlin", "true"), ("America/New_York", "false")]
)
def test_random_conditions_have_the_rows_of_spark(spark, folder, conf, zone, ansi):
    conf.set("spark.sql.session.timeZone", zone)
    conf.set("spark.sql.ansi.enabled", ansi)
    conf.set("spark.sql.codegen.wholeStage", "false")
    dice = random.Random(f"{zone} {ansi}")
    conditions = list(
        valid(spark, folder, [spark_data.condition(dice) for _ in range(QUERIES // 3)])
    )
    assert len(conditions) > QUERIES // 5
    exact = 0
    for text, wanted in zip(conditions, answers(spark, folder, conditions), strict=True):
        for known_zone in (zone, None):
            load = Load(ScanRequest(folder, text, ["row"], timezone=known_zone))
            result = rows_of(load)
            assert len(result) == len(set(result)), text
            assert wanted <= set(result), text
            if not unknowns(load.filter.predicate):
                exact += 1
                assert wanted == set(result), text
    assert exact > len(conditions) // 4


# Columns of both kinds hold these times, in some time zone.
TIMES = ["2024-04-20 12:00:00", "2024-04-20 00:00:00", "2024-03-31 02:00:00"]
SPELLINGS = [
    f"{prefix}'{time}{zone}'"
    for prefix in ("TIMESTAMP", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ", "")
    for time in TIMES
    for zone in ("", "Z", "+02:00")
]


def refused(text, column):
    """Return whether only one of the literal and the column has a time zone."""
    if column == "t":
        return text.startswith("TIMESTAMP_NTZ")
    return text.startswith(("TIMESTAMP'", "TIMESTAMP_LTZ'")) or text.endswith(("Z'", "+02:00'"))


@pytest.mark.parametrize("kind", ["TIMESTAMP_LTZ", "TIMESTAMP_NTZ"])
@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York"])
def test_times_with_and_without_a_zone_are_compared_as_in_spark(spark, folder, conf, zone, kind):
    """Spark uses the session's zone for the one without; ambiguous cases are refused."""
    conf.set("spark.sql.session.timeZone", zone)
    conf.set("spark.sql.timestampType", kind)
    conf.set("spark.sql.codegen.wholeStage", "false")
    pairs = [(column, text) for column in "tn" for text in SPELLINGS]
    conditions = [f"{column} = {text}" for column, text in pairs]
    num_exact = 0
    for (column, text), condition, wanted in zip(
        pairs, conditions, answers(spark, folder, conditions), strict=True
    ):
        num_exact += bool(wanted)
        load = Load(ScanRequest(folder, condition, ["row"], timezone=zone))
        assert wanted <= set(rows_of(load)), text
        unknown_parts = unknowns(load.filter.predicate)
        if not unknown_parts:
            assert not refused(text, column), text
            assert set(rows_of(load)) == wanted, text
        elif refused(text, column):
            wants = "TIMESTAMP'2024" if column == "t" else "TIMESTAMP_NTZ'2024"
            assert wants in str(unknown_parts[0].reason), text
        else:
            # The clocks show this time twice or never.
            assert "changes near" in str(unknown_parts[0].reason), text
    assert num_exact > len(pairs) // 2


@pytest.mark.parametrize("text", SPELLINGS[::3])
def test_a_time_of_an_unknown_session_is_refused(folder, text):
    """Load columns of instants without the session's time zone."""
    [unknown] = unknowns(Load(ScanRequest(folder, f"t = {text}")).filter.predicate)
    assert re.search(r"TIMESTAMP'2024|session.s time zone", str(unknown.reason))


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York"])
def test_frames_use_the_time_zone_of_the_session(spark, folder, conf, zone):
    conf.set("spark.sql.session.timeZone", zone)
    frame = spark.read.parquet(folder)
    texts = [f"{prefix}'2024-04-20 12:00:00'" for prefix in ("TIMESTAMP", "TIMESTAMP_NTZ", "")]
    for condition in [f"{column} = {text}" for column in "tn" for text in texts]:
        wanted = rows_in(frame.where(condition))
        assert rows_in(zs.scan(spark, folder, condition)) == wanted, condition
        assert rows_in(zs.prune(frame.where(condition))) == wanted, condition
    keys = spark.sql(
        "SELECT explode(sequence(TIMESTAMP_NTZ'2024-04-20 00:00:00', "
        "TIMESTAMP_NTZ'2024-04-20 23:00:00', INTERVAL 1 HOUR)) AS t"
    )
    wanted = rows_in(keys.join(frame, "t"))
    assert wanted
    assert rows_in(zs.filter_join(keys, frame, "t", right_index=folder)) == wanted
    with pytest.raises(InvalidArgument, match="cast the keys' column to timestamp"):
        zs.tag_location(keys, folder, "t")
    tagged = zs.tag_location(keys.selectExpr("CAST(t AS TIMESTAMP)"), folder, "t")
    assert tagged.where("path IS NOT NULL").count() == len(wanted)


def rows_in(frame):
    return sorted(row.row for row in frame.select("row").collect())
