"""Key ranges and file filters exported as records of Hudi's metadata table (its RFC-37).

    column_stats    key = ID(column) + ID(partition) + ID(file)    a record a file and column
    bloom_filters   key = ID(partition) + ID(file)                 a record a file

    ID of a column or partition   XXH64 of the name, seed 0xdabadaba as a signed 32-bit number
    ID of a file                  MD5 of its base name
    both big-endian, in base64, and joined; the partition of files in the root is "."

Filters are split-block ones at the file's size, with Parquet's header, a type of their own
(`FILTER_TYPE`): Hudi's own readers know SIMPLE and DYNAMIC_V0, over keys as text. Names are
those of HoodieMetadata.avsc, HashID.java and HoodieMetadataPayload.java of hudi-common.
"""

from __future__ import annotations

import base64
import hashlib
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import ceil, floor
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.types as pt
import xxhash

from zonebloom.catalog.coverage import Coverage
from zonebloom.catalog.model import Version
from zonebloom.errors import InvalidArgument
from zonebloom.index.key_ranges import KeyRangeBuilder, key_range_type
from zonebloom.sbbf.filter import Sbbf
from zonebloom.sources.column_batches import Column, columns_reader
from zonebloom.sources.source import Fragment, Source
from zonebloom.storage.files import identities
from zonebloom.values.types import family, is_lossless_cast, value_step

if TYPE_CHECKING:
    from zonebloom.dataset import Dataset

__all__ = ["HudiTables", "export"]

FILTER_TYPE = "PARQUET_SPLIT_BLOCK"
COLUMN_STATS_TYPE = 3
BLOOM_FILTER_TYPE = 4
# A Java int widened to the long that XXH64 takes: its sign is carried on.
_SEED = 0xDABADABA | 0xFFFFFFFF00000000

# Hudi's name of a wrapper, and the type of its value.
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
# Which one takes values of a family; narrow integers and doubles have their own.
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
    """The key of a file's statistics of one column, 48 characters."""
    return _hash64(column) + bloom_filter_key(partition, file)


def bloom_filter_key(partition: str, file: str) -> str:
    """The key of a file's filter, 36 characters."""
    of_file = hashlib.md5(file.encode(), usedforsecurity=False).digest()
    return _hash64(partition or ".") + base64.b64encode(of_file).decode()


def _hash64(name: str) -> str:
    return base64.b64encode(xxhash.xxh64_digest(name.encode(), seed=_SEED)).decode()


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

    Returns
    -------
    HudiTables
        Files the catalog knows that are gone from the file system are in both tables, flagged as
        deleted; those that are only none of this dataset's are in neither.

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
    wanted = [columns] if isinstance(columns, str) else list(columns)
    if not wanted:
        raise InvalidArgument(f"columns is {columns!r}; name a column at least")
    names = dict.fromkeys([record_key or wanted[0], *wanted])
    resolved = [ds.opened.column(name) for name in names]
    instant = datetime.now(UTC).strftime("%Y%m%d%H%M%S%f")[:17]
    stats, filters = [], []
    source = ds.opened.source

    def add(path: str, bloom: bytes, ranges: Mapping[str, Any], is_deleted: bool) -> None:
        below = posixpath.relpath(path, source.root) if path.startswith(source.root) else path
        place = partition, file = posixpath.split(below)
        record = {"type": FILTER_TYPE, "timestamp": instant, "bloomFilter": bloom}
        filters.append((bloom_filter_key(partition, file), {**record, "isDeleted": is_deleted}))
        for name in wanted:
            if name in ranges:
                record = {"fileName": file, "columnName": name, **ranges[name]}
                key = column_stats_key(name, *place)
                stats.append((key, {**record, "isDeleted": is_deleted}))

    coverage = ds.opened.planner.coverage()
    for each in coverage.fragments:
        add(each.fragment.path, *_describe(source, each.fragment, resolved, probability), False)
    for path in _gone(source, ds.opened.version, coverage):
        add(path, b"", {name: {} for name in wanted}, True)
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


def _records(schema: pa.Schema, kind: int, records: list[tuple[str, dict[str, Any]]]) -> pa.Table:
    rows = [{"key": key, "type": kind, schema.names[2]: record} for key, record in records]
    return pa.Table.from_pylist(rows, schema)


def _gone(source: Source, version: Version, coverage: Coverage) -> list[str]:
    """Paths of files the catalog knows that are gone, not just another dataset's."""
    present = {each.fragment.key for each in coverage.fragments}
    paths = [source.path_of(key) for key in version.fragments if key not in present]
    now = identities(source.filesystem, paths)
    return [path for path, identity in zip(paths, now, strict=True) if identity is None]


def _describe(
    source: Source, fragment: Fragment, columns: Sequence[Column], probability: float
) -> tuple[bytes, dict[str, dict[str, Any]]]:
    """Read a file once: the filter of the first column, and what is certain of all of them."""
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
    described = {
        column.name: {**bounds, **_sizes(column.name, opened)}
        for column, key_range in ranges.items()
        if (bounds := _bounds(column, key_range)) is not None
    }
    # Few distinct values need less.
    return bloom.fold(probability).to_parquet_bytes(), described


def _bounds(column: Column, key_range: KeyRangeBuilder) -> dict[str, Any] | None:
    """Bounds and counts of a column, None where its values may lie outside of any."""
    row = key_range.to_row(0)
    # Readers drop files by these bounds: of a file with NaN, which has none, nothing is said.
    if not row["is_known"] or row["has_nan"]:
        return None
    low, high, kind = row["minimum"], row["maximum"], key_range_type(column.type)
    if not (low.is_valid and high.is_valid) and key_range.null_count < key_range.num_rows:
        return None
    try:
        ends = {"minValue": _wrapped(low, kind, floor), "maxValue": _wrapped(high, kind, ceil)}
    except (pa.ArrowException, OverflowError, LookupError):
        return None
    return {**ends, "valueCount": key_range.num_rows, "nullCount": key_range.null_count}


def _wrapped(bound: Any, kind: pa.DataType, rounded: Any) -> dict[str, Any] | None:
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
        # Bounds may be wider than the values, never narrower.
        value = rounded(bound.value * value_step(kind) * 10**6)
    else:
        value = bound.as_py()
    return {name: {"value": pa.scalar(value, _WRAPPERS[name]).as_py()}}


def _sizes(column: str, opened: Any) -> dict[str, int]:
    """Bytes of a column in a Parquet file, as they lie and decompressed."""
    metadata: Any = getattr(opened, "metadata", None)
    if not hasattr(metadata, "num_row_groups"):
        return {}
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    leaves = [group.column(leaf) for group in groups for leaf in range(group.num_columns)]
    chunks = [leaf for leaf in leaves if leaf.path_in_schema == column]
    return {
        "totalSize": sum(chunk.total_compressed_size for chunk in chunks),
        "totalUncompressedSize": sum(chunk.total_uncompressed_size for chunk in chunks),
    }
