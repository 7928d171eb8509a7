"""PySpark's daemon, whose workers are forked with everything they import already loaded.

Spark kills the worker of a task that fails or is not read to its end, as many here do.
"""

import pandas  # noqa: F401
from pyspark.daemon import manager

import zonebloom.dataset
import zonebloom.sbbf.blocks
import zonebloom.sbbf.xxh64
import zonebloom.spark  # noqa: F401

if __name__ == "__main__":
    manager()
