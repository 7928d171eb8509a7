"""Let the few keys of one side of a join choose the zones of the other side that are read."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from zonebloom.base.text import bytes_text
from zonebloom.facade.dataset import Dataset
from zonebloom.scan.key_candidates import keys_predicate, searchable_columns
from zonebloom.scan.planner import search_result
from zonebloom.spark.joins.cost import RuleTooCostly, estimate_bytes
from zonebloom.spark.joins.sides import JoinSide, RuleNotUsed, key_mismatch_reason
from zonebloom.spark.versions import arrow_table, frame_of_arrow

# It takes as long to find the zones that can be skipped as to read this many bytes.
_MIN_BYTES_TO_PRUNE = 64 << 20
# The cost of the Python data source, in bytes that Spark's own reader reads in the same time: a
# fixed cost, and a factor for each byte.
_ZONES_FIXED_COST, _ZONES_COST_FACTOR = 32 << 20, 2
# Keys are an option of the load, which Spark copies to several processes.
_MAX_KEY_BYTES = 4 << 20
# The driver collects a small side of at most this many bytes.
_MAX_SIDE_BYTES = 64 << 20


def apply_zones_rule(
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
    frame, keys = _collect_side(other.frame, key_names, max_keys)
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


def _collect_side(frame: DataFrame, names: list[str], max_keys: int) -> tuple[DataFrame, pa.Table]:
    """Compute a small frame once; return its rows as a frame, and its keys without nulls.

    A frame that is computed twice may return different rows, for example with limit().
    """
    if max_keys < 1:
        raise RuleNotUsed("max_keys is 0")
    if len(set(frame.columns)) < len(frame.columns):
        raise RuleNotUsed("several columns of the other side have the same name")
    try:
        rows = arrow_table(frame.limit(max_keys + 1))
    except Exception as error:
        # Arrow may lack a type of the frame. Any other error will occur in the join again.
        lines = str(error).splitlines() or [type(error).__name__]
        raise RuleNotUsed(f"the other side cannot be collected: {lines[0]}") from error
    if rows.num_rows > max_keys:
        raise RuleNotUsed(f"the other side has more than max_keys={max_keys:,} rows")
    # Arrow drops only nulls; dropna() of a frame would also drop NaN.
    keys = rows.select(names).drop_null()
    if rows.nbytes > _MAX_SIDE_BYTES:
        raise RuleNotUsed(f"the other side has {rows.nbytes:,} bytes in few rows")
    return frame_of_arrow(frame.sparkSession, rows, frame.schema), keys
