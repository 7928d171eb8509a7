"""How many keys lie in each of many key ranges: the interval search of level 1.

A fragment whose range no key lies in has none of them. Ranges overlap as they please: keys at or
above its minimum, less those above its maximum, are the keys in a range, so two sorted lists of
bounds answer for all fragments at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt


@dataclass(frozen=True)
class KeyRanges:
    """Key ranges of fragments in one column."""

    minimum: pa.Array
    maximum: pa.Array
    is_empty: np.ndarray

    def of(self, fragments: np.ndarray) -> KeyRanges:
        """Those of some of the fragments."""
        at = pa.array(fragments)
        return KeyRanges(self.minimum.take(at), self.maximum.take(at), self.is_empty[fragments])

    def count(self, keys: pa.Array) -> np.ndarray:
        """How many keys lie in each range, shape ``(n,)``, nulls left out.

        A range that is not known may hold all, and NaN may be in any.
        """
        keys = keys.drop_null()
        if keys.type != self.minimum.type:
            # Spark gives instants in the session's zone.
            keys = keys.cast(self.minimum.type)
        anywhere = 0
        if pt.is_floating(keys.type):
            values = keys.to_numpy()
            nan = np.isnan(values)
            anywhere = int(nan.sum())
            keys = pa.array(values[~nan], keys.type)
        known = _valid(self.minimum) & _valid(self.maximum)
        found = np.full(known.size, len(keys) + anywhere, dtype=np.int64)
        at = np.flatnonzero(known)
        if at.size and len(keys):
            low, high = (each.take(pa.array(at)) for each in (self.minimum, self.maximum))
            inside = _above(low, keys, "right") - _above(high, keys, "left")
            found[at] = inside + anywhere
        found[self.is_empty] = 0
        return found


def can_order(arrow_type: pa.DataType) -> bool:
    """Whether values of a type can be searched among bounds."""
    if pt.is_nested(arrow_type) or pt.is_dictionary(arrow_type):
        return False
    try:
        _search(pa.nulls(0, arrow_type), pa.nulls(0, arrow_type), "left")
    except pa.ArrowNotImplementedError:
        return False
    return True


def _above(bounds: pa.Array, keys: pa.Array, side: str) -> np.ndarray:
    """For each bound, keys not below it ("right"), or above it ("left")."""
    functions = pc
    order = functions.array_sort_indices(bounds)  # pyright: ignore[reportAttributeAccessIssue]
    passed = _search(bounds.take(order), keys, side)
    counts = np.bincount(passed, minlength=len(bounds) + 1)
    # A key that has passed more than j bounds is beyond the j-th.
    beyond = counts[::-1].cumsum()[::-1][1:]
    found = np.empty(len(bounds), dtype=np.int64)
    found[order.to_numpy()] = beyond
    return found


def _search(bounds: pa.Array, keys: pa.Array, side: str) -> np.ndarray:
    functions = pc
    found = functions.search_sorted(bounds, keys, side=side)  # pyright: ignore[reportAttributeAccessIssue]
    return found.to_numpy(zero_copy_only=False).astype(np.int64)


def _valid(values: pa.Array) -> np.ndarray:
    return values.is_valid().to_numpy(zero_copy_only=False)


def count_in_all(
    ranges: Sequence[KeyRanges | None], columns: Sequence[pa.Array], count: int
) -> np.ndarray:
    """At most how many of some keys each of ``count`` fragments may hold, by every key column."""
    found = np.full(count, len(columns[0]) if columns else 0, dtype=np.int64)
    for each, keys in zip(ranges, columns, strict=True):
        if each is not None and len(keys):
            found = np.minimum(found, each.count(keys))
    return found
