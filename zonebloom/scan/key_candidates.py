"""Choose what to read to find the rows of keys: which files, and which zones of them.

    keys -> zones    indices look up keys, and may exclude some    search_indices
         -> files    key ranges exclude files                      fragment_key_ranges
         -> pages    what to read of each file                     plan_candidates
         -> rows     rows are compared with the keys

`zonebloom.scan.locate` takes these steps in this process, and `zonebloom.spark.tagging.locate` in
Spark's tasks, which compare rows with a Bloom filter of the keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from zonebloom.base.arrays import array_of
from zonebloom.errors import EncryptedIndex, IndexNotFound
from zonebloom.index.key_search import COMPARED_BY_KERNELS, FILTERED_BY_ARROW, ReadCost
from zonebloom.index.matching import LoadedIndex
from zonebloom.index.zone_map.bounds import ZoneBounds
from zonebloom.predicates import IsIn, Predicate
from zonebloom.predicates.ast import ColumnPath, HasTuple
from zonebloom.predicates.tuples import tuples_of_keys
from zonebloom.sbbf.filter import Sbbf
from zonebloom.sbbf.hashing import hash_array
from zonebloom.scan.key_values import normalized_column, normalized_values
from zonebloom.scan.plan import FragmentPlan
from zonebloom.scan.planner import plan_fragments
from zonebloom.scan.search import Search, file_bounds
from zonebloom.snapshot import Snapshot
from zonebloom.values.normal_types import decoded_type
from zonebloom.values.types import hash_domain

# False positive rate: one row in 500 is compared with the keys needlessly.
_FALSE_POSITIVE_RATE = 0.002
# With more keys than this the filter stays at 64 MiB, and its false positive rate grows.
_MAX_FILTER_KEYS = 1 << 25
_SAMPLE_KEYS = 1 << 12
_HASH_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
# More keys than this are in almost every zone, unless an index finds few zones for each.
MAX_SEARCHED_KEYS = 1 << 14
# The position of a file among the present ones, and its plan.
NumberedPlan: TypeAlias = tuple[int, FragmentPlan]


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


def fragment_key_ranges(snapshot: Snapshot, column: str, kind: pa.DataType) -> ZoneBounds:
    """Return the bounds of the values in each fragment, with bounds of type ``kind``."""
    source, present = snapshot.source, snapshot.fragments
    if column in source.constant_columns():
        value_type = decoded_type(source.schema.field(column).type)
        path_values = [source.constants(file.fragment).get(column) for file in present]
        return ZoneBounds.of_values(pa.array(path_values, value_type).cast(kind))
    try:
        return file_bounds(snapshot, column).cast(kind)
    except (IndexNotFound, EncryptedIndex, pa.ArrowException):
        return ZoneBounds.unknown(kind, len(present))


def fragments_with_keys(ranges: Sequence[ZoneBounds], columns: Sequence[pa.Array]) -> np.ndarray:
    """Return a mask of the fragments whose ranges of every key column may hold some keys."""
    return np.logical_and.reduce(
        [column_ranges.may_hold(keys) for column_ranges, keys in zip(ranges, columns, strict=True)]
    )


def summarize_keys(
    keys: Iterable[Sequence[pa.Array]],
    num_keys: int,
    types: Sequence[pa.DataType],
    ranges: Sequence[ZoneBounds],
) -> tuple[Sbbf, np.ndarray]:
    """Return a Bloom filter of the keys without a null, and a mask of fragments that may hold any.

    ``keys`` yields batches of keys as one array per key column.
    """
    sbbf = Sbbf(min(max(num_keys, 1), _MAX_FILTER_KEYS), _FALSE_POSITIVE_RATE, sizing="exact")
    fragments = np.zeros(ranges[0].lengths.size, dtype=bool)
    for columns in keys:
        hashes, valid = _hash_key_rows(list(map(normalized_values, columns)), types)
        sbbf.insert_hashes(hashes[valid])
        fragments |= fragments_with_keys(ranges, columns)
    return sbbf, fragments


def searchable_columns(
    indices: Iterable[LoadedIndex], columns: Iterable[ColumnPath]
) -> set[ColumnPath]:
    """Return the columns whose keys an index looks up, alone or together with others of them."""
    given = set(columns)
    return {
        column
        for index in indices
        if given.issuperset(index.columns) and (index.hashes_values or index.rule.other_columns)
        for column in index.columns
    }


def key_conditions(
    keys: Mapping[ColumnPath, pa.Array], indices: Iterable[LoadedIndex]
) -> list[HasTuple | IsIn]:
    """Return conditions that the rows of all keys meet, for a search of the given indices.

    ``keys`` has the values of the keys in each column, without nulls. Each column holds one of
    them, and if an index is of several of these columns, they hold one of the tuples of the keys.
    """
    combinations = [index.columns for index in indices if index.rule.other_columns]
    return [*tuples_of_keys(keys, combinations), *map(IsIn, keys.keys(), keys.values())]


def cost_of_keys(num_keys: int) -> ReadCost:
    """Return the cost of reading rows and comparing them with so many keys."""
    return COMPARED_BY_KERNELS if num_keys > MAX_SEARCHED_KEYS else FILTERED_BY_ARROW


def existing_keys(search: Search, conditions: Iterable[Predicate]) -> np.ndarray | None:
    """Return the positions of keys that a row may hold, or None if that may be all of them."""
    found = [search.existing_keys.get(id(condition)) for condition in conditions]
    positions = [existing for _, existing in filter(None, found)]
    return reduce(partial(np.intersect1d, assume_unique=True), positions) if positions else None


def plan_candidates(
    snapshot: Snapshot, search: Search | None, may_hold: np.ndarray
) -> list[NumberedPlan]:
    """Return the plans of the files that may hold a key, with the identities of the files.

    Parameters
    ----------
    snapshot : Snapshot
    search : Search or None
        The result of a search for a condition that the rows of all keys meet. Without it, files
        are read whole.
    may_hold : bool array
        Which files of the snapshot may hold a key, by their key ranges.
    """
    present = snapshot.fragments
    numbers = {present[i].fragment.path: i for i in np.flatnonzero(may_hold).tolist()}
    if not numbers:
        return []
    if search is None:
        plans = [FragmentPlan(file.fragment, None) for file in present]
    else:
        plans = plan_fragments(snapshot, search)
    numbered_plans = ((numbers.get(plan.fragment.path), plan) for plan in plans)
    return [
        (number, replace(plan, identity=present[number].identity))
        for number, plan in numbered_plans
        if number is not None
    ]
