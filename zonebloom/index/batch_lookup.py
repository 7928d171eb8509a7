"""Many keys through an index at once: which zones may hold each of them."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zonebloom import arguments
from zonebloom.errors import InvalidArgument
from zonebloom.index.view import IndexView
from zonebloom.sbbf.hashing import hash_array, value_type
from zonebloom.values.probe import probe
from zonebloom.values.types import hash_domain, is_comparable
from zonebloom.values.zones import zone_refusal

_NO_HASHES = np.empty(0, dtype=np.uint64)
_NO_NUMBERS = np.empty(0, dtype=np.int64)

SCHEMA = pa.schema(
    [
        pa.field("key_index", pa.int64(), nullable=False),
        pa.field("fragment_id", pa.uint64(), nullable=False),
        pa.field("zone", pa.uint32()),
    ]
)


@dataclass(frozen=True, slots=True)
class Keys:
    """What to look for, for each of many keys.

    Attributes
    ----------
    hashes : uint64 array, shape (n,)
        Of keys that have one.
    numbers : int64 array, shape (n,)
        Which key each hash is of.
    several : list of (int, uint64 array)
        Keys that have several: the zeros.
    anywhere : int64 array
        Keys that may be in every zone, such as NaN.
    """

    hashes: np.ndarray
    numbers: np.ndarray
    several: list[tuple[int, np.ndarray]]
    anywhere: np.ndarray


def keys_for(values: Any, column: str, column_type: pa.DataType) -> pa.Array:
    """Keys as an array of values that may equal those of a column, none of them rounded."""
    made = _array(values, column_type)
    keys = made.combine_chunks() if isinstance(made, pa.ChunkedArray) else made
    if isinstance(column_type, pa.UuidType) and hash_domain(keys.type) == "string":
        return _from_text(keys)
    for key in keys[:1]:
        refusal = zone_refusal(f"keys of {column!r}", column_type, key)
        if refusal is not None:
            raise InvalidArgument(refusal)
    if not pa.types.is_null(keys.type) and not is_comparable(column_type, keys.type):
        raise InvalidArgument(
            f"keys are {keys.type}, column {column!r} is {column_type}; "
            f"{_advice(column_type, keys.type)}"
        )
    return keys


def _array(values: Any, column_type: pa.DataType) -> pa.Array | pa.ChunkedArray:
    try:
        return arguments.array(values, "keys")
    except InvalidArgument:
        # Of Python's integers pyarrow makes int64, which does not hold all of such a column's.
        if pa.types.is_uint64(value_type(column_type)) and isinstance(values, Sequence):
            with contextlib.suppress(pa.ArrowException, TypeError, OverflowError):
                whole = [None if key is None else index(key) for key in values]
                return pa.array(whole, pa.uint64())
        raise


def _from_text(keys: pa.Array) -> pa.Array:
    """The bytes of UUIDs given as text."""
    try:
        read = [None if key is None else uuid.UUID(key).bytes for key in keys.to_pylist()]
    except ValueError:
        raise InvalidArgument(
            "keys hold text that is no UUID; write '00000000-0000-0000-0000-000000000000'"
        ) from None
    return pa.array(read, pa.binary(16))


def _advice(column_type: pa.DataType, key_type: pa.DataType) -> str:
    if is_comparable(pa.binary(), column_type) and is_comparable(pa.string(), key_type):
        return "give bytes, and for the text of a UUID uuid.UUID(text)"
    if is_comparable(pa.string(), column_type):
        return "give text"
    return f"give values of type {column_type}"


def hash_keys(column: pa.DataType, keys: pa.Array) -> Keys:
    """Find the hashes of keys as a column holds them; a null equals nothing and has none.

    Keys of the column's own type are hashed in bulk, others one by one.
    """
    column = value_type(column)
    # Arrow has no kernel that filters views.
    if pa.types.is_string_view(keys.type):
        keys = keys.cast(pa.large_string())
    elif pa.types.is_binary_view(keys.type):
        keys = keys.cast(pa.large_binary())
    one_by_one = ~null_keys(keys)
    hashes, numbers = [_NO_HASHES], [_NO_NUMBERS]
    if hash_domain(keys.type) == hash_domain(column):
        bulk = one_by_one
        if pa.types.is_floating(column):
            values = keys.to_numpy(zero_copy_only=False)
            bulk = bulk & ~np.isnan(values) & (values != 0)
        one_by_one = one_by_one & ~bulk
        hashed = hash_array(keys.filter(pa.array(bulk)))
        hashes.append(np.ascontiguousarray(hashed.valid()))
        numbers.append(np.flatnonzero(bulk))
    several: list[tuple[int, np.ndarray]] = []
    anywhere: list[int] = []
    for number in np.flatnonzero(one_by_one).tolist():
        found = probe(column, keys[number])
        if found.maybe is not None:
            anywhere.append(number)
        elif found.hashes.size == 1:
            hashes.append(found.hashes)
            numbers.append(np.array([number]))
        elif found.hashes.size:
            several.append((number, found.hashes))
    return Keys(
        np.concatenate(hashes),
        np.concatenate(numbers),
        several,
        np.array(anywhere, dtype=np.int64),
    )


def search_many(
    view: IndexView, keys: Keys, present: np.ndarray, uncovered: np.ndarray
) -> Iterator[pa.RecordBatch]:
    """Pair keys with the zones that may hold them, in bounded memory.

    Of `SCHEMA`, each pair once; a zone of null is a whole fragment, of which nothing is known.
    """
    items = view.index.entry.parameters.number_of_items
    for fragment_id in uncovered.tolist():
        yield _batch(present, np.full(present.size, fragment_id, dtype=np.uint64), None)
    for fragment_id in sorted(view.fragment_ids) if keys.anywhere.size else ():
        ids = np.full(keys.anywhere.size, fragment_id, dtype=np.uint64)
        yield _batch(keys.anywhere, ids, None)
    for at, fragment_ids, starts in view.pairs(keys.hashes):
        yield _batch(keys.numbers[at], fragment_ids, starts // np.uint64(items))
    found: dict[bytes, tuple[np.ndarray, np.ndarray]] = {}
    for number, hashes in keys.several:
        if hashes.tobytes() not in found:
            found[hashes.tobytes()] = view.zones(hashes)
        fragment_ids, starts = found[hashes.tobytes()]
        yield _batch(np.full(starts.size, number), fragment_ids, starts // np.uint64(items))


def null_keys(keys: pa.Array) -> np.ndarray:
    """Which keys are null."""
    functions = pc
    return np.asarray(functions.is_null(keys))  # pyright: ignore[reportAttributeAccessIssue]


def _batch(
    numbers: np.ndarray, fragment_ids: np.ndarray, zones: np.ndarray | None
) -> pa.RecordBatch:
    count = numbers.size
    of_fragment = pa.nulls(count, pa.uint32()) if zones is None else pa.array(zones, pa.uint32())
    columns = [pa.array(numbers, pa.int64()), pa.array(fragment_ids, pa.uint64()), of_fragment]
    return pa.record_batch(columns, schema=SCHEMA)
