"""Look up many keys in an index at once: pair each key with the zones that may hold it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zonebloom.base.user_values import to_arrow
from zonebloom.errors import InvalidArgument
from zonebloom.index.matching import IndexView
from zonebloom.values.normal_types import hashed_type
from zonebloom.values.probe import hash_keys
from zonebloom.values.types import hash_domain, is_comparable, time_zone_mismatch_message

# A batch of the zones of zeros has about so many rows.
_MAX_BATCH_PAIRS = 1 << 16
CANDIDATE_SCHEMA = pa.schema(
    [
        pa.field("key_index", pa.int64(), nullable=False),
        pa.field("fragment_id", pa.uint64(), nullable=False),
        pa.field("zone", pa.uint32()),
    ]
)


def checked_keys(values: Any, column: str, column_type: pa.DataType) -> pa.Array:
    """Return keys as an Arrow array that can be compared with a column, without rounding any.

    Raise `InvalidArgument` if no value of the column can equal a key of this type.
    """
    keys = to_arrow(values, "keys", column)
    if keys.type == column_type:
        return keys
    if isinstance(column_type, pa.UuidType) and hash_domain(keys.type) == "string":
        return _parse_uuids(keys)
    for key in keys[:1]:
        mismatch = time_zone_mismatch_message(f"keys of {column!r}", column_type, key)
        if mismatch is not None:
            raise InvalidArgument(mismatch)
    if not pa.types.is_null(keys.type) and not is_comparable(column_type, keys.type):
        raise InvalidArgument(
            f"keys are {keys.type}, column {column!r} is {column_type}; "
            f"{_key_type_advice(column_type, keys.type)}"
        )
    return keys


def _parse_uuids(keys: pa.Array) -> pa.Array:
    try:
        uuids = [None if key is None else uuid.UUID(key).bytes for key in keys.to_pylist()]
    except ValueError:
        raise InvalidArgument(
            "keys hold text that is no UUID; write '00000000-0000-0000-0000-000000000000'"
        ) from None
    return pa.array(uuids, pa.binary(16))


def _key_type_advice(column_type: pa.DataType, key_type: pa.DataType) -> str:
    if is_comparable(pa.binary(), column_type) and is_comparable(pa.string(), key_type):
        return "give bytes, and for the text of a UUID uuid.UUID(text)"
    if is_comparable(pa.string(), column_type):
        return "give text"
    return f"give values of type {column_type}"


def search_many(
    view: IndexView, column: pa.DataType, keys: pa.Array, uncovered: np.ndarray
) -> Iterator[pa.RecordBatch]:
    """Yield pairs of a key and a zone that may hold it, each pair once, in bounded memory.

    ``keys`` come from `checked_keys`. Every key may be in the fragments with the ids ``uncovered``.
    """
    zone_rows = np.uint64(view.index.entry.number_of_items)
    is_null = pc.call_function("is_null", [keys])
    for fragment_id in uncovered.tolist():
        yield _candidate_batch(np.flatnonzero(~np.asarray(is_null)), fragment_id)
    bulk = hash_keys(hashed_type(column), keys)
    for fragment_id in sorted(view.fragment_ids) if bulk.anywhere.size else ():
        yield _candidate_batch(bulk.anywhere, fragment_id)
    for positions, fragment_ids, starts in view.pairs(bulk.hashes):
        yield _candidate_batch(bulk.positions[positions], fragment_ids, starts // zone_rows)
    if not bulk.zeros.size:
        return
    fragment_ids, starts = view.zones(bulk.zero_hashes)
    step = max(1, _MAX_BATCH_PAIRS // max(starts.size, 1))
    for first in range(0, bulk.zeros.size, step):
        zeros = bulk.zeros[first : first + step]
        yield _candidate_batch(
            np.repeat(zeros, starts.size),
            np.tile(fragment_ids, zeros.size),
            np.tile(starts // zone_rows, zeros.size),
        )


def _candidate_batch(
    key_numbers: np.ndarray, fragments: np.ndarray | int, zones: np.ndarray | None = None
) -> pa.RecordBatch:
    fragment_ids = np.full(key_numbers.size, fragments, dtype=np.uint64)
    no_zones = pa.nulls(key_numbers.size, pa.uint32())
    columns = [
        pa.array(key_numbers, pa.int64()),
        pa.array(fragment_ids),
        no_zones if zones is None else pa.array(zones, pa.uint32()),
    ]
    return pa.record_batch(columns, schema=CANDIDATE_SCHEMA)
