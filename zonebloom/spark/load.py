"""One load of the data source: the files it opens, and what it plans to read."""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from pyspark.sql import types as st

from zonebloom.dataset import Dataset, dataset
from zonebloom.errors import FilterError, InvalidArgument, SchemaMismatch, SourceError
from zonebloom.opened import Opened
from zonebloom.predicates import Predicate, unknowns
from zonebloom.predicates.ast import IsIn, conjunction
from zonebloom.predicates.ast import columns as columns_in
from zonebloom.predicates.expression import from_predicate, lookup_is_exact
from zonebloom.predicates.spark import SparkFilter, to_spark_filter
from zonebloom.scan.binding import check_columns
from zonebloom.scan.explain import ScanPlan
from zonebloom.spark.names import hidden_by_case
from zonebloom.spark.options import Options
from zonebloom.spark.read import Piece, RowFilter, Work, cut, without_fragments
from zonebloom.spark.rebase import Rebase, rebased_columns, without_rebased
from zonebloom.spark.types import opaque_columns, spark_types
from zonebloom.storage.source import Source
from zonebloom.values.columns import find_column

_INTEGER = re.compile(r"[+-]?\d{1,18}", re.ASCII)
_DECIMAL = re.compile(r"[+-]?\d{1,15}\.\d{1,15}", re.ASCII)


class Load:
    """The files of a load as they are now."""

    def __init__(self, options: Options):
        self.options = options
        opened = dataset(options.source, index_dir=options.index_dir)
        names = opened.schema.names
        if len(set(names)) < len(names):
            raise SourceError("several columns have one name; rename them first")
        files = SparkFiles.of(opened)
        self.dataset, known = files.dataset, files.types
        schema = self._source.schema
        self.opaque = opaque_columns(schema, known)
        text = options.filter or options.prune
        self.filter: SparkFilter | None = None
        if text is not None:
            self.filter = to_spark_filter(text, schema, self.opaque, options.timezone)
            if options.prune is not None:
                # Spark applies all of it: rows are not to be left out by times as stored.
                predicate = without_rebased(self.filter.predicate)
                self.filter = replace(self.filter, predicate=predicate)
        if options.filter is not None:
            self._require_exact(options.filter)
        # Of an opaque column not even equality is known.
        self._keys = [
            term
            for term in _key_predicates(options.keys, schema)
            if term.column[0] not in self.opaque and without_rebased(term) is term
        ]
        self._rebase = Rebase.of(self._source, files.instants, options.old_calendar)
        self.columns = self._columns(options.columns)
        self.schema = spark_types(schema, self.columns, known)

    @property
    def _source(self) -> Source:
        return self.dataset.opened.source

    def _require_exact(self, text: str) -> None:
        assert self.filter is not None
        parts = unknowns(self.filter.predicate)
        if parts:
            raise FilterError(
                f"the filter {text!r} cannot be applied as Spark does: {parts[0].text}: "
                f"{parts[0].reason}. Use zonebloom.spark.scan(spark, path, filter=...), which has "
                "Spark apply it; or give it as option prune, which only leaves out zones that "
                "cannot match, and again in WHERE"
            )

    def _columns(self, asked: Sequence[str] | None) -> tuple[str, ...]:
        """Columns of the load: those asked for, and those Spark's own WHERE will need."""
        names = self._source.schema.names
        if asked is None:
            return tuple(names)
        asked = [find_column(names, name) or name for name in asked]
        check_columns(asked, self._source.schema)
        if self.options.prune is None or self.filter is None:
            return tuple(asked)
        if self.filter.columns is None:
            return tuple(names)
        return (*asked, *(name for name in names if name in self.filter.columns - set(asked)))

    # Planning

    @property
    def predicate(self) -> Predicate | None:
        """What zones are chosen by; None reads all."""
        own = None if self.filter is None else self.filter.predicate
        terms = [term for term in (own, *self._keys) if term is not None]
        return without_rebased(conjunction(terms)) if terms else None

    def plan(self, described: bool = False) -> ScanPlan:
        """Say what is read of the files as they are now."""
        planner = self.dataset.opened.planner
        # Of the filter and of keys to be joined alike.
        for path in sorted(columns_in(self.predicate) if self.predicate is not None else ()):
            why = hidden_by_case(self.dataset, ".".join(path))
            if why is not None:
                raise SchemaMismatch(why)
        return planner.plan(self.columns, self.row_filter, self.predicate, described=described)

    @property
    def row_filter(self) -> RowFilter | None:
        """What tasks apply to rows: of a filter to prune by, the parts that are exact."""
        if self.predicate is None:
            return None
        schema = self._source.schema
        exact: list[tuple[pc.Expression, frozenset[str]]] = [
            (from_predicate(term, schema), frozenset(term.column[:1]))
            for term in self._keys
            if not pt.is_floating(term.values.type)
            and lookup_is_exact(schema.field(term.column[0]).type, term.values)
        ]
        columns = None if self.filter is None else self.filter.columns
        if self.filter is not None and columns is not None:
            expression = self.filter.row_filter(schema)
            if expression is not None:
                exact.append((expression, columns))
        if not exact:
            return RowFilter(None, frozenset(self.columns[:1]))
        expressions, read = zip(*exact, strict=True)
        return RowFilter(reduce(and_, expressions), frozenset().union(*read))

    def tasks(self, plan: ScanPlan) -> list[list[Piece]]:
        """The pieces of each task."""
        filtered = self.row_filter.columns if self.row_filter else None
        needed = frozenset({*self.columns, *(filtered or ())})
        return cut(self._source, plan.fragments, needed, self.options.parallelism)

    @property
    def work(self) -> Work:
        """What each task needs beside its pieces."""
        return Work(
            without_fragments(self._source),
            self.columns,
            self.row_filter,
            self._rebase,
            frozenset() if self.filter is None else rebased_columns(self.filter.predicate),
        )

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
    check_columns(keys.column_names, schema)
    return [
        IsIn((name,), column.unique().drop_null())
        for name, column in zip(keys.column_names, keys.columns, strict=True)
    ]


@dataclass(frozen=True)
class SparkFiles:
    """A dataset as Spark reads its files.

    Attributes
    ----------
    dataset : Dataset
    instants : tuple of str
        Columns read from INT96.
    types : dict of str to DataType
        Where Spark has others than pyarrow's schema suggests: of these, and of values of paths.
    """

    dataset: Dataset
    instants: tuple[str, ...]
    types: dict[str, st.DataType]

    @classmethod
    def of(cls, opened: Dataset) -> SparkFiles:
        """That of a dataset as pyarrow reads it.

        PyArrow reads INT96 as nanoseconds, in which the years before 1677 and after 2262 are
        others than Spark's.
        """
        source = opened.opened.source
        types = {
            name: kind
            for name in sorted(source.partition_columns())
            if (kind := _path_type(source, name)) is not None
        }
        instants = _int96_columns(source)
        if not instants:
            return cls(opened, (), types)
        import pyarrow.dataset as pads

        schema = source.schema
        for name in instants:
            at = schema.get_field_index(name)
            schema = schema.set(at, schema.field(at).with_type(pa.timestamp("us")))
        read = pads.ParquetFileFormat(coerce_int96_timestamp_unit="us")
        source = replace(source, schema=schema, format=read)
        types |= dict.fromkeys(instants, st.TimestampType())
        return cls(Dataset(Opened.of(source, opened.opened.catalog), opened.title), instants, types)


def _int96_columns(source: Source) -> tuple[str, ...]:
    if not source.is_parquet or not any(map(_may_be_int96, source.schema.types)):
        return ()
    first: Any = source.open(source.fragments[0], source.filesystem)
    stored = first.metadata.schema
    leaves = [stored.column(at) for at in range(len(stored))]
    return tuple(
        leaf.path
        for leaf in leaves
        if leaf.physical_type == "INT96"
        and leaf.max_repetition_level == 0
        and leaf.path in source.schema.names
    )


def _may_be_int96(arrow: pa.DataType) -> bool:
    return pt.is_timestamp(arrow) and arrow.unit == "ns" and arrow.tz is None


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
