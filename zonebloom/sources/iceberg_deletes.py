"""Rows that an Iceberg table has deleted: position deletes, deletion vectors, equality deletes.

Source: Iceberg's spec, "Scan Planning" (which deletes apply to which files), "Position Delete
Files", "Equality Delete Files", "Deletion Vectors", and the Puffin spec, "deletion-vector-v1".
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import or_
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs

from zonebloom.base.arrays import from_numpy, to_numpy
from zonebloom.base.row_ranges import MAX_ROWS_PER_FRAGMENT, RowRanges
from zonebloom.errors import FragmentUnreadable
from zonebloom.sources.fragment_rows import read_view_batches
from zonebloom.sources.source import Fragment, Source
from zonebloom.storage.file_view import FieldNames, FileView
from zonebloom.storage.files import file_errors

# Of a deletion vector's blob: | length of the next two, 4 | magic, 4 | bitmap | CRC of those, 4 |
_DV_MAGIC = bytes([0xD1, 0xD3, 0x39, 0x64])
_POSITIONS = pa.schema(
    [
        pa.field("file_path", pa.string(), nullable=False),
        pa.field("pos", pa.int64(), nullable=False),
    ]
)
_ADVICE = "restore the file, or rewrite the table"


class _Found:
    """Keeps what was found when it was first asked for; that does not travel to other processes."""

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "found"}


@dataclass(eq=False)
class PositionDeletes(_Found):
    """A file of paths of data files and positions in them."""

    filesystem: pafs.FileSystem
    path: str

    @cached_property
    def found(self) -> dict[str, RowRanges]:
        import pyarrow.parquet as pq

        with file_errors(self.path, _ADVICE), self.filesystem.open_input_file(self.path) as file:
            table = pq.ParquetFile(file).read(columns=_POSITIONS.names)
            if table.schema.names != _POSITIONS.names:
                raise ValueError("it has no paths and positions")
            table = table.cast(_POSITIONS).combine_chunks()
            positions = to_numpy(table["pos"])
            if (positions < 0).any():
                raise ValueError("a position is negative")
        files = table["file_path"].combine_chunks().dictionary_encode()
        numbers = to_numpy(files.indices)
        return {
            path: RowRanges.from_rows(np.unique(positions[numbers == number]))
            for number, path in enumerate(files.dictionary.to_pylist())
        }

    def of(self, location: str) -> RowRanges:
        return self.found.get(location, RowRanges())


@dataclass(eq=False)
class DeletionVector(_Found):
    """A blob of a Puffin file: a 64-bit Roaring bitmap of positions in one data file."""

    filesystem: pafs.FileSystem
    path: str
    offset: int
    num_bytes: int

    @cached_property
    def found(self) -> RowRanges:
        from pyroaring import BitMap64

        with file_errors(self.path, _ADVICE), self.filesystem.open_input_file(self.path) as file:
            is_whole = 0 <= self.offset <= self.offset + self.num_bytes <= file.size()
            # Memory is taken for as much as is asked for.
            blob = file.read_at(self.num_bytes, self.offset) if is_whole else b""
            body, crc = blob[4:-4], blob[-4:]
            is_whole &= int.from_bytes(blob[:4], "big") == len(body)
            is_whole &= body[:4] == _DV_MAGIC and zlib.crc32(body) == int.from_bytes(crc, "big")
            if not is_whole:
                raise FragmentUnreadable(
                    f"{self.path} holds no deletion vector at {self.offset:,}, as the table says "
                    f"it does; {_ADVICE}"
                )
            rows = BitMap64.deserialize(body[4:])
            if rows and rows.max() >= MAX_ROWS_PER_FRAGMENT:
                raise ValueError(f"it deletes row {rows.max():,}")
        # A few bytes may say billions of rows, of which the ends alone are taken.
        after = rows.shift(1)
        ends = (np.array(each.to_array(), np.int64) for each in (rows - after, after - rows))
        return RowRanges.from_arrays(*ends)

    def of(self, location: str) -> RowRanges:
        return self.found


@dataclass(eq=False)
class EqualityDeletes(_Found):
    """A file of values: rows that hold the same in all of some columns are deleted."""

    filesystem: pafs.FileSystem
    path: str
    columns: EqualityColumns

    @cached_property
    def found(self) -> _KeySet:
        return _KeySet(self.columns.read(self.filesystem, self.path, {}))


@dataclass(frozen=True, slots=True, eq=False)
class EqualityColumns:
    """Columns that equality deletes compare, by field id."""

    schema: pa.Schema
    names: FieldNames
    defaults: Mapping[str, pa.Scalar]

    def read(
        self, filesystem: pafs.FileSystem, path: str, constants: Mapping[str, pa.Scalar]
    ) -> pa.Table:
        """The columns of all rows of a file; constants are the file's partition values."""
        # What the metadata says of all rows is not looked for among them.
        stored = tuple(each for each in self.names.children if each.name not in constants)
        names = FieldNames("", kind="struct", children=stored)
        fragment = Fragment(path, path, None, FileView(names, {**self.defaults, **constants}))
        source = Source(self.schema, None, filesystem, "", ())
        with file_errors(path, _ADVICE):
            batches = read_view_batches(source, fragment, filesystem, self.schema.names)
            return pa.Table.from_batches(batches, self.schema)


class _KeySet:
    """Tuples of values, one a row of a table, nulls equal to one another."""

    def __init__(self, table: pa.Table):
        self._values = [_comparable(column).unique() for column in table.columns]
        # Of each column after the first, the pairs of the tuple so far and its own value there are.
        self._pairs: list[np.ndarray] = []
        codes = self._codes(table, 0)
        for column in range(1, table.num_columns):
            pairs = codes * len(self._values[column]) + self._codes(table, column)
            self._pairs.append(np.unique(pairs))
            codes = np.searchsorted(self._pairs[-1], pairs)

    def _codes(self, table: pa.Table, column: int) -> np.ndarray:
        """The numbers of the values of a column; -1 of those that are not among them."""
        options = pc.SetLookupOptions(self._values[column])
        found = pc.call_function("index_in", [_comparable(table.column(column))], options)
        return to_numpy(found.fill_null(-1)).astype(np.int64)

    def rows(self, table: pa.Table) -> np.ndarray:
        """Numbers of the rows of a table that are in the set, ascending."""
        codes = self._codes(table, 0)
        for column, pairs in enumerate(self._pairs, 1):
            others = self._codes(table, column)
            both = codes * len(self._values[column]) + others
            at = np.minimum(np.searchsorted(pairs, both), max(pairs.size - 1, 0))
            is_held = (codes >= 0) & (others >= 0)
            is_held &= pairs[at] == both if pairs.size else False
            codes = np.where(is_held, at, -1)
        return np.flatnonzero(codes >= 0)


def _comparable(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Values whose equality is that of Iceberg's: NaN is one value, and the zeros are two."""
    kind, chunks = values.type, []
    if isinstance(kind, pa.BaseExtensionType):
        return pa.chunked_array([each.storage for each in values.chunks], kind.storage_type)
    if not pa.types.is_floating(kind):
        return values
    for chunk in values.chunks:
        numbers = np.array(chunk.to_numpy(zero_copy_only=False))
        numbers[np.isnan(numbers)] = np.nan
        bits = from_numpy(numbers.view(f"i{kind.bit_width // 8}"))
        chunks.append(
            pc.call_function("if_else", [chunk.is_valid(), bits, pa.scalar(None, bits.type)])
        )
    return pa.chunked_array(chunks, f"int{kind.bit_width}")


@dataclass(eq=False)
class FileDeletes(_Found):
    """What is deleted of one data file.

    Attributes
    ----------
    location : str
        Of the data file, as position deletes name it.
    positions : sequence of PositionDeletes or DeletionVector
    equalities : sequence of EqualityDeletes
    constants : mapping of str to pyarrow.Scalar
        Values of the file's partition by field id.
    """

    filesystem: pafs.FileSystem
    path: str
    location: str
    positions: Sequence[PositionDeletes | DeletionVector]
    equalities: Sequence[EqualityDeletes]
    constants: Mapping[str, pa.Scalar]

    @cached_property
    def found(self) -> RowRanges:
        parts = [each.of(self.location) for each in self.positions]
        by_columns: dict[EqualityColumns, list[EqualityDeletes]] = {}
        for each in self.equalities:
            by_columns.setdefault(each.columns, []).append(each)
        for columns, deletes in by_columns.items():
            table = columns.read(self.filesystem, self.path, self.constants)
            parts += [RowRanges.from_rows(each.found.rows(table)) for each in deletes]
        return reduce(or_, parts, RowRanges())

    def rows(self) -> RowRanges:
        """Offsets of the rows that are deleted."""
        return self.found
