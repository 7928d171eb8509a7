"""List the live files of an Iceberg snapshot, and the rows of each that delete files deleted.

Source: Iceberg's spec, "Manifests", "Sequence Number Inheritance", "Scan Planning" (which deletes
apply to which files), "Position Delete Files" and "Equality Delete Files".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import chain
from operator import or_
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs

from zonebloom.base.arrays import from_numpy, to_numpy, unwrap_extensions
from zonebloom.base.row_ranges import MAX_ROWS_PER_FRAGMENT, OFFSET_BITS, RowRanges
from zonebloom.base.threads import REMOTE_THREADS, thread_pool
from zonebloom.errors import SourceError
from zonebloom.sources.deletion_vectors import RESTORE_ADVICE, CachedRead, DeletionVector
from zonebloom.sources.fragment_rows import read_view_batches
from zonebloom.sources.source import Fragment, Source
from zonebloom.storage.file_view import FieldNames, FileView
from zonebloom.storage.files import file_errors
from zonebloom.values.normal_types import hashed_type

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile, ManifestFile
    from pyiceberg.table import Table

_POSITIONS = pa.schema(
    [
        # A dictionary, because a file names each of its few paths many times.
        pa.field("file_path", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("pos", pa.int64(), nullable=False),
    ]
)
_NO_ROWS = np.empty(0, np.int64)
# Positions of fields in a DataFile of format version 3: referenced_data_file, content_offset and
# content_size_in_bytes.
_REFERENCED_FILE, _CONTENT_OFFSET, _CONTENT_SIZE = 17, 18, 19
# The id of the field `file_path` of position delete files.
_FILE_PATH_ID = 2147483546


class PositionDeleteFile(NamedTuple):
    """A delete file that lists rows by the path of their data file and their position in it.

    ``low`` and ``high`` are bounds of these paths.
    """

    path: str
    sequence_number: int
    low: bytes
    high: bytes

    def may_apply(self, location: bytes, sequence_number: int) -> bool:
        """Return whether the file may delete rows of a data file."""
        return sequence_number <= self.sequence_number and self.low <= location <= self.high

    def read(self, filesystem: pafs.FileSystem) -> dict[str, np.ndarray]:
        """Return the ascending positions by path."""
        import pyarrow.parquet as pq

        with file_errors(self.path, RESTORE_ADVICE), filesystem.open_input_file(self.path) as file:
            metadata = pq.read_metadata(file)
            if not set(_POSITIONS.names) <= set(metadata.schema.to_arrow_schema().names):
                raise ValueError("it does not have the columns file_path and pos")
            parquet = pq.ParquetFile(file, metadata=metadata, read_dictionary=["file_path"])
            table = parquet.read(columns=_POSITIONS.names).select(_POSITIONS.names)
            table = table.cast(_POSITIONS).unify_dictionaries()
            positions = to_numpy(table["pos"])
            if ((positions < 0) | (positions >= MAX_ROWS_PER_FRAGMENT)).any():
                raise ValueError("a position is negative or too large")
        paths = table["file_path"].combine_chunks()
        # Number all rows of all data files, to sort and group them once.
        rows = (to_numpy(paths.indices).astype(np.int64) << OFFSET_BITS) + positions
        if (rows[1:] <= rows[:-1]).any():
            rows = np.unique(rows)
        first_rows = np.arange(1, len(paths.dictionary), dtype=np.int64) << OFFSET_BITS
        parts = np.split(rows & ((1 << OFFSET_BITS) - 1), np.searchsorted(rows, first_rows))
        return dict(zip(paths.dictionary.to_pylist(), parts, strict=False))


class PositionDeletes:
    """The files of position deletes of a partition, or of one data file.

    A file is read once, when it may first apply to a data file whose deletes are needed.
    """

    def __init__(self, filesystem: pafs.FileSystem, files: Sequence[PositionDeleteFile]):
        self._filesystem = filesystem
        self._files = files
        self._contents: dict[PositionDeleteFile, dict[str, np.ndarray]] = {}
        # Many data files share a delete file. Without the lock, several threads would read it.
        self._lock = Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return PositionDeletes, (self._filesystem, self._files)

    def may_apply(self, location: str, sequence_number: int) -> bool:
        return any(file.may_apply(location.encode(), sequence_number) for file in self._files)

    def rows_of(self, location: str, sequence_number: int) -> RowRanges:
        """Return the rows of a data file that are deleted."""
        files = [file for file in self._files if file.may_apply(location.encode(), sequence_number)]
        with self._lock:
            unread = [file for file in files if file not in self._contents]
            with thread_pool(REMOTE_THREADS) as pool:
                contents = pool.map(lambda file: file.read(self._filesystem), unread)
                self._contents.update(zip(unread, contents, strict=True))
        parts = [self._contents[file].get(location, _NO_ROWS) for file in files]
        return reduce(or_, map(RowRanges.from_rows, parts), RowRanges())


@dataclass(eq=False)
class EqualityDeletes(CachedRead):
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
        with file_errors(path, RESTORE_ADVICE):
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
class FileDeletes(CachedRead):
    """The deletes that apply to one data file.

    Attributes
    ----------
    location : str
        The data file's location as position deletes name it.
    sequence_number : int
    vector : DeletionVector or None
        It includes all position deletes.
    positions : sequence of PositionDeletes
    equalities : sequence of EqualityDeletes
    constants : mapping of str to pyarrow.Scalar
        The file's partition values by field id.
    """

    filesystem: pafs.FileSystem
    path: str
    location: str
    sequence_number: int
    vector: DeletionVector | None
    positions: Sequence[PositionDeletes]
    equalities: Sequence[EqualityDeletes]
    constants: Mapping[str, pa.Scalar]

    @cached_property
    def content(self) -> RowRanges:
        if self.vector is not None:
            parts = [self.vector.rows()]
        else:
            parts = [
                delete.rows_of(self.location, self.sequence_number) for delete in self.positions
            ]
        deletes_by_columns: dict[EqualityColumns, list[EqualityDeletes]] = {}
        for delete in self.equalities:
            deletes_by_columns.setdefault(delete.columns, []).append(delete)
        for columns, deletes in deletes_by_columns.items():
            table = columns.read(self.filesystem, self.path, self.constants)
            parts += [RowRanges.from_rows(delete.content.rows(table)) for delete in deletes]
        return reduce(or_, parts, RowRanges())

    def rows(self) -> RowRanges:
        return self.content


class LiveFile(NamedTuple):
    """A data file or delete file of a snapshot, as its manifest describes it."""

    data: DataFile
    sequence_number: int
    spec_id: int

    @property
    def partition(self) -> tuple[int, str]:
        """A key of the file's partition. Its values are text, so that NaN equals NaN."""
        values = self.data.partition
        return self.spec_id, repr([values[position] for position in range(len(values))])


def live_files(table: Table, name: str) -> tuple[list[LiveFile], list[LiveFile]]:
    """Return the data files and the delete files of the current snapshot."""
    from pyiceberg.manifest import DataFileContent, FileFormat

    snapshot = table.current_snapshot()
    manifests = [] if snapshot is None else snapshot.manifests(table.io)
    with thread_pool(REMOTE_THREADS) as pool:
        entries = list(
            chain(*pool.map(lambda manifest: _live_entries(table, manifest, name), manifests))
        )
    formats = {
        DataFileContent.DATA: (FileFormat.PARQUET,),
        DataFileContent.POSITION_DELETES: (FileFormat.PARQUET, FileFormat.PUFFIN),
        DataFileContent.EQUALITY_DELETES: (FileFormat.PARQUET,),
    }
    for file in entries:
        if file.data.file_format not in formats[file.data.content]:
            raise SourceError(
                f"{file.data.file_path} of the {name} is no Parquet file; rewrite the table as "
                "Parquet first"
            )
    data_files = [file for file in entries if file.data.content == DataFileContent.DATA]
    delete_files = [file for file in entries if file.data.content != DataFileContent.DATA]
    return data_files, delete_files


def _live_entries(table: Table, manifest: ManifestFile, name: str) -> list[LiveFile]:
    from pyiceberg.avro.file import AvroFile
    from pyiceberg.manifest import (
        MANIFEST_ENTRY_SCHEMAS,
        DataFile,
        DataFileContent,
        FileFormat,
        ManifestEntry,
        ManifestEntryStatus,
    )

    # `ManifestFile.fetch_manifest_entry` omits the fields of deletion vectors, so read the Avro
    # file here.
    with AvroFile[ManifestEntry](
        table.io.new_input(manifest.manifest_path),
        MANIFEST_ENTRY_SCHEMAS[3],
        read_types={-1: ManifestEntry, 2: DataFile},
        read_enums={0: ManifestEntryStatus, 101: FileFormat, 134: DataFileContent},
    ) as reader:
        entries = [entry for entry in reader if entry.status != ManifestEntryStatus.DELETED]
    files = []
    for entry in entries:
        number = entry.sequence_number
        if number is None:
            # Added files inherit the manifest's number. Format version 1 has no numbers at all.
            number = manifest.sequence_number or 0
            if number and entry.status != ManifestEntryStatus.ADDED:
                raise SourceError(
                    f"{entry.data_file.file_path} of the {name} has no sequence number; rewrite "
                    "the table's manifests first"
                )
        files.append(LiveFile(entry.data_file, number, manifest.partition_spec_id))
    return files


def _path_bounds(data: DataFile) -> tuple[bytes, bytes]:
    """Return the least and the greatest path in a position delete file. Empty if unknown."""
    low = (data.lower_bounds or {}).get(_FILE_PATH_ID, b"")
    high = (data.upper_bounds or {}).get(_FILE_PATH_ID, b"")
    return low, high


class DeleteFileIndex:
    """The delete files of a snapshot by what they apply to: partition, data file, or all files."""

    def __init__(
        self,
        table: Table,
        filesystem: pafs.FileSystem,
        deletes: Sequence[tuple[LiveFile, str]],
        key_columns: Callable[[tuple[int, ...]], EqualityColumns],
        locations: Collection[str],
        name: str,
    ):
        """``locations`` are those of all data files."""
        from pyiceberg.manifest import DataFileContent, FileFormat

        self._filesystem = filesystem
        # Vectors and equality deletes stand with their sequence numbers.
        self._vectors: dict[str, tuple[int, DeletionVector]] = {}
        self._equalities: dict[object, list[tuple[int, EqualityDeletes]]] = {}
        # Data files of one partition and sequence number share their equality deletes.
        self._equalities_of: dict[object, tuple[EqualityDeletes, ...]] = {}
        positions: dict[object, list[PositionDeleteFile]] = {}
        columns: dict[tuple[int, ...], EqualityColumns] = {}
        for file, path in deletes:
            data, number = file.data, file.sequence_number
            referenced = data[_REFERENCED_FILE]
            if data.content == DataFileContent.EQUALITY_DELETES:
                ids = tuple(data.equality_ids or ())
                if ids not in columns:
                    columns[ids] = key_columns(ids)
                # Equality deletes of an unpartitioned spec apply to all partitions.
                key = file.partition if table.specs()[file.spec_id].fields else None
                delete = EqualityDeletes(filesystem, path, columns[ids])
                self._equalities.setdefault(key, []).append((number, delete))
            elif data.file_format == FileFormat.PUFFIN:
                if (
                    referenced is None
                    or data[_CONTENT_OFFSET] is None
                    or data[_CONTENT_SIZE] is None
                ):
                    raise SourceError(
                        f"the {name} does not say to which file the deletion vector in "
                        f"{data.file_path} belongs; rewrite the table first"
                    )
                if referenced in self._vectors:
                    raise SourceError(
                        f"the {name} has several deletion vectors for {referenced}; rewrite the "
                        "table first"
                    )
                vector = DeletionVector(
                    filesystem, path, data[_CONTENT_OFFSET], data[_CONTENT_SIZE]
                )
                self._vectors[referenced] = number, vector
            else:
                low, high = _path_bounds(data)
                if referenced is None and low == high and low.decode(errors="replace") in locations:
                    referenced = low.decode()
                key = file.partition if referenced is None else referenced
                # The greatest path may be cut off. No path has the byte 255, because it is UTF-8.
                delete = PositionDeleteFile(path, number, low, high + b"\xff")
                positions.setdefault(key, []).append(delete)
        self._positions = {
            key: PositionDeletes(filesystem, files) for key, files in positions.items()
        }

    def deletes_of(
        self, file: LiveFile, path: str, constants: Mapping[str, pa.Scalar]
    ) -> FileDeletes | None:
        """Return the deletes that apply to a data file, or None. Constants are by field id."""
        location, number = file.data.file_path, file.sequence_number
        vector_number, vector = self._vectors.get(location, (-1, None))
        if vector_number < number:
            vector = None
        partition = file.partition
        positions = [
            self._positions[key]
            # A deletion vector includes all older position deletes.
            for key in ((partition, location) if vector is None else ())
            if key in self._positions and self._positions[key].may_apply(location, number)
        ]
        equalities = self._equality_deletes_of(partition, number)
        if vector is None and not positions and not equalities:
            return None
        return FileDeletes(
            self._filesystem, path, location, number, vector, positions, equalities, constants
        )

    def _equality_deletes_of(
        self, partition: tuple[int, str], sequence_number: int
    ) -> tuple[EqualityDeletes, ...]:
        key = partition, sequence_number
        if key not in self._equalities_of:
            self._equalities_of[key] = tuple(
                delete
                for part in (None, partition)
                for number, delete in self._equalities.get(part, ())
                if sequence_number < number
            )
        return self._equalities_of[key]
