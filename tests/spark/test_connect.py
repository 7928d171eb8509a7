"""Test a session over Spark Connect, on a local server whose Python lacks zonebloom."""

from __future__ import annotations

from collections import Counter

import pytest
from support import separately
from support.helpers import index_folder
from support.seams import set_constant
from support.separately import rows_in, rows_of, some_id, write_lake

import zonebloom as zb
import zonebloom.building.train
from zonebloom.errors import (
    FragmentUnreadable,
    IndexNotUsedWarning,
    InvalidArgument,
)
from zonebloom.spark.tagging import locate


def start(folder):
    # Each file is a task. This changes only the driver.
    zonebloom.building.train._TASK_BYTES = 1
    from pyspark.sql import SparkSession

    return (
        SparkSession.builder.remote("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "localhost")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.connect.progress.reportInterval", "100ms")
        .getOrCreate()
    )


def stop(spark):
    spark.stop()


def check_it_is_connect(spark):
    assert "connect" in type(spark).__module__
    with pytest.raises(Exception, match="not supported in Spark Connect"):
        spark.sparkContext  # noqa: B018


check_server_without_the_package = separately.check_without_the_package
check_it_was_sent_the_package = separately.check_it_was_sent_the_package
check_same_bytes_as_in_process = separately.check_same_bytes_as_in_process
check_refresh_and_scan = separately.check_refresh_and_scan


def check_errors_are_those_of_classic_sessions(spark, folder):
    lake = folder / "lake"
    write_lake(lake, files=2)
    with pytest.raises(Exception, match=r"NoFragments: .*nowhere"):
        zb.spark.scan(spark, folder / "nowhere")
    with pytest.raises(Exception, match="ColumnNotFound: there is no column 'nope'"):
        zb.spark.scan(spark, lake, columns=["nope"])
    with pytest.raises(InvalidArgument, match="give Spark SQL text"):
        zb.spark.scan(spark, lake, 3)
    dataset = zb.dataset(lake)
    (lake / "1.parquet").write_bytes(b"PAR1 this is not one PAR1")
    with pytest.raises(FragmentUnreadable, match=r"1\.parquet"):
        dataset.create_scalar_index("id", spark=spark)
    assert not index_folder(lake).exists()


def check_filters_that_spark_pushes(spark, folder):
    write_lake(folder / "lake")
    zb.dataset(folder / "lake").create_scalar_index("id", spark=False)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        loaded = zb.spark.scan(spark, folder / "lake")
        wanted = some_id(folder / "lake")
        assert rows_of(loaded.where(f"id = {wanted}")) == rows_in(folder / "lake", id=wanted)
        assert loaded.count() == 3 * 30_000
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def check_keys_are_tagged(spark, folder):
    lake = folder / "lake"
    write_lake(lake)
    zb.dataset(lake).create_scalar_index("id", spark=False)
    existing_id = some_id(lake)
    keys = spark.createDataFrame([(existing_id,), (existing_id,), (None,), (-1,)], "id bigint")
    times = 2 * len(rows_in(lake, id=existing_id))
    wanted = Counter({(existing_id, False): times, (None, True): 1, (-1, True): 1})
    # The rows are first located on the driver, and then by jobs.
    for max_keys in (locate.MAX_SEARCHED_KEYS, 0):
        with pytest.MonkeyPatch.context() as patched:
            set_constant(patched, locate, "MAX_SEARCHED_KEYS", max_keys)
            set_constant(
                patched, locate, "_MAX_DRIVER_ROWS", locate._MAX_DRIVER_ROWS if max_keys else -1
            )
            result = zb.spark.tag_location(keys, lake, "id").collect()
            assert Counter((row.id, row.path is None) for row in result) == wanted
            files = rows_of(zb.spark.files_with_keys(keys, lake, "id").select("path"))
        assert files == [(str(lake / "1.parquet"),)]


def check_pruned_reads(spark, folder):
    lake = folder / "lake"
    write_lake(lake)
    zb.dataset(lake).create_scalar_index("id", spark=False)
    wanted = some_id(lake)
    frame = spark.read.parquet(str(lake)).where(f"id = {wanted}")
    with pytest.warns(IndexNotUsedWarning, match=r"zonebloom\.spark\.scan"):
        assert zb.spark.prune(frame) is frame
    assert zb.spark.explain(frame).relations == ()
    assert rows_of(frame) == rows_in(lake, id=wanted) != []


def check_joins_are_those_of_spark(spark, folder):
    lake = folder / "lake"
    write_lake(lake)
    zb.dataset(lake).create_scalar_index("id", global_filter=True, spark=False)
    stored = spark.read.parquet(str(lake))
    keys = spark.createDataFrame([(some_id(lake), "a"), (-1, "b")], "id bigint, x string")
    with pytest.warns(IndexNotUsedWarning, match="Connect gives no access to plans"):
        joined = zb.spark.filter_join(keys, stored, "id", right_index=str(lake))
    assert rows_of(joined) == rows_of(keys.join(stored, "id")) != []


def check_an_encrypted_index(spark, folder):
    lake = folder / "lake"
    write_lake(lake)
    key = b"known to whom it is told " * 2
    keys = zb.Encryption("a", {"a": key[:32]})
    zb.dataset(lake, encryption=keys).create_scalar_index("id", spark=spark)
    wanted = some_id(lake)
    frame = zb.spark.scan(spark, zb.dataset(lake, encryption=keys), f"id = {wanted}")
    assert rows_of(frame) == rows_in(lake, id=wanted) != []
    assert "told" not in frame._explain_string(extended=True)
    assert zb.spark.explain(frame).scans[0].indices


def test_all_checks_pass_over_spark_connect(tmp_path, cache_of_run):
    separately.run_without_zonebloom(__file__, tmp_path, cache_of_run)


if __name__ == "__main__":
    separately.main(globals(), start, stop)
