"""Examples in the docstrings of `zonebloom.spark`, which continue those of `zonebloom`."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
from support.examples import PublicObject, public_objects

import zonebloom

HAS_PYTHON_SOURCES = find_spec("pyspark.sql.datasource") is not None
NEED_SPARK_4 = ("zonebloom.spark.explain", "zonebloom.spark.scan")


@pytest.fixture
def names(spark, working_directory):
    """Return the names that the examples use."""
    begun = {"spark": spark}
    for module in (zonebloom, zonebloom.spark):
        assert PublicObject(module.__name__, module).run(begun) == ""
    yield begun
    spark.conf.unset("zonebloom.system.path")


@pytest.mark.parametrize(
    "function",
    [
        function
        for function in public_objects("zonebloom.spark")
        if function.is_called and function.has_examples
    ],
    ids=lambda function: function.name,
)
def test_examples_print_their_output(function: PublicObject, names):
    report = function.run(names)
    if function.name in NEED_SPARK_4 and not HAS_PYTHON_SOURCES:
        assert "EngineError: scan needs the Python data sources" in report
    else:
        assert report == ""
