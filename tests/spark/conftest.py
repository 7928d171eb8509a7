"""Share fixtures of tests that run the code of pages and docstrings with Spark."""

from __future__ import annotations

import pytest


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
