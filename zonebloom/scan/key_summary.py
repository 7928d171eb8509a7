"""What is known of many keys, of one column or several: a filter of them, asked for every row, and
the fragments whose key ranges hold any.
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

# A row in five hundred is held against the keys in vain.
_PROBABILITY = 0.002
# The filter of more keys is of the same size, 64 MiB, and more rows are held against them in vain.
_MOST_KEYS = 1 << 25
_FEW_KEYS = 1 << 12
_MIX = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class KeyBloomFilter:
    """The rows that may equal a key, as a filter of a scan; NaN may equal NaN.

    Attributes
    ----------
    paths : tuple of column paths
    types : tuple of DataType
        In which keys and rows are compared.
    sbbf : Sbbf
        Of all keys without a null.
    """

    paths: tuple[ColumnPath, ...]
    types: tuple[pa.DataType, ...]
    sbbf: Sbbf

    @property
    def columns(self) -> frozenset[str]:
        """Columns that it reads."""
        return frozenset(path[0] for path in self.paths)

    def __str__(self) -> str:
        return f"keys of {', '.join(sorted(self.columns))}"

    def matching_rows(self, table: pa.Table) -> np.ndarray:
        """Numbers of the rows that may equal a key, ascending."""
        hits = [np.empty(0, dtype=bool)]
        for batch in table.to_batches():
            columns = [comparable_column(batch, path) for path in self.paths]
            hashes, valid = _hash_rows(columns, self.types)
            hits.append(self.sbbf.check_hashes(hashes) & valid)
        return np.flatnonzero(np.concatenate(hits))


def _hash_rows(
    columns: Sequence[pa.Array], types: Sequence[pa.DataType]
) -> tuple[np.ndarray, np.ndarray]:
    """Hashes of rows, one for all that are equal in some types, and whether a row has no null."""
    hashes: Any = None
    valid = np.ones(len(columns[0]), dtype=bool)
    for column, kind in zip(columns, types, strict=True):
        hashed = hash_array(_comparable(column, kind))
        if hashed.null_count:
            valid &= hashed.is_valid()
        # Odd multipliers keep all bits; the order of the columns counts.
        hashes = hashed.values if hashes is None else hashes * _MIX + hashed.values
    return np.ascontiguousarray(hashes), valid


def _comparable(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Plain values by the bytes of a type, of NaN one."""
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
    """Key ranges of fragments in one column.

    Attributes
    ----------
    minimum, maximum : Array
        Null where they are not known: such a fragment may hold any key.
    is_empty : bool array
        Where it is known that there is no value.
    """

    minimum: pa.Array
    maximum: pa.Array
    is_empty: np.ndarray

    @classmethod
    def unknown(cls, kind: pa.DataType, count: int) -> FragmentKeyRanges:
        """Those of so many fragments of which nothing is known."""
        nothing = pa.nulls(count, kind)
        return cls(nothing, nothing, np.zeros(count, dtype=bool))

    def may_hold(self, keys: pa.Array) -> np.ndarray:
        """Which fragments may hold any of some keys; a null is in none, and NaN may be in any."""
        # An instant is the same in any zone.
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
            # Of keys in no order a few tell that no fragment is without any.
            for some in (keys.slice(0, _FEW_KEYS), keys.slice(_FEW_KEYS)):
                if not hit.all():
                    hit[known] |= self._known_to_hold(some)
        return hit & ~self.is_empty

    def _known_to_hold(self, keys: pa.Array) -> np.ndarray:
        """Which fragments with known ends may hold any of some keys."""
        ends, low, high = self._ends
        # How many keys are at or below each end, and how many below it: ends are fewer to sort.
        at_most, below = (
            np.bincount(_search(ends, keys, side), minlength=len(ends) + 1).cumsum()
            for side in ("left", "right")
        )
        return at_most[high] > below[low]

    @cached_property
    def _ends(self) -> tuple[pa.Array, np.ndarray, np.ndarray]:
        """Known ends in order, and where those of each fragment are among them."""
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
    """What is known of the fragments there are, in the type keys of a column have."""
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
        # Files came or changed between.
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
    """Which fragments may hold any of some keys, by every key column."""
    return np.logical_and.reduce(
        [column_ranges.may_hold(keys) for column_ranges, keys in zip(ranges, columns, strict=True)]
    )


def summarize_keys(
    keys: Iterable[Sequence[pa.Array]],
    num_keys: int,
    types: Sequence[pa.DataType],
    ranges: Sequence[FragmentKeyRanges],
) -> tuple[Sbbf, np.ndarray]:
    """Pass over keys, given by their columns: a filter of those without a null, and which fragments
    may hold any."""
    sbbf = Sbbf(min(max(num_keys, 1), _MOST_KEYS), _PROBABILITY, sizing="exact")
    fragments = np.zeros(ranges[0].is_empty.size, dtype=bool)
    for columns in keys:
        hashes, valid = _hash_rows(list(map(comparable_values, columns)), types)
        sbbf.insert_hashes(hashes[valid])
        fragments |= fragments_with_keys(ranges, columns)
    return sbbf, fragments


def _can_order(kind: pa.DataType) -> bool:
    """Whether values of a type can be searched among others."""
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
