"""Compute the hashes under which the filters of a column hold a literal."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import xxhash

from zonebloom.base.arrays import distinct_numbers
from zonebloom.values.literal import Literal, Unanswerable, integers_in_range, stored_bytes
from zonebloom.values.normal_types import hashed_type
from zonebloom.values.types import family, hash_domain, is_comparable

_NO_HASHES = np.empty(0, dtype=np.uint64)
_IS_SIGNED_BY_ID = {
    **{type_.id: True for type_ in (pa.int8(), pa.int16(), pa.int32(), pa.int64())},
    **{type_.id: False for type_ in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())},
}
_STRING_ID = pa.string().id
# For more values than this, hashing in bulk is worth the time that Numba takes to load.
_MAX_HASHED_SINGLY = 64
# Sorted hashes make a lookup read the blocks of a filter in order. Only so many are sorted: most
# filters hold one of so many keys, so the rest is rarely looked up, and sorting all takes longer.
_MAX_SORTED_HASHES = 1 << 16


@dataclass(frozen=True, slots=True)
class Probe:
    """The hashes for a literal or a set of literals.

    Only zones whose filter holds one of ``hashes`` may match, unless ``unusable_reason`` says why
    every zone may match.
    """

    hashes: np.ndarray
    unusable_reason: str | None = None


def hash_bytes(data: bytes) -> int:
    """Return the XXH64 hash with seed 0. This does not load Numba."""
    return xxhash.xxh64_intdigest(data)


def probe(column: pa.DataType, value: pa.Scalar) -> Probe:
    """Return the hashes of rows that are equal to a literal."""
    try:
        forms = byte_forms(column, value)
    except Unanswerable as error:
        return Probe(_NO_HASHES, str(error))
    return Probe(np.array([hash_bytes(form) for form in forms], dtype=np.uint64))


def byte_forms(column: pa.DataType, value: pa.Scalar) -> list[bytes]:
    """Return the bytes of rows that are equal to a literal.

    Raises
    ------
    Unanswerable
        If rows with other bytes may be equal to it.
    """
    if value.type == column and value.is_valid:
        # Most keys have the type of the column, so they need no conversion.
        if column.id in _IS_SIGNED_BY_ID:
            signed = _IS_SIGNED_BY_ID[column.id]
            return [value.as_py().to_bytes(column.byte_width, "little", signed=signed)]
        if column.id == _STRING_ID:
            return [value.as_buffer().to_pybytes()]
    literal = Literal.from_scalar(value)
    if literal is None or family(column) == "boolean" or not is_comparable(column, value.type):
        raise Unanswerable(
            f"a {value.type} literal against a {column} column is not compared exactly"
        )
    return stored_bytes(literal, column)


def probe_many(column: pa.DataType, values: pa.Array) -> Probe:
    """Return the hashes of rows that are equal to any of several literals, none of them null.

    Many literals are hashed in bulk, if they are hashed as the column is.
    """
    column = hashed_type(column)
    if len(values) > _MAX_HASHED_SINGLY:
        if family(column) == family(values.type) == "integer":
            values = integers_in_range(values, column)
        if hash_domain(values.type) == hash_domain(column) and family(column) != "float":
            from zonebloom.sbbf.hashing import hash_array

            hashes = hash_array(values).of_valid_rows()
            first_hashes = distinct_numbers(hashes[:_MAX_SORTED_HASHES])
            return Probe(np.concatenate([first_hashes, hashes[_MAX_SORTED_HASHES:]]))
    all_hashes = [_NO_HASHES]
    for value in values:
        value_probe = probe(column, value)
        if value_probe.unusable_reason is not None:
            return Probe(_NO_HASHES, value_probe.unusable_reason)
        all_hashes.append(value_probe.hashes)
    return Probe(distinct_numbers(np.concatenate(all_hashes)))
