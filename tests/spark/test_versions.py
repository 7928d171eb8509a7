"""Results of every entry point on each supported version of Spark.

These tests use only methods that all versions have, so CI also runs them on older ones.
"""

from __future__ import annotations

import datetime
import random
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import types as st
from support import spark_data
from support.joined import explain_join
from support.spark_data import enabled, rows

import zonebloom as zb
import zonebloom.spark as zs
from zonebloom.errors import EngineError
from zonebloom.spark import versions

# On Spark without Python data sources, a test with this mark must fail with the error that says so.
needs_python_sources = pytest.mark.xfail(
    not versions.HAS_PYTHON_SOURCES, raises=EngineError, strict=True, reason="needs Spark 4"
)
pytestmark = pytest.mark.usefixtures("no_pushdown")
NUM_FILES = 3
NUM_CONDITIONS = 25


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return spark_data.write(tmp_path_factory.mktemp("versions") / "lake", NUM_FILES)


def conditions(spark, folder):
    """Yield random conditions with their rows without an index, if Spark can evaluate them."""
    dice, frame = random.Random(35), spark.read.parquet(folder)
    for _ in range(NUM_CONDITIONS):
        text = spark_data.condition(dice)
        try:
            expected = rows(frame.where(text).select("row"))
        except Exception:  # noqa: BLE001 - a literal does not fit its column
            continue
        yield text, expected


@pytest.mark.parametrize("ansi", ["true", "false"])
def test_enabled_and_pruned_frames_have_the_rows_of_spark(spark, folder, ansi):
    with spark_data.settings(spark, **{"spark.sql.ansi.enabled": ansi}):
        num_skipped = num_conditions = 0
        for text, expected in list(conditions(spark, folder)):
            with enabled(spark):
                frame = spark.read.parquet(folder).where(text).select("row")
                assert rows(frame) == expected, text
                plan = zs.explain(frame)
            pruned = zs.prune(spark.read.parquet(folder)).where(text).select("row")
            assert rows(pruned) == expected, text
            num_conditions += 1
            num_skipped += sum(r.num_files - r.kept_files for r in plan.relations)
    assert num_conditions > NUM_CONDITIONS / 2
    assert num_skipped


def test_spark_tasks_build_the_index_of_this_process(spark, tmp_path):
    folder = spark_data.write(tmp_path / "lake", files=1)
    for number, use_spark in enumerate((spark, False)):
        dataset = zb.dataset(folder, index_dir=tmp_path / f"index {number}")
        dataset.create_scalar_index(spark_data.INDEXED, number_of_items=250, spark=use_spark)
    pq.write_table(spark_data.table(1), f"{folder}/1.parquet")
    plans = []
    for number, use_spark in enumerate((spark, False)):
        dataset = zb.dataset(folder, index_dir=tmp_path / f"index {number}")
        dataset.optimize.optimize_indices(spark=use_spark)
        plans.append([str(dataset.scanner(filter=f"id = {key}").plan()) for key in range(20)])
    assert plans[0] == plans[1]


@pytest.mark.parametrize("is_small", [True, False])
@pytest.mark.parametrize(
    ("column", "kind"), [("id", "bigint"), ("id", "decimal(12, 0)"), ("small", "bigint")]
)
def test_tagged_keys_are_those_of_a_join(spark, folder, column, kind, is_small):
    num_keys = 30 if is_small else 5_000
    keys = spark.range(-100, num_keys - 100).selectExpr(f"CAST(id AS {kind}) AS {column}")
    stored = spark.read.parquet(folder)
    located = stored.selectExpr(
        f"{column} AS stored", "_metadata.file_path AS path", "_metadata.row_index AS row_offset"
    )
    expected = keys.join(located, keys[column] == located["stored"], "left").drop("stored")
    tagged = zs.tag_location(keys, folder, column).drop("fragment_id")
    with_uri = tagged.selectExpr(column, "'file:' || path AS path", "row_offset")
    assert rows(with_uri) == rows(expected)
    files = zs.files_with_keys(keys, folder, column).select("num_rows").collect()
    assert sum(row.num_rows for row in files) == expected.where("path IS NOT NULL").count()


@pytest.mark.parametrize("key", ["id", "name", "d"])
@pytest.mark.parametrize("how", ["inner", "left_semi"])
def test_joins_with_a_filter_have_the_rows_of_spark(spark, folder, tmp_path, key, how):
    files = str(tmp_path)
    pq.write_table(spark_data.table(9).slice(0, 300), tmp_path / "few.parquet")
    zb.dataset(files).create_scalar_index(key, number_of_items=50, global_filter=True, spark=False)
    many = spark.read.parquet(folder).where("id < 1000 OR row % 2 = 0").select("row", key)
    few = spark.read.parquet(files).select(key)
    with spark_data.settings(spark, **{"spark.sql.autoBroadcastJoinThreshold": "-1"}):
        plan = explain_join(many, few, key, how=how, right_index=files)
        assert plan.used, str(plan)
        joined = zs.filter_join(many, few, key, how=how, right_index=files)
        assert rows(joined) == rows(many.join(few, key, how))


def test_keys_of_a_small_side_choose_files_of_a_join(spark, tmp_path):
    lake = str(tmp_path)
    for number in range(4):
        ids = pa.array(range(number * 5_000, (number + 1) * 5_000), pa.int64())
        pq.write_table(pa.table({"id": ids, "x": ids}), tmp_path / f"{number}.parquet")
    zb.dataset(lake).create_scalar_index("id", spark=False)
    few = spark.createDataFrame([(5_007,), (-3,)], "id bigint")
    stored = spark.read.parquet(lake)
    joined = zs.filter_join(few, stored, "id", right_index=lake)
    assert rows(joined) == rows(few.join(stored, "id"))
    [kept] = [s.kept_files for s in zs.explain(joined).relations if s.num_files]
    assert kept == 1


def test_a_manager_skips_files(spark, tmp_path):
    folder = spark_data.write(tmp_path / "lake", NUM_FILES)
    with spark_data.settings(spark, **{"zonebloom.system.path": str(tmp_path / "indices")}):
        manager = zs.IndexManager(spark)
        frame = spark.read.parquet(folder)
        expected = rows(frame.where("id = 77"))
        manager.createIndex(frame, zs.BFIndexConfig("by_id", ["id"]))
        pq.write_table(spark_data.table(NUM_FILES), f"{folder}/{NUM_FILES}.parquet")
        frame = spark.read.parquet(folder)
        expected = rows(frame.where("id = 77"))
        manager.refreshIndex("by_id", "incremental")
        assert rows(manager.apply(frame).where("id = 77")) == expected
        assert [row.state for row in manager.indexes().collect()] == ["ACTIVE"]
        manager.deleteIndex("by_id")
        manager.vacuumIndex("by_id")


@needs_python_sources
def test_zones_are_scanned(spark, folder):
    expected = rows(spark.read.parquet(folder).where("id = 77"))
    assert rows(zs.scan(spark, folder, "id = 77")) == expected


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
@pytest.mark.parametrize("num_rows", [0, 3, 25_000])
def test_frames_become_arrow_tables_and_back(spark, zone, num_rows):
    instant = datetime.datetime(2024, 3, 31, 1, 30, tzinfo=datetime.UTC)
    values = {
        "i": pa.array(range(num_rows), pa.int64()),
        "t": pa.array([instant] * num_rows, pa.timestamp("us", "UTC")),
        "n": pa.array([instant.replace(tzinfo=None)] * num_rows, pa.timestamp("us")),
        "dec": pa.array([Decimal("1.25")] * num_rows, pa.decimal128(10, 2)),
        "x": pa.array([None] * num_rows, pa.float64()),
        "b": pa.array([b"\0"] * num_rows, pa.binary()),
    }
    table = pa.table(values)
    kinds = [st.LongType(), st.TimestampType(), st.TimestampNTZType(), st.DecimalType(10, 2)]
    kinds += [st.DoubleType(), st.BinaryType()]
    fields = st.StructType(list(map(st.StructField, table.column_names, kinds)))
    with spark_data.settings(spark, **{"spark.sql.session.timeZone": zone}):
        frame = versions.frame_of_arrow(spark, table, fields)
        assert frame.schema == fields
        assert frame.count() == num_rows
        assert versions.arrow_table(frame.orderBy("i")).equals(table)
        integers = versions.frame_of_arrow(spark, table.select(["i"]))
        assert integers.dtypes == [("i", "bigint")]
