"""Open Iceberg tables: take files, schema and partition values from the current snapshot."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.fs as pafs

from zonebloom.base.threads import REMOTE_THREADS, thread_pool
from zonebloom.errors import SourceError
from zonebloom.parquet.field_names import metadata_with_names
from zonebloom.sources.iceberg_columns import IcebergColumns, scalar_of
from zonebloom.sources.iceberg_files import DeleteFileIndex, LiveFile, live_files
from zonebloom.sources.table_snapshot import SnapshotSource, snapshot_source, stable_fields
from zonebloom.storage.file_view import FieldNames, FileView
from zonebloom.storage.files import file_errors
from zonebloom.storage.object_store import as_arrow_filesystem, obstore_handler, path_in

if TYPE_CHECKING:
    from pyiceberg.table import Table


def open_iceberg(table: Table, filesystem: Any = None) -> SnapshotSource:
    name = f"Iceberg table {'.'.join(table.name())}"
    files, deletes = live_files(table, name)
    arrow_filesystem, root, paths = _locate_files(
        table,
        [file.data.file_path for file in (*files, *deletes)],
        as_arrow_filesystem(filesystem),
        name,
    )
    columns = IcebergColumns(table, name)
    view = None
    if columns.defaults or not columns.files_have_table_names:
        view = FileView(columns.names, columns.defaults)
    inexact = _inexact_columns(table, columns.schema)
    if inexact:
        _require_columns(arrow_filesystem, paths[: len(files)], columns.names, inexact, name)
    delete_files = list(zip(deletes, paths[len(files) :], strict=True))
    locations = {file.data.file_path for file in files}
    delete_index = DeleteFileIndex(
        table, arrow_filesystem, delete_files, columns.keys, locations, name
    )
    snapshot_files = []
    for file, path in zip(files, paths, strict=False):
        values = _partition_values(table, file, columns.schema, name)
        constants = {str(columns.ids[column]): value for column, value in values.items()}
        deletes_of_file = delete_index.deletes_of(file, path, constants)
        file_view = view
        if deletes_of_file is not None:
            names = columns.names if view else None
            file_view = FileView(names, columns.defaults, deletes_of_file)
        snapshot_files.append((path, values, file_view))
    snapshot = table.current_snapshot()
    version = f"at snapshot {snapshot.snapshot_id}" if snapshot else "without a snapshot"
    return snapshot_source(
        "iceberg",
        f"{name} {version}",
        columns.schema,
        arrow_filesystem,
        root,
        snapshot_files,
        fields=dict(stable_fields(columns.names)),
        table_version=f"{table.metadata_location} {table.metadata.current_schema_id}",
    )


def _require_columns(
    filesystem: pafs.FileSystem,
    paths: Sequence[str],
    names: FieldNames,
    needed: Collection[str],
    name: str,
) -> None:
    """Raise `SourceError` if a file lacks a column whose partition values are inexact."""

    def column_names(path: str) -> list[str]:
        with file_errors(f"{path} of the {name}"), filesystem.open_input_file(path) as file:
            return metadata_with_names(file, names).schema.to_arrow_schema().names

    with thread_pool(REMOTE_THREADS) as pool:
        for path, columns in zip(paths, pool.map(column_names, paths), strict=True):
            for column in needed:
                if column not in columns:
                    raise SourceError(
                        f"{path} of the {name} does not hold column {column!r}, whose partition "
                        "values are floating point numbers, which the metadata does not keep "
                        "exactly; rewrite the file first"
                    )


def _identity_columns(table: Table, spec_id: int) -> Iterator[tuple[int, str]]:
    """Yield the position and the column of each partition field that is a column's own value."""
    from pyiceberg.transforms import IdentityTransform

    names = {field.field_id: field.name for field in table.schema().fields}
    for position, field in enumerate(table.specs()[spec_id].fields):
        if isinstance(field.transform, IdentityTransform) and field.source_id in names:
            yield position, names[field.source_id]


def _inexact_columns(table: Table, schema: pa.Schema) -> set[str]:
    """Return the columns whose partition values may be rounded, as pyiceberg writes floats."""
    return {
        column
        for spec_id in table.specs()
        for _, column in _identity_columns(table, spec_id)
        if pa.types.is_floating(schema.field(column).type)
    }


def _partition_values(
    table: Table, file: LiveFile, schema: pa.Schema, name: str
) -> dict[str, pa.Scalar]:
    """Return the partition values of a file that are values of columns.

    They are needed because files that were not written by Iceberg may lack these columns.
    """
    values = {}
    for position, column in _identity_columns(table, file.spec_id):
        value, wanted = file.data.partition[position], schema.field(column).type
        if pa.types.is_floating(wanted):
            continue
        try:
            values[column] = scalar_of(value, wanted)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise SourceError(
                f"partition value {value!r} of {file.data.file_path} in the {name} is not a valid "
                f"{wanted}: {error}"
            ) from None
    return values


def _locate_files(
    table: Table, locations: Sequence[str], filesystem: pafs.FileSystem | None, name: str
) -> tuple[pafs.FileSystem, str, list[str]]:
    """Return the file system of a table, its folder, and the paths of locations."""
    from pyiceberg.io.pyarrow import PyArrowFileIO

    io = table.io
    if not isinstance(io, PyArrowFileIO):
        io = PyArrowFileIO(io.properties)
    locations = [table.location(), *locations]
    parsed = [io.parse_location(location, io.properties) for location in locations]
    if filesystem is None:
        hosts = dict.fromkeys((scheme, netloc) for scheme, netloc, _ in parsed)
        try:
            first, *others = [io.fs_by_scheme(scheme, netloc) for scheme, netloc in hosts]
        except (pa.ArrowException, OSError, ValueError, ImportError) as error:
            raise SourceError(
                f"cannot open the file system of the {name}: {error}; give zb.dataset a filesystem "
                "of pyarrow.fs or fsspec that reads it"
            ) from None
        if not all(first.equals(other) for other in others):
            raise SourceError(
                f"the files of the {name} lie in several file systems; give zb.dataset a "
                "filesystem of pyarrow.fs or fsspec that reads all of them"
            )
        # pyiceberg's local file system is a subclass that may not pickle, so use pyarrow's.
        filesystem = pafs.LocalFileSystem() if isinstance(first, pafs.LocalFileSystem) else first
    root, *paths = (path for _, _, path in parsed)
    if obstore_handler(filesystem) is not None:
        root, *paths = (path_in(filesystem, location) for location in locations)
    return filesystem, root, paths
