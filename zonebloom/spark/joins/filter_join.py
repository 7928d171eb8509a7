"""filter_join(): a join that shuffles only rows whose keys may occur on the indexed side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame

from zonebloom.base import arguments
from zonebloom.base.notices import warn
from zonebloom.errors import IndexNotUsedWarning, InvalidArgument
from zonebloom.spark.joins.global_filter import apply_filter_rule
from zonebloom.spark.joins.sides import Index, JoinSide, RuleNotUsed
from zonebloom.spark.relation import node_name
from zonebloom.spark.session_settings import byte_count
from zonebloom.spark.versions import is_classic, query_execution

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
    stored_keys: bool = False,
) -> DataFrame:
    """Join two frames, and drop rows early for which the index of one side rules out a match.

    If one side has few keys, they choose the files of the other side, as under `enable`. If both
    sides are large, rows are dropped before Spark shuffles them.

    Parameters
    ----------
    left, right : DataFrame
    on : str or list of str
        Key columns that both sides have. Any of them may be indexed.
    how : {"inner", "left_semi", "left", "right"}
        Full and anti joins are refused: they return the rows without a match, which a filter would
        drop.
    left_index, right_index : path or Dataset
        The files from which the side was read; at least one is needed. Rows are dropped if a column
        of ``on`` has an index that was built with ``global_filter=True``.
        The frame may be any part of those files, also joined with other tables, but its key must
        be their column. If the key is computed, or also comes from elsewhere as in a union, the
        index is not used. A path is opened again, so that the newest files are known. Give a
        Dataset for an index in another folder, for an encrypted one, and for Delta and Iceberg
        tables.
    stored_keys : bool
        Promise that the key of a frame with an index is the files' own column in every row. Over
        Spark Connect this cannot be checked: without the promise the index is not used, and if the
        promise is wrong, rows are lost. A classic session checks it in the plan anyway.

    Returns
    -------
    pyspark.sql.DataFrame
        The rows of ``left.join(right, on, how)`` for the files as they are now. Run it soon: the
        filter in it is not updated when files change. `explain` says what is dropped.

    Raises
    ------
    InvalidArgument
        If the given index would make the join lose rows, or no index is given.
    ColumnNotFound
    NoFragments, FragmentUnreadable, SourceError, UnsupportedType
        If files given by a path cannot be opened.

    Warns
    -----
    IndexNotUsedWarning
        If no filter can be used, with all reasons. The join is then Spark's own. There is no
        warning if a classic session shuffles nothing that a filter could save.

    Notes
    -----
    The filter is broadcast, and may take a sixteenth of the memory of the driver and of the
    executors. Keys of files that were added after the build are added to the filter now. Over
    Spark Connect, a filter is used whether Spark shuffles or not, because plans are not visible.

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
    _require_usable_index(kind, names, *sides)
    frames = {side.name: side.frame for side in sides}
    join = frames["left"].join(frames["right"], names, kind)
    reasons: list[str] = []
    is_filtered = False
    for side, other in (sides, sides[::-1]):
        if side.name not in _FILTERABLE_SIDES[kind] or other.index is None:
            continue
        if is_classic(spark) and not _is_shuffled(join, side):
            continue
        for name in names:
            try:
                frames[side.name] = apply_filter_rule(
                    side, other, name, stored_keys, frames[side.name]
                )
                is_filtered = True
            except RuleNotUsed as reason:
                reasons.append(f"filter of {name} from {other.name}: {reason}")
    if is_filtered:
        return frames["left"].join(frames["right"], names, kind)
    if reasons:
        text = f"the join is made without an index: {'; '.join(reasons)}"
        warn(IndexNotUsedWarning(text))
    return join


def _is_shuffled(join: DataFrame, side: JoinSide) -> bool:
    """Return whether Spark shuffles a side of a join, which is more than it would broadcast."""
    threshold = byte_count(str(side.spark.conf.get("spark.sql.autoBroadcastJoinThreshold")))
    # The keys of a small side choose the files of the other. A filter of the small side would
    # prevent that.
    statistics = query_execution(side.frame).optimizedPlan().stats()
    if int(statistics.sizeInBytes()) <= threshold:
        return False
    plan = query_execution(join).executedPlan()
    while not node_name(plan).endswith("JoinExec"):
        if node_name(plan) == "AdaptiveSparkPlanExec":
            plan = plan.initialPlan()
        elif plan.children().size() == 1:
            plan = plan.children().head()
        else:
            return False
    return node_name(plan) in ("SortMergeJoinExec", "ShuffledHashJoinExec")


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


def _require_usable_index(kind: str, names: Sequence[str], left: JoinSide, right: JoinSide) -> None:
    if left.index is None and right.index is None:
        raise InvalidArgument("no side has an index; give left_index or right_index")
    filterable = _FILTERABLE_SIDES[kind]
    for side, other in ((left, right), (right, left)):
        for name in names:
            side.key_field(name)
        if side.index is not None and other.name not in filterable:
            raise InvalidArgument(
                f"a {kind} join returns every row of {other.name}, with a match or not, so "
                f"the keys of {side.name} must not filter it; give {other.name}_index, whose "
                f"keys may filter {side.name}"
            )
