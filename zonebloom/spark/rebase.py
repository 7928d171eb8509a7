"""Refuse files with dates or times in a calendar that Spark corrects when it reads them.

See `zonebloom.predicates.spark_calendar`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.types as pt
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from zonebloom.errors import SchemaMismatch
from zonebloom.predicates.spark_calendar import FIRST_DAY, FIRST_EXACT_INSTANT
from zonebloom.sources.source import Source
from zonebloom.storage.files import file_errors
from zonebloom.values.normal_types import innermost_types

_MODES = ("datetimeRebaseModeInRead", "int96RebaseModeInRead")
_VERSION_KEY = b"org.apache.spark.version"
# The metadata key of files in the old calendar, and the first Spark version that writes it.
_LEGACY_DATES = (b"org.apache.spark.legacyDateTime", b"3.0.0")
_LEGACY_INT96 = (b"org.apache.spark.legacyINT96", b"3.1.0")


def first_exact_value(kind: st.DataType) -> Column:
    """Return, as a Spark literal, the first date or time that every file stores unchanged."""
    if isinstance(kind, st.DateType):
        return sf.expr(f"DATE'{FIRST_DAY}'")
    if isinstance(kind, st.TimestampNTZType):
        return sf.expr(f"TIMESTAMP_NTZ'{FIRST_EXACT_INSTANT}'")
    return sf.expr(f"TIMESTAMP'{FIRST_EXACT_INSTANT}Z'")


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
