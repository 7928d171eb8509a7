"""Lets Spark find the format ``zonebloom`` by itself.

Spark imports every module named ``pyspark_*`` when a Python data source is first asked for, and
registers its ``DefaultSource``. It asks so for the formats of others too: what is missing here
must not fail them.
"""

try:
    from zonebloom.spark.data_source import ZoneBloomSource as DefaultSource
except ImportError:  # a PySpark without data sources
    pass
else:
    __all__ = ["DefaultSource"]
