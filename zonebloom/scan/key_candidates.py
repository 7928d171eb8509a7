"""Choose what to read to find the rows of keys: which files, and which zones of them.

    keys -> keys     indices of some kinds exclude keys      search_many_keys
         -> files    key ranges exclude files                fragment_key_ranges
         -> zones    indices look up keys                    plan_candidates
         -> rows     rows are compared with the keys

`zonebloom.scan.locate` takes these steps in this process, and `zonebloom.spark.tagging.locate` in
Spark's tasks, which compare rows with a Bloom filter of the keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from zonebloom.base.arrays import from_numpy
from zonebloom.base.row_ranges import RowRanges
from zonebloom.index.key_search import COMPARED_BY_KERNELS, may_pay, search_keys
from zonebloom.index.matching import IndexView, LoadedIndex
from zonebloom.index.row_keys.rules import TupleRule
from zonebloom.predicates import IsIn, Predicate
from zonebloom.predicates.ast import ColumnPath, conjunction
from zonebloom.predicates.tuples import tuples_of_keys
from zonebloom.scan.key_values import normalized_values
from zonebloom.scan.plan import FragmentPlan
from zonebloom.scan.planner import plan_fragments
from zonebloom.scan.search import Search
from zonebloom.snapshot import Snapshot
from zonebloom.values.probe import BulkProbe, hash_keys

# With more keys than this, almost every zone may hold one. So they are only looked up in indices
# whose kind finds few zones for each key.
MAX_SEARCHED_KEYS = 1 << 14
# A function that hashes the keys at each position, given one array of values per column.
_HashTuples: TypeAlias = Callable[[Sequence[pa.Array]], BulkProbe | None]
# The position of a file among the present ones, and its plan.
NumberedPlan: TypeAlias = tuple[int, FragmentPlan]


def key_terms(keys: pa.Table, names: Iterable[str]) -> list[IsIn]:
    """Return, for each named column, the predicate that it holds one of the keys."""
    return [IsIn((name,), keys[name].unique().drop_null()) for name in names]


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


def keys_predicate(
    keys: pa.Table, names: Sequence[str], indices: Iterable[LoadedIndex]
) -> Predicate:
    """Return a condition that the rows of all keys meet, for a search of the given indices.

    Each named column holds one of the keys, and if an index is of several of these columns, they
    hold one of the tuples of the keys.
    """
    values = {(name,): normalized_values(keys[name].combine_chunks()) for name in names}
    combinations = [index.columns for index in indices if index.rule.other_columns]
    return conjunction([*tuples_of_keys(values, combinations), *key_terms(keys, names)])


@dataclass(frozen=True)
class ManyKeySearch:
    """The result of looking up the keys of several columns.

    Attributes
    ----------
    snapshot : Snapshot
    columns : frozenset of column paths
        The columns whose keys were looked up.
    keys : int64 array
        The numbers of the keys that a row may hold, ascending.
    rows : RowRanges
        The addresses of rows that may hold a key.
    views : dict of str to IndexView
        The indices that were searched, by name.
    """

    snapshot: Snapshot
    columns: frozenset[ColumnPath]
    keys: np.ndarray
    rows: RowRanges
    views: dict[str, IndexView]


def search_many_keys(
    snapshot: Snapshot, columns: Mapping[ColumnPath, pa.Array]
) -> ManyKeySearch | None:
    """Look up keys of any number in the indices that find few zones for each key.

    Parameters
    ----------
    snapshot : Snapshot
    columns : mapping of column path to Array
        The values of the keys in each column, in a type that can be compared with the column.

    Returns
    -------
    ManyKeySearch or None
        None if there is no such index, or if reading the rows without it takes less time.
    """
    rows = snapshot.universe
    views: dict[str, IndexView] = {}
    searched_columns: set[ColumnPath] = set()
    numbers: np.ndarray | None = None
    for index, paths, hash_tuples in _indices_to_search(snapshot, columns):
        searched = [columns[path] for path in paths]
        if numbers is not None:
            searched = [values.take(from_numpy(numbers)) for values in searched]
        view, count = snapshot.view(index), len(searched[0])
        bulk = hash_tuples(searched) if may_pay(view, count, COMPARED_BY_KERNELS) else None
        result = None if bulk is None else search_keys(view, bulk, count, COMPARED_BY_KERNELS)
        if result is not None:
            kept = np.flatnonzero(result.may_exist)
            numbers = kept if numbers is None else numbers[kept]
            rows = rows & result.rows
            views[index.entry.name] = view
            searched_columns.update(paths)
    if numbers is None:
        return None
    return ManyKeySearch(snapshot, frozenset(searched_columns), numbers, rows, views)


def _indices_to_search(
    snapshot: Snapshot, columns: Mapping[ColumnPath, pa.Array]
) -> Iterator[tuple[LoadedIndex, Sequence[ColumnPath], _HashTuples]]:
    """Yield the indices that find few zones for each key, their columns, and how to hash keys."""
    for path in columns:
        on_column = snapshot.all_indices_of_column(path)
        for index, types in zip(on_column.indices, on_column.types, strict=True):
            if index.max_searched_keys is not None or not columns.keys() >= set(index.columns):
                continue
            rule = index.rule
            if index.hashes_values:
                yield index, index.columns, partial(_hash_values, types[0])
            elif isinstance(rule, TupleRule):
                yield index, index.columns, partial(rule.hash_tuples, column_types=types)


def _hash_values(column_type: pa.DataType, values: Sequence[pa.Array]) -> BulkProbe | None:
    return hash_keys(column_type, values[0])


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
