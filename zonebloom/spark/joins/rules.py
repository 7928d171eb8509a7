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
from zonebloom.spark.joins.cost import NotWorthIt, is_broadcast, num_bytes, require_few_pass
from zonebloom.spark.joins.global_filter import fitted, only_held, whole_filter, why_not
from zonebloom.spark.joins.key_origin import require_own_column
from zonebloom.spark.joins.sides import Side, StepAside, collected, why_keys_differ
from zonebloom.spark.session import is_classic, quoted
from zonebloom.spark.types import INTEGERS

# Spark reads less within the time it takes to find out what need not be read; and as there are
# fewer files than zones to skip, so many times as much must be there.
_LEAST_BYTES, _FILES_TIMES = 64 << 20, 4
# What the Python data source costs: in bytes that Spark's own reader reads meanwhile, and for each
# byte read.
_ZONES_BYTES, _ZONES_TIMES = 32 << 20, 2
# Each literal of a condition costs planning time.
_MOST_LITERALS = 200


def by_keys(
    spark: SparkSession, side: Side, other: Side, on: Sequence[str], max_keys: int
) -> tuple[dict[str, DataFrame], str]:
    """Both sides, of one only zones or files that may hold keys of the other."""
    files = side.index
    assert files is not None
    names = _names_to_ask(files, side, other, on)
    whole = num_bytes(files, side.num_columns)
    if whole < (_LEAST_BYTES if side.is_read else _LEAST_BYTES * _FILES_TIMES):
        raise NotWorthIt(f"Spark reads {bytes_text(round(whole))} of {side.name} only")
    frame, keys = collected(other.frame(spark), [other.key(name).name for name in names], max_keys)
    keys = keys.rename_columns([side.key(name).name for name in names])
    zones, kept, num_files = _shares(files, keys)
    by_zones = zones * whole * _ZONES_TIMES + _ZONES_BYTES if side.is_read else whole
    terms = _terms(side, keys) if is_classic(spark) else []
    by_files = kept * whole if terms else whole
    found = f"{keys.num_rows:,} keys of {other.name}"
    if min(by_zones, by_files) > whole / 2:
        raise NotWorthIt(f"{found} are in {zones:.0%} of the zones and {kept:.0%} of the files")
    if by_zones < by_files:
        sentence = f"zones of {side.name} that may hold one of {found}: {zones:.1%} is read"
        return {side.name: side.zones(spark, keys), other.name: frame}, sentence
    pruned = side.pruned(side.frame(spark).where(reduce(and_, terms)))
    sentence = f"files of {side.name} that may hold one of {found}: {num_files:,} are read"
    return {side.name: pruned, other.name: frame}, sentence


def may_have_few_keys(spark: SparkSession, side: Side, other: Side) -> bool:
    """Whether keys of another side are to be looked at for what is read of one."""
    return side.is_read or (
        side.index is not None and is_classic(spark) and is_broadcast(spark, other)
    )


def _names_to_ask(files: Dataset, side: Side, other: Side, on: Sequence[str]) -> list[str]:
    """The keys that an index of one side answers for those of the other."""
    indexed = {index.column for index in files.describe_indices()}
    reasons = {
        name: why_keys_differ(side.key(name), other.key(name))
        if side.key(name).name in indexed
        else f"there is no index on {side.key(name).name!r}"
        for name in on
    }
    names = [name for name, reason in reasons.items() if reason is None]
    if not names:
        raise StepAside("; ".join(filter(None, reasons.values())))
    return names


def _shares(files: Dataset, keys: pa.Table) -> tuple[float, float, int]:
    """Shares of a dataset in zones, and in files, that may hold one of some keys, and the files."""
    columns = zip(keys.column_names, keys.columns, strict=True)
    terms = tuple(IsIn((name,), column.unique()) for name, column in columns)
    planner = files.opened.planner
    rows = planner.search(And(terms)).at_most
    held = by_fragment(rows)
    present = planner.to_read().present
    sizes = [(each.identity.size, each.fragment_id in held) for each in present]
    total = sum(map(planner.count_rows, present))
    kept = sum(size for size, is_held in sizes if is_held)
    return len(rows) / max(total, 1), kept / max(sum(s for s, _ in sizes), 1), len(held)


def _terms(side: Side, keys: pa.Table) -> list[Column]:
    """Conditions that a key is one of some values, of types whose literals are the very values."""
    exact = (*INTEGERS, st.StringType, st.BinaryType)
    return [
        sf.col(quoted(name)).isin(values.to_pylist())
        for name, values in ((name, keys[name].unique()) for name in keys.column_names)
        if isinstance(side.key(name).dataType, exact) and len(values) <= _MOST_LITERALS
    ]


def by_filter(
    spark: SparkSession, side: Side, other: Side, name: str, is_stored: bool, frame: DataFrame
) -> tuple[DataFrame, str]:
    """The rows of a side whose keys the filter over all keys of the other side may hold."""
    key, other_key = side.key(name), other.key(name)
    assert other.index is not None
    sbbf, arrow, added = whole_filter(other.index, name)
    for column in (key, other_key):
        why = why_not(column, arrow)
        if why is not None:
            raise StepAside(why)
    is_stored |= other.is_read
    require_own_column(other.frame(spark), other_key.name, other.index, is_stored)
    sbbf = fitted(spark, sbbf)
    passing = require_few_pass(spark, side, key.name, sbbf, arrow)
    return only_held(frame, key, sbbf, arrow), (
        f"rows of {side.name} whose {key.name} is none of {other.name} are dropped before they "
        f"are shuffled: filter of {bytes_text(sbbf.nbytes)}, which lets about "
        f"{sbbf.estimated_fpp:.2%} of other keys pass, looked up by Spark expressions{added}"
        f"{passing}"
    )
