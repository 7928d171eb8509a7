"""Every way in which Spark reads, against the rows it finds itself: a short run of the harness."""

import pytest
from trust import spark as trust_spark
from trust.report import Report, check


@pytest.mark.parametrize("case", range(2))
def test_spark_gives_its_own_rows_in_every_way(spark, tmp_path, case):
    report = Report("spark", seed=1)
    trust_spark.run_case(report, case + 1, tmp_path)
    check(report)
