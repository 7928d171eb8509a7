"""Open one load of the data source: open its files, and plan what to read."""

from __future__ import annotations

import datetime
import hashlib
import json
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.types as pt
from pyspark.sql import types as st

from zonebloom.base.threads import num_cores
from zonebloom.errors import FragmentChanged, InvalidArgument, SourceError, UnsupportedType
from zonebloom.facade.dataset import Dataset
from zonebloom.predicates import EngineFilter
from zonebloom.predicates.ast import searched_columns
from zonebloom.predicates.expression import ExpressionFilter
from zonebloom.predicates.spark import translate_spark_sql
from zonebloom.predicates.spark_calendar import without_rebased_literals
from zonebloom.scan.binding import checked_names
from zonebloom.scan.column_case import require_visible
from zonebloom.scan.explain import ScanPlan
from zonebloom.scan.opened import OpenedDataset
from zonebloom.scan.tasks import ScanTask, split_into_partitions
from zonebloom.sources.column_batches import int96_leaves
from zonebloom.sources.source import Source
from zonebloom.spark.managed_indices import without_deleted_indices
from zonebloom.spark.opening import open_dataset
from zonebloom.spark.rebase import RebaseCheck
from zonebloom.spark.task_reader import TaskReader
from zonebloom.spark.types import opaque_columns, spark_types
from zonebloom.storage.encryption import Encryption
from zonebloom.storage.paths import NO_SETTINGS
from zonebloom.values.columns import find_column
from zonebloom.values.normal_types import decoded_type

_INTEGER = re.compile(r"[+-]?\d{1,18}", re.ASCII)
_DECIMAL = re.compile(r"[+-]?\d{1,15}\.\d{1,15}", re.ASCII)
# Partition values that Spark reads as doubles, decimals and timestamps.
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?[dDfF]?|NaN|[+-]?Infinity", re.ASCII)
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?", re.ASCII)


@dataclass(frozen=True)
class ScanRequest:
    """The request of a scan, which another process may open."""

    source: str | list[str]
    filter: str | None = None
    columns: list[str] | None = None
    index_dir: str | None = None
    # The digest of the files that the source must have, or None if any are right.
    files_digest: str | None = None
    timezone: str | None = None
    # Whether Spark corrects old times in files of unknown writers.
    old_calendar: bool = False
    # The number of tasks that run at one time, or 0 if it is unknown.
    parallelism: int = 0
    # The indices that managers of the session deleted, as `deleted_indices` returns them.
    deleted: Sequence[tuple[str, str]] = ()

    @classmethod
    def from_text(cls, text: str) -> ScanRequest:
        return cls(**json.loads(text))

    def to_text(self) -> str:
        return json.dumps(asdict(self))


def digest_of_files(paths: Sequence[str]) -> str:
    """Return a text that only the same paths in the same order have in common."""
    return hashlib.sha256(json.dumps(paths).encode()).hexdigest()


class Load:
    """The files of a load as they are now, with its filter and columns."""

    def __init__(
        self, request: ScanRequest, spark: Any = NO_SETTINGS, encryption: Encryption | None = None
    ):
        columns = request.columns or ()
        opened = open_dataset(request.source, spark, request.index_dir, encryption, columns)
        if request.files_digest not in (None, digest_of_files(opened.files)):
            raise FragmentChanged(
                f"files of {opened.title} were added or deleted since the dataset was opened; call "
                "ds.refresh() and scan again, or give the path"
            )
        deleted = {(folder, name) for folder, name in request.deleted}
        opened = without_deleted_indices(opened, deleted)
        names = opened.schema.names
        if len(set(names)) < len(names):
            raise SourceError("several columns have the same name; rename them first")
        files = SparkFiles.of(opened, request.old_calendar)
        self.dataset: Dataset = files.dataset
        self._parallelism = request.parallelism or num_cores()
        source = files.dataset.opened.source
        opaque = opaque_columns(source.schema, files.types)
        self.filter = (
            None
            if request.filter is None
            else translate_spark_sql(request.filter, source.schema, opaque, request.timezone)
        )
        # The predicate that chooses zones; None reads all. It ignores literals that old calendars
        # affect, and the tasks refuse files with such values.
        self._predicate = (
            None if self.filter is None else without_rebased_literals(self.filter.predicate)
        )
        self.columns: tuple[str, ...] = self._columns_to_read(request, source.schema)
        self._require_known_types(files.other_types)
        self.schema: st.StructType = spark_types(source.schema, self.columns, files.types)
        row_filter = self._row_filter(source.schema)
        # Each Spark task gets this reader and its scan tasks.
        self.reader: TaskReader = files.task_reader(self.columns, row_filter)

    def _columns_to_read(self, request: ScanRequest, schema: pa.Schema) -> tuple[str, ...]:
        """Return the columns to read: the requested ones and those that Spark's WHERE needs."""
        names = schema.names
        if request.columns is None:
            return tuple(names)
        names_read = [find_column(names, name) or name for name in request.columns]
        checked_names(names_read, schema)
        if self.filter is None:
            return tuple(names_read)
        if self.filter.columns is None:
            return tuple(names)
        other_names = self.filter.columns - set(names_read)
        return (*names_read, *(name for name in names if name in other_names))

    def _require_known_types(self, other_types: frozenset[str]) -> None:
        """Raise `UnsupportedType` if a partition column of another type is read or filtered."""
        used = set(self.columns)
        if self.filter is not None:
            used |= other_types if self.filter.columns is None else self.filter.columns
        for name in sorted(used & other_types):
            raise UnsupportedType(
                f"Spark reads partition column {name!r} as numbers or timestamps, and scan() does "
                "not; leave it out with columns, or use spark.read.parquet after "
                "zonebloom.spark.enable(spark)"
            )

    def _row_filter(self, schema: pa.Schema) -> ExpressionFilter | None:
        """Return the filter that tasks apply to rows: the exact parts of the filter.

        It is no expression, which PyArrow would also use to skip row groups by their statistics.
        These ignore NaN, which is greater than every number in Spark.
        """
        if self.filter is None or self.filter.columns is None:
            return None
        expression = self.filter.row_filter(schema)
        return None if expression is None else ExpressionFilter(expression)

    def plan(self, described: bool = False) -> ScanPlan:
        """Return a plan of what is read from the files as they are now."""
        searched = () if self._predicate is None else searched_columns(self._predicate)
        for path in sorted(searched):
            require_visible(self.dataset.opened, path)
        row_filter: Any = self.reader.filter
        if row_filter is None and self._predicate is not None:
            # Without any filter, no index would be used.
            row_filter = pc.scalar(True)
        return self.dataset.opened.plan(
            self.columns, row_filter, self._predicate, is_described=described
        )

    def partitions(self, plan: ScanPlan) -> list[list[ScanTask]]:
        """Return the scan tasks of each Spark task."""
        reader = self.reader
        return split_into_partitions(
            reader.source, plan.fragments, reader.needed_columns, self._parallelism
        )

    def require_schema(self, schema: st.StructType) -> None:
        """Raise `InvalidArgument` if the requested schema is not that of the files."""
        if [(f.name, f.dataType) for f in schema] != [(f.name, f.dataType) for f in self.schema]:
            raise InvalidArgument(
                f"the requested schema is {schema.simpleString()}, but that of the files is "
                f"{self.schema.simpleString()}; load again, without .schema(...), and then cast"
            )


@dataclass(frozen=True)
class SparkFiles:
    """A dataset with the types and rules by which Spark reads its files."""

    dataset: Dataset
    rebase: RebaseCheck
    # Spark's types that differ from those of pyarrow's schema: INT96 and partition columns.
    types: dict[str, st.DataType]
    # Partition columns that are text here, and of other types in Spark.
    other_types: frozenset[str]
    # True if Spark finds columns whose names a file spells in another case.
    ignores_case: bool

    @classmethod
    def of(cls, ds: Dataset, old_calendar: bool, ignores_case: bool = True) -> SparkFiles:
        """Return the Spark view of a dataset as pyarrow reads it.

        PyArrow reads INT96 as nanoseconds, which overflow before 1677 and after 2262. This reads
        it as microseconds instead, like Spark.
        """
        source = ds.opened.source
        types: dict[str, st.DataType] = {}
        other_types: set[str] = set()
        for name in sorted(source.partition_columns()):
            texts = _partition_texts(source, name)
            kind = _partition_type(texts)
            if kind is not None:
                types[name] = kind
            elif texts and (all(map(_NUMBER.fullmatch, texts)) or all(map(_is_time, texts))):
                other_types.add(name)
        names = source.schema.names
        instants = tuple(leaf for leaf in int96_leaves(source) if leaf in names)
        if instants:
            types |= dict.fromkeys(instants, st.TimestampType())
            kind = pa.timestamp("us")
            fields = [f.with_type(kind) if f.name in instants else f for f in source.schema]
            schema = pa.schema(fields, source.schema.metadata)
            file_format = pads.ParquetFileFormat(coerce_int96_timestamp_unit="us")
            source = replace(source, schema=schema, file_format=file_format)
            ds = Dataset(OpenedDataset(source, ds.opened.catalog, ds.opened.version), ds.title)
        rebase = RebaseCheck.of(source, instants, old_calendar)
        return cls(ds, rebase, types, frozenset(other_types), ignores_case)

    def task_reader(self, columns: tuple[str, ...], row_filter: EngineFilter | None) -> TaskReader:
        """Return the reader that tasks use to read columns of the files."""
        source = replace(self.dataset.opened.source, fragments=())
        return TaskReader(source, columns, row_filter, self.rebase, self.ignores_case)


def _partition_type(texts: Sequence[str]) -> st.DataType | None:
    """Return the integer, double or date type that Spark infers from partition values, or None."""
    if not texts:
        return None
    if all(map(_INTEGER.fullmatch, texts)):
        return st.LongType()
    if all(_INTEGER.fullmatch(text) or _DECIMAL.fullmatch(text) for text in texts):
        return st.DoubleType()
    return st.DateType() if all(map(_is_date, texts)) else None


def _partition_texts(source: Source, name: str) -> list[str]:
    """Return the values of a partition column that pyarrow reads as text, or else nothing."""
    if not pt.is_string(decoded_type(source.schema.field(name).type)):
        return []
    values = {source.constants(fragment).get(name) for fragment in source.fragments}
    return [str(value) for value in values if value is not None]


def _is_time(text: str) -> bool:
    """Return whether Spark reads a partition value as a date or a timestamp."""
    return _is_date(text) or _TIMESTAMP.fullmatch(text) is not None


def _is_date(text: str) -> bool:
    # Python also reads weeks, such as 2024-W01-1, which are text in Spark.
    if _DATE.fullmatch(text) is None:
        return False
    with suppress(ValueError):
        return datetime.date.fromisoformat(text) is not None
    return False
