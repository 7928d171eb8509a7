"""Encode the schema of a file as a FileMetaData without row groups.

pyarrow interprets it, and page maps store it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pyarrow as pa

from zonebloom.parquet.file_layout import PARQUET_MAGIC, FileSchema
from zonebloom.parquet.thrift import (
    BINARY,
    I32,
    I64,
    LIST,
    STRUCT,
    encode_binary,
    encode_integer,
    encode_list,
    encode_struct,
)


def encode_head(schema: FileSchema, elements: Sequence[bytes] | None = None) -> bytes:
    """Return a FileMetaData with this schema, or with other elements, and no row groups."""
    fields = [
        (1, I32, encode_integer(schema.version)),
        (2, LIST, encode_list(STRUCT, schema.elements if elements is None else elements)),
        (3, I64, encode_integer(0)),
        (4, LIST, encode_list(STRUCT, [])),
    ]
    if schema.arrow_schema is not None:
        entry = [
            (1, BINARY, encode_binary(b"ARROW:schema")),
            (2, BINARY, encode_binary(schema.arrow_schema)),
        ]
        fields.append((5, LIST, encode_list(STRUCT, [encode_struct(entry)])))
    if schema.created_by is not None:
        fields.append((6, BINARY, encode_binary(schema.created_by)))
    return encode_struct(fields)


def file_of_metadata(metadata: bytes) -> pa.BufferReader:
    """Return a file that has only a FileMetaData, for pyarrow to read."""
    tail = struct.pack("<I", len(metadata)) + PARQUET_MAGIC
    return pa.BufferReader(PARQUET_MAGIC + metadata + tail)
