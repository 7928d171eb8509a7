"""Filters of the DataFrame's own ``where``, where Spark hands them over soundly.

In PySpark 4.3 what one scan of a loaded DataFrame pushed is used for every other scan of it:
after ``df.where("id = 3").count()``, ``df.count()`` counts one zone. So a reader that takes
pushed filters is registered only in a session in which a probe does not see that; elsewhere the
predicate travels with the load.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import datasource as sd
from pyspark.sql.types import StructType

from zonebloom.errors import IndexNotUsedWarning
from zonebloom.predicates import ast
from zonebloom.predicates.spark import Comparer
from zonebloom.predicates.spark_compare import of_python
from zonebloom.spark.source import ZoneBloomReader, ZoneBloomSource
from zonebloom.values.literal import Maybe

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTING = "spark.sql.python.filterPushdown.enabled"
_PROBE = "zonebloom_pushdown_probe"
_OPERATORS = {
    "EqualTo": "=",
    "EqualNullSafe": "<=>",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
}


class PushingReader(ZoneBloomReader):
    """Takes what Spark pushes as a hint, and leaves all of it to Spark."""

    def pushFilters(self, filters: list[sd.Filter]) -> Iterable[sd.Filter]:  # noqa: N802 - Spark's name
        """Choose zones by some filters; Spark applies every one of them itself."""
        assert self._load is not None
        comparer = Comparer(self._load.dataset.schema, self._load.opaque, None)
        self._load.push(ast.conjunction([_predicate(each, comparer) for each in filters]))
        self._work = self._load.work
        return filters


class PushingSource(ZoneBloomSource):
    """``format("zonebloom")`` where pushed filters are sound."""

    def reader(self, schema: StructType) -> PushingReader:
        """A reader of the files as they are now."""
        return PushingReader(self._opened(), schema)


def _predicate(pushed: sd.Filter, comparer: Comparer) -> ast.Predicate:
    if isinstance(pushed, sd.Not):
        return ast.Not(_predicate(pushed.child, comparer))
    try:
        return _comparison(pushed, comparer)
    except Maybe as reason:
        return ast.Unknown(str(pushed), str(reason))


def _comparison(pushed: Any, comparer: Comparer) -> ast.Predicate:
    path = comparer.path(pushed.attribute)
    name = type(pushed).__name__
    if name == "IsNull":
        return ast.IsNull(path)
    if name == "IsNotNull":
        return ast.Not(ast.IsNull(path))
    if name == "In":
        return comparer.is_in(path, [of_python(each) for each in pushed.value])
    if name in _OPERATORS:
        return comparer.compare(path, _OPERATORS[name], of_python(pushed.value))
    raise Maybe("text patterns are not answered by a Bloom filter")


def is_asked_for(spark: SparkSession) -> bool:
    """Whether a session pushes filters into Python data sources at all."""
    return str(spark.conf.get(SETTING, "false")).lower() == "true"


def is_sound(spark: SparkSession) -> bool:
    """Try whether filters pushed into one scan stay out of the others."""
    spark.dataSource.register(_ProbeSource)
    loaded = spark.read.format(_PROBE).load()
    one = loaded.where("id = 3")
    counts = [one.count(), loaded.count(), one.union(loaded.where("id = 7")).count()]
    return counts == [1, 10, 2]


def choose(spark: SparkSession) -> type[ZoneBloomSource]:
    """The source for a session with `SETTING` on; says why ``where`` skips nothing, if so."""
    if is_sound(spark):
        return PushingSource
    warnings.warn(
        f"{SETTING} is on, but Spark {spark.version} uses filters pushed into one scan of a "
        "DataFrame for others too, which loses rows; so where() on a loaded DataFrame skips "
        "nothing. Give the filter to the load: zonebloom.spark.scan(spark, path, filter=...) or "
        '.option("filter", ...)',
        IndexNotUsedWarning,
        stacklevel=4,
    )
    return ZoneBloomSource


class _ProbeReader(sd.DataSourceReader):
    """Ten rows, each a zone of its own."""

    def __init__(self) -> None:
        self._wanted = list(range(10))

    def pushFilters(self, filters: list[sd.Filter]) -> Iterable[sd.Filter]:  # noqa: N802 - Spark's name
        for each in filters:
            if isinstance(each, sd.EqualTo):
                self._wanted = [each.value]
        return filters

    def partitions(self) -> Sequence[sd.InputPartition]:
        return [sd.InputPartition(self._wanted)]

    def read(self, partition: sd.InputPartition) -> Iterator[pa.RecordBatch]:  # pyright: ignore[reportIncompatibleMethodOverride]
        yield pa.RecordBatch.from_pydict({"id": pa.array(partition.value, pa.int64())})


class _ProbeSource(sd.DataSource):
    @classmethod
    def name(cls) -> str:
        return _PROBE

    def schema(self) -> str:
        return "id bigint"

    def reader(self, schema: StructType) -> sd.DataSourceReader:
        return _ProbeReader()
