"""filter_join(): a join that moves only rows whose keys the indexed side may hold."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame

from zonebloom.base.display import Displayed
from zonebloom.errors import IndexNotUsedWarning, InvalidArgument
from zonebloom.spark.frames import Indexed
from zonebloom.spark.joins.cost import RuleTooCostly, require_shuffle
from zonebloom.spark.joins.rules import apply_filter_rule, apply_key_rule, may_have_few_keys
from zonebloom.spark.joins.sides import Index, JoinSide, RuleNotUsed

# Sides whose rows without a match are not in the result: such rows may be left out.
_MAY_LOSE: dict[str, tuple[str, ...]] = {
    "inner": ("left", "right"),
    "left_semi": ("left", "right"),
    "left": ("right",),
    "right": ("left",),
}


@dataclass(frozen=True, repr=False)
class JoinPlan(Displayed):
    """A join and what was done to it; `str` and HTML show it.

    Attributes
    ----------
    how : str
    on : tuple of str
    used : tuple of str
        What each rule does, a sentence each.
    not_used : tuple of str
        Why a rule is not used, a sentence each.
    is_by_cost : bool
        Whether every rule that is not used would have cost more than it saves.
    frame : pyspark.sql.DataFrame
        The join.
    """

    how: str
    on: tuple[str, ...]
    used: tuple[str, ...]
    not_used: tuple[str, ...]
    is_by_cost: bool
    frame: DataFrame = field(repr=False)

    def __str__(self) -> str:
        lines = [f"ZoneBloomJoin: {self.how} on {', '.join(self.on)}"]
        lines += [f"  {sentence}" for sentence in self.used or ["as Spark joins: no rule is used"]]
        lines += [f"  not used: {sentence}" for sentence in self.not_used]
        return "\n".join(lines)


def filter_join(
    left: DataFrame | Indexed,
    right: DataFrame | Indexed,
    on: str | Sequence[str],
    how: str = "inner",
    *,
    left_index: Index = None,
    right_index: Index = None,
    max_keys: int = 10_000,
    stored_keys: bool = False,
) -> DataFrame:
    """Join two frames, leaving out early what the index of one side says has no match.

    Parameters
    ----------
    left, right : DataFrame or Indexed
        At least one a DataFrame. An `Indexed` side is read here: where the other one is small, and
        few of them hold its keys, by its zones, else by Spark's own reader.
    on : str or list of str
        Columns that both have. Any of them may be indexed.
    how : {"inner", "left_semi", "left", "right"}
        Full and anti joins give the rows without a match, which a filter would drop.
    left_index, right_index : path or Dataset, optional
        The files that side was read from, with an index on a column of `on` that was built with
        ``global_filter=True``. Of an `Indexed` side it is known.
        The frame may be any part of those files, joined with others or not, as long as its key
        is their column: of one that is computed, or comes from elsewhere too as a union has it,
        the index is not used. A path is opened anew, so it knows the newest files; a Dataset is for
        an index that lies elsewhere, and for Delta and Iceberg tables.
    max_keys : int
        Rows a side has at most to be small. It is then computed here, once, and its rows are
        kept in the join. 0 never tries.
    stored_keys : bool
        Says that the keys of a frame with an index are the files' own column in every row. Spark
        Connect does not show it, and loses rows where it is not so; without the word the index is
        not used there. A classic session shows it, so there it is looked up all the same; and of
        an `Indexed` side it is certain.

    Returns
    -------
    pyspark.sql.DataFrame
        With the rows of ``left.join(right, on, how)`` over the files as they are now: run it
        soon, as what the condition holds is not looked up again.

    Raises
    ------
    InvalidArgument
        When the join would lose rows by the index that is given, or no index is given.
    ColumnNotFound
    NoFragments, FragmentUnreadable, SourceError, UnsupportedType
        Of files named by a path.

    Warns
    -----
    IndexNotUsedWarning
        When no rule could be used, with each reason; the join is then Spark's own. It does not
        warn where each would have cost more than it saves, as `explain_join` says.

    Notes
    -----
    Spark's plan and estimates decide. The join is Spark's own where it broadcasts a side and so
    shuffles nothing, where most keys of a sample would pass the filter, and where few files could
    be left out. A filter of more than 8 MiB is broadcast in pieces, and may take a sixteenth of the
    memory of driver and executors. Keys of files that came since the build are added to it.

    Examples
    --------
    >>> few = spark.createDataFrame([(42, "gold"), (-1, "new")], "id bigint, tier string")
    >>> zs.filter_join(few, zs.Indexed("orders"), "id").select("customer", "tier").collect()
    [Row(customer='C042', tier='gold')]
    """
    plan = explain_join(
        left,
        right,
        on,
        how,
        left_index=left_index,
        right_index=right_index,
        max_keys=max_keys,
        stored_keys=stored_keys,
    )
    if not plan.used and not plan.is_by_cost:
        warnings.warn(
            f"the join is made without an index: {'; '.join(plan.not_used)}",
            IndexNotUsedWarning,
            stacklevel=2,
        )
    return plan.frame


def explain_join(
    left: DataFrame | Indexed,
    right: DataFrame | Indexed,
    on: str | Sequence[str],
    how: str = "inner",
    *,
    left_index: Index = None,
    right_index: Index = None,
    max_keys: int = 10_000,
    stored_keys: bool = False,
) -> JoinPlan:
    """Say what `filter_join` does with the same parameters, and why not more; it warns of nothing.

    Keys of a small side are computed for it. The join itself is in ``frame``.

    >>> few = spark.createDataFrame([(42, "gold")], "id bigint, tier string")
    >>> print(zs.explain_join(few, zs.Indexed("orders"), "id"))
    ZoneBloomJoin: inner on id
      as Spark joins: no rule is used
      not used: right by the keys of left: Spark reads 28.6 kB of right only
      not used: a filter of keys: Spark plans BroadcastHashJoinExec, so no rows are shuffled ...
    """
    names = (on,) if isinstance(on, str) else tuple(on)
    if not names or not all(isinstance(name, str) for name in names):
        raise InvalidArgument(f"on is {on!r}; name the columns that both sides have")
    if isinstance(left, Indexed) and isinstance(right, Indexed):
        raise InvalidArgument(
            "both sides are Indexed; read one of them: zonebloom.spark.scan(spark, path)"
        )
    kind = _join_kind(how)
    spark: Any = getattr(right if isinstance(left, Indexed) else left, "sparkSession", None)
    sides = JoinSide("left", left, left_index, spark), JoinSide("right", right, right_index, spark)
    _require_lawful(kind, names, *sides)
    lossy = [pair for pair in (sides, sides[::-1]) if pair[0].name in _MAY_LOSE[kind]]
    used: list[str] = []
    not_used: list[tuple[str, RuleNotUsed]] = []
    frames: dict[str, DataFrame] = {}
    for side, other in lossy:
        if not frames and may_have_few_keys(spark, side, other):
            try:
                frames, sentence = apply_key_rule(spark, side, other, names, max_keys)
            except RuleNotUsed as reason:
                not_used.append((f"{side.name} by the keys of {other.name}", reason))
            else:
                used.append(sentence)
    frames = frames or {side.name: side.frame(spark) for side in sides}
    plain = frames["left"].join(frames["right"], list(names), kind)
    filters = [(*pair, name) for pair in lossy if pair[1].index is not None for name in names]
    if not used and filters:
        try:
            require_shuffle(plain, *sides)
        except RuleNotUsed as reason:
            not_used.append(("a filter of keys", reason))
            filters = []
        for side, other, name in filters:
            try:
                frame, sentence = apply_filter_rule(
                    spark, side, other, name, stored_keys, frames[side.name]
                )
            except RuleNotUsed as reason:
                not_used.append((f"filter of {name} from {other.name}", reason))
            else:
                frames[side.name] = frame
                used.append(sentence)
        plain = frames["left"].join(frames["right"], list(names), kind) if used else plain
    reasons = tuple(f"{what}: {reason}" for what, reason in not_used)
    is_by_cost = all(isinstance(reason, RuleTooCostly) for _, reason in not_used)
    return JoinPlan(kind, names, tuple(used), reasons, is_by_cost, plain)


def _join_kind(how: str) -> str:
    """The kind of a join by any of Spark's names for it."""
    kind = str(how).lower().replace("_", "").removesuffix("outer")
    kind = "left_semi" if kind in ("semi", "leftsemi") else kind
    if kind not in _MAY_LOSE:
        raise InvalidArgument(
            f"how is {how!r}; it is one of {', '.join(_MAY_LOSE)}. Full and anti joins give the "
            "rows without a match, which a filter would drop: use join()"
        )
    return kind


def _require_lawful(kind: str, names: Sequence[str], left: JoinSide, right: JoinSide) -> None:
    if left.index is None and right.index is None:
        raise InvalidArgument(
            "no side has an index; give left_index or right_index, or zonebloom.spark.Indexed(path)"
        )
    for side, other in ((left, right), (right, left)):
        for name in names:
            side.key_field(name)
        can_be_pruned = side.is_indexed_files and side.name in _MAY_LOSE[kind]
        if side.index is not None and other.name not in _MAY_LOSE[kind] and not can_be_pruned:
            raise InvalidArgument(
                f"a {kind} join gives every row of {other.name}, with a match or not, so "
                f"the keys of {side.name} must not filter it; give {other.name}_index, whose "
                f"keys may filter {side.name}"
            )
