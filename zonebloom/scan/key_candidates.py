"""Choose what to read to find the rows of keys: which files, and which zones of them.

    keys -> files    key ranges exclude files                FragmentKeyRanges, summarize_keys
         -> zones    indices look up a few keys              plan_candidates
         -> rows     a Bloom filter of the keys excludes     KeyBloomFilter
                     rows before the rest is decoded
         -> places   the caller compares the rows that are left with the keys exactly

`zonebloom.scan.locate` takes these steps in this process, and `zonebloom.spark.tagging.locate` in
Spark's tasks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from zonebloom.predicates import IsIn
from zonebloom.scan.plan import FragmentPlan
from zonebloom.scan.planner import plan_fragments
from zonebloom.scan.search import Search
from zonebloom.snapshot import Snapshot

# With more keys than this, almost every zone may hold one, so they are not looked up in indices.
MAX_SEARCHED_KEYS = 1 << 14
# The position of a file among the present ones, and its plan.
NumberedPlan: TypeAlias = tuple[int, FragmentPlan]


def key_terms(keys: pa.Table, names: Iterable[str]) -> list[IsIn]:
    """Return, for each named column, the predicate that it holds one of the keys."""
    return [IsIn((name,), keys[name].unique().drop_null()) for name in names]


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
