"""PySpark's daemon with the imports of its workers loaded before it forks them.

Spark kills the worker of a task that fails or is not read to its end, as many here do.
"""

import numba  # noqa: F401
import pandas  # noqa: F401
from pyspark.daemon import manager

import zonebloom.facade.dataset
import zonebloom.sbbf.blocks
import zonebloom.sbbf.xxh64
import zonebloom.spark  # noqa: F401

if __name__ == "__main__":
    manager()
