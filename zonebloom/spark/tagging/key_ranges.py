"""Which fragments may hold some keys, by the least and the greatest value of each: level 1.

A fragment whose range no key lies in has none of them: of sorted keys, as many are below its
minimum as are at or below its maximum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from zonebloom.dataset import Dataset
from zonebloom.errors import IndexNotFound
from zonebloom.spark.rebase import may_be_rebased
from zonebloom.spark.tagging.keys import KeyColumns


@dataclass(frozen=True)
class KeyRanges:
    """Key ranges of fragments in one column."""

    # Null where they are not known: such a fragment may hold any key.
    minimum: pa.Array
    maximum: pa.Array
    # Where it is known that there is no value.
    is_empty: np.ndarray

    def may_hold(self, keys: pa.Array) -> np.ndarray:
        """Which fragments may hold any of some keys; a null is in none, and NaN may be in any."""
        # Spark gives instants in the session's zone.
        keys = keys.drop_null().cast(self.minimum.type)
        has_nan = False
        if pt.is_floating(keys.type):
            values = keys.to_numpy()
            has_nan = bool(np.isnan(values).any())
            keys = pa.array(values[~np.isnan(values)], keys.type)
        keys = keys.take(pc.call_function("array_sort_indices", [keys]))
        known = _as_numpy(self.minimum.is_valid()) & _as_numpy(self.maximum.is_valid())
        hit = np.full(known.size, has_nan or len(keys) > 0)
        if known.any() and not has_nan:
            low, high = (bound.filter(pa.array(known)) for bound in (self.minimum, self.maximum))
            hit[known] = _search(keys, high, "right") > _search(keys, low, "left")
        return hit & ~self.is_empty


def key_ranges(ds: Dataset, columns: KeyColumns) -> tuple[KeyRanges, ...]:
    """What is known of each fragment there is, a column each."""
    return tuple(map(partial(_of_column, ds, columns), columns.names, columns.schema.types))


def _of_column(ds: Dataset, columns: KeyColumns, name: str, kind: pa.DataType) -> KeyRanges:
    source, present = ds.opened.source, ds.opened.planner.to_read().present
    if name in source.partition_columns():
        stored = source.schema.field(name).type
        plain = stored.value_type if pt.is_dictionary(stored) else stored
        texts = [source.constants(file.fragment).get(name) for file in present]
        values = pa.array(texts, plain).cast(kind)
        # A null equals no key.
        empty = ~_as_numpy(values.is_valid())
        return KeyRanges(values, values, empty) if _can_order(kind) else _unknown(kind, empty)
    unknown = _unknown(kind, np.zeros(len(present), dtype=bool))
    if name in columns.rebase.instants or not _can_order(kind):
        return unknown
    try:
        table: Any = ds.key_ranges(name)
        bounds = [table[bound].combine_chunks().cast(kind) for bound in ("minimum", "maximum")]
    except (IndexNotFound, pa.ArrowException):
        return unknown
    if table["fragment_id"].to_pylist() != [file.fragment_id for file in present]:
        # Files came or changed between.
        return unknown
    known = table["is_known"].to_numpy()
    if name in columns.rebase.times:
        # Shown by Spark, they may be earlier.
        known = known & ~_as_numpy(may_be_rebased(bounds[0]).fill_null(False))
    has_nan = table["has_nan"].fill_null(True).to_numpy()
    empty = known & ~has_nan & ~_as_numpy(bounds[0].is_valid())
    # Not through Python, whose dates end with the year 9999.
    choices = pa.array(known), pa.scalar(None, kind)
    low, high = (pc.call_function("if_else", [choices[0], end, choices[1]]) for end in bounds)
    return KeyRanges(low, high, empty)


def _unknown(kind: pa.DataType, empty: np.ndarray) -> KeyRanges:
    nothing = pa.nulls(empty.size, kind)
    return KeyRanges(nothing, nothing, empty)


def fragments_with(ranges: Sequence[KeyRanges], columns: Sequence[pa.Array]) -> np.ndarray:
    """Which fragments may hold any of some keys, by every key column."""
    return np.logical_and.reduce(
        [column_ranges.may_hold(keys) for column_ranges, keys in zip(ranges, columns, strict=True)]
    )


def _can_order(kind: pa.DataType) -> bool:
    """Whether values of a type can be searched among others."""
    if pt.is_nested(kind) or pt.is_dictionary(kind):
        return False
    try:
        _search(pa.nulls(0, kind), pa.nulls(0, kind), "left")
    except pa.ArrowNotImplementedError:
        return False
    return True


def _search(keys: pa.Array, bounds: pa.Array, side: str) -> np.ndarray:
    compute: Any = pc
    return _as_numpy(compute.search_sorted(keys, bounds, side=side)).astype(np.int64)


def _as_numpy(values: pa.Array) -> np.ndarray:
    return values.to_numpy(zero_copy_only=False)
