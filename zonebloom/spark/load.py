"""Open one load of the data source: parse its options, open its files, and plan what to read."""

from __future__ import annotations

import base64
import datetime
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.types as pt
from pyspark.sql import types as st

from zonebloom.base.threads import num_cores
from zonebloom.errors import FilterError, InvalidArgument, SourceError, UnsupportedType
from zonebloom.facade.dataset import Dataset
from zonebloom.predicates import EngineFilter, IsIn, unknowns
from zonebloom.predicates.ast import conjunction, searched_columns
from zonebloom.predicates.evaluate import ExpressionFilter
from zonebloom.predicates.expression import expression_from_predicate, lookup_is_exact
from zonebloom.predicates.spark import translate_spark_sql
from zonebloom.predicates.spark_calendar import without_rebased_literals
from zonebloom.scan.binding import checked_names
from zonebloom.scan.column_case import require_visible
from zonebloom.scan.explain import ScanPlan
from zonebloom.scan.key_candidates import key_terms, keys_predicate
from zonebloom.scan.opened import OpenedDataset
from zonebloom.scan.tasks import ScanTask, split_into_partitions
from zonebloom.sources.int96 import int96_leaves
from zonebloom.sources.source import Source
from zonebloom.spark.opening import open_dataset
from zonebloom.spark.rebase import RebaseCheck
from zonebloom.spark.task_reader import TaskReader
from zonebloom.spark.types import opaque_columns, spark_types
from zonebloom.storage.encryption import Encryption
from zonebloom.storage.paths import NO_SETTINGS, plain_path
from zonebloom.values.columns import find_column
from zonebloom.values.normal_types import decoded_type

_OPTIONS = {
    "path": "a folder, a file, a glob or a URI",
    "paths": "several, as a JSON list",
    "columns": "names separated by commas, or a JSON list",
    "filter": "a condition; only rows for which it is true are read",
    "prune": "a condition; zones in which it cannot be true are left out",
    "keys": "keys of a join, as base64 of an Arrow IPC stream; only rows with these keys are read",
    "index_dir": "folder of the index",
    "encryption": "number under which scan(encryption=...) stored the keys in the session",
    "old_calendar": "true if Spark corrects old times in files of unknown writers",
    "timezone": "time zone of the session, for timestamps without one in a condition",
    "parallelism": "number of tasks that run at one time",
}
# Spark adds this option to tables of a catalog.
_IGNORED_OPTIONS = {"serialization.format"}
_INTEGER = re.compile(r"[+-]?\d{1,18}", re.ASCII)
_DECIMAL = re.compile(r"[+-]?\d{1,15}\.\d{1,15}", re.ASCII)
# Partition values that Spark reads as doubles, decimals and timestamps.
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?[dDfF]?|NaN|[+-]?Infinity", re.ASCII)
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?", re.ASCII)


class Options:
    """The parsed and checked options of a load."""

    def __init__(self, options: Mapping[str, str]):
        values = {name.lower(): text for name, text in options.items()}
        unknown_names = sorted(set(values) - set(_OPTIONS) - _IGNORED_OPTIONS)
        if unknown_names:
            options_text = "; ".join(f"{name}: {text}" for name, text in _OPTIONS.items())
            raise InvalidArgument(
                f"there is no option {', '.join(unknown_names)}; there is {options_text}"
            )
        paths = _json_list("paths", values["paths"]) if "paths" in values else []
        if values.get("path") and paths:
            raise InvalidArgument("give path or paths, not both; paths may name all of them")
        if not values.get("path") and not paths:
            raise InvalidArgument("no path is given; write .load(path), or OPTIONS (path '...')")
        if "filter" in values and "prune" in values:
            raise InvalidArgument("give filter or prune, not both")
        parallelism = values.get("parallelism", "0")
        if not parallelism.isdecimal():
            raise InvalidArgument(f"parallelism is {parallelism!r}; give a whole number")
        old_calendar = values.get("old_calendar", "false").lower()
        if old_calendar not in ("true", "false"):
            raise InvalidArgument(f"old_calendar is {old_calendar!r}; give true or false")
        path = values.get("path")
        self.source: str | list[str] = plain_path(path) if path else list(map(plain_path, paths))
        columns = values.get("columns")
        self.columns: list[str] | None = None if columns is None else _parse_names(columns)
        self.filter: str | None = values.get("filter")
        self.prune: str | None = values.get("prune")
        # A row is read if each of these columns holds one of the values in the table.
        self.keys: pa.Table | None = _decode_keys(values["keys"]) if "keys" in values else None
        self.index_dir: str | None = values.get("index_dir")
        self.timezone: str | None = values.get("timezone")
        self.encryption: str | None = values.get("encryption")
        # True if files of unknown writers may hold times in the Julian calendar.
        self.old_calendar: bool = old_calendar == "true"
        self.parallelism: int = int(parallelism) or num_cores()


def encode_keys(keys: pa.Table) -> str:
    """Return keys as the text of the option "keys"."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, keys.schema) as writer:
        writer.write_table(keys)
    return base64.b64encode(sink.getvalue().to_pybytes()).decode()


def _decode_keys(text: str) -> pa.Table:
    try:
        keys = pa.ipc.open_stream(base64.b64decode(text, validate=True)).read_all()
        keys.validate(full=True)
    except (ValueError, pa.ArrowException) as error:
        raise InvalidArgument(
            "keys is not base64 of an Arrow IPC stream; use zonebloom.spark.filter_join"
        ) from error
    return keys


def _parse_names(text: str) -> list[str]:
    if text.lstrip().startswith("["):
        names = _json_list("columns", text)
    else:
        names = [name.strip() for name in text.split(",")]
    if not names or "" in names:
        raise InvalidArgument(f"columns is {text!r}; name at least one, and none is empty")
    if len(set(names)) < len(names):
        raise InvalidArgument(f"columns is {text!r}; name each once")
    return names


def _json_list(option: str, text: str) -> list[str]:
    try:
        names = json.loads(text)
    except ValueError:
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InvalidArgument(f"{option} is {text!r}; write it as a JSON list of strings")
    return names


class Load:
    """The files of a load as they are now, with its filter and columns."""

    def __init__(
        self, options: Options, spark: Any = NO_SETTINGS, encryption: Encryption | None = None
    ):
        columns = options.columns or ()
        opened = open_dataset(options.source, spark, options.index_dir, encryption, columns)
        names = opened.schema.names
        if len(set(names)) < len(names):
            raise SourceError("several columns have the same name; rename them first")
        files = SparkFiles.of(opened, options.old_calendar)
        self.dataset: Dataset = files.dataset
        self._parallelism = options.parallelism
        source = files.dataset.opened.source
        opaque = opaque_columns(source.schema, files.types)
        text = options.filter or options.prune
        self.filter = (
            None
            if text is None
            else translate_spark_sql(text, source.schema, opaque, options.timezone)
        )
        unknown_parts = [] if self.filter is None else unknowns(self.filter.predicate)
        if unknown_parts and options.prune is None:
            raise FilterError(
                f"the filter {text!r} cannot be applied as Spark does: {unknown_parts[0].text}: "
                f"{unknown_parts[0].reason}. Use zonebloom.spark.scan(spark, path, filter=...), "
                "with which Spark applies it; or give it as option prune, which only leaves out "
                "zones that cannot match, and again in WHERE"
            )
        # Spark compares opaque columns in an unknown way, so keys cannot choose zones of them.
        keys: list[IsIn] = []
        predicates = [] if self.filter is None else [self.filter.predicate]
        if options.keys is not None:
            names = options.keys.column_names
            checked_names(names, source.schema)
            names = [name for name in names if name not in opaque]
            keys = key_terms(options.keys, names)
            if keys:
                indices = files.dataset.opened.indices.values()
                predicates.append(keys_predicate(options.keys, names, indices))
        # The predicate that chooses zones; None reads all. It ignores literals that old calendars
        # affect, and the tasks refuse files with such values.
        self._predicate = without_rebased_literals(conjunction(predicates)) if predicates else None
        self.columns: tuple[str, ...] = self._columns_to_read(options, source.schema)
        self._require_known_types(files.other_types)
        self.schema: st.StructType = spark_types(source.schema, self.columns, files.types)
        row_filter = self._row_filter(keys, source.schema)
        # Each Spark task gets this reader and its scan tasks.
        self.reader: TaskReader = files.task_reader(self.columns, row_filter)

    def _columns_to_read(self, options: Options, schema: pa.Schema) -> tuple[str, ...]:
        """Return the columns to read: the requested ones and those that Spark's WHERE needs."""
        names = schema.names
        if options.columns is None:
            return tuple(names)
        names_read = [find_column(names, name) or name for name in options.columns]
        checked_names(names_read, schema)
        if options.prune is None or self.filter is None:
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

    def _row_filter(self, keys: Sequence[IsIn], schema: pa.Schema) -> ExpressionFilter | None:
        """Return the filter that tasks apply to rows: the exact parts of the filter and keys.

        It is no expression, which PyArrow would also use to skip row groups by their statistics.
        These ignore NaN, which is greater than every number in Spark.
        """
        exact_parts = [
            expression_from_predicate(term, schema)
            for term in keys
            if not pt.is_floating(term.values.type)
            and lookup_is_exact(schema.field(term.column[0]).type, term.values)
        ]
        if self.filter is not None and self.filter.columns is not None:
            expression = self.filter.row_filter(schema)
            if expression is not None:
                exact_parts.append(expression)
        return ExpressionFilter(reduce(and_, exact_parts)) if exact_parts else None

    def plan(self, described: bool = False) -> ScanPlan:
        """Return a plan of what is read from the files as they are now."""
        # The predicate has the columns of the filter and of the join keys.
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
            ds = Dataset(OpenedDataset(source, ds.opened.catalog), ds.title)
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
