"""Which bytes a Parquet writer hashed into a column's Bloom filters for a value.

Writers hash the value as Parquet stores it, in PLAIN encoding without a length: an int8 as the 4
bytes of an INT32. Literals are probed as the Arrow type with the same bytes, a leaf's *stored*
type; a leaf without a certain one is not asked.
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
from zonebloom.sbbf.hashing import hashed_type
from zonebloom.values.literal import Literal, to_stored
from zonebloom.values.probe import hash_bytes, probe, probe_many
from zonebloom.values.types import is_lossless_cast

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_UNITS = {"milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}
# Bytes of a value; a FIXED_LEN_BYTE_ARRAY has its own, a BYTE_ARRAY any number. INT96 has no
# order, so no bounds.
_WIDTHS = {"INT32": 4, "INT64": 8, "FLOAT": 4, "DOUBLE": 8, "INT96": -1, "BYTE_ARRAY": 0}
# Fields of Statistics, parquet.thrift.
_MAX_VALUE, _MIN_VALUE, _IS_MAX_EXACT, _IS_MIN_EXACT = 5, 6, 7, 8
_UTC = "UTC"


@dataclass(frozen=True, slots=True)
class PhysicalLeaf:
    number: int  # of its column chunks in each row group
    path: tuple[str, ...]
    # What the file's values are read as; None when it is not certain what was hashed.
    arrow_type: pa.DataType | None
    # Whose bytes are those hashed (for decimals in a FIXED_LEN_BYTE_ARRAY: whose value is the one
    # hashed, big-endian); None as above.
    stored_type: pa.DataType | None
    physical_type: str
    length: int  # bytes of a FIXED_LEN_BYTE_ARRAY

    def hashes(self, wanted: pa.DataType, values: pa.Scalar | pa.Array) -> np.ndarray | None:
        """Hashes under which values were inserted; None when every row may be equal to one."""
        if self.arrow_type is None or self.stored_type is None:
            return None
        # Values may change on their way from the file's type to the dataset's.
        if not is_lossless_cast(self.arrow_type, wanted):
            return None
        probes = probe if isinstance(values, pa.Scalar) else probe_many
        # A literal must be exact both as what the dataset shows and as what the file stores.
        shown = probes(wanted, values)  # pyright: ignore[reportArgumentType]
        if shown.unusable_reason is not None or not shown.hashes.size:
            return None if shown.unusable_reason is not None else shown.hashes
        found = probes(self.stored_type, values)  # pyright: ignore[reportArgumentType]
        if found.unusable_reason is not None:
            return None
        if pa.types.is_decimal(self.stored_type) and self.physical_type == "FIXED_LEN_BYTE_ARRAY":
            values = [values] if isinstance(values, pa.Scalar) else values
            return self._decimal_hashes(values, self.stored_type)
        return found.hashes

    def _decimal_hashes(self, values: Any, stored: pa.DataType) -> np.ndarray | None:
        hashes = set()
        for value in values:
            literal = Literal.from_scalar(value)
            found = None if literal is None else to_stored(literal, stored)
            if found is not None and found.is_exact:
                try:
                    hashes.add(hash_bytes(found.value.to_bytes(self.length, "big", signed=True)))
                except OverflowError:
                    return None
        return np.array(sorted(hashes), dtype=np.uint64)


def physical_leaves(metadata: pq.FileMetaData) -> list[PhysicalLeaf]:
    """The leaf columns in the order of their chunks; under a list or map values have no row of
    their own, so such a leaf has no stored type."""
    schema = metadata.schema
    arrow_leaves = list(_walk(schema.to_arrow_schema()))
    if len(arrow_leaves) != len(schema):
        raise ValueError("the leaves of its Arrow schema are not those of its Parquet schema")
    made = []
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
        made.append(
            PhysicalLeaf(number, path, arrow_type, stored, column.physical_type, column.length)
        )
    return made


def _walk(
    fields: Any, parents: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], pa.DataType | None]]:
    """Path and Arrow type of each leaf; no type for one inside a list or map."""
    for field in fields:
        path, kind = (*parents, field.name), hashed_type(field.type)
        if pa.types.is_struct(kind):
            yield from _walk(_children(kind), path)
        elif pa.types.is_nested(kind):
            yield from ((below, None) for below, _ in _walk(_children(kind), path))
        else:
            yield path, field.type


def _children(kind: pa.DataType) -> list[pa.Field]:
    if pa.types.is_map(kind):
        return [kind.key_field, kind.item_field]
    return [kind.field(i) for i in range(kind.num_fields)]


def _stored_type(column: Any, arrow_type: pa.DataType) -> pa.DataType | None:
    """The type whose bytes a writer hashes for a leaf, None if that is not certain."""
    stored = _annotated_type(column)
    if stored is None or is_lossless_cast(stored, arrow_type):
        return stored
    t = pa.types
    if t.is_integer(stored) and t.is_integer(arrow_type):
        same_sign = t.is_signed_integer(stored) == t.is_signed_integer(arrow_type)
        return stored if same_sign else None
    # Parquet has no durations: the integers are stored, the type is in the Arrow schema.
    return arrow_type if stored == pa.int64() and t.is_duration(arrow_type) else None


def _annotated_type(column: Any) -> pa.DataType | None:
    """The type that Parquet's own annotations give, its integers as wide as they are stored."""
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
    # INT96, decimals of any length (padded or not: writers differ), BSON, JSON, geometry, ...
    return None


def bound_hashes(statistics: Struct | None, leaf: PhysicalLeaf) -> list[int]:
    """Hashes of values a chunk surely holds by its statistics, which its filter must hold too: byte
    strings may be cut, zeros may have lost their sign."""
    width = _WIDTHS.get(leaf.physical_type, leaf.length)
    floating = leaf.physical_type in ("FLOAT", "DOUBLE") or leaf.stored_type == pa.float16()
    hashes = []
    for bound, exact in ((_MAX_VALUE, _IS_MAX_EXACT), (_MIN_VALUE, _IS_MIN_EXACT)):
        value = None if statistics is None else statistics.get(bound)
        certain = statistics is not None and statistics.get(exact, bool(width)) is True
        if not certain or not isinstance(value, bytes) or width not in (0, len(value)):
            continue
        if not floating or not _is_zero_or_nan(value):
            hashes.append(hash_bytes(value))
    return hashes


def _is_zero_or_nan(value: bytes) -> bool:
    (number,) = struct.unpack({2: "<e", 4: "<f", 8: "<d"}[len(value)], value)
    return not number or math.isnan(number)
