"""Build a small Parquet file in memory from some pages of another file, for pyarrow to decode."""

from __future__ import annotations

import base64
import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import pyarrow as pa

from zonebloom.errors import FragmentUnreadable
from zonebloom.parquet.file_layout import ColumnChunk, FileSchema
from zonebloom.parquet.footer import PARQUET_MAGIC
from zonebloom.parquet.page_headers import Bytes
from zonebloom.parquet.thrift import (
    BINARY,
    I32,
    I64,
    LIST,
    STOP,
    STRUCT,
    ThriftReader,
    encode_binary,
    encode_integer,
    encode_list,
    encode_struct,
)

_TWO_STOPS = bytes([STOP, STOP])


class CopiedChunk(NamedTuple):
    """The pages of one chunk to copy into a synthetic file."""

    chunk: ColumnChunk
    path: tuple[str, ...]
    dictionary: Bytes  # the dictionary page, empty if no copied page needs it
    pages: Sequence[Bytes]  # data pages, one after another
    num_values: int  # values of those pages, with nulls and repeated values


def synthetic_file(
    schema: FileSchema, fields: tuple[int, ...], chunks: Sequence[CopiedChunk], num_rows: int
) -> pa.Buffer:
    """Return a file with one row group of ``num_rows`` rows. All chunks must have the same rows."""
    parts: list[Bytes] = [PARQUET_MAGIC]
    start = len(PARQUET_MAGIC)
    encoded_chunks = []
    for copied in chunks:
        size = len(copied.dictionary) + sum(map(len, copied.pages))
        encoded_chunks.append(_encode_column_chunk(copied, size, start))
        parts.append(copied.dictionary)
        parts += copied.pages
        start += size
    group = encode_struct(
        [
            (1, LIST, encode_list(STRUCT, encoded_chunks)),
            (2, I64, encode_integer(start - len(PARQUET_MAGIC))),
            (3, I64, encode_integer(num_rows)),
        ]
    )
    footer = file_metadata(*_constant_metadata_ends(schema, fields), num_rows, [group])
    parts += (footer, struct.pack("<I", len(footer)), PARQUET_MAGIC)
    return pa.py_buffer(b"".join(parts))


def _encode_column_chunk(copied: CopiedChunk, size: int, start: int) -> bytes:
    chunk = copied.chunk
    # Fields of ColumnMetaData: num_values 5, total_uncompressed_size 6, total_compressed_size 7,
    # data_page_offset 9, dictionary_page_offset 11. Reads of pages ignore field 6.
    encoded_size = encode_integer(size)
    fields = [
        (5, I64, encode_integer(copied.num_values)),
        (6, I64, encoded_size),
        (7, I64, encoded_size),
        (9, I64, encode_integer(start + len(copied.dictionary))),
    ]
    if copied.dictionary:
        fields.append((11, I64, encode_integer(start)))
    head = _constant_head(chunk.physical_type, chunk.encodings, copied.path, chunk.codec)
    return head + encode_struct(fields, after=4) + bytes([STOP])


@lru_cache(maxsize=4096)
def _constant_head(
    physical_type: int, encodings: tuple[int, ...], path: tuple[str, ...], codec: int
) -> bytes:
    """Return a ColumnChunk up to field 4 of its ColumnMetaData, which all reads share."""
    metadata = encode_struct(
        [
            (1, I32, encode_integer(physical_type)),
            (2, LIST, encode_list(I32, map(encode_integer, encodings))),
            (3, LIST, encode_list(BINARY, (encode_binary(name.encode()) for name in path))),
            (4, I32, encode_integer(codec)),
        ]
    )
    encoded = encode_struct([(2, I64, encode_integer(0)), (3, STRUCT, metadata)])
    return encoded[: -len(_TWO_STOPS)]


@lru_cache(maxsize=256)
def _constant_metadata_ends(schema: FileSchema, fields: tuple[int, ...]) -> tuple[bytes, bytes]:
    """Return the `metadata_ends` of all synthetic files with these fields."""
    root = ThriftReader(schema.elements[0]).read_struct()
    elements = [
        encode_struct([(4, BINARY, encode_binary(root[4])), (5, I32, encode_integer(len(fields)))])
    ]
    for field in fields:
        start, stop = schema.fields[field]
        elements += schema.elements[start:stop]
    arrow_schema = schema.arrow_schema
    if arrow_schema is not None:
        arrow_schema = _pruned_arrow_schema(arrow_schema, fields)
    return metadata_ends(schema, elements, arrow_schema)


def metadata_ends(
    schema: FileSchema, elements: Sequence[bytes], arrow_schema: bytes | None
) -> tuple[bytes, bytes]:
    """Return the start of a FileMetaData up to its number of rows, and the end after its groups."""
    head = encode_struct(
        [(1, I32, encode_integer(schema.version)), (2, LIST, encode_list(STRUCT, elements))]
    )
    ends = []
    if arrow_schema is not None:
        entry = [
            (1, BINARY, encode_binary(b"ARROW:schema")),
            (2, BINARY, encode_binary(arrow_schema)),
        ]
        ends.append((5, LIST, encode_list(STRUCT, [encode_struct(entry)])))
    if schema.created_by is not None:
        ends.append((6, BINARY, encode_binary(schema.created_by)))
    return head[:-1], encode_struct(ends, after=4)


def file_metadata(head: bytes, tail: bytes, num_rows: int, row_groups: Sequence[bytes]) -> bytes:
    """Return a FileMetaData with the ends that `metadata_ends` returned."""
    rows = [(3, I64, encode_integer(num_rows)), (4, LIST, encode_list(STRUCT, row_groups))]
    return head + encode_struct(rows, after=2)[:-1] + tail


def _pruned_arrow_schema(encoded: bytes, fields: tuple[int, ...]) -> bytes:
    """Return the Arrow schema that a writer stored, with only some of its fields."""
    try:
        full_schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(encoded)))
        pruned = pa.schema([full_schema.field(field) for field in fields])
        return base64.b64encode(pruned.serialize())
    except (pa.ArrowException, OSError, ValueError, IndexError) as error:
        raise FragmentUnreadable(f"its Arrow schema cannot be read ({error})") from None
