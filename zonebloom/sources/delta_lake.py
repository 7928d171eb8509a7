"""Delta Lake tables: the files, the schema and the partition values that the log names."""

from __future__ import annotations

import json
import posixpath
import re
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs

from zonebloom.base.row_ranges import RowRanges
from zonebloom.errors import SourceError
from zonebloom.sources.discovery import as_arrow_filesystem
from zonebloom.sources.table_snapshot import SnapshotSource, snapshot_source, stable_fields
from zonebloom.storage.file_view import FieldNames, FileView
from zonebloom.storage.object_store import obstore_handler, path_in
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
# Reader features that add a data type and change nothing else. Writers list them for tables that
# have no column of the type, so the columns decide, and not the protocol.
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
_PHYSICAL_NAME = "delta.columnMapping.physicalName"
_ID = "delta.columnMapping.id"


def is_delta(source: Any) -> bool:
    # Whoever holds one has imported it.
    library = sys.modules.get("deltalake")
    return library is not None and isinstance(source, library.DeltaTable)


def open_delta(table: DeltaTable, filesystem: Any = None) -> SnapshotSource:
    from deltalake.exceptions import DeltaError

    try:
        name = f"Delta table {table.table_uri} at version {table.version()}"
        _require_known(table, name)
        schema = pa.schema(table.schema().to_arrow())  # pyright: ignore[reportArgumentType]
        names = _names(table)
        found = pa.table(table.get_add_actions(flatten=False))
        partitioned_by = table.metadata().partition_columns
        deleted = _deleted(table, name)
    except DeltaError as error:
        raise SourceError(f"cannot read the log of the Delta table: {error}") from None
    where, root = _place(table, as_arrow_filesystem(filesystem))
    paths = [_path(each, table.table_uri, root, name) for each in found["path"].to_pylist()]
    if names is not None:
        schema = pa.schema([_without_metadata(each) for each in schema])
    read_as = (
        None if names is None or (names.has_table_names and not names.has_field_ids) else names
    )
    gone = {_path(each, table.table_uri, root, name): rows for each, rows in deleted}
    if not gone.keys() <= set(paths):
        raise SourceError(
            f"the {name} has a deletion vector of {min(gone.keys() - set(paths))}, which is none "
            "of its files"
        )
    views = [
        FileView(read_as, {}, gone.get(path)) if read_as is not None or path in gone else None
        for path in paths
    ]
    values = {each: _partition_values(found, each, schema, name) for each in partitioned_by}
    files = [
        (path, {each: column[i] for each, column in values.items()}, views[i])
        for i, path in enumerate(paths)
    ]
    fields = {} if names is None else dict(stable_fields(names))
    return snapshot_source(name, schema, where, root, files, fields=fields, state=name)


def _require_known(table: DeltaTable, name: str) -> None:
    """Raise SourceError unless every reader feature that the snapshot uses is implemented."""
    protocol = table.protocol()
    features = {feature.lower() for feature in protocol.reader_features or ()}
    unknown = features - _IMPLEMENTED_FEATURES - _TYPE_FEATURES
    if protocol.min_reader_version > 3 or unknown:
        needs = ", ".join(sorted(unknown)) or f"reader version {protocol.min_reader_version}"
        raise SourceError(f"the {name} needs {needs}, which zonebloom does not know")
    for column, type_name in _primitives("", json.loads(table.schema().to_json())):
        if not _READABLE_TYPE.fullmatch(type_name):
            raise SourceError(
                f"column {column!r} of the {name} has type {type_name}, which zonebloom cannot "
                "read; drop the column, or copy the others to another table"
            )


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


def _names(table: DeltaTable) -> FieldNames | None:
    """How files tell the table's columns; None where they have the table's names."""
    mode = table.metadata().configuration.get("delta.columnMapping.mode", "none")
    if mode == "none":
        return None
    if mode not in ("id", "name"):
        raise SourceError(f"zonebloom does not know delta.columnMapping.mode {mode!r}")
    return _named("", json.loads(table.schema().to_json()), mode == "id")


def _named(
    name: str, kind: Any, by_id: bool, metadata: Mapping[str, Any] | None = None
) -> FieldNames:
    metadata = metadata or {}
    field_id = int(metadata[_ID]) if by_id and _ID in metadata else None
    stored = () if by_id else (metadata.get(_PHYSICAL_NAME, name),)
    told = name, field_id, stored
    match kind:
        case {"type": "struct", "fields": fields}:
            inner = [_named(f["name"], f["type"], by_id, f["metadata"]) for f in fields]
            return FieldNames(*told, "struct", tuple(inner))
        case {"type": "array", "elementType": item}:
            return FieldNames(*told, "list", (_named("element", item, by_id),))
        case {"type": "map", "keyType": key, "valueType": value}:
            return FieldNames(
                *told, "map", (_named("key", key, by_id), _named("value", value, by_id))
            )
    return FieldNames(*told)


def _deleted(table: DeltaTable, name: str) -> list[tuple[str, RowRanges]]:
    """Files with deletion vectors, and the rows those delete."""
    if "deletionvectors" not in {each.lower() for each in table.protocol().reader_features or ()}:
        return []
    if not hasattr(table, "deletion_vectors"):
        raise SourceError(f"cannot tell which rows the {name} deleted; upgrade deltalake")
    deleted = []
    for batch in pa.RecordBatchReader.from_stream(table.deletion_vectors()):
        for file, kept in zip(batch.column(0), batch.column(1), strict=True):
            rows = np.flatnonzero(~kept.values.to_numpy(zero_copy_only=False))
            deleted.append((file.as_py(), RowRanges.from_rows(rows)))
    return deleted


def _without_metadata(field: pa.Field) -> pa.Field:
    """A field without what the table's metadata says of it."""
    kind = field.type
    if isinstance(kind, pa.StructType):
        kind = pa.struct([_without_metadata(each) for each in kind])
    elif isinstance(kind, pa.ListType):
        kind = pa.list_(_without_metadata(kind.value_field))
    elif isinstance(kind, pa.MapType):
        kind = pa.map_(_without_metadata(kind.key_field), _without_metadata(kind.item_field))
    return pa.field(field.name, kind, field.nullable)


def _partition_values(
    found: pa.Table, column: str, schema: pa.Schema, name: str
) -> list[pa.Scalar]:
    wanted = schema.field(column).type
    if family(wanted) in ("", "bytes"):
        # Writers do not agree on how bytes are written in the log.
        raise SourceError(
            f"the {name} is partitioned by column {column!r} of type {wanted}, which the log does "
            "not hold faithfully; partition it by another column"
        )
    if "partition" not in found.column_names:
        raise SourceError(f"the log of the {name} gives no partition values; upgrade deltalake")
    values = pc.struct_field(found["partition"], [column])  # pyright: ignore[reportAttributeAccessIssue]
    if values.type != wanted:
        values = values.cast(wanted)
    return [values[i] for i in range(len(values))]


def _path(logged: str, table_uri: str, root: str, name: str) -> str:
    """Where a file lies that the log names relative to the table, or by a URI of its own."""
    scheme, path = split_path(logged, encoded=True)
    if not scheme and not path.startswith("/"):
        return posixpath.join(root, path)
    if scheme != split_path(table_uri)[0]:
        raise SourceError(
            f"{logged} of the {name} lies in another file system than the table; copy the table "
            "as a whole first"
        )
    return path


def _place(table: DeltaTable, filesystem: pafs.FileSystem | None) -> tuple[pafs.FileSystem, str]:
    """The file system a table is in, and its folder there."""
    uri = table.table_uri
    if obstore_handler(filesystem) is not None:
        return filesystem, path_in(filesystem, uri).rstrip("/")
    place = absolute_path(plain_path(uri, encoded=is_uri(uri))).rstrip("/")
    if filesystem is not None:
        return filesystem, split_path(place)[1]
    # Without the storage options of deltalake: as pyarrow finds its way there by itself.
    return filesystem_of(place)
