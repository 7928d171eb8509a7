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
from zonebloom.spark.session_state import session_state
from zonebloom.spark.types import cast_for_spark
from zonebloom.spark.versions import (
    DataSource,
    DataSourceReader,
    InputPartition,
    arrow_schema,
    register_source,
)
from zonebloom.storage.encryption import Encryption

# The name of the data source without secrets. The other names begin with it.
NAME = "zonebloom"
# The option of a load that holds its `ScanRequest`.
REQUEST = "request"


def register_source_for(
    spark: SparkSession, paths: str | Sequence[str], encryption: Encryption | None
) -> str:
    """Return the name of the data source that has what a scan of some paths needs.

    It is registered in the session. Sources with secrets have names of their own, so that no scan
    of this or another session uses the secrets of another.
    """
    sources = session_state(spark).sources
    # The settings of S3 are read only if a path needs them.
    secrets = s3a_settings(spark, [paths] if isinstance(paths, str) else paths), encryption
    for name, known_secrets in list(sources.items()):
        if known_secrets == secrets:
            return name
    name = f"{NAME}_{uuid4().hex}" if any(secrets) else NAME
    # Secrets are attributes of the class, because options would appear in query plans.
    attributes = {"short_name": name, "s3a": secrets[0], "keys": _Keys(encryption)}
    register_source(spark, type("SessionSource", (ZoneBloomSource,), attributes))
    sources[name] = secrets
    return name


class _Keys:
    """The encryption of a source. Spark pickles it on the way to the process that plans a load."""

    def __init__(self, encryption: Encryption | None):
        self.encryption = encryption

    def __reduce__(self) -> tuple[Any, ...]:
        return _Keys, (Sealed(self.encryption),)


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

    short_name: ClassVar[str]
    s3a: ClassVar[Mapping[str, str]]
    keys: ClassVar[_Keys]

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return cls.short_name

    def schema(self) -> StructType:
        """Return the schema that ``spark.read.parquet`` shows for the requested columns."""
        return self._new_load().schema

    def reader(self, schema: StructType) -> ZoneBloomReader:
        """Return a reader of the files as they are now."""
        load = self._new_load()
        # Spark sends this source to the tasks together with the reader. They need no keys.
        type(self).keys = _Keys(None)
        return ZoneBloomReader(load, schema)

    def _new_load(self) -> Load:
        if REQUEST not in self.options:
            raise InvalidArgument("this data source is read by zonebloom.spark.scan(spark, path)")
        request = ScanRequest.from_text(self.options[REQUEST])
        return Load(request, self.s3a, self.keys.encryption)
