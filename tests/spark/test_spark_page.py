"""The code on the documentation's page on Spark works and prints what the page shows.

The page sends the package to the executors, where it stays until the session ends. So this file is
in another group than the tests of executors without it.
"""

from __future__ import annotations

import pytest
from support.helpers import ROOT
from support.pages import Page

import zonebloom.spark as zs


@pytest.fixture
def disabled_after(spark):
    yield
    zs.disable(spark)


@pytest.mark.usefixtures("working_directory", "disabled_after")
def test_the_code_of_the_page_prints_what_the_page_shows(spark):
    Page(ROOT / "docs/spark.md").run({"spark": spark})
