"""Compute the hashes under which the filters of a column hold a literal."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from zonebloom.base.arrays import distinct_numbers, from_numpy, to_numpy
from zonebloom.values.literal import Literal, Unanswerable, integers_in_range, stored_bytes
from zonebloom.values.normal_types import hashed_type
from zonebloom.values.types import family, hash_domain, is_comparable

_NO_HASHES = np.empty(0, dtype=np.uint64)
_NO_POSITIONS = np.empty(0, dtype=np.int64)
_IS_SIGNED_BY_ID = {
    **{type_.id: True for type_ in (pa.int8(), pa.int16(), pa.int32(), pa.int64())},
    **{type_.id: False for type_ in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())},
}
_STRING_ID = pa.string().id
# For more values than this, hashing in bulk is worth the time that Numba takes to load.
_MAX_HASHED_SINGLY = 64
# Sorted hashes make a lookup read the blocks of a filter in order. Only so many are sorted: most
# filters hold one of so many keys, so the rest is rarely looked up, and sorting all takes longer.
_MAX_SORTED_HASHES = 1 << 14


@dataclass(frozen=True, slots=True)
class Probe:
    """The hashes for a literal or a set of literals.

    Only zones whose filter holds one of ``hashes`` may match, unless ``unusable_reason`` says why
    every zone may match.
    """

    hashes: np.ndarray
    unusable_reason: str | None = None
    # Which hash is of which literal, if they were hashed in bulk.
    keys: BulkProbe | None = None


def hash_bytes(data: bytes) -> int:
    """Return the XXH64 hash with seed 0. This does not load Numba."""
    return xxhash.xxh64_intdigest(data)


def probe(column: pa.DataType, value: pa.Scalar) -> Probe:
    """Return the hashes of rows that are equal to a literal."""
    try:
        forms = byte_forms(column, value)
    except Unanswerable as error:
        return Probe(_NO_HASHES, str(error))
    return Probe(np.array(list(map(xxhash.xxh64_intdigest, forms)), dtype=np.uint64))


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
    """Return the hashes of rows that are equal to any of several literals, none of them null."""
    column = hashed_type(column)
    is_bulk = len(values) > _MAX_HASHED_SINGLY
    found = (hash_keys if is_bulk else _hash_singly)(column, values)
    if found.anywhere.size:
        return probe(column, values[int(found.anywhere[0])])
    hashes = found.of_keys_and_zeros()
    first_hashes = distinct_numbers(hashes[:_MAX_SORTED_HASHES])
    hashes = np.concatenate([first_hashes, hashes[_MAX_SORTED_HASHES:]])
    return Probe(hashes, keys=found if is_bulk else None)


@dataclass(frozen=True, slots=True)
class BulkProbe:
    """The hashes of many keys, computed in bulk. Keys are named by their position, int64.

    Attributes
    ----------
    hashes : uint64 array
    positions : int64 array
        The key of each hash, ascending. A key has at most one hash here. It has none if no value of
        the column can equal it, if it is a floating point zero, or if it may be anywhere.
    zeros : int64 array
        Keys that are floating point zeros. Each has both ``zero_hashes``.
    zero_hashes : uint64 array
    anywhere : int64 array
        Keys that every zone may hold: NaN, and floats that an engine would round.
    """

    hashes: np.ndarray
    positions: np.ndarray
    zeros: np.ndarray
    zero_hashes: np.ndarray
    anywhere: np.ndarray

    def of_keys_and_zeros(self) -> np.ndarray:
        """Return all hashes. Those of zeros come last, once for all zeros."""
        return np.concatenate([self.hashes, self.zero_hashes]) if self.zeros.size else self.hashes

    def with_hash_among(self, hashes: np.ndarray) -> np.ndarray:
        """Return the positions of keys with a hash among sorted ones, or that may be anywhere."""
        is_among = hashes_among(self.of_keys_and_zeros(), hashes)
        count = self.positions.size
        found = [self.positions[is_among[:count]], self.anywhere]
        if is_among[count:].any():
            found.append(self.zeros)
        return np.sort(np.concatenate(found))


def hash_keys(column: pa.DataType, keys: pa.Array) -> BulkProbe:
    """Return the hashes of many keys. A null equals no row, so it has no hash."""
    column, kind = hashed_type(column), family(hashed_type(keys.type))
    if kind == "float" == family(column):
        return _hash_floats(column, keys)
    positions = None
    if kind == "integer" == family(column) and hash_domain(keys.type) != hash_domain(column):
        keys, positions = integers_in_range(keys, column)
    if hash_domain(keys.type) != hash_domain(column):
        return _hash_singly(column, keys)
    from zonebloom.sbbf.hashing import hash_array

    key_hashes = hash_array(keys)
    hashes = key_hashes.of_valid_rows()
    if positions is None:
        has_null = key_hashes.null_count
        positions = np.flatnonzero(key_hashes.is_valid()) if has_null else np.arange(len(keys))
    return BulkProbe(hashes, positions, _NO_POSITIONS, _NO_HASHES, _NO_POSITIONS)


def _hash_singly(column: pa.DataType, keys: pa.Array) -> BulkProbe:
    """Return the hashes of keys of another type than the column, which are converted one by one."""
    hashes, zero_hashes = [_NO_HASHES], _NO_HASHES
    positions: list[int] = []
    zeros: list[int] = []
    anywhere: list[int] = []
    for number, key in enumerate(keys):
        if not key.is_valid:
            continue
        key_probe = probe(column, key)
        if key_probe.unusable_reason is not None:
            anywhere.append(number)
        elif key_probe.hashes.size == 1:
            hashes.append(key_probe.hashes)
            positions.append(number)
        elif key_probe.hashes.size:
            # Only zeros have two hashes.
            zero_hashes = key_probe.hashes
            zeros.append(number)
    key_numbers = (np.array(numbers, dtype=np.int64) for numbers in (positions, zeros, anywhere))
    with_hash, with_two, everywhere = key_numbers
    return BulkProbe(np.concatenate(hashes), with_hash, with_two, zero_hashes, everywhere)


def hashes_among(hashes: np.ndarray, ordered: np.ndarray) -> np.ndarray:
    """Return which hashes are in a sorted array, bool."""
    if not ordered.size:
        return np.zeros(hashes.size, dtype=bool)
    # A table of the low bits excludes most of the others, if few hashes are among them.
    mask = np.uint64((1 << (8 * ordered.size).bit_length()) - 1)
    has_low_bits = np.zeros(int(mask) + 1, dtype=bool)
    has_low_bits[ordered & mask] = True
    is_among = has_low_bits[hashes & mask]
    candidates = np.flatnonzero(is_among)
    nearest = np.minimum(ordered.searchsorted(hashes[candidates]), ordered.size - 1)
    is_among[candidates] = ordered[nearest] == hashes[candidates]
    return is_among


def _hash_floats(column: pa.DataType, keys: pa.Array) -> BulkProbe:
    from zonebloom.sbbf.hashing import hash_array

    if pa.types.is_dictionary(keys.type):
        keys = keys.dictionary_decode()
    is_valid = to_numpy(pc.call_function("is_valid", [keys]))
    numbers = keys.to_numpy(zero_copy_only=False)
    with np.errstate(over="ignore", invalid="ignore"):
        stored = numbers.astype(f"f{column.byte_width}")
    # NaN differs from itself, and a rounded value from the key.
    is_exact = stored == numbers
    positions = np.flatnonzero(is_valid & is_exact & (stored != 0))
    zeros = np.flatnonzero(is_valid & (stored == 0) & is_exact)
    both_zeros = np.array([0.0, -0.0], dtype=stored.dtype)
    return BulkProbe(
        hash_array(from_numpy(stored[positions])).values,
        positions,
        zeros,
        hash_array(from_numpy(both_zeros)).values if zeros.size else _NO_HASHES,
        np.flatnonzero(is_valid & ~is_exact),
    )
