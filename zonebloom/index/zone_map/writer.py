"""Compute the bounds of zones from the values of a column, and write them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from zonebloom.base.arrays import array_of, from_numpy, unwrap_extensions
from zonebloom.base.row_ranges import MAX_ROWS_PER_FRAGMENT
from zonebloom.index.table import ColumnValues, HashingFile, WrittenTable
from zonebloom.index.zone_map.bounds import write_zone_map, zone_map_schema
from zonebloom.storage.files import FileCreator
from zonebloom.values.normal_types import hashed_values, normalized_type
from zonebloom.values.types import family

# Longer strings are cut to so many bytes.
_MAX_BOUND_BYTES = 64
_LAST_CODE_POINT = 0x10FFFF
_SURROGATES = 0xD800, 0xE000


class BoundsBuilder:
    """The bounds of the values of one zone, whose rows come in parts.

    Attributes
    ----------
    num_rows, null_count : int
        Callers that add values also count their rows.
    """

    def __init__(self, column_type: pa.DataType):
        self._type = normalized_type(column_type)
        self._parts: list[tuple[pa.Scalar, pa.Scalar]] = []
        self._nan_count = 0
        self.num_rows = 0
        self.null_count = 0

    def add(self, array: pa.Array) -> None:
        """Add values, whose rows `count` counts."""
        array = unwrap_extensions(array)
        if isinstance(array, pa.DictionaryArray):
            if not pt.is_floating(array.type.value_type):
                # Values of the dictionary that no row uses make the bounds wider, but not wrong.
                self.add(array.dictionary)
                return
            array = hashed_values(array)
        least, greatest, _, nan_count = _bounds_of(_cast(array, self._type))
        self._parts.append((least, greatest))
        self._nan_count += nan_count

    def add_texts(self, texts: Sequence[bytes]) -> None:
        """Add strings or binary values, which need not be valid UTF-8."""
        self.add(array_of(texts, pa.string() if family(self._type) == "text" else pa.binary()))

    def count(self, num_rows: int, null_count: int) -> None:
        self.num_rows += num_rows
        self.null_count += null_count

    def merge(self, other: BoundsBuilder) -> None:
        self._parts += other._parts
        self._nan_count += other._nan_count
        self.count(other.num_rows, other.null_count)

    def to_bounds(self) -> _Bounds:
        """Return the bounds of the zone, in arrays of one item."""
        ends = [pa.array(part, self._type) for part in zip(*self._parts, strict=True)]
        least, greatest = ends or [pa.nulls(0, self._type)] * 2
        # The greatest value of a part with values may be unknown.
        is_known = greatest.null_count == least.null_count
        bounds = _bounds_of(least)[0], _bounds_of(greatest)[1] if is_known else None
        counts = (pa.array([count], pa.uint32()) for count in (self.null_count, self._nan_count))
        return _Bounds(*(pa.array([end], self._type) for end in bounds), *counts)


def write_key_ranges(
    creator: FileCreator, path: str, column_type: pa.DataType, files: Mapping[int, BoundsBuilder]
) -> WrittenTable:
    """Write the bounds of files, by fragment id, as a zone map with one zone for each of them."""
    schema = zone_map_schema(column_type, MAX_ROWS_PER_FRAGMENT)
    lengths = [builder.num_rows for builder in files.values()]
    places = (np.array(numbers, np.uint64) for numbers in (list(files), [0] * len(files), lengths))
    parts = zip(*(builder.to_bounds() for builder in files.values()), strict=True)
    bounds = [pa.concat_arrays(part) for part in parts]
    table = schema.empty_table()
    if files:
        table = pa.Table.from_arrays([*bounds, *map(from_numpy, places)], schema=schema)
    return write_zone_map(HashingFile(creator.open_output_stream(path)), [table])


class ZoneMapWriter:
    """The writer of a segment of a build."""

    def __init__(self, creator: FileCreator, path: str, column_type: pa.DataType, items: int):
        # Create the file at once, so that an error of the store is raised before the data is read.
        self._sink = HashingFile(creator.open_output_stream(path))
        self._schema = zone_map_schema(column_type, items)
        self._items = items
        self._type = normalized_type(column_type)
        # A zone that is not complete.
        self._zone = BoundsBuilder(column_type)
        self._first_row = 0
        self._tables: list[pa.Table] = []

    def add(self, fragment_id: int, part: ColumnValues) -> None:
        array = _cast(part.array, self._type)
        start = 0
        if self._zone.num_rows:
            start = min(self._items - self._zone.num_rows, len(array))
            self._add_to_zone(array.slice(0, start))
            if self._zone.num_rows == self._items:
                self._end_zone(fragment_id)
        whole = (len(array) - start) // self._items * self._items
        if whole:
            bounds = _zone_bounds(array.slice(start, whole), self._items)
            self._write_zones(fragment_id, bounds, whole)
        self._add_to_zone(array.slice(start + whole))

    def _add_to_zone(self, array: pa.Array) -> None:
        if len(array):
            self._zone.add(array)
            self._zone.count(len(array), array.null_count)

    def _end_zone(self, fragment_id: int) -> None:
        self._write_zones(fragment_id, self._zone.to_bounds(), self._zone.num_rows)
        self._zone = BoundsBuilder(self._type)

    def _write_zones(self, fragment_id: int, bounds: _Bounds, num_rows: int) -> None:
        starts = np.arange(0, num_rows, self._items, dtype=np.uint64)
        lengths = np.full(starts.size, self._items, dtype=np.uint64)
        lengths[-1] = num_rows - int(starts[-1])
        ids = np.full(starts.size, fragment_id, dtype=np.uint64)
        starts += np.uint64(self._first_row)
        self._first_row += num_rows
        columns = [*bounds, *map(from_numpy, (ids, starts, lengths))]
        self._tables.append(pa.Table.from_arrays(columns, schema=self._schema))

    def end_fragment(self, fragment_id: int) -> None:
        if self._zone.num_rows:
            self._end_zone(fragment_id)
        self._first_row = 0

    def close(self) -> WrittenTable:
        tables = self._tables or [self._schema.empty_table()]
        return write_zone_map(self._sink, [pa.concat_tables(tables)])

    def abort(self) -> None:
        """Close the file after a failure. It is not a valid table."""
        self._sink.close()


def _cast(array: pa.Array, type_: pa.DataType) -> pa.Array:
    return array if array.type == type_ else array.cast(type_)


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
