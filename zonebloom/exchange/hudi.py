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
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.types as pt
import xxhash

from zonebloom.catalog.coverage import Coverage
from zonebloom.catalog.model import Version
from zonebloom.errors import InvalidArgument
from zonebloom.index.key_ranges import KeyRange, range_type
from zonebloom.sbbf.filter import Sbbf
from zonebloom.storage.columns import Column, columns_reader
from zonebloom.storage.files import identities
from zonebloom.storage.source import Fragment, Source

if TYPE_CHECKING:
    from zonebloom.dataset import Dataset

FILTER_TYPE = "PARQUET_SPLIT_BLOCK"
COLUMN_STATS_TYPE = 3
BLOOM_FILTER_TYPE = 4
# A Java int widened to the long that XXH64 takes: its sign is carried on.
_SEED = 0xDABADABA | 0xFFFFFFFF00000000
_NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}

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


def _hash64(text: str) -> str:
    return base64.b64encode(xxhash.xxh64_digest(text.encode(), seed=_SEED)).decode()


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
    """
    wanted = [columns] if isinstance(columns, str) else list(columns)
    if not wanted:
        raise InvalidArgument(f"columns is {columns!r}; name a column at least")
    names = dict.fromkeys([record_key or wanted[0], *wanted])
    resolved = [ds.opened.column(name) for name in names]
    instant = datetime.now(UTC).strftime("%Y%m%d%H%M%S%f")[:17]
    stats: list[dict[str, Any]] = []
    filters: list[dict[str, Any]] = []
    source = ds.opened.source
    coverage = ds.opened.planner.coverage()
    for each in coverage.present:
        place = _place(source, each.fragment.path)
        bloom, described = _describe(source, each.fragment, resolved, probability)
        filters.append(_filter_record(place, bloom.to_parquet_bytes(), instant))
        stats += [
            _stats_record(place, name, fields) for name, fields in described if name in wanted
        ]
    for path in _gone(source, ds.opened.version, coverage):
        place = _place(source, path)
        filters.append(_filter_record(place, b"", instant, is_deleted=True))
        stats += [_stats_record(place, name, {}, is_deleted=True) for name in wanted]
    tables = HudiTables(
        pa.Table.from_pylist(stats, COLUMN_STATS), pa.Table.from_pylist(filters, BLOOM_FILTERS)
    )
    if folder is not None:
        _write(tables, folder, source)
    return tables


def _gone(source: Source, version: Version, coverage: Coverage) -> list[str]:
    """Paths of files the catalog knows that are in the file system no more; others may be those of
    another dataset that shares the index."""
    present = {each.fragment.key for each in coverage.present}
    paths = [source.path_of(key) for key in version.fragments if key not in present]
    now = identities(source.filesystem, paths)
    return [path for path, identity in zip(paths, now, strict=True) if identity is None]


def _place(source: Source, path: str) -> tuple[str, str]:
    below = posixpath.relpath(path, source.root) if path.startswith(source.root) else path
    return posixpath.dirname(below), posixpath.basename(below)


def _describe(
    source: Source, fragment: Fragment, columns: Sequence[Column], probability: float
) -> tuple[Sbbf, list[tuple[str, dict[str, Any]]]]:
    """Read a file once: the filter of the first column, and what is certain of all of them."""
    opened: Any = source.open(fragment, source.filesystem)
    reader = columns_reader(source, fragment.path, columns)
    (run,) = reader.runs(split=False)
    num_rows = opened.count_rows() if run.num_rows is None else run.num_rows
    bloom = Sbbf(max(num_rows, 1), probability)
    ranges = [KeyRange(column.type) for column in columns]
    for arrays in reader.read(run):
        bloom.insert(arrays[0])
        for key_range, array in zip(ranges, arrays, strict=True):
            key_range.add(array)
            key_range.num_rows += len(array)
            key_range.null_count += array.null_count
    described = [
        (column.name, {**fields, **_sizes(column.name, opened)})
        for column, key_range in zip(columns, ranges, strict=True)
        if (fields := _bounds(column, key_range)) is not None
    ]
    # Few distinct values need less.
    return bloom.fold(probability), described


def _bounds(column: Column, key_range: KeyRange) -> dict[str, Any] | None:
    """Bounds and counts of a column, None where its values may lie outside of any."""
    row = key_range.row(0)
    # Readers drop files by these bounds: of a file with NaN, which has none, nothing is said.
    if not row["is_known"] or row["has_nan"]:
        return None
    ends = row["minimum"], row["maximum"]
    if not all(end.is_valid for end in ends) and key_range.null_count < key_range.num_rows:
        return None
    try:
        low, high = (
            _wrapped(end, range_type(column.type), up)
            for end, up in zip(ends, (False, True), strict=True)
        )
    except (pa.ArrowException, OverflowError, LookupError):
        return None
    return {
        "minValue": low,
        "maxValue": high,
        "valueCount": key_range.num_rows,
        "nullCount": key_range.null_count,
    }


def _wrapped(value: Any, kind: pa.DataType, up: bool) -> dict[str, Any] | None:
    if not value.is_valid:
        return None
    plain: Any = value.as_py()
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
        name, plain = "DateWrapper", value.value
    elif pt.is_decimal(kind):
        name, plain = "DecimalWrapper", Decimal(plain)
    elif pt.is_timestamp(kind) or pt.is_time(kind):
        name = "TimestampMicrosWrapper" if pt.is_timestamp(kind) else "TimeMicrosWrapper"
        nanoseconds = value.value * _NANOSECONDS[kind.unit]
        # Bounds may be wider than the values, never narrower.
        plain = -(-nanoseconds // 1000) if up else nanoseconds // 1000
    else:
        raise LookupError(kind)
    return {name: {"value": pa.scalar(plain, _WRAPPERS[name]).as_py()}}


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


def _stats_record(
    place: tuple[str, str], column: str, fields: dict[str, Any], *, is_deleted: bool = False
) -> dict[str, Any]:
    return {
        "key": column_stats_key(column, *place),
        "type": COLUMN_STATS_TYPE,
        "ColumnStatsMetadata": {
            "fileName": place[1],
            "columnName": column,
            **fields,
            "isDeleted": is_deleted,
        },
    }


def _filter_record(
    place: tuple[str, str], data: bytes, instant: str, *, is_deleted: bool = False
) -> dict[str, Any]:
    return {
        "key": bloom_filter_key(*place),
        "type": BLOOM_FILTER_TYPE,
        "BloomFilterMetadata": {
            "type": FILTER_TYPE,
            "timestamp": instant,
            "bloomFilter": data,
            "isDeleted": is_deleted,
        },
    }


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
