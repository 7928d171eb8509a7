"""The two rules of a filtered join.

Key rule: the few keys of one side choose the zones of the other side that are read.
Filter rule: a filter over all keys of one side drops rows of the other side before the shuffle.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from zonebloom.base.text import bytes_text
from zonebloom.facade.dataset import Dataset
from zonebloom.scan.key_candidates import keys_predicate, searchable_columns
from zonebloom.scan.planner import search_result
from zonebloom.spark.joins.cost import RuleTooCostly, estimate_bytes, require_selective
from zonebloom.spark.joins.global_filter import (
    filter_mismatch_reason,
    fit_to_memory,
    keep_possible_matches,
    load_filter,
)
from zonebloom.spark.joins.key_origin import require_stored_column
from zonebloom.spark.joins.sides import JoinSide, RuleNotUsed, collect_side, key_mismatch_reason

# It takes as long to find the zones that can be skipped as to read this many bytes.
_MIN_BYTES_TO_PRUNE = 64 << 20
# The cost of the Python data source, in bytes that Spark's own reader reads in the same time: a
# fixed cost, and a factor for each byte.
_ZONES_FIXED_COST, _ZONES_COST_FACTOR = 32 << 20, 2
# Keys are an option of the load, which Spark copies to several processes.
_MAX_KEY_BYTES = 4 << 20


def apply_key_rule(
    side: JoinSide, other: JoinSide, on: Sequence[str], max_keys: int
) -> tuple[dict[str, DataFrame], str]:
    """Return both sides by name. An `Indexed` side reads only zones that may hold keys of `other`.

    Also return a sentence about it. Raise `RuleNotUsed` if the rule cannot be used or saves little.
    """
    files = side.index
    assert files is not None
    names = _searchable_names(files, side, other, on)
    total_bytes = estimate_bytes(files, side.num_columns)
    if total_bytes < _MIN_BYTES_TO_PRUNE:
        raise RuleTooCostly(f"Spark reads only {bytes_text(round(total_bytes))} of {side.name}")
    key_names = [other.key_field(name).name for name in names]
    frame, keys = collect_side(other.frame, key_names, max_keys)
    keys_text = f"{keys.num_rows:,} keys of {other.name}"
    keys = keys.rename_columns([side.key_field(name).name for name in names])
    keys, share = _find_zones(files, keys)
    zones_cost = share * total_bytes * _ZONES_COST_FACTOR + _ZONES_FIXED_COST
    if zones_cost > total_bytes / 2 or keys.nbytes > _MAX_KEY_BYTES:
        raise RuleTooCostly(
            f"{bytes_text(keys.nbytes)} of {keys_text} are in {share:.0%} of the zones"
        )
    sentence = f"zones of {side.name} that may hold one of {keys_text}: {share:.1%} is read"
    return {side.name: side.read_zones(keys), other.name: frame}, sentence


def _searchable_names(
    files: Dataset, side: JoinSide, other: JoinSide, on: Sequence[str]
) -> list[str]:
    """Return the key columns for which an index of one side can look up keys of the other."""
    stored_names = {name: side.key_field(name).name for name in on}
    reasons = {
        name: key_mismatch_reason(side.key_field(name), other.key_field(name)) for name in on
    }
    comparable = [(stored_names[name],) for name in on if reasons[name] is None]
    indexed = searchable_columns(files.opened.indices.values(), comparable)
    names = [name for name in on if (stored_names[name],) in indexed]
    if not names:
        no_index = {name: f"there is no index on {stored_names[name]!r}" for name in on}
        raise RuleNotUsed("; ".join(reasons[name] or no_index[name] for name in on))
    return names


def _find_zones(files: Dataset, keys: pa.Table) -> tuple[pa.Table, float]:
    """Return the keys that may be in the files, and the share of rows in zones with such keys."""
    predicate = keys_predicate(keys, keys.column_names, files.opened.indices.values())
    snapshot, search = files.opened.search(predicate)
    num_rows = sum(map(snapshot.count_rows, snapshot.fragments))
    share = len(search_result(snapshot, search).at_most) / max(num_rows, 1)
    for listed, existing in search.existing_keys.values():
        is_existing = pc.call_function(
            "is_in", [keys[listed.column[0]]], pc.SetLookupOptions(existing.values)
        )
        keys = keys.filter(is_existing)
    return keys, share


def apply_filter_rule(
    side: JoinSide, other: JoinSide, name: str, is_stored: bool, frame: DataFrame
) -> tuple[DataFrame, str]:
    """Return the rows of a side whose keys may be in the other side's filter, and a sentence.

    Raise `RuleNotUsed` if the filter cannot or need not be used.
    """
    key, other_key = side.key_field(name), other.key_field(name)
    assert other.index is not None
    sbbf, arrow, added_text = load_filter(other.index, name)
    for column in (key, other_key):
        reason = filter_mismatch_reason(column, arrow)
        if reason is not None:
            raise RuleNotUsed(reason)
    is_stored |= other.is_indexed_files
    require_stored_column(other.frame, other_key.name, other.index, is_stored)
    sbbf = fit_to_memory(side.spark, sbbf)
    passing_text = require_selective(side, key.name, sbbf, arrow)
    return keep_possible_matches(frame, key, sbbf, arrow), (
        f"rows of {side.name} whose {key.name} is none of {other.name} are dropped before they "
        f"are shuffled: filter of {bytes_text(sbbf.nbytes)}, which lets about "
        f"{sbbf.estimated_fpp:.2%} of other keys pass, tested by Spark expressions{added_text}"
        f"{passing_text}"
    )
