"""The Python data source ``zonebloom``: the driver plans zones, and tasks read their pages.

The predicate is an option of the load. Filter pushdown is not used, because PySpark 4.3 passes the
filters that one scan of a frame pushed to all its other scans.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from zonebloom.errors import InvalidArgument
from zonebloom.spark.jobs import Sealed
from zonebloom.spark.session_settings import s3a_settings
from zonebloom.spark.session_state import application_state, session_state
from zonebloom.spark.types import cast_for_spark
from zonebloom.spark.versions import (
    DataSource,
    DataSourceReader,
    InputPartition,
    arrow_schema,
    register_source,
)
from zonebloom.storage.encryption import Encryption

if TYPE_CHECKING:
    from zonebloom.spark.load import Load

NAME = "zonebloom"


def register(spark: SparkSession, *, anew: bool = False) -> None:
    """Register ``format("zonebloom")`` in a session. `scan` calls this itself.

    Paths of S3 are read with the session's ``fs.s3a.*`` settings at the time of this call. A load
    has the options ``columns``, ``index_dir``, ``timezone`` (for times without a zone in the
    condition), ``old_calendar`` (whether Spark corrects old dates of other writers), and one of

        filter    a condition that the rows must meet; refused if it may mean something else to
                  Spark
        prune     any condition; zones in which it cannot be true are left out, and the rows must
                  be filtered by the same condition in ``where``

    A ``where`` without these options filters rows, but skips no zones: filters that Spark pushes
    into a Python data source reach other scans of the frame, so they are not used.

    Parameters
    ----------
    spark : SparkSession
        Classic or Connect.
    anew : bool
        Register the format again, for example after another package was sent to the session.

    Raises
    ------
    EngineError
        If ``spark`` is no session, or one of Spark 3, which has no Python data sources.

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
    """Register the format in a session, with what a load of some paths needs.

    Read the S3 settings of the session only if a path needs them. Return the number under which
    the session stores the keys, or None without keys.
    """
    state = session_state(spark)
    s3a = s3a_settings(spark, paths)
    with application_state(spark).lock:
        registered = state.source or ZoneBloomSource
        if paths is not None and not s3a:
            s3a = registered.s3a
        numbers = [number for number, value in registered.keys.items() if value == encryption]
        number = numbers[0] if numbers else str(len(registered.keys))
        keys = registered.keys
        if encryption is not None:
            keys = _SessionKeys({**keys, number: encryption})
        if anew or state.source is None or (s3a, keys) != (registered.s3a, registered.keys):
            # Secrets are attributes of the class, because options would appear in query plans.
            source = type("SessionSource", (ZoneBloomSource,), {"s3a": s3a, "keys": keys})
            register_source(spark, source if s3a or keys else ZoneBloomSource)
            state.source = source
    return None if encryption is None else number


class _SessionKeys(dict[str, Encryption]):
    """The keys of a session. Spark pickles them on the way to the process that plans a load."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _SessionKeys, (Sealed(dict(self)),)


class ZoneBloomReader(DataSourceReader):
    """A reader that plans a load on the driver, and is sent to the tasks without the plan."""

    def __init__(self, load: Load, schema: StructType):
        load.require_schema(schema)
        self._load: Load | None = load
        # Tasks unpickle the content, and refuse another version of the package.
        self._task: Any = Sealed((load.reader, arrow_schema(schema)))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_load": None}

    def partitions(self) -> Sequence[InputPartition]:
        """Return one partition for each Spark task."""
        assert self._load is not None
        tasks = self._load.partitions(self._load.plan())
        # Spark replaces an empty list by one partition with the value None, which `read` would not
        # understand.
        return list(map(InputPartition, tasks)) or [InputPartition(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Yield the Arrow batches of one Spark task."""
        task_reader, schema = self._task
        for batch in task_reader.batches(partition.value):
            yield from cast_for_spark(batch, schema)


class ZoneBloomSource(DataSource):
    """The data source behind ``format("zonebloom")``.

    Options are path, columns, filter, prune and index_dir. `zonebloom.spark.register` registers
    it, or Spark finds it in the module ``pyspark_zonebloom``.
    """

    s3a: ClassVar[Mapping[str, str]] = {}
    keys: ClassVar[Mapping[str, Encryption]] = {}

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return NAME

    def schema(self) -> StructType:
        """Return the schema that ``spark.read.parquet`` shows for the requested columns."""
        return self._new_load().schema

    def reader(self, schema: StructType) -> ZoneBloomReader:
        """Return a reader of the files as they are now."""
        return ZoneBloomReader(self._new_load(), schema)

    def _new_load(self) -> Load:
        # Tasks import this module, but do not need the modules below.
        from zonebloom.spark.load import Load, Options

        options = Options(self.options)
        number = options.encryption
        if number is not None and number not in self.keys:
            raise InvalidArgument(
                f"encryption is {number!r}, which is no number of keys in this session; use "
                "zonebloom.spark.scan(encryption=...)"
            )
        return Load(options, self.s3a, None if number is None else self.keys[number])
