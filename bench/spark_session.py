"""The Spark session of the tests and benchmarks."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def spark_session(master: str, app_name: str) -> SparkSession:
    """Return the session of the process, or start a quiet one on this machine."""
    from pyspark.sql import SparkSession

    # By default the workers run the first python3 of PATH, which may lack the packages.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    options = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        # The host name of this machine may not resolve.
        "spark.driver.host": "localhost",
        "spark.driver.bindAddress": "127.0.0.1",
    }
    builder = SparkSession.builder.master(master).appName(app_name)
    for name, value in options.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()
