"""The two rules of a filtered join.

Key rule: the few keys of one side choose the zones or files of the other side that are read.
Filter rule: a filter over all keys of one side drops rows of the other side before the shuffle.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import and_

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from zonebloom.base.row_ranges import by_fragment
from zonebloom.base.text import bytes_text
from zonebloom.facade.dataset import Dataset
from zonebloom.scan.key_candidates import keys_predicate, searchable_columns
from zonebloom.scan.planner import search_result
from zonebloom.spark.joins.cost import (
    RuleTooCostly,
    estimate_bytes,
    is_broadcast,
    require_selective,
)
from zonebloom.spark.joins.global_filter import (
    filter_mismatch_reason,
    fit_to_memory,
    keep_possible_matches,
    load_filter,
)
from zonebloom.spark.joins.key_origin import require_stored_column
from zonebloom.spark.joins.sides import JoinSide, RuleNotUsed, collect_side, key_mismatch_reason
from zonebloom.spark.session_settings import quote_name
from zonebloom.spark.types import INTEGER_TYPES
from zonebloom.spark.versions import HAS_PYTHON_SOURCES, is_classic

# It takes as long to find what can be skipped as to read this many bytes. Skipping files saves less
# than skipping zones, so it must be worth this factor more bytes.
_MIN_BYTES_TO_PRUNE, _FILES_FACTOR = 64 << 20, 4
# The cost of the Python data source, in bytes that Spark's own reader reads in the same time: a
# fixed cost, and a factor for each byte.
_ZONES_FIXED_COST, _ZONES_COST_FACTOR = 32 << 20, 2
# Keys are an option of the load, which Spark copies to several processes.
_MAX_KEY_BYTES = 4 << 20
# Each literal of a condition costs planning time.
_MAX_LITERALS = 200


def apply_key_rule(
    spark: SparkSession, side: JoinSide, other: JoinSide, on: Sequence[str], max_keys: int
) -> tuple[dict[str, DataFrame], str]:
    """Return both sides by name. `side` reads only zones or files that may hold keys of `other`.

    Also return a sentence about it. Raise `RuleNotUsed` if the rule cannot be used or saves little.
    """
    files = side.index
    assert files is not None
    names = _searchable_names(files, side, other, on)
    total_bytes = estimate_bytes(files, side.num_columns)
    if total_bytes < (
        _MIN_BYTES_TO_PRUNE if side.is_indexed_files else _MIN_BYTES_TO_PRUNE * _FILES_FACTOR
    ):
        raise RuleTooCostly(f"Spark reads only {bytes_text(round(total_bytes))} of {side.name}")
    frame, keys = collect_side(
        other.frame(spark), [other.key_field(name).name for name in names], max_keys
    )
    keys = keys.rename_columns([side.key_field(name).name for name in names])
    num_keys = keys.num_rows
    keys, zone_share, file_share, num_files = _find_candidates(files, keys)
    zone_cost = float(total_bytes)
    if side.is_indexed_files and HAS_PYTHON_SOURCES and keys.nbytes <= _MAX_KEY_BYTES:
        zone_cost = zone_share * total_bytes * _ZONES_COST_FACTOR + _ZONES_FIXED_COST
    terms = _key_conditions(side, keys) if is_classic(spark) else []
    file_cost = file_share * total_bytes if terms else total_bytes
    keys_text = f"{num_keys:,} keys of {other.name}"
    if min(zone_cost, file_cost) > total_bytes / 2:
        raise RuleTooCostly(
            f"{keys_text} are in {zone_share:.0%} of the zones and {file_share:.0%} of the files"
        )
    if zone_cost < file_cost:
        sentence = (
            f"zones of {side.name} that may hold one of {keys_text}: {zone_share:.1%} is read"
        )
        return {side.name: side.read_zones(spark, keys), other.name: frame}, sentence
    pruned_frame = side.prune(side.frame(spark).where(reduce(and_, terms)))
    sentence = f"files of {side.name} that may hold one of {keys_text}: {num_files:,} are read"
    return {side.name: pruned_frame, other.name: frame}, sentence


def may_have_few_keys(spark: SparkSession, side: JoinSide, other: JoinSide) -> bool:
    """Return whether `apply_key_rule` may be able to skip parts of a side."""
    return side.is_indexed_files or (
        side.index is not None and is_classic(spark) and is_broadcast(spark, other)
    )


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


def _find_candidates(files: Dataset, keys: pa.Table) -> tuple[pa.Table, float, float, int]:
    """Return the keys that may be in the files, and where.

    The places are the share of rows in zones that may hold a key, the share of bytes in files that
    may, and the number of these files.
    """
    predicate = keys_predicate(keys, keys.column_names, files.opened.indices.values())
    snapshot, search = files.opened.search(predicate)
    rows = search_result(snapshot, search).at_most
    candidates = by_fragment(rows)
    fragments = snapshot.fragments
    total_rows = sum(map(snapshot.count_rows, fragments))
    total_bytes = sum(fragment.identity.size for fragment in fragments)
    kept_bytes = sum(
        fragment.identity.size for fragment in fragments if fragment.fragment_id in candidates
    )
    zone_share, file_share = len(rows) / max(total_rows, 1), kept_bytes / max(total_bytes, 1)
    for listed, existing in search.existing_keys.values():
        is_existing = pc.call_function(
            "is_in", [keys[listed.column[0]]], pc.SetLookupOptions(existing.values)
        )
        keys = keys.filter(is_existing)
    return keys, zone_share, file_share, len(candidates)


def _key_conditions(side: JoinSide, keys: pa.Table) -> list[Column]:
    """Return conditions that a key column has one of the keys, for types with exact literals."""
    exact = (*INTEGER_TYPES, st.StringType, st.BinaryType)
    return [
        sf.col(quote_name(name)).isin(values.to_pylist())
        for name, values in ((name, keys[name].unique()) for name in keys.column_names)
        if isinstance(side.key_field(name).dataType, exact) and len(values) <= _MAX_LITERALS
    ]


def apply_filter_rule(
    spark: SparkSession,
    side: JoinSide,
    other: JoinSide,
    name: str,
    is_stored: bool,
    frame: DataFrame,
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
    require_stored_column(other.frame(spark), other_key.name, other.index, is_stored)
    sbbf = fit_to_memory(spark, sbbf)
    passing_text = require_selective(spark, side, key.name, sbbf, arrow)
    return keep_possible_matches(frame, key, sbbf, arrow), (
        f"rows of {side.name} whose {key.name} is none of {other.name} are dropped before they "
        f"are shuffled: filter of {bytes_text(sbbf.nbytes)}, which lets about "
        f"{sbbf.estimated_fpp:.2%} of other keys pass, tested by Spark expressions{added_text}"
        f"{passing_text}"
    )
