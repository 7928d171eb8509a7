"""One load of the data source: its options, the files it opens, and what it plans to read."""

from __future__ import annotations

import base64
import datetime
import json
import re
from collections.abc import Mapping, Sequence
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
from zonebloom.dataset import Dataset
from zonebloom.errors import FilterError, InvalidArgument, SourceError
from zonebloom.opened import OpenedDataset
from zonebloom.predicates import EngineFilter, IsIn, probed_columns, unknowns
from zonebloom.predicates.ast import conjunction
from zonebloom.predicates.expression import expression_from_predicate, lookup_is_exact
from zonebloom.predicates.spark import translate_spark_sql
from zonebloom.scan.binding import checked_names
from zonebloom.scan.explain import ScanPlan
from zonebloom.sources.source import Source
from zonebloom.spark.column_case import require_visible
from zonebloom.spark.pieces import ExactRowFilter, ScanTask, TaskReader, split_into_partitions
from zonebloom.spark.rebase import RebaseCheck, without_rebased_literals
from zonebloom.spark.session import open_dataset
from zonebloom.spark.types import opaque_columns, spark_types
from zonebloom.storage.encryption import Encryption
from zonebloom.storage.paths import NO_SETTINGS, plain_path
from zonebloom.values.columns import find_column

_OPTIONS = {
    "path": "a folder, a file, a glob or a URI",
    "paths": "several, as a JSON list",
    "columns": "names with commas between, or a JSON list",
    "filter": "a condition; rows it is not true for are left out",
    "prune": "a condition; zones it cannot be true in are left out",
    "keys": "keys of a join, as base64 of an Arrow IPC stream; rows without them are left out",
    "index_dir": "folder of the index",
    "encryption": "number of keys that scan(encryption=...) gave to the session",
    "old_calendar": "true where the session corrects old times of files of unknown writers",
    "timezone": "of the session, for timestamps in a condition without one",
    "parallelism": "tasks that run at one time",
}
# Spark adds it to tables of a catalog.
_SPARKS_OWN = {"serialization.format"}
_INTEGER = re.compile(r"[+-]?\d{1,18}", re.ASCII)
_DECIMAL = re.compile(r"[+-]?\d{1,15}\.\d{1,15}", re.ASCII)


class Options:
    """The options of a load, read and checked."""

    def __init__(self, options: Mapping[str, str]):
        given = {name.lower(): text for name, text in options.items()}
        unknown = sorted(set(given) - set(_OPTIONS) - _SPARKS_OWN)
        if unknown:
            known = "; ".join(f"{name}: {what}" for name, what in _OPTIONS.items())
            raise InvalidArgument(f"there is no option {', '.join(unknown)}; there is {known}")
        paths = _json_list("paths", given["paths"]) if "paths" in given else []
        if not given.get("path") and not paths:
            raise InvalidArgument("no path is given; write .load(path), or OPTIONS (path '...')")
        if "filter" in given and "prune" in given:
            raise InvalidArgument("give filter or prune, not both")
        parallelism = given.get("parallelism", "0")
        if not parallelism.isdecimal():
            raise InvalidArgument(f"parallelism is {parallelism!r}; give a whole number")
        old_calendar = given.get("old_calendar", "false").lower()
        if old_calendar not in ("true", "false"):
            raise InvalidArgument(f"old_calendar is {old_calendar!r}; give true or false")
        path = given.get("path")
        self.paths: list[str] = [plain_path(each) for each in ([path] if path else paths)]
        self.source: str | list[str] = self.paths[0] if path else self.paths
        self.columns: list[str] | None = _names(given["columns"]) if "columns" in given else None
        self.filter: str | None = given.get("filter")
        self.prune: str | None = given.get("prune")
        # Columns by name; a row is wanted where each holds one of its values.
        self.keys: pa.Table | None = _keys(given["keys"]) if "keys" in given else None
        self.index_dir: str | None = given.get("index_dir")
        self.timezone: str | None = given.get("timezone")
        self.encryption: str | None = given.get("encryption")
        # Whether files of unknown writers may hold times by the calendar of Spark 2.
        self.old_calendar: bool = old_calendar == "true"
        self.parallelism: int = int(parallelism) or num_cores()


def encode_keys(keys: pa.Table) -> str:
    """Keys as the text of an option."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, keys.schema) as writer:
        writer.write_table(keys)
    return base64.b64encode(sink.getvalue().to_pybytes()).decode()


def _keys(text: str) -> pa.Table:
    try:
        keys = pa.ipc.open_stream(base64.b64decode(text, validate=True)).read_all()
        keys.validate(full=True)
    except (ValueError, pa.ArrowException) as error:
        raise InvalidArgument(
            "keys is no base64 of an Arrow IPC stream; zonebloom.spark.filter_join writes it"
        ) from error
    return keys


def _names(text: str) -> list[str]:
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
    """The files of a load as they are now."""

    def __init__(
        self, options: Options, spark: Any = NO_SETTINGS, encryption: Encryption | None = None
    ):
        opened = open_dataset(options.source, spark, options.index_dir, encryption)
        names = opened.schema.names
        if len(set(names)) < len(names):
            raise SourceError("several columns have one name; rename them first")
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
        inexact = [] if self.filter is None else unknowns(self.filter.predicate)
        if inexact and options.prune is None:
            raise FilterError(
                f"the filter {text!r} cannot be applied as Spark does: {inexact[0].text}: "
                f"{inexact[0].reason}. Use zonebloom.spark.scan(spark, path, filter=...), which "
                "has Spark apply it; or give it as option prune, which only leaves out zones that "
                "cannot match, and again in WHERE"
            )
        # Of an opaque column not even equality is known.
        keys = [
            term
            for term in _key_predicates(options.keys, source.schema)
            if term.column[0] not in opaque
        ]
        predicates = [] if self.filter is None else [self.filter.predicate]
        predicates += keys
        # What zones are chosen by; None reads all. Tasks refuse files with other times than stored.
        self._predicate = without_rebased_literals(conjunction(predicates)) if predicates else None
        self.columns: tuple[str, ...] = self._shown(options, source.schema)
        self.schema: st.StructType = spark_types(source.schema, self.columns, files.types)
        row_filter = self._row_filter(keys, source.schema) if predicates else None
        # What each task needs beside its pieces.
        self.reader: TaskReader = files.task_reader(self.columns, row_filter)

    def _shown(self, options: Options, schema: pa.Schema) -> tuple[str, ...]:
        """Columns of the load: those asked for, and those Spark's own WHERE will need."""
        names = schema.names
        if options.columns is None:
            return tuple(names)
        shown = [find_column(names, name) or name for name in options.columns]
        checked_names(shown, schema)
        if options.prune is None or self.filter is None:
            return tuple(shown)
        if self.filter.columns is None:
            return tuple(names)
        return (*shown, *(name for name in names if name in self.filter.columns - set(shown)))

    def _row_filter(self, keys: Sequence[IsIn], schema: pa.Schema) -> ExactRowFilter:
        """What tasks apply to rows: of a filter to prune by, the parts that are exact."""
        exact: list[tuple[pc.Expression, frozenset[str]]] = [
            (expression_from_predicate(term, schema), frozenset(term.column[:1]))
            for term in keys
            if not pt.is_floating(term.values.type)
            and lookup_is_exact(schema.field(term.column[0]).type, term.values)
        ]
        named = None if self.filter is None else self.filter.columns
        if self.filter is not None and named is not None:
            expression = self.filter.row_filter(schema)
            if expression is not None:
                exact.append((expression, named))
        if not exact:
            return ExactRowFilter(None, frozenset(self.columns[:1]))
        expressions, read = zip(*exact, strict=True)
        return ExactRowFilter(reduce(and_, expressions), frozenset().union(*read))

    def plan(self, described: bool = False) -> ScanPlan:
        """Say what is read of the files as they are now."""
        # Of the filter and of keys to be joined alike.
        for path in sorted(probed_columns(self._predicate) if self._predicate is not None else ()):
            require_visible(self.dataset, ".".join(path))
        planner = self.dataset.opened.planner
        return planner.plan(
            self.columns, self.reader.filter, self._predicate, is_described=described
        )

    def partitions(self, plan: ScanPlan) -> list[list[ScanTask]]:
        """The pieces of each task."""
        return split_into_partitions(self.reader, plan.fragments, self._parallelism)

    def require_schema(self, schema: st.StructType) -> None:
        """Refuse to read for a schema other than the files'."""
        if [(f.name, f.dataType) for f in schema] != [(f.name, f.dataType) for f in self.schema]:
            raise InvalidArgument(
                f"the schema asked for is {schema.simpleString()}, that of the files "
                f"{self.schema.simpleString()}; load again, without .schema(...), and cast then"
            )


def _key_predicates(keys: pa.Table | None, schema: pa.Schema) -> list[IsIn]:
    """What rows that join with one of some keys are true for."""
    if keys is None:
        return []
    checked_names(keys.column_names, schema)
    return [
        IsIn((name,), column.unique().drop_null())
        for name, column in zip(keys.column_names, keys.columns, strict=True)
    ]


@dataclass(frozen=True)
class SparkFiles:
    """A dataset as Spark reads its files."""

    dataset: Dataset
    rebase: RebaseCheck
    # Where Spark has others than pyarrow's schema suggests: of INT96, and of values of paths.
    types: dict[str, st.DataType]
    # Whether Spark finds columns that a file names in another case.
    ignores_case: bool

    @classmethod
    def of(cls, ds: Dataset, old_calendar: bool, ignores_case: bool = True) -> SparkFiles:
        """That of a dataset as pyarrow reads it.

        PyArrow reads INT96 as nanoseconds, in which the years before 1677 and after 2262 are
        others than Spark's.
        """
        source = ds.opened.source
        kinds = {name: _path_type(source, name) for name in sorted(source.partition_columns())}
        types = {name: kind for name, kind in kinds.items() if kind is not None}
        instants = _int96_columns(source)
        for name in instants:
            types[name] = st.TimestampType()
            at = source.schema.get_field_index(name)
            field = source.schema.field(at).with_type(pa.timestamp("us"))
            read = pads.ParquetFileFormat(coerce_int96_timestamp_unit="us")
            source = replace(source, schema=source.schema.set(at, field), file_format=read)
        if instants:
            ds = Dataset(OpenedDataset.create(source, ds.opened.catalog), ds.title)
        return cls(ds, RebaseCheck.of(source, instants, old_calendar), types, ignores_case)

    def task_reader(self, columns: tuple[str, ...], row_filter: EngineFilter | None) -> TaskReader:
        """What tasks need to read columns of the files."""
        source = replace(self.dataset.opened.source, fragments=())
        return TaskReader(source, columns, row_filter, self.rebase, self.ignores_case)


def _int96_columns(source: Source) -> tuple[str, ...]:
    may_be = {pa.timestamp("ns")}.intersection(source.schema.types)
    if not source.is_parquet or not may_be:
        return ()
    first: Any = source.open(source.fragments[0], source.filesystem)
    stored = first.metadata.schema
    return tuple(
        leaf.path
        for leaf in map(stored.column, range(len(stored)))
        if leaf.physical_type == "INT96"
        and leaf.max_repetition_level == 0
        and leaf.path in source.schema.names
    )


def _path_type(source: Source, name: str) -> st.DataType | None:
    """The type Spark finds in the values of paths, None where it is that of pyarrow."""
    arrow = source.schema.field(name).type
    if pt.is_dictionary(arrow):
        arrow = arrow.value_type
    values = {source.constants(fragment).get(name) for fragment in source.fragments}
    texts = [str(value) for value in values if value is not None]
    if not pt.is_string(arrow) or not texts:
        return None
    if all(map(_INTEGER.fullmatch, texts)):
        return st.LongType()
    if all(_INTEGER.fullmatch(text) or _DECIMAL.fullmatch(text) for text in texts):
        return st.DoubleType()
    return st.DateType() if all(map(_is_date, texts)) else None


def _is_date(text: str) -> bool:
    try:
        return len(text) == 10 and datetime.date.fromisoformat(text) is not None
    except ValueError:
        return False
