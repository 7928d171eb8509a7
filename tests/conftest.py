"""Settings every test runs under, and the one Spark session of a run."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

import zonebloom
from zonebloom.engines import spark_session

# Spark's queries here are short: the JVM's second compiler would take longer than it saves.
os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# No deadline: the first example of a kernel also loads or compiles it.
settings.register_profile("zonebloom", deadline=None, max_examples=60, print_blob=True)
settings.load_profile("zonebloom")


def pytest_configure(config):
    # Kernels are compiled once, before several processes would write them at a time.
    if not hasattr(config, "workerinput"):
        zonebloom.warmup()
    # Else pytest-xdist takes files by their number of tests; ours are in order.
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


def pytest_collection_modifyitems(items):
    # The longest files first: a process has a file to itself, and all wait for the last.
    items.sort(key=lambda item: "spark" not in item.path.parts)


@pytest.fixture(scope="session")
def spark():
    """A process has one Spark session: a test that stopped it would end it for all."""
    session = spark_session("local[2]", "zonebloom-tests")
    # Tables here are small: as many partitions as the default has are mostly empty.
    session.conf.set("spark.sql.shuffle.partitions", 4)
    yield session
    session.stop()
