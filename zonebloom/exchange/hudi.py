"""Key ranges and file filters exported as records of Hudi's metadata table.

Filters are made from the column itself at the file's size: zone filters OR-ed would be full. They
are split-block filters with Parquet's header, a type of their own (`FILTER_TYPE`): Hudi's own
readers know SIMPLE and DYNAMIC_V0, over keys as text.

Keys and fields: `zonebloom.exchange.hudi_records`.
"""

from __future__ import annotations

import math
import posixpath
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.types as pt

from zonebloom.catalog.coverage import Coverage
from zonebloom.catalog.model import Version
from zonebloom.errors import InvalidArgument
from zonebloom.exchange.hudi_records import (
    BLOOM_FILTER_TYPE,
    COLUMN_STATS_TYPE,
    FILTER_TYPE,
    WRAPPERS,
    Names,
    bloom_filter_key,
    column_stats_key,
    schemas,
)
from zonebloom.index.key_ranges import KeyRange, range_type
from zonebloom.sbbf.filter import Sbbf
from zonebloom.storage.columns import Column, ColumnsReader
from zonebloom.storage.files import identities
from zonebloom.storage.paths import key_below
from zonebloom.storage.source import Fragment, Source

if TYPE_CHECKING:
    from zonebloom.dataset import Dataset

_NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


@dataclass(frozen=True, slots=True)
class HudiTables:
    """The records, one table for each partition of Hudi's metadata table.

    Attributes
    ----------
    column_stats, bloom_filters : pyarrow.Table
        ``key`` string, ``type`` int32, and a struct as Hudi's Avro schema has it. A file of which
        nothing certain is known has no record: it must be read.
    """

    column_stats: pa.Table
    bloom_filters: pa.Table


def export(
    ds: Dataset,
    columns: str | Sequence[str],
    folder: str | None = None,
    *,
    record_key: str | None = None,
    probability: float = 0.01,
    names: Names = "code",
) -> HudiTables:
    """Describe every file of a dataset as Hudi's metadata table does.

    Parameters
    ----------
    ds : Dataset
        Each file is read once, these columns of it.
    columns : str or list of str
        Whose ranges ``column_stats`` gets.
    folder : str, optional
        In the dataset's file system; both tables are written below it as Parquet, in the folders
        ``column_stats`` and ``bloom_filters``.
    record_key : str, optional
        The column ``bloom_filters`` is over; the first of the columns by default.
    probability : float
        Of a false positive of a file's filter.
    names : {"code", "rfc"}
        Keys and fields as Hudi's code has them, or as the RFC.

    Returns
    -------
    HudiTables
        Files the catalog knows that are gone from the file system are in both tables, flagged as
        deleted; those that are only none of this dataset's are in neither.

    Raises
    ------
    InvalidArgument, ColumnNotFound, UnsupportedType, FragmentUnreadable, SchemaMismatch
    """
    wanted = [columns] if isinstance(columns, str) else list(columns)
    if not wanted or names not in ("code", "rfc"):
        raise InvalidArgument(
            f"columns is {columns!r}, names {names!r}; name a column at least, and 'code' or 'rfc'"
        )
    record_key = record_key or wanted[0]
    resolved = [ds.opened.column(name) for name in dict.fromkeys([record_key, *wanted])]
    instant = datetime.now(UTC).strftime("%Y%m%d%H%M%S%f")[:17]
    stats: list[dict[str, Any]] = []
    filters: list[dict[str, Any]] = []
    source = ds.opened.source
    coverage = ds.opened.planner.coverage()
    for each in coverage.present:
        made = _FileRecords(source, each.fragment, resolved, probability)
        where = _place(source, each.fragment.path)
        stats += [
            _stats_record(found, where, names) for found in made.stats if found.name in wanted
        ]
        filters.append(_filter_record(made.filter.to_parquet_bytes(), where, instant, False, names))
    for path in _gone(source, ds.opened.version, coverage):
        where = _place(source, path)
        stats += [_stats_record(_Stats(name), where, names) for name in wanted]
        filters.append(_filter_record(b"", where, instant, True, names))
    tables = HudiTables(
        *(
            pa.Table.from_pylist(rows, schema)
            for rows, schema in zip((stats, filters), schemas(names), strict=True)
        )
    )
    if folder is not None:
        _write(tables, folder, source)
    return tables


def _gone(source: Source, version: Version, coverage: Coverage) -> list[str]:
    """Paths of files the catalog knows that are in the file system no more.

    A dataset of some files may share the index with one of all.
    """
    present = {each.fragment.key for each in coverage.present}
    # Known by their whole paths where the index has a folder apart.
    whole = all(each.key == each.path for each in source.fragments)
    root = "" if whole else source.root
    paths = [posixpath.join(root, key) for key in version.fragments if key not in present]
    now = identities(source.filesystem, paths)
    return [path for path, identity in zip(paths, now, strict=True) if identity is None]


@dataclass(frozen=True, slots=True)
class _Stats:
    """What is known of a column of a file; of a deleted file its name alone."""

    name: str
    bounds: tuple[Any, Any] = (None, None)
    num_rows: int | None = None
    null_count: int | None = None
    num_bytes: tuple[int | None, int | None] = (None, None)


class _FileRecords:
    """One pass over a file: bounds of all columns, and the filter of the first."""

    def __init__(
        self, source: Source, fragment: Fragment, columns: Sequence[Column], probability: float
    ):
        opened: Any = source.open(fragment, source.filesystem)
        reader = ColumnsReader(
            source.format, source.filesystem, fragment.path, columns, source.schema
        )
        (run,) = reader.runs(split=False)
        num_rows = opened.count_rows() if run.num_rows is None else run.num_rows
        bloom = Sbbf(max(num_rows, 1), probability)
        ranges = [KeyRange(column.type) for column in columns]
        for arrays in reader.read(run):
            bloom.insert(arrays[0])
            for kept, array in zip(ranges, arrays, strict=True):
                kept.add(array)
                kept.num_rows += len(array)
                kept.null_count += array.null_count
        # Few distinct values need less.
        self.filter = bloom.fold(probability)
        self.stats = [
            found
            for column, kept in zip(columns, ranges, strict=True)
            if (found := _stats(column, kept, opened)) is not None
        ]


def _stats(column: Column, kept: KeyRange, opened: Any) -> _Stats | None:
    row = kept.row(0)
    # Readers drop files by these bounds: of a file with NaN, which has none, nothing is said.
    if not row["is_known"] or row["has_nan"]:
        return None
    ends = row["minimum"].as_py(), row["maximum"].as_py()
    if None in ends and kept.null_count < kept.num_rows:
        return None
    try:
        low, high = (
            _wrapped(row[end], range_type(column.type), up)
            for end, up in (("minimum", False), ("maximum", True))
        )
    except (pa.ArrowException, OverflowError, LookupError):
        return None
    return _Stats(
        column.name, (low, high), kept.num_rows, kept.null_count, _sizes(column.name, opened)
    )


def _wrapped(value: Any, kind: pa.DataType, up: bool) -> dict[str, Any] | None:
    """A bound under the name of Hudi's wrapper for its type."""
    if not value.is_valid:
        return None
    found: Any = value.as_py()
    if pt.is_integer(kind):
        narrow = kind.bit_width < 32 or pt.is_int32(kind)
        name = "IntWrapper" if narrow else "LongWrapper"
    elif pt.is_floating(kind):
        name = "DoubleWrapper" if pt.is_float64(kind) else "FloatWrapper"
    elif pt.is_string(kind) or pt.is_large_string(kind):
        name = "StringWrapper"
    elif pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_fixed_size_binary(kind):
        name = "BytesWrapper"
    elif pt.is_date32(kind):
        name, found = "DateWrapper", value.value
    elif pt.is_decimal(kind):
        name, found = "DecimalWrapper", Decimal(found)
    elif pt.is_timestamp(kind) or pt.is_time(kind):
        name = "TimestampMicrosWrapper" if pt.is_timestamp(kind) else "TimeMicrosWrapper"
        nanoseconds = value.value * _NANOSECONDS[kind.unit]
        # Bounds may be wider than the values, never narrower.
        found = -(-nanoseconds // 1000) if up else nanoseconds // 1000
    else:
        raise LookupError(kind)
    if isinstance(found, float) and math.isnan(found):
        raise LookupError(kind)
    return {name: {"value": pa.scalar(found, WRAPPERS[name]).as_py()}}


def _sizes(column: str, opened: Any) -> tuple[int | None, int | None]:
    """Bytes of a column in a Parquet file, as they lie and decompressed."""
    metadata = getattr(opened, "metadata", None)
    if metadata is None or not hasattr(metadata, "num_row_groups"):
        return None, None
    stored = uncompressed = 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for leaf in range(group.num_columns):
            chunk = group.column(leaf)
            if chunk.path_in_schema == column:
                stored += chunk.total_compressed_size
                uncompressed += chunk.total_uncompressed_size
    return stored, uncompressed


def _place(source: Source, path: str) -> tuple[str, str]:
    # Keys of the catalog are paths below the root, or whole where an index has a folder apart.
    below = key_below(path, source.root)
    return posixpath.dirname(below), posixpath.basename(below)


def _stats_record(found: _Stats, where: tuple[str, str], names: Names) -> dict[str, Any]:
    deleted = found.num_rows is None
    low, high = ("rangeLow", "rangeHigh") if names == "rfc" else ("minValue", "maxValue")
    return {
        "key": column_stats_key(found.name, *where, names),
        "type": COLUMN_STATS_TYPE,
        "ColumnStatsMetadata": {
            "fileName": where[1],
            "columnName": found.name,
            low: found.bounds[0],
            high: found.bounds[1],
            "valueCount": found.num_rows,
            "nullCount": found.null_count,
            "totalSize": found.num_bytes[0],
            "totalUncompressedSize": found.num_bytes[1],
            **_flag(deleted, names),
        },
    }


def _filter_record(
    data: bytes, where: tuple[str, str], instant: str, deleted: bool, names: Names
) -> dict[str, Any]:
    return {
        "key": bloom_filter_key(*where, names),
        "type": BLOOM_FILTER_TYPE,
        "BloomFilterMetadata": {
            "version" if names == "rfc" else "type": FILTER_TYPE,
            "timestamp": instant,
            "bloomFilter": data,
            **_flag(deleted, names),
        },
    }


def _flag(deleted: bool, names: Names) -> dict[str, bool]:
    return {"valid": not deleted} if names == "rfc" else {"isDeleted": deleted}


def _write(tables: HudiTables, folder: str, source: Source) -> None:
    import pyarrow.dataset as pads

    for name in ("column_stats", "bloom_filters"):
        pads.write_dataset(
            getattr(tables, name),
            posixpath.join(folder, name),
            format="parquet",
            filesystem=source.filesystem,
            basename_template="part-{i}.parquet",
            existing_data_behavior="delete_matching",
        )
