"""Assign codes to rows and keys such that equal ones share a code, over one column or several."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zonebloom.base.arrays import allocate_array, from_numpy, to_numpy
from zonebloom.base.threads import num_cores
from zonebloom.scan.key_values import LARGE_TYPES

# Strings with 32-bit offsets cannot be larger.
_MOST_BYTES = 1 << 31
_NO_ROWS = np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class NumberedKeys:
    """Integer or time keys, int64, with a hash table that finds the first position of each."""

    keys: np.ndarray
    table: np.ndarray
    positions: np.ndarray

    def found(self, stored: pa.ChunkedArray) -> np.ndarray:
        """Return the position of the key that equals each value, or -1."""
        with ThreadPoolExecutor(num_cores()) as pool:
            return np.concatenate([_NO_ROWS, *pool.map(self._found, stored.chunks)])

    def _found(self, values: pa.Array) -> np.ndarray:
        from zonebloom.scan.number_kernels import find_keys

        positions = allocate_array(len(values), np.int64)
        find_keys(_integers(values), self.keys, self.table, positions)
        if values.null_count:
            positions[to_numpy(values.is_null())] = -1
        return positions


def numbered_keys(keys: pa.Array) -> pa.Array | NumberedKeys:
    if not (pa.types.is_integer(keys.type) or pa.types.is_temporal(keys.type)):
        return keys
    from zonebloom.scan.number_kernels import number_keys

    numbers = _integers(keys)
    table = np.zeros(2 << numbers.size.bit_length(), dtype=np.int64)
    positions = allocate_array(numbers.size, np.int64)
    number_keys(numbers, table, positions)
    return NumberedKeys(numbers, table, positions)


def shared_codes(
    stored: Sequence[pa.ChunkedArray], keys: Sequence[pa.Array | NumberedKeys]
) -> tuple[np.ndarray, np.ndarray]:
    """Return codes of rows and of keys, which are equal if all columns are.

    A row that holds no key has the code -1.
    """
    pairs = map(_encoded, stored, keys)
    codes, of_keys = next(pairs)
    for others, of_others in pairs:
        size = int(max(others.max(initial=0), of_others.max(initial=0))) + 1
        both = np.where((codes < 0) | (others < 0), -1, codes * size + others)
        of_both = np.where((of_keys < 0) | (of_others < 0), -2, of_keys * size + of_others)
        rows = pa.chunked_array([from_numpy(both)])
        codes, of_keys = _encoded(rows, numbered_keys(from_numpy(of_both)))
    return codes, of_keys


def _encoded(
    stored: pa.ChunkedArray, keys: pa.Array | NumberedKeys
) -> tuple[np.ndarray, np.ndarray]:
    if isinstance(keys, NumberedKeys):
        return keys.found(stored), keys.positions
    if stored.nbytes >= _MOST_BYTES and stored.type in LARGE_TYPES:
        large = LARGE_TYPES[stored.type]
        return _encoded(stored.cast(large), keys.cast(large))
    # A chunked array would get one dictionary per chunk, so concatenate the chunks.
    count = len(stored)
    if len(keys) < 2 * count:
        # Encode rows and keys in one pass.
        encoded = pa.concat_arrays([*stored.chunks, keys]).dictionary_encode()
        codes = _numbers(encoded.indices)
        rows, of_keys = codes[:count], codes[count:]
    else:
        encoded = pa.concat_arrays([*stored.chunks, keys.slice(0, 0)]).dictionary_encode()
        values = pc.SetLookupOptions(encoded.dictionary)
        rows = _numbers(encoded.indices)
        of_keys = _numbers(pc.call_function("index_in", [keys], values))
    is_key = np.zeros(len(encoded.dictionary) + 1, dtype=bool)
    is_key[of_keys] = True
    # The last item is reached by number -1, which nulls and keys without rows have.
    is_key[-1] = False
    return np.where(is_key[rows], rows, -1), of_keys


def _integers(values: pa.Array) -> np.ndarray:
    """Return integers or times as int64, with 0 for null."""
    kind = f"{'u' if pa.types.is_unsigned_integer(values.type) else ''}int{values.type.bit_width}"
    return to_numpy(values.view(kind).fill_null(0)).astype(np.int64, copy=False)


def _numbers(values: Any) -> np.ndarray:
    """Return numbers as int64, with -1 for null."""
    return to_numpy(values.fill_null(-1) if values.null_count else values).astype(np.int64)
