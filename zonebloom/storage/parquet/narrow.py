"""What of a predicate is answered by looking for keys among stored values."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from zonebloom.predicates.ast import And, Constant, Equals, IsIn, IsNull, Or, Predicate, walk
from zonebloom.ranges import RowRanges
from zonebloom.storage.parquet.layout import FileSchema
from zonebloom.storage.parquet.leaf_type import LeafType, Undecodable, leaf_at
from zonebloom.values.literal import Unanswerable, integers_within
from zonebloom.values.probe import forms_of
from zonebloom.values.types import family

if TYPE_CHECKING:
    from zonebloom.storage.parquet.key_set import Keys

# From here on keys are taken as they lie in their array.
_MANY = 64
# More are looked for by a filter, which the processor's cache holds.
_MOST_IN_SET = 1 << 14

# Rows that hold a key or null, among some, and whether the node is true for all of those; None
# where that cannot be told.
Find = Callable[[Equals | IsIn | IsNull, RowRanges], tuple[np.ndarray, bool] | None]


def finds_keys(predicate: Predicate, file: FileSchema, schema: pa.Schema) -> bool:
    """Whether all of a predicate is answered so in a file of a dataset of a schema."""
    for node in walk(predicate):
        if isinstance(node, Equals | IsIn | IsNull):
            if leaf_at(node.column, file, schema) is None:
                return False
        elif not isinstance(node, And | Or | Constant):
            return False
    return True


class KeyTests:
    """Narrows rows down to those a predicate can be true for, before anything is decoded."""

    def __init__(self, predicate: Predicate):
        self._predicate = predicate
        self._keys: dict[tuple[int, LeafType], Keys | None] = {}
        # All threads ask for the first at once, and a million keys are made a set once.
        self._lock = Lock()

    def narrow(self, rows: RowRanges, find: Find) -> tuple[RowRanges, bool]:
        """Those of some rows it may be true for, and whether it is true for all of them."""
        return _narrow(self._predicate, rows, find)

    def keys(self, node: Equals | IsIn | IsNull, leaf: LeafType) -> Keys | None:
        """The keys of a node as a leaf stores them; None when they are not compared exactly."""
        at = id(node), leaf
        with self._lock:
            if at not in self._keys:
                try:
                    self._keys[at] = _keys(leaf, _forms(node, leaf.arrow_type))
                except (Unanswerable, Undecodable):
                    self._keys[at] = None
            return self._keys[at]


def _keys(leaf: LeafType, forms: list[bytes] | pa.Array) -> Keys:
    # Imported late: they load Numba.
    if isinstance(forms, pa.Array) and len(forms) > _MOST_IN_SET:
        from zonebloom.storage.parquet.key_filter import KeyFilter

        return KeyFilter(leaf, forms)
    from zonebloom.storage.parquet.key_set import KeySet

    return KeySet(leaf, forms)


def _forms(node: Equals | IsIn | IsNull, column: pa.DataType) -> list[bytes] | pa.Array:
    """The keys of a node as a column holds them."""
    if isinstance(node, IsNull):
        return []
    if isinstance(node, Equals):
        return forms_of(column, node.value)
    values = node.values
    if len(values) > _MANY:
        if family(values.type) == family(column) == "integer":
            values = integers_within(values, column)
        kind = family(column)
        if family(values.type) == kind and kind in ("text", "bytes"):
            return values
        if values.type == column and kind == "integer":
            return values
        if len(values) > _MOST_IN_SET:
            # One by one they would take longer than to decode all rows.
            raise Undecodable
    return [form for value in values for form in forms_of(column, value)]


def _narrow(node: Predicate, rows: RowRanges, find: Find) -> tuple[RowRanges, bool]:
    match node:
        case Equals() | IsIn() | IsNull():
            found = find(node, rows)
            if found is None:
                return rows, False
            return RowRanges.from_rows(found[0]), found[1]
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
