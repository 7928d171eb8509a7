"""After `enable(maintain=True)`, the index covers what a session wrote, and rows stay right.

PyArrow reads the same files as the oracle.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as sf
from support.seams import replace_function
from support.spark_data import settings

import zonebloom as zb
import zonebloom.spark as zs
from zonebloom.errors import EngineError, InvalidArgument, StaleIndexWarning
from zonebloom.spark.pruning import maintain
from zonebloom.spark.session_state import session_state

NAME = "maintained"


def rows(spark, begin: int, end: int):
    return spark.range(begin, end, 1, 2).select("id", (sf.col("id") % 2).alias("p"))


def wait(spark, *timeout):
    """Wait for the refreshes after earlier writes, as `disable` does."""
    maintainer = session_state(spark).maintainer
    if maintainer is not None:
        maintainer.wait(*timeout)


@pytest.fixture
def folder(spark, tmp_path):
    """Yield the indexed folder of a partitioned table, in a session that maintains the index."""
    folder = tmp_path / "rows"
    writer = rows(spark, 0, 400).write.partitionBy("p")
    writer.option("path", str(folder)).saveAsTable(NAME)
    zb.dataset(str(folder)).create_scalar_index("id", number_of_items=50, spark=False)
    zs.enable(spark, maintain=True)
    yield folder
    zs.disable(spark)
    spark.sql(f"DROP TABLE IF EXISTS {NAME}")


def unindexed_files(folder: Path, **options) -> int:
    index = zb.dataset(str(folder), **options).describe_indices()[0]
    return index.num_fragments - index.num_fragments_indexed


def stored_ids(folder: Path) -> list[int]:
    table = pads.dataset(folder, partitioning="hive").to_table(columns=["id"])
    return sorted(table["id"].to_pylist())


def check_queries(spark, folder: Path, ids: list[int]) -> None:
    stored = stored_ids(folder)
    frame = spark.read.parquet(str(folder)).where(sf.col("id").isin(ids))
    assert sorted(row.id for row in frame.collect()) == [i for i in stored if i in ids]
    relation = zs.explain(frame).relations[0]
    assert relation.kept_files < relation.num_files


WRITES = {
    "append": lambda new, path: new.write.partitionBy("p").mode("append").parquet(path),
    "overwrite": lambda new, path: new.write.partitionBy("p").mode("overwrite").parquet(path),
    "dynamic overwrite": lambda new, path: (
        new.where("p = 1")
        .write.partitionBy("p")
        .option("partitionOverwriteMode", "dynamic")
        .mode("overwrite")
        .parquet(path)
    ),
    "one partition": lambda new, path: (
        new.where("p = 1").select("id").write.mode("append").parquet(f"{path}/p=1")
    ),
    "insertInto": lambda new, _: new.write.insertInto(NAME),
    "insertInto overwrite": lambda new, _: new.write.insertInto(NAME, overwrite=True),
    "saveAsTable": lambda new, _: new.write.partitionBy("p").mode("append").saveAsTable(NAME),
    "saveAsTable overwrite": lambda new, path: (
        new.write.partitionBy("p").mode("overwrite").option("path", path).saveAsTable(NAME)
    ),
    "INSERT": lambda new, _: new.sparkSession.sql(
        f"INSERT INTO {NAME} PARTITION (p = 1) SELECT id FROM {{new}} WHERE p = 1", new=new
    ),
    "INSERT DIRECTORY": lambda new, path: new.sparkSession.sql(
        f"INSERT OVERWRITE DIRECTORY '{path}' USING parquet SELECT * FROM {{new}}", new=new
    ),
}


@pytest.mark.parametrize("name", WRITES)
def test_the_index_follows_writes(spark, folder, name):
    WRITES[name](rows(spark, 400, 600), str(folder))
    assert 401 in stored_ids(folder)
    wait(spark)
    assert unindexed_files(folder) == 0
    check_queries(spark, folder, [7, 401])


def test_disable_waits_for_the_refresh_and_a_write_does_not(spark, folder, monkeypatch):
    refreshed, may_begin = [], threading.Event()

    def refresh(*_, **__):
        may_begin.wait(60)
        refreshed.append(True)

    replace_function(monkeypatch, maintain, "refresh_indices", refresh)
    rows(spark, 400, 401).write.insertInto(NAME)
    assert not refreshed
    threading.Timer(0.5, may_begin.set).start()
    zs.disable(spark)
    assert refreshed


def test_several_threads_may_write_and_wait(spark, folder):
    def write(number: int) -> None:
        new = rows(spark, 400 + number, 401 + number).select("id")
        new.write.mode("append").parquet(f"{folder}/p={number + 2}")

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(write, range(8)))
    wait(spark)
    assert unindexed_files(folder) == 0
    check_queries(spark, folder, [7, 407])


def test_a_write_that_fails_is_not_followed(spark, folder, monkeypatch):
    reported = []
    replace_function(monkeypatch, maintain, "refresh_indices", lambda *_, **__: reported.append(1))
    failing = rows(spark, 400, 500).selectExpr("assert_true(id < 450)", "p").toDF("id", "p")
    with pytest.raises(Exception, match="is not true"):
        failing.selectExpr("cast(id as long) id", "p").write.mode("append").parquet(str(folder))
    wait(spark)
    assert not reported


def test_the_index_follows_a_managed_table(spark, tmp_path):
    with settings(spark, **{"spark.sql.shuffle.partitions": 2}):
        rows(spark, 0, 100).write.saveAsTable("managed")
    try:
        folder = Path(spark.table("managed").inputFiles()[0].removeprefix("file://")).parent
        zb.dataset(str(folder)).create_scalar_index("id", spark=False)
        zs.enable(spark, maintain=True)
        rows(spark, 100, 200).write.mode("overwrite").saveAsTable("managed")
        wait(spark)
        assert unindexed_files(folder) == 0
        check_queries(spark, folder, [7, 101])
    finally:
        zs.disable(spark)
        spark.sql("DROP TABLE managed")


def test_indices_in_an_index_dir_follow_writes(spark, tmp_path):
    folder, index_dir = tmp_path / "rows", str(tmp_path / "indices")
    rows(spark, 0, 100).write.parquet(str(folder))
    zb.dataset(str(folder), index_dir=index_dir).create_scalar_index("id", spark=False)
    zs.enable(spark, index_dir=index_dir, maintain=True)
    try:
        rows(spark, 100, 200).write.mode("append").parquet(str(folder))
        rows(spark, 0, 100).write.parquet(str(tmp_path / "others"))
        wait(spark)
    finally:
        zs.disable(spark)
    assert unindexed_files(folder, index_dir=index_dir) == 0
    # The index does not grow by the files of another dataset.
    assert unindexed_files(tmp_path / "others", index_dir=index_dir) > 0


@pytest.mark.parametrize("sink", ["file", "foreachBatch"])
def test_the_index_follows_streams(spark, folder, tmp_path, sink):
    for number in range(2):
        rows(spark, 400 + number * 9, 409 + number * 9).coalesce(1).write.mode("append").parquet(
            str(tmp_path / "source")
        )
    source = spark.readStream.schema("id long, p long").option("maxFilesPerTrigger", 1)
    writer = source.parquet(str(tmp_path / "source")).writeStream
    if sink == "file":
        writer = writer.format("parquet").option("path", str(folder)).partitionBy("p")
    else:
        writer = writer.foreachBatch(
            lambda batch, _: batch.write.partitionBy("p").mode("append").parquet(str(folder))
        )
    checkpoint = str(tmp_path / "checkpoint")
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()
    # Spark may report batches after the stream has ended.
    for _ in range(100):
        wait(spark)
        if not unindexed_files(folder):
            break
        time.sleep(0.1)
    assert unindexed_files(folder) == 0
    assert stored_ids(folder) == list(range(418))


def test_a_failed_refresh_fails_no_write_and_is_reported(spark, folder, monkeypatch):
    def fail(*_, **__):
        raise OSError("no space left")

    replace_function(monkeypatch, maintain, "refresh_indices", fail)
    with pytest.warns(StaleIndexWarning, match="not refreshed after a write: no space left"):
        rows(spark, 400, 500).write.insertInto(NAME)
        wait(spark)
    monkeypatch.undo()
    with pytest.warns(StaleIndexWarning, match="not covered"):
        check_queries(spark, folder, [7, 401])
    # The next write repairs it.
    rows(spark, 500, 600).write.insertInto(NAME)
    wait(spark)
    assert unindexed_files(folder) == 0


def test_a_column_that_does_not_fit_is_reported(spark, folder):
    with pytest.warns(StaleIndexWarning, match="id_idx"):
        other = spark.range(9).selectExpr("cast(id as string) id")
        other.write.mode("overwrite").parquet(str(folder))
        wait(spark)
    assert spark.read.parquet(str(folder)).where("id = '7'").count() == 1


def test_the_wait_ends(spark, folder, monkeypatch):
    def sleep(*_, **__):
        time.sleep(2)

    replace_function(monkeypatch, maintain, "refresh_indices", sleep)
    rows(spark, 400, 401).write.insertInto(NAME)
    with pytest.raises(EngineError, match="have not ended"):
        wait(spark, 0.1)


@pytest.mark.parametrize("stop", [zs.disable, zs.enable])
def test_maintenance_ends(spark, folder, stop):
    stop(spark)
    rows(spark, 400, 500).write.insertInto(NAME)
    wait(spark)
    assert unindexed_files(folder) > 0


def test_a_write_that_ends_after_a_new_start_is_followed(spark, folder):
    """Its plan reports to the maintainer of before."""
    earlier = session_state(spark).maintainer
    zs.enable(spark, maintain=True)
    pq.write_table(pa.table({"id": [9_001]}), folder / "p=1" / "new.parquet")
    assert unindexed_files(folder) == 1
    earlier.accept(str(folder))
    wait(spark)
    assert unindexed_files(folder) == 0
    zs.disable(spark)
    pq.write_table(pa.table({"id": [9_002]}), folder / "p=1" / "newer.parquet")
    earlier.accept(str(folder))
    earlier.wait(60)
    assert unindexed_files(folder) == 1


@pytest.mark.parametrize("mode", ["sometimes", "blocking", 1, None])
def test_other_values_are_refused(spark, mode):
    with pytest.raises(InvalidArgument, match="maintain"):
        zs.enable(spark, maintain=mode)
