"""The code on the documentation's page on Spark works and prints what the page shows.

The page sends the package to the executors, where it stays until the session ends. So this file is
in another group than the tests of executors without it.
"""

from __future__ import annotations

import pytest
from helpers import ROOT
from pages import Page

import zonebloom.spark as zs


@pytest.fixture
def working_directory(spark, tmp_path, monkeypatch):
    """Make Spark and Python resolve relative paths in the same new folder."""
    monkeypatch.chdir(tmp_path)
    hadoop = spark._jvm.org.apache.hadoop.fs
    files = hadoop.FileSystem.get(spark._jsc.hadoopConfiguration())
    before = files.getWorkingDirectory()
    files.setWorkingDirectory(hadoop.Path(str(tmp_path)))
    yield tmp_path
    zs.disable(spark)
    files.setWorkingDirectory(before)


def test_the_code_of_the_page_prints_what_the_page_shows(spark, working_directory):
    Page(ROOT / "docs/spark.md").run({"spark": spark})
