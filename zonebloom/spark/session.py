"""What is asked of a Spark session, classic or Connect."""

from __future__ import annotations

import re
from typing import Any

from pyspark.sql import SparkSession

from zonebloom.errors import EngineError

_BYTES = re.compile(r"(-?\d+)\s*([kmgtp]?)b?", re.IGNORECASE)


def spark_context(spark: SparkSession) -> Any:
    """The SparkContext of a classic session, None over Connect."""
    if not hasattr(spark, "addArtifacts"):
        raise EngineError(f"spark is a {type(spark).__name__}; give a SparkSession of Spark 4")
    try:
        return spark.sparkContext
    except Exception:  # noqa: BLE001 - Connect sessions raise errors of their own tree
        return None


def session_id(spark: Any) -> str:
    """What tells a session from others."""
    classic = getattr(spark, "_jsparkSession", None)
    return str(spark.session_id if classic is None else classic.sessionUUID())


def is_case_sensitive(spark: SparkSession) -> bool:
    """Whether a session tells names of columns apart by their case."""
    return str(spark.conf.get("spark.sql.caseSensitive")).lower() == "true"


def parallelism(spark: SparkSession) -> int:
    """Tasks that a classic session runs at one time, 0 over Connect, which does not say."""
    context = spark_context(spark)
    return 0 if context is None else context.defaultParallelism


def byte_count(text: str) -> int:
    """A size as settings have it, such as ``10MB`` or ``1g``; below 0 where it is none.

    >>> byte_count("10485760b"), byte_count("1g"), byte_count("-1")
    (10485760, 1073741824, -1)
    """
    found = _BYTES.fullmatch(text.strip())
    return int(found[1]) << 10 * " kmgtp".index(found[2].lower() or " ") if found else -1


def quoted(name: str) -> str:
    """A column's name as Spark reads it back."""
    return "`" + name.replace("`", "``") + "`"
