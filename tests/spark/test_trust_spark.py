"""A short run of the harness that compares all ways of reading with Spark's own rows."""

import pytest
from trust import spark as trust_spark
from trust.report import Report, check


@pytest.mark.parametrize("case", range(2))
def test_all_ways_return_sparks_own_rows(spark, tmp_path, case):
    report = Report("spark", seed=1)
    trust_spark.run_case(report, case + 1, tmp_path)
    check(report)
