"""Keys in the form in which a leaf stores them, and the search for them among stored values.

The kernels are imported late, because they load Numba.
"""

from __future__ import annotations

from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa

from zonebloom.base.arrays import allocate_array
from zonebloom.parquet.file_layout import FileSchema
from zonebloom.parquet.leaf_type import LeafType, Undecodable, leaf_at
from zonebloom.predicates.ast import And, Constant, Equals, IsIn, IsNull, Or, Predicate
from zonebloom.values.literal import Unanswerable, byte_forms, integers_in_range
from zonebloom.values.normal_types import with_64_bit_offsets
from zonebloom.values.types import family

# More keys than this are usually in most pages, so caching these would drop everything else.
MAX_FEW_KEYS = 256
# More keys than this are taken from their array as a whole, instead of one by one.
_MAX_SINGLE_KEYS = 64
# More keys that must be converted one by one are not searched.
_MAX_CONVERTED_KEYS = 1 << 14
# More keys than this are searched by a Bloom filter, because a hash table would take longer to fill
# than the other rows to be compared.
_MAX_IN_SET = 1 << 21
# A bitmap of the keys has this many bits for each slot of their hash table, but fewer if it would
# not fit the processor's cache.
_BITMAP_BITS, _MIN_BITMAP_BITS = 64, 8
_CACHED_BITMAP_BITS = 1 << 22
# One value in 500 is decoded and compared needlessly.
_FILTER_PROBABILITY = 0.002
# A filter sized for more keys would be over 128 MiB. More keys share a filter of this size, and
# more values pass it.
_MAX_FILTER_NDV = 1 << 26
# The families of types whose values are whole numbers. Those of one type are equal as bytes.
_WHOLE_NUMBERS = ("integer", "date", "time", "timestamp", "instant", "duration")
_TEXTS = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())
# A single key needs no hash table.
_NO_TABLE = np.zeros(1, dtype=np.int32), np.zeros(1, dtype=np.uint64), np.uint64(0)
_NO_NUMBERS = np.empty(0, dtype=np.uint64)
_NO_TEXTS = np.empty(0, dtype=np.uint8), np.zeros(1, dtype=np.int64)
_NO_FILTER = np.empty(0, dtype=np.uint32)


class KeySet:
    """Keys that are compared with the stored values exactly.

    Parameters
    ----------
    leaf : LeafType
    forms : list of bytes, or pyarrow.Array
        The keys as Arrow stores them, little-endian (`values.literal.stored_bytes`), or an array
        with the bytes of the leaf's own type, without nulls.

    Attributes
    ----------
    is_exact : bool
        Whether each value that is found is a key, and not only a candidate.
    value : pyarrow.Scalar or None
        The key, if there is only one and all values that equal it are the same.
    count : int
        The number of keys.
    kernel_arguments : tuple
        The keys as `leaf_kernels.find_rows` gets them.
    are_numbers : bool
        Whether the keys are compared as numbers of 4 or 8 bytes.

    Raises
    ------
    Undecodable
        If the leaf stores other bytes than Arrow.
    """

    is_exact = True
    value: pa.Scalar | None = None

    def __init__(self, leaf: LeafType, forms: list[bytes] | pa.Array):
        if not leaf.has_arrow_bytes:
            raise Undecodable
        self.are_numbers = leaf.has_numbers
        self.count = len(forms)
        keys = _stored_keys(leaf, forms)
        # The keys with their hash table.
        self._keys: tuple[Any, ...] = *keys, *_NO_TABLE
        if self.count > 1:
            self._keys = index_values(keys, self.count)[0]
        arguments = _NO_NUMBERS, *self._keys
        if self.are_numbers:
            numbers, *table = self._keys
            arguments = numbers, *_NO_TEXTS, *table
        self.kernel_arguments: tuple[Any, ...] = *arguments, _NO_FILTER

    def numbers_in(self, index: tuple[Any, ...]) -> np.ndarray:
        """Return the numbers of the values in a hash table that are keys, int32.

        ``index`` has the distinct values as `index_values` returns them.
        """
        from zonebloom.parquet import key_kernels as kernels

        numbers = np.empty(self.count, dtype=np.int32)
        if self.are_numbers:
            kernels.key_numbers(self._keys[0], *index, numbers)
        else:
            texts, starts = self._keys[:2]
            kernels.text_key_numbers(texts.ctypes.data, starts, *index, numbers)
        return numbers[numbers >= 0]


class KeyFilter(KeySet):
    """Keys in a Bloom filter, so that a value that passes is only a candidate.

    Parameters
    ----------
    leaf : LeafType
    keys : pyarrow.Array
        Keys whose bytes are those that the leaf stores, without nulls.
    """

    is_exact = False

    def __init__(self, leaf: LeafType, keys: pa.Array):
        from zonebloom.sbbf import blocks
        from zonebloom.sbbf.hashing import hash_array
        from zonebloom.sbbf.sizing import size_for

        if not leaf.has_arrow_bytes:
            raise Undecodable
        self.count = len(keys)
        num_bytes = size_for(min(len(keys), _MAX_FILTER_NDV), _FILTER_PROBABILITY, "exact")
        words = np.zeros(num_bytes // 4, dtype=np.uint32)
        blocks.insert(words, hash_array(keys).values)
        self.kernel_arguments = _NO_NUMBERS, *_NO_TEXTS, *_NO_TABLE, words


def index_values(values: tuple[np.ndarray, ...], count: int) -> tuple[tuple[Any, ...], int]:
    """Return values with a hash table, its bitmap and its seed, and how many are distinct.

    ``values`` are numbers, uint64, or the bytes of texts and their offsets, int64. The result has
    the arguments of the kernels of `key_kernels` that describe keys.
    """
    from zonebloom.parquet import key_kernels as kernels
    from zonebloom.sbbf.table_slots import TABLE_SEED

    num_slots, num_words = _table_sizes(count)
    table, bitmap = allocate_array(num_slots, np.int32), allocate_array(num_words, np.uint64)
    table[:] = 0
    bitmap[:] = 0
    fill = kernels.fill_number_table if len(values) == 1 else kernels.fill_text_table
    # The seed stays with its table, because another process has another one.
    index = *values, table, bitmap, TABLE_SEED
    return index, fill(*index)


def index_bytes(count: int) -> int:
    """Return the bytes of the hash table and the bitmap that `index_values` adds."""
    num_slots, num_words = _table_sizes(count)
    return 4 * num_slots + 8 * num_words


def _table_sizes(count: int) -> tuple[int, int]:
    """Return the slots of a hash table of so many values, and the words of their bitmap."""
    num_slots = 1 << (2 * count).bit_length()
    num_bits = min(_BITMAP_BITS * num_slots, max(_MIN_BITMAP_BITS * num_slots, _CACHED_BITMAP_BITS))
    return num_slots, max(1, num_bits // 64)


def is_key_search(predicate: Predicate, file: FileSchema, schema: pa.Schema) -> bool:
    """Return whether a search for keys answers the whole predicate in a file.

    ``schema`` is the schema of the dataset.
    """
    if isinstance(predicate, Equals | IsIn | IsNull):
        return leaf_at(predicate.column, file, schema) is not None
    if isinstance(predicate, And | Or):
        return all(is_key_search(term, file, schema) for term in predicate.terms)
    return isinstance(predicate, Constant)


class KeyTests:
    """The keys of a predicate in stored form, which exclude rows before a value is decoded.

    Attributes
    ----------
    predicate : Predicate
    has_few_keys : bool
        Whether the predicate has few keys, and nothing else.
    """

    def __init__(self, predicate: Predicate):
        self.predicate = predicate
        is_short = isinstance(predicate, IsIn) and len(predicate.values) <= MAX_FEW_KEYS
        self.has_few_keys = isinstance(predicate, Equals) or is_short
        # A value is a tuple of one: the keys, or None if they cannot be searched exactly.
        self._keys: dict[tuple[int, LeafType], tuple[KeySet | None]] = {}
        # All threads ask for the keys at the same time, but a set of a million is built only once.
        self._lock = Lock()

    def keys(self, node: Equals | IsIn | IsNull, leaf: LeafType) -> KeySet | None:
        """Return the keys of a node as a leaf stores them, or None if that is not exact."""
        node_and_leaf = id(node), leaf
        with self._lock:
            made = self._keys.get(node_and_leaf)
            if made is None:
                try:
                    made = (_make_keys(node, leaf),)
                except (Unanswerable, Undecodable):
                    made = (None,)
                self._keys[node_and_leaf] = made
            return made[0]


def _make_keys(node: Equals | IsIn | IsNull, leaf: LeafType) -> KeySet:
    forms = _stored_forms(node, leaf.arrow_type)
    if isinstance(forms, pa.Array) and len(forms) > _MAX_IN_SET:
        return KeyFilter(leaf, forms)
    keys = KeySet(leaf, forms)
    if isinstance(node, Equals) and len(forms) == 1 and node.value.type == leaf.arrow_type:
        keys.value = node.value
    return keys


def _stored_forms(node: Equals | IsIn | IsNull, column: pa.DataType) -> list[bytes] | pa.Array:
    """Return the keys of a node in the stored form of a column."""
    if isinstance(node, IsNull):
        return []
    if isinstance(node, Equals):
        return byte_forms(column, node.value)
    values = node.values
    if len(values) > _MAX_SINGLE_KEYS:
        if family(values.type) == family(column) == "integer":
            values, _ = integers_in_range(values, column)
        kind = family(column)
        if family(values.type) == kind and kind in ("text", "bytes"):
            return values
        if values.type == column and kind in _WHOLE_NUMBERS:
            return values
        if len(values) > _MAX_CONVERTED_KEYS:
            # Converting them one by one would take longer than decoding all rows.
            raise Undecodable
    return [form for value in values for form in byte_forms(column, value)]


def _stored_keys(leaf: LeafType, forms: list[bytes] | pa.Array) -> tuple[np.ndarray, ...]:
    """Return keys as numbers, uint64, or else their bytes and their offsets, int64."""
    if leaf.has_numbers:
        if not isinstance(forms, list):
            return (words_of(forms),)
        return (np.frombuffer(b"".join(forms), f"u{leaf.width}").astype(np.uint64, copy=False),)
    if isinstance(forms, list):
        if len(forms) == 1:
            return np.frombuffer(forms[0], dtype=np.uint8), np.array([0, len(forms[0])])
        return texts_of(pa.array(forms, pa.large_binary()))
    return texts_of(forms.cast(pa.large_binary()))


def words_of(values: pa.Array) -> np.ndarray:
    """Return the bytes of each value as a number, uint64. That of a null may be any."""
    *_, data = values.buffers()
    if not len(values) or data is None:
        return np.empty(0, dtype=np.uint64)
    dtype = np.dtype(f"u{values.type.bit_width // 8}")
    words = np.frombuffer(data, dtype, len(values), values.offset * dtype.itemsize)
    return words.astype(np.uint64, copy=False)


def texts_of(values: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return the bytes of values and their offsets, int64, which need not begin at 0.

    The bytes of a null may be any.
    """
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.uint8())
    *_, data = values.buffers()
    stored = np.frombuffer(data or b"", dtype=np.uint8)
    if values.type not in _TEXTS:
        width = values.type.byte_width
        return stored, np.arange(values.offset, values.offset + len(values) + 1) * width
    is_large = values.type == with_64_bit_offsets(values.type)
    dtype = np.dtype(np.int64 if is_large else np.int32)
    offsets = values.buffers()[1]
    starts = np.zeros(1, dtype=np.int64)
    if len(values) and offsets is not None:
        starts = np.frombuffer(offsets, dtype, len(values) + 1, values.offset * dtype.itemsize)
    return stored, starts.astype(np.int64, copy=False)
