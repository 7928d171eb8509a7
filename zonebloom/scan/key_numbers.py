"""Number the keys that rows hold, by a hash table of the keys that is built only once."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from zonebloom.base.arrays import allocate_array, to_numpy
from zonebloom.parquet.key_tests import index_values
from zonebloom.values.normal_types import with_64_bit_offsets

_TEXTS = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())
_WIDTHS = (32, 64)


class KeyNumbers:
    """Finds for each value the number of the key that it equals.

    The number of a key is its position, or the first one if there are equal keys.

    Parameters
    ----------
    keys : pyarrow.Array
        Keys of a type for which `can_number` is true, without nulls.

    Attributes
    ----------
    num_distinct : int
    """

    def __init__(self, keys: pa.Array):
        from zonebloom.parquet import key_table_kernels as kernels

        is_text = keys.type in _TEXTS
        self._number = kernels.text_key_numbers if is_text else kernels.key_numbers
        stored = _texts(keys) if is_text else (_words(keys),)
        self._keys, self.num_distinct = index_values(stored, len(keys))

    def numbers_of(self, values: pa.Array | pa.ChunkedArray) -> np.ndarray:
        """Return the number of the key that each value equals: -1 for null, -2 for no key."""
        numbers = allocate_array(len(values), np.int32)
        stop = 0
        for chunk in values.chunks if isinstance(values, pa.ChunkedArray) else [values]:
            start, stop = stop, stop + len(chunk)
            part = numbers[start:stop]
            if chunk.type in _TEXTS:
                data, starts = _texts(chunk)
                self._number(data.ctypes.data, starts, *self._keys, part)
            else:
                self._number(_words(chunk), *self._keys, part)
            if chunk.null_count:
                part[to_numpy(chunk.is_null())] = -1
        return numbers


def can_number(kind: pa.DataType) -> bool:
    """Return whether `KeyNumbers` compares values of a type: those that are equal as bytes."""
    is_number = pt.is_integer(kind) or (pt.is_temporal(kind) and not pt.is_interval(kind))
    return kind in _TEXTS or (is_number and kind.bit_width in _WIDTHS)


def _words(values: pa.Array) -> np.ndarray:
    dtype = np.dtype(f"u{values.type.bit_width // 8}")
    data = values.buffers()[1]
    if not len(values) or data is None:
        return np.empty(0, dtype=np.uint64)
    words = np.frombuffer(data, dtype, len(values), values.offset * dtype.itemsize)
    return words.astype(np.uint64, copy=False)


def _texts(values: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return the bytes of texts and their offsets, int64. Nulls have any bytes."""
    is_large = values.type == with_64_bit_offsets(values.type)
    _, offsets, data = values.buffers()
    dtype = np.dtype(np.int64 if is_large else np.int32)
    starts = np.zeros(1, dtype=np.int64)
    if len(values) and offsets is not None:
        starts = np.frombuffer(offsets, dtype, len(values) + 1, values.offset * dtype.itemsize)
    return np.frombuffer(data or b"", dtype=np.uint8), starts.astype(np.int64, copy=False)
