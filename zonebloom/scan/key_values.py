"""Convert keys and stored values to types in which they can be compared exactly."""

from __future__ import annotations

import math
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zonebloom.base.arrays import array_of, from_numpy, to_numpy
from zonebloom.predicates.ast import ColumnPath
from zonebloom.values.literal import Literal, Unanswerable, to_stored
from zonebloom.values.normal_types import (
    NORMALIZED_IDS,
    hashed_values,
    normalized_type,
    widened_type,
    with_64_bit_offsets,
)
from zonebloom.values.types import integer_bounds

_FLOAT_IDS = {pa.float16().id, pa.float32().id, pa.float64().id}


def cast_keys_exactly(keys: pa.Array, stored_type: pa.DataType) -> tuple[pa.Array, np.ndarray]:
    """Return the keys that can be stored exactly as a type, cast to it, and their positions."""
    if keys.null_count:
        positions = np.flatnonzero(to_numpy(keys.is_valid()))
        keys = keys.drop_null()
    else:
        positions = np.arange(len(keys))
    if keys.type != stored_type and with_64_bit_offsets(keys.type) == stored_type:
        keys = keys.cast(stored_type)
    if keys.type == stored_type and keys.type.id not in _FLOAT_IDS:
        return keys, positions
    if keys.type == stored_type:
        numbers = np.flatnonzero(~np.isnan(to_numpy(keys)))
        return keys.take(from_numpy(numbers)), positions[numbers]
    if pa.types.is_integer(keys.type) and pa.types.is_integer(stored_type):
        integers = to_numpy(keys)
        # Compare integers of the same sign, because NumPy turns mixed ones into floats.
        min_value, max_value = np.iinfo(integers.dtype).min, np.iinfo(integers.dtype).max
        low, high = integer_bounds(stored_type)
        is_within = (integers >= max(low, min_value)) & (integers <= min(high, max_value))
        return from_numpy(integers[is_within]).cast(stored_type), positions[is_within]
    values = [_stored_value(key, stored_type) for key in keys]
    is_value = np.array([value is not None for value in values], dtype=bool)
    array = _array_of_stored([value for value in values if value is not None], stored_type)
    return array, positions[is_value]


def has_unfitting_keys(keys: pa.Array, positions: np.ndarray) -> bool:
    """Return whether `cast_keys_exactly` left out a key other than null and NaN.

    ``positions`` are those that it returned.
    """
    num_absent = keys.null_count
    if positions.size + num_absent < len(keys) and pa.types.is_floating(keys.type):
        num_absent += int(np.isnan(to_numpy(keys.drop_null())).sum())
    return positions.size + num_absent < len(keys)


def _stored_value(key: pa.Scalar, stored_type: pa.DataType) -> Any:
    """Return a key as a type stores it. Return None for NaN, or if no value of the type equals it.

    For example, a decimal is stored as its unscaled integer.
    """
    literal = Literal.from_scalar(key)
    if literal is None:
        return None
    value = literal.value
    if literal.bits or isinstance(value, float):
        is_finite = math.isfinite(value)
        if not is_finite and (math.isnan(value) or not pa.types.is_floating(stored_type)):
            return None
        # A filter's engine may round floats, but keys are compared exactly.
        literal = replace(literal, value=Fraction(value) if is_finite else value, bits=0)
    try:
        stored = to_stored(literal, stored_type)
    except Unanswerable:
        return None
    if pa.types.is_fixed_size_binary(stored_type) and len(stored.value) != stored_type.byte_width:
        return None
    return stored.value if stored.is_exact else None


def _array_of_stored(values: list[Any], stored_type: pa.DataType) -> pa.Array:
    """Return an array of a type from results of `_stored_value`."""
    if pa.types.is_decimal(stored_type):
        scale = -stored_type.scale
        return pa.array([Decimal(f"{value}E{scale}") for value in values], stored_type)
    if pa.types.is_temporal(stored_type):
        return pa.array(values, f"int{stored_type.bit_width}").view(stored_type)
    return normalized_values(pa.array(values, stored_type))


def normalized_column(table: pa.Table, path: ColumnPath) -> pa.Array | pa.ChunkedArray:
    column: Any = table.column(path[0])
    for name in path[1:]:
        column = pc.struct_field(column, name)  # pyright: ignore[reportAttributeAccessIssue]
    return normalized_values(column)


def normalized_values(values: Any) -> Any:
    """Return values that can be compared: no extensions, dictionaries, views or negative zeros."""
    if isinstance(values, pa.ChunkedArray):
        if values.num_chunks == 1:
            return normalized_values(values.chunk(0))
        return pa.chunked_array(
            [normalized_values(chunk) for chunk in values.chunks], normalized_type(values.type)
        )
    if values.type.id in NORMALIZED_IDS:
        return values
    values = hashed_values(values)
    plain_type = widened_type(values.type)
    if values.type != plain_type:
        values = values.cast(plain_type)
    if values.type.id in _FLOAT_IDS:
        return pc.call_function("add", [values, array_of([0.0], pa.float64())[0].cast(values.type)])
    return values
