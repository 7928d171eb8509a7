"""List the live files of an Iceberg snapshot, and find the deletes that apply to a data file.

Source: Iceberg's spec, "Manifests", "Sequence Number Inheritance" and "Scan Planning".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.fs as pafs

from zonebloom.base.threads import REMOTE_THREADS, thread_pool
from zonebloom.errors import SourceError
from zonebloom.sources.deletion_vectors import DeletionVector
from zonebloom.sources.iceberg_deletes import (
    EqualityColumns,
    EqualityDeletes,
    FileDeletes,
    PositionDeleteFile,
    PositionDeletes,
)

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile, ManifestFile
    from pyiceberg.table import Table

# Positions of fields in a DataFile of format version 3: referenced_data_file, content_offset and
# content_size_in_bytes.
_REFERENCED_FILE, _CONTENT_OFFSET, _CONTENT_SIZE = 17, 18, 19
# The id of the field `file_path` of position delete files.
_FILE_PATH_ID = 2147483546


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
