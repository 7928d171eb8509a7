"""Open Delta Lake tables: take the files, the schema and the partition values from the log."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs

from zonebloom.errors import SourceError
from zonebloom.sources.deletion_vectors import DeletionVector
from zonebloom.sources.delta_log import read_deletion_vectors
from zonebloom.sources.table_snapshot import (
    SnapshotSource,
    field_names,
    snapshot_source,
    stable_fields,
)
from zonebloom.storage.file_view import FieldNames, FileView
from zonebloom.storage.object_store import as_arrow_filesystem, obstore_handler, path_in
from zonebloom.storage.paths import (
    absolute_path,
    filesystem_of,
    is_uri,
    plain_path,
    split_path,
)
from zonebloom.values.types import family

if TYPE_CHECKING:
    from deltalake import DeltaTable

# Reader features (PROTOCOL.md, "Valid Feature Names in Table Features") that deltalake or this
# module implements.
_IMPLEMENTED_FEATURES = {
    "columnmapping",
    "deletionvectors",
    "timestampntz",
    "typewidening",
    "typewidening-preview",
    "v2checkpoint",
    "vacuumprotocolcheck",
}
# Reader features that only add a data type. Writers list them even for tables without a column of
# the type, so `_require_known` checks the columns' types instead.
_TYPE_FEATURES = {
    "geospatial",
    "varianttype",
    "varianttype-preview",
    "variantshredding",
    "variantshredding-preview",
}
# Primitive types (PROTOCOL.md, "Primitive Types") whose values zonebloom reads. Spark also writes
# "void" and intervals.
_READABLE_TYPE = re.compile(
    "string|long|integer|short|byte|float|double|boolean|binary|date|timestamp|timestamp_ntz|void"
    r"|decimal(\(.*\))?|interval .*"
)
_PHYSICAL_NAME = b"delta.columnMapping.physicalName"
_ID = b"delta.columnMapping.id"


def open_delta(table: DeltaTable, filesystem: Any = None) -> SnapshotSource:
    from deltalake.exceptions import DeltaError

    try:
        name = f"Delta table {table.table_uri} at version {table.version()}"
        _require_known(table, name)
        schema = pa.schema(table.schema().to_arrow())  # pyright: ignore[reportArgumentType]
        names = _field_names(table, schema)
        add_actions = pa.table(table.get_add_actions(flatten=False))
        partition_columns = table.metadata().partition_columns
    except DeltaError as error:
        raise SourceError(f"cannot read the log of the Delta table: {error}") from None
    filesystem, root = _table_folder(table, as_arrow_filesystem(filesystem))

    def path_of(logged_path: str) -> str:
        return _path_of_file(logged_path, table.table_uri, root, name)

    paths = [path_of(logged_path) for logged_path in add_actions["path"].to_pylist()]
    if names is not None:
        schema = pa.schema([_without_metadata(field) for field in schema])
    # Files with the table's own names are read without a mapping.
    has_mapping = names is not None and (names.has_field_ids or not names.has_table_names)
    mapping = names if has_mapping else None
    deletes: dict[str, DeletionVector | None] = dict.fromkeys(paths)
    if "deletionvectors" in _reader_features(table):
        deletes = read_deletion_vectors(filesystem, root, table.version(), paths, path_of, name)
    views = [
        FileView(mapping, {}, deletes[path]) if has_mapping or deletes[path] else None
        for path in paths
    ]
    values = {
        column: _partition_column(add_actions, column, schema, name) for column in partition_columns
    }
    files = [
        (path, {column: scalars[i] for column, scalars in values.items()}, views[i])
        for i, path in enumerate(paths)
    ]
    fields = {} if names is None else dict(stable_fields(names))
    return snapshot_source(
        "delta", name, schema, filesystem, root, files, fields=fields, table_version=name
    )


def _require_known(table: DeltaTable, name: str) -> None:
    """Raise SourceError unless every reader feature that the snapshot uses is implemented."""
    protocol = table.protocol()
    unknown = _reader_features(table) - _IMPLEMENTED_FEATURES - _TYPE_FEATURES
    if protocol.min_reader_version > 3 or unknown:
        needs = ", ".join(sorted(unknown)) or f"reader version {protocol.min_reader_version}"
        raise SourceError(f"the {name} needs {needs}, which zonebloom does not support")
    for column, type_name in _primitives("", json.loads(table.schema().to_json())):
        if not _READABLE_TYPE.fullmatch(type_name):
            raise SourceError(
                f"column {column!r} of the {name} has type {type_name}, which zonebloom cannot "
                "read; drop the column, or copy the others to another table"
            )


def _reader_features(table: DeltaTable) -> set[str]:
    return {feature.lower() for feature in table.protocol().reader_features or ()}


def _primitives(path: str, kind: Any) -> Iterator[tuple[str, str]]:
    """Yield the path and the name of every primitive type inside a type of a Delta schema."""
    match kind:
        case {"type": "struct", "fields": fields}:
            for field in fields:
                below = f"{path}.{field['name']}" if path else field["name"]
                yield from _primitives(below, field["type"])
        case {"type": "array", "elementType": item}:
            yield from _primitives(f"{path}.element", item)
        case {"type": "map", "keyType": key, "valueType": value}:
            yield from _primitives(f"{path}.key", key)
            yield from _primitives(f"{path}.value", value)
        case _:
            yield path, str(kind)


def mapping_mode(table: DeltaTable) -> str:
    """Return how files name columns: as the table does ("none"), or by "id" or physical "name"."""
    return table.metadata().configuration.get("delta.columnMapping.mode", "none")


def stored_field(field: pa.Field) -> pa.Field:
    """Return a column of a table with a mapping as files have it: physical names and field ids."""
    metadata = field.metadata or {}
    name = metadata.get(_PHYSICAL_NAME, field.name.encode()).decode()
    ids = {b"PARQUET:field_id": metadata[_ID]} if _ID in metadata else None
    return pa.field(name, _stored_type(field.type), field.nullable, ids)


def _stored_type(kind: pa.DataType) -> pa.DataType:
    def element(field: pa.Field) -> pa.Field:
        return pa.field(field.name, _stored_type(field.type), field.nullable)

    if isinstance(kind, pa.StructType):
        return pa.struct([stored_field(child) for child in kind])
    if isinstance(kind, pa.ListType):
        return pa.list_(element(kind.value_field))
    if isinstance(kind, pa.MapType):
        return pa.map_(element(kind.key_field), element(kind.item_field))
    return kind


def _field_names(table: DeltaTable, schema: pa.Schema) -> FieldNames | None:
    """Return how files identify the table's columns, or None if they have the table's names."""
    mode = mapping_mode(table)
    if mode == "none":
        return None
    if mode not in ("id", "name"):
        raise SourceError(f"zonebloom does not support delta.columnMapping.mode {mode!r}")

    def identify(field: pa.Field) -> tuple[int | None, tuple[str, ...]]:
        metadata = field.metadata or {}
        if mode == "id":
            return (int(metadata[_ID]) if _ID in metadata else None), ()
        return None, (metadata.get(_PHYSICAL_NAME, field.name.encode()).decode(),)

    return field_names(schema, identify)


def _without_metadata(field: pa.Field) -> pa.Field:
    """Return a field without its metadata, and its children without theirs."""
    kind = field.type
    if isinstance(kind, pa.StructType):
        kind = pa.struct([_without_metadata(child) for child in kind])
    elif isinstance(kind, pa.ListType):
        kind = pa.list_(_without_metadata(kind.value_field))
    elif isinstance(kind, pa.MapType):
        kind = pa.map_(_without_metadata(kind.key_field), _without_metadata(kind.item_field))
    return pa.field(field.name, kind, field.nullable)


def _partition_column(
    add_actions: pa.Table, column: str, schema: pa.Schema, name: str
) -> list[pa.Scalar]:
    wanted = schema.field(column).type
    if family(wanted) in ("", "bytes"):
        # Writers encode bytes in the log in different ways.
        raise SourceError(
            f"the {name} is partitioned by column {column!r} of type {wanted}, which the log does "
            "not hold faithfully; partition it by another column"
        )
    if "partition" not in add_actions.column_names:
        raise SourceError(f"the log of the {name} gives no partition values; upgrade deltalake")
    values = pc.struct_field(add_actions["partition"], [column])  # pyright: ignore[reportAttributeAccessIssue]
    if values.type != wanted:
        values = values.cast(wanted)
    return [values[i] for i in range(len(values))]


def _path_of_file(logged: str, table_uri: str, root: str, name: str) -> str:
    """Return the path of a file that the log names relative to the table, or by its own URI."""
    scheme, path = split_path(logged, encoded=True)
    if not is_uri(logged) and not path.startswith("/"):
        return posixpath.join(root, path)
    if scheme != split_path(table_uri)[0]:
        raise SourceError(
            f"{logged} of the {name} lies in another file system than the table; copy the whole "
            "table to one file system first"
        )
    return path


def _table_folder(
    table: DeltaTable, filesystem: pafs.FileSystem | None
) -> tuple[pafs.FileSystem, str]:
    """Return the file system of a table, and its folder there."""
    uri = table.table_uri
    if obstore_handler(filesystem) is not None:
        return filesystem, path_in(filesystem, uri).rstrip("/")
    path = absolute_path(plain_path(uri, encoded=is_uri(uri))).rstrip("/")
    if filesystem is not None:
        return filesystem, split_path(path)[1]
    # pyarrow cannot use the storage options of deltalake, so let it find the credentials.
    return filesystem_of(path)
