"""Helpers of end-to-end tests: real Parquet files, and references to compare results with."""

from __future__ import annotations

import contextlib
import datetime
import functools
import os
import random
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from support.helpers import index_folder, without_privileges

import zonebloom as zb
from zonebloom import RowRanges
from zonebloom.base.row_ranges import by_fragment
from zonebloom.catalog.store import Catalog
from zonebloom.index.zone_bloom.rows import RowTable

UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_STORAGE = {
    1: (pa.int8(), pa.uint8()),
    2: (pa.int16(), pa.uint16()),
    4: (pa.int32(), pa.uint32()),
    8: (pa.int64(), pa.uint64()),
}


# Parquet files


def write_files(folder: Path, tables: Sequence[pa.Table], **options: Any) -> list[Path]:
    """Write one Parquet file for each table, with names in scan order."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"part-{number:03d}.parquet" for number in range(len(tables))]
    for path, table in zip(paths, tables, strict=True):
        pq.write_table(table, path, **options)
    return paths


def numbered(first: int, rows: int, **columns: Any) -> pa.Table:
    """Return a table with the column ``row``, the row's number in the whole dataset."""
    return pa.table({"row": pa.array(range(first, first + rows), pa.int64()), **columns})


def plain_dataset(folder: Path, rows: int = 1000, files: int = 3, **options: Any) -> Path:
    """Write files of ``row``, ``id`` (= 10 * row), ``name`` and ``value``, a tenth null."""
    tables = []
    for number in range(files):
        row_numbers = range(number * rows, (number + 1) * rows)
        tables.append(
            numbered(
                number * rows,
                rows,
                id=pa.array([10 * row for row in row_numbers], pa.int64()),
                name=pa.array([None if row % 10 == 3 else f"name {row}" for row in row_numbers]),
                value=pa.array([row % 7 for row in row_numbers], pa.int32()),
            )
        )
    write_files(folder, tables, **options)
    return folder


def merge_segments(ds: zb.Dataset, names: Sequence[str]) -> None:
    """Merge all segments of some indices, which a refresh does when there are many."""
    from zonebloom.building.segments import compact_indices

    compact_indices(ds.opened.catalog, names, everything=True)


def build(ds: zb.Dataset, column: str, **options: Any) -> None:
    """Build in this process, even if another test left a Spark session active."""
    ds.create_scalar_index(column, "BLOOMFILTER", spark=False, **options)


def listing(folder: Path) -> dict[str, bytes]:
    """Return the bytes of every file below a data folder and its index folder, and the folders."""
    index = index_folder(folder)
    return {
        os.path.relpath(path, folder): path.read_bytes() if path.is_file() else b"<folder>"
        for path in sorted({*folder.rglob("*"), *index.rglob("*")})
    }


def touch_later(path: Path) -> None:
    """Give a file a modification time that no write at the same moment has."""
    status = os.stat(path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1_000_000_000))


@contextlib.contextmanager
def unreadable(folder: Path, mode: int = 0) -> Iterator[None]:
    """Make a folder inaccessible. Root can enter every folder, so change to another user."""
    old_mode = folder.stat().st_mode
    folder.chmod(mode)
    try:
        with without_privileges():
            yield
    finally:
        folder.chmod(old_mode)


# References to compare with


def assert_equals_pyarrow(
    ds: zb.Dataset, folder: Any, filter: Any, expression: Any, columns: Any = None
) -> pa.Table:
    """Check that a table has the rows that ``pyarrow.dataset`` finds, in order, and return it."""
    source = folder if isinstance(folder, pads.Dataset) else pads.dataset(folder)
    expected = source.to_table(columns=columns, filter=expression)
    result = ds.to_table(columns=columns, filter=filter)
    assert same_tables(result, expected), (
        f"{filter}: {result.num_rows}, not {expected.num_rows} rows"
    )
    return result


def same_tables(result: pa.Table, expected: pa.Table) -> bool:
    """Return whether tables are equal, where NaN equals NaN."""
    if result.equals(expected):
        return True
    return result.schema.equals(expected.schema) and repr(result.to_pylist()) == repr(
        expected.to_pylist()
    )


def rows_in(ds: zb.Dataset, ranges: RowRanges, paths: dict[int, str]) -> set[int]:
    """Return the row numbers in the whole dataset for row addresses."""
    first_rows, num_rows = {}, 0
    for path in ds.files:
        first_rows[path] = num_rows
        num_rows += _num_rows(path, os.stat(path).st_mtime_ns)
    root = os.path.commonpath([os.path.dirname(path) for path in ds.files])
    rows: set[int] = set()
    for fragment_id, fragment_ranges in by_fragment(ranges).items():
        first_row = first_rows[os.path.join(root, paths[fragment_id])]
        for start, stop in fragment_ranges:
            rows.update(range(first_row + start, first_row + stop))
    return rows


@functools.cache
def _num_rows(path: str, mtime_ns: int) -> int:
    return pq.ParquetFile(path).metadata.num_rows


def at_most_rows(ds: zb.Dataset, filter: Any) -> set[int]:
    """Return the row numbers that `Dataset.search` leaves as candidates."""
    result = ds.search(filter)
    return rows_in(ds, result.at_most, result.paths)


def tables_of(ds: zb.Dataset, name: str) -> list[RowTable]:
    """Return the segments of an index, read from disk."""
    catalog = Catalog(pafs.LocalFileSystem(), ds.index_dir)
    segments = catalog.latest().indices[name].segments
    paths = [catalog.path(segment.name, "bloomfilter.arrow") for segment in segments]
    return [
        RowTable(catalog.read(path, segment.num_bytes, segment.checksum), path)
        for path, segment in zip(paths, segments, strict=True)
    ]


def zones_of(ds: zb.Dataset, name: str) -> list[tuple[int, int, int]]:
    """Return (fragment id, start, length) of every zone, in order."""
    return [
        (int(fragment), int(start), int(length))
        for table in tables_of(ds, name)
        for fragment, start, length in zip(
            table.fragment_ids, table.starts, table.lengths, strict=True
        )
    ]


class CountingFileSystem(pafs.FileSystemHandler):
    """A Python file system that counts the bytes it reads, those of index files separately."""

    def __init__(self) -> None:
        self.local = pafs.LocalFileSystem()
        self.data_bytes = 0
        self.data_reads = 0
        self.index_bytes = 0
        self.opens = 0

    def wrapped(self) -> pafs.PyFileSystem:
        return pafs.PyFileSystem(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def get_type_name(self) -> str:
        return "counting"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> list[pafs.FileInfo]:
        return self.local.get_file_info(paths)

    def get_file_info_selector(self, selector: pafs.FileSelector) -> list[pafs.FileInfo]:
        return self.local.get_file_info(selector)

    def create_dir(self, path: str, recursive: bool) -> None:
        self.local.create_dir(path, recursive=recursive)

    def delete_dir(self, path: str) -> None:
        self.local.delete_dir(path)

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:
        self.local.delete_dir_contents(path, missing_dir_ok=missing_dir_ok)

    def delete_root_dir_contents(self) -> None:
        raise NotImplementedError

    def delete_file(self, path: str) -> None:
        self.local.delete_file(path)

    def move(self, source: str, target: str) -> None:
        self.local.move(source, target)

    def copy_file(self, source: str, target: str) -> None:
        self.local.copy_file(source, target)

    def open_input_file(self, path: str) -> pa.PythonFile:
        return pa.PythonFile(_CountedFile(path, self), mode="r")

    def open_input_stream(self, path: str) -> pa.PythonFile:
        return self.open_input_file(path)

    def open_output_stream(self, path: str, metadata: Any) -> pa.NativeFile:
        return self.local.open_output_stream(path)

    def open_append_stream(self, path: str, metadata: Any) -> pa.NativeFile:
        return self.local.open_append_stream(path)


class _CountedFile:
    def __init__(self, path: str, owner: CountingFileSystem):
        self._file = open(path, "rb")  # noqa: SIM115
        self._owner = owner
        self._is_index = "_zonebloom" in path
        owner.opens += not self._is_index

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size if size is not None else -1)
        if self._is_index:
            self._owner.index_bytes += len(data)
        else:
            self._owner.data_bytes += len(data)
            self._owner.data_reads += 1
        return data

    def size(self) -> int:
        return os.fstat(self._file.fileno()).st_size

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def column_chunk_bytes(path: Path, row_groups: Iterable[int], columns: Iterable[str]) -> int:
    """Return the compressed bytes of column chunks, from the footer."""
    metadata = pq.ParquetFile(path).metadata
    column_paths = set(columns)
    total = 0
    for group in row_groups:
        for index in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(index)
            if chunk.path_in_schema in column_paths:
                total += chunk.total_compressed_size
    return total


# Values of every type


def is_ticks(arrow_type: pa.DataType) -> bool:
    """Return whether a type is a whole number of a unit: integers, dates, times, durations."""
    t = pa.types
    return t.is_integer(arrow_type) or t.is_temporal(arrow_type)


def raw_values(arrow_type: pa.DataType, count: int, seed: int = 0) -> list[Any]:
    """Return distinct Python values, extremes first: integers, floats, Decimals, str, bytes."""
    rng = random.Random(seed)
    values: dict[Any, None] = dict.fromkeys(_extremes(arrow_type))
    while len(values) < count:
        values[_random_raw(arrow_type, rng)] = None
    return list(values)[:count]


def _bounds(arrow_type: pa.DataType) -> tuple[int, int]:
    t = pa.types
    if t.is_unsigned_integer(arrow_type):
        return 0, 2**arrow_type.bit_width - 1
    if t.is_date64(arrow_type):
        # Parquet stores whole days, in 32 bits.
        return -(2**31), 2**31 - 1
    if t.is_time(arrow_type):
        return 0, 86_400 * UNITS[arrow_type.unit] - 1
    if t.is_timestamp(arrow_type) and arrow_type.unit == "s":
        # Parquet has no unit of seconds, so they are stored as milliseconds.
        return -(2**63 // 1000), 2**63 // 1000
    bits = arrow_type.bit_width
    return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1


def _extremes(arrow_type: pa.DataType) -> list[Any]:
    t = pa.types
    if t.is_date64(arrow_type):
        return [day * 86_400_000 for day in (*_bounds(arrow_type), 0, 1)]
    if is_ticks(arrow_type):
        return [*_bounds(arrow_type), 0, 1]
    if t.is_floating(arrow_type):
        info = np.finfo(arrow_type.to_pandas_dtype())
        tiny = float(info.smallest_subnormal)
        return [float(info.max), float(info.min), tiny, float("inf"), float("-inf"), 0.0, 1.0]
    if t.is_decimal(arrow_type):
        top = 10**arrow_type.precision - 1
        return [Decimal(f"{n}E{-arrow_type.scale}") for n in (top, -top, 0, 1, -1)]
    if t.is_fixed_size_binary(arrow_type):
        return [b"\0" * arrow_type.byte_width, b"\xff" * arrow_type.byte_width]
    if is_text(arrow_type):
        return ["", "a", "\0", "it's", "naïve 😀", "x" * 5000]
    return [b"", b"\0", b"\xff\xfe", b"y" * 5000]


def is_text(arrow_type: pa.DataType) -> bool:
    """Return whether a type is a text type."""
    t = pa.types
    return t.is_string(arrow_type) or t.is_large_string(arrow_type) or t.is_string_view(arrow_type)


def _random_raw(arrow_type: pa.DataType, rng: random.Random) -> Any:
    t = pa.types
    if t.is_date(arrow_type):
        days = rng.randint(-60_000, 60_000)
        return days if t.is_date32(arrow_type) else days * 86_400_000
    if t.is_timestamp(arrow_type):
        return rng.randint(-(2**33), 2**33) * UNITS[arrow_type.unit] + rng.randrange(
            UNITS[arrow_type.unit]
        )
    if is_ticks(arrow_type):
        return rng.randint(*_bounds(arrow_type))
    if t.is_float16(arrow_type):
        return struct.unpack("<e", struct.pack("<e", rng.uniform(-1000, 1000)))[0]
    if t.is_float32(arrow_type):
        return struct.unpack("<f", struct.pack("<f", rng.uniform(-1e9, 1e9)))[0]
    if t.is_floating(arrow_type):
        return rng.uniform(-1e18, 1e18)
    if t.is_decimal(arrow_type):
        top = 10**arrow_type.precision - 1
        return Decimal(f"{rng.randint(-top, top)}E{-arrow_type.scale}")
    if t.is_fixed_size_binary(arrow_type):
        return rng.randbytes(arrow_type.byte_width)
    if is_text(arrow_type):
        return "".join(rng.choices("abcXYZ0189 'é€😀", k=rng.randrange(1, 30)))
    return rng.randbytes(rng.randrange(1, 30))


def array_of(arrow_type: pa.DataType, raws: Sequence[Any]) -> pa.Array:
    """Return an array of Python values, with None for null."""
    t = pa.types
    if t.is_dictionary(arrow_type):
        return array_of(arrow_type.value_type, raws).dictionary_encode().cast(arrow_type)
    if is_ticks(arrow_type):
        signed, unsigned = _STORAGE[arrow_type.bit_width // 8]
        storage = unsigned if t.is_unsigned_integer(arrow_type) else signed
        return pa.array(raws, storage).view(arrow_type)
    if t.is_float16(arrow_type):
        raws = [None if raw is None else np.float16(raw) for raw in raws]
    return pa.array(raws, arrow_type)


def scalar_of(arrow_type: pa.DataType, raw: Any) -> pa.Scalar:
    """Return a scalar of a Python value. For a dictionary type, the value is one of its values."""
    if pa.types.is_dictionary(arrow_type):
        arrow_type = arrow_type.value_type
    return array_of(arrow_type, [raw])[0]


def sql_literal(arrow_type: pa.DataType, raw: Any) -> str | None:
    """Return the value as SQL, or None if SQL cannot express it (years past 9999, infinities)."""
    t = pa.types
    if t.is_dictionary(arrow_type):
        return sql_literal(arrow_type.value_type, raw)
    if t.is_integer(arrow_type) or t.is_decimal(arrow_type):
        return f"{raw:f}" if isinstance(raw, Decimal) else str(raw)
    if t.is_floating(arrow_type):
        return repr(raw) if np.isfinite(raw) else None
    if is_text(arrow_type):
        return "'" + raw.replace("'", "''") + "'" if "\0" not in raw else None
    if isinstance(raw, bytes):
        return f"X'{raw.hex()}'"
    if t.is_duration(arrow_type):
        unit = {"s": "SECOND", "ms": "MILLISECOND", "us": "MICROSECOND", "ns": "NANOSECOND"}
        return f"INTERVAL '{raw}' {unit[arrow_type.unit]}"
    if t.is_date32(arrow_type):
        seconds, fraction, digits = raw * 86_400, 0, 0
    elif t.is_date64(arrow_type):
        seconds, fraction, digits = raw // 1000, 0, 0
    else:
        per_second = UNITS[arrow_type.unit]
        seconds, fraction = divmod(raw, per_second)
        digits = len(str(per_second)) - 1
    if not -62_135_596_800 <= seconds < 253_402_300_800:
        return None
    moment = datetime.datetime(1970, 1, 1) + datetime.timedelta(seconds=seconds)
    fraction_text = f".{fraction:0{digits}d}" if digits else ""
    if t.is_date(arrow_type):
        return f"DATE '{moment.date().isoformat()}'"
    if t.is_time(arrow_type):
        return f"TIME '{moment.time().isoformat()}{fraction_text}'"
    zone = "" if arrow_type.tz is None else "+00:00"
    day = f"{moment.year:04d}-{moment.month:02d}-{moment.day:02d}"
    return f"TIMESTAMP '{day} {moment.time().isoformat()}{fraction_text}{zone}'"


class ShortReads(CountingFileSystem):
    """A local file system that returns fewer bytes of data files than requested, as stores may do.

    Parameters
    ----------
    cut : callable
        A function of the position and the length of each read of a data file. It returns the number
        of bytes that the read returns.
    """

    def __init__(self, cut: Callable[[int, int], int]) -> None:
        super().__init__()
        self.cut = cut

    def get_type_name(self) -> str:
        return "short"

    def open_input_file(self, path: str) -> pa.PythonFile:
        if "_zonebloom" in path:
            return super().open_input_file(path)
        return pa.PythonFile(_ShortFile(path, self), mode="r")


class _ShortFile:
    """A file of a store. Every read is a request at the current position."""

    closed = False

    def __init__(self, path: str, filesystem: ShortReads):
        self._file = open(path, "rb")  # noqa: SIM115
        self._filesystem = filesystem
        self._position = 0

    def size(self) -> int:
        return os.fstat(self._file.fileno()).st_size

    def read(self, num_bytes: int | None = -1) -> bytes:
        available = max(self.size() - self._position, 0)
        if num_bytes is None or num_bytes < 0:
            num_bytes = available
        num_bytes = min(num_bytes, available)
        num_returned = self._filesystem.cut(self._position, num_bytes) if num_bytes else 0
        data = os.pread(self._file.fileno(), num_returned, self._position)
        self._position += len(data)
        return data

    def seek(self, position: int, whence: int = os.SEEK_SET) -> int:
        self._position = position + (0, self._position, self.size())[whence]
        return self._position

    def tell(self) -> int:
        return self._position

    def close(self) -> None:
        self.closed = True
        self._file.close()
