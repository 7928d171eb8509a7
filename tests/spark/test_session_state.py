"""Test that caches and registered keys belong to one session, and end with its application."""

from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import zonebloom as zb
import zonebloom.spark as zs
from zonebloom.errors import IndexNotUsedWarning
from zonebloom.spark.pruning.optimizer_rule import warn_once
from zonebloom.spark.session_state import LruCache, SessionState, compiled_java, session_state

RESTART = """
import sys
from pyspark.sql import SparkSession
import zonebloom.spark as zs
from zonebloom.spark import session_state as states

def start():
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    return builder.getOrCreate()

def read(spark):
    frame = zs.prune(spark.read.parquet(sys.argv[1])).where("id = 42")
    assert len(frame.collect()) == 1
    return zs.explain(frame).relations[0].kept_files

old = start()
assert read(old) == 1
assert list(states._applications) == [old.sparkContext]
old.stop()
new = start()
assert new is not old
assert read(new) == 1
# The old context is still referred to, but its state is gone.
assert list(states._applications) == [new.sparkContext]
new.stop()
"""


@pytest.fixture
def lake(tmp_path):
    for number in range(2):
        ids = range(number * 100, number * 100 + 100)
        pq.write_table(pa.table({"id": ids}), tmp_path / f"{number}.parquet")
    zb.dataset(tmp_path).create_scalar_index("id", spark=False)
    return str(tmp_path)


def test_a_new_session_has_caches_of_its_own(spark, lake):
    other = spark.newSession()
    frame = zs.prune(spark.read.parquet(lake)).where("id = 42")
    assert frame.count() == 1
    listed_roots = [root for roots in session_state(spark).listings._entries for root in roots]
    assert any(lake in root for root in listed_roots)
    assert session_state(other) is not session_state(spark)
    assert not session_state(other).listings._entries
    assert zs.prune(other.read.parquet(lake)).where("id = 142").count() == 1


def test_sessions_of_one_application_scan_with_their_own_keys(spark, tmp_path):
    first, second, third = spark, spark.newSession(), spark.newSession()
    for number, session in enumerate((first, second)):
        folder = tmp_path / "lakes" / str(number)
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"id": range(100)}), folder / "a.parquet")
        keys = zb.Encryption("a", {"a": bytes([number + 65]) * 32})
        ds = zb.dataset(folder, encryption=keys, index_dir=tmp_path / f"index_{number}")
        ds.create_scalar_index("id", number_of_items=10, spark=False)
        frame = zs.scan(session, ds, "id = 42")
        assert frame.count() == 1
        assert zs.explain(frame).scans[0].indices[0].kept_zones == 1
        frame.createOrReplaceGlobalTempView(f"scan_{number}")
    assert zs.scan(third, str(tmp_path / "lakes"), "id = 42").count() == 2
    for number, others in enumerate([(second, third), (first, third)]):
        for other in (*others, spark.newSession()):
            frame = other.table(f"global_temp.scan_{number}")
            assert frame.count() == 1
            assert "in the session that made it" in str(zs.explain(frame))


@pytest.mark.filterwarnings("ignore::zonebloom.errors.IndexNotUsedWarning")
def test_two_python_objects_of_one_session_share_its_keys(spark, lake):
    """Each scan is numbered with its keys. Two scans must not get the same number."""
    same = SparkSession(spark.sparkContext, spark._jsparkSession)
    assert session_state(same) is session_state(spark)
    for number, session in enumerate((spark, same, spark, same)):
        keys = zb.Encryption("a", {"a": bytes([number % 2 + 65]) * 32})
        assert zs.scan(session, zb.dataset(lake, encryption=keys), "id = 42").count() == 1
    keys = list(session_state(spark).source.keys.values())
    assert all(keys.count(key) == 1 for key in keys)
    assert {key.keys["a"][0] for key in keys} >= {65, 66}


def test_a_stopped_session_is_forgotten(lake):
    run = subprocess.run(
        [sys.executable, "-c", RESTART, lake], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr


def test_each_warning_is_issued_once_and_their_number_is_limited():
    state = SessionState()
    with pytest.warns(IndexNotUsedWarning) as caught:
        for number in range(3000):
            for _ in range(2):
                warn_once(state, IndexNotUsedWarning(f"{number}"), ["file:/a"])
    assert len(caught) == 3000
    assert len(state.issued_warnings._entries) < 3000


def test_sessions_need_not_wait_for_a_compilation(spark):
    class Jvm:
        pass

    with ThreadPoolExecutor(1) as pool:
        is_same = compiled_java(
            Jvm(),
            lambda: pool.submit(lambda: session_state(spark)).result(60) is session_state(spark),
        )
    assert is_same


def test_threads_share_the_state_of_a_session_and_compile_once(spark):
    class Jvm:
        pass

    def wait(make):
        barrier.wait()
        return make()

    def compile_classes(compilations):
        compilations.append(None)
        time.sleep(0.01)
        return object()

    barrier, num_threads = Barrier(8), 8
    with ThreadPoolExecutor(num_threads) as pool:
        for _ in range(20):
            jvm, compilations, session = Jvm(), [], spark.newSession()
            makers = [
                partial(session_state, session),
                partial(compiled_java, jvm, partial(compile_classes, compilations)),
            ]
            for make in makers:
                objects = list(pool.map(wait, [make] * num_threads))
                assert len(set(map(id, objects))) == 1
            assert len(compilations) == 1


def test_compilations_in_two_processes_of_java_do_not_wait_for_each_other():
    class Jvm:
        pass

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit
        inner = compiled_java(
            Jvm(), lambda: other(compiled_java, Jvm(), lambda: "inner").result(timeout=60)
        )
    assert inner == "inner"


def test_a_cache_drops_its_least_recently_used_entry():
    cache = LruCache[int]()
    for number in range(100):
        cache.put(number, number)
        assert cache.get(0) == 0
    assert cache.get(36) is None
    assert [cache.get(number) for number in (37, 99)] == [37, 99]
