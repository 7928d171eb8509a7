"""Choose where indices are built: in threads of this process, or in a Spark session."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zonebloom.building.builder import Engine


def choose_engine(spark: Any) -> Engine | None:
    """Return the engine of a Spark session, or None to build in this process.

    Without a session, the active one is used if there are enough bytes to read. False never
    uses Spark. An engine is returned as it is.
    """
    from zonebloom.building.builder import WORTH_AN_ENGINE, Engine

    if isinstance(spark, Engine):
        return spark
    min_bytes = 0
    if spark is None:
        spark = active_spark_session()
        min_bytes = WORTH_AN_ENGINE
    if spark is None or spark is False:
        return None
    from zonebloom.spark.jobs import spark_engine

    return spark_engine(spark, min_bytes)


def active_spark_session() -> Any:
    """Return the active Spark session, or None. Do not import pyspark for it."""
    sql = sys.modules.get("pyspark.sql")
    return sql.SparkSession.getActiveSession() if sql is not None else None
