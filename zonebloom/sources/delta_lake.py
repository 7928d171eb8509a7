"""Open Delta Lake tables: take the files, the schema and the partition values from the log.

deltalake does not name deletion vectors, so they are found in the log. The newest add action of a
file names its vector. deltalake says which files the table has.

Source: PROTOCOL.md, "Delta Table Specification", "Add File and Remove File", "Checkpoints",
"Sidecar File Information" and "Deletion Vectors".
"""

from __future__ import annotations

import base64
import io
import json
import posixpath
import re
import string
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import index
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs

from zonebloom.base.threads import REMOTE_THREADS, map_in_order, thread_pool
from zonebloom.errors import SourceError
from zonebloom.sources.deletion_vectors import FRAME_SIZE, DeletionVector
from zonebloom.sources.table_snapshot import (
    SnapshotSource,
    field_names,
    snapshot_source,
    stable_fields,
)
from zonebloom.storage.file_view import FieldNames, FileView
from zonebloom.storage.files import FILE_ERRORS
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

# | version | part | number of parts | or unique name | format |
_CHECKPOINT = re.compile(
    r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10})|\.[0-9a-f-]{36})?\.(parquet|json)"
)
# The digits of Z85, and those of Python's base85.
_Z85 = string.digits + string.ascii_letters + ".-:+=^!/*?&<>()[]{}@%$#"
_B85 = string.digits + string.ascii_uppercase + string.ascii_lowercase + "!#$%&()*+-;<=>?@^_`{|}~"
_TO_B85 = str.maketrans(_Z85, _B85)
_UUID_DIGITS = 20
# The added files with their vectors, and the sidecars, in a file of the log.
_Actions: TypeAlias = tuple[list[tuple[str, Mapping[str, Any] | None]], list[str]]
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


def read_deletion_vectors(
    filesystem: pafs.FileSystem,
    root: str,
    version: int,
    paths: Sequence[str],
    path_of: Callable[[str], str],
    name: str,
) -> dict[str, DeletionVector | None]:
    """Return the deletion vector of each file of a version.

    ``path_of`` returns the path of a file that the log names.
    """
    try:
        added = {
            path_of(added_path): vector
            for added_path, vector in _added_files(filesystem, f"{root}/_delta_log", version)
        }
        vectors: dict[str, DeletionVector | None] = {}
        for path in paths:
            if path not in added:
                raise ValueError(f"it does not add {path}, which is one of the table's files")
            vector, vectors[path] = added[path], None
            if vector is not None:
                vectors[path] = _deletion_vector(filesystem, root, path, vector, path_of)
        return vectors
    except (*FILE_ERRORS, AttributeError, LookupError, RecursionError, TypeError) as error:
        if isinstance(error, SourceError):
            raise
        raise SourceError(
            f"cannot read the deletion vectors in the log of the {name}: {error}; load the table "
            "again"
        ) from None


def _added_files(
    filesystem: pafs.FileSystem, log: str, version: int
) -> Iterator[tuple[str, Mapping[str, Any] | None]]:
    """Yield the files that are added up to a version, and their vectors. The last one counts."""
    names = {info.base_name for info in filesystem.get_file_info(pafs.FileSelector(log))}
    first, checkpoint = _newest_checkpoint(names, version)
    commits = [f"{number:020d}.json" for number in range(first, version + 1)]

    def read(name: str) -> _Actions:
        with filesystem.open_input_file(f"{log}/{name}") as file:
            content = file.read()
        return _actions_in_json(content) if name.endswith(".json") else _actions_in_parquet(content)

    with thread_pool(REMOTE_THREADS) as pool:
        for added, sidecars in map_in_order(pool, read, checkpoint, REMOTE_THREADS):
            yield from added
            for more, _ in map_in_order(pool, read, sidecars, REMOTE_THREADS):
                yield from more
        for added, _ in map_in_order(pool, read, commits, REMOTE_THREADS):
            yield from added


def _newest_checkpoint(names: set[str], version: int) -> tuple[int, list[str]]:
    """Return the version after the newest complete checkpoint, and the checkpoint's files."""
    checkpoints: dict[tuple[int, str], list[str]] = {}
    for match in filter(None, map(_CHECKPOINT.fullmatch, names)):
        if int(match[1]) <= version:
            # A checkpoint in one file is a checkpoint of its own.
            key = int(match[1]), match[3] or match[0]
            checkpoints.setdefault(key, []).append(match[0])
    complete = {
        key: files
        for key, files in checkpoints.items()
        if not key[1].isdigit() or len(files) == int(key[1])
    }
    if not complete:
        return 0, []
    newest = max(complete)
    return newest[0] + 1, complete[newest]


def _actions_in_json(content: bytes) -> _Actions:
    return _actions(json.loads(line) for line in content.splitlines() if line.strip())


def _actions_in_parquet(content: bytes) -> _Actions:
    import pyarrow.parquet as pq

    columns = ["add.path", "add.deletionVector", "sidecar.path"]
    return _actions(pq.ParquetFile(io.BytesIO(content)).read(columns=columns).to_pylist())


def _actions(rows: Iterable[Mapping[str, Any]]) -> _Actions:
    # The statistics of a file may be long, and are not kept.
    added: list[tuple[str, Mapping[str, Any] | None]] = []
    sidecars: list[str] = []
    for row in rows:
        if row.get("add"):
            added.append((row["add"]["path"], row["add"].get("deletionVector")))
        if row.get("sidecar"):
            # All sidecars lie in one folder, so only the name counts. It is encoded as in a URI.
            sidecars.append(f"_sidecars/{posixpath.basename(unquote(row['sidecar']['path']))}")
    return added, sidecars


def _deletion_vector(
    filesystem: pafs.FileSystem,
    root: str,
    data_path: str,
    vector: Mapping[str, Any],
    path_of: Callable[[str], str],
) -> DeletionVector:
    kind, place = vector["storageType"], vector["pathOrInlineDv"]
    # `index` refuses what is not an integer.
    num_bytes, cardinality = index(vector["sizeInBytes"]), index(vector["cardinality"])
    if kind == "i":
        inline = _decode_z85(place)[:num_bytes]
        return DeletionVector(filesystem, data_path, 0, num_bytes, cardinality, inline)
    if kind == "u":
        prefix, name = place[:-_UUID_DIGITS], uuid.UUID(bytes=_decode_z85(place[-_UUID_DIGITS:]))
        path = "/".join(filter(None, (prefix, f"deletion_vector_{name}.bin")))
        path = f"{root}/{path}"
    elif kind == "p":
        path = path_of(place)
    else:
        raise ValueError(f"{data_path} has a deletion vector of the unknown storage type {kind!r}")
    return DeletionVector(
        filesystem, path, index(vector["offset"]), num_bytes + FRAME_SIZE, cardinality
    )


def _decode_z85(text: str) -> bytes:
    return base64.b85decode(text.translate(_TO_B85))


def open_delta(table: DeltaTable, filesystem: Any = None) -> SnapshotSource:
    from deltalake.exceptions import DeltaError

    try:
        version = str(table.version())
        name = f"Delta table {table.table_uri} at version {version}"
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
        "delta", name, schema, filesystem, root, files, fields=fields, table_version=version
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
