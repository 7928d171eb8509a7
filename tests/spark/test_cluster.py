"""A session whose executors are separate processes: ``local-cluster[2,1,1024]``.

Their Python has every package but zonebloom, until it is sent to them.
"""

from __future__ import annotations

import shutil
import time

from support import separately, watched
from support.helpers import ROOT, index_folder
from support.separately import rows_in, some_id, write_lake

import zonebloom as zb
import zonebloom.building.train


def start(folder):
    # Each file is a task, and each task a Spark task. This changes only the driver.
    zonebloom.building.train._TASK_BYTES = 1
    from pyspark.sql import SparkSession

    from zonebloom.spark import jobs

    jobs._MAX_BYTES_PER_SPARK_TASK = 1

    return (
        SparkSession.builder.master("local-cluster[2,1,1024]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "localhost")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.task.maxFailures", "2")
        # Start speculation early, because these tasks are short.
        .config("spark.speculation", "true")
        .config("spark.speculation.interval", "100ms")
        .config("spark.speculation.multiplier", "1.5")
        .config("spark.speculation.quantile", "0.5")
        # This is longer than an executor takes to start Python, so only waiting tasks are repeated.
        .config("spark.speculation.minTaskRuntime", "5s")
        .getOrCreate()
    )


def stop(spark):
    spark.stop()


check_executors_without_the_package = separately.check_without_the_package
check_it_was_sent_the_package = separately.check_it_was_sent_the_package
check_same_bytes_as_in_process = separately.check_same_bytes_as_in_process
check_refresh_and_scan = separately.check_refresh_and_scan


def check_it_was_sent_the_helpers_of_tests(spark, folder):
    """Send the file system of the next checks to the executors."""
    archive = shutil.make_archive(str(folder / "support"), "zip", ROOT / "tests", "support")
    spark.addArtifacts(archive, pyfile=True)


def attempts(spark, folder, kind):
    """Build while one attempt of a task dies or waits."""
    write_lake(folder / "lake")
    log = folder / "log"
    dataset = zb.dataset(str(folder / "lake"), filesystem=watched.Watched(log=str(log), kind=kind))
    dataset.create_scalar_index("id", spark=spark)
    log.with_suffix(".done").touch()
    version = zb.dataset(folder / "lake").opened.version
    named = {page_map.segment for page_map in version.page_maps}
    assert len(named) == 3
    assert version.indices["id_idx"].fragment_ids == {0, 1, 2}
    wanted = some_id(folder / "lake")
    result = dataset.to_table(filter=f"id = {wanted}").to_pylist()
    assert sorted(tuple(row.values()) for row in result) == rows_in(folder / "lake", id=wanted)
    begun = log.read_text().split()
    assert len(begun) == len(set(begun))
    return begun, named, version.segment_names


def kept(folder):
    return {path.name for path in (index_folder(folder / "lake") / "segments").iterdir()}


def check_worker_killed_in_a_task(spark, folder):
    begun, named, folders = attempts(spark, folder, "dies")
    # At least one slow task ran twice, and its first attempt left no file.
    assert named < set(begun)
    assert kept(folder) == folders


def add_host(spark, host):
    """An executor at another address, because Spark repeats no task at the same address."""
    backend = spark._jsc.sc().schedulerBackend()
    field = backend.getClass().getDeclaredField("masters")
    field.setAccessible(True)
    worker = getattr(spark._jvm.org.apache.spark.deploy.worker, "Worker$")
    worker = getattr(worker, "MODULE$")
    none = spark._jvm.scala.Option.empty()
    worker.startRpcEnvAndEndpoint(
        host,
        0,
        0,
        1,
        1024,
        field.get(backend),
        None,
        spark._jvm.scala.Some(9),
        spark._jsc.sc().conf(),
        none,
    )
    while spark._jsc.sc().getExecutorMemoryStatus().size() < 4:
        time.sleep(0.1)


def check_speculative_attempts(spark, folder):
    add_host(spark, "127.0.0.2")
    begun, named, folders = attempts(spark, folder, "waits")
    assert named < set(begun)
    # The other attempt is dead by now, or continues after the commit under its own name.
    time.sleep(1)
    assert kept(folder) == folders


def test_all_checks_pass_on_a_cluster(tmp_path, cache_of_run):
    separately.run_without_zonebloom(__file__, tmp_path, cache_of_run)


if __name__ == "__main__":
    separately.main(globals(), start, stop)
