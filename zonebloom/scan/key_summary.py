"""Summarize many keys of one or several columns.

The summary is a Bloom filter, which is applied to every row, and the fragments whose key ranges may
hold a key.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from zonebloom.base.arrays import array_of, from_numpy, to_numpy
from zonebloom.catalog.coverage import PresentFragment
from zonebloom.errors import EncryptedIndex, IndexNotFound
from zonebloom.predicates.ast import ColumnPath
from zonebloom.sbbf.filter import Sbbf
from zonebloom.sbbf.hashing import hash_array
from zonebloom.scan.key_values import comparable_column, comparable_values
from zonebloom.scan.planner import Planner
from zonebloom.sources.source import Source
from zonebloom.values.types import hash_domain

# False positive rate: one row in 500 is compared with the keys needlessly.
_PROBABILITY = 0.002
# With more keys than this the filter stays at 64 MiB, and its false positive rate grows.
_MOST_KEYS = 1 << 25
_FEW_KEYS = 1 << 12
_MIX = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class KeyBloomFilter:
    """A scan filter that keeps rows which may equal a key. NaN may equal NaN.

    Attributes
    ----------
    paths : tuple of column paths
    types : tuple of DataType
        The types in which keys and rows are compared.
    sbbf : Sbbf
        Bloom filter of all keys without a null.
    """

    paths: tuple[ColumnPath, ...]
    types: tuple[pa.DataType, ...]
    sbbf: Sbbf

    @property
    def columns(self) -> frozenset[str]:
        """Return the columns that the filter reads."""
        return frozenset(path[0] for path in self.paths)

    def __str__(self) -> str:
        return f"keys of {', '.join(sorted(self.columns))}"

    def matching_rows(self, table: pa.Table) -> np.ndarray:
        """Return the row numbers that may equal a key, ascending."""
        hits = [np.empty(0, dtype=bool)]
        for batch in table.to_batches():
            columns = [comparable_column(batch, path) for path in self.paths]
            hashes, valid = _hash_rows(columns, self.types)
            hits.append(self.sbbf.check_hashes(hashes) & valid)
        return np.flatnonzero(np.concatenate(hits))


def _hash_rows(
    columns: Sequence[pa.Array], types: Sequence[pa.DataType]
) -> tuple[np.ndarray, np.ndarray]:
    """Return hashes of rows, and a mask of the rows without a null.

    Rows that are equal when compared in ``types`` have equal hashes.
    """
    hashes: Any = None
    valid = np.ones(len(columns[0]), dtype=bool)
    for column, kind in zip(columns, types, strict=True):
        hashed = hash_array(_comparable(column, kind))
        if hashed.null_count:
            valid &= hashed.is_valid()
        # An odd multiplier loses no bits, and makes the order of the columns count.
        hashes = hashed.values if hashes is None else hashes * _MIX + hashed.values
    return np.ascontiguousarray(hashes), valid


def _comparable(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return values in a form whose bytes are equal if the values are. All NaN become the same."""
    if pt.is_boolean(kind):
        return column.cast(pa.int8())
    if hash_domain(column.type) != hash_domain(kind):
        column = column.cast(kind)
    if not pt.is_floating(kind):
        return column
    nan = array_of([np.nan], pa.float64())[0].cast(column.type)
    return pc.call_function("if_else", [pc.call_function("is_nan", [column]), nan, column])


@dataclass(frozen=True)
class FragmentKeyRanges:
    """The key ranges of fragments in one column.

    Attributes
    ----------
    minimum, maximum : Array
        Null for fragments with unknown ranges, which may hold any key.
    is_empty : bool array
        True for fragments that are known to hold no value.
    """

    minimum: pa.Array
    maximum: pa.Array
    is_empty: np.ndarray

    @classmethod
    def unknown(cls, kind: pa.DataType, count: int) -> FragmentKeyRanges:
        """Return the ranges of ``count`` fragments about which nothing is known."""
        nothing = pa.nulls(count, kind)
        return cls(nothing, nothing, np.zeros(count, dtype=bool))

    def may_hold(self, keys: pa.Array) -> np.ndarray:
        """Return a mask of the fragments that may hold any of the keys.

        A null key is in no fragment. A NaN may be in any.
        """
        # The cast may change the time zone, but not the instant.
        keys = keys.drop_null().cast(self.minimum.type)
        has_nan = False
        if pt.is_floating(keys.type):
            values = to_numpy(keys)
            has_nan = bool(np.isnan(values).any())
            keys = from_numpy(values[~np.isnan(values)])
        known = to_numpy(self.minimum.is_valid()) & to_numpy(self.maximum.is_valid())
        hit = np.full(known.size, has_nan or len(keys) > 0)
        if known.any() and not has_nan:
            hit[known] = False
            # Unsorted keys usually hit every fragment, so test a small sample first.
            for some in (keys.slice(0, _FEW_KEYS), keys.slice(_FEW_KEYS)):
                if not hit.all():
                    hit[known] |= self._known_to_hold(some)
        return hit & ~self.is_empty

    def _known_to_hold(self, keys: pa.Array) -> np.ndarray:
        """Return a mask, over fragments with known ranges, of those that may hold a key."""
        ends, low, high = self._ends
        # Count the keys at or below each bound, and below it. There are fewer bounds than keys, so
        # sorting the bounds is cheaper than sorting the keys.
        at_most, below = (
            np.bincount(_search(ends, keys, side), minlength=len(ends) + 1).cumsum()
            for side in ("left", "right")
        )
        return at_most[high] > below[low]

    @cached_property
    def _ends(self) -> tuple[pa.Array, np.ndarray, np.ndarray]:
        """Return all known bounds, sorted, and the positions of each fragment's bounds in them."""
        known = pc.call_function("and", [self.minimum.is_valid(), self.maximum.is_valid()])
        low, high = self.minimum.filter(known), self.maximum.filter(known)
        ends = pa.concat_arrays([low, high])
        ends = ends.take(pc.call_function("array_sort_indices", [ends]))
        return ends, _search(ends, low, "left"), _search(ends, high, "left")


def fragment_key_ranges(
    source: Source,
    planner: Planner,
    present: Sequence[PresentFragment],
    column: str,
    kind: pa.DataType,
) -> FragmentKeyRanges:
    """Return the key ranges of the current fragments, with bounds of type ``kind``."""
    if column in source.partition_columns():
        stored = source.schema.field(column).type
        given = stored.value_type if pt.is_dictionary(stored) else stored
        texts = [source.constants(file.fragment).get(column) for file in present]
        values = pa.array(texts, given).cast(kind)
        # A null equals no key.
        empty = ~to_numpy(values.is_valid())
        ends = values if _can_order(kind) else pa.nulls(len(present), kind)
        return FragmentKeyRanges(ends, ends, empty)
    unknown = FragmentKeyRanges.unknown(kind, len(present))
    if not _can_order(kind):
        return unknown
    try:
        table: Any = planner.key_ranges(column)
        bounds = [table[bound].combine_chunks().cast(kind) for bound in ("minimum", "maximum")]
    except (IndexNotFound, EncryptedIndex, pa.ArrowException):
        return unknown
    if table["fragment_id"].to_pylist() != [file.fragment_id for file in present]:
        # Files were added or changed in the meantime.
        return unknown
    known = table["is_known"].combine_chunks()
    has_nan = to_numpy(table["has_nan"].fill_null(True))
    empty = to_numpy(known) & ~has_nan & ~to_numpy(bounds[0].is_valid())
    nothing = pa.nulls(1, kind)[0]
    low, high = (pc.call_function("if_else", [known, end, nothing]) for end in bounds)
    return FragmentKeyRanges(low, high, empty)


def fragments_with_keys(
    ranges: Sequence[FragmentKeyRanges], columns: Sequence[pa.Array]
) -> np.ndarray:
    """Return a mask of the fragments whose ranges of every key column may hold some keys."""
    return np.logical_and.reduce(
        [column_ranges.may_hold(keys) for column_ranges, keys in zip(ranges, columns, strict=True)]
    )


def summarize_keys(
    keys: Iterable[Sequence[pa.Array]],
    num_keys: int,
    types: Sequence[pa.DataType],
    ranges: Sequence[FragmentKeyRanges],
) -> tuple[Sbbf, np.ndarray]:
    """Return a Bloom filter of the keys without a null, and a mask of fragments that may hold any.

    ``keys`` yields batches of keys as one array per key column.
    """
    sbbf = Sbbf(min(max(num_keys, 1), _MOST_KEYS), _PROBABILITY, sizing="exact")
    fragments = np.zeros(ranges[0].is_empty.size, dtype=bool)
    for columns in keys:
        hashes, valid = _hash_rows(list(map(comparable_values, columns)), types)
        sbbf.insert_hashes(hashes[valid])
        fragments |= fragments_with_keys(ranges, columns)
    return sbbf, fragments


def _can_order(kind: pa.DataType) -> bool:
    """Return whether PyArrow can search sorted values of a type."""
    if pt.is_nested(kind) or pt.is_dictionary(kind):
        return False
    try:
        _search(pa.nulls(0, kind), pa.nulls(0, kind), "left")
    except pa.ArrowNotImplementedError:
        return False
    return True


def _search(ends: pa.Array, values: pa.Array, side: str) -> np.ndarray:
    compute: Any = pc
    return to_numpy(compute.search_sorted(ends, values, side=side)).astype(np.int64)
