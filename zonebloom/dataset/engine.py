"""Where indices are built: in threads of this process, or on a Spark session."""

from __future__ import annotations

import sys
from typing import Any

from zonebloom.building.builder import WORTH_AN_ENGINE, Engine


def choose_engine(spark: Any) -> Engine | None:
    """What trains elsewhere than in this process: a session given, or the active one."""
    least_bytes = 0
    if spark is None:
        spark = active_spark_session()
        least_bytes = WORTH_AN_ENGINE
    if spark is None or spark is False:
        return None
    from zonebloom.spark.jobs import spark_engine

    return spark_engine(spark, least_bytes)


def active_spark_session() -> Any:
    # Without pyspark imported there is none.
    sql = sys.modules.get("pyspark.sql")
    return sql.SparkSession.getActiveSession() if sql is not None else None
