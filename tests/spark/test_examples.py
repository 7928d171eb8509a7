"""Examples in the docstrings of `zonebloom.spark`, which continue those of `zonebloom`."""

from __future__ import annotations

import pytest
from examples import PublicObject, public_objects

import zonebloom


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
    assert function.run(names) == ""
