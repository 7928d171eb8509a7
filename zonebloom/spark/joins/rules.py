"""The two rules of a join: few keys of one side choose what is read of the other, or a filter over
all keys of one side chooses the rows of the other that are shuffled.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import and_

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from zonebloom.base.row_ranges import by_fragment
from zonebloom.base.text import bytes_text
from zonebloom.dataset import Dataset
from zonebloom.predicates import And, IsIn
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
from zonebloom.spark.session import is_classic, quote_name
from zonebloom.spark.types import INTEGER_TYPES

# Spark reads less within the time it takes to find out what need not be read; and as there are
# fewer files than zones to skip, so many times as much must be there.
_LEAST_BYTES, _FILES_TIMES = 64 << 20, 4
# What the Python data source costs: in bytes that Spark's own reader reads meanwhile, and for each
# byte read.
_ZONES_BYTES, _ZONES_TIMES = 32 << 20, 2
# Each literal of a condition costs planning time.
_MOST_LITERALS = 200


def apply_key_rule(
    spark: SparkSession, side: JoinSide, other: JoinSide, on: Sequence[str], max_keys: int
) -> tuple[dict[str, DataFrame], str]:
    """Both sides, of one only zones or files that may hold keys of the other."""
    files = side.index
    assert files is not None
    names = _names_to_ask(files, side, other, on)
    whole = estimate_bytes(files, side.num_columns)
    if whole < (_LEAST_BYTES if side.is_indexed_files else _LEAST_BYTES * _FILES_TIMES):
        raise RuleTooCostly(f"Spark reads {bytes_text(round(whole))} of {side.name} only")
    frame, keys = collect_side(
        other.frame(spark), [other.key_field(name).name for name in names], max_keys
    )
    keys = keys.rename_columns([side.key_field(name).name for name in names])
    zones, kept, num_files = _shares(files, keys)
    by_zones = zones * whole * _ZONES_TIMES + _ZONES_BYTES if side.is_indexed_files else whole
    terms = _terms(side, keys) if is_classic(spark) else []
    by_files = kept * whole if terms else whole
    found = f"{keys.num_rows:,} keys of {other.name}"
    if min(by_zones, by_files) > whole / 2:
        raise RuleTooCostly(f"{found} are in {zones:.0%} of the zones and {kept:.0%} of the files")
    if by_zones < by_files:
        sentence = f"zones of {side.name} that may hold one of {found}: {zones:.1%} is read"
        return {side.name: side.read_zones(spark, keys), other.name: frame}, sentence
    pruned = side.prune(side.frame(spark).where(reduce(and_, terms)))
    sentence = f"files of {side.name} that may hold one of {found}: {num_files:,} are read"
    return {side.name: pruned, other.name: frame}, sentence


def may_have_few_keys(spark: SparkSession, side: JoinSide, other: JoinSide) -> bool:
    """Whether keys of another side are to be looked at for what is read of one."""
    return side.is_indexed_files or (
        side.index is not None and is_classic(spark) and is_broadcast(spark, other)
    )


def _names_to_ask(files: Dataset, side: JoinSide, other: JoinSide, on: Sequence[str]) -> list[str]:
    """The keys that an index of one side answers for those of the other."""
    indexed = {index.column for index in files.describe_indices()}
    reasons = {
        name: key_mismatch_reason(side.key_field(name), other.key_field(name))
        if side.key_field(name).name in indexed
        else f"there is no index on {side.key_field(name).name!r}"
        for name in on
    }
    names = [name for name, reason in reasons.items() if reason is None]
    if not names:
        raise RuleNotUsed("; ".join(filter(None, reasons.values())))
    return names


def _shares(files: Dataset, keys: pa.Table) -> tuple[float, float, int]:
    """Shares of a dataset in zones, and in files, that may hold one of some keys, and the files."""
    columns = zip(keys.column_names, keys.columns, strict=True)
    terms = tuple(IsIn((name,), column.unique()) for name, column in columns)
    planner = files.opened.planner
    rows = planner.search(And(terms)).at_most
    held = by_fragment(rows)
    present = planner.coverage_for_scan().fragments
    sizes = [(each.identity.size, each.fragment_id in held) for each in present]
    total = sum(map(planner.count_rows, present))
    kept = sum(size for size, is_held in sizes if is_held)
    return len(rows) / max(total, 1), kept / max(sum(s for s, _ in sizes), 1), len(held)


def _terms(side: JoinSide, keys: pa.Table) -> list[Column]:
    """Conditions that a key is one of some values, of types whose literals are the very values."""
    exact = (*INTEGER_TYPES, st.StringType, st.BinaryType)
    return [
        sf.col(quote_name(name)).isin(values.to_pylist())
        for name, values in ((name, keys[name].unique()) for name in keys.column_names)
        if isinstance(side.key_field(name).dataType, exact) and len(values) <= _MOST_LITERALS
    ]


def apply_filter_rule(
    spark: SparkSession,
    side: JoinSide,
    other: JoinSide,
    name: str,
    is_stored: bool,
    frame: DataFrame,
) -> tuple[DataFrame, str]:
    """The rows of a side whose keys the filter over all keys of the other side may hold."""
    key, other_key = side.key_field(name), other.key_field(name)
    assert other.index is not None
    sbbf, arrow, added = load_filter(other.index, name)
    for column in (key, other_key):
        why = filter_mismatch_reason(column, arrow)
        if why is not None:
            raise RuleNotUsed(why)
    is_stored |= other.is_indexed_files
    require_stored_column(other.frame(spark), other_key.name, other.index, is_stored)
    sbbf = fit_to_memory(spark, sbbf)
    passing = require_selective(spark, side, key.name, sbbf, arrow)
    return keep_possible_matches(frame, key, sbbf, arrow), (
        f"rows of {side.name} whose {key.name} is none of {other.name} are dropped before they "
        f"are shuffled: filter of {bytes_text(sbbf.nbytes)}, which lets about "
        f"{sbbf.estimated_fpp:.2%} of other keys pass, looked up by Spark expressions{added}"
        f"{passing}"
    )
