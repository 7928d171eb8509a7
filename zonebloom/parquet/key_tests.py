"""Keys in the form in which a leaf stores them, and the search for them among stored values.

The kernels are imported late, because they load Numba.
"""

from __future__ import annotations

from threading import Lock

import numpy as np
import pyarrow as pa

from zonebloom.base.arrays import allocate_array, distinct_numbers
from zonebloom.errors import FragmentUnreadable
from zonebloom.parquet.file_layout import FileSchema
from zonebloom.parquet.leaf_type import FIXED_LEN_BYTE_ARRAY, LeafType, Undecodable, leaf_at
from zonebloom.predicates.ast import And, Constant, Equals, IsIn, IsNull, Or, Predicate
from zonebloom.values.literal import Unanswerable, integers_in_range
from zonebloom.values.probe import byte_forms
from zonebloom.values.types import family

# More keys than this are taken from their array as a whole, instead of one by one.
_MAX_SINGLE_KEYS = 64
# More keys than this are searched by a Bloom filter, which fits the processor's cache.
_MAX_IN_SET = 1 << 14
# One value in 500 is decoded and compared needlessly.
_FILTER_PROBABILITY = 0.002
# A filter sized for more keys would be over 128 MiB. More keys share a filter of this size, and
# more values pass it.
_MAX_FILTER_NDV = 1 << 26
_NUMBER_WIDTHS = (4, 8)
# A single key needs no hash table.
_NO_TABLE = np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.uint64)
_NO_BYTES = np.empty(0, dtype=np.uint8)


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
        from zonebloom.parquet.value_kernels import find_numbers, find_texts

        if not leaf.has_arrow_bytes:
            raise Undecodable
        self._width = leaf.width
        self.are_numbers = False
        keys: tuple[np.ndarray, ...]
        if leaf.width in _NUMBER_WIDTHS and leaf.physical_type != FIXED_LEN_BYTE_ARRAY:
            self.are_numbers = True
            self._kernel = find_numbers
            keys = (_numbers(leaf, forms),)
            self._count = keys[0].size
        else:
            self._kernel = find_texts
            keys = _spans(forms)
            self._count = keys[1].size - 1
        table = _NO_TABLE if self._count == 1 else _hash_table(keys, self._count)
        # The arguments of the kernel that describe the keys.
        self._keys: tuple[np.ndarray, ...] = *keys, *table

    @property
    def kernel_arguments(self) -> tuple[np.ndarray, ...]:
        """The keys as arguments of `hit_kernels.find_hits`."""
        if len(self._keys) == 3:
            numbers, table, bitmap = self._keys
            return numbers, _NO_BYTES, _NO_TABLE[0], table, bitmap
        return _NO_TABLE[1][:0], *self._keys

    def find(
        self,
        addresses: np.ndarray,
        sizes: np.ndarray,
        counts: np.ndarray,
        first_positions: np.ndarray,
        *,
        capacity: int,
    ) -> np.ndarray:
        """Return the positions of the keys among the values of pages, ascending.

        The first four parameters are those of `value_kernels`. ``capacity`` is more than the number
        of values.
        """
        positions = allocate_array(capacity if self._count else 0, np.int64)
        if not self._count:
            return positions
        pages = addresses, sizes, counts, first_positions, self._width
        hits = self._kernel(*pages, *self._keys, positions)
        if hits < 0:
            raise FragmentUnreadable("values of a page lie outside it")
        return positions[:hits]

    @property
    def count(self) -> int:
        """The number of distinct keys."""
        return self._count

    def find_entries(
        self, entries: tuple[int, np.ndarray, int], table: np.ndarray, hits: np.ndarray
    ) -> None:
        """Set ``hits`` to 1 for each entry of a dictionary that is a key.

        ``entries`` and ``table`` are those of `dictionary_kernels.index_entries`.
        """
        from zonebloom.parquet import dictionary_kernels

        if self.are_numbers:
            address, _, width = entries
            dictionary_kernels.find_number_entries(address, width, self._keys[0], table, hits)
        else:
            keys, key_starts = self._keys[:2]
            dictionary_kernels.find_text_entries(*entries, keys, key_starts, table, hits)


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
        from zonebloom.parquet.filter_kernels import find_hashed
        from zonebloom.sbbf import blocks
        from zonebloom.sbbf.hashing import hash_array
        from zonebloom.sbbf.sizing import size_for

        if not leaf.has_arrow_bytes:
            raise Undecodable
        self._width, self._count, self._kernel = leaf.width, len(keys), find_hashed
        num_bytes = size_for(min(len(keys), _MAX_FILTER_NDV), _FILTER_PROBABILITY, "exact")
        words = np.zeros(num_bytes // 4, dtype=np.uint32)
        blocks.insert(words, hash_array(keys).values)
        self._keys = (words,)


def _hash_table(keys: tuple[np.ndarray, ...], count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the hash table of numbers or texts, and its bitmap."""
    from zonebloom.parquet import value_kernels
    from zonebloom.sbbf.xxh64 import hash_offsets

    hashes = samples = keys[0]
    if len(keys) == 2:
        data, starts = keys
        hashes, samples = np.empty((2, count), dtype=np.uint64)
        hash_offsets(data.ctypes.data, starts, hashes)
        value_kernels.sample_texts(data.ctypes.data, starts, samples)
    size = (2 * count).bit_length()
    table = np.zeros(1 << size, dtype=np.int64)
    bitmap = np.zeros(1 << size, dtype=np.uint64)
    value_kernels.fill_hash_table(hashes, samples, table, bitmap)
    return table, bitmap


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
    """The keys of a predicate in stored form, which exclude rows before a value is decoded."""

    def __init__(self, predicate: Predicate):
        self.predicate = predicate
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
            values = integers_in_range(values, column)
        kind = family(column)
        if family(values.type) == kind and kind in ("text", "bytes"):
            return values
        if values.type == column and kind == "integer":
            return values
        if len(values) > _MAX_IN_SET:
            # Converting them one by one would take longer than decoding all rows.
            raise Undecodable
    return [form for value in values for form in byte_forms(column, value)]


def _numbers(leaf: LeafType, forms: list[bytes] | pa.Array) -> np.ndarray:
    """Return the distinct keys as Parquet stores integers of 4 or 8 bytes, widened to uint64."""
    dtype = f"u{leaf.width}"
    if isinstance(forms, list):
        stored = np.frombuffer(b"".join(forms), dtype)
    else:
        stored = np.frombuffer(forms.buffers()[1] or b"", dtype)
        stored = stored[forms.offset :][: len(forms)]
    stored = stored.astype(np.uint64)
    return stored if stored.size == 1 else distinct_numbers(stored)


def _spans(forms: list[bytes] | pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return the bytes of the distinct keys, one after another, and their offsets, int64."""
    if isinstance(forms, list):
        if len(forms) == 1:
            return np.frombuffer(forms[0], dtype=np.uint8), np.array([0, len(forms[0])])
        spans = pa.array(forms, pa.large_binary()).unique()
    else:
        spans = forms.cast(pa.large_binary()).unique()
    if not len(spans):
        return np.empty(0, dtype=np.uint8), np.zeros(1, dtype=np.int64)
    _, offsets, data = spans.buffers()
    starts = np.frombuffer(offsets, dtype=np.int64, count=len(spans) + 1)
    return np.frombuffer(data or b"", dtype=np.uint8)[: starts[-1]], starts
