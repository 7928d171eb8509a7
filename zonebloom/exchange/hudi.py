"""Export key ranges and a filter for each file as records of Hudi's metadata table (RFC-37).

    column_stats    key = ID(column) + ID(partition) + ID(file)    one record per file and column
    bloom_filters   key = ID(partition) + ID(file)                 one record per file

    ID of a column or partition   XXH64 of the name, seed 0xdabadaba as a signed 32-bit number
    ID of a file                  MD5 of its base name
    Both are big-endian and encoded in base64. The partition of files in the root is ".".

Filters are split-block filters sized for the file, with Parquet's header. They have a type of
their own (`FILTER_TYPE`), because Hudi's readers know only SIMPLE and DYNAMIC_V0 filters, over keys
as text. Names are those of HoodieMetadata.avsc, HashID.java and HoodieMetadataPayload.java in
hudi-common.
"""

from __future__ import annotations

import base64
import hashlib
import posixpath
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import ceil, floor
from typing import Any

import pyarrow as pa
import pyarrow.types as pt
import xxhash

from zonebloom.building.other_datasets import OtherDatasets
from zonebloom.catalog.coverage import Coverage
from zonebloom.errors import InvalidArgument
from zonebloom.index.key_ranges import KeyRangeBuilder
from zonebloom.sbbf.filter import Sbbf
from zonebloom.scan.opened import OpenDataset, OpenedDataset
from zonebloom.sources.column_batches import Column, columns_reader
from zonebloom.sources.source import Fragment, Source
from zonebloom.storage.files import identities
from zonebloom.storage.paths import key_below
from zonebloom.values.normal_types import key_range_type
from zonebloom.values.types import family, is_lossless_cast, value_step

__all__ = ["HudiTables", "export"]

FILTER_TYPE = "PARQUET_SPLIT_BLOCK"
COLUMN_STATS_TYPE = 3
BLOOM_FILTER_TYPE = 4
# Hudi's seed is a negative Java int, which is sign-extended to the long that XXH64 takes.
_SEED = 0xDABADABA | 0xFFFFFFFF00000000

# Hudi's names of the records that wrap a bound, with the type of the bound.
_WRAPPERS: dict[str, pa.DataType] = {
    "IntWrapper": pa.int32(),
    "LongWrapper": pa.int64(),
    "FloatWrapper": pa.float32(),
    "DoubleWrapper": pa.float64(),
    "BytesWrapper": pa.binary(),
    "StringWrapper": pa.string(),
    "DateWrapper": pa.int32(),
    "DecimalWrapper": pa.decimal128(30, 15),
    "TimeMicrosWrapper": pa.int64(),
    "TimestampMicrosWrapper": pa.int64(),
}
# The wrapper for each family of types. Narrow integers and doubles have other wrappers.
_WRAPPER_OF = {
    **{"integer": "LongWrapper", "float": "FloatWrapper", "decimal": "DecimalWrapper"},
    **{"text": "StringWrapper", "bytes": "BytesWrapper", "date": "DateWrapper"},
    **{"timestamp": "TimestampMicrosWrapper", "instant": "TimestampMicrosWrapper"},
    "time": "TimeMicrosWrapper",
}
_BOUND = pa.struct([(name, pa.struct([("value", kind)])) for name, kind in _WRAPPERS.items()])
_DELETED = pa.field("isDeleted", pa.bool_(), nullable=False)


def _record(name: str, fields: list[Any]) -> pa.Schema:
    return pa.schema(
        [
            pa.field("key", pa.string(), nullable=False),
            pa.field("type", pa.int32(), nullable=False),
            pa.field(name, pa.struct([*fields, _DELETED])),
        ]
    )


COLUMN_STATS = _record(
    "ColumnStatsMetadata",
    [
        ("fileName", pa.string()),
        ("columnName", pa.string()),
        ("minValue", _BOUND),
        ("maxValue", _BOUND),
        ("valueCount", pa.int64()),
        ("nullCount", pa.int64()),
        ("totalSize", pa.int64()),
        ("totalUncompressedSize", pa.int64()),
    ],
)
BLOOM_FILTERS = _record(
    "BloomFilterMetadata",
    [
        pa.field("type", pa.string(), nullable=False),
        pa.field("timestamp", pa.string(), nullable=False),
        pa.field("bloomFilter", pa.binary(), nullable=False),
    ],
)


def column_stats_key(column: str, partition: str, file: str) -> str:
    """Return the record key for the statistics of one column of a file, 48 characters."""
    return _hash64(column) + bloom_filter_key(partition, file)


def bloom_filter_key(partition: str, file: str) -> str:
    """Return the record key for the filter of a file, 36 characters."""
    file_id = hashlib.md5(file.encode(), usedforsecurity=False).digest()
    return _hash64(partition or ".") + base64.b64encode(file_id).decode()


def _hash64(name: str) -> str:
    return base64.b64encode(xxhash.xxh64_digest(name.encode(), seed=_SEED)).decode()


@dataclass(frozen=True, slots=True)
class HudiTables:
    """Records for Hudi's metadata table, one table for each of its partitions.

    Attributes
    ----------
    column_stats, bloom_filters : pyarrow.Table
        ``key`` string, ``type`` int32, and a struct as in Hudi's Avro schema. A file without
        reliable bounds has no ``column_stats`` record, so readers must read it.
    """

    column_stats: pa.Table
    bloom_filters: pa.Table


def export(
    ds: OpenDataset,
    columns: str | Sequence[str],
    folder: str | None = None,
    *,
    record_key: str | None = None,
    probability: float = 0.01,
) -> HudiTables:
    """Describe every file of a dataset by records for Hudi's metadata table.

    Parameters
    ----------
    ds : Dataset
        The given columns of each file are read once.
    columns : str or list of str
        The columns with ranges in ``column_stats``.
    folder : str, optional
        A folder in the dataset's file system. Both tables are written there as Parquet, in the
        folders ``column_stats`` and ``bloom_filters``.
    record_key : str, optional
        The column of the filters in ``bloom_filters``; by default the first of the columns.
    probability : float
        False positive probability of the filter of a file.

    Returns
    -------
    HudiTables
        Files below the dataset's root that the catalog lists but the file system no longer has
        are in both tables, flagged as deleted. Files of other datasets are in neither.

    Raises
    ------
    InvalidArgument, ColumnNotFound, UnsupportedType, FragmentUnreadable, SchemaMismatch

    Examples
    --------
    >>> from zonebloom.exchange.hudi import export
    >>> tables = export(ds, ["id", "day"])
    >>> tables.column_stats.num_rows, tables.bloom_filters.num_rows
    (6, 3)
    """
    range_columns = [columns] if isinstance(columns, str) else list(columns)
    if not range_columns:
        raise InvalidArgument(f"columns is {columns!r}; give at least one column")
    names = dict.fromkeys([record_key or range_columns[0], *range_columns])
    file_columns = [ds.opened.column(name) for name in names]
    instant = datetime.now(UTC).strftime("%Y%m%d%H%M%S%f")[:17]
    stats, filters = [], []
    source = ds.opened.source

    def add(path: str, bloom: bytes, ranges: Mapping[str, Any], *, is_deleted: bool) -> None:
        partition, file = posixpath.split(key_below(path, source.root))
        record = {"type": FILTER_TYPE, "timestamp": instant, "bloomFilter": bloom}
        filters.append((bloom_filter_key(partition, file), {**record, "isDeleted": is_deleted}))
        for name in range_columns:
            if name in ranges:
                record = {"fileName": file, "columnName": name, **ranges[name]}
                key = column_stats_key(name, partition, file)
                stats.append((key, {**record, "isDeleted": is_deleted}))

    coverage = ds.opened.look().coverage
    for file in coverage.fragments:
        bloom, ranges = _describe_file(source, file.fragment, file_columns, probability)
        add(file.fragment.path, bloom, ranges, is_deleted=False)
    for path in _deleted_paths(ds.opened, coverage):
        add(path, b"", {name: {} for name in range_columns}, is_deleted=True)
    tables = HudiTables(
        _records(COLUMN_STATS, COLUMN_STATS_TYPE, stats),
        _records(BLOOM_FILTERS, BLOOM_FILTER_TYPE, filters),
    )
    if folder is not None:
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
    return tables


def _records(
    schema: pa.Schema, record_type: int, records: list[tuple[str, dict[str, Any]]]
) -> pa.Table:
    rows = [{"key": key, "type": record_type, schema.names[2]: record} for key, record in records]
    return pa.Table.from_pylist(rows, schema)


def _deleted_paths(opened: OpenedDataset, coverage: Coverage) -> list[str]:
    """Return the paths of the dataset's files that the catalog lists and that no longer exist."""
    source, version = opened.source, opened.version
    other_fragments = OtherDatasets(source, opened.catalog).fragments(version)
    skipped_keys = {fragment.key for fragment in other_fragments}
    skipped_keys.update(file.fragment.key for file in coverage.fragments)
    paths = [source.path_of(key) for key in version.fragments if key not in skipped_keys]
    # A file that still exists below the root belongs to another dataset in the same catalog.
    current = identities(source.filesystem, paths)
    return [path for path, identity in zip(paths, current, strict=True) if identity is None]


def _describe_file(
    source: Source, fragment: Fragment, columns: Sequence[Column], probability: float
) -> tuple[bytes, dict[str, dict[str, Any]]]:
    """Return the filter of the first column, and the ranges of the columns with reliable bounds."""
    opened: Any = source.open(fragment, source.filesystem)
    reader = columns_reader(source, fragment, columns)
    (run,) = reader.runs(split=False)
    num_rows = opened.count_rows() if run.num_rows is None else run.num_rows
    bloom = Sbbf(max(num_rows, 1), probability)
    ranges = {column: KeyRangeBuilder(column.type) for column in columns}
    for arrays in reader.read(run):
        bloom.insert(arrays[0])
        for key_range, array in zip(ranges.values(), arrays, strict=True):
            key_range.add(array)
            key_range.num_rows += len(array)
            key_range.null_count += array.null_count
    stats = {
        column.name: {**bounds, **_chunk_sizes(column.name, opened)}
        for column, key_range in ranges.items()
        if (bounds := _reliable_bounds(column, key_range)) is not None
    }
    # The filter was sized for the number of rows; folding shrinks it if few values are distinct.
    return bloom.fold(probability).to_parquet_bytes(), stats


def _reliable_bounds(column: Column, key_range: KeyRangeBuilder) -> dict[str, Any] | None:
    """Return bounds and counts of a column, or None if a value may lie outside of the bounds."""
    row = key_range.to_row(0)
    # Readers skip files by these bounds, and NaN lies outside of any bounds.
    if not row["is_known"] or row["has_nan"]:
        return None
    low, high, kind = row["minimum"], row["maximum"], key_range_type(column.type)
    if not (low.is_valid and high.is_valid) and key_range.null_count < key_range.num_rows:
        return None
    try:
        bounds = {"minValue": _wrap(low, kind, floor), "maxValue": _wrap(high, kind, ceil)}
    except (pa.ArrowException, OverflowError, LookupError):
        return None
    return {**bounds, "valueCount": key_range.num_rows, "nullCount": key_range.null_count}


def _wrap(
    bound: Any, kind: pa.DataType, round_outward: Callable[[Any], int]
) -> dict[str, Any] | None:
    """Return a bound in Hudi's wrapper for its type.

    Raise `LookupError`, `OverflowError` or an Arrow error if no wrapper can hold it.
    """
    if not bound.is_valid:
        return None
    name = "DoubleWrapper" if pt.is_float64(kind) else _WRAPPER_OF[family(kind)]
    if name == "LongWrapper" and is_lossless_cast(kind, pa.int32()):
        name = "IntWrapper"
    if name == "DateWrapper":
        value = bound.value
    elif pt.is_date64(kind):
        raise LookupError(kind)
    elif name.endswith("MicrosWrapper"):
        # Bounds may be wider than the values, but never narrower.
        value = round_outward(bound.value * value_step(kind) * 10**6)
    else:
        value = bound.as_py()
    return {name: {"value": pa.scalar(value, _WRAPPERS[name]).as_py()}}


def _chunk_sizes(column: str, opened: Any) -> dict[str, int]:
    """Return the compressed and uncompressed bytes of a column in a Parquet file."""
    metadata: Any = getattr(opened, "metadata", None)
    if not hasattr(metadata, "num_row_groups"):
        return {}
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    all_chunks = [group.column(leaf) for group in groups for leaf in range(group.num_columns)]
    chunks = [chunk for chunk in all_chunks if chunk.path_in_schema == column]
    return {
        "totalSize": sum(chunk.total_compressed_size for chunk in chunks),
        "totalUncompressedSize": sum(chunk.total_uncompressed_size for chunk in chunks),
    }
