"""Which hashes answer for a literal in the filters of a column."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import xxhash

from zonebloom.base.arrays import distinct_numbers
from zonebloom.sbbf.hashing import hashed_type
from zonebloom.values.literal import Literal, Unanswerable, integers_in_range, stored_bytes
from zonebloom.values.types import family, hash_domain, is_comparable

_NO_HASHES = np.empty(0, dtype=np.uint64)
# From here on hashing in bulk is worth the loading of Numba.
_MANY = 64
# In order, filters are read from one end on; of more keys than this each mostly holds one of the
# first, and sorting all would take longer.
_SORTED = 1 << 16


@dataclass(frozen=True, slots=True)
class Probe:
    """Hashes of which a zone's filter must hold one, or why every zone may match."""

    hashes: np.ndarray
    unusable_reason: str | None = None


def hash_bytes(data: bytes) -> int:
    """XXH64 with seed 0, without loading Numba."""
    return xxhash.xxh64_intdigest(data)


def probe(column: pa.DataType, value: pa.Scalar) -> Probe:
    """Find the hashes under which rows equal to a literal were inserted."""
    try:
        forms = byte_forms(column, value)
    except Unanswerable as reason:
        return Probe(_NO_HASHES, str(reason))
    return Probe(np.array([hash_bytes(form) for form in forms], dtype=np.uint64))


def byte_forms(column: pa.DataType, value: pa.Scalar) -> list[bytes]:
    """The bytes that rows equal to a literal hold.

    Raises
    ------
    Unanswerable
        Rows that hold other bytes may equal it.
    """
    if value.type == column and value.is_valid:
        # Nothing to convert, and most keys are such.
        if pa.types.is_integer(column):
            signed = pa.types.is_signed_integer(column)
            return [value.as_py().to_bytes(column.byte_width, "little", signed=signed)]
        if pa.types.is_string(column):
            return [value.as_buffer().to_pybytes()]
    literal = Literal.from_scalar(value)
    if literal is None or family(column) == "boolean" or not is_comparable(column, value.type):
        raise Unanswerable(
            f"a {value.type} literal against a {column} column is not compared exactly"
        )
    return stored_bytes(literal, column)


def probe_many(column: pa.DataType, values: pa.Array) -> Probe:
    """Find the hashes for any of several literals, none null; own bytes are hashed in bulk."""
    column = hashed_type(column)
    if len(values) > _MANY:
        if family(column) == family(values.type) == "integer":
            values = integers_in_range(values, column)
        if hash_domain(values.type) == hash_domain(column) and family(column) != "float":
            from zonebloom.sbbf.hashing import hash_array

            hashes = hash_array(values).of_valid_rows()
            return Probe(np.concatenate([distinct_numbers(hashes[:_SORTED]), hashes[_SORTED:]]))
    probes = [probe(column, value) for value in values]
    maybe = next(
        (each.unusable_reason for each in probes if each.unusable_reason is not None), None
    )
    if maybe is not None:
        return Probe(_NO_HASHES, maybe)
    return Probe(distinct_numbers(np.concatenate([_NO_HASHES, *(each.hashes for each in probes)])))
