"""Assign codes to rows and keys such that equal ones share a code, over one column or several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zonebloom.base.arrays import allocate_array, from_numpy, to_numpy
from zonebloom.base.threads import num_cores, thread_pool
from zonebloom.values.normal_types import with_64_bit_offsets

# Strings with 32-bit offsets cannot be larger.
_MAX_STRING_BYTES = 1 << 31
_NO_ROWS = np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class NumberedKeys:
    """Integer or time keys, int64, with a hash table that finds the first position of each.

    ``seed`` is that of the table.
    """

    keys: np.ndarray
    table: np.ndarray
    seed: np.uint64
    positions: np.ndarray

    def find_positions(self, stored: pa.ChunkedArray) -> np.ndarray:
        """Return the position of the key that equals each value, or -1."""
        with thread_pool(num_cores()) as pool:
            return np.concatenate([_NO_ROWS, *pool.map(self._find_in_chunk, stored.chunks)])

    def _find_in_chunk(self, values: pa.Array) -> np.ndarray:
        from zonebloom.scan.number_kernels import find_keys

        positions = allocate_array(len(values), np.int64)
        find_keys(_as_int64(values), self.keys, self.table, self.seed, positions)
        if values.null_count:
            positions[to_numpy(values.is_null())] = -1
        return positions


def numbered_keys(keys: pa.Array) -> pa.Array | NumberedKeys:
    if not (pa.types.is_integer(keys.type) or pa.types.is_temporal(keys.type)):
        return keys
    from zonebloom.sbbf.table_slots import TABLE_SEED
    from zonebloom.scan.number_kernels import number_keys

    numbers = _as_int64(keys)
    table = np.zeros(2 << numbers.size.bit_length(), dtype=np.int64)
    positions = allocate_array(numbers.size, np.int64)
    number_keys(numbers, table, TABLE_SEED, positions)
    return NumberedKeys(numbers, table, TABLE_SEED, positions)


def shared_codes(
    stored: Sequence[pa.ChunkedArray], keys: Sequence[pa.Array | NumberedKeys]
) -> tuple[np.ndarray, np.ndarray]:
    """Return a code for each row and for each key. Equal codes mean equal values in all columns.

    A row that holds no key has the code -1. A key that no row holds has -1 or a code of no row.
    """
    pairs = map(_encode, stored, keys)
    codes, key_codes = next(pairs)
    for other_codes, other_key_codes in pairs:
        size = int(max(other_codes.max(initial=0), other_key_codes.max(initial=0))) + 1
        row_pairs = np.where((codes < 0) | (other_codes < 0), -1, codes * size + other_codes)
        key_pairs = np.where(
            (key_codes < 0) | (other_key_codes < 0), -2, key_codes * size + other_key_codes
        )
        rows = pa.chunked_array([from_numpy(row_pairs)])
        codes, key_codes = _encode(rows, numbered_keys(from_numpy(key_pairs)))
    return codes, key_codes


def _encode(
    stored: pa.ChunkedArray, keys: pa.Array | NumberedKeys
) -> tuple[np.ndarray, np.ndarray]:
    if isinstance(keys, NumberedKeys):
        return keys.find_positions(stored), keys.positions
    large = with_64_bit_offsets(stored.type)
    if stored.nbytes >= _MAX_STRING_BYTES and stored.type != large:
        return _encode(stored.cast(large), keys.cast(large))
    # A chunked array would get one dictionary per chunk, so concatenate the chunks.
    count = len(stored)
    if len(keys) < 2 * count:
        # Encode rows and keys in one pass.
        encoded = pa.concat_arrays([*stored.chunks, keys]).dictionary_encode()
        codes = _with_minus_one(encoded.indices)
        row_codes, key_codes = codes[:count], codes[count:]
    else:
        encoded = pa.concat_arrays([*stored.chunks, keys.slice(0, 0)]).dictionary_encode()
        values = pc.SetLookupOptions(encoded.dictionary)
        row_codes = _with_minus_one(encoded.indices)
        key_codes = _with_minus_one(pc.call_function("index_in", [keys], values))
    is_key = np.zeros(len(encoded.dictionary) + 1, dtype=bool)
    is_key[key_codes] = True
    # Nulls and keys without rows have the code -1, which is the index of the last item.
    is_key[-1] = False
    return np.where(is_key[row_codes], row_codes, -1), key_codes


def _as_int64(values: pa.Array) -> np.ndarray:
    """Return integers or times as int64, with 0 for null."""
    kind = f"{'u' if pa.types.is_unsigned_integer(values.type) else ''}int{values.type.bit_width}"
    return to_numpy(values.view(kind).fill_null(0)).astype(np.int64, copy=False)


def _with_minus_one(values: Any) -> np.ndarray:
    """Return numbers as int64, with -1 for null."""
    return to_numpy(values.fill_null(-1) if values.null_count else values).astype(np.int64)
