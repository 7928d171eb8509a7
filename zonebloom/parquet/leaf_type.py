"""The leaves that kernels can decode, and the Arrow arrays that their values become.

Source: Encodings.md (PLAIN) and LogicalTypes.md of the Parquet format.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from zonebloom.parquet.file_head import encode_head, file_of_metadata
from zonebloom.parquet.file_layout import ColumnChunk, FileSchema, PageLocations, SchemaLeaf
from zonebloom.predicates.ast import ColumnPath
from zonebloom.values.normal_types import hashed_type, without_views

if TYPE_CHECKING:
    import pyarrow.parquet as pq

BOOLEAN, INT32, INT64, INT96, FLOAT, DOUBLE, BYTE_ARRAY, FIXED_LEN_BYTE_ARRAY = range(8)
_PHYSICAL_TYPES = (
    "BOOLEAN",
    "INT32",
    "INT64",
    "INT96",
    "FLOAT",
    "DOUBLE",
    "BYTE_ARRAY",
    "FIXED_LEN_BYTE_ARRAY",
)
_WIDTHS = {BOOLEAN: 1, INT32: 4, INT64: 8, INT96: 12, FLOAT: 4, DOUBLE: 8}
_NUMBER_WIDTHS = (4, 8)
_TEXTS = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())
_LARGE_TEXTS = (pa.large_string(), pa.large_binary())
# The supported codecs of parquet.thrift, by pyarrow's names. Brotli is left to pyarrow: a page
# would have to be decompressed twice to prove that it fills its buffer.
SNAPPY, GZIP, ZSTD, LZ4 = 1, 2, 6, 7
CODECS = {0: "uncompressed", SNAPPY: "snappy", GZIP: "gzip", ZSTD: "zstd", LZ4: "lz4_raw"}
MAX_INT32 = (1 << 31) - 1
# An INT96 is the nanoseconds of a day and the number of the day. 1970-01-01 has this number.
_JULIAN_EPOCH, _NANOSECONDS_PER_DAY = np.uint64(2_440_588), np.uint64(86_400 * 10**9)


class Undecodable(Exception):
    """Raised for a page or a column that the kernels cannot decode, so pyarrow decodes it."""


@dataclass(frozen=True, slots=True)
class LeafType:
    """The form of a leaf.

    Attributes
    ----------
    arrow_type : pyarrow.DataType
        The type as which pyarrow reads the leaf. It is not hashed, because extension types that
        are defined in Python have no hash.
    physical_type : int
    width : int
        The bytes of a value, 0 for strings.
    max_level : int
        The definition level of a value that is not null, 0 if the leaf cannot be null.
    max_repetition : int
        The greatest repetition level, 0 for a top-level column, or one in structs.
    decoded_type : pyarrow.DataType
        The type of the arrays that kernels decode: ``arrow_type`` without views.
    has_arrow_bytes : bool
        Whether the leaf stores the bytes that Arrow has for the same value.
    """

    arrow_type: pa.DataType = field(hash=False)
    physical_type: int
    width: int
    max_level: int
    max_repetition: int = 0
    decoded_type: pa.DataType = field(init=False, hash=False, compare=False)
    has_arrow_bytes: bool = field(init=False, hash=False, compare=False)

    @property
    def has_numbers(self) -> bool:
        """True if values are compared as numbers of 4 or 8 bytes."""
        return self.width in _NUMBER_WIDTHS and self.physical_type != FIXED_LEN_BYTE_ARRAY

    def __post_init__(self) -> None:
        decoded_type = without_views(self.arrow_type)
        kind = hashed_type(decoded_type)
        # Writers are free in the upper bytes of a value of 8 or 16 bits.
        is_narrow = self.physical_type == INT32 and kind.bit_width < 32
        has_other_bytes = self.physical_type in (BOOLEAN, INT96) or pa.types.is_decimal(kind)
        object.__setattr__(self, "decoded_type", decoded_type)
        object.__setattr__(self, "has_arrow_bytes", not (is_narrow or has_other_bytes))


class LeafChunk(NamedTuple):
    """A column chunk of a leaf, and its page locations."""

    leaf: LeafType
    chunk: ColumnChunk
    pages: PageLocations


class SchemaTypes(NamedTuple):
    """The schema of a file as pyarrow interprets it.

    ``arrow`` is the schema that pyarrow reads. ``stored`` ignores the Arrow schema that a writer
    may have stored in the file.
    """

    parquet: pq.ParquetSchema
    arrow: pa.Schema
    stored: pa.Schema


def leaf_type(
    column: pq.ColumnSchema, arrow_type: pa.DataType, stored: pa.DataType
) -> LeafType | None:
    """Return how kernels decode a leaf, or None if pyarrow has to decode it.

    ``stored`` is the type of the leaf in the schema `SchemaTypes.stored`.
    """
    physical_type = _PHYSICAL_TYPES.index(column.physical_type)
    width = (
        column.length if physical_type == FIXED_LEN_BYTE_ARRAY else _WIDTHS.get(physical_type, 0)
    )
    if not _is_decodable(without_views(arrow_type), stored, physical_type, width):
        return None
    levels = column.max_definition_level, column.max_repetition_level
    return LeafType(arrow_type, physical_type, width, *levels)


def _flat_leaf_type(leaf: SchemaLeaf, number: int, types: SchemaTypes) -> LeafType | None:
    """Return how kernels decode a leaf that is not repeated, or None if they do not."""
    column = types.parquet.column(number)
    arrow_type = _type_at(types.arrow, leaf.field, leaf.path)
    stored = _type_at(types.stored, leaf.field, leaf.path)
    if column.max_repetition_level or arrow_type is None or stored is None:
        return None
    return leaf_type(column, arrow_type, stored)


def _type_at(schema: pa.Schema, field: int, path: ColumnPath) -> pa.DataType | None:
    """Return the type at the end of a path through structs, or None if there is no such path."""
    kind = schema.field(field).type
    for name in path[1:]:
        indices = kind.get_all_field_indices(name) if pa.types.is_struct(kind) else []
        if len(indices) != 1:
            return None
        kind = kind.field(indices[0]).type
    return kind


@lru_cache(maxsize=256)
def schema_types(schema: FileSchema) -> SchemaTypes | None:
    """Return the schema of a file as pyarrow interprets it, or None if it cannot."""
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(file_of_metadata(encode_head(schema)))
        # pyarrow builds a new schema of all columns at each of these calls.
        parquet_schema, arrow_schema = file.schema, file.schema_arrow
        if len(parquet_schema) != len(schema.leaves):
            # A damaged footer may be understood in two ways.
            return None
        return SchemaTypes(parquet_schema, arrow_schema, parquet_schema.to_arrow_schema())
    except (pa.ArrowException, OSError, ValueError):
        # PyArrow raises an error with the reason when it reads the file.
        return None


@lru_cache(maxsize=256)
def leaf_types(schema: FileSchema) -> list[LeafType | None]:
    """Return how kernels decode each leaf of a file, with None for leaves that pyarrow decodes."""
    types = schema_types(schema)
    if types is None:
        return [None] * len(schema.leaves)
    return [_flat_leaf_type(leaf, number, types) for number, leaf in enumerate(schema.leaves)]


def leaf_at(path: ColumnPath, file: FileSchema, schema: pa.Schema) -> tuple[int, LeafType] | None:
    """Return the number and type of the leaf at a path, or None if kernels cannot decode it.

    ``schema`` is the schema of the dataset, whose type the leaf must have.
    """
    number, field = file.leaves_by_path.get(path), schema.get_field_index(path[0])
    leaf = None if number is None else leaf_types(file)[number]
    if number is None or leaf is None or field < 0:
        return None
    return (number, leaf) if leaf.arrow_type == _type_at(schema, field, path) else None


def _is_decodable(
    arrow_type: pa.DataType, stored: pa.DataType, physical_type: int, width: int
) -> bool:
    if physical_type == INT96:
        return arrow_type == stored == pa.timestamp("ns")
    if pa.types.is_timestamp(arrow_type) and pa.types.is_timestamp(stored):
        return physical_type == INT64 and arrow_type.unit == stored.unit
    if physical_type == BYTE_ARRAY:
        return arrow_type in _TEXTS
    if physical_type == FIXED_LEN_BYTE_ARRAY and not width:
        # A width of 0 would mean strings.
        return False
    if pa.types.is_decimal(arrow_type) and pa.types.is_decimal(stored):
        is_same = (arrow_type.precision, arrow_type.scale) == (stored.precision, stored.scale)
        return is_same and width <= arrow_type.bit_width // 8
    if arrow_type != stored or pa.types.is_null(arrow_type):
        return False
    if physical_type == BOOLEAN:
        return pa.types.is_boolean(arrow_type)
    if pa.types.is_nested(arrow_type) or pa.types.is_boolean(arrow_type):
        return False
    bits = arrow_type.bit_width
    return bits == 8 * width or (physical_type == INT32 and bits < 32)


def describe_column(leaf: LeafType, codec: int) -> list[int]:
    """Return how kernels get a column. See `header_kernels.MAX_LEVEL`."""
    is_boolean = int(leaf.physical_type == BOOLEAN)
    return [leaf.max_level, codec, leaf.width, leaf.max_repetition, is_boolean]


def fixed_width_array(leaf: LeafType, data: np.ndarray, valid: np.ndarray | None) -> pa.Array:
    """Return an array of values of a fixed width, null where ``valid`` is zero."""
    kind = leaf.decoded_type
    if leaf.has_arrow_bytes:
        if valid is None and kind is leaf.arrow_type:
            buffers = [None, pa.py_buffer(data)]
            return pa.Array.from_buffers(kind, data.size // leaf.width, buffers)
        return _array(leaf, data.size // leaf.width, valid, [pa.py_buffer(data)])
    values = data.reshape(-1, leaf.width)
    if pa.types.is_decimal(kind):
        if leaf.physical_type == FIXED_LEN_BYTE_ARRAY:
            # Decimals of this type are the only big-endian values of Parquet.
            values = values[:, ::-1]
        data = np.empty((len(values), kind.bit_width // 8), dtype=np.uint8)
        data[:, : leaf.width] = values
        data[:, leaf.width :] = (values[:, -1:].view(np.int8) >> 7).view(np.uint8)
    elif leaf.physical_type == BOOLEAN:
        data = np.packbits(values.reshape(-1), bitorder="little")
    elif leaf.physical_type == INT32 and kind.bit_width < 32:
        data = np.ascontiguousarray(values[:, : kind.bit_width // 8])
    elif leaf.physical_type == INT96:
        low, high, days = values.view("<u4").T.astype(np.uint64)
        # Values of more than 64 bits wrap around, as in pyarrow.
        data = low + (high << np.uint64(32)) + (days - _JULIAN_EPOCH) * _NANOSECONDS_PER_DAY
    return _array(leaf, len(values), valid, [pa.py_buffer(data)])


def text_array(
    leaf: LeafType, offsets: np.ndarray, data: np.ndarray, valid: np.ndarray | None
) -> pa.Array:
    """Return an array of strings, null where ``valid`` is zero."""
    if leaf.decoded_type in _LARGE_TEXTS:
        offsets = offsets.astype(np.int64)
    buffers = [pa.py_buffer(offsets), pa.py_buffer(data)]
    return _array(leaf, offsets.size - 1, valid, buffers)


def _array(
    leaf: LeafType, size: int, valid: np.ndarray | None, values: list[pa.Buffer]
) -> pa.Array:
    bitmap = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    array = pa.Array.from_buffers(leaf.decoded_type, size, [bitmap, *values])
    return array if leaf.decoded_type == leaf.arrow_type else array.cast(leaf.arrow_type)
