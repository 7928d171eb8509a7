"""Settings every test runs under, and the one Spark session of a run."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

import zonebloom
from zonebloom.cli.engines import spark_session

# Spark's queries here are short: the JVM's second compiler would take longer than it saves.
os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# No deadline: the first example of a kernel also loads or compiles it.
settings.register_profile("zonebloom", deadline=None, max_examples=60, print_blob=True)
settings.load_profile("zonebloom")


def pytest_configure(config):
    # Kernels are compiled once, before several processes would write them at a time.
    if not hasattr(config, "workerinput"):
        zonebloom.warmup()


HIDDEN = "zonebloom.errors.HiddenColumnsWarning"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Files as wholes, and all that use Spark's session in one process."""
    from xdist.scheduler import LoadFileScheduling

    class OneSession(LoadFileScheduling):
        def _split_scope(self, nodeid):
            path = super()._split_scope(nodeid)
            return "spark" if uses_session(path) else path

    # In their order, which is not by the number of tests.
    config.option.loadscopereorder = False
    return OneSession(config, log)


def pytest_collection_modifyitems(items):
    # What takes longest first: all wait for the last.
    items.sort(key=lambda item: "spark" not in item.path.parts)
    for item in items:
        if "spark" in item.path.parts:
            # Columns in another case are what some of these tests are about.
            item.add_marker(pytest.mark.filterwarnings(f"ignore::{HIDDEN}"))


def uses_session(path: str) -> bool:
    """Whether tests of a file take the fixture `spark`, which is costly to start."""
    name = path.rpartition("/")[2]
    if "/spark/" in path:
        return name not in ("test_cluster.py", "test_connect.py")
    return name in ("test_bloom.py", "test_writers.py")


@pytest.fixture(scope="session")
def spark():
    """A process has one Spark session: a test that stopped it would end it for all."""
    session = spark_session("local[2]", "zonebloom-tests")
    # Tables here are small: as many partitions as the default has are mostly empty.
    session.conf.set("spark.sql.shuffle.partitions", 4)
    yield session
    session.stop()
