"""Delta Lake tables: the files, the schema and the partition values that the log names."""

from __future__ import annotations

import json
import posixpath
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs

from zonebloom.errors import SourceError
from zonebloom.storage.discovery import as_arrow_filesystem
from zonebloom.storage.files import reading
from zonebloom.storage.paths import absolute_path, is_uri, split_path
from zonebloom.storage.snapshot import SnapshotSource, snapshot_source
from zonebloom.values.types import family

if TYPE_CHECKING:
    from deltalake import DeltaTable

# Reader features (PROTOCOL.md, "Valid Feature Names in Table Features") that change nothing in
# how a file is read, or that are looked at here.
_READER_FEATURES = {
    "columnmapping",
    "deletionvectors",
    "timestampntz",
    "typewidening",
    "typewidening-preview",
    "v2checkpoint",
    "vacuumprotocolcheck",
}
_PHYSICAL_NAME = "delta.columnMapping.physicalName"


def is_delta(source: Any) -> bool:
    # Whoever holds one has imported it.
    library = sys.modules.get("deltalake")
    return library is not None and isinstance(source, library.DeltaTable)


def open_delta(table: DeltaTable, filesystem: Any = None) -> SnapshotSource:
    from deltalake.exceptions import DeltaError

    try:
        name = f"Delta table {table.table_uri} at version {table.version()}"
        _require_plain(table, name)
        schema = pa.schema(table.schema().to_arrow())  # pyright: ignore[reportArgumentType]
        found = pa.table(table.get_add_actions(flatten=False))
        partitioned_by = table.metadata().partition_columns
    except DeltaError as error:
        raise SourceError(f"cannot read the log of the Delta table: {error}") from None
    where, root = _place(table, as_arrow_filesystem(filesystem))
    paths = [_path(each, table.table_uri, root, name) for each in found["path"].to_pylist()]
    values = {each: _partition_values(found, each, schema, name) for each in partitioned_by}
    files = [
        (path, {each: column[i] for each, column in values.items()}) for i, path in enumerate(paths)
    ]
    return snapshot_source(name, schema, where, root, files)


def _require_plain(table: DeltaTable, name: str) -> None:
    protocol = table.protocol()
    features = {each.lower() for each in protocol.reader_features or ()}
    unknown = features - _READER_FEATURES
    if protocol.min_reader_version > 3 or unknown:
        needs = ", ".join(sorted(unknown)) or f"reader version {protocol.min_reader_version}"
        raise SourceError(f"the {name} needs {needs}, which zonebloom does not know")
    mode = table.metadata().configuration.get("delta.columnMapping.mode", "none")
    if mode != "none":
        renamed = list(_renamed(json.loads(table.schema().to_json())))
        if renamed or mode != "name":
            which = f"column {renamed[0]!r} of the" if renamed else "the columns of the"
            raise SourceError(
                f"{which} {name} may have other names in its files (delta.columnMapping.mode is "
                f"{mode!r}); write the table anew without column mapping first"
            )
    if "deletionvectors" not in features:
        return
    if not hasattr(table, "deletion_vectors"):
        raise SourceError(f"cannot tell which rows the {name} deleted; upgrade deltalake")
    for batch in pa.RecordBatchReader.from_stream(table.deletion_vectors()):
        if batch.num_rows:
            raise SourceError(
                f"{batch.column(0)[0]} has rows the {name} deleted by a deletion vector; rewrite "
                "such files first (REORG TABLE ... APPLY (PURGE), or DeltaTable.optimize)"
            )


def _renamed(node: Any) -> Iterator[str]:
    """Names of the fields, nested ones too, that files hold under another."""
    if isinstance(node, Mapping):
        name, metadata = node.get("name"), node.get("metadata")
        if isinstance(metadata, Mapping) and metadata.get(_PHYSICAL_NAME, name) != name:
            yield str(name)
        for each in node.values():
            yield from _renamed(each)
    elif isinstance(node, list):
        for each in node:
            yield from _renamed(each)


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
    scheme, root = split_path(uri, encoded=is_uri(uri))
    root = root.rstrip("/")
    if filesystem is not None:
        return filesystem, root
    if not scheme:
        return pafs.LocalFileSystem(), absolute_path(root)
    # Without the storage options of deltalake: as pyarrow finds its way there by itself.
    advice = "give zb.dataset a filesystem of pyarrow.fs or fsspec that reads the table"
    with reading(uri, advice, "open"):
        return pafs.FileSystem.from_uri(f"{scheme}://{root.partition('/')[0]}/")[0], root
