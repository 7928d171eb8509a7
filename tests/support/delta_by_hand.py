"""Write Delta tables by hand after PROTOCOL.md, with features that deltalake only reads.

Deletion vectors ("Deletion Vectors", inline and in files) and column mapping by id and by name.
"""

from __future__ import annotations

import base64
import json
import struct
import uuid
import zlib
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap64

_DV_MAGIC = struct.pack("<i", 1681511377)


def protocol(*features):
    return {
        "protocol": {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": list(features),
            "writerFeatures": list(features),
        }
    }


def metadata(fields, partitioned_by=(), **configuration):
    return {
        "metaData": {
            "id": "7d9ab6f5-2a4b-4a4f-9f2a-0c6a3d6f6f10",
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps({"type": "struct", "fields": fields}),
            "partitionColumns": list(partitioned_by),
            "configuration": configuration,
            "createdTime": 1,
        }
    }


def add(path, name, values=None, **fields):
    return {
        "add": {
            "path": name,
            "partitionValues": values or {},
            "size": path.stat().st_size,
            "modificationTime": 1,
            "dataChange": True,
            **fields,
        }
    }


def commit(path, *actions) -> None:
    """Write the next commit of a log."""
    log = path / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(action) + "\n" for action in actions)
    versions = [int(file.name[:20]) for file in log.iterdir() if file.name[:20].isdigit()]
    (log / f"{max(versions, default=-1) + 1:020d}.json").write_text(lines)


def z85(data):
    # This is base85 with another alphabet, which Python's base64 has since 3.13 only.
    theirs = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
    wanted = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
    return base64.b85encode(data).decode().translate(str.maketrans(theirs, wanted))


def deletion_vector(deleted, table=None):
    """Return a deletion vector of rows, either inline or in a file of the table."""
    data = _DV_MAGIC + BitMap64(sorted(deleted)).serialize()
    described = {"sizeInBytes": len(data), "cardinality": len(set(deleted))}
    if table is None:
        padded = data + bytes(-len(data) % 4)
        return {"storageType": "i", "pathOrInlineDv": z85(padded), **described}
    name = uuid.uuid4()
    blob = struct.pack(">i", len(data)) + data + struct.pack(">I", zlib.crc32(data))
    # Put the vector behind another one, because several vectors may share a file.
    (table / f"deletion_vector_{name}.bin").write_bytes(b"\x01" + bytes(7) + blob)
    return {"storageType": "u", "pathOrInlineDv": z85(name.bytes), "offset": 8, **described}


TYPES = {
    "integer": pa.int32(),
    "long": pa.int64(),
    "double": pa.float64(),
    "string": pa.string(),
    "timestamp_ntz": pa.timestamp("us"),
}
DELTA_TYPES = {kind: name for name, kind in TYPES.items()}


def arrow_type(kind) -> pa.DataType:
    """Return a field of a Delta schema as files have it, with physical names and field ids."""
    match kind:
        case {"type": "struct", "fields": fields}:
            return pa.struct([arrow_field(field) for field in fields])
        case {"type": "array", "elementType": item}:
            return pa.list_(pa.field("element", arrow_type(item)))
        case {"type": "map", "keyType": key, "valueType": value}:
            return pa.map_(arrow_type(key), arrow_type(value))
    return TYPES[kind]


def arrow_field(field) -> pa.Field:
    metadata = field["metadata"]
    ids = {"PARQUET:field_id": str(metadata["delta.columnMapping.id"])}
    return pa.field(
        metadata["delta.columnMapping.physicalName"], arrow_type(field["type"]), metadata=ids
    )


def _leaves(field: pa.Field) -> list:
    """Return the types and ids of a field and of those in it, whatever their order is."""
    fields = [field, *sorted(field.flatten(), key=lambda inner: inner.name)]
    return [(inner.name, inner.nullable, inner.metadata) for inner in fields]


def as_seen(value, kind):
    """Return a value of a file with the table's names of its structs."""
    match value, kind:
        case dict(), {"type": "struct", "fields": fields}:
            return {
                field["name"]: as_seen(
                    value[field["metadata"]["delta.columnMapping.physicalName"]], field["type"]
                )
                for field in fields
            }
        case list(), {"elementType": item}:
            return [as_seen(element, item) for element in value]
    return value


def as_stored(value, kind):
    """Return a value of a row with the physical names of its structs."""
    match value, kind:
        case dict(), {"type": "struct", "fields": fields}:
            return {
                field["metadata"]["delta.columnMapping.physicalName"]: as_stored(
                    value.get(field["name"]), field["type"]
                )
                for field in fields
            }
        case list(), {"elementType": item}:
            return [as_stored(element, item) for element in value]
        case dict(), {"valueType": item}:
            return [(key, as_stored(item_value, item)) for key, item_value in value.items()]
    return value


class MappedTable:
    """A table with column mapping and deletion vectors."""

    def __init__(self, path, mode: str, partitioned_by=(), features=()):
        path.mkdir()
        self.path = path
        self.mode = mode
        self.partitioned_by = list(partitioned_by)
        self.fields: list[dict] = []
        self.adds: dict[str, dict] = {}
        self.last_id = 0
        commit(path, protocol("columnMapping", "deletionVectors", *features))

    def field(self, name, kind, physical=None):
        """Return a new field. Create the fields inside it first."""
        self.last_id += 1
        return {
            "name": name,
            "type": kind,
            "nullable": True,
            "metadata": {
                "delta.columnMapping.id": self.last_id,
                "delta.columnMapping.physicalName": physical or f"col-{self.last_id}",
            },
        }

    def set_fields(self, fields) -> None:
        self.fields = fields
        commit(
            self.path,
            metadata(
                fields,
                self.partitioned_by,
                **{
                    "delta.columnMapping.mode": self.mode,
                    "delta.columnMapping.maxColumnId": str(self.last_id),
                },
            ),
        )

    def physical(self, name) -> str:
        (field,) = (column for column in self.fields if column["name"] == name)
        return field["metadata"]["delta.columnMapping.physicalName"]

    def append(self, rows, *, removed=(), **options) -> str:
        """Commit a file of rows and the removal of other files, and return the file's name."""
        stored = [column for column in self.fields if column["name"] not in self.partitioned_by]
        if self.mode == "id":
            # Reorder the columns, because names have no meaning in this mode.
            stored.reverse()
        fields = [arrow_field(column) for column in stored]
        arrays = [
            pa.array(
                [as_stored(row.get(column["name"]), column["type"]) for row in rows], field.type
            )
            for column, field in zip(stored, fields, strict=True)
        ]
        name = f"{uuid.uuid4()}.parquet"
        pq.write_table(pa.table(arrays, schema=pa.schema(fields)), self.path / name, **options)
        values = {
            self.physical(column): None if rows[0][column] is None else str(rows[0][column])
            for column in self.partitioned_by
        }
        action = add(self.path / name, name, values, stats=json.dumps({"numRecords": len(rows)}))
        removals = [self._remove(path) for path in removed]
        self.adds[name] = action["add"]
        commit(self.path, *removals, action)
        return name

    def load(self) -> None:
        """Take the files that the log names now. Other writers may have changed them."""
        self.adds, log, first = {}, self.path / "_delta_log", ""
        for checkpoint in sorted(log.glob("*.checkpoint.parquet"))[-1:]:
            first = checkpoint.name[:20] + ".json."
            for added in filter(None, pq.read_table(checkpoint)["add"].to_pylist()):
                values = dict(added["partitionValues"])
                self.adds[added["path"]] = {**added, "partitionValues": values}
        for path in sorted(log.glob("?" * 20 + ".json")):
            actions = [json.loads(line) for line in path.read_text().splitlines()]
            for action in actions if path.name > first else ():
                if "remove" in action:
                    del self.adds[action["remove"]["path"]]
            for action in actions if path.name > first else ():
                if "add" in action:
                    self.adds[action["add"]["path"]] = action["add"]

    def rows(self, name) -> list[dict]:
        """Return the rows of a file without a deletion vector, by the table's names."""
        stored = pq.ParquetFile(self.path / unquote(name)).read()
        columns = {}
        for column in self.fields:
            field = arrow_field(column)
            if column["name"] in self.partitioned_by:
                value = self.adds[name]["partitionValues"][field.name]
                columns[column["name"]] = [value] * stored.num_rows
            elif field.name in stored.column_names:
                assert _leaves(stored.schema.field(field.name)) == _leaves(field)
                values = stored[field.name].to_pylist()
                columns[column["name"]] = [as_seen(value, column["type"]) for value in values]
        names = [column["name"] for column in self.fields]
        missing = [None] * stored.num_rows
        values = zip(*(columns.get(name, missing) for name in names), strict=True)
        return [dict(zip(names, row, strict=True)) for row in values]

    def _remove(self, name) -> dict:
        before = self.adds.pop(name)
        vector = {k: before[k] for k in ("deletionVector",) if k in before}
        return {"remove": {"path": name, "deletionTimestamp": 1, "dataChange": True, **vector}}

    def remove(self, names) -> None:
        """Commit the removal of files."""
        commit(self.path, *map(self._remove, names))

    def delete(self, name, deleted, in_file: bool = False) -> None:
        """Commit a deletion vector with all rows of a file that are deleted from now on."""
        before = dict(self.adds[name])
        vector = deletion_vector(deleted, self.path if in_file else None)
        removed = self._remove(name)
        self.adds[name] = {**before, "deletionVector": vector}
        commit(self.path, removed, {"add": self.adds[name]})
