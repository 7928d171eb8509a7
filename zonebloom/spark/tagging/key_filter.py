"""Which rows may equal one of many keys: a Bloom filter of the keys, asked for every row.

Where keys are as dense as zones, no zone can be passed over, but most rows can: rows stream past
one filter of all keys, which fits the processor's cache, and few are left to be joined. Only
PyArrow here, no Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from zonebloom.sbbf.hashing import hash_array
from zonebloom.sbbf.sizing import size_for
from zonebloom.values.types import hash_domain

# A row in five hundred is joined in vain: far fewer than are found where keys are dense.
_PROBABILITY = 0.002
# It is sent to every task; with more keys than it was meant for, more rows are joined in vain.
_MOST_BYTES = 1 << 26
_MIX = np.uint64(0x9E3779B97F4A7C15)


def filter_words(num_keys: int) -> int:
    """Size of a filter for so many keys, 32-bit words."""
    most_keys = _MOST_BYTES * 8 // 16
    num_bytes = size_for(min(max(num_keys, 1), most_keys), _PROBABILITY, "exact")
    return min(num_bytes, _MOST_BYTES) // 4


@dataclass(frozen=True, slots=True)
class Hashed:
    """Hashes of rows of key columns.

    Attributes
    ----------
    hashes : uint64 array, shape (n,)
    valid : bool array, shape (n,), or None when all are
        False where a column is null: that row equals nothing.
    """

    hashes: np.ndarray
    valid: np.ndarray | None

    def present(self) -> np.ndarray:
        """The hashes of rows without a null."""
        return self.hashes if self.valid is None else self.hashes[self.valid]


def hash_rows(columns: Sequence[pa.Array], types: Sequence[pa.DataType]) -> Hashed:
    """Hash rows so that rows Spark calls equal have one hash."""
    hashes: np.ndarray | None = None
    valid: np.ndarray | None = None
    for column, wanted in zip(columns, types, strict=True):
        found = hash_array(_comparable(column, wanted))
        if found.null_count:
            present = found.is_valid()
            valid = present if valid is None else valid & present
        # Odd multipliers keep all bits; the order of the columns counts.
        hashes = found.values if hashes is None else hashes * _MIX + found.values
    assert hashes is not None
    return Hashed(hashes, valid)


def check_rows(words: np.ndarray, hashed: Hashed) -> np.ndarray:
    """Numbers of the rows a filter may hold, ascending."""
    from zonebloom.sbbf import blocks

    hit = np.empty(hashed.hashes.size, dtype=bool)
    blocks.check(words, np.ascontiguousarray(hashed.hashes), hit)
    if hashed.valid is not None:
        hit &= hashed.valid
    return np.flatnonzero(hit)


def insert_rows(words: np.ndarray, hashed: Hashed) -> None:
    """Add the rows without a null to a filter."""
    from zonebloom.sbbf import blocks

    blocks.insert(words, np.ascontiguousarray(hashed.present()))


def _comparable(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    while isinstance(column, pa.ExtensionArray):
        column = column.storage
    if pt.is_boolean(wanted):
        return column.cast(pa.int8())
    if hash_domain(column.type) != hash_domain(wanted):
        column = column.cast(wanted)
    if pt.is_floating(wanted):
        return _one_zero_one_nan(column)
    return column


def _one_zero_one_nan(column: pa.Array) -> pa.Array:
    """Spark has -0.0 = 0.0 and NaN = NaN, of whatever bits."""
    functions = pc
    values = np.asarray(column.to_numpy(zero_copy_only=False))
    odd = (values == 0) | np.isnan(values)
    if not odd.any():
        return column
    values = values.copy()
    values[values == 0] = 0.0
    values[np.isnan(values)] = np.nan
    mask = np.asarray(functions.is_null(column))  # pyright: ignore[reportAttributeAccessIssue]
    return pa.array(values, column.type, mask=mask)
