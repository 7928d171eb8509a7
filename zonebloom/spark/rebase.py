"""Handle dates before 1582 and times before 1900 that Spark 2 and Hive wrote in another calendar.

Spark corrects ("rebases") such values when it reads a file, but an index holds the stored values.
The index is therefore not used for such literals, and code that reads files without Spark refuses
files that may contain such values.
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
from zonebloom.values.normal_types import innermost_types

_FIRST_DAY = datetime.date(1582, 10, 15)
# Spark changes no stored instant from 1900 on. A rebased instant differs from the stored one by up
# to a day and a half (local solar time, date line), so this leaves some room.
_FIRST_EXACT_INSTANT = datetime.datetime(1902, 1, 1)

_MODES = ("datetimeRebaseModeInRead", "int96RebaseModeInRead")
_VERSION_KEY = b"org.apache.spark.version"
# The metadata key of files in the old calendar, and the first Spark version that writes it.
_LEGACY_DATES = (b"org.apache.spark.legacyDateTime", b"3.0.0")
_LEGACY_INT96 = (b"org.apache.spark.legacyINT96", b"3.1.0")


def without_rebased_literals(predicate: ast.Predicate) -> ast.Predicate:
    """Return a predicate whose comparisons with dates and times that may be rebased are unknown.

    >>> day = pa.scalar(datetime.date(1500, 1, 1))
    >>> without_rebased_literals(ast.Equals(("d",), day)).reason
    'dates and times this old may lie in files in another calendar'
    """

    def hide_old_literal(leaf: ast.LeafPredicate) -> ast.LeafPredicate:
        if not isinstance(leaf, ast.Equals | ast.Compares | ast.IsIn | ast.HasTuple):
            return leaf
        # Compare Arrow values: Python's dates have a smaller range of years.
        arrays: tuple[pa.Array, ...]
        match leaf:
            case ast.HasTuple():
                arrays = leaf.values
            case ast.IsIn():
                arrays = (leaf.values,)
            case _:
                arrays = (pa.repeat(leaf.value, 1),)
        is_old = (pc.call_function("any", [may_be_rebased(values)]).as_py() for values in arrays)
        if not any(is_old):
            return leaf
        reason = "dates and times this old may lie in files in another calendar"
        return ast.Unknown(str(leaf), reason, frozenset(leaf.column[:1]))

    return ast.replace_leaves(predicate, hide_old_literal)


def may_be_rebased(values: pa.Array) -> pa.Array:
    """Return a bool array that is true for dates or timestamps a file may store as other values.

    It is null where the values are null.
    """
    if pt.is_date(values.type):
        bound = pa.scalar(_FIRST_DAY, values.type)
    elif pt.is_timestamp(values.type):
        # Compare instants: the time zone does not matter here.
        bound = pa.scalar(_FIRST_EXACT_INSTANT, pa.timestamp(values.type.unit)).cast(pa.int64())
        values = values.cast(pa.int64())
    else:
        return pa.repeat(False, len(values))
    return pc.call_function("less", [values, bound])


def first_exact_value(kind: st.DataType) -> Column:
    """Return, as a Spark literal, the first date or time that every file stores unchanged."""
    if isinstance(kind, st.DateType):
        return sf.expr(f"DATE'{_FIRST_DAY}'")
    if isinstance(kind, st.TimestampNTZType):
        return sf.expr(f"TIMESTAMP_NTZ'{_FIRST_EXACT_INSTANT}'")
    return sf.expr(f"TIMESTAMP'{_FIRST_EXACT_INSTANT}Z'")


def has_times(arrow_type: pa.DataType) -> bool:
    """Return whether a type is, or contains, a date or an instant.

    Timestamps without a zone do not count, because Spark reads them as they are stored.
    """
    return any(
        pt.is_date(type_) or (pt.is_timestamp(type_) and type_.tz is not None)
        for type_ in innermost_types(arrow_type)
    )


@dataclass(frozen=True)
class RebaseCheck:
    """A check for files in which Spark would correct dates or times."""

    # Columns with dates or instants, and among them those stored as INT96.
    time_columns: frozenset[str] = frozenset()
    int96_columns: frozenset[str] = frozenset()
    # True if Spark also corrects files whose writer is unknown.
    includes_unknown_writers: bool = False

    @classmethod
    def of(
        cls, source: Source, instants: Iterable[str], includes_unknown_writers: bool = False
    ) -> RebaseCheck:
        if not isinstance(source.format, pads.ParquetFileFormat):
            return cls()
        partition_columns = source.partition_columns()
        stored_fields = (field for field in source.schema if field.name not in partition_columns)
        times = {field.name for field in stored_fields if has_times(field.type)}
        return cls(frozenset({*times, *instants}), frozenset(instants), includes_unknown_writers)

    def require_modern(self, opened: Any, columns: Iterable[str]) -> None:
        """Raise `SchemaMismatch` if Spark would correct columns of a file.

        The footer is read only if there are date or time columns.
        """
        times = self.time_columns.intersection(columns)
        if not times:
            return
        with file_errors(opened.path):
            metadata: Mapping[bytes, bytes] = opened.metadata.metadata or {}
        version = metadata.get(_VERSION_KEY)
        for name in sorted(times):
            mark, first_version = _LEGACY_INT96 if name in self.int96_columns else _LEGACY_DATES
            # Versions are compared as strings, because Spark does so too.
            is_old = (
                self.includes_unknown_writers
                if version is None
                else version < first_version or mark in metadata
            )
            if is_old:
                raise SchemaMismatch(
                    f"{opened.path} may hold days before 1582 or times before 1900 in {name!r} by "
                    "the calendar of Spark 2, which Spark corrects when it reads and this package "
                    "does not; read it with zonebloom.spark.prune or spark.read.parquet, or leave "
                    "the column out"
                )


def rebases_unknown_writers(spark: SparkSession) -> bool:
    """Return whether a session corrects or refuses old dates in files of unknown writers."""
    return any(
        spark.conf.get(f"spark.sql.parquet.{mode}", "CORRECTED") != "CORRECTED" for mode in _MODES
    )
