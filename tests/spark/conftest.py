"""One real Spark session for the run."""

from __future__ import annotations

import pytest

from zonebloom.engines import spark_session


@pytest.fixture(scope="session")
def spark():
    session = spark_session("local[2]", "zonebloom-tests")
    yield session
    session.stop()
