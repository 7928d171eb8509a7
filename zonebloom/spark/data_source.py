"""The data source of `zonebloom.spark.scan`: the driver plans zones, and tasks read their pages.

The request of a scan is an option of its load. Filter pushdown is not used, because PySpark 4.3
passes the filters that one scan of a frame pushed to all its other scans.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar
from uuid import uuid4

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from zonebloom.errors import InvalidArgument
from zonebloom.spark.jobs import Sealed
from zonebloom.spark.load import Load, ScanRequest
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

NAME = "zonebloom"
# The option of a load that holds its `ScanRequest`.
REQUEST = "request"


def register_source_for(
    spark: SparkSession, paths: str | Sequence[str], encryption: Encryption | None
) -> str | None:
    """Register the data source in a session, with what a scan of some paths needs.

    Read the S3 settings of the session only if a path needs them. Return the id under which
    the session stores the keys, or None without keys. Ids are unique, so that no session takes a
    scan of another session for one with its own keys.
    """
    state = session_state(spark)
    s3a = s3a_settings(spark, [paths] if isinstance(paths, str) else paths)
    with application_state(spark).lock:
        registered = state.source or ZoneBloomSource
        s3a = s3a or registered.s3a
        known_ids = [key_id for key_id, value in registered.keys.items() if value == encryption]
        key_id = known_ids[0] if known_ids else uuid4().hex
        keys = registered.keys
        if encryption is not None:
            keys = _SessionKeys({**keys, key_id: encryption})
        if state.source is None or (s3a, keys) != (registered.s3a, registered.keys):
            # Secrets are attributes of the class, because options would appear in query plans.
            source = type("SessionSource", (ZoneBloomSource,), {"s3a": s3a, "keys": keys})
            register_source(spark, source if s3a or keys else ZoneBloomSource)
            state.source = source
    return None if encryption is None else key_id


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
    """The data source behind `zonebloom.spark.scan`, which alone registers and loads it."""

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
        if REQUEST not in self.options:
            raise InvalidArgument("this data source is read by zonebloom.spark.scan(spark, path)")
        request = ScanRequest.from_text(self.options[REQUEST])
        key_id = request.encryption
        return Load(request, self.s3a, None if key_id is None else self.keys[key_id])
