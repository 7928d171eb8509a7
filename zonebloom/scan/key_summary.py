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
from zonebloom.errors import EncryptedIndex, IndexNotFound
from zonebloom.predicates.ast import ColumnPath
from zonebloom.sbbf.filter import Sbbf
from zonebloom.sbbf.hashing import hash_array
from zonebloom.scan.key_values import normalized_column, normalized_values
from zonebloom.scan.search import key_ranges
from zonebloom.snapshot import Snapshot
from zonebloom.values.normal_types import decoded_type
from zonebloom.values.types import hash_domain

# False positive rate: one row in 500 is compared with the keys needlessly.
_FALSE_POSITIVE_RATE = 0.002
# With more keys than this the filter stays at 64 MiB, and its false positive rate grows.
_MAX_FILTER_KEYS = 1 << 25
_SAMPLE_KEYS = 1 << 12
_HASH_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class FilterByKeys:
    """The base of scan filters that compare columns with keys.

    Attributes
    ----------
    paths : tuple of column paths
    """

    paths: tuple[ColumnPath, ...]

    @property
    def columns(self) -> frozenset[str]:
        """Return the columns that the filter reads."""
        return frozenset(path[0] for path in self.paths)

    def __str__(self) -> str:
        return f"keys of {', '.join(sorted(self.columns))}"


@dataclass(frozen=True)
class KeyBloomFilter(FilterByKeys):
    """A scan filter that keeps rows which may equal a key. NaN may equal NaN.

    Attributes
    ----------
    types : tuple of DataType
        The types in which keys and rows are compared.
    sbbf : Sbbf
        Bloom filter of all keys without a null.
    """

    types: tuple[pa.DataType, ...]
    sbbf: Sbbf

    def matching_rows(self, table: pa.Table) -> np.ndarray:
        """Return the row numbers that may equal a key, ascending."""
        hits = [np.empty(0, dtype=bool)]
        for batch in table.to_batches():
            columns = [normalized_column(batch, path) for path in self.paths]
            hashes, valid = _hash_key_rows(columns, self.types)
            hits.append(self.sbbf.check_hashes(hashes) & valid)
        return np.flatnonzero(np.concatenate(hits))


def _hash_key_rows(
    columns: Sequence[pa.Array], types: Sequence[pa.DataType]
) -> tuple[np.ndarray, np.ndarray]:
    """Return hashes of rows, and a mask of the rows without a null.

    Rows that are equal when compared in ``types`` have equal hashes.
    """
    hashes: Any = None
    valid = np.ones(len(columns[0]), dtype=bool)
    for column, kind in zip(columns, types, strict=True):
        hashed = hash_array(_with_equal_bytes(column, kind))
        if hashed.null_count:
            valid &= hashed.is_valid()
        # An odd multiplier loses no bits, and makes the order of the columns count.
        hashes = hashed.values if hashes is None else hashes * _HASH_MULTIPLIER + hashed.values
    return np.ascontiguousarray(hashes), valid


def _with_equal_bytes(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return values in a form in which equal values have equal bytes, and all NaN are the same."""
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
        nulls = pa.nulls(count, kind)
        return cls(nulls, nulls, np.zeros(count, dtype=bool))

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
        is_known = to_numpy(self.minimum.is_valid()) & to_numpy(self.maximum.is_valid())
        may_hold = np.full(is_known.size, has_nan or len(keys) > 0)
        if is_known.any() and not has_nan:
            may_hold[is_known] = False
            # Unsorted keys usually hit every fragment, so test a small sample first.
            for sample in (keys.slice(0, _SAMPLE_KEYS), keys.slice(_SAMPLE_KEYS)):
                if not may_hold.all():
                    may_hold[is_known] |= self._known_to_hold(sample)
        return may_hold & ~self.is_empty

    def _known_to_hold(self, keys: pa.Array) -> np.ndarray:
        """Return a mask, over fragments with known ranges, of those that may hold a key."""
        ends, low, high = self._ends
        # Count the keys at or below each bound, and below it. There are fewer bounds than keys, so
        # sorting the bounds is cheaper than sorting the keys.
        num_at_most, num_below = (
            np.bincount(_search_sorted(ends, keys, side), minlength=len(ends) + 1).cumsum()
            for side in ("left", "right")
        )
        return num_at_most[high] > num_below[low]

    @cached_property
    def _ends(self) -> tuple[pa.Array, np.ndarray, np.ndarray]:
        """Return all known bounds, sorted, and the positions of each fragment's bounds in them."""
        is_known = pc.call_function("and", [self.minimum.is_valid(), self.maximum.is_valid()])
        low, high = self.minimum.filter(is_known), self.maximum.filter(is_known)
        ends = pa.concat_arrays([low, high])
        ends = ends.take(pc.call_function("array_sort_indices", [ends]))
        return ends, _search_sorted(ends, low, "left"), _search_sorted(ends, high, "left")


def fragment_key_ranges(snapshot: Snapshot, column: str, kind: pa.DataType) -> FragmentKeyRanges:
    """Return the key ranges of the fragments, with bounds of type ``kind``."""
    source, present = snapshot.source, snapshot.fragments
    if column in source.constant_columns():
        value_type = decoded_type(source.schema.field(column).type)
        path_values = [source.constants(file.fragment).get(column) for file in present]
        partition_values = pa.array(path_values, value_type).cast(kind)
        # A null equals no key.
        is_empty = ~to_numpy(partition_values.is_valid())
        ends = partition_values if _is_searchable(kind) else pa.nulls(len(present), kind)
        return FragmentKeyRanges(ends, ends, is_empty)
    unknown = FragmentKeyRanges.unknown(kind, len(present))
    if not _is_searchable(kind):
        return unknown
    try:
        table: Any = key_ranges(snapshot, column)
        bounds = [table[bound].combine_chunks().cast(kind) for bound in ("minimum", "maximum")]
    except (IndexNotFound, EncryptedIndex, pa.ArrowException):
        return unknown
    is_known = table["is_known"].combine_chunks()
    has_nan = to_numpy(table["has_nan"].fill_null(True))
    is_empty = to_numpy(is_known) & ~has_nan & ~to_numpy(bounds[0].is_valid())
    null = pa.nulls(1, kind)[0]
    low, high = (pc.call_function("if_else", [is_known, end, null]) for end in bounds)
    return FragmentKeyRanges(low, high, is_empty)


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
    sbbf = Sbbf(min(max(num_keys, 1), _MAX_FILTER_KEYS), _FALSE_POSITIVE_RATE, sizing="exact")
    fragments = np.zeros(ranges[0].is_empty.size, dtype=bool)
    for columns in keys:
        hashes, valid = _hash_key_rows(list(map(normalized_values, columns)), types)
        sbbf.insert_hashes(hashes[valid])
        fragments |= fragments_with_keys(ranges, columns)
    return sbbf, fragments


def _is_searchable(kind: pa.DataType) -> bool:
    """Return whether PyArrow can search sorted values of a type."""
    if pt.is_nested(kind) or pt.is_dictionary(kind):
        return False
    try:
        _search_sorted(pa.nulls(0, kind), pa.nulls(0, kind), "left")
    except pa.ArrowNotImplementedError:
        return False
    return True


def _search_sorted(ends: pa.Array, values: pa.Array, side: str) -> np.ndarray:
    compute: Any = pc
    return to_numpy(compute.search_sorted(ends, values, side=side)).astype(np.int64)
