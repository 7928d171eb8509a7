"""The Python data source ``zonebloom``: zones are planned on the driver, pages read by tasks.

The predicate travels with the load: in PySpark 4.3 what one scan of a frame pushed, all others get.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from zonebloom.spark.jobs import Sealed
from zonebloom.spark.session import spark_context
from zonebloom.spark.types import arrow_schema, as_spark

if TYPE_CHECKING:
    from zonebloom.spark.load import Load

NAME = "zonebloom"
_registered: WeakSet[SparkSession] = WeakSet()


def register(spark: SparkSession, *, anew: bool = False) -> None:
    """Make ``format("zonebloom")`` known to a session; `scan` does so by itself.

    Parameters
    ----------
    spark : SparkSession
        Classic or Connect.
    anew : bool
        Also where it is known, as when the session was sent another package since.

    Raises
    ------
    EngineError
        When it is no session.
    """
    spark_context(spark)
    if anew or spark not in _registered:
        try:
            spark.dataSource.register(ZoneBloomSource)
        except AnalysisException as error:
            # Spark 4.0 takes no source that it has discovered itself, by `pyspark_zonebloom`.
            if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
                raise
        _registered.add(spark)


class ZoneBloomReader(DataSourceReader):
    """Plans a load on the driver; sent to the tasks without the plan."""

    def __init__(self, load: Load, schema: StructType):
        load.require_schema(schema)
        self._load: Load | None = load
        self._work = load.work
        self._schema = schema

    def __getstate__(self) -> dict[str, Any]:
        return {"sealed": Sealed({**self.__dict__, "_load": None})}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state["sealed"].items():
            setattr(self, name, value)

    def partitions(self) -> Sequence[InputPartition]:
        """One for each task."""
        assert self._load is not None
        tasks = self._load.tasks(self._load.plan())
        # Of an empty list Spark makes one partition that holds nothing.
        return list(map(InputPartition, tasks)) or [InputPartition(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Arrow batches of one task."""
        schema = arrow_schema(self._schema)
        for batch in self._work.batches(partition.value):
            yield from as_spark(batch, schema)


class ZoneBloomSource(DataSource):
    """``format("zonebloom")``; options: path, columns, filter, prune, index_dir.

    Registered by `zonebloom.spark.register`, or found by Spark in the module
    ``pyspark_zonebloom``.
    """

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return NAME

    def schema(self) -> StructType:
        """The schema ``spark.read.parquet`` would show, of the columns asked for."""
        return self._new_load().schema

    def reader(self, schema: StructType) -> ZoneBloomReader:
        """A reader of the files as they are now."""
        return ZoneBloomReader(self._new_load(), schema)

    def _new_load(self) -> Load:
        # Of no use to tasks.
        from zonebloom.spark.load import Load, Options

        return Load(Options(self.options))
