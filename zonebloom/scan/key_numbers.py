"""Number the keys that rows hold, by a hash table of the keys that is built only once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from zonebloom.base.arrays import allocate_array, from_numpy, to_numpy
from zonebloom.base.threads import map_slices
from zonebloom.parquet.key_tests import index_values, texts_of, words_of

_WORD_BITS = (8, 16, 32, 64)
# Fewer values are numbered in less time than threads are started.
_MIN_THREADED_VALUES = 1 << 16


class KeyNumbers:
    """Finds for each value the number of the key that it equals.

    The number of a key is its position, or the first one if there are equal keys. Values are
    compared by their bytes, so keys and values are those of `key_values.normalized_values`.

    Parameters
    ----------
    keys : pyarrow.Array
        Keys without nulls and NaN.

    Attributes
    ----------
    num_distinct : int
    """

    def __init__(self, keys: pa.Array):
        from zonebloom.parquet import key_kernels as kernels

        self._are_words = _are_words(keys.type)
        self._number_words = kernels.key_numbers
        self._number_texts = kernels.text_key_numbers
        stored = (words_of(keys),) if self._are_words else texts_of(keys)
        self._index, self.num_distinct = index_values(stored, len(keys))
        self._keys = keys

    def of_keys(self) -> np.ndarray:
        """Return the number of each key, int64."""
        if self.num_distinct == len(self._keys):
            return np.arange(len(self._keys))
        return self.of_values(self._keys).astype(np.int64)

    def of_values(self, values: pa.Array | pa.ChunkedArray) -> np.ndarray:
        """Return the number of the key that each value equals, int32.

        It is -1 for null, and -2 for a value that equals no key.
        """
        numbers = allocate_array(len(values), np.int32)
        stop = 0
        for chunk in values.chunks if isinstance(values, pa.ChunkedArray) else [values]:
            start, stop = stop, stop + len(chunk)
            part = numbers[start:stop]
            if self._are_words:
                self._number_words(words_of(chunk), *self._index, part)
            else:
                data, starts = texts_of(chunk)
                self._number_texts(data.ctypes.data, starts, *self._index, part)
            if chunk.null_count:
                part[to_numpy(chunk.is_null())] = -1
        return numbers

    def of_values_on_threads(self, values: pa.Array | pa.ChunkedArray) -> np.ndarray:
        """Return what `of_values` returns, computed on all cores if there are many values."""
        if len(values) < _MIN_THREADED_VALUES:
            return self.of_values(values)
        return np.concatenate(
            map_slices(
                len(values),
                lambda part: self.of_values(values.slice(part.start, part.stop - part.start)),
            )
        )


class RowNumbers:
    """Finds for each row the number of the key that it holds, in one column or several.

    Parameters
    ----------
    keys : sequence of pyarrow.Array
        The keys' values in each column, as `KeyNumbers` takes them.

    Attributes
    ----------
    key_numbers : int64 array
        The number of each key. Equal keys have the same number.
    """

    def __init__(self, keys: Sequence[pa.Array]):
        self._first, *others = map(KeyNumbers, keys)
        # For each further column, its numbers, how many there are, and those of the columns so far.
        self._others: list[tuple[KeyNumbers, int, KeyNumbers]] = []
        numbers = self._first.of_keys()
        for column in others:
            column_numbers = column.of_keys()
            size = int(column_numbers.max(initial=0)) + 1
            pairs = KeyNumbers(from_numpy(numbers * size + column_numbers))
            self._others.append((column, size, pairs))
            numbers = pairs.of_keys()
        self.key_numbers = numbers

    def of_rows(self, columns: Sequence[pa.Array | pa.ChunkedArray]) -> np.ndarray:
        """Return the number of the key that each row holds, int32; negative if it holds none."""
        numbers = self._first.of_values(columns[0])
        for values, (column, size, pairs) in zip(columns[1:], self._others, strict=True):
            column_numbers = column.of_values(values)
            is_held = (numbers >= 0) & (column_numbers >= 0)
            both = np.where(is_held, numbers.astype(np.int64) * size + column_numbers, -1)
            numbers = pairs.of_values(from_numpy(both))
        return numbers


def _are_words(kind: pa.DataType) -> bool:
    """Return whether values of a type are compared as numbers of at most 8 bytes."""
    if pt.is_null(kind):
        return True
    return pt.is_primitive(kind) and not pt.is_interval(kind) and kind.bit_width in _WORD_BITS
