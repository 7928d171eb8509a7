"""Change the files of an Iceberg table by an overwrite of pyiceberg."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from zonebloom.base.threads import REMOTE_THREADS, thread_pool
from zonebloom.changes.places import FileChange
from zonebloom.changes.tables import ChangeableTable, CommitRefused
from zonebloom.changes.writing import WrittenFile
from zonebloom.errors import ChangeRefused, MissingDependency
from zonebloom.scan.opened import OpenedDataset
from zonebloom.sources.source import Fragment
from zonebloom.storage.object_store import obstore_handler, path_in

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile, ManifestFile
    from pyiceberg.partitioning import PartitionField, PartitionKey
    from pyiceberg.table import Table
    from pyiceberg.typedef import Record


class _History(NamedTuple):
    """The manifests of each snapshot, and the files of each manifest: if it is in the snapshot."""

    manifests: dict[str, list[str]]
    files: dict[str, list[tuple[str, bool]]]


class IcebergChanges(ChangeableTable):
    """An Iceberg table whose files can be replaced; see `ChangeableTable`."""

    kind = "iceberg"

    def __init__(self, table: Table):
        from pyiceberg.table import StaticTable, TableProperties

        if isinstance(table, StaticTable):
            raise ChangeRefused(
                f"the Iceberg table {table.location()} was opened without its catalog, which makes "
                "the commits; load it from the catalog (on the command line: --catalog NAME)"
            )
        self._table = table
        self.location = table.location()
        # The locations of new files, by path.
        self._locations: dict[str, str] = {}
        self._keys: dict[Hashable, PartitionKey] = {}
        size = table.properties.get(TableProperties.WRITE_TARGET_FILE_SIZE_BYTES, "")
        default = TableProperties.WRITE_TARGET_FILE_SIZE_BYTES_DEFAULT
        self.target_bytes = int(size) if size.isdigit() else default

    @property
    def version(self) -> str:
        snapshot = self._table.current_snapshot()
        return "" if snapshot is None else str(snapshot.snapshot_id)

    def load_newest(self) -> None:
        self._table.refresh()

    def use(self, opened: OpenedDataset) -> None:
        super().use(opened)
        self._files: dict[str, DataFile] = {
            self._path(file.file_path): file for file in self._current_files()
        }

    def _current_files(self) -> Iterator[DataFile]:
        """Yield the data files of the loaded snapshot.

        The scan of pyiceberg would list them, too, but refuses tables with equality deletes.
        """
        from pyiceberg.manifest import ManifestContent

        io, snapshot = self._table.io, self._table.current_snapshot()
        manifests = [] if snapshot is None else snapshot.manifests(io)
        with thread_pool(REMOTE_THREADS) as pool:
            for entries in pool.map(
                lambda manifest: manifest.fetch_manifest_entry(io),
                [found for found in manifests if found.content == ManifestContent.DATA],
            ):
                yield from (entry.data_file for entry in entries)

    def _path(self, location: str) -> str:
        """Return a location as a path in the file system of the dataset."""
        from pyiceberg.io.pyarrow import PyArrowFileIO

        if obstore_handler(self._source.filesystem) is not None:
            return path_in(self._source.filesystem, location)
        return PyArrowFileIO.parse_location(location)[2]

    def require_changeable(self, changes: Sequence[FileChange]) -> None:
        from pyiceberg.table import TableProperties

        version = self._table.metadata.format_version
        if version > 2:
            raise self._refused(f"has format {version}, which tracks rows")
        file_format = self._table.properties.get(TableProperties.WRITE_FILE_FORMAT, "parquet")
        if file_format != "parquet":
            raise self._refused(f"writes {file_format} files")
        for change in changes:
            self._data_file(change.present.fragment)

    def _refused(self, reason: str) -> ChangeRefused:
        return ChangeRefused(
            f"the Iceberg table {'.'.join(self._table.name())} {reason}; change it with Spark, or "
            "with the delete and upsert of pyiceberg if they allow it"
        )

    def _data_file(self, fragment: Fragment) -> DataFile:
        file = self._files.get(fragment.path)
        if file is None:
            raise self._refused(f"has no data file {fragment.path} in its current snapshot")
        return file

    def partition_of(self, fragment: Fragment) -> Hashable:
        file = self._data_file(fragment)
        if file.spec_id != self._table.metadata.default_spec_id:
            return None
        return _record_values(file.partition)

    @property
    def partition_columns(self) -> list[str]:
        fields = self._table.spec().fields
        return [self._source_name(field).partition(".")[0] for field in fields]

    def _source_name(self, field: PartitionField) -> str:
        name = self._table.schema().find_column_name(field.source_id)
        if name is None:
            raise self._refused(f"is partitioned by {field.name!r}, whose column was dropped")
        return name

    def _partition_keys(self, rows: pa.Table) -> pa.Table:
        from pyiceberg.exceptions import NotInstalledError

        spec, schema = self._table.spec(), self._table.schema()
        keys = []
        for field in spec.fields:
            first, *nested = self._source_name(field).split(".")
            column: Any = rows.column(first)
            if nested:
                column = pc.struct_field(column, nested)  # pyright: ignore[reportAttributeAccessIssue]
            kind = schema.find_type(field.source_id)
            try:
                keys.append(field.transform.pyarrow_transform(kind)(column))
            except NotInstalledError as error:
                raise MissingDependency(
                    f"the partition {field.name!r} of the Iceberg table is computed by "
                    "pyiceberg-core; install it with: pip install 'pyiceberg[pyiceberg-core]'"
                ) from error
        return pa.table(keys, [field.name for field in spec.fields])

    def _partition(self, values: tuple[pa.Scalar, ...]) -> Hashable:
        """Return a partition as manifests have it, and keep its key for paths."""
        from pyiceberg.partitioning import PartitionFieldValue, PartitionKey

        spec = self._table.spec()
        key = PartitionKey(
            field_values=[
                PartitionFieldValue(field=field, value=value.as_py())
                for field, value in zip(spec.fields, values, strict=True)
            ],
            partition_spec=spec,
            schema=self._table.schema(),
        )
        partition = _record_values(key.partition)
        self._keys[partition] = key
        return partition

    @property
    def file_schema(self) -> pa.Schema:
        """The schema of a new file, with field ids."""
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        return schema_to_pyarrow(self._table.schema(), include_field_ids=True)

    def new_path(self, partition: Any, replaced: Fragment | None) -> str:
        name = f"00000-0-{uuid.uuid4()}.parquet"
        if replaced is not None:
            location = f"{self._data_file(replaced).file_path.rpartition('/')[0]}/{name}"
        else:
            provider = self._table.location_provider()
            location = provider.new_data_location(name, self._keys.get(partition))
        path = self._path(location)
        self._locations[path] = location
        return path

    def commit(
        self,
        removed: Sequence[Fragment],
        written: Sequence[WrittenFile],
        summary: Mapping[str, str],
    ) -> list[str]:
        from pyiceberg.exceptions import CommitFailedException, ValidationException

        old_files = [self._data_file(fragment) for fragment in removed]
        new_files = list(map(self._new_data_file, written))
        try:
            with (
                self._table_without_retries().transaction() as transaction,
                transaction.update_snapshot(dict(summary)).overwrite() as changes,
            ):
                for file in old_files:
                    changes.delete_data_file(file)
                for file in new_files:
                    changes.append_data_file(file)
        except (CommitFailedException, ValidationException) as error:
            raise CommitRefused(str(error)) from None
        return [file.path for file in written]

    def _table_without_retries(self) -> Table:
        """Return the loaded version of the table, to which a commit succeeds only if it is newest.

        By default, pyiceberg tries again on top of commits of others, after a test that misses some
        of their deletes, or all that they inserted.
        """
        from pyiceberg.table import Table, TableProperties

        table = self._table
        properties = {**table.properties, TableProperties.COMMIT_NUM_RETRIES: "0"}
        metadata = table.metadata.model_copy(update={"properties": properties})
        return Table(
            table.name(), metadata, table.metadata_location, table.io, table.catalog, table.config
        )

    def read_history(self) -> _History:
        """Read each manifest of all snapshots once."""
        from pyiceberg.manifest import ManifestEntryStatus

        io, snapshots = self._table.io, self._table.metadata.snapshots

        def files_of(manifest: ManifestFile) -> list[tuple[str, bool]]:
            return [
                (entry.data_file.file_path, entry.status != ManifestEntryStatus.DELETED)
                for entry in manifest.fetch_manifest_entry(io, discard_deleted=False)
            ]

        with thread_pool(REMOTE_THREADS) as pool:
            lists = list(pool.map(lambda snapshot: snapshot.manifests(io), snapshots))
            manifests = {part.manifest_path: part for part in chain(*lists)}
            files = dict(zip(manifests, pool.map(files_of, manifests.values()), strict=True))
        names = {
            str(snapshot.snapshot_id): [part.manifest_path for part in parts]
            for snapshot, parts in zip(snapshots, lists, strict=True)
        }
        return _History(names, files)

    def retained_files(self, history: _History) -> dict[str, tuple[str, ...]]:
        snapshot_ids: dict[str, list[str]] = {}
        for snapshot_id, manifests in history.manifests.items():
            for location, is_live in chain(*(history.files[manifest] for manifest in manifests)):
                if is_live:
                    snapshot_ids.setdefault(self._path(location), []).append(snapshot_id)
        return {
            path: tuple(numbers)
            for path, numbers in snapshot_ids.items()
            if path not in self._files
        }

    def logs_of(self, history: _History, paths: Collection[str]) -> list[str]:
        return [
            self._path(location)
            for location, files in sorted(history.files.items())
            if any(self._path(file) in paths for file, _ in files)
        ]

    def purge_calls(self) -> tuple[str, ...]:
        return (
            "table.maintenance.expire_snapshots() of all but the current snapshot",
            "the deletion of the files that only they name",
        )

    def purge(self) -> None:
        # The next snapshot leaves out the entries of files that the last one removed.
        with self._table.transaction() as transaction, transaction.update_snapshot().fast_append():
            pass
        self._table.refresh()
        before = self._reachable()
        metadata = self._table.metadata
        named = {ref.snapshot_id for ref in metadata.refs.values()}
        old = [
            snapshot.snapshot_id
            for snapshot in metadata.snapshots
            if snapshot.snapshot_id not in named
        ]
        if old:
            self._table.maintenance.expire_snapshots().by_ids(old).commit()
            self._table.refresh()
        for location in before - self._reachable():
            with suppress(FileNotFoundError):
                self._table.io.delete(location)

    def _reachable(self) -> set[str]:
        """Return the manifest lists, the manifests and the files of all snapshots."""
        history = self.read_history()
        lists = {snapshot.manifest_list for snapshot in self._table.metadata.snapshots}
        files = (path for path, is_live in chain(*history.files.values()) if is_live)
        return {*lists, *history.files, *files}

    def _new_data_file(self, file: WrittenFile) -> DataFile:
        from pyiceberg.io.pyarrow import (
            compute_statistics_plan,
            data_file_statistics_from_parquet_metadata,
            parquet_path_to_id_mapping,
        )
        from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
        from pyiceberg.typedef import Record

        schema = self._table.schema()
        statistics = data_file_statistics_from_parquet_metadata(
            file.metadata,
            compute_statistics_plan(schema, self._table.properties),
            parquet_path_to_id_mapping(schema),
        )
        if file.replaced is not None:
            partition = self._data_file(file.replaced).partition
        elif file.partition:
            partition = self._keys[file.partition].partition
        else:
            partition = Record()
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=self._locations[file.path],
            file_format=FileFormat.PARQUET,
            partition=partition,
            file_size_in_bytes=file.num_bytes,
            sort_order_id=None,
            spec_id=self._table.metadata.default_spec_id,
            equality_ids=None,
            key_metadata=None,
            **statistics.to_serialized_dict(),
        )


def _record_values(record: Record) -> tuple[Any, ...]:
    return tuple(record[number] for number in range(len(record)))
