"""Test old days and times, whose files are refused or left to Spark if their calendar may differ.

Spark writes the files, in the calendar of Spark 2 or of today, and its own reader is the oracle.
"""

from __future__ import annotations

import datetime
import json
import shutil
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.joined import explain_join
from support.seams import set_constant
from support.spark_data import settings

import zonebloom as zb
import zonebloom.spark.tagging.locate
from zonebloom.errors import (
    SchemaMismatch,
)
from zonebloom.predicates import ast
from zonebloom.predicates.spark_calendar import without_rebased_literals
from zonebloom.spark import filter_join, prune, scan, tag_location
from zonebloom.spark.rebase import RebaseCheck, has_times

MODE = "spark.sql.parquet.{}RebaseModeIn{}"
DAYS = ["0001-01-01", "1500-02-28", "1582-10-04", "1582-10-15", "1900-01-01", "2024-02-29"]
REFUSED = "by the calendar of Spark 2"


def write(spark, folder, mode, kind="TIMESTAMP_MICROS", first=0):
    """Return six days and times, twice each. The rows are numbered from `first`."""
    days = ", ".join(f"DATE'{day}'" for day in DAYS)
    frame = spark.range(first, first + 12).selectExpr(
        "id",
        f"array({days})[int(id % 6)] AS d",
        f"CAST(array({days})[int(id % 6)] AS TIMESTAMP) AS t",
        f"CAST(array({days})[int(id % 6)] AS TIMESTAMP_NTZ) AS n",
        f"named_struct('d', array({days})[int(id % 6)]) AS st",
    )
    values = {
        MODE.format("datetime", "Write"): mode,
        MODE.format("int96", "Write"): mode,
        "spark.sql.parquet.outputTimestampType": kind,
    }
    part = folder.parent / f"{folder.name}-{first}"
    with settings(spark, **values):
        frame.coalesce(1).write.parquet(str(part))
    (written,) = part.glob("*.parquet")
    folder.mkdir(exist_ok=True)
    shutil.move(written, folder / f"{first}.parquet")
    shutil.rmtree(part)


@pytest.fixture(autouse=True)
def session(spark):
    off = {"spark.sql.parquet.filterPushdown": "false", "spark.sql.session.timeZone": "UTC"}
    with settings(spark, **off):
        yield


@pytest.fixture(scope="module")
def lakes(spark, tmp_path_factory):
    """Write files in both calendars, and only in the modern one, by name."""
    folder = tmp_path_factory.mktemp("calendars")
    with settings(spark, **{"spark.sql.session.timeZone": "UTC"}):
        write(spark, folder / "legacy", "LEGACY")
        for name in ("legacy", "modern"):
            write(spark, folder / name, "CORRECTED", first=102)
        write(spark, folder / "modern", "CORRECTED")
    for name in ("legacy", "modern"):
        ds = zb.dataset(folder / name)
        ds.create_scalar_index(["id", "d", "t"], number_of_items=4, spark=False)
    return folder


@pytest.fixture(scope="module")
def legacy(lakes):
    return str(lakes / "legacy")


@pytest.fixture(scope="module")
def modern(lakes):
    return str(lakes / "modern")


@pytest.fixture(scope="module")
def spark_rows(spark, legacy, modern):
    """Return the rows that Spark shows, which are the same in both calendars."""
    with settings(spark, **{"spark.sql.session.timeZone": "UTC"}):
        result, other = (rows(spark.read.parquet(lake)) for lake in (legacy, modern))
    assert result == other
    assert [row["d"] for row in result] == DAYS * 4
    return result


def rows(frame):
    # Compare texts, because Python's dates use only the modern calendar.
    result = frame.selectExpr("to_json(struct(*))").collect()
    return sorted((json.loads(row[0]) for row in result), key=lambda row: row["id"])


def refused(frame):
    with pytest.raises(Exception, match=REFUSED):
        frame.collect()


def test_spark_corrects_what_is_stored(spark, legacy):
    """Check that Spark corrects stored days. Without this, the tests below would prove nothing."""
    stored = pq.read_table(f"{legacy}/0.parquet", columns=["id", "d"]).slice(1, 1)
    assert stored.to_pylist() == [{"id": 1, "d": datetime.date(1500, 3, 9)}]
    (row,) = spark.read.parquet(legacy).where("id = 1").selectExpr("string(d)").collect()
    assert row[0] == "1500-02-28"


def test_columns_without_times_and_files_of_today_are_read(spark, legacy, spark_rows):
    result = rows(scan(spark, legacy, "id = 1 OR id = 5", ["id", "n"]))
    assert result == [{"id": row["id"], "n": row["n"]} for row in (spark_rows[1], spark_rows[5])]
    assert rows(scan(spark, legacy, "id = 107")) == [row for row in spark_rows if row["id"] == 107]


def test_columns_with_times_are_refused(spark, legacy):
    for number, column in ((1, "d"), (1, "st"), (5, "d")):
        refused(scan(spark, legacy, f"id = {number}", [column]))
    refused(scan(spark, legacy, columns=["t"]))
    # Columns of the filter count too.
    refused(scan(spark, legacy, "d > DATE'2000-01-01'", ["id"]))


@pytest.mark.parametrize(
    ("column", "day"),
    [("d", "0001-01-01"), ("d", "1900-01-01"), ("t", "1900-01-01"), ("t", "2024-02-29")],
)
def test_filters_on_old_days_of_legacy_files_are_refused(
    spark, legacy, modern, spark_rows, column, day
):
    condition = f"{column} = DATE'{day}'" if column == "d" else f"t = TIMESTAMP'{day} 00:00:00Z'"
    expected = [row for row in spark_rows if row["d"] == day]
    assert len(expected) == 4
    assert rows(scan(spark, modern, condition)) == expected
    # A row that stores another day, which Spark shows as this one, must not be lost silently.
    refused(scan(spark, legacy, condition))


def test_files_that_are_not_read_do_not_matter(spark, legacy, spark_rows):
    result = rows(scan(spark, legacy, "d = DATE'1500-02-28' AND id = 103"))
    assert result == [row for row in spark_rows if row["id"] == 103] != []


def test_int96_timestamps_follow_their_own_setting(spark, tmp_path):
    write(spark, tmp_path / "lake", "LEGACY", "INT96")
    lake = str(tmp_path / "lake")
    assert rows(scan(spark, lake, "id = 5", ["id"])) == [{"id": 5}]
    refused(scan(spark, lake, "id = 5", ["id", "t"]))
    refused(scan(spark, lake, "t = TIMESTAMP'1500-02-28 00:00:00Z'", ["id", "t"]))


DATETIME, INT96 = b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96"
MARKS = [
    (version, mark, kind)
    for version in (None, b"2.4.8", b"3.0.0", b"3.0.3", b"3.1.0", b"3.5.0")
    for mark in (None, DATETIME, INT96)
    for kind in ("us", "INT96")
]


def is_refused(calendars, ds):
    try:
        calendars.require_modern(ds, ["t"])
    except SchemaMismatch:
        return True
    return False


def test_marks_of_the_writer_decide_the_calendar(spark, tmp_path):
    """Spark and this package choose the same files for correction."""
    time = datetime.datetime(1500, 3, 9, tzinfo=datetime.UTC)
    for number, (version, mark, kind) in enumerate(MARKS):
        metadata = {b"org.apache.spark.version": version} if version else {}
        metadata |= {mark: b""} if mark else {}
        table = pa.table({"id": [number], "t": pa.array([time], pa.timestamp("us", "UTC"))})
        table = table.replace_schema_metadata({**metadata, b"org.apache.spark.timeZone": b"UTC"})
        int96 = kind == "INT96"
        path = tmp_path / kind / f"{number:02}.parquet"
        path.parent.mkdir(exist_ok=True)
        pq.write_table(table, path, use_deprecated_int96_timestamps=int96)
    corrected = set()
    for kind in ("us", "INT96"):
        shown_rows = rows(spark.read.parquet(str(tmp_path / kind)))
        old = [row["id"] for row in shown_rows if row["t"] == "1500-02-28T00:00:00.000Z"]
        source = zb.dataset(tmp_path / kind).opened.source
        calendars = RebaseCheck.of(source, ["t"] if kind == "INT96" else [])
        ds = [source.open(fragment, source.filesystem) for fragment in source.fragments]
        result = [is_refused(calendars, file) for file in ds]
        assert [row["id"] for row, is_old in zip(shown_rows, result, strict=True) if is_old] == old
        corrected.update(old)
    assert 10 < len(corrected) < 26
    marked = str(tmp_path / "us" / f"{MARKS.index((b'2.4.8', None, 'us')):02}.parquet")
    refused(scan(spark, marked))
    other = str(tmp_path / "INT96" / f"{MARKS.index((b'3.1.0', None, 'INT96')):02}.parquet")
    assert rows(scan(spark, other)) == rows(spark.read.parquet(other))


@pytest.mark.parametrize("mode", ["LEGACY", "EXCEPTION"])
def test_the_rebase_mode_decides_for_files_of_other_writers(spark, tmp_path, mode):
    day = datetime.date(1500, 3, 9)
    table = pa.table({"d": [day, datetime.date(2024, 1, 1)], "id": [0, 1]})
    pq.write_table(table, tmp_path / "a.parquet")
    lake = str(tmp_path)
    assert rows(scan(spark, lake)) == rows(spark.read.parquet(lake))
    with settings(spark, **{MODE.format("datetime", "Read"): mode}):
        refused(scan(spark, lake))
        assert rows(scan(spark, lake, "id = 1", ["id"])) == [{"id": 1}]


# Keys


def keys_of(spark, column, days):
    texts = ", ".join(f"('{day}')" for day in days)
    kind = "DATE" if column == "d" else "TIMESTAMP"
    return spark.sql(f"SELECT CAST(x AS {kind}) AS {column} FROM VALUES {texts} AS v(x)")


@pytest.mark.parametrize(("column", "way"), [("d", "here"), ("t", "here"), ("d", "dense")])
def test_keys_with_days_are_refused_for_legacy_files(
    spark, legacy, modern, column, way, monkeypatch
):
    if way == "dense":
        set_constant(monkeypatch, zonebloom.spark.tagging.locate, "MAX_SEARCHED_KEYS", 0)
        set_constant(monkeypatch, zonebloom.spark.tagging.locate, "_MAX_DRIVER_ROWS", -1)
    old = keys_of(spark, column, ["1500-02-28", "2024-02-29", "1234-05-06"])
    # Spark raises the errors of its tasks as exceptions that contain ours.
    error = Exception if way == "dense" else SchemaMismatch
    with pytest.raises(error, match=REFUSED):
        tag_location(old, legacy, column)
    with pytest.raises(error, match=REFUSED):
        tag_location(keys_of(spark, column, ["2024-02-29"]), legacy, column)
    result = tag_location(old, modern, column).collect()
    days = Counter(str(row[column])[:10] for row in result)
    assert sorted(days.values()) == [1, 4, 4]
    assert [str(row[column])[:4] for row in result if row.path is None] == ["1234"]
    # Keys of other columns are found in the same files.
    assert tag_location(spark.range(1, 2), legacy, "id").where("row_offset = 1").count() == 1


def test_tuples_with_old_days_are_refused_for_legacy_files(spark, lakes, tmp_path):
    keys = spark.sql("SELECT DATE'1500-02-28' AS d, 1L AS id UNION ALL SELECT DATE'2024-02-29', 5L")
    for name in ("legacy", "modern"):
        shutil.copytree(lakes / name, tmp_path / name, ignore=shutil.ignore_patterns("_*"))
        ds = zb.dataset(tmp_path / name)
        ds.create_scalar_index(("d", "id"), "HASH", number_of_items=4, spark=False)
    with pytest.raises(SchemaMismatch, match=REFUSED):
        tag_location(keys, str(tmp_path / "legacy"), ["d", "id"]).collect()
    found = tag_location(keys, str(tmp_path / "modern"), ["d", "id"])
    assert sorted(row.row_offset for row in found.collect()) == [1, 5]
    tuples = ast.HasTuple((("d",), ("id",)), (pa.array([datetime.date(1500, 1, 1)]), pa.array([1])))
    assert isinstance(without_rebased_literals(tuples), ast.Unknown)


def test_times_that_spark_shows_as_later_are_refused(spark, tmp_path):
    """Local solar time makes Spark show times after 1900 that are stored before it."""
    stored = [datetime.datetime(1899, 12, 31, 23, 50 + i, tzinfo=datetime.UTC) for i in range(3)]
    table = pa.table({"t": pa.array(stored, pa.timestamp("us", "UTC")), "id": range(3)})
    zones_and_times = {
        b"org.apache.spark.version": b"2.4.8",
        b"org.apache.spark.timeZone": b"Africa/Abidjan",
    }
    pq.write_table(table.replace_schema_metadata(zones_and_times), tmp_path / "a.parquet")
    zb.dataset(tmp_path).create_scalar_index("t", global_filter=True, spark=False)
    lake = str(tmp_path)
    whole = spark.read.parquet(lake)
    text = "TIMESTAMP'1900-01-01 00:06:08Z'"
    keys = spark.sql(f"SELECT {text} AS t")
    assert keys.join(whole, "t").count() == 1
    with settings(spark, **{"spark.sql.autoBroadcastJoinThreshold": "-1"}):
        keys = keys.localCheckpoint()
        assert explain_join(keys, whole, "t", right_index=lake).used
        assert filter_join(keys, whole, "t", right_index=lake).count() == 1
    assert prune(whole.where(f"t = {text}")).count() == 1
    refused(scan(spark, lake, f"t = {text}"))
    with pytest.raises(SchemaMismatch, match=REFUSED):
        tag_location(keys, lake, "t").collect()


# Parts


def test_conditions_on_old_times_are_unknown():
    old, new = (pa.scalar(datetime.date(year, 1, 1)) for year in (1500, 2000))
    unchanged = ast.Or((ast.Equals(("d",), new), ast.IsNull(("d",))))
    assert without_rebased_literals(unchanged) == unchanged
    mixed = without_rebased_literals(ast.Or((ast.Equals(("d",), new), ast.Equals(("d",), old))))
    assert len(ast.unknowns(mixed)) == 1
    is_in = ast.IsIn(("d",), pa.array([new.as_py(), old.as_py()]))
    assert isinstance(without_rebased_literals(is_in), ast.Unknown)


NESTED = [
    pa.list_(pa.date32()),
    pa.struct({"n": pa.int8(), "x": pa.list_(pa.date32())}),
    pa.map_(pa.int32(), pa.date32()),
    pa.dictionary(pa.int8(), pa.date32()),
    pa.list_(pa.date32(), 2),
    pa.date64(),
    pa.timestamp("s", "Europe/Berlin"),
]


@pytest.mark.parametrize("arrow_type", NESTED, ids=str)
def test_nested_times_are_found(arrow_type):
    assert has_times(arrow_type)
