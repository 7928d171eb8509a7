"""Choose what to read to find the rows of keys: which files, and which zones of them.

    keys -> zones    indices look up keys, and may exclude some    search_indices
         -> files    key ranges exclude files                      fragment_key_ranges
         -> pages    what to read of each file                     plan_candidates
         -> rows     rows are compared with the keys

`zonebloom.scan.locate` takes these steps in this process, and `zonebloom.spark.tagging.locate` in
Spark's tasks, which compare rows with a Bloom filter of the keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial, reduce
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from zonebloom.index.key_search import COMPARED_BY_KERNELS, FILTERED_BY_ARROW, ReadCost
from zonebloom.index.matching import LoadedIndex
from zonebloom.predicates import IsIn, Predicate
from zonebloom.predicates.ast import ColumnPath, HasTuple
from zonebloom.predicates.tuples import tuples_of_keys
from zonebloom.scan.plan import FragmentPlan
from zonebloom.scan.planner import plan_fragments
from zonebloom.scan.search import Search
from zonebloom.snapshot import Snapshot

# More keys than this are in almost every zone, unless an index finds few zones for each.
MAX_SEARCHED_KEYS = 1 << 14
# The position of a file among the present ones, and its plan.
NumberedPlan: TypeAlias = tuple[int, FragmentPlan]


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
