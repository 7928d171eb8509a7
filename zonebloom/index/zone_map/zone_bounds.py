"""Find the zones of a column in which a comparison may be true, by the bounds of their values."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zonebloom.index.zone_map.bounds import (
    Interval,
    false_interval,
    order_type,
    ordered_values,
    true_interval,
)
from zonebloom.predicates.ast import Compares, Equals, IsIn, IsNull
from zonebloom.values.literal import Literal, Unanswerable, to_stored
from zonebloom.values.normal_types import normalized_type
from zonebloom.values.types import family, is_comparable

# A longer set of another type than the column is not converted value by value.
_MAX_CONVERTED_VALUES = 1024

ZoneMapLeaf = Equals | IsIn | Compares | IsNull


@dataclass(frozen=True)
class ZoneBounds:
    """The least and greatest values of zones, and their counts of nulls.

    Attributes
    ----------
    least, greatest : pyarrow.Array
        The bounds as `order_type`, without NaN. Null if they are not known, or if there are none.
    null_count, nan_count, lengths : numpy.ndarray
        Unsigned integers, shape ``(zones,)``.
    has_null : numpy.ndarray
        Whether each zone may have a null, bool.
    """

    least: pa.Array
    greatest: pa.Array
    null_count: np.ndarray
    nan_count: np.ndarray
    lengths: np.ndarray
    has_null: np.ndarray

    def zones_where_true(self, column_type: pa.DataType, leaf: ZoneMapLeaf) -> np.ndarray:
        """Return the numbers of zones with a row for which a condition may be true, ascending.

        Raise `Unanswerable` if the literal and the column are not compared exactly.
        """
        match leaf:
            case IsNull():
                return np.flatnonzero(self.has_null)
            case IsIn(_, values, null_matches):
                may_match = self._may_hold_any(column_type, values)
                return np.flatnonzero(may_match | self.has_null if null_matches else may_match)
        return np.flatnonzero(self._overlaps(true_interval(column_type, leaf)))

    def zones_where_false(
        self, column_type: pa.DataType, leaf: Equals | Compares | IsNull
    ) -> np.ndarray:
        """Return the numbers of zones with a row for which a condition may be false, ascending.

        Some engines take a comparison with null as false, so a zone with a null is among them.
        """
        if isinstance(leaf, IsNull):
            return np.flatnonzero(self.null_count < self.lengths)
        may_be_false = self.has_null | (self.nan_count > 0)
        if isinstance(leaf, Compares):
            return np.flatnonzero(may_be_false | self._overlaps(false_interval(column_type, leaf)))
        interval = true_interval(column_type, leaf)
        if interval is None or interval.low is not interval.high:
            return np.arange(self.lengths.size)
        holds_others = ~(
            _compare("equal", self.least, interval.low)
            & _compare("equal", self.greatest, interval.low)
        )
        return np.flatnonzero(may_be_false | holds_others)

    def _overlaps(self, interval: Interval | None) -> np.ndarray:
        """Return whether the bounds of each zone overlap an interval, bool."""
        if interval is None:
            return np.zeros(self.lengths.size, dtype=bool)
        # A zone with values but without bounds may hold any.
        may_hold = self._has_values.copy()
        low, high, has_low, has_high = interval
        if low is not None:
            name = "greater_equal" if has_low else "greater"
            may_hold &= _compare(name, self.greatest, low, if_null=True)
        if high is not None:
            name = "less_equal" if has_high else "less"
            may_hold &= _compare(name, self.least, high, if_null=True)
        return may_hold

    @cached_property
    def _has_values(self) -> np.ndarray:
        """A mask of the zones that hold values other than null and NaN."""
        return self.null_count + self.nan_count.astype(np.uint64) < self.lengths

    def _may_hold_any(self, column_type: pa.DataType, values: pa.Array) -> np.ndarray:
        wanted = _stored_values(column_type, values)
        if wanted is None:
            overlaps = map(self._overlaps, _intervals(column_type, values))
            return np.logical_or.reduce(list(overlaps))
        if not len(wanted):
            return np.zeros(self.lengths.size, dtype=bool)
        ends: Any = pc.call_function("min_max", [wanted])
        may_hold = self._overlaps(Interval(ends["min"], ends["max"]))
        zones = np.flatnonzero(may_hold & np.asarray(self.least.is_valid()).astype(bool))
        if len(wanted) == 1 or not zones.size:
            return may_hold
        numbers = pa.array(zones)
        parts = [wanted, self.least.take(numbers), self.greatest.take(numbers)]
        # An unknown bound is null, which is ranked after all values.
        ranks = pc.call_function(
            "rank", [pa.concat_arrays(parts)], pc.RankOptions(tiebreaker="dense")
        ).to_numpy()
        keys, least, greatest = np.split(ranks, np.cumsum([len(wanted), zones.size]))
        keys = np.sort(keys)
        has_key = np.searchsorted(keys, least) < np.searchsorted(keys, greatest, side="right")
        may_hold[zones[~has_key]] = False
        return may_hold


def require_comparable(column_type: pa.DataType, leaf: ZoneMapLeaf) -> None:
    """Raise `Unanswerable` if a literal and the values of a column are not compared exactly."""
    match leaf:
        case Equals() | Compares():
            true_interval(column_type, leaf)
        case IsIn(_, values):
            if _stored_values(column_type, values) is None:
                _intervals(column_type, values)


def _intervals(column_type: pa.DataType, values: pa.Array) -> list[Interval | None]:
    """Return the intervals of floats of which engines may round some."""
    if len(values) > _MAX_CONVERTED_VALUES:
        raise Unanswerable(f"{len(values):,} values of type {values.type} are rounded")
    return [true_interval(column_type, Equals((), value)) for value in values]


def _compare(
    name: str, bounds: pa.Array, value: pa.Scalar | None, *, if_null: bool = False
) -> np.ndarray:
    result: Any = pc.call_function(name, [bounds, value])
    return np.asarray(result.fill_null(if_null)).astype(bool)


def _stored_values(column_type: pa.DataType, values: pa.Array) -> pa.Array | None:
    """Return the values that a column can hold, as its `order_type`, or None for some floats."""
    type_, ordered = normalized_type(column_type), order_type(column_type)
    if not is_comparable(type_, values.type):
        raise Unanswerable(
            f"{values.type} literals against a {column_type} column are not compared exactly"
        )
    kept = normalized_type(values.type)
    if family(type_) == "float":
        if kept != type_:
            return None
        wanted = ordered_values(values)
        if pc.call_function("any", [pc.call_function("is_nan", [wanted])]).as_py():
            raise Unanswerable("engines disagree on NaN")
        return wanted
    if kept == type_ or {family(kept), family(type_)} in ({"text"}, {"bytes"}):
        return ordered_values(values).cast(ordered)
    if len(values) > _MAX_CONVERTED_VALUES:
        raise Unanswerable(f"{len(values):,} values of type {values.type} are converted")
    stored = [to_stored(_literal(value), type_) for value in values]
    scalars = [value.scalar(ordered) for value in stored if value.is_exact]
    return pa.array(scalars, ordered)


def _literal(value: pa.Scalar) -> Literal:
    literal = Literal.from_scalar(value)
    assert literal is not None
    return literal
