"""How Hudi's metadata table (its RFC-37) keys and lays out what it says of files.

Two tables, one for each partition of that metadata table, one record for a file (and column):

    column_stats    key = ID(column) + ID(partition) + ID(file)    a record a file and column
    bloom_filters   key = ID(partition) + ID(file)                 a record a file

    ID of a column or partition   XXH64 of the name, seed 0xdabadaba as a signed 32-bit number
    ID of a file                  MD5 of its base name
    both big-endian; the partition of files in the root is "."

Hudi's code encodes each ID in base64 and joins the texts (48 and 36 characters); the RFC joins the
bytes and encodes once (44 and 32). Field names differ too; ``names`` says whose are written.

Sources: https://github.com/apache/hudi/blob/master/rfc/rfc-37/rfc-37.md, HoodieMetadata.avsc,
HashID.java and HoodieMetadataPayload.java of hudi-common.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from typing import Literal

import pyarrow as pa
import xxhash

Names = Literal["code", "rfc"]

FILTER_TYPE = "PARQUET_SPLIT_BLOCK"
COLUMN_STATS_TYPE = 3
BLOOM_FILTER_TYPE = 4
ROOT_PARTITION = "."
# A Java int widened to the long that XXH64 takes: its sign is carried on.
_SEED = 0xDABADABA | 0xFFFFFFFF00000000

# Hudi's name of a wrapper, and the type of its value.
WRAPPERS: dict[str, pa.DataType] = {
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
_VALUE = pa.struct(
    [pa.field(name, pa.struct([("value", kind)])) for name, kind in WRAPPERS.items()]
)


def column_stats_key(column: str, partition: str, file: str, names: Names = "code") -> str:
    """The key of a file's statistics of one column.

    Examples
    --------
    >>> len(column_stats_key("id", "day=1", "a.parquet"))
    48
    """
    return _joined([_hash64(column), _hash64(partition or ROOT_PARTITION), _hash128(file)], names)


def bloom_filter_key(partition: str, file: str, names: Names = "code") -> str:
    """The key of a file's filter.

    Examples
    --------
    >>> len(bloom_filter_key("day=1", "a.parquet")), len(bloom_filter_key("", "a", "rfc"))
    (36, 32)
    """
    return _joined([_hash64(partition or ROOT_PARTITION), _hash128(file)], names)


def _joined(ids: Sequence[bytes], names: Names) -> str:
    if names == "rfc":
        return base64.b64encode(b"".join(ids)).decode()
    return "".join(base64.b64encode(each).decode() for each in ids)


def _hash64(text: str) -> bytes:
    return xxhash.xxh64_digest(text.encode(), seed=_SEED)


def _hash128(text: str) -> bytes:
    return hashlib.md5(text.encode(), usedforsecurity=False).digest()


def schemas(names: Names = "code") -> tuple[pa.Schema, pa.Schema]:
    """The schemas of ``column_stats`` and ``bloom_filters``."""
    rfc = names == "rfc"
    flag = pa.field("valid" if rfc else "isDeleted", pa.bool_(), nullable=False)
    stats = pa.struct(
        [
            pa.field("fileName", pa.string()),
            pa.field("columnName", pa.string()),
            pa.field("rangeLow" if rfc else "minValue", _VALUE),
            pa.field("rangeHigh" if rfc else "maxValue", _VALUE),
            pa.field("valueCount", pa.int64()),
            pa.field("nullCount", pa.int64()),
            pa.field("totalSize", pa.int64()),
            pa.field("totalUncompressedSize", pa.int64()),
            flag,
        ]
    )
    bloom = pa.struct(
        [
            pa.field("version" if rfc else "type", pa.string(), nullable=False),
            pa.field("timestamp", pa.string(), nullable=False),
            pa.field("bloomFilter", pa.binary(), nullable=False),
            flag,
        ]
    )
    head = [
        pa.field("key", pa.string(), nullable=False),
        pa.field("type", pa.int32(), nullable=False),
    ]
    return (
        pa.schema([*head, pa.field("ColumnStatsMetadata", stats)]),
        pa.schema([*head, pa.field("BloomFilterMetadata", bloom)]),
    )
