"""Open Iceberg tables: take files, schema and partition values from the current snapshot.

The columns of the table are those of the files with the same field ids.

Source: Iceberg's spec, "Column Projection", "Name Mapping Serialization", "Default values".
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pyarrow as pa
import pyarrow.fs as pafs

from zonebloom.base.threads import REMOTE_THREADS, thread_pool
from zonebloom.errors import SourceError
from zonebloom.parquet.field_names import metadata_with_names
from zonebloom.sources.iceberg_files import DeleteFileIndex, EqualityColumns, LiveFile, live_files
from zonebloom.sources.table_snapshot import (
    SnapshotSource,
    field_names,
    snapshot_source,
    stable_fields,
)
from zonebloom.storage.file_view import FieldNames, FileView
from zonebloom.storage.files import file_errors
from zonebloom.storage.object_store import as_arrow_filesystem, obstore_handler, path_in
from zonebloom.values.normal_types import with_32_bit_offsets

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyiceberg.table.name_mapping import MappedField

_FIELD_ID = b"PARQUET:field_id"


class IcebergColumns:
    """The columns of a table's current schema, and the columns that equality deletes compare."""

    def __init__(self, table: Table, name: str):
        self._table = table
        self._name = name
        self.ids = {field.name: field.field_id for field in table.schema().fields}
        self.schema = self._as_arrow(table.schema())

    def _as_arrow(self, schema: Schema) -> pa.Schema:
        # Most Parquet files and pyiceberg's own scan have 32-bit offsets.
        fields = self._with_field_ids(schema, include_field_ids=False)
        return pa.schema([field.with_type(with_32_bit_offsets(field.type)) for field in fields])

    def _with_field_ids(self, schema: Schema, *, include_field_ids: bool = True) -> pa.Schema:
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        try:
            return schema_to_pyarrow(schema, include_field_ids=include_field_ids)
        except (TypeError, ValueError, NotImplementedError) as error:
            raise SourceError(
                f"the schema of the {self._name} has no counterpart in Arrow: {error}"
            ) from None

    @cached_property
    def names(self) -> FieldNames:
        return self._names_of(self._table.schema())

    def _names_of(self, schema: Schema) -> FieldNames:
        mapping = self._table.name_mapping()
        mapped_names = {} if mapping is None else dict(_mapped_names(mapping.root))

        def identify(field: pa.Field) -> tuple[int, tuple[str, ...]]:
            field_id = int(field.metadata[_FIELD_ID])
            return field_id, tuple(mapped_names.get(field_id, ()))

        return field_names(self._with_field_ids(schema), identify)

    @cached_property
    def defaults(self) -> dict[str, pa.Scalar]:
        """The values of columns in files that were written before the column was added."""
        columns = {field.name: field for field in self._table.schema().fields}
        for column, field_id in _field_ids(self._table.schema()).items():
            field = self._table.schema().find_field(field_id)
            if column not in columns and field.initial_default is not None:
                raise SourceError(
                    f"field {column!r} of the {self._name} has an initial default, which "
                    "zonebloom supports for top-level columns only; rewrite the table's files "
                    "first, so that all of them hold the field"
                )
        return {
            column: scalar_of(field.initial_default, self.schema.field(column).type)
            for column, field in columns.items()
            if field.initial_default is not None
        }

    def keys(self, ids: Sequence[int]) -> EqualityColumns:
        """Return the columns with these field ids, also of older schemas. The ids become names."""
        # The current schema comes last, so that its fields replace those of older schemas.
        schemas = [*self._table.schemas().values(), self._table.schema()]
        fields = {field.field_id: field for schema in schemas for field in schema.fields}
        if not ids or not all(field_id in fields for field_id in ids):
            raise SourceError(
                f"the {self._name} has equality deletes by fields {list(ids)}, not all of which "
                "are top-level columns; rewrite its files first (in Spark: CALL "
                "system.rewrite_data_files(table => ..., options => map('rewrite-all', 'true')))"
            )
        from pyiceberg.schema import Schema

        fields_named_by_id = [
            fields[field_id].model_copy(update={"name": str(field_id)}) for field_id in ids
        ]
        key_schema = Schema(*fields_named_by_id)
        # Equality deletes can delete null, so allow nulls in every column.
        schema = pa.schema([field.with_nullable(True) for field in self._as_arrow(key_schema)])
        defaults = {
            field.name: scalar_of(field.initial_default, schema.field(field.name).type)
            for field in fields_named_by_id
            if field.initial_default is not None
        }
        return EqualityColumns(schema, self._names_of(key_schema), defaults)

    @property
    def files_have_table_names(self) -> bool:
        """Return whether the metadata proves that every file has the table's current names."""
        table = self._table
        current = _field_ids(table.schema())
        schemas = table.schemas()
        # Schema ids count up from 0. A missing id means that a schema was removed, and its files
        # may still be in the table. With a name mapping, files may have any names.
        if table.name_mapping() or sorted(schemas) != list(range(len(schemas))):
            return False
        if not all(_has_same_names(_field_ids(schema), current) for schema in schemas.values()):
            return False
        snapshot = table.current_snapshot()
        manifests = [] if snapshot is None else snapshot.manifests(table.io)
        # Sequence number 0 is a file of format version 1, whose metadata may omit old schemas.
        return all(manifest.min_sequence_number for manifest in manifests)


def scalar_of(value: Any, kind: pa.DataType) -> pa.Scalar:
    return pa.scalar(value.bytes if isinstance(value, UUID) else value, kind)


def _field_ids(schema: Schema) -> dict[str, int]:
    """Return field ids by dotted name, including fields inside structs, lists and maps."""
    from pyiceberg.schema import index_name_by_id

    return {name: field_id for field_id, name in index_name_by_id(schema).items()}


def _has_same_names(stored: Mapping[str, int], current: Mapping[str, int]) -> bool:
    """Return whether no column was renamed, and no name was given to another column."""
    names = {field_id: name for name, field_id in current.items()}
    return all(
        current.get(name, field_id) == field_id and names.get(field_id, name) == name
        for name, field_id in stored.items()
    )


def _mapped_names(fields: Sequence[MappedField]) -> Iterator[tuple[int | None, list[str]]]:
    for field in fields:
        yield field.field_id, list(field.names)
        yield from _mapped_names(field.fields)


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
        table_version=table.metadata_location,
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
