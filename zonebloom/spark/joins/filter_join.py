"""filter_join(): a join that reads and shuffles only rows whose keys may occur on both sides.

If one side is small, it is computed, and its keys choose files of the other. Otherwise, the global
filter of one side drops rows of the other before they are shuffled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import types as st

from zonebloom.base import arguments
from zonebloom.base.notices import warn
from zonebloom.errors import EngineError, IndexNotUsedWarning, InvalidArgument
from zonebloom.spark.joins.global_filter import apply_filter_rule
from zonebloom.spark.joins.sides import Index, JoinSide, RuleNotUsed, key_mismatch_reason
from zonebloom.spark.pruning.optimizer_rule import jvm_plans
from zonebloom.spark.relation import node_name
from zonebloom.spark.session_state import session_state
from zonebloom.spark.types import INTEGER_TYPES
from zonebloom.spark.versions import (
    frame_from_jvm,
    java_frame,
    java_session,
    query_execution,
)

# Types whose equal values are the same in the JVM, unlike 0.0 and -0.0.
_EXACT_TYPES = (
    *INTEGER_TYPES,
    *(st.StringType, st.BinaryType, st.DateType, st.TimestampType, st.TimestampNTZType),
    st.DecimalType,
)
# Sides whose rows without a match are not in the result. A filter may drop such rows.
_FILTERABLE_SIDES: dict[str, tuple[str, ...]] = {
    "inner": ("left", "right"),
    "left_semi": ("left", "right"),
    "left": ("right",),
    "right": ("left",),
}


def filter_join(
    left: DataFrame,
    right: DataFrame,
    on: str | Sequence[str],
    how: str = "inner",
    *,
    left_index: Index = None,
    right_index: Index = None,
) -> DataFrame:
    """Join two frames, and read or shuffle no rows for which an index rules out a match.

    If one side is small, this call computes it, and its keys choose the files of the other side.
    If both sides are large, rows are dropped before Spark shuffles them.

    Parameters
    ----------
    left, right : DataFrame
        Of a classic session. Over Spark Connect the join is Spark's own, because a plan is needed
        to tell where a key comes from.
    on : str or list of str
        Key columns that both sides have. Any of them may be indexed.
    how : {"inner", "left_semi", "left", "right"}
        Full and anti joins are refused: they return the rows without a match, which a filter would
        drop.
    left_index, right_index : path or Dataset
        The files from which the side was read. At least one is needed, except under `enable`. Few
        keys of the other side choose these files by any index on a column of ``on``. Rows of a
        large other side are dropped if that index was built with ``global_filter=True``.
        The frame may be any part of those files, also joined with other tables, but its key must
        be their column. If the key is computed, or also comes from elsewhere as in a union, the
        index is not used. A path is opened again, so that the newest files are known. Give a
        Dataset for an index in another folder, for an encrypted one, and for Delta and Iceberg
        tables.

    Returns
    -------
    pyspark.sql.DataFrame
        The rows of ``left.join(right, on, how)`` for the files as they are now. Run it soon: the
        filter in it and the rows of a small side are not updated when files change. `explain` says
        what is dropped.

    Raises
    ------
    InvalidArgument
        If ``how`` returns rows without a match of both sides, or no index is given.
    ColumnNotFound
    NoFragments, FragmentUnreadable, SourceError, UnsupportedType
        If files given by a path cannot be opened.
    pyspark.errors.PySparkException
        If the computation of a small side fails or is cancelled.

    Warns
    -----
    IndexNotUsedWarning
        If no filter can be used, with all reasons. The join is then Spark's own. There is no
        warning if Spark shuffles nothing that a filter could save.

    Notes
    -----
    A side is small if it reads at most ``spark.sql.autoBroadcastJoinThreshold``, with all filters
    that an index answers, and has at most 10,000 rows.

    The filter is broadcast, and may take a sixteenth of the memory of the driver and of the
    executors. Keys of files that were added after the build are added to the filter now.

    Examples
    --------
    >>> few = spark.createDataFrame([(42, "gold"), (-1, "new")], "id bigint, tier string")
    >>> orders = spark.read.parquet("orders")
    >>> joined = zs.filter_join(few, orders, "id", right_index="orders")
    >>> joined.select("customer", "tier").collect()
    [Row(customer='C042', tier='gold')]
    """
    names = arguments.require_names(on, "on")
    if not names:
        raise InvalidArgument("on is empty; name the columns that both sides have")
    kind = _join_kind(how)
    spark: Any = getattr(left, "sparkSession", None)
    sides = JoinSide("left", left, left_index, spark), JoinSide("right", right, right_index, spark)
    _require_usable_index(names, *sides)
    try:
        plans = jvm_plans(spark)
    except EngineError as reason:
        warn(IndexNotUsedWarning(f"the join is made without an index: {reason}"))
        return left.join(right, names, kind)
    frames = {side.name: side.frame for side in sides}
    if _choose_files(plans, kind, names, sides, frames):
        return frames["left"].join(frames["right"], names, kind)
    join = frames["left"].join(frames["right"], names, kind)
    reasons: list[str] = []
    is_filtered = False
    for side, other in (sides, sides[::-1]):
        if other.index is None or not _is_shuffled(join, side):
            continue
        if side.name not in _FILTERABLE_SIDES[kind]:
            reasons.append(
                f"a {kind} join returns every row of {side.name}, so the keys of {other.name} "
                "must not filter it"
            )
            continue
        for name in names:
            try:
                frame = frames[side.name]
                frames[side.name] = apply_filter_rule(side, other, other.index, name, frame)
                is_filtered = True
            except RuleNotUsed as reason:
                reasons.append(f"filter of {name} from {other.name}: {reason}")
    if is_filtered:
        return frames["left"].join(frames["right"], names, kind)
    if reasons:
        text = f"the join is made without an index: {'; '.join(reasons)}"
        warn(IndexNotUsedWarning(text))
    return join


def _choose_files(
    plans: Any,
    kind: str,
    names: Sequence[str],
    sides: tuple[JoinSide, JoinSide],
    frames: dict[str, DataFrame],
) -> bool:
    """Let the keys of a small side choose files of the other. Return whether a side is small.

    In the frames of the sides, put the computed rows in the place of the small side, so that it
    runs once and the joined rows have the keys that chose the files.
    """
    is_enabled = session_state(sides[0].spark).has_rule
    pairs = [pair for pair in (sides, sides[::-1]) if pair[0].name in _FILTERABLE_SIDES[kind]]
    for large, small in sorted(pairs, key=lambda pair: pair[0].index is None):
        keys = [name for name in names if _is_exact_key(large, small, name)]
        if not keys or (large.index is None and not is_enabled):
            continue
        spark = large.spark
        rows = plans.smallSide(java_session(spark), java_frame(small.frame))
        if rows is None:
            continue
        positions = ([side.key_position(name) for name in keys] for side in (large, small))
        filtered = rows.filter(java_frame(large.frame), *positions)
        frames[small.name] = frame_from_jvm(rows.frame(), spark)
        if filtered is not None:
            frames[large.name] = frame_from_jvm(filtered, spark)
        return True
    return False


def _is_exact_key(large: JoinSide, small: JoinSide, name: str) -> bool:
    """Return whether the keys of a column can be told from others by their values in the JVM."""
    key, other_key = large.key_field(name), small.key_field(name)
    return isinstance(key.dataType, _EXACT_TYPES) and key_mismatch_reason(key, other_key) is None


def _is_shuffled(join: DataFrame, side: JoinSide) -> bool:
    """Return whether Spark shuffles a join, and would not broadcast this side of it."""
    plan = query_execution(join).executedPlan()
    while not node_name(plan).endswith("JoinExec"):
        if node_name(plan) == "AdaptiveSparkPlanExec":
            plan = plan.initialPlan()
        elif plan.children().size() == 1:
            plan = plan.children().head()
        else:
            return False
    if node_name(plan) not in ("SortMergeJoinExec", "ShuffledHashJoinExec"):
        return False
    threshold = java_session(side.spark).sessionState().conf().autoBroadcastJoinThreshold()
    statistics = query_execution(side.frame).optimizedPlan().stats()
    return int(statistics.sizeInBytes()) > threshold


def _join_kind(how: str) -> str:
    """Return the join kind for any of Spark's names of it."""
    kind = str(how).lower().replace("_", "").removesuffix("outer")
    kind = "left_semi" if kind in ("semi", "leftsemi") else kind
    if kind not in _FILTERABLE_SIDES:
        raise InvalidArgument(
            f"how is {how!r}; give one of {', '.join(_FILTERABLE_SIDES)}. Full and anti joins "
            "return rows without a match, which a filter would drop: use join()"
        )
    return kind


def _require_usable_index(names: Sequence[str], left: JoinSide, right: JoinSide) -> None:
    is_enabled = session_state(left.spark).has_rule
    if left.index is None and right.index is None and not is_enabled:
        raise InvalidArgument("no side has an index; give left_index or right_index")
    for name in names:
        left.key_position(name)
        right.key_position(name)
