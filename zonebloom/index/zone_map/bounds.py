"""The bounds of the values of zones, and the zones in which a condition may be true by them.

A literal is compared with the values of the column without rounding it. If engines may round it,
the interval takes in both neighbours of the literal.

The columns of a file of bounds are those of Lance's ZONEMAP: ``min`` and ``max`` of the column's
type, which are null if all values are null or NaN, ``null_count``, ``nan_count``,
``fragment_id``, ``zone_start`` and ``zone_length``. ``max`` is the greatest value that is not
NaN. It is null beside a ``min`` if it is not known. Long strings are cut: ``min`` to a shorter
string before it, ``max`` to one after it.

A segment of any kind of index has such a table in ``ranges.arrow``, too, with one zone for each
file: the key ranges. Their bounds are null if the keys are no values of a column.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from zonebloom.base.arrays import from_numpy, to_numpy
from zonebloom.base.row_ranges import MAX_ROWS_PER_FRAGMENT
from zonebloom.base.version import require_known_format, with_format_version
from zonebloom.errors import CorruptIndex
from zonebloom.index.table import HashingFile, IndexTable, WrittenTable, ZoneRuns
from zonebloom.predicates.ast import Compares, Equals, IsIn, IsNull
from zonebloom.storage.ipc_layout import open_uncompressed
from zonebloom.values.literal import Literal, StoredValue, Unanswerable, to_stored
from zonebloom.values.normal_types import hashed_values, key_range_type, normalized_type
from zonebloom.values.types import family, is_comparable

_NEGATED = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}
# A longer set of another type than the column is not converted value by value.
_MAX_CONVERTED_VALUES = 1024
# Unsorted values usually lie within the bounds of every zone, so a sample is compared first.
_SAMPLE_VALUES = 1 << 12

ZoneMapLeaf = Equals | IsIn | Compares | IsNull
ROWS_KEY = b"rows_per_zone"
_PLACES = "fragment_id", "zone_start", "zone_length"


class Interval(NamedTuple):
    """An interval of values. An end without a limit is None."""

    low: pa.Scalar | None = None
    high: pa.Scalar | None = None
    has_low: bool = True
    has_high: bool = True


def order_type(column_type: pa.DataType) -> pa.DataType:
    """Return the type in which the values of a column are compared."""
    type_ = key_range_type(column_type)
    if pt.is_boolean(type_):
        return pa.uint8()
    return pa.binary() if pt.is_fixed_size_binary(type_) else type_


def ordered_values(values: pa.Array) -> pa.Array:
    """Return values as `order_type`. Zeros without a sign replace the two zeros of floats."""
    ordered = hashed_values(values)
    for type_ in (key_range_type(values.type), order_type(values.type)):
        ordered = ordered if ordered.type == type_ else ordered.cast(type_)
    if pt.is_floating(ordered.type):
        ordered = pc.call_function("add", [ordered, pa.scalar(0.0, ordered.type)])
    return ordered


def true_interval(column_type: pa.DataType, leaf: Compares | Equals) -> Interval | None:
    """Return the interval of values for which a comparison may be true. None if it is empty.

    Raise `Unanswerable` if the literal and the column are not compared exactly.
    """
    return _interval(column_type, "=" if isinstance(leaf, Equals) else leaf.operator, leaf.value)


def _interval(column_type: pa.DataType, operator: str, value: pa.Scalar) -> Interval | None:
    type_ = normalized_type(column_type)
    literal = Literal.from_scalar(value)
    if literal is None or not is_comparable(type_, value.type):
        raise Unanswerable(
            f"a {value.type} literal against a {column_type} column is not compared exactly"
        )
    ordered = order_type(column_type)
    if family(type_) == "float":
        return _float_interval(ordered, operator, literal.value)
    stored = to_stored(literal, type_)
    if stored.out_of_range:
        is_true = operator in (("<", "<=") if stored.out_of_range > 0 else (">", ">="))
        return Interval() if is_true else None
    bound = _scalar(stored, ordered)
    if operator == "=":
        return Interval(bound, bound) if stored.is_exact else None
    # The bound of an inexact literal is the value before it.
    if operator in ("<", "<="):
        return Interval(high=bound, has_high=operator == "<=" or not stored.is_exact)
    return Interval(low=bound, has_low=operator == ">=" and stored.is_exact)


def _scalar(stored: StoredValue, type_: pa.DataType) -> pa.Scalar:
    if isinstance(stored.value, bool):
        return pa.scalar(int(stored.value), type_)
    return stored.scalar(type_)


def _float_interval(type_: pa.DataType, operator: str, value: Any) -> Interval:
    numbers = np.dtype(type_.to_pandas_dtype()).type
    with np.errstate(over="ignore"):
        nearest = numbers(value)
    if np.isnan(nearest):
        raise Unanswerable("engines disagree on NaN")
    is_exact = value == nearest.item()
    low = high = pa.scalar(nearest, type_)
    if not is_exact:
        low = pa.scalar(np.nextafter(nearest, numbers(-np.inf)), type_)
        high = pa.scalar(np.nextafter(nearest, numbers(np.inf)), type_)
    if operator == "=":
        return Interval(low, high)
    if operator in ("<", "<="):
        return Interval(high=high, has_high=operator == "<=" or not is_exact)
    return Interval(low=low, has_low=operator == ">=" or not is_exact)


@dataclass(frozen=True)
class ZoneBounds:
    """The least and greatest values of zones, and their counts of nulls.

    Attributes
    ----------
    least, greatest : pyarrow.Array
        The bounds as `order_type`, without NaN. Null if they are not known, or if there are none.
    null_count, nan_count, lengths : numpy.ndarray
        Unsigned integers, shape ``(zones,)``.
    """

    least: pa.Array
    greatest: pa.Array
    null_count: np.ndarray
    nan_count: np.ndarray
    lengths: np.ndarray

    @classmethod
    def from_table(cls, table: pa.Table) -> ZoneBounds:
        """Return the bounds in a table of `zonebloom.index.zone_map.bounds.zone_map_schema`."""
        least, greatest = (ordered_values(table[name].combine_chunks()) for name in ("min", "max"))
        names = "null_count", "nan_count", "zone_length"
        return cls(least, greatest, *(to_numpy(table[name]) for name in names))

    @classmethod
    def of_values(cls, values: pa.Array) -> ZoneBounds:
        """Return the bounds of zones that hold one value each."""
        ordered = ordered_values(values)
        is_nan = np.zeros(len(ordered), dtype=bool)
        if pt.is_floating(ordered.type):
            is_nan = to_numpy(pc.call_function("is_nan", [ordered]).fill_null(False))
            ordered = pc.call_function("if_else", [is_nan, pa.scalar(None, ordered.type), ordered])
        is_null = to_numpy(values.is_null())
        counts = (mask.astype(np.uint64) for mask in (is_null, is_nan, np.ones_like(is_nan)))
        return cls(ordered, ordered, *counts)

    @classmethod
    def unknown(cls, column_type: pa.DataType, count: int) -> ZoneBounds:
        """Return the bounds of ``count`` zones that may hold any values."""
        nulls = pa.nulls(0, order_type(column_type))
        none = np.empty(0, dtype=np.uint64)
        return cls(nulls, nulls, none, none, none).take(pa.nulls(count, pa.int64()))

    def take(self, zones: pa.Array) -> ZoneBounds:
        """Return the bounds of zones by number; null stands for a zone that may hold anything."""
        counts = (
            to_numpy(from_numpy(numbers).take(zones).cast(pa.uint64()).fill_null(if_unknown))
            for numbers, if_unknown in (
                (self.null_count, 1),
                (self.nan_count, 1),
                (self.lengths, MAX_ROWS_PER_FRAGMENT),
            )
        )
        return ZoneBounds(self.least.take(zones), self.greatest.take(zones), *counts)

    def cast(self, column_type: pa.DataType) -> ZoneBounds:
        """Return the same bounds as values of another type, which must hold them."""
        type_ = order_type(column_type)
        return replace(self, least=self.least.cast(type_), greatest=self.greatest.cast(type_))

    @cached_property
    def has_null(self) -> np.ndarray:
        """A mask of the zones that hold a null."""
        return self.null_count > 0

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
            interval = _interval(column_type, _NEGATED[leaf.operator], leaf.value)
            return np.flatnonzero(may_be_false | self._overlaps(interval))
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
        return self.may_hold(wanted)

    def may_hold(self, values: pa.Array) -> np.ndarray:
        """Return a mask of the zones that may hold any of some values. No zone holds a null."""
        # The cast may change the time zone, but not the instant.
        wanted = ordered_values(values.drop_null()).cast(self.least.type)
        may_hold = np.zeros(self.lengths.size, dtype=bool)
        if pt.is_floating(wanted.type):
            is_nan = to_numpy(pc.call_function("is_nan", [wanted]))
            if is_nan.any():
                may_hold |= self.nan_count > 0
                wanted = wanted.filter(pa.array(~is_nan))
        if not len(wanted):
            return may_hold
        # A zone with values but without bounds may hold any.
        may_hold |= self._has_values & ~self._has_bounds
        zones = np.flatnonzero(self._has_bounds)
        for sample in (wanted.slice(0, _SAMPLE_VALUES), wanted.slice(_SAMPLE_VALUES)):
            if len(sample) and not may_hold[zones].all():
                may_hold[zones] |= self._are_between_bounds(sample)
        return may_hold

    @cached_property
    def _has_bounds(self) -> np.ndarray:
        """A mask of the zones of which both bounds are known."""
        return to_numpy(self.least.is_valid()) & to_numpy(self.greatest.is_valid())

    def _are_between_bounds(self, values: pa.Array) -> np.ndarray:
        """Return a mask, over the zones with bounds, of those with some values between them."""
        ends, least, greatest = self._sorted_ends
        # Count the values at or below each bound, and below it. There are fewer bounds than values,
        # so sorting the bounds is cheaper than sorting the values.
        num_at_most, num_below = (
            np.bincount(_search_sorted(ends, values, side), minlength=len(ends) + 1).cumsum()
            for side in ("left", "right")
        )
        return num_at_most[greatest] > num_below[least]

    @cached_property
    def _sorted_ends(self) -> tuple[pa.Array, np.ndarray, np.ndarray]:
        """All known bounds, sorted, and the positions of the bounds of each zone in them."""
        has_bounds = pa.array(self._has_bounds)
        least, greatest = self.least.filter(has_bounds), self.greatest.filter(has_bounds)
        ends = pa.concat_arrays([least, greatest])
        ends = ends.take(pc.call_function("array_sort_indices", [ends]))
        return ends, _search_sorted(ends, least, "left"), _search_sorted(ends, greatest, "left")

    def excludes(self, zone: int, values: pa.Array) -> bool:
        """Return whether a zone excludes one of its values, all or some of which are given."""
        ordered = ordered_values(values)
        num_nan = 0
        if pt.is_floating(ordered.type):
            is_nan = pc.call_function("is_nan", [ordered])
            num_nan = pc.call_function("sum", [is_nan]).as_py() or 0
            ordered = ordered.filter(pc.call_function("invert", [is_nan]))
        num_others = int(self.lengths[zone]) - len(values)
        for stored, found in (
            (int(self.null_count[zone]), values.null_count),
            (int(self.nan_count[zone]), num_nan),
        ):
            if not found <= stored <= found + num_others:
                return True
        ends: Any = pc.call_function("min_max", [ordered])
        if not ends["min"].is_valid:
            return False
        pairs = (self.least[zone], ends["min"]), (ends["max"], self.greatest[zone])
        # The comparison with an unknown bound is null.
        return any(pc.call_function("less_equal", list(pair)).as_py() is False for pair in pairs)


def _search_sorted(ends: pa.Array, values: pa.Array, side: str) -> np.ndarray:
    if pt.is_decimal(ends.type):
        # PyArrow ranks decimals, but does not search them.
        options = pc.RankOptions(tiebreaker="dense")
        ranks = pc.call_function("rank", [pa.concat_arrays([ends, values])], options).to_numpy()
        numbers, wanted = np.split(ranks, [len(ends)])
        return numbers.searchsorted(wanted, "left" if side == "left" else "right")
    compute: Any = pc
    return to_numpy(compute.search_sorted(ends, values, side=side)).astype(np.int64)


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


def zone_map_schema(column_type: pa.DataType, rows_per_zone: int) -> pa.Schema:
    """Return the schema of the table of a column: Lance's, with its metadata."""
    bound = normalized_type(column_type)
    fields = [pa.field("min", bound), pa.field("max", bound)]
    fields += [pa.field(name, pa.uint32(), nullable=False) for name in ("null_count", "nan_count")]
    fields += [pa.field(name, pa.uint64(), nullable=False) for name in _PLACES]
    return pa.schema(fields, {ROWS_KEY: str(rows_per_zone).encode()})


class ZoneMapTable(IndexTable):
    """The bounds of the zones of a segment, in memory.

    Attributes
    ----------
    content : pyarrow.Table
        With the schema of `zone_map_schema`.
    bounds : ZoneBounds
        They tell the zones in which a condition may be true, or false.
    """

    def __init__(self, buffer: pa.Buffer, where: str):
        self.path = where
        self.num_bytes = buffer.size
        self.content = table = read_zone_map(buffer, where)
        self.bounds = ZoneBounds.from_table(table)
        self.has_null = self.bounds.has_null
        ids, starts, lengths = (to_numpy(table[name]) for name in _PLACES)
        items = int(table.schema.metadata[ROWS_KEY])
        self.runs = ZoneRuns.from_zones(ids, starts, lengths, items)


def read_zone_map(
    buffer: pa.Buffer, where: str, column_type: pa.DataType | None = None
) -> pa.Table:
    """Return the table in a file, with bounds of the type of a column if that is given.

    Raise `CorruptIndex` if it is no table of `zone_map_schema`.
    """
    try:
        table = open_uncompressed(buffer).read_all()
        require_known_format(table.schema)
        items = int((table.schema.metadata or {})[ROWS_KEY])
        if not 0 < items <= MAX_ROWS_PER_FRAGMENT:
            raise ValueError(f"its zones claim {items} rows each")
        schema = zone_map_schema(table.schema.field("min").type, items)
        if not table.schema.remove_metadata().equals(schema.remove_metadata()):
            raise ValueError(f"its columns are {', '.join(table.schema.names)}")
        table.validate(full=True)
        if (to_numpy(table["zone_length"]) > MAX_ROWS_PER_FRAGMENT).any():
            raise ValueError("a zone claims more rows than a file has")
        # A string column may have become a large_string column since the build.
        schema = schema if column_type is None else zone_map_schema(column_type, items)
        return table.cast(schema).replace_schema_metadata(schema.metadata).combine_chunks()
    except (pa.ArrowException, KeyError, ValueError, OSError) as error:
        raise CorruptIndex(
            f"{where} is not a table of a zone map ({error}); build the index again"
        ) from None


def write_zone_map(sink: HashingFile, tables: Sequence[pa.Table]) -> WrittenTable:
    """Write the content of tables, in order, as one file, and close it."""
    schema = with_format_version(tables[0].schema)
    with sink, pa.ipc.new_file(sink, schema) as writer:
        for table in tables:
            writer.write_table(table.cast(schema).combine_chunks())
    num_zones = sum(table.num_rows for table in tables)
    return WrittenTable(sink.size, sink.checksum.hexdigest(), num_zones)
