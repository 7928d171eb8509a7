"""One join while its rules are tried: its sides, and what is done to them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from zonebloom.dataset import Dataset, dataset
from zonebloom.errors import ColumnNotFound, InvalidArgument
from zonebloom.spark.frames import Path, load, scan_options
from zonebloom.spark.joins.membership import KeyFilter, is_plain_text, may_hold, why_not
from zonebloom.spark.joins.rules import (
    Limits,
    StepAside,
    collected,
    fitted,
    key_filter,
    require_own_column,
    why_keys_differ,
)
from zonebloom.spark.load import Load
from zonebloom.spark.options import Options, keys_text
from zonebloom.values.columns import alike, find_column

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructField, StructType

Index: TypeAlias = "Path | Dataset | KeyFilter | None"

# Sides whose rows without a match are not in the result.
_MAY_LOSE: dict[str, tuple[str, ...]] = {
    "inner": ("left", "right"),
    "left_semi": ("left", "right"),
    "left": ("right",),
    "right": ("left",),
}
_OTHER_NAMES = {
    "semi": "left_semi",
    "leftsemi": "left_semi",
    "leftouter": "left",
    "left_outer": "left",
    "rightouter": "right",
    "right_outer": "right",
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
        lines += [f"  {each}" for each in self.used or ["as Spark joins: no rule is used"]]
        lines += [f"  not used: {each}" for each in self.not_used]
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from zonebloom.text import lines_html

        return lines_html(str(self))


class Side:
    """One side of the join, and what is known of its keys."""

    def __init__(self, name: Literal["left", "right"], given: Any, index: Index):
        self.name = name
        self.source: Indexed | None = None
        if isinstance(given, Indexed):
            self.source = given
            if index is not None:
                raise InvalidArgument(f"{name} is Indexed already; leave {name}_index out")
            self.load: Load = Load(Options.read(self.source.options))
            self.schema: StructType = self.load.schema
            if self.source.columns is not None:
                self.schema = type(self.schema)(
                    [f for f in self.schema if alike(self.source.columns, f.name)]
                )
            self.index: Dataset | KeyFilter | None = self.load.dataset
        elif hasattr(given, "sparkSession"):
            if given.isStreaming:
                raise InvalidArgument(
                    f"{name} is a stream, and an index holds the files there are now; use join()"
                )
            self._frame: DataFrame = given
            self.schema = given.schema
            self.index = _opened(index)
        else:
            raise InvalidArgument(
                f"{name} is a {type(given).__name__}; give a DataFrame, or "
                "zonebloom.spark.Indexed(path)"
            )

    def frame(self, spark: SparkSession, keys: str | None = None) -> DataFrame:
        """The side as a frame, of an `Indexed` one the zones that may hold some keys."""
        if self.source is None:
            return self._frame
        options = self.source.options if keys is None else {**self.source.options, "keys": keys}
        return load(spark, options, self.source.filter, self.source.columns)

    def key(self, name: str) -> StructField:
        """The field of a key column."""
        found = find_column(self.schema.names, name)
        if found is None:
            known = ", ".join(self.schema.names[:20])
            raise ColumnNotFound(f"{self.name} has no column {name!r}, or several; it has {known}")
        return self.schema[found]


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
    kind = str(how).lower()
    kind = _OTHER_NAMES.get(kind, kind)
    if kind not in _MAY_LOSE:
        raise InvalidArgument(
            f"how is {how!r}; it is one of {', '.join(_MAY_LOSE)}. Full and anti joins give the "
            "rows without a match, which a filter would drop: use join()"
        )
    return kind


def require_lawful(how: str, sides: dict[str, Side]) -> None:
    if all(side.index is None for side in sides.values()):
        raise InvalidArgument(
            "no side has an index; give left_index or right_index, or zonebloom.spark.Indexed(path)"
        )
    for name, side in sides.items():
        other = "right" if name == "left" else "left"
        can_filter = other in _MAY_LOSE[how]
        can_be_pruned = side.source is not None and name in _MAY_LOSE[how]
        if side.index is not None and not can_filter and not can_be_pruned:
            raise InvalidArgument(
                f"a {how} join gives every row of {other}, with a match or not, so the keys of "
                f"{name} must not filter it; give {other}_index, whose keys may filter {name}"
            )


class Join:
    """One join while its rules are tried."""

    def __init__(
        self,
        spark: SparkSession,
        on: tuple[str, ...],
        how: str,
        limits: Limits,
        stored_keys: bool,
        sides: dict[str, Side],
    ):
        self._spark = spark
        self._on = on
        self._how = how
        self._limits = limits
        self._stored_keys = stored_keys
        self._sides = sides
        for side in sides.values():
            for name in on:
                side.key(name)
        self._used: list[str] = []
        self._not_used: list[str] = []

    def plan(self) -> JoinPlan:
        """Try the zones rule, then the filter rule."""
        frames = self._by_zones()
        if frames is None:
            frames = {name: side.frame(self._spark) for name, side in self._sides.items()}
            for name in _MAY_LOSE[self._how]:
                frames[name] = self._filtered(name, frames)
        joined = frames["left"].join(frames["right"], list(self._on), self._how)
        return JoinPlan(self._how, self._on, tuple(self._used), tuple(self._not_used), joined)

    def _by_zones(self) -> dict[str, DataFrame] | None:
        """Both sides, of an `Indexed` one only what the keys of the other may be in."""
        for name, side in self._sides.items():
            if side.source is None or name not in _MAY_LOSE[self._how]:
                continue
            other = self._sides["right" if name == "left" else "left"]
            try:
                keyed = self._keyed(side, other)
                held, keys = collected(other.frame(self._spark), keyed, self._limits)
            except StepAside as reason:
                self._not_used.append(f"zones of {name} by the keys of {other.name}: {reason}")
                continue
            columns = [side.key(each).name for each in keyed]
            read = side.frame(self._spark, keys_text(keys.rename_columns(columns)))
            self._used.append(
                f"zones of {name} that may hold one of {keys.num_rows:,} keys of {other.name}: "
                f"nothing else of {name} is read"
            )
            return {name: read, other.name: held}
        return None

    def _keyed(self, side: Side, other: Side) -> list[str]:
        """The other side's columns whose keys can be looked up in this side's index."""
        opened = side.index
        assert isinstance(opened, Dataset)
        indexed = {each.column for each in opened.describe_indices()}
        found, reasons = [], []
        for name in self._on:
            key = side.key(name)
            reason = why_keys_differ(key, other.key(name))
            if key.name not in indexed:
                reason = f"there is no index on {key.name!r}"
            if reason is None:
                found.append(other.key(name).name)
            else:
                reasons.append(reason)
        if not found:
            raise StepAside("; ".join(reasons))
        return found

    def _filtered(self, name: str, frames: dict[str, DataFrame]) -> DataFrame:
        """A side without the rows whose keys the other side's filter does not hold."""
        frame = frames[name]
        other = self._sides["right" if name == "left" else "left"]
        if other.index is None:
            return frame
        for column in self._on:
            try:
                frame = self._filtered_by(column, self._sides[name], other, frames)
                frames = {**frames, name: frame}
            except StepAside as reason:
                self._not_used.append(f"filter of {column} from {other.name}: {reason}")
        return frame

    def _filtered_by(
        self, column: str, side: Side, other: Side, frames: dict[str, DataFrame]
    ) -> DataFrame:
        from zonebloom.text import bytes_text

        key, held_key = side.key(column), other.key(column)
        added = ""
        if isinstance(other.index, Dataset):
            held, added = key_filter(other.index, column, self._limits)
        else:
            assert other.index is not None
            held = other.index
        for each in (key, held_key):
            reason = why_not(each.dataType, held.type)
            if reason is None and not is_plain_text(each):
                reason = f"{each.name} is text of a fixed width, which Spark pads"
            if reason is not None:
                raise StepAside(reason)
        if isinstance(other.index, Dataset) and other.source is None:
            require_own_column(frames[other.name], held_key.name, other.index, self._stored_keys)
        held = fitted(held, self._limits.max_filter_bytes)
        frame = frames[side.name]
        found = may_hold(self._spark, key.name, key.dataType, held)
        self._used.append(
            f"rows of {side.name} whose {key.name} is none of {other.name} are dropped before "
            f"they are shuffled: filter of {bytes_text(held.sbbf.nbytes)}, which lets about "
            f"{held.sbbf.estimated_fpp:.2%} of other keys pass, looked up by "
            f"Spark expressions{added}"
        )
        return frame.where(found)
