"""One real Spark session for the run."""

from __future__ import annotations

import pytest

from zonebloom.engines import spark_session


@pytest.fixture(scope="session")
def spark():
    session = spark_session("local[2]", "zonebloom-tests")
    # Tables here are small: as many partitions as the default has are mostly empty.
    session.conf.set("spark.sql.shuffle.partitions", 4)
    yield session
    session.stop()
