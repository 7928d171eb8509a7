"""Compute the hashes under which Parquet writers insert values into embedded Bloom filters.

Writers hash a value as Parquet stores it, in PLAIN encoding without a length. An int8 has the 4
bytes of an INT32, for example. Literals are converted to the *stored type* of a leaf, the Arrow
type with the same bytes. The filters of a leaf are not used if its stored type is uncertain.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from zonebloom.parquet.thrift import Struct
from zonebloom.values.literal import Literal, to_stored
from zonebloom.values.normal_types import hashed_type
from zonebloom.values.probe import hash_bytes, probe, probe_many
from zonebloom.values.types import is_lossless_cast

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_UNITS = {"milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}
# The bytes of a value: 0 for any number, -1 for INT96, which has no order and thus no bounds. Each
# FIXED_LEN_BYTE_ARRAY column has its own width.
_WIDTHS = {"INT32": 4, "INT64": 8, "FLOAT": 4, "DOUBLE": 8, "INT96": -1, "BYTE_ARRAY": 0}
# Field numbers of Statistics in parquet.thrift.
_MAX_VALUE, _MIN_VALUE, _IS_MAX_EXACT, _IS_MIN_EXACT = 5, 6, 7, 8
_UTC = "UTC"


@dataclass(frozen=True, slots=True)
class PhysicalLeaf:
    """A leaf column of a file, and how its writer hashed the values."""

    number: int  # the number of its column chunk in each row group
    path: tuple[str, ...]
    # The type as which pyarrow reads the values, or None if the hashed bytes are uncertain.
    arrow_type: pa.DataType | None
    # The type whose bytes are hashed, or None if they are uncertain. Decimals in a
    # FIXED_LEN_BYTE_ARRAY are hashed big-endian.
    stored_type: pa.DataType | None
    physical_type: str
    length: int  # bytes of a FIXED_LEN_BYTE_ARRAY

    def hashes(self, dataset_type: pa.DataType, values: pa.Scalar | pa.Array) -> np.ndarray | None:
        """Return the hashes under which values were inserted, or None if any row may match."""
        if self.arrow_type is None or self.stored_type is None:
            return None
        # Other casts from the file's type to the dataset's may change values.
        if not is_lossless_cast(self.arrow_type, dataset_type):
            return None
        probes = probe if isinstance(values, pa.Scalar) else probe_many
        # A literal must be exact in the type of the dataset and in the stored type.
        dataset_probe = probes(dataset_type, values)  # pyright: ignore[reportArgumentType]
        if dataset_probe.unusable_reason is not None:
            return None
        if not dataset_probe.hashes.size:
            return dataset_probe.hashes
        stored_probe = probes(self.stored_type, values)  # pyright: ignore[reportArgumentType]
        if stored_probe.unusable_reason is not None:
            return None
        if pa.types.is_decimal(self.stored_type) and self.physical_type == "FIXED_LEN_BYTE_ARRAY":
            values = [values] if isinstance(values, pa.Scalar) else values
            return self._decimal_hashes(values, self.stored_type)
        return stored_probe.hashes

    def _decimal_hashes(self, values: Any, stored: pa.DataType) -> np.ndarray | None:
        hashes = set()
        for value in values:
            literal = Literal.from_scalar(value)
            converted = None if literal is None else to_stored(literal, stored)
            if converted is not None and converted.is_exact:
                try:
                    encoded = converted.value.to_bytes(self.length, "big", signed=True)
                    hashes.add(hash_bytes(encoded))
                except OverflowError:
                    return None
        return np.array(sorted(hashes), dtype=np.uint64)


def physical_leaves(metadata: pq.FileMetaData) -> list[PhysicalLeaf]:
    """Return the leaf columns in the order of their chunks.

    Leaves inside lists and maps have no stored type, because their values are not those of rows.
    """
    schema = metadata.schema
    arrow_leaves = list(_walk(schema.to_arrow_schema()))
    if len(arrow_leaves) != len(schema):
        raise ValueError("the leaves of its Arrow schema are not those of its Parquet schema")
    leaves = []
    for number, (path, arrow_type) in enumerate(arrow_leaves):
        column: Any = schema.column(number)
        stored = None
        if arrow_type is None or column.max_repetition_level:
            path, arrow_type = tuple(column.path.split(".")), None
        else:
            if column.path != ".".join(path):
                raise ValueError(f"column {column.path!r} is {'.'.join(path)!r} in Arrow")
            arrow_type = hashed_type(arrow_type)
            stored = _stored_type(column, arrow_type)
        leaves.append(
            PhysicalLeaf(number, path, arrow_type, stored, column.physical_type, column.length)
        )
    return leaves


def _walk(
    fields: Any, parents: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], pa.DataType | None]]:
    """Yield the path and Arrow type of each leaf, with type None inside lists and maps."""
    for field in fields:
        path, kind = (*parents, field.name), hashed_type(field.type)
        if pa.types.is_struct(kind):
            yield from _walk(_children(kind), path)
        elif pa.types.is_nested(kind):
            yield from ((leaf_path, None) for leaf_path, _ in _walk(_children(kind), path))
        else:
            yield path, field.type


def _children(kind: pa.DataType) -> list[pa.Field]:
    if pa.types.is_map(kind):
        return [kind.key_field, kind.item_field]
    return [kind.field(i) for i in range(kind.num_fields)]


def _stored_type(column: Any, arrow_type: pa.DataType) -> pa.DataType | None:
    """Return the type whose bytes a writer hashes for a leaf, or None if that is uncertain."""
    stored = _annotated_type(column)
    if stored is None or is_lossless_cast(stored, arrow_type):
        return stored
    t = pa.types
    if t.is_integer(stored) and t.is_integer(arrow_type):
        same_sign = t.is_signed_integer(stored) == t.is_signed_integer(arrow_type)
        return stored if same_sign else None
    # Parquet has no durations. They are stored as integers, and only the Arrow schema has the type.
    return arrow_type if stored == pa.int64() and t.is_duration(arrow_type) else None


def _annotated_type(column: Any) -> pa.DataType | None:
    """Return the type by Parquet's annotations, with integers as wide as they are stored."""
    logical = json.loads(column.logical_type.to_json())
    kind, physical = logical["Type"], column.physical_type
    match physical, kind:
        case "INT32", "None":
            return pa.int32()
        case "INT64", "None":
            return pa.int64()
        case "INT32" | "INT64", "Int":
            bits = 32 if physical == "INT32" else 64
            return getattr(pa, f"{'' if logical['isSigned'] else 'u'}int{bits}")()
        case "FLOAT", "None":
            return pa.float32()
        case "DOUBLE", "None":
            return pa.float64()
        case "FIXED_LEN_BYTE_ARRAY", "Float16" if column.length == 2:
            return pa.float16()
        case "INT32", "Date":
            return pa.date32()
        case "INT32", "Time" if logical["timeUnit"] == "milliseconds":
            return pa.time32("ms")
        case "INT64", "Time" if logical["timeUnit"] in ("microseconds", "nanoseconds"):
            return pa.time64(_UNITS[logical["timeUnit"]])
        case "INT64", "Timestamp" if logical["timeUnit"] in _UNITS:
            return pa.timestamp(
                _UNITS[logical["timeUnit"]], _UTC if logical["isAdjustedToUTC"] else None
            )
        case "INT32", "Decimal" if 0 < column.precision <= 9:
            return pa.decimal32(column.precision, column.scale)
        case "INT64", "Decimal" if 0 < column.precision <= 18:
            return pa.decimal64(column.precision, column.scale)
        case "FIXED_LEN_BYTE_ARRAY", "Decimal" if 0 < column.precision <= 76:
            return pa.decimal256(column.precision, column.scale)
        case "FIXED_LEN_BYTE_ARRAY", "None" | "UUID" if column.length > 0:
            return pa.binary(column.length)
        case "BYTE_ARRAY", "String":
            return pa.string()
        case "BYTE_ARRAY", "None":
            return pa.binary()
    # The rest is INT96, BSON, JSON, geometry and more. It includes decimals in BYTE_ARRAY: some
    # writers pad them with leading bytes, so equal numbers may have different hashes.
    return None


def bound_hashes(statistics: Struct | None, leaf: PhysicalLeaf) -> list[int]:
    """Return the hashes of the bounds in a chunk's statistics, which its filter must hold.

    Leave out bounds that may not be values of the chunk: truncated strings, and zeros, whose sign
    may be lost.
    """
    if statistics is None:
        return []
    width = _WIDTHS.get(leaf.physical_type, leaf.length)
    is_float = leaf.physical_type in ("FLOAT", "DOUBLE") or leaf.stored_type == pa.float16()
    hashes = []
    for bound, exact in ((_MAX_VALUE, _IS_MAX_EXACT), (_MIN_VALUE, _IS_MIN_EXACT)):
        value = statistics.get(bound)
        is_exact = statistics.get(exact, bool(width)) is True
        if not is_exact or not isinstance(value, bytes) or width not in (0, len(value)):
            continue
        if not is_float or not _is_zero_or_nan(value):
            hashes.append(hash_bytes(value))
    return hashes


def _is_zero_or_nan(value: bytes) -> bool:
    (number,) = struct.unpack({2: "<e", 4: "<f", 8: "<d"}[len(value)], value)
    return not number or math.isnan(number)
