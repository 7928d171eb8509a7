"""Test that caches and registered keys belong to one session, and end with its application."""

from __future__ import annotations

import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import zonebloom as zb
import zonebloom.spark as zs
from zonebloom.spark.session_state import session_state

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
    pq.write_table(pa.table({"id": range(100)}), tmp_path / "0.parquet")
    pq.write_table(pa.table({"id": range(100, 200)}), tmp_path / "1.parquet")
    zb.dataset(tmp_path).create_scalar_index("id", spark=False)
    return str(tmp_path)


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
    same = SparkSession(spark.sparkContext, spark._jsparkSession)
    assert session_state(same) is session_state(spark)
    for number, session in enumerate((spark, same, spark, same)):
        keys = zb.Encryption("a", {"a": bytes([number % 2 + 65]) * 32})
        assert zs.scan(session, zb.dataset(lake, encryption=keys), "id = 42").count() == 1
    encryptions = [encryption for _, encryption in session_state(spark).sources.values()]
    assert all(encryptions.count(encryption) == 1 for encryption in encryptions)
    assert {encryption.keys["a"][0] for encryption in encryptions if encryption} >= {65, 66}


def test_a_stopped_session_is_forgotten(lake):
    run = subprocess.run(
        [sys.executable, "-c", RESTART, lake], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
