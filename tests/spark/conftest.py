"""Share fixtures of tests that run the code of pages and docstrings with Spark."""

from __future__ import annotations

import pytest
from support.spark_data import settings


@pytest.fixture
def conf(spark):
    """Return the session's conf. What a test sets is as before after the test."""

    def values():
        # The conf of Spark 3.5 lists no keys.
        return {row.key: row.value for row in spark.sql("SET").collect()}

    before = values()
    yield spark.conf
    for key, value in values().items():
        if key not in before:
            spark.conf.unset(key)
        elif value != before[key]:
            spark.conf.set(key, before[key])


@pytest.fixture(scope="module")
def no_pushdown(spark):
    """Disable Spark's own pushdown into Parquet, which loses rows with NaN and -0.0."""
    with settings(spark, **{"spark.sql.parquet.filterPushdown": "false"}):
        yield


@pytest.fixture
def working_directory(spark, tmp_path, monkeypatch):
    """Make Spark and Python resolve relative paths in the same new folder."""
    monkeypatch.chdir(tmp_path)
    hadoop = spark._jvm.org.apache.hadoop.fs
    files = hadoop.FileSystem.get(spark._jsc.hadoopConfiguration())
    before = files.getWorkingDirectory()
    files.setWorkingDirectory(hadoop.Path(str(tmp_path)))
    yield tmp_path
    files.setWorkingDirectory(before)
