"""The Python data source ``zonebloom``: zones are planned on the driver, pages read by tasks.

The predicate travels with the load: in PySpark 4.3 what one scan of a frame pushed, all others get.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakKeyDictionary

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from zonebloom.errors import InvalidArgument
from zonebloom.spark.jobs import Sealed
from zonebloom.spark.session import s3a_settings, spark_context
from zonebloom.spark.types import arrow_schema, cast_for_spark
from zonebloom.storage.encryption import Encryption

if TYPE_CHECKING:
    from zonebloom.spark.load import Load

NAME = "zonebloom"
_LOCK = threading.Lock()
# By session, the class as it was registered.
_registered: WeakKeyDictionary[SparkSession, type[ZoneBloomSource]] = WeakKeyDictionary()


def register(spark: SparkSession, *, anew: bool = False) -> None:
    """Make ``format("zonebloom")`` known to a session; `scan` does so by itself.

    Paths of S3 are then read as the session's ``fs.s3a.*`` settings are at the time. Options of a
    load are ``columns``, ``index_dir``, ``timezone`` (of times without one in the condition),
    ``old_calendar`` (whether old dates of other writers are corrected), and one of

        filter    a condition that zones and rows must meet; refused where it may not mean what it
                  means to Spark
        prune     any condition, by which zones are left out; say it again in ``where``

    A ``where`` alone filters, and reads no less: filters that Spark pushes into a Python data
    source reach other scans of the frame, so none is used.

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

    Examples
    --------
    >>> zs.register(spark)
    >>> files = spark.read.format("zonebloom").option("filter", "id = 42")
    >>> files.load(os.path.abspath("orders")).count()
    1
    """
    register_for(spark, anew=anew)


def register_for(
    spark: SparkSession,
    paths: Sequence[str] | None = None,
    encryption: Encryption | None = None,
    *,
    anew: bool = False,
) -> str | None:
    """The same for some paths, of settings that none of them needs nothing is asked, and for keys;
    the number that those have in the session."""
    spark_context(spark)
    s3a = s3a_settings(spark, paths)
    with _LOCK:
        known = _registered.get(spark, ZoneBloomSource)
        if paths is not None and not s3a:
            s3a = known.s3a
        numbers = [number for number, each in known.keys.items() if each == encryption]
        number = numbers[0] if numbers else str(len(known.keys))
        keys = known.keys if encryption is None else {**known.keys, number: encryption}
        if anew or spark not in _registered or (s3a, keys) != (known.s3a, known.keys):
            # They go with the class, as options would stand in plans.
            own = type("SessionSource", (ZoneBloomSource,), {"s3a": s3a, "keys": keys})
            try:
                spark.dataSource.register(own if s3a or keys else ZoneBloomSource)
            except AnalysisException as error:
                # Spark 4.0 takes no source that it has discovered itself, by `pyspark_zonebloom`.
                if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
                    raise
            _registered[spark] = own
    return None if encryption is None else number


class ZoneBloomReader(DataSourceReader):
    """Plans a load on the driver; sent to the tasks without the plan."""

    def __init__(self, load: Load, schema: StructType):
        load.require_schema(schema)
        self._load: Load | None = load
        # Opened by the task.
        self._task: Any = Sealed((load.reader, arrow_schema(schema)))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_load": None}

    def partitions(self) -> Sequence[InputPartition]:
        """One for each task."""
        assert self._load is not None
        tasks = self._load.partitions(self._load.plan())
        # Of an empty list Spark makes one partition that holds nothing.
        return list(map(InputPartition, tasks)) or [InputPartition(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Arrow batches of one task."""
        work, schema = self._task
        for batch in work.batches(partition.value):
            yield from cast_for_spark(batch, schema)


class ZoneBloomSource(DataSource):
    """``format("zonebloom")``; options: path, columns, filter, prune, index_dir.

    Registered by `zonebloom.spark.register`, or found by Spark in the module
    ``pyspark_zonebloom``.
    """

    s3a: ClassVar[Mapping[str, str]] = {}
    keys: ClassVar[Mapping[str, Encryption]] = {}

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

        options = Options(self.options)
        number = options.encryption
        if number is not None and number not in self.keys:
            raise InvalidArgument(f"encryption is {number!r}; zonebloom.spark.scan gives the keys")
        return Load(options, self.s3a, None if number is None else self.keys[number])
