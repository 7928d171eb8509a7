"""Rebase: dates before 1582 and times before 1900 that Spark 2 and Hive wrote by another calendar.

An index holds what is stored, and Spark corrects that as it reads: it is not asked about such
values, and what reads files without Spark refuses those in which there may be any.
https://spark.apache.org/docs/latest/sql-data-sources-parquet.html
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.types as pt
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from zonebloom.errors import SchemaMismatch
from zonebloom.predicates import ast
from zonebloom.sources.source import Source
from zonebloom.storage.files import file_errors

_FIRST_DAY = datetime.date(1582, 10, 15)
# From 1900 on every file holds instants as Spark shows them, which may be later ones by up to a day
# and a half: local solar clocks and the date line.
_FIRST_SHOWN = datetime.datetime(1902, 1, 1)

_MODES = ("datetimeRebaseModeInRead", "int96RebaseModeInRead")
_VERSION = b"org.apache.spark.version"
# The mark of files in the other calendar, and the version of Spark that first left it.
_MARK = (b"org.apache.spark.legacyDateTime", b"3.0.0")
_INT96_MARK = (b"org.apache.spark.legacyINT96", b"3.1.0")


def without_rebased_literals(predicate: ast.Predicate) -> ast.Predicate:
    """The same condition, what it says of dates and times that may be rebased being unknown.

    >>> day = pa.scalar(datetime.date(1500, 1, 1))
    >>> without_rebased(ast.Equals(("d",), day)).reason
    'dates and times this old may lie in files in another calendar'
    """

    def known(leaf: ast.LeafPredicate) -> ast.LeafPredicate:
        if not isinstance(leaf, ast.Equals | ast.Compares | ast.IsIn):
            return leaf
        # Not through Python, which has fewer years.
        values = leaf.values if isinstance(leaf, ast.IsIn) else pa.repeat(leaf.value, 1)
        if not pc.call_function("any", [may_be_rebased(values)]).as_py():
            return leaf
        reason = "dates and times this old may lie in files in another calendar"
        return ast.Unknown(str(leaf), reason, frozenset(leaf.column[:1]))

    return ast.replace_leaves(predicate, known)


def may_be_rebased(values: pa.Array) -> pa.Array:
    """Which dates or timestamps a file may hold as others, null where they are; bool array."""
    if pt.is_date(values.type):
        bound = pa.scalar(_FIRST_DAY, values.type)
    elif pt.is_timestamp(values.type):
        # Of a time zone, only the instant counts here.
        bound = pa.scalar(_FIRST_SHOWN, pa.timestamp(values.type.unit)).cast(pa.int64())
        values = values.cast(pa.int64())
    else:
        return pa.repeat(False, len(values))
    return pc.call_function("less", [values, bound])


def first_exact_value(kind: st.DataType) -> Column:
    """The first date or instant that no file holds as another, for Spark to compare with."""
    if isinstance(kind, st.DateType):
        return sf.expr(f"DATE'{_FIRST_DAY}'")
    if isinstance(kind, st.TimestampNTZType):
        return sf.expr(f"TIMESTAMP_NTZ'{_FIRST_SHOWN}'")
    return sf.expr(f"TIMESTAMP'{_FIRST_SHOWN}Z'")


def has_times(arrow_type: pa.DataType) -> bool:
    """Whether values of a type are dates or instants, or such are nested in them.

    Timestamps without a zone are left out: Spark reads them as they are stored.
    """
    if isinstance(arrow_type, pa.BaseExtensionType):
        return has_times(arrow_type.storage_type)
    if isinstance(arrow_type, pa.DictionaryType):
        return has_times(arrow_type.value_type)
    if pt.is_nested(arrow_type):
        return any(has_times(arrow_type.field(at).type) for at in range(arrow_type.num_fields))
    return pt.is_date(arrow_type) or (pt.is_timestamp(arrow_type) and arrow_type.tz is not None)


@dataclass(frozen=True)
class RebaseCheck:
    """What tells files that Spark would correct as it reads them."""

    # Columns with dates or instants, and those read from INT96.
    time_columns: frozenset[str] = frozenset()
    int96_columns: frozenset[str] = frozenset()
    # Whether files whose writer is not known are corrected too.
    includes_unknown_writers: bool = False

    @classmethod
    def of(cls, source: Source, instants: Iterable[str], of_others: bool = False) -> RebaseCheck:
        """That of the columns of a source."""
        if not isinstance(source.format, pads.ParquetFileFormat):
            return cls()
        by_path = source.partition_columns()
        stored = (field for field in source.schema if field.name not in by_path)
        times = {field.name for field in stored if has_times(field.type)}
        return cls(frozenset({*times, *instants}), frozenset(instants), of_others)

    def require_modern(self, opened: Any, columns: Iterable[str]) -> None:
        """Refuse a file in which Spark would correct columns; its footer is read for times."""
        times = self.time_columns.intersection(columns)
        if not times:
            return
        with file_errors(opened.path):
            written: Mapping[bytes, bytes] = opened.metadata.metadata or {}
        version = written.get(_VERSION)
        for name in sorted(times):
            mark, first = _INT96_MARK if name in self.int96_columns else _MARK
            # Versions are compared as texts, as Spark does.
            is_old = (
                self.includes_unknown_writers
                if version is None
                else version < first or mark in written
            )
            if is_old:
                raise SchemaMismatch(
                    f"{opened.path} may hold days before 1582 or times before 1900 in {name!r} by "
                    "the calendar of Spark 2, which Spark corrects as it reads and this package "
                    "does not; have Spark read it: zonebloom.spark.prune, spark.read.parquet; or "
                    "leave the column out"
                )


def rebases_unknown_writers(spark: SparkSession) -> bool:
    """Whether a session is set to correct files whose writer is not known, or to refuse them."""
    return any(
        spark.conf.get(f"spark.sql.parquet.{mode}", "CORRECTED") != "CORRECTED" for mode in _MODES
    )
