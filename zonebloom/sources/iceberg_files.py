"""The live files of an Iceberg snapshot, and which deletes apply to which data files.

Source: Iceberg's spec, "Manifests", "Sequence Number Inheritance" and "Scan Planning".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.fs as pafs

from zonebloom.base.threads import REMOTE_THREADS
from zonebloom.errors import SourceError
from zonebloom.sources.iceberg_deletes import (
    DeletionVector,
    EqualityColumns,
    EqualityDeletes,
    FileDeletes,
    PositionDeletes,
)

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile, ManifestFile
    from pyiceberg.table import Table

# Where a DataFile of format version 3 has them: referenced_data_file, content_offset and
# content_size_in_bytes.
_REFERENCED, _OFFSET, _SIZE = 17, 18, 19


class LiveFile(NamedTuple):
    """A file of a snapshot, with what its manifest says of it."""

    data: DataFile
    sequence_number: int
    spec_id: int

    @property
    def partition(self) -> tuple[int, str]:
        """What two files of one partition have in common; by text, NaN is itself."""
        values = self.data.partition
        return self.spec_id, repr([values[at] for at in range(len(values))])


def live_files(table: Table, name: str) -> tuple[list[LiveFile], list[LiveFile]]:
    """The data files and the delete files of the current snapshot."""
    from pyiceberg.manifest import DataFileContent, FileFormat

    snapshot = table.current_snapshot()
    assert snapshot is not None
    with ThreadPoolExecutor(REMOTE_THREADS) as pool:
        manifests = snapshot.manifests(table.io)
        entries = list(chain(*pool.map(lambda each: _entries(table, each, name), manifests)))
    formats = {
        DataFileContent.DATA: (FileFormat.PARQUET,),
        DataFileContent.POSITION_DELETES: (FileFormat.PARQUET, FileFormat.PUFFIN),
        DataFileContent.EQUALITY_DELETES: (FileFormat.PARQUET,),
    }
    for each in entries:
        if each.data.file_format not in formats[each.data.content]:
            raise SourceError(
                f"{each.data.file_path} of the {name} is no Parquet file; rewrite the table as "
                "Parquet first"
            )
    files = [each for each in entries if each.data.content == DataFileContent.DATA]
    return files, [each for each in entries if each.data.content != DataFileContent.DATA]


def _entries(table: Table, manifest: ManifestFile, name: str) -> list[LiveFile]:
    from pyiceberg.avro.file import AvroFile
    from pyiceberg.manifest import (
        MANIFEST_ENTRY_SCHEMAS,
        DataFile,
        DataFileContent,
        FileFormat,
        ManifestEntry,
        ManifestEntryStatus,
    )

    # As `ManifestFile.fetch_manifest_entry` does, which leaves out the fields of deletion vectors.
    with AvroFile[ManifestEntry](
        table.io.new_input(manifest.manifest_path),
        MANIFEST_ENTRY_SCHEMAS[3],
        read_types={-1: ManifestEntry, 2: DataFile},
        read_enums={0: ManifestEntryStatus, 101: FileFormat, 134: DataFileContent},
    ) as reader:
        entries = [each for each in reader if each.status != ManifestEntryStatus.DELETED]
    live = []
    for each in entries:
        number = each.sequence_number
        if number is None:
            # Only of files that this manifest added; those of version 1 have none.
            number = manifest.sequence_number or 0
            if number and each.status != ManifestEntryStatus.ADDED:
                raise SourceError(
                    f"{each.data_file.file_path} of the {name} has no sequence number; rewrite "
                    "the table's manifests first"
                )
        live.append(LiveFile(each.data_file, number, manifest.partition_spec_id))
    return live


class AppliedDeletes:
    """Which delete files of a snapshot apply to which data files."""

    def __init__(
        self,
        table: Table,
        filesystem: pafs.FileSystem,
        deletes: Sequence[tuple[LiveFile, str]],
        key_columns: Callable[[tuple[int, ...]], EqualityColumns],
        name: str,
    ):
        from pyiceberg.manifest import DataFileContent, FileFormat

        self._filesystem = filesystem
        self._vectors: dict[str, tuple[int, DeletionVector]] = {}
        self._positions: dict[object, list[tuple[int, PositionDeletes]]] = {}
        self._equalities: dict[object, list[tuple[int, EqualityDeletes]]] = {}
        columns: dict[tuple[int, ...], EqualityColumns] = {}
        for each, path in deletes:
            data, number = each.data, each.sequence_number
            referenced = data[_REFERENCED]
            if data.content == DataFileContent.EQUALITY_DELETES:
                ids = tuple(data.equality_ids or ())
                if ids not in columns:
                    columns[ids] = key_columns(ids)
                # Those of a spec without partitions apply to all.
                key = each.partition if table.specs()[each.spec_id].fields else None
                made = EqualityDeletes(filesystem, path, columns[ids])
                self._equalities.setdefault(key, []).append((number, made))
            elif data.file_format == FileFormat.PUFFIN:
                if referenced is None or data[_OFFSET] is None or data[_SIZE] is None:
                    raise SourceError(
                        f"the {name} does not say which file the deletion vector in "
                        f"{data.file_path} is of; rewrite the table first"
                    )
                if referenced in self._vectors:
                    raise SourceError(
                        f"the {name} has several deletion vectors of {referenced}; rewrite it first"
                    )
                vector = DeletionVector(filesystem, path, data[_OFFSET], data[_SIZE])
                self._vectors[referenced] = number, vector
            else:
                key = each.partition if referenced is None else referenced
                made = PositionDeletes(filesystem, path)
                self._positions.setdefault(key, []).append((number, made))

    def of(
        self, file: LiveFile, path: str, constants: Mapping[str, pa.Scalar]
    ) -> FileDeletes | None:
        """What is deleted of a data file, whose partition values by field id are given."""
        location, number = file.data.file_path, file.sequence_number
        positions: list[PositionDeletes | DeletionVector] = []
        vector = self._vectors.get(location)
        if vector is not None and number <= vector[0]:
            # It holds what position deletes said before.
            positions.append(vector[1])
        else:
            for key in (file.partition, location):
                held = self._positions.get(key, ())
                positions += [each for at, each in held if number <= at]
        equalities = [
            each
            for key in (None, file.partition)
            for at, each in self._equalities.get(key, ())
            if number < at
        ]
        if not positions and not equalities:
            return None
        return FileDeletes(self._filesystem, path, location, positions, equalities, constants)
