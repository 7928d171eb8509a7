"""Change the files of an Iceberg table by an overwrite of pyiceberg."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from io import BytesIO
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from zonebloom.base.threads import REMOTE_THREADS, thread_pool
from zonebloom.changes.receipt import Trace
from zonebloom.changes.tables import (
    ChangeableTable,
    CommitRefused,
    commit_in_doubt,
    read_log,
)
from zonebloom.changes.writing import FileChange, WrittenFile, columns_without_bounds
from zonebloom.errors import ChangeRefused, MissingDependency
from zonebloom.scan.opened import OpenedDataset
from zonebloom.sources.source import Fragment
from zonebloom.storage.object_store import obstore_handler, path_in

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile, ManifestEntry, ManifestFile
    from pyiceberg.partitioning import PartitionField, PartitionKey
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot
    from pyiceberg.typedef import Record


_MAX_CACHED_BYTES = 256 << 20


class _NamedFile(NamedTuple):
    """A file that a manifest names. It is not live if the manifest says that it was removed."""

    manifest: str
    snapshot_ids: list[str]
    is_live: bool
    file: DataFile


class _ManifestCache:
    """The file access of a table, which reads each manifest and each list of manifests once.

    pyiceberg reads them one after another for a commit. They never change.
    """

    def __init__(self, io: FileIO):
        self._io = io
        self._contents: dict[str, bytes] = {}
        self._num_bytes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._io, name)

    def new_input(self, location: str) -> Any:
        if not location.endswith(".avro"):
            return self._io.new_input(location)
        content = self._contents.get(location)
        if content is None:
            with self._io.new_input(location).open(seekable=False) as file:
                content = file.read()
            if self._num_bytes + len(content) <= _MAX_CACHED_BYTES:
                self._num_bytes += len(content)
                self._contents[location] = content
        return _CachedInput(content)


class _CachedInput(NamedTuple):
    """The content of a file, which pyiceberg takes for an input file."""

    content: bytes

    def open(self, seekable: bool = True) -> BytesIO:
        return BytesIO(self.content)


class IcebergChanges(ChangeableTable):
    """An Iceberg table whose files can be replaced; see `ChangeableTable`."""

    kind = "iceberg"
    other_commands = "delete and upsert of pyiceberg"

    def __init__(self, table: Table):
        from pyiceberg.table import StaticTable, TableProperties

        if isinstance(table, StaticTable):
            raise ChangeRefused(
                f"the Iceberg table {table.location()} was opened without its catalog, which makes "
                "the commits; load it from the catalog (on the command line: --catalog NAME)"
            )
        super().__init__()
        self._table = table
        self.location = table.location()
        # The locations of new files, by path.
        self._locations: dict[str, str] = {}
        self._keys: dict[Hashable, PartitionKey] = {}
        # The version whose data files are known.
        self._listed_version = ""
        # pyiceberg takes it for the file access of a table.
        self._io: Any = _ManifestCache(table.io)
        size = table.properties.get(TableProperties.WRITE_TARGET_FILE_SIZE_BYTES, "")
        default = TableProperties.WRITE_TARGET_FILE_SIZE_BYTES_DEFAULT
        self.target_bytes = int(size) if size.isdigit() else default

    @property
    def version(self) -> str:
        snapshot = self._table.current_snapshot()
        return "" if snapshot is None else str(snapshot.snapshot_id)

    @property
    def source_version(self) -> str:
        return self._table.metadata_location

    def load_newest(self) -> None:
        self._table.refresh()

    def load_committed(self) -> None:
        """Do nothing, because the catalog has answered the commit with the new version."""

    def use(self, opened: OpenedDataset) -> None:
        super().use(opened)
        if self._listed_version == self.source_version:
            return
        snapshot = self._table.current_snapshot()
        self._files = {
            self._path(entry.file.file_path): entry.file
            for entry in self._named_files([] if snapshot is None else [snapshot])
            if entry.is_live
        }
        self._listed_version = self.source_version

    def _named_files(
        self, snapshots: Sequence[Snapshot], unreadable: list[Trace] | None = None
    ) -> Iterator[_NamedFile]:
        """Yield the files that the manifests of snapshots name.

        The scan of pyiceberg would list them, too, but refuses tables with equality deletes. A list
        or manifest that cannot be read is added to ``unreadable``, or raises an error.
        """
        from pyiceberg.manifest import ManifestEntryStatus

        ids: dict[ManifestFile, list[str]] = {}

        def read_list(snapshot: Snapshot) -> list[ManifestFile]:
            path, versions = self._path(snapshot.manifest_list), [str(snapshot.snapshot_id)]
            return read_log(lambda: snapshot.manifests(self._io), path, versions, unreadable)

        def read_manifest(manifest: ManifestFile) -> list[ManifestEntry]:
            return read_log(
                lambda: manifest.fetch_manifest_entry(self._io, discard_deleted=False),
                self._path(manifest.manifest_path),
                ids[manifest],
                unreadable,
            )

        with thread_pool(REMOTE_THREADS) as pool:
            lists = pool.map(read_list, snapshots)
            for snapshot, manifests in zip(snapshots, lists, strict=True):
                for manifest in manifests:
                    ids.setdefault(manifest, []).append(str(snapshot.snapshot_id))
            parts = pool.map(read_manifest, ids)
            for manifest, entries in zip(ids, parts, strict=True):
                for entry in entries:
                    is_live = entry.status != ManifestEntryStatus.DELETED
                    yield _NamedFile(
                        manifest.manifest_path, ids[manifest], is_live, entry.data_file
                    )

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
            raise self.refused(f"has format {version}, which tracks rows")
        file_format = self._table.properties.get(TableProperties.WRITE_FILE_FORMAT, "parquet")
        if file_format != "parquet":
            raise self.refused(f"writes {file_format} files")
        for change in changes:
            self._data_file(change.present.fragment)

    def _data_file(self, fragment: Fragment) -> DataFile:
        file = self._files.get(fragment.path)
        if file is None:
            raise self.refused(f"has no data file {fragment.path} in its current snapshot")
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
            raise self.refused(f"is partitioned by {field.name!r}, whose column was dropped")
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
        old_files = [self._data_file(fragment) for fragment in removed]
        new_files = list(map(self._new_data_file, written))
        table = self._table_without_retries()
        with (
            _conflicts(self.location),
            table.transaction() as transaction,
            transaction.update_snapshot(dict(summary)).overwrite() as changes,
        ):
            for file in old_files:
                changes.delete_data_file(file)
            for file in new_files:
                changes.append_data_file(file)
        self._table.metadata = table.metadata
        self._table.metadata_location = table.metadata_location
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
            table.name(), metadata, table.metadata_location, self._io, table.catalog, table.config
        )

    def read_history(self, stored: Collection[str], unreadable: list[Trace]) -> list[_NamedFile]:
        """Return the files of the manifests of all snapshots."""
        return list(self._named_files(self._table.metadata.snapshots, unreadable))

    def retained_files(self, history: list[_NamedFile]) -> dict[str, tuple[str, ...]]:
        versions: dict[str, tuple[str, ...]] = {}
        for entry in history:
            path = self._path(entry.file.file_path)
            if entry.is_live and path not in self._files:
                versions[path] = (*versions.get(path, ()), *entry.snapshot_ids)
        return versions

    def logs_of(
        self, history: list[_NamedFile], stored: Collection[str], paths: Collection[str]
    ) -> list[str]:
        manifests = {e.manifest for e in history if self._path(e.file.file_path) in paths}
        return sorted(map(self._path, manifests))

    def decoded(self, path: str) -> Iterator[bytes]:
        from pyiceberg.avro.file import AvroFile

        if not path.endswith(".avro"):
            yield from super().decoded(path)
            return
        location = self.location.rstrip("/") + path.removeprefix(self._source.root)
        with AvroFile(self._table.io.new_input(location)) as records:
            for record in records:
                yield from _stored_values(record)

    def purge_calls(self) -> tuple[str, ...]:
        return (
            "table.maintenance.expire_snapshots() of all but the current snapshot",
            "the deletion of the files that only they name",
        )

    def purge(self) -> None:
        self._table.refresh()
        with _conflicts(self.location):
            # The next snapshot leaves out the entries of files that the last one removed.
            with self._table.transaction() as changes, changes.update_snapshot().fast_append():
                pass
            # A file that only an unreadable file names stays, and a check finds it.
            before = self._reachable([])
            # The heads of branches and tags stay.
            self._table.maintenance.expire_snapshots().older_than(dt.datetime.max).commit()
        self._table.refresh()
        for location in before - self._reachable(None):
            with suppress(FileNotFoundError):
                self._table.io.delete(location)

    def _reachable(self, unreadable: list[Trace] | None) -> set[str]:
        """Return the manifest lists, the manifests and the files of all snapshots.

        ``unreadable`` is as in `_named_files`.
        """
        snapshots = self._table.metadata.snapshots
        entries = list(self._named_files(snapshots, unreadable))
        return {
            *(snapshot.manifest_list for snapshot in snapshots),
            *(entry.manifest for entry in entries),
            *(entry.file.file_path for entry in entries if entry.is_live),
        }

    def _new_data_file(self, file: WrittenFile) -> DataFile:
        from pyiceberg.io.pyarrow import (
            compute_statistics_plan,
            data_file_statistics_from_parquet_metadata,
            parquet_path_to_id_mapping,
        )
        from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
        from pyiceberg.typedef import Record

        schema = self._table.schema()
        field_ids = parquet_path_to_id_mapping(schema)
        plan = compute_statistics_plan(schema, self._table.properties)
        statistics = data_file_statistics_from_parquet_metadata(file.metadata, plan, field_ids)
        # The library takes the bounds of the other row groups for those of the file.
        for path in columns_without_bounds(file.metadata):
            statistics.column_aggregates.pop(field_ids[path], None)
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=self._locations[file.path],
            file_format=FileFormat.PARQUET,
            partition=Record(*file.partition),
            file_size_in_bytes=file.num_bytes,
            sort_order_id=None,
            spec_id=self._table.metadata.default_spec_id,
            equality_ids=None,
            key_metadata=None,
            **statistics.to_serialized_dict(),
        )


@contextmanager
def _conflicts(location: str) -> Iterator[None]:
    """Raise `CommitRefused` if another writer came first, or `SourceError` if nobody knows."""
    from pyiceberg import exceptions

    try:
        yield
    except (exceptions.CommitFailedException, exceptions.ValidationException) as error:
        raise CommitRefused(str(error)) from None
    except exceptions.CommitStateUnknownException as error:
        raise commit_in_doubt(location, error) from None


def _stored_values(value: Any) -> Iterator[bytes]:
    """Yield the values in a record, also those inside other records, lists and maps."""
    from pyiceberg.typedef import Record

    if isinstance(value, Record):
        value = _record_values(value)
    if isinstance(value, dict):
        value = tuple(chain(*value.items()))
    if isinstance(value, list | tuple):
        for item in value:
            yield from _stored_values(item)
    else:
        yield value if isinstance(value, bytes) else str(value).encode()


def _record_values(record: Record) -> tuple[Any, ...]:
    return tuple(record[number] for number in range(len(record)))
