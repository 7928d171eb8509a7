"""Compute digests of rows that do not depend on their order, to compare rows before and after.

The number of a row is the sum of a hash for each of its columns, and the digest of some rows is the
sum of the hashes of their numbers. So the number of a row that has columns of two tables is the sum
of two numbers, and digests of several files can be added, too. Sums wrap around at 64 bits.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
import xxhash

from zonebloom.base.arrays import to_numpy
from zonebloom.index.row_keys.elements import hash_of_hashes
from zonebloom.sbbf.hashing import hash_array
from zonebloom.scan.recheck import gather
from zonebloom.values.normal_types import hashed_values


def row_numbers(table: pa.Table) -> np.ndarray:
    """Return the number of each row, uint64. A null counts as nothing, like an absent column."""
    numbers = np.zeros(table.num_rows, dtype=np.uint64)
    for name, column in zip(table.column_names, table.columns, strict=True):
        start = 0
        for chunk in column.chunks:
            numbers[start : start + len(chunk)] += _named_hashes(chunk, name)
            start += len(chunk)
    return numbers


def digest_of_rows(numbers: np.ndarray) -> np.uint64:
    """Return the digest of the rows that have some numbers."""
    return hash_of_hashes([numbers]).sum(dtype=np.uint64)


def digest_after_change(
    rows: pa.Table,
    places: np.ndarray,
    replacements: np.ndarray,
    updated_columns: Collection[str],
    new_numbers: np.ndarray,
) -> np.uint64:
    """Return the digest that rows of a file should have after a change.

    The row at a place gets the updated columns of its replacement, whose number is one of
    ``new_numbers``. It is left out if its replacement is -1.
    """
    numbers = row_numbers(rows)
    is_replaced = replacements >= 0
    replaced = places[is_replaced]
    if replaced.size:
        kept_columns = [name for name in rows.column_names if name not in updated_columns]
        kept_numbers = row_numbers(gather(rows.select(kept_columns), replaced))
        numbers[replaced] = kept_numbers + new_numbers[replacements[is_replaced]]
    return digest_of_rows(np.delete(numbers, places[~is_replaced]))


def _named_hashes(values: Any, name: str) -> np.ndarray:
    """Return a hash of each value of a column or field of a name. That of a null is 0."""
    values = hashed_values(values)
    if pt.is_null(values.type):
        return np.zeros(len(values), dtype=np.uint64)
    names = np.full(len(values), xxhash.xxh64_intdigest(name.encode()), dtype=np.uint64)
    hashes = hash_of_hashes([names, _hashes(values)])
    return np.where(to_numpy(values.is_valid()), hashes, np.uint64(0))


def _hashes(values: Any) -> np.ndarray:
    """Return a hash of each value. That of a null has no meaning."""
    if pt.is_struct(values.type):
        names = [field.name for field in values.type]
        return sum(map(_named_hashes, values.flatten(), names), np.zeros(len(values), np.uint64))
    if pt.is_map(values.type):
        entry = pa.struct({"key": values.type.key_type, "value": values.type.item_type})
        values = values.cast(pa.list_(entry))
    if pt.is_nested(values.type):
        return _hashes_of_lists(values)
    return hash_array(values.cast(pa.uint8()) if pt.is_boolean(values.type) else values).values


def _hashes_of_lists(lists: Any) -> np.ndarray:
    """Return a hash of each list, which depends on the order of its elements."""
    elements = _named_hashes(pc.call_function("list_flatten", [lists]), "element")
    parents = to_numpy(pc.call_function("list_parent_indices", [lists]))
    positions = np.arange(parents.size) - np.searchsorted(parents, parents)
    lengths = pc.call_function("list_value_length", [lists]).fill_null(0)
    hashes = to_numpy(lengths).astype(np.uint64)
    np.add.at(hashes, parents, hash_of_hashes([elements, positions.astype(np.uint64)]))
    return hashes
