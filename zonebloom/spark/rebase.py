"""Days and times of old, which files may hold by another calendar than Spark shows them in.

Spark 2 and Hive wrote the Julian calendar before 1582, and times before 1900 by local solar
clocks; Spark reads such files as the same day of the calendar used now. An index holds what is
stored, so it is not asked about days and times of old. What reads files without Spark gives them
as they are stored, so it refuses those of a file that Spark would correct.

Which files Spark corrects is said by what its writers leave in their footers, and, of files of
other writers, by ``spark.sql.parquet.datetimeRebaseModeInRead``:
https://spark.apache.org/docs/latest/sql-data-sources-parquet.html
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from zonebloom.errors import FragmentUnreadable, SchemaMismatch
from zonebloom.predicates import ast
from zonebloom.storage.source import Source

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession
    from pyspark.sql import types as st

# The first day and the first instant that every file holds as Spark shows it.
_SWITCH = (datetime.date(1582, 10, 15), datetime.datetime(1900, 1, 1))
# Days are shown as themselves from there on. Instants stored before may be shown as later ones,
# by up to a day and a half: local solar clocks and the date line.
_CLEAR = (_SWITCH[0], datetime.datetime(1902, 1, 1))
_REASON = "days and times of old may lie in files in another calendar"

_MODES = ("datetimeRebaseModeInRead", "int96RebaseModeInRead")
_VERSION = b"org.apache.spark.version"
# The mark of files in the other calendar, and the version of Spark that first left it.
_MARK = (b"org.apache.spark.legacyDateTime", b"3.0.0")
_INT96_MARK = (b"org.apache.spark.legacyINT96", b"3.1.0")


# What is asked of an index


def without_old_times(predicate: ast.Predicate) -> ast.Predicate:
    """The same condition, what it says of days and times of old being unknown.

    Examples
    --------
    >>> day = pa.scalar(datetime.date(1500, 1, 1))
    >>> without_old_times(ast.Equals(("d",), day)).reason
    'days and times of old may lie in files in another calendar'
    """
    return ast.replaced(predicate, _leaf_without_old_times)


def _leaf_without_old_times(leaf: ast.Leaf) -> ast.Leaf:
    if isinstance(leaf, ast.Equals | ast.Compares):
        # Not through Python, which has fewer years.
        values = pa.repeat(leaf.value, 1)
    elif isinstance(leaf, ast.IsIn):
        values = leaf.values
    else:
        return leaf
    if not holds_any_of_old(values):
        return leaf
    return ast.Unknown(str(leaf), _REASON, frozenset(leaf.column[:1]))


def columns_of_old(predicate: ast.Predicate) -> frozenset[str]:
    """Top-level columns a condition compares with days and times of old."""
    return frozenset(
        each.column[0]
        for each in ast.walk(predicate)
        if isinstance(each, ast.Equals | ast.Compares | ast.IsIn)
        and without_old_times(each) is not each
    )


def are_of_old(values: pa.Array) -> pa.Array:
    """Which dates or timestamps a file may hold as others, null where they are; bool array."""
    return _before(values, _CLEAR)


def holds_any_of_old(values: pa.Array) -> bool:
    """Whether a file may hold any of some values as another."""
    return _holds(values, _CLEAR)


def first_of(kind: st.DataType) -> Column:
    """The first day or instant that no file holds as another, for Spark to compare with."""
    from pyspark.sql import functions as sf
    from pyspark.sql import types as st

    day, time = _CLEAR
    if isinstance(kind, st.DateType):
        return sf.expr(f"DATE'{day}'")
    if isinstance(kind, st.TimestampNTZType):
        return sf.expr(f"TIMESTAMP_NTZ'{time}'")
    return sf.expr(f"TIMESTAMP'{time}Z'")


def _before(values: pa.Array, bounds: tuple[datetime.date, datetime.datetime]) -> pa.Array:
    day, time = bounds
    if pt.is_date(values.type):
        first = pa.scalar(day, values.type)
    elif pt.is_timestamp(values.type):
        # Of a time zone, only the instant counts here.
        first = pa.scalar(time, pa.timestamp(values.type.unit)).cast(pa.int64())
        values = values.cast(pa.int64())
    else:
        return pa.repeat(False, len(values))
    return pc.call_function("less", [values, first])


def _holds(values: pa.Array, bounds: tuple[datetime.date, datetime.datetime]) -> bool:
    """Whether any of some values, or of the values nested in them, is before its bound."""
    while isinstance(values, pa.ExtensionArray):
        values = values.storage
    if isinstance(values, pa.DictionaryArray):
        return _holds(values.dictionary, bounds)
    if isinstance(values, pa.MapArray):
        return _holds(values.keys, bounds) or _holds(values.items, bounds)
    if pt.is_nested(values.type):
        inner: Any = values.flatten()
        return any(_holds(each, bounds) for each in (inner if isinstance(inner, list) else [inner]))
    return bool(pc.call_function("any", [_before(values, bounds)]).as_py())


def has_times(arrow_type: pa.DataType) -> bool:
    """Whether values of a type are days or instants, or such are nested in them.

    Timestamps without a zone are left out: Spark reads them as they are stored.
    """
    while isinstance(arrow_type, pa.BaseExtensionType):
        arrow_type = arrow_type.storage_type
    if pt.is_dictionary(arrow_type):
        return has_times(arrow_type.value_type)
    if pt.is_nested(arrow_type):
        return any(has_times(arrow_type.field(i).type) for i in range(arrow_type.num_fields))
    return pt.is_date(arrow_type) or (pt.is_timestamp(arrow_type) and arrow_type.tz is not None)


# What is read of files


@dataclass(frozen=True)
class Calendars:
    """What tells files that Spark would correct as it reads them.

    Attributes
    ----------
    times : frozenset of str
        Columns with days or instants.
    instants : frozenset of str
        Those read from INT96.
    of_others : bool
        Whether files whose writer is not known are corrected too.
    """

    times: frozenset[str]
    instants: frozenset[str]
    of_others: bool

    @classmethod
    def of(cls, source: Source, instants: Iterable[str], of_others: bool = False) -> Calendars:
        """Those of the columns of a source."""
        by_path = source.partition_columns()
        times = {
            field.name
            for field in source.schema
            if field.name not in by_path and has_times(field.type)
        }
        return cls(frozenset({*times, *instants}), frozenset(instants), of_others)

    def corrected(self, opened: Any, columns: Iterable[str]) -> frozenset[str]:
        """Columns of a file in which Spark would correct days and times of old.

        The footer is read for it, where one of the columns has days or times at all.
        """
        import pyarrow.dataset as pads

        asked = self.times.intersection(columns)
        if not asked or not isinstance(opened, pads.ParquetFileFragment):
            return frozenset()
        try:
            said: Mapping[bytes, bytes] = opened.metadata.metadata or {}
        except (OSError, pa.ArrowException) as error:
            # A file of which this is not known is not taken for a modern one.
            raise FragmentUnreadable(
                f"cannot read {opened.path}: {error}; repair or remove the file"
            ) from error
        return frozenset(
            name
            for name in asked
            if self._is_marked(said, _INT96_MARK if name in self.instants else _MARK)
        )

    def _is_marked(self, said: Mapping[bytes, bytes], mark: tuple[bytes, bytes]) -> bool:
        # Versions are compared as texts, as Spark does.
        version = said.get(_VERSION)
        return self.of_others if version is None else version < mark[1] or mark[0] in said


def require_modern(batch: pa.RecordBatch | pa.Table, columns: Iterable[str], path: str) -> None:
    """Refuse days and times of old in columns that Spark would correct."""
    for name in columns:
        values = batch.column(name)
        chunks = values.chunks if isinstance(values, pa.ChunkedArray) else [values]
        if any(_holds(chunk, _SWITCH) for chunk in chunks):
            raise SchemaMismatch(old_times(path, name))


def old_times(path: str, column: str) -> str:
    """What is wrong with a file, and what to do."""
    return (
        f"{path} may hold days before 1582 or times before 1900 in {column!r} by the calendar of "
        "Spark 2, which Spark corrects as it reads and this package does not; have Spark read it: "
        "zonebloom.spark.prune, spark.read.parquet; or leave the column out"
    )


def corrects_others(spark: SparkSession) -> bool:
    """Whether a session is set to correct files whose writer is not known, or to refuse them."""
    return any(
        spark.conf.get(f"spark.sql.parquet.{mode}", "CORRECTED") != "CORRECTED" for mode in _MODES
    )
