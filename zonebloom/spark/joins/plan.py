"""One join while its rules are tried: its sides, and what is done to them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from zonebloom.dataset import Dataset, dataset
from zonebloom.errors import ColumnNotFound, InvalidArgument
from zonebloom.spark.frames import Path, load, scan_options
from zonebloom.spark.joins.membership import KeyFilter, may_hold, why_not
from zonebloom.spark.joins.rules import (
    StepAside,
    collected,
    fitted,
    key_filter,
    require_own_column,
    why_keys_differ,
)
from zonebloom.spark.load import Load
from zonebloom.spark.options import Options, keys_text
from zonebloom.text import bytes_text, lines_html
from zonebloom.values.columns import alike, find_column

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructField

Index: TypeAlias = "Path | Dataset | KeyFilter | None"

# Sides whose rows without a match are not in the result.
_MAY_LOSE: dict[str, tuple[str, ...]] = {
    "inner": ("left", "right"),
    "left_semi": ("left", "right"),
    "left": ("right",),
    "right": ("left",),
}


@dataclass(frozen=True)
class Indexed:
    """Files to be read by their index: a side of a join of which only some zones are read.

    Parameters
    ----------
    path : path, URI, glob, or list of them
    columns : list of str, optional
        All by default; with the join's keys.
    filter : str, optional
        A condition in Spark SQL.
    index_dir : str, optional
        The parameters are those of `zonebloom.spark.scan`.
    """

    path: Path
    columns: Sequence[str] | None = None
    filter: str | None = None
    index_dir: str | None = None

    @property
    def options(self) -> dict[str, str]:
        """Those of the load."""
        return scan_options(self.path, self.filter, self.columns, self.index_dir)


@dataclass(frozen=True)
class JoinPlan:
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

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return lines_html(str(self))


class Side:
    """One side of the join: a frame with or without an index, or files and theirs."""

    def __init__(self, name: str, given: Any, index: Index):
        self.name = name
        self.is_read = isinstance(given, Indexed)
        self.given = given
        if isinstance(given, Indexed):
            if index is not None:
                raise InvalidArgument(f"{name} is Indexed already; leave {name}_index out")
            opened = Load(Options.read(given.options))
            self.index: Dataset | KeyFilter | None = opened.dataset
            # A filter of its own brings columns that are not shown.
            shown = given.columns or opened.schema.names
            self.fields = [each for each in opened.schema if alike(shown, each.name)]
            return
        if not hasattr(given, "sparkSession"):
            raise InvalidArgument(
                f"{name} is a {type(given).__name__}; give a DataFrame, or "
                "zonebloom.spark.Indexed(path)"
            )
        if given.isStreaming:
            raise InvalidArgument(
                f"{name} is a stream, and an index holds the files there are now; use join()"
            )
        self.fields = list(given.schema)
        self.index = _opened(index)

    def frame(self, spark: SparkSession, **options: str) -> DataFrame:
        """The side as a frame; what is read is read with more options."""
        if not self.is_read:
            return self.given
        options = {**self.given.options, **options}
        return load(spark, options, self.given.filter, self.given.columns)

    def key(self, name: str) -> StructField:
        """The field of a key column."""
        names = [each.name for each in self.fields]
        stored = find_column(names, name)
        if stored is None:
            known = ", ".join(names[:20])
            raise ColumnNotFound(f"{self.name} has no column {name!r}, or several; it has {known}")
        return self.fields[names.index(stored)]


def _opened(index: Index) -> Dataset | KeyFilter | None:
    if index is None or isinstance(index, Dataset | KeyFilter):
        return index
    if not isinstance(index, str | os.PathLike | Sequence):
        raise InvalidArgument(
            f"an index is a {type(index).__name__}; give the path of the files, their Dataset, or "
            "a KeyFilter"
        )
    return dataset(Options.read(scan_options(index, None, None, None)).source)


def join_kind(how: str) -> str:
    """The kind of a join by any of Spark's names for it."""
    kind = str(how).lower().replace("_", "").removesuffix("outer")
    kind = "left_semi" if kind in ("semi", "leftsemi") else kind
    if kind not in _MAY_LOSE:
        raise InvalidArgument(
            f"how is {how!r}; it is one of {', '.join(_MAY_LOSE)}. Full and anti joins give the "
            "rows without a match, which a filter would drop: use join()"
        )
    return kind


class Join:
    """One join while its rules are tried."""

    def __init__(
        self,
        spark: SparkSession,
        on: tuple[str, ...],
        how: str,
        max_keys: int,
        stored_keys: bool,
        left: Side,
        right: Side,
    ):
        self._spark = spark
        self._on = on
        self._how = how
        self._max_keys = max_keys
        self._stored_keys = stored_keys
        self._left, self._right = left, right
        self._used: list[str] = []
        self._not_used: list[str] = []
        self._require_lawful()

    def _others(self) -> list[tuple[Side, Side, bool]]:
        """Each side, the other, and whether its rows without a match may be left out."""
        may_lose = _MAY_LOSE[self._how]
        return [
            (self._left, self._right, "left" in may_lose),
            (self._right, self._left, "right" in may_lose),
        ]

    def _require_lawful(self) -> None:
        if self._left.index is None and self._right.index is None:
            raise InvalidArgument(
                "no side has an index; give left_index or right_index, or "
                "zonebloom.spark.Indexed(path)"
            )
        for other, side, may_lose in self._others():
            for name in self._on:
                side.key(name)
            can_be_pruned = side.is_read and side.name in _MAY_LOSE[self._how]
            if side.index is not None and not may_lose and not can_be_pruned:
                raise InvalidArgument(
                    f"a {self._how} join gives every row of {other.name}, with a match or not, so "
                    f"the keys of {side.name} must not filter it; give {other.name}_index, whose "
                    f"keys may filter {side.name}"
                )

    def plan(self) -> JoinPlan:
        """Try the zones rule, then the filter rule."""
        frames = self._by_zones()
        if frames is None:
            frames = {side.name: side.frame(self._spark) for side in (self._left, self._right)}
            for side, other, may_lose in self._others():
                if may_lose and other.index is not None:
                    self._filter(side, other, other.index, frames)
        joined = frames["left"].join(frames["right"], list(self._on), self._how)
        return JoinPlan(self._how, self._on, tuple(self._used), tuple(self._not_used), joined)

    def _by_zones(self) -> dict[str, DataFrame] | None:
        """Both sides, of an `Indexed` one only what the keys of the other may be in."""
        for side, other, may_lose in self._others():
            if not (side.is_read and may_lose):
                continue
            try:
                names = self._looked_up(side, other)
                frame, keys = collected(
                    other.frame(self._spark),
                    [other.key(name).name for name in names],
                    self._max_keys,
                )
            except StepAside as reason:
                why = f"zones of {side.name} by the keys of {other.name}: {reason}"
                self._not_used.append(why)
                continue
            keys = keys.rename_columns([side.key(name).name for name in names])
            self._used.append(
                f"zones of {side.name} that may hold one of {keys.num_rows:,} keys of "
                f"{other.name}: nothing else of {side.name} is read"
            )
            read = side.frame(self._spark, keys=keys_text(keys))
            return {side.name: read, other.name: frame}
        return None

    def _looked_up(self, side: Side, other: Side) -> list[str]:
        """Columns of the join whose keys can be looked up in a side's index."""
        assert isinstance(side.index, Dataset)
        indexed = {index.column for index in side.index.describe_indices()}
        reasons: dict[str, str | None] = {}
        for name in self._on:
            key = side.key(name)
            if key.name in indexed:
                reasons[name] = why_keys_differ(key, other.key(name))
            else:
                reasons[name] = f"there is no index on {key.name!r}"
        names = [name for name, reason in reasons.items() if reason is None]
        if not names:
            raise StepAside("; ".join(filter(None, reasons.values())))
        return names

    def _filter(
        self, side: Side, other: Side, index: Dataset | KeyFilter, frames: dict[str, DataFrame]
    ) -> None:
        """Leave out rows of a side whose keys the other side's filter does not hold."""
        for column in self._on:
            key, other_key = side.key(column), other.key(column)
            try:
                keys, added = (
                    (index, "") if isinstance(index, KeyFilter) else key_filter(index, column)
                )
                for each in (key, other_key):
                    reason = why_not(each, keys.type)
                    if reason is not None:
                        raise StepAside(reason)
                if isinstance(index, Dataset) and not other.is_read:
                    require_own_column(frames[other.name], other_key.name, index, self._stored_keys)
                keys = fitted(keys)
            except StepAside as reason:
                self._not_used.append(f"filter of {column} from {other.name}: {reason}")
                continue
            condition = may_hold(self._spark, key.name, key.dataType, keys)
            frames[side.name] = frames[side.name].where(condition)
            self._used.append(
                f"rows of {side.name} whose {key.name} is none of {other.name} are dropped before "
                f"they are shuffled: filter of {bytes_text(keys.sbbf.nbytes)}, which lets about "
                f"{keys.sbbf.estimated_fpp:.2%} of other keys pass, looked up by Spark "
                f"expressions{added}"
            )
