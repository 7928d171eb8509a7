"""Read and write the table of a zone map, and find zones by their bounds.

The columns are those of Lance's ZONEMAP: ``min`` and ``max`` of the column's type, which are null
if all values are null or NaN, ``null_count``, ``nan_count``, ``fragment_id``, ``zone_start`` and
``zone_length``. ``max`` is the greatest value that is not NaN. It is null beside a ``min`` if it is
not known. Long strings are cut: ``min`` to a shorter string before it, ``max`` to one after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from zonebloom.base.arrays import to_numpy
from zonebloom.base.row_ranges import MAX_ROWS_PER_FRAGMENT
from zonebloom.base.version import require_known_format, with_format_version
from zonebloom.errors import CorruptIndex
from zonebloom.index.table import HashingFile, ValueTable, WrittenTable, ZoneRuns
from zonebloom.index.zone_map.bounds import (
    Interval,
    false_interval,
    order_type,
    ordered_values,
    true_interval,
)
from zonebloom.predicates.ast import Compares, Equals, IsIn, IsNull
from zonebloom.storage.ipc_layout import open_uncompressed
from zonebloom.values.literal import Literal, Unanswerable, to_stored
from zonebloom.values.normal_types import normalized_type
from zonebloom.values.types import family, is_comparable

ROWS_KEY = b"rows_per_zone"
# A longer set of another type than the column is not converted value by value.
_MAX_CONVERTED_VALUES = 1024

ZoneMapLeaf = Equals | IsIn | Compares | IsNull


def zone_map_schema(column_type: pa.DataType, rows_per_zone: int) -> pa.Schema:
    """Return the schema of the table of a column: Lance's, with its metadata."""
    bound = normalized_type(column_type)
    fields = [pa.field("min", bound), pa.field("max", bound)]
    fields += [pa.field(name, pa.uint32(), nullable=False) for name in ("null_count", "nan_count")]
    fields += [
        pa.field(name, pa.uint64(), nullable=False)
        for name in ("fragment_id", "zone_start", "zone_length")
    ]
    return pa.schema(fields, {ROWS_KEY: str(rows_per_zone).encode()})


class ZoneMapTable(ValueTable):
    """The bounds of the zones of a segment, in memory.

    Attributes
    ----------
    content : pyarrow.Table
        With the schema of `zone_map_schema`.
    nan_count, null_count : numpy.ndarray
        uint32, shape ``(zones,)``.
    least, greatest : pyarrow.Array
        The bounds as `order_type`.
    """

    def __init__(self, buffer: pa.Buffer, where: str):
        self.path = where
        self.num_bytes = buffer.size
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
            self.content = table.replace_schema_metadata(schema.metadata).combine_chunks()
            numbers = [to_numpy(self.content[name]) for name in schema.names[2:]]
            self.null_count, self.nan_count, ids, starts, lengths = numbers
            self.least, self.greatest = (
                ordered_values(_one_chunk(self.content[name])) for name in ("min", "max")
            )
            self.runs = ZoneRuns.from_zones(ids, starts, lengths, items)
        except (pa.ArrowException, KeyError, ValueError, OSError) as error:
            raise CorruptIndex(
                f"{where} is not a table of a zone map ({error}); build the index again"
            ) from None
        self.has_null = self.null_count > 0

    @property
    def loaded_bytes(self) -> int:
        return self.num_bytes

    def zones_where_true(self, column_type: pa.DataType, leaf: ZoneMapLeaf) -> np.ndarray:
        """Return the numbers of zones with a row for which a condition may be true, ascending.

        Raise `Unanswerable` if the literal and the column are not compared exactly.
        """
        match leaf:
            case IsNull():
                return self.zones_with_null()
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
        lengths = self.lengths
        if isinstance(leaf, IsNull):
            return np.flatnonzero(self.null_count < lengths)
        may_be_false = self.has_null | (self.nan_count > 0)
        if isinstance(leaf, Compares):
            return np.flatnonzero(may_be_false | self._overlaps(false_interval(column_type, leaf)))
        interval = true_interval(column_type, leaf)
        if interval is None or interval.low is not interval.high:
            return np.arange(lengths.size)
        holds_others = ~(
            _compare("equal", self.least, interval.low)
            & _compare("equal", self.greatest, interval.low)
        )
        return np.flatnonzero(may_be_false | holds_others)

    def excludes(self, zone: int, values: pa.Array) -> bool:
        ordered = ordered_values(values)
        num_nan = 0
        if pt.is_floating(ordered.type):
            is_nan = pc.call_function("is_nan", [ordered])
            num_nan = pc.call_function("sum", [is_nan]).as_py() or 0
            ordered = ordered.filter(pc.call_function("invert", [is_nan]))
        counts = self.null_count[zone], self.nan_count[zone]
        if counts != (values.null_count, num_nan):
            return True
        ends: Any = pc.call_function("min_max", [ordered])
        if not ends["min"].is_valid:
            return False
        pairs = (self.least[zone], ends["min"]), (ends["max"], self.greatest[zone])
        # The comparison with an unknown greatest value is null.
        return any(pc.call_function("less_equal", list(pair)).as_py() is False for pair in pairs)

    def _overlaps(self, interval: Interval | None) -> np.ndarray:
        """Return whether the bounds of each zone overlap an interval, bool."""
        if interval is None:
            return np.zeros(len(self), dtype=bool)
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
        """Whether each zone holds values other than null and NaN, bool."""
        return self.null_count + self.nan_count.astype(np.uint64) < self.lengths

    def _may_hold_any(self, column_type: pa.DataType, values: pa.Array) -> np.ndarray:
        wanted = _stored_values(column_type, values)
        if wanted is None:
            overlaps = map(self._overlaps, _intervals(column_type, values))
            return np.logical_or.reduce(list(overlaps))
        if not len(wanted):
            return np.zeros(len(self), dtype=bool)
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


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays([pa.array([], column.type), *column.chunks])


def write_zone_map(sink: HashingFile, tables: Sequence[pa.Table]) -> WrittenTable:
    """Write the content of tables, in order, as one file, and close it."""
    schema = with_format_version(tables[0].schema)
    with sink, pa.ipc.new_file(sink, schema) as writer:
        for table in tables:
            writer.write_table(table.cast(schema).combine_chunks())
    num_zones = sum(table.num_rows for table in tables)
    return WrittenTable(sink.size, sink.checksum.hexdigest(), num_zones)
