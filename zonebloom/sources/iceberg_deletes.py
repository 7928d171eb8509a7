"""Read the rows that an Iceberg table deleted, from its three kinds of delete files.

Source: Iceberg's spec, "Scan Planning" (which deletes apply to which files), "Position Delete
Files", "Equality Delete Files", "Deletion Vectors", and the Puffin spec, "deletion-vector-v1".
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from operator import or_
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs

from zonebloom.base.arrays import from_numpy, to_numpy, unwrap_extensions
from zonebloom.base.row_ranges import MAX_ROWS_PER_FRAGMENT, RowRanges
from zonebloom.errors import FragmentUnreadable
from zonebloom.sources.fragment_rows import read_view_batches
from zonebloom.sources.source import Fragment, Source
from zonebloom.storage.file_view import FieldNames, FileView
from zonebloom.storage.files import file_errors
from zonebloom.values.normal_types import hashed_type

# The blob of a deletion vector: | length of magic and bitmap, 4 | magic, 4 | bitmap | CRC, 4 |
_DV_MAGIC = bytes([0xD1, 0xD3, 0x39, 0x64])
_POSITIONS = pa.schema(
    [
        # A dictionary, because a file names each of its few paths many times.
        pa.field("file_path", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("pos", pa.int64(), nullable=False),
    ]
)
_RESTORE_ADVICE = "restore the file, or rewrite the table"


class _CachedRead:
    """Mixin that caches what a file contains, and drops the cache when the object is pickled."""

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "content"}


@dataclass(eq=False)
class PositionDeletes(_CachedRead):
    """A delete file that lists rows by the path of their data file and their position in it."""

    filesystem: pafs.FileSystem
    path: str
    _lock: Lock = field(default_factory=Lock, init=False, repr=False)

    @cached_property
    def content(self) -> dict[str, RowRanges]:
        import pyarrow.parquet as pq

        with (
            file_errors(self.path, _RESTORE_ADVICE),
            self.filesystem.open_input_file(self.path) as file,
        ):
            metadata = pq.read_metadata(file)
            if not set(_POSITIONS.names) <= set(metadata.schema.to_arrow_schema().names):
                raise ValueError("it does not have the columns file_path and pos")
            parquet = pq.ParquetFile(file, metadata=metadata, read_dictionary=["file_path"])
            table = parquet.read(columns=_POSITIONS.names).select(_POSITIONS.names)
            table = table.cast(_POSITIONS).unify_dictionaries()
            positions = to_numpy(table["pos"])
            if (positions < 0).any():
                raise ValueError("a position is negative")
        files = table["file_path"].combine_chunks()
        numbers = to_numpy(files.indices)
        # Group by file once. Comparing all numbers for each file would take files x positions.
        is_ascending = _ascends(numbers, positions)
        if not is_ascending.all():
            # The file is not in the order of the spec, or repeats a row.
            order = np.lexsort((positions, numbers))
            numbers, positions = numbers[order], positions[order]
            is_ascending = _ascends(numbers, positions)
            numbers, positions = numbers[is_ascending], positions[is_ascending]
        paths = files.dictionary.to_pylist()
        ends = np.searchsorted(numbers, np.arange(len(paths) + 1))
        return {
            path: RowRanges.from_rows(positions[ends[number] : ends[number + 1]])
            for number, path in enumerate(paths)
        }

    def rows_of(self, location: str) -> RowRanges:
        # Many data files share a delete file. Without the lock, several threads would read it.
        with self._lock:
            content = self.content
        return content.get(location, RowRanges())

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=Lock())


def _ascends(numbers: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Return a mask of the pairs that are greater than the pair before."""
    mask = np.ones(numbers.size, dtype=bool)
    is_next_position = (numbers[1:] == numbers[:-1]) & (positions[1:] > positions[:-1])
    mask[1:] = (numbers[1:] > numbers[:-1]) | is_next_position
    return mask


@dataclass(eq=False)
class DeletionVector(_CachedRead):
    """A blob of a Puffin file: a 64-bit Roaring bitmap of positions in one data file."""

    filesystem: pafs.FileSystem
    path: str
    offset: int
    num_bytes: int

    @cached_property
    def content(self) -> RowRanges:
        from pyroaring import BitMap64

        with (
            file_errors(self.path, _RESTORE_ADVICE),
            self.filesystem.open_input_file(self.path) as file,
        ):
            is_valid = 0 <= self.offset <= self.offset + self.num_bytes <= file.size()
            # Check the size first, because read_at allocates as many bytes as it is asked for.
            blob = file.read_at(self.num_bytes, self.offset) if is_valid else b""
            body, crc = blob[4:-4], blob[-4:]
            is_valid &= int.from_bytes(blob[:4], "big") == len(body)
            is_valid &= body[:4] == _DV_MAGIC and zlib.crc32(body) == int.from_bytes(crc, "big")
            if not is_valid:
                raise FragmentUnreadable(
                    f"{self.path} holds no deletion vector at byte {self.offset:,}, where the "
                    f"table's metadata expects one; {_RESTORE_ADVICE}"
                )
            rows = BitMap64.deserialize(body[4:])
            if rows and rows.max() >= MAX_ROWS_PER_FRAGMENT:
                raise ValueError(f"it deletes row {rows.max():,}")
        # A small bitmap can hold billions of rows, so compute only the ends of its ranges.
        next_rows = rows.shift(1)
        starts, stops = rows - next_rows, next_rows - rows
        return RowRanges.from_arrays(
            np.array(starts.to_array(), np.int64), np.array(stops.to_array(), np.int64)
        )

    def rows_of(self, location: str) -> RowRanges:
        return self.content


@dataclass(eq=False)
class EqualityDeletes(_CachedRead):
    """A delete file of values. A row is deleted if it has the same values in all their columns."""

    filesystem: pafs.FileSystem
    path: str
    columns: EqualityColumns

    @cached_property
    def content(self) -> _TupleSet:
        return _TupleSet(self.columns.read(self.filesystem, self.path, {}))


@dataclass(frozen=True, slots=True, eq=False)
class EqualityColumns:
    """The columns that an equality delete compares, named by field id."""

    schema: pa.Schema
    names: FieldNames
    defaults: Mapping[str, pa.Scalar]

    def read(
        self, filesystem: pafs.FileSystem, path: str, constants: Mapping[str, pa.Scalar]
    ) -> pa.Table:
        """Return the columns of all rows of a file. The constants are its partition values."""
        # Partition values come from the metadata, so do not look for these columns in the file.
        stored = tuple(child for child in self.names.children if child.name not in constants)
        names = FieldNames("", kind="struct", children=stored)
        fragment = Fragment(path, path, None, FileView(names, {**self.defaults, **constants}))
        source = Source(self.schema, None, filesystem, "", ())
        with file_errors(path, _RESTORE_ADVICE):
            batches = read_view_batches(source, fragment, filesystem, self.schema.names)
            return pa.Table.from_batches(batches, self.schema)


class _TupleSet:
    """The set of a table's rows as tuples of values. Nulls are equal to each other."""

    def __init__(self, table: pa.Table):
        self._values = [_with_iceberg_equality(column).unique() for column in table.columns]
        self._codes = self._encode(table)

    def _encode(self, table: pa.Table) -> pa.Table:
        """Return the index of each value among the set's values of its column, null if absent."""
        codes = [
            pc.call_function(
                "index_in", [_with_iceberg_equality(column)], pc.SetLookupOptions(values)
            )
            for column, values in zip(table.columns, self._values, strict=True)
        ]
        return pa.table(codes, [str(number) for number in range(len(codes))])

    def rows(self, table: pa.Table) -> np.ndarray:
        """Return the ascending numbers of a table's rows that are in the set."""
        codes = self._encode(table).append_column("row", from_numpy(np.arange(table.num_rows)))
        matches = codes.join(self._codes, self._codes.column_names, join_type="left semi")
        return np.sort(to_numpy(matches["row"]))


def _with_iceberg_equality(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Convert values so that they are equal as in Iceberg: NaN equals NaN, and -0.0 is not 0.0."""
    kind = hashed_type(values.type)
    chunks = [unwrap_extensions(chunk) for chunk in values.chunks]
    if not pa.types.is_floating(kind):
        return pa.chunked_array(chunks, kind)
    chunks_of_bits = []
    for chunk in chunks:
        numbers = np.array(chunk.to_numpy(zero_copy_only=False))
        numbers[np.isnan(numbers)] = np.nan
        bits = from_numpy(numbers.view(f"i{kind.bit_width // 8}"))
        chunks_of_bits.append(
            pc.call_function("if_else", [chunk.is_valid(), bits, pa.scalar(None, bits.type)])
        )
    return pa.chunked_array(chunks_of_bits, f"int{kind.bit_width}")


@dataclass(eq=False)
class FileDeletes(_CachedRead):
    """The deletes that apply to one data file.

    Attributes
    ----------
    location : str
        The data file's location as position deletes name it.
    positions : sequence of PositionDeletes or DeletionVector
    equalities : sequence of EqualityDeletes
    constants : mapping of str to pyarrow.Scalar
        The file's partition values by field id.
    """

    filesystem: pafs.FileSystem
    path: str
    location: str
    positions: Sequence[PositionDeletes | DeletionVector]
    equalities: Sequence[EqualityDeletes]
    constants: Mapping[str, pa.Scalar]

    @cached_property
    def content(self) -> RowRanges:
        parts = [delete.rows_of(self.location) for delete in self.positions]
        deletes_by_columns: dict[EqualityColumns, list[EqualityDeletes]] = {}
        for delete in self.equalities:
            deletes_by_columns.setdefault(delete.columns, []).append(delete)
        for columns, deletes in deletes_by_columns.items():
            table = columns.read(self.filesystem, self.path, self.constants)
            parts += [RowRanges.from_rows(delete.content.rows(table)) for delete in deletes]
        return reduce(or_, parts, RowRanges())

    def rows(self) -> RowRanges:
        return self.content
