"""Answer the parts of a predicate that ask for keys, by a search among stored values."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING

import pyarrow as pa

from zonebloom.parquet.file_layout import FileSchema
from zonebloom.parquet.leaf_type import LeafType, Undecodable, leaf_at
from zonebloom.predicates.ast import And, Constant, Equals, IsIn, IsNull, Or, Predicate
from zonebloom.values.literal import Unanswerable, integers_in_range
from zonebloom.values.probe import byte_forms
from zonebloom.values.types import family

if TYPE_CHECKING:
    from zonebloom.parquet.key_set import StoredKeys

# More keys than this are taken from their array as a whole, instead of one by one.
_MAX_SINGLE_KEYS = 64
# More keys than this are searched by a Bloom filter, which fits the processor's cache.
_MAX_IN_SET = 1 << 14


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
        # Keys that cannot be searched exactly are None.
        self._keys: dict[tuple[int, LeafType], tuple[StoredKeys | None]] = {}
        # All threads ask for the keys at the same time, but a set of a million is built only once.
        self._lock = Lock()

    def keys(self, node: Equals | IsIn | IsNull, leaf: LeafType) -> StoredKeys | None:
        """Return the keys of a node as a leaf stores them, or None if that is not exact."""
        node_and_leaf = id(node), leaf
        with self._lock:
            made = self._keys.get(node_and_leaf)
            if made is None:
                try:
                    made = (_make_keys(leaf, _stored_forms(node, leaf.arrow_type)),)
                except (Unanswerable, Undecodable):
                    made = (None,)
                self._keys[node_and_leaf] = made
            return made[0]


def _make_keys(leaf: LeafType, forms: list[bytes] | pa.Array) -> StoredKeys:
    # These are imported late, because they load Numba.
    if isinstance(forms, pa.Array) and len(forms) > _MAX_IN_SET:
        from zonebloom.parquet.key_filter import KeyFilter

        return KeyFilter(leaf, forms)
    from zonebloom.parquet.key_set import KeySet

    return KeySet(leaf, forms)


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

