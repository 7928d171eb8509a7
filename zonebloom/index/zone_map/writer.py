"""Compute the bounds of zones from the values of a column, and write them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from zonebloom.base.arrays import from_numpy
from zonebloom.index.table import HashingFile, WrittenTable
from zonebloom.index.zone_map.table import write_zone_map, zone_map_schema
from zonebloom.index.zone_parts import ColumnValues
from zonebloom.storage.files import FileCreator
from zonebloom.values.normal_types import normalized_type
from zonebloom.values.types import family

# Longer strings are cut to so many bytes.
_MAX_BOUND_BYTES = 64
_LAST_CODE_POINT = 0x10FFFF
_SURROGATES = 0xD800, 0xE000


class ZoneMapWriter:
    """The writer of a segment of a build."""

    def __init__(self, creator: FileCreator, path: str, column_type: pa.DataType, items: int):
        # Create the file at once, so that an error of the store is raised before the data is read.
        self._sink = HashingFile(creator.open_output_stream(path))
        self._schema = zone_map_schema(column_type, items)
        self._items = items
        self._type = normalized_type(column_type)
        # Values of a zone that is not complete.
        self._waiting: list[pa.Array] = []
        self._num_waiting = 0
        self._first_row = 0
        self._tables: list[pa.Table] = []

    def add(self, fragment_id: int, part: ColumnValues) -> None:
        array = part.array
        array = array if array.type == self._type else array.cast(self._type)
        start = 0
        if self._num_waiting:
            start = min(self._items - self._num_waiting, len(array))
            self._wait_for_more(array.slice(0, start))
            if self._num_waiting == self._items:
                self._write_waiting(fragment_id)
        whole = (len(array) - start) // self._items * self._items
        if whole:
            self._write_zones(fragment_id, array.slice(start, whole))
        self._wait_for_more(array.slice(start + whole))

    def _wait_for_more(self, array: pa.Array) -> None:
        if len(array):
            self._waiting.append(array)
            self._num_waiting += len(array)

    def _write_waiting(self, fragment_id: int) -> None:
        self._write_zones(fragment_id, pa.concat_arrays(self._waiting))
        self._waiting, self._num_waiting = [], 0

    def _write_zones(self, fragment_id: int, values: pa.Array) -> None:
        bounds = _zone_bounds(values, self._items)
        starts = np.arange(0, len(values), self._items, dtype=np.uint64)
        lengths = np.full(starts.size, self._items, dtype=np.uint64)
        lengths[-1] = len(values) - int(starts[-1])
        ids = np.full(starts.size, fragment_id, dtype=np.uint64)
        starts += np.uint64(self._first_row)
        self._first_row += len(values)
        columns = [*bounds, *map(from_numpy, (ids, starts, lengths))]
        self._tables.append(pa.Table.from_arrays(columns, schema=self._schema))

    def end_fragment(self, fragment_id: int) -> None:
        if self._num_waiting:
            self._write_waiting(fragment_id)
        self._first_row = 0

    def close(self) -> WrittenTable:
        tables = self._tables or [self._schema.empty_table()]
        return write_zone_map(self._sink, [pa.concat_tables(tables)])

    def abort(self) -> None:
        """Close the file after a failure. It is not a valid table."""
        self._sink.close()


class _Bounds(NamedTuple):
    least: pa.Array
    greatest: pa.Array
    null_count: pa.Array
    nan_count: pa.Array


def _zone_bounds(values: pa.Array, items: int) -> _Bounds:
    """Return the bounds of zones of so many values each; the last one may have fewer."""
    numbers = None if values.null_count else _as_numbers(values)
    if numbers is not None:
        return _bounds_of_numbers(numbers, values.type, items)
    rows = [_bounds_of(values.slice(start, items)) for start in range(0, len(values), items)]
    least, greatest, null_counts, nan_counts = zip(*rows, strict=True)
    return _Bounds(
        pa.array(least, values.type),
        pa.array(greatest, values.type),
        pa.array(null_counts, pa.uint32()),
        pa.array(nan_counts, pa.uint32()),
    )


def _as_numbers(values: pa.Array) -> np.ndarray | None:
    """Return numbers, dates and times without copying them, or None for other types."""
    type_ = values.type
    if not pt.is_primitive(type_) or pt.is_boolean(type_) or pt.is_interval(type_):
        return None
    width = type_.byte_width
    kind = "f" if pt.is_floating(type_) else "u" if pt.is_unsigned_integer(type_) else "i"
    data = values.buffers()[1]
    return np.frombuffer(data, f"{kind}{width}", len(values), values.offset * width)


def _bounds_of_numbers(numbers: np.ndarray, type_: pa.DataType, items: int) -> _Bounds:
    starts = np.arange(0, numbers.size, items)
    none = from_numpy(np.zeros(starts.size, np.uint32))
    if numbers.dtype.kind != "f":
        ends = (ufunc.reduceat(numbers, starts) for ufunc in (np.minimum, np.maximum))
        least, greatest = (from_numpy(end).view(type_) for end in ends)
        return _Bounds(least, greatest, none, none)
    is_nan = np.isnan(numbers)
    least, greatest = (ufunc.reduceat(numbers, starts) for ufunc in (np.fmin, np.fmax))
    has_value = ~np.isnan(least)
    nan_counts = np.add.reduceat(is_nan, starts, dtype=np.uint32)
    return _Bounds(
        from_numpy(least, has_value),
        from_numpy(greatest, has_value),
        none,
        from_numpy(nan_counts),
    )


def _bounds_of(values: pa.Array) -> tuple[pa.Scalar, pa.Scalar, int, int]:
    """Return the bounds of one zone, and its numbers of nulls and NaN."""
    null_count = values.null_count
    nan_count = 0
    type_ = values.type
    if pt.is_floating(type_):
        # A signaling NaN makes min_max forget earlier values, so remove NaN first.
        is_nan = pc.call_function("is_nan", [values])
        nan_count = pc.call_function("sum", [is_nan]).as_py() or 0
        values = values.filter(pc.call_function("invert", [is_nan]))
    comparable = values.view(pa.int64()) if pt.is_duration(type_) else values
    ends: Any = pc.call_function("min_max", [comparable])
    least, greatest = ends["min"], ends["max"]
    if pt.is_duration(type_):
        least, greatest = least.cast(type_), greatest.cast(type_)
    if family(type_) in ("text", "bytes") and least.is_valid and not pt.is_fixed_size_binary(type_):
        is_text = family(type_) == "text"
        least = pa.scalar(_cut_least(least.as_buffer().to_pybytes(), is_text), type_)
        greatest = pa.scalar(_cut_greatest(greatest.as_buffer().to_pybytes(), is_text), type_)
    return least, greatest, null_count, nan_count


def _cut_least(value: bytes, is_text: bool) -> bytes:
    """Return a short value that is not after a value."""
    cut = value[:_MAX_BOUND_BYTES]
    if not is_text:
        return cut
    # Text that is not UTF-8 ends before its first wrong byte.
    return cut.decode(errors="replace").partition("\N{REPLACEMENT CHARACTER}")[0].encode()


def _cut_greatest(value: bytes, is_text: bool) -> bytes | None:
    """Return a short value that is not before a value, or None if there is none."""
    if not is_text:
        if len(value) <= _MAX_BOUND_BYTES:
            return value
        kept = value[:_MAX_BOUND_BYTES].rstrip(b"\xff")
        return kept[:-1] + bytes([kept[-1] + 1]) if kept else value
    try:
        value.decode()
    except UnicodeDecodeError:
        return None
    if len(value) <= _MAX_BOUND_BYTES:
        return value
    kept = value[:_MAX_BOUND_BYTES].decode(errors="ignore").rstrip(chr(_LAST_CODE_POINT))
    if not kept:
        return value
    following = ord(kept[-1]) + 1
    if following == _SURROGATES[0]:
        following = _SURROGATES[1]
    return (kept[:-1] + chr(following)).encode()
