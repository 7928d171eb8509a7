"""Collect, store and read the least and greatest key of each fragment.

The build collects them in the pass that trains the filters. Each segment has a file
``ranges.arrow`` with one row per fragment:

    fragment_id  uint64
    minimum, maximum  of the column's range type; null if all values are null or NaN, or if the
                      bounds are unknown. Their type is null if the keys are no values of a column
    is_known     bool    whether minimum and maximum bound every value except NaN
    has_nan      bool
    null_count, num_rows  int64

Values are ordered as in Arrow: strings by their bytes. Bounds may be wider than the values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from zonebloom.base.arrays import array_of, unwrap_extensions
from zonebloom.base.version import require_known_format, with_format_version
from zonebloom.catalog.coverage import PresentFragment
from zonebloom.errors import CorruptIndex
from zonebloom.storage.ipc_layout import open_uncompressed
from zonebloom.values.normal_types import key_range_type

# Bounds longer than this would make the file large, so they are stored as unknown.
_MAX_VALUE_BYTES = 256


def schema_for(arrow_type: pa.DataType) -> pa.Schema:
    bound = key_range_type(arrow_type)
    return pa.schema(
        [
            pa.field("fragment_id", pa.uint64(), nullable=False),
            pa.field("minimum", bound),
            pa.field("maximum", bound),
            pa.field("is_known", pa.bool_(), nullable=False),
            pa.field("has_nan", pa.bool_(), nullable=False),
            pa.field("null_count", pa.int64(), nullable=False),
            pa.field("num_rows", pa.int64(), nullable=False),
        ]
    )


class KeyRangeBuilder:
    """Accumulator of the bounds of one column of one fragment.

    Callers that add rows also update ``num_rows`` and ``null_count``.
    """

    def __init__(self, arrow_type: pa.DataType):
        self._type = key_range_type(arrow_type)
        self._is_floating = pt.is_floating(self._type)
        self._bounds: list[Any] = []
        self._has_nan = False
        self.null_count = 0
        self.num_rows = 0

    def add(self, array: pa.Array) -> None:
        array = unwrap_extensions(array)
        if isinstance(array, pa.DictionaryArray):
            # Dictionary values that no row uses make the bounds wider, but not wrong.
            self.add(array.dictionary)
            return
        if array.type != self._type:
            array = array.cast(self._type)
        if self._is_floating:
            is_nan = _is_nan(array)
            if pc.call_function("any", [is_nan]).as_py():
                self._has_nan = True
                # A signaling NaN makes min_max forget earlier values, so remove NaN first.
                array = array.filter(pc.call_function("invert", [is_nan]))
        ends: Any = pc.call_function("min_max", [array])
        self._bounds += [ends["min"], ends["max"]]

    def add_texts(self, texts: Sequence[bytes]) -> None:
        """Add strings or binary values, which need not be valid UTF-8."""
        is_text = pt.is_string(self._type) or pt.is_large_string(self._type)
        self.add(array_of(texts, pa.string() if is_text else pa.binary()))

    def merge(self, other: KeyRangeBuilder) -> None:
        self._bounds += other._bounds
        self._has_nan |= other._has_nan

    def _min_max(self) -> list[Any]:
        if len(self._bounds) == 2:
            return self._bounds
        bounds = pa.array([bound for bound in self._bounds if bound.is_valid], self._type)
        if self._is_floating:
            # min_max returns NaN if all values of an array are NaN.
            bounds = bounds.filter(pc.call_function("invert", [_is_nan(bounds)]))
        ends: Any = pc.call_function("min_max", [bounds])
        return [ends["min"], ends["max"]]

    def is_within(self, stored: Mapping[str, Any]) -> bool:
        """Return whether a row of ``ranges.arrow`` allows every value that was added."""
        least, greatest = self._min_max()
        if self._has_nan and not stored["has_nan"].as_py():
            return False
        if not stored["is_known"].as_py() or not least.is_valid:
            return True
        # A comparison with a null bound is null, so it fails the check.
        pairs = (stored["minimum"], least), (greatest, stored["maximum"])
        return all(pc.call_function("less_equal", list(pair)).as_py() for pair in pairs)

    def to_row(self, fragment_id: int) -> dict[str, Any]:
        has_bounds = not pt.is_null(self._type)
        ends = self._min_max() if has_bounds else [pa.scalar(None, self._type)] * 2
        is_known = has_bounds and all(_num_bytes(end) <= _MAX_VALUE_BYTES for end in ends)
        if not is_known:
            ends = [pa.scalar(None, self._type)] * 2
        return {
            "fragment_id": fragment_id,
            "minimum": ends[0],
            "maximum": ends[1],
            "is_known": is_known,
            "has_nan": self._has_nan,
            "null_count": self.null_count,
            "num_rows": self.num_rows,
        }


def _is_nan(values: pa.Array) -> pa.Array:
    return pc.call_function("is_nan", [values])


def _num_bytes(value: Any) -> int:
    buffer = value.as_buffer() if hasattr(value, "as_buffer") else None
    return 0 if buffer is None else buffer.size


def write_ranges(rows: list[dict[str, Any]], arrow_type: pa.DataType) -> pa.Buffer:
    return tables_to_buffer([pa.Table.from_pylist(rows, schema=schema_for(arrow_type))])


def tables_to_buffer(tables: Sequence[pa.Table]) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    schema = with_format_version(tables[0].schema)
    with pa.ipc.new_file(sink, schema) as writer:
        for table in tables:
            writer.write_table(table.cast(schema))
    return sink.getvalue()


def read_ranges(buffer: pa.Buffer, where: str, arrow_type: pa.DataType | None = None) -> pa.Table:
    try:
        table = open_uncompressed(buffer).read_all()
        require_known_format(table.schema)
        table.validate(full=True)
        # A string column may have become a large_string column since the build.
        return table.cast(schema_for(arrow_type or table.schema.field("minimum").type))
    except (pa.ArrowException, KeyError, ValueError, OSError) as error:
        raise CorruptIndex(f"{where} does not hold key ranges of the column ({error})") from None


def fragment_ranges(
    present: Sequence[PresentFragment], stored: pa.Table, arrow_type: pa.DataType
) -> pa.Table:
    """Return the key ranges of the current fragments, as `zonebloom.Dataset.key_ranges` does."""
    rows = {fragment_id: row for row, fragment_id in enumerate(stored["fragment_id"].to_pylist())}
    row_numbers = [
        rows.get(fragment.fragment_id) if fragment.is_known else None for fragment in present
    ]
    table = stored.take(pa.array(row_numbers, pa.int64()))
    bound = key_range_type(arrow_type)
    return pa.table(
        {
            "fragment_id": pa.array([fragment.fragment_id for fragment in present], pa.uint64()),
            "path": pa.array([fragment.fragment.path for fragment in present], pa.string()),
            "minimum": table["minimum"].cast(bound),
            "maximum": table["maximum"].cast(bound),
            "is_known": table["is_known"].fill_null(False),
            "has_nan": table["has_nan"],
            "null_count": table["null_count"],
            "num_rows": table["num_rows"],
        }
    )
