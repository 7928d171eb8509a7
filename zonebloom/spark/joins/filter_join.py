"""filter_join(): a join that shuffles only rows whose keys may occur on the indexed side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.sql import DataFrame

from zonebloom.base.display import Displayed
from zonebloom.base.notices import warn
from zonebloom.errors import IndexNotUsedWarning, InvalidArgument
from zonebloom.spark.frames import Indexed
from zonebloom.spark.joins.cost import RuleTooCostly, require_shuffle
from zonebloom.spark.joins.global_filter import apply_filter_rule
from zonebloom.spark.joins.sides import Index, JoinSide, RuleNotUsed
from zonebloom.spark.joins.zones import apply_zones_rule
from zonebloom.spark.pruning.prune import last_scans
from zonebloom.spark.versions import HAS_PYTHON_SOURCES, is_classic

# Sides whose rows without a match are not in the result. A filter may drop such rows.
_FILTERABLE_SIDES: dict[str, tuple[str, ...]] = {
    "inner": ("left", "right"),
    "left_semi": ("left", "right"),
    "left": ("right",),
    "right": ("left",),
}


@dataclass(frozen=True, repr=False)
class JoinPlan(Displayed):
    """A join and the rules that are used for it; `str` and HTML show it.

    Attributes
    ----------
    how : str
    on : tuple of str
    used : tuple of str
        A sentence for each used rule about what it does, and for each scan that skips files.
    not_used : tuple of str
        A sentence for each other rule about why it is not used. If none is used, also for each join
        in Spark's plan about why its keys choose no files.
    is_by_cost : bool
        Whether all rules that are not used would have cost more than they save.
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
        used = self.used or ["Spark's own join: no rule is used"]
        lines += [f"  {sentence}" for sentence in used]
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
    """Join two frames, and drop rows early for which the index of one side rules out a match.

    Parameters
    ----------
    left, right : DataFrame or Indexed
        At least one must be a DataFrame. This function reads an `Indexed` side itself. If the other
        side is small, and few zones may hold its keys, only these zones are read; otherwise Spark's
        own reader reads the files. In a classic session, a side with an index skips files as a
        frame of `prune` does, also by the keys of a small other side.
    on : str or list of str
        Key columns that both sides have. Any of them may be indexed.
    how : {"inner", "left_semi", "left", "right"}
        Full and anti joins are refused: they return the rows without a match, which a filter would
        drop.
    left_index, right_index : path or Dataset, optional
        The files from which the side was read. They need an index on a column of ``on`` that was
        built with ``global_filter=True``. An `Indexed` side has its own.
        The frame may be any part of those files, also joined with other tables, but its key must
        be their column. If the key is computed, or also comes from elsewhere as in a union, the
        index is not used. A path is opened again, so that the newest files are known. Give a
        Dataset for an index in another folder, and for Delta and Iceberg tables.
    max_keys : int
        Maximum number of rows whose keys choose zones of an `Indexed` side. This function computes
        them once, and the join uses these rows. With 0, no zones are chosen.
    stored_keys : bool
        Promise that the key of a frame with an index is the files' own column in every row. Over
        Spark Connect this cannot be checked: without the promise the index is not used, and if the
        promise is wrong, rows are lost. A classic session checks it in the plan anyway, and an
        `Indexed` side needs no promise.

    Returns
    -------
    pyspark.sql.DataFrame
        The rows of ``left.join(right, on, how)`` for the files as they are now. Run it soon: the
        filter in it is not updated when files change.

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
        If no rule can be used, with all reasons; the join is then Spark's own. There is no warning
        if every rule would have cost more than it saves; `explain_join` shows this.

    Notes
    -----
    Spark's plan and estimates decide whether a rule is used. The join is Spark's own if Spark
    broadcasts a side and so shuffles nothing, if most keys of a sample would pass the filter, or if
    few zones could be skipped. The filter is broadcast, and may take a sixteenth of the memory
    of the driver and of the executors. Keys of files that were added after the build are added to
    the filter now.

    Examples
    --------
    >>> few = spark.createDataFrame([(42, "gold"), (-1, "new")], "id bigint, tier string")
    >>> zs.filter_join(few, zs.Indexed("orders"), "id").select("customer", "tier").collect()
    [Row(customer='C042', tier='gold')]
    """
    plan = _plan_join(left, right, on, how, left_index, right_index, max_keys, stored_keys)
    if not plan.used and not plan.is_by_cost:
        text = f"the join is made without an index: {'; '.join(plan.not_used)}"
        warn(IndexNotUsedWarning(text))
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
    """Return what `filter_join` does with the same parameters, and why it does not do more.

    It does not warn that no rule is used. It plans the join, and computes a small side for this.
    The join itself is in ``frame``.

    >>> few = spark.createDataFrame([(42, "gold")], "id bigint, tier string")
    >>> orders = spark.read.parquet("orders")
    >>> print(zs.explain_join(few, orders, "id", right_index="orders"))
    ZoneBloomJoin: inner on id
      Spark's own join: no rule is used
      not used: filter of left: Spark plans BroadcastHashJoinExec, so a filter would save ...
      not used: the join on (id#... = id#...) chooses no files: it reads only 28... bytes
    """
    plan = _plan_join(left, right, on, how, left_index, right_index, max_keys, stored_keys)
    if not is_classic(plan.frame.sparkSession):
        return plan
    # This plans the frame itself, so its small side is not computed again when the frame runs.
    scans = last_scans(plan.frame)
    skips = (
        f"{scan.kept_files:,} of {scan.num_files:,} files of {scan.name} are read"
        for scan in scans.relations
        if scan.kept_files < scan.num_files
    )
    notes = () if plan.used else (note.text for note in scans.notes)
    return replace(plan, used=(*plan.used, *skips), not_used=(*plan.not_used, *notes))


def _plan_join(
    left: DataFrame | Indexed,
    right: DataFrame | Indexed,
    on: str | Sequence[str],
    how: str,
    left_index: Index,
    right_index: Index,
    max_keys: int,
    stored_keys: bool,
) -> JoinPlan:
    """Return the join and its used rules. Spark has planned it only if that was necessary."""
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
    _require_usable_index(kind, names, *sides)
    filterable_pairs = [
        pair for pair in (sides, sides[::-1]) if pair[0].name in _FILTERABLE_SIDES[kind]
    ]
    used: list[str] = []
    not_used: list[tuple[str, RuleNotUsed]] = []
    frames: dict[str, DataFrame] = {}
    for side, other in filterable_pairs:
        if side.is_indexed_files and HAS_PYTHON_SOURCES:
            try:
                frames, sentence = apply_zones_rule(side, other, names, max_keys)
            except RuleNotUsed as reason:
                not_used.append((f"zones of {side.name} by the keys of {other.name}", reason))
            else:
                used.append(sentence)
    frames = frames or {side.name: side.frame for side in sides}
    join = frames["left"].join(frames["right"], list(names), kind)
    for side, other in filterable_pairs if not used else ():
        if other.index is None:
            continue
        try:
            require_shuffle(join, side, other)
        except RuleNotUsed as reason:
            not_used.append((f"filter of {side.name}", reason))
            continue
        for name in names:
            try:
                frame, sentence = apply_filter_rule(
                    side, other, name, stored_keys, frames[side.name]
                )
            except RuleNotUsed as reason:
                not_used.append((f"filter of {name} from {other.name}", reason))
            else:
                frames[side.name] = frame
                used.append(sentence)
    if used:
        join = frames["left"].join(frames["right"], list(names), kind)
    reasons = tuple(f"{what}: {reason}" for what, reason in not_used)
    is_by_cost = all(isinstance(reason, RuleTooCostly) for _, reason in not_used)
    return JoinPlan(kind, names, tuple(used), reasons, is_by_cost, join)


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
        raise InvalidArgument(
            "no side has an index; give left_index or right_index, or zonebloom.spark.Indexed(path)"
        )
    filterable = _FILTERABLE_SIDES[kind]
    for side, other in ((left, right), (right, left)):
        for name in names:
            side.key_field(name)
        can_be_pruned = side.is_indexed_files and side.name in filterable
        if side.index is not None and other.name not in filterable and not can_be_pruned:
            raise InvalidArgument(
                f"a {kind} join returns every row of {other.name}, with a match or not, so "
                f"the keys of {side.name} must not filter it; give {other.name}_index, whose "
                f"keys may filter {side.name}"
            )
