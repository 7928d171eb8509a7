"""Answer the parts of a predicate that ask for keys, by a search among stored values."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from zonebloom.base.row_ranges import RowRanges
from zonebloom.parquet.file_layout import FileSchema
from zonebloom.parquet.leaf_type import LeafType, Undecodable, leaf_at
from zonebloom.predicates.ast import And, Constant, Equals, IsIn, IsNull, Or, Predicate, walk
from zonebloom.values.literal import Unanswerable, integers_in_range
from zonebloom.values.probe import byte_forms
from zonebloom.values.types import family

if TYPE_CHECKING:
    from zonebloom.parquet.key_set import StoredKeys

# More keys than this are taken from their array as a whole, instead of one by one.
_MAX_SINGLE_KEYS = 64
# More keys than this are searched by a Bloom filter, which fits the processor's cache.
_MAX_IN_SET = 1 << 14

# A function that returns which of the given rows hold a key (or null), and whether the node is true
# for all of them; None if the search is not possible.
Find = Callable[[Equals | IsIn | IsNull, RowRanges], tuple[np.ndarray, bool] | None]


def is_key_search(predicate: Predicate, file: FileSchema, schema: pa.Schema) -> bool:
    """Return whether a search for keys answers the whole predicate in a file.

    ``schema`` is the schema of the dataset.
    """
    for node in walk(predicate):
        if isinstance(node, Equals | IsIn | IsNull):
            if leaf_at(node.column, file, schema) is None:
                return False
        elif not isinstance(node, And | Or | Constant):
            return False
    return True


class KeyTests:
    """The key searches of a predicate, which exclude rows before any value is decoded."""

    def __init__(self, predicate: Predicate):
        self._predicate = predicate
        self._keys: dict[tuple[int, LeafType], StoredKeys | None] = {}
        # All threads ask for the keys at the same time, but a set of a million is built only once.
        self._lock = Lock()

    def narrow(self, rows: RowRanges, find: Find) -> tuple[RowRanges, bool]:
        """Return the rows for which the predicate may be true, and whether it is true for all."""
        return _narrow(self._predicate, rows, find)

    def keys(self, node: Equals | IsIn | IsNull, leaf: LeafType) -> StoredKeys | None:
        """Return the keys of a node as a leaf stores them, or None if that is not exact."""
        node_and_leaf = id(node), leaf
        with self._lock:
            if node_and_leaf not in self._keys:
                try:
                    keys = _make_keys(leaf, _stored_forms(node, leaf.arrow_type))
                except (Unanswerable, Undecodable):
                    keys = None
                self._keys[node_and_leaf] = keys
            return self._keys[node_and_leaf]


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


def _narrow(node: Predicate, rows: RowRanges, find: Find) -> tuple[RowRanges, bool]:
    match node:
        case Equals() | IsIn() | IsNull():
            result = find(node, rows)
            if result is None:
                return rows, False
            matches, is_exact = result
            return RowRanges.from_rows(matches), is_exact
        case Constant(value):
            return (rows if value else RowRanges()), True
        case And(terms):
            is_exact = True
            for term in terms:
                if not rows:
                    break
                rows, is_true = _narrow(term, rows, find)
                is_exact &= is_true
            return rows, is_exact
        case Or(terms):
            parts = [_narrow(term, rows, find) for term in terms]
            united = RowRanges()
            for part, _ in parts:
                united = united | part
            return united, all(is_true for _, is_true in parts)
        case _:
            return rows, False
