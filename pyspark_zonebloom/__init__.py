"""Let Spark discover the data source format ``zonebloom``.

When a query first uses a Python data source, Spark imports every module named ``pyspark_*`` and
registers its ``DefaultSource``. It does so for all formats, so an import error here must not fail
queries that use another format.
"""

try:
    from zonebloom.spark.data_source import ZoneBloomSource as DefaultSource
except ImportError:  # a PySpark without data sources
    pass
else:
    __all__ = ["DefaultSource"]
