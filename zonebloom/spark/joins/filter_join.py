"""filter_join(): a join that moves only rows whose keys the indexed side may hold."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from zonebloom.errors import IndexNotUsedWarning, InvalidArgument
from zonebloom.spark.frames import Indexed
from zonebloom.spark.joins.global_filter import fitted, may_hold, whole_filter, why_not
from zonebloom.spark.joins.key_origin import require_own_column
from zonebloom.spark.joins.sides import Index, Side, StepAside, collected, why_keys_differ
from zonebloom.spark.load import keys_text
from zonebloom.text import Lines, bytes_text

# Sides whose rows without a match are not in the result: such rows may be left out.
_MAY_LOSE: dict[str, tuple[str, ...]] = {
    "inner": ("left", "right"),
    "left_semi": ("left", "right"),
    "left": ("right",),
    "right": ("left",),
}


@dataclass(frozen=True, repr=False)
class JoinPlan(Lines):
    """A join and what was done to it; `str` and HTML show it.

    Attributes
    ----------
    how : str
    on : tuple of str
    used : tuple of str
        What each rule does, a sentence each.
    not_used : tuple of str
        Why a rule is not used, a sentence each.
    frame : pyspark.sql.DataFrame
        The join.
    """

    how: str
    on: tuple[str, ...]
    used: tuple[str, ...]
    not_used: tuple[str, ...]
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
        At least one a DataFrame. An `Indexed` side is read here: where the other one is small,
        only the zones that may hold its keys.
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
        When no rule could be used, with each reason; the join is then Spark's own.
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
    if not plan.used:
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
    """
    names = (on,) if isinstance(on, str) else tuple(on)
    if not names or not all(isinstance(name, str) for name in names):
        raise InvalidArgument(f"on is {on!r}; name the columns that both sides have")
    if isinstance(left, Indexed) and isinstance(right, Indexed):
        raise InvalidArgument(
            "both sides are Indexed; read one of them: zonebloom.spark.scan(spark, path)"
        )
    kind = _join_kind(how)
    sides = Side("left", left, left_index), Side("right", right, right_index)
    _require_lawful(kind, names, *sides)
    frame: Any = right if isinstance(left, Indexed) else left
    spark: SparkSession = frame.sparkSession
    used: list[str] = []
    not_used: list[str] = []
    frames: dict[str, DataFrame] = {}
    lossy = [pair for pair in (sides, sides[::-1]) if pair[0].name in _MAY_LOSE[kind]]
    for side, other in lossy:
        if side.is_read:
            try:
                frames, sentence = _by_zones(spark, side, other, names, max_keys)
                used.append(sentence)
            except StepAside as reason:
                why = f"zones of {side.name} by the keys of {other.name}: {reason}"
                not_used.append(why)
    if not frames:
        frames = {side.name: side.frame(spark) for side in sides}
        for side, other in lossy:
            for name in names if other.index is not None else ():
                try:
                    used.append(_filter(spark, side, other, name, stored_keys, frames))
                except StepAside as reason:
                    not_used.append(f"filter of {name} from {other.name}: {reason}")
    joined = frames["left"].join(frames["right"], list(names), kind)
    return JoinPlan(kind, names, tuple(used), tuple(not_used), joined)


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


def _require_lawful(kind: str, names: Sequence[str], left: Side, right: Side) -> None:
    if left.index is None and right.index is None:
        raise InvalidArgument(
            "no side has an index; give left_index or right_index, or zonebloom.spark.Indexed(path)"
        )
    for side, other in ((left, right), (right, left)):
        for name in names:
            side.key(name)
        can_be_pruned = side.is_read and side.name in _MAY_LOSE[kind]
        if side.index is not None and other.name not in _MAY_LOSE[kind] and not can_be_pruned:
            raise InvalidArgument(
                f"a {kind} join gives every row of {other.name}, with a match or not, so "
                f"the keys of {side.name} must not filter it; give {other.name}_index, whose "
                f"keys may filter {side.name}"
            )


def _by_zones(
    spark: SparkSession, side: Side, other: Side, on: Sequence[str], max_keys: int
) -> tuple[dict[str, DataFrame], str]:
    """Both sides, of an `Indexed` one only what the keys of the other may be in."""
    assert side.index is not None
    indexed = {index.column for index in side.index.describe_indices()}
    reasons = {
        name: why_keys_differ(side.key(name), other.key(name))
        if side.key(name).name in indexed
        else f"there is no index on {side.key(name).name!r}"
        for name in on
    }
    names = [name for name, reason in reasons.items() if reason is None]
    if not names:
        raise StepAside("; ".join(filter(None, reasons.values())))
    frame, keys = collected(other.frame(spark), [other.key(name).name for name in names], max_keys)
    keys = keys.rename_columns([side.key(name).name for name in names])
    sentence = (
        f"zones of {side.name} that may hold one of {keys.num_rows:,} keys of {other.name}: "
        f"nothing else of {side.name} is read"
    )
    return {side.name: side.frame(spark, keys_text(keys)), other.name: frame}, sentence


def _filter(
    spark: SparkSession,
    side: Side,
    other: Side,
    name: str,
    stored_keys: bool,
    frames: dict[str, DataFrame],
) -> str:
    """Leave out rows of a side whose keys the other side's filter does not hold."""
    key, other_key = side.key(name), other.key(name)
    assert other.index is not None
    sbbf, arrow, added = whole_filter(other.index, name)
    for column in (key, other_key):
        why = why_not(column, arrow)
        if why is not None:
            raise StepAside(why)
    if not other.is_read:
        require_own_column(other.frame(spark), other_key.name, other.index, stored_keys)
    sbbf = fitted(sbbf)
    frames[side.name] = frames[side.name].where(may_hold(spark, key, sbbf, arrow))
    return (
        f"rows of {side.name} whose {key.name} is none of {other.name} are dropped before they "
        f"are shuffled: filter of {bytes_text(sbbf.nbytes)}, which lets about "
        f"{sbbf.estimated_fpp:.2%} of other keys pass, looked up by Spark expressions{added}"
    )
