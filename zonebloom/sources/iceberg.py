"""Iceberg tables: the files, the schema and the partition values of their current snapshot."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.fs as pafs

from zonebloom.base.threads import REMOTE_THREADS
from zonebloom.errors import NoFragments, SourceError
from zonebloom.parquet.field_names import metadata_with_names
from zonebloom.sources.discovery import as_arrow_filesystem
from zonebloom.sources.iceberg_columns import IcebergColumns, scalar_of
from zonebloom.sources.iceberg_files import AppliedDeletes, LiveFile, live_files
from zonebloom.sources.table_snapshot import SnapshotSource, snapshot_source, stable_fields
from zonebloom.storage.file_view import FieldNames, FileView
from zonebloom.storage.files import file_errors
from zonebloom.storage.object_store import obstore_handler, path_in

if TYPE_CHECKING:
    from pyiceberg.table import Table


def is_iceberg(source: Any) -> bool:
    # Whoever holds one has imported it.
    library = sys.modules.get("pyiceberg.table")
    return library is not None and isinstance(source, library.Table)


def open_iceberg(table: Table, filesystem: Any = None) -> SnapshotSource:
    name = f"Iceberg table {'.'.join(table.name())}"
    snapshot = table.current_snapshot()
    if snapshot is None:
        raise NoFragments(f"the {name} has no snapshot; write some rows first")
    files, deletes = live_files(table, name)
    where, root, paths = _places(
        table,
        [each.data.file_path for each in (*files, *deletes)],
        as_arrow_filesystem(filesystem),
        name,
    )
    columns = IcebergColumns(table, name)
    view = None
    if columns.defaults or not columns.are_kept:
        view = FileView(columns.names, columns.defaults)
    inexact = _inexact(table, columns.schema)
    if inexact:
        _check_files(where, paths[: len(files)], columns.names, inexact, name)
    placed = list(zip(deletes, paths[len(files) :], strict=True))
    applied = AppliedDeletes(table, where, placed, columns.keys, name)
    found = []
    for file, path in zip(files, paths, strict=False):
        values = _partition_values(table, file, columns.schema, name)
        constants = {str(columns.ids[column]): value for column, value in values.items()}
        gone = applied.of(file, path, constants)
        as_read = view
        if gone is not None:
            as_read = FileView(columns.names if view else None, columns.defaults, gone)
        found.append((path, values, as_read))
    return snapshot_source(
        f"{name} at snapshot {snapshot.snapshot_id}",
        columns.schema,
        where,
        root,
        found,
        fields=dict(stable_fields(columns.names)),
        state=f"{table.metadata_location} {table.metadata.current_schema_id}",
    )


def _check_files(
    filesystem: pafs.FileSystem,
    paths: Sequence[str],
    names: FieldNames,
    needed: Collection[str],
    name: str,
) -> None:
    """Refuse files that lack columns which only they tell exactly."""

    def held(path: str) -> list[str]:
        with file_errors(f"{path} of the {name}"), filesystem.open_input_file(path) as file:
            return metadata_with_names(file, names).schema.to_arrow_schema().names

    with ThreadPoolExecutor(REMOTE_THREADS) as pool:
        for path, columns in zip(paths, pool.map(held, paths), strict=True):
            for column in needed:
                if column not in columns:
                    raise SourceError(
                        f"{path} of the {name} does not hold column {column!r}, whose partition "
                        "values are floating point numbers and not kept exactly; rewrite the file "
                        "first"
                    )


def _identities(table: Table, spec_id: int) -> Iterator[tuple[int, str]]:
    """The partition values of a spec that are values of columns: their place, and the column."""
    from pyiceberg.transforms import IdentityTransform

    names = {field.field_id: field.name for field in table.schema().fields}
    for at, field in enumerate(table.specs()[spec_id].fields):
        if isinstance(field.transform, IdentityTransform) and field.source_id in names:
            yield at, names[field.source_id]


def _inexact(table: Table, schema: pa.Schema) -> set[str]:
    """Columns whose partition values may be rounded: pyiceberg writes doubles as floats."""
    return {
        column
        for spec_id in table.specs()
        for _, column in _identities(table, spec_id)
        if pa.types.is_floating(schema.field(column).type)
    }


def _partition_values(
    table: Table, file: LiveFile, schema: pa.Schema, name: str
) -> dict[str, pa.Scalar]:
    """The partition values of a file that are columns' own; files from elsewhere may lack such
    columns."""
    values = {}
    for at, column in _identities(table, file.spec_id):
        value, wanted = file.data.partition[at], schema.field(column).type
        if pa.types.is_floating(wanted):
            continue
        try:
            values[column] = scalar_of(value, wanted)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise SourceError(
                f"partition value {value!r} of {file.data.file_path} in the {name} is no {wanted}: "
                f"{error}"
            ) from None
    return values


def _places(
    table: Table, locations: Sequence[str], filesystem: pafs.FileSystem | None, name: str
) -> tuple[pafs.FileSystem, str, list[str]]:
    from pyiceberg.io.pyarrow import PyArrowFileIO

    io = table.io
    if not isinstance(io, PyArrowFileIO):
        io = PyArrowFileIO(io.properties)
    parsed = [io.parse_location(each, io.properties) for each in [table.location(), *locations]]
    if filesystem is None:
        hosts = dict.fromkeys((scheme, netloc) for scheme, netloc, _ in parsed)
        try:
            first, *others = [io.fs_by_scheme(*each) for each in hosts]
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
        # pyiceberg's own local one is a subclass that need not pickle.
        filesystem = pafs.LocalFileSystem() if isinstance(first, pafs.LocalFileSystem) else first
    root, *paths = (path for _, _, path in parsed)
    if obstore_handler(filesystem) is not None:
        root, *paths = (path_in(filesystem, each) for each in [table.location(), *locations])
    return filesystem, root, paths
