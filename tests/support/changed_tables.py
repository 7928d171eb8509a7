"""Tables of each kind with their rows in memory, for random histories of reads and of changes.

The libraries of the tables write and read them, and delete rows in every way that the format knows.
"""

from __future__ import annotations

import copy
import math
import random
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

import deltalake
import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake.schema import Field, PrimitiveType
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import DataFileContent
from pyiceberg.types import DoubleType, IntegerType, LongType, StringType
from support.delta_by_hand import DELTA_TYPES, MappedTable
from support.iceberg_by_hand import delete_by_vector, delete_equal, delete_positions

SCHEMA = pa.schema(
    {
        "id": pa.int64(),
        "name": pa.string(),
        "num": pa.int32(),
        "part": pa.string(),
        "x": pa.float64(),
        "s": pa.string(),
        "n": pa.struct({"a": pa.int64(), "l": pa.list_(pa.int64())}),
        "t": pa.timestamp("us"),
    }
)
PARTITIONS = ["a", "b c/%", "é=1", None]
WRITE: dict[str, Any] = {"row_group_size": 16, "max_rows_per_page": 8, "write_page_index": True}


# The kinds of added columns, with the value that older rows get.
ADDED: list[tuple[pa.DataType, Any]] = [
    *((pa.string(), None), (pa.string(), None), (pa.int64(), None), (pa.float64(), None))
]
ICEBERG_TYPES = {
    pa.string(): StringType(),
    pa.int64(): LongType(),
    pa.int32(): IntegerType(),
    pa.float64(): DoubleType(),
}


class ChangedTable:
    """A table and its rows. Each of ``rows`` has all columns of ``schema``.

    ``has_vectors`` allows deletes that upserts do not follow, such as deletion vectors.
    """

    # Options of `zonebloom.dataset`.
    options: Mapping[str, Any] = MappingProxyType({})
    # Whether the table can rename and drop columns.
    renames = False
    added = ADDED

    def __init__(
        self, rng: random.Random, folder: Path, *, is_partitioned: bool, has_vectors: bool = False
    ):
        self.rng = rng
        self.folder = folder
        self.is_partitioned = is_partitioned
        self.has_vectors = has_vectors
        self.schema = SCHEMA
        # The name of a field in column n.
        self.inner = "a"
        self.rows: list[dict] = []
        self.next_id = 0

    # Values

    def row(self, row_id: int) -> dict[str, Any]:
        """Return a row. The columns name and num are another key, which its id determines."""
        values = {field.name: self._value(field) for field in self.schema}
        values |= {"id": row_id, "name": f"user-{row_id // 3}", "num": row_id % 3}
        table = pa.Table.from_pylist([values], self.schema)
        return table.to_pylist()[0]

    def _value(self, field: pa.Field) -> Any:
        number = self.rng.randrange(40)
        if field.name == "part":
            return self.rng.choice(PARTITIONS)
        if pa.types.is_string(field.type):
            return self.rng.choice([None, "", f"v{number % 5}", f"w{number}", "long " * 20])
        if pa.types.is_floating(field.type):
            return self.rng.choice([None, math.nan, math.inf, -0.0, number / 4])
        if pa.types.is_struct(field.type):
            numbers = self.rng.choice([None, (None, None), (number, [1, None, number])])
            return None if numbers is None else dict(zip((self.inner, "l"), numbers, strict=True))
        if number < 5:
            return None
        return 1_700_000_000_000_000 + number if pa.types.is_timestamp(field.type) else number

    def new_rows(self, count: int) -> list[dict]:
        first, self.next_id = self.next_id, self.next_id + count
        return [self.row(row_id) for row_id in range(first, first + count)]

    def table(self, rows: Sequence[dict], names: Sequence[str] | None = None) -> pa.Table:
        names = self.schema.names if names is None else names
        schema = pa.schema([self.schema.field(name) for name in names])
        return pa.Table.from_pylist([{name: row[name] for name in names} for row in rows], schema)

    # Changes by the table's library, which keep ``rows``

    def append(self, rows: list[dict]) -> None:
        self.write(rows)
        self.rows += rows

    def delete(self, ids: Sequence[int]) -> None:
        """Delete rows as the table's library does. No row with a null is deleted."""
        ids = [row_id for row_id in ids if row_id is not None]
        if ids:
            self.remove(ids)
        self.rows = [row for row in self.rows if row["id"] not in ids]

    def free_name(self) -> str:
        """Return a name for a column, perhaps that of one that was dropped or renamed."""
        names = [*SCHEMA.names, "n1", "n2", "n3"]
        return self.rng.choice([name for name in names if name not in self.schema.names])

    def changeable(self) -> list[str]:
        """Return the columns that can be renamed and dropped."""
        fixed = ("id", "name", "num", "part", "n")
        return [name for name in self.schema.names if name not in fixed]

    def add_column(self) -> None:
        if len(self.schema) == 10:
            return
        (kind, default), name = self.rng.choice(self.added), self.free_name()
        self.schema = self.schema.append(pa.field(name, kind))
        self.rows = [{**row, name: default} for row in self.rows]
        self.add_to_table(name, kind, default)

    def drop_column(self) -> None:
        if len(self.changeable()) > 2:
            name = self.rng.choice(self.changeable())
            self.drop_from_table(name)
            self.schema = self.schema.remove(self.schema.names.index(name))
            self.rows = [{n: row[n] for n in self.schema.names} for row in self.rows]

    def rename_column(self, old: str | None = None) -> None:
        self._rename({old or self.rng.choice(self.changeable()): self.free_name()})

    def swap_columns(self) -> None:
        one, other = self.rng.sample(self.changeable(), 2)
        self._rename({one: other, other: one})

    def _rename(self, new_names: dict[str, str]) -> None:
        self.rename_in_table(new_names)
        names = [new_names.get(name, name) for name in self.schema.names]
        self.schema = pa.schema(
            [field.with_name(name) for field, name in zip(self.schema, names, strict=True)]
        )
        self.rows = [dict(zip(names, row.values(), strict=True)) for row in self.rows]

    def rename_inner(self) -> None:
        """Rename a field in column n."""
        old, self.inner = self.inner, {"a": "c", "c": "a"}[self.inner]
        self.rename_inner_in_table(old)
        kind = pa.struct({self.inner: pa.int64(), "l": pa.list_(pa.int64())})
        self.schema = self.schema.set(self.schema.names.index("n"), pa.field("n", kind))
        for row in self.rows:
            row["n"] = row["n"] and {self.inner: row["n"][old], "l": row["n"]["l"]}

    # What kinds of tables do in their own way

    def load(self) -> Any:
        """Return the newest version, as `zonebloom.dataset` takes it."""
        raise NotImplementedError

    def read(self) -> pa.Table | None:
        """Read the table by its own library. Return None if the library cannot read it."""
        raise NotImplementedError

    def write(self, rows: list[dict]) -> None:
        raise NotImplementedError

    def remove(self, ids: Sequence[int]) -> None:
        raise NotImplementedError

    def add_to_table(self, name: str, kind: pa.DataType, default: Any) -> None:
        raise NotImplementedError

    def drop_from_table(self, name: str) -> None:
        raise NotImplementedError

    def rename_in_table(self, new_names: dict[str, str]) -> None:
        raise NotImplementedError

    def rename_inner_in_table(self, old: str) -> None:
        raise NotImplementedError

    def compact(self) -> None:
        """Write the files anew without a change of rows."""


class ChangedDelta(ChangedTable):
    """A Delta table of deltalake."""

    @property
    def path(self) -> str:
        return str(self.folder / "delta table")

    def load(self) -> deltalake.DeltaTable:
        return deltalake.DeltaTable(self.path)

    def read(self) -> pa.Table:
        return pa.table(self.load().scan().read_all())

    def write(self, rows: list[dict]) -> None:
        deltalake.write_deltalake(
            self.path,
            self.table(rows),
            mode="append",
            schema_mode="merge",
            partition_by=["part"] if self.is_partitioned else None,
            writer_properties=deltalake.WriterProperties(max_row_group_size=16),
        )

    def remove(self, ids: Sequence[int]) -> None:
        self.load().delete(f"id IN ({', '.join(map(str, ids))})")

    def add_to_table(self, name: str, kind: pa.DataType, default: Any) -> None:
        if self.rng.random() < 0.5:
            self.load().alter.add_columns([Field(name, PrimitiveType(DELTA_TYPES[kind]))])
        else:
            # New rows add the column.
            self.append(self.new_rows(5))

    def compact(self) -> None:
        self.load().optimize.compact()


class ChangedMappedDelta(ChangedDelta):
    """A Delta table with column mapping, which deltalake opens and does not write."""

    renames = True

    def __init__(self, rng: random.Random, folder: Path, **options: bool):
        super().__init__(rng, folder, **options)
        partitioned_by = ["part"] if self.is_partitioned else []
        mode = rng.choice(["name", "id"])
        self.log = MappedTable(Path(self.path), mode, partitioned_by, ["timestampNtz"])
        inner = [
            self.log.field("a", "long"),
            self.log.field("l", {"type": "array", "elementType": "long", "containsNull": True}),
        ]
        # A table that was mapped later has files with the names from before.
        keeps_names = rng.random() < 0.5
        self.log.set_fields(
            [
                self.log.field(
                    name,
                    {"type": "struct", "fields": inner} if name == "n" else DELTA_TYPES[kind],
                    name if keeps_names else None,
                )
                for name, kind in zip(SCHEMA.names, SCHEMA.types, strict=True)
            ]
        )
        # The rows of each file that a deletion vector deletes.
        self.deleted: dict[str, set[int]] = {}

    def files(self) -> dict[str, dict[int, dict]]:
        """Return the rows of each file by their places in it."""
        self.log.path = Path(self.path)
        self.log.load()
        return {
            name: {
                place: row
                for place, row in enumerate(self.log.rows(name))
                if place not in self.deleted.get(name, ())
            }
            for name in self.log.adds
        }

    def read(self) -> pa.Table:
        # This compares the names and ids of fields in the files with those in the log.
        self.files()
        return super().read()

    def write(self, rows: list[dict]) -> None:
        for part in PARTITIONS if self.is_partitioned else [None]:
            chosen = [row for row in rows if not self.is_partitioned or row["part"] == part]
            if chosen:
                self.log.append(chosen, **WRITE)

    def remove(self, ids: Sequence[int]) -> None:
        for name, rows in self.files().items():
            deleted = {place for place, row in rows.items() if row["id"] in ids}
            if deleted and self.has_vectors:
                self.deleted.setdefault(name, set()).update(deleted)
                self.log.delete(name, self.deleted[name], in_file=self.rng.random() < 0.5)
            elif deleted:
                self._replace([name], [rows[place] for place in rows.keys() - deleted])

    def _replace(self, names: Sequence[str], rows: list[dict]) -> None:
        if rows:
            self.log.append(rows, removed=names, **WRITE)
        else:
            self.log.remove(names)

    def add_to_table(self, name: str, kind: pa.DataType, default: Any) -> None:
        self.log.set_fields([*self.log.fields, self.log.field(name, DELTA_TYPES[kind])])

    def drop_from_table(self, name: str) -> None:
        self.log.set_fields([field for field in self.log.fields if field["name"] != name])

    def rename_in_table(self, new_names: dict[str, str]) -> None:
        self.log.set_fields(_renamed(self.log.fields, new_names))

    def rename_inner_in_table(self, old: str) -> None:
        fields = copy.deepcopy(self.log.fields)
        (column,) = (field for field in fields if field["name"] == "n")
        inner = _renamed(column["type"]["fields"], {old: self.inner})
        # The order of the fields changes, too.
        column["type"]["fields"] = inner[::-1]
        self.log.set_fields(fields)

    def compact(self) -> None:
        """Write some files of each partition as one."""
        places: dict[str | None, list[str]] = {}
        files = self.files()
        for name in files:
            (part,) = self.log.adds[name]["partitionValues"].values() or [None]
            places.setdefault(part, []).append(name)
        for names in places.values():
            chosen = self.rng.sample(names, self.rng.randint(1, len(names)))
            self._replace(chosen, [row for name in chosen for row in files[name].values()])


def _renamed(fields: list[dict], names: dict[str, str]) -> list[dict]:
    return [{**field, "name": names.get(field["name"], field["name"])} for field in fields]


class ChangedIceberg(ChangedTable):
    """An Iceberg table of pyiceberg, with delete files that it does not write itself."""

    renames = True
    added = (*ADDED, (pa.int32(), 7))

    def __init__(self, rng: random.Random, folder: Path, **options: bool):
        super().__init__(rng, folder, **options)
        # The rows that position deletes and vectors delete by file, and the manifests of vectors.
        self.deleted: dict[str, set[int]] = {}
        self.vectors: dict[str, str] = {}
        (folder / "house").mkdir()
        self.version = rng.choice("1222")
        catalog = self._catalog()
        catalog.create_namespace("n")
        table = catalog.create_table(
            "n.t",
            schema=SCHEMA,
            properties={
                "format-version": self.version,
                "write.parquet.row-group-limit": "16",
                "write.parquet.page-row-limit": "8",
                "commit.retry.min-wait-ms": "1",
            },
        )
        if self.is_partitioned:
            with table.update_spec() as update:
                update.add_identity("part")

    def _catalog(self) -> SqlCatalog:
        uri = f"sqlite:///{self.folder}/c.db"
        return SqlCatalog("c", uri=uri, warehouse=(self.folder / "house").as_uri())

    def load(self) -> Any:
        return self._catalog().load_table("n.t")

    def read(self) -> pa.Table | None:
        return None if self.has_equality_deletes() else self.load().scan().to_arrow()

    def write(self, rows: list[dict]) -> None:
        self.load().append(self.table(rows))

    def remove(self, ids: Sequence[int]) -> None:
        table = self.load()
        ways = ["copy", "position", "equality"] if self.version == "2" else ["copy"]
        if self.has_vectors and self.version == "2":
            ways += ["vector", "vector", "equality of two columns"]
        if self.vectors or self.has_equality_deletes():
            ways.remove("copy")
        way = self.rng.choice(ways)
        if way == "copy":
            table.delete(f"id IN ({', '.join(map(str, ids))})")
        elif "equality" in way:
            # No row has the last id.
            self._delete_equal(table, {"id": [*ids, 10**8]})
        else:
            self._delete_places(table, set(ids), by_vector=way == "vector")
        if way == "equality of two columns":
            names = self.rng.sample(self.changeable(), 2)
            keys = [[row[name] for name in names] for row in self.rng.sample(self.rows, 3)]
            self._delete_equal(table, dict(zip(names, zip(*keys, strict=True), strict=True)))
            # NaN equals NaN, and -0.0 is not 0.0.
            texts = set(map(repr, keys))
            self.rows = [r for r in self.rows if repr([r[name] for name in names]) not in texts]

    def _delete_equal(self, table: Any, columns: dict[str, Sequence[Any]]) -> None:
        for spec_id, partition in {_place(file) for file in self._files(table)}:
            delete_equal(table, self.folder, columns, partition=partition, spec_id=spec_id)
            table.refresh()

    def _files(self, table: Any) -> list[Any]:
        return [file for file in self._entries(table) if file.content == DataFileContent.DATA]

    def _entries(self, table: Any) -> list[Any]:
        snapshot = table.current_snapshot()
        return [
            entry.data_file
            for manifest in ([] if snapshot is None else snapshot.manifests(table.io))
            for entry in manifest.fetch_manifest_entry(table.io)
        ]

    def has_equality_deletes(self) -> bool:
        contents = {file.content for file in self._entries(self.load())}
        return DataFileContent.EQUALITY_DELETES in contents

    def _delete_places(self, table: Any, ids: set[int], *, by_vector: bool) -> None:
        """Delete rows by vectors, or by files with positions."""
        placed: dict[tuple[int, Any], dict[str, list[int]]] = {}
        for file in self._files(table):
            path = file.file_path
            held = pq.ParquetFile(path.removeprefix("file://")).read(columns=["id"])
            rows = [row for row, value in enumerate(held["id"].to_pylist()) if value in ids]
            if not rows:
                continue
            deleted = self.deleted.setdefault(path, set())
            deleted.update(rows)
            # A vector replaces all earlier deletes of its file.
            if by_vector or path in self.vectors:
                spec_id, partition = _place(file)
                before = self.vectors.get(path)
                options = {"before": before, "partition": partition, "spec_id": spec_id}
                self.vectors[path] = delete_by_vector(
                    table, self.folder, path, sorted(deleted), **options
                )
                table.refresh()
            else:
                placed.setdefault(_place(file), {})[path] = rows
        for (spec_id, partition), positions in placed.items():
            delete_positions(table, self.folder, positions, partition=partition, spec_id=spec_id)
            table.refresh()

    def add_to_table(self, name: str, kind: pa.DataType, default: Any) -> None:
        with self.load().update_schema() as update:
            update.add_column(name, ICEBERG_TYPES[kind], default_value=default)

    def drop_from_table(self, name: str) -> None:
        with self.load().update_schema() as update:
            update.delete_column(name)

    def rename_in_table(self, new_names: dict[str, str]) -> None:
        # Two columns may exchange their names.
        between = {name: f"{name}?" for name in new_names}
        for renamed in (between, {between[old]: new for old, new in new_names.items()}):
            with self.load().update_schema() as update:
                for old, new in renamed.items():
                    update.rename_column(old, new)

    def rename_inner_in_table(self, old: str) -> None:
        with self.load().update_schema() as update:
            update.rename_column(f"n.{old}", self.inner)

    def change_spec(self) -> None:
        """Partition files that are written later in another way."""
        table = self.load()
        with table.update_spec() as update:
            if table.spec().is_unpartitioned():
                update.add_identity("part")
            else:
                for field in table.spec().fields:
                    update.remove_field(field.name)

    def compact(self) -> None:
        self.load().overwrite(self.table(self.rows))
        self.vectors.clear()


def _place(file: Any) -> tuple[int, tuple[Any, ...]]:
    """Return the spec and the partition of a file of Iceberg."""
    return file.spec_id, tuple(file.partition[i] for i in range(len(file.partition)))


class ChangedFolder(ChangedTable):
    """A folder of Parquet files, some of which lack columns, perhaps with hive partitions."""

    options = MappingProxyType({"schema": "union"})

    @property
    def path(self) -> Path:
        return self.folder / "lake"

    def load(self) -> str:
        return str(self.path)

    def read(self) -> pa.Table:
        pattern = str(self.path / "**" / "*.parquet").replace("'", "''")
        with duckdb.connect() as db:
            table = db.sql(
                f"SELECT * FROM read_parquet('{pattern}', hive_partitioning={self.is_partitioned}, "
                "hive_types_autocast=false, union_by_name=true)"
            ).to_arrow_table()
        for name in self.schema.names:
            if name not in table.column_names:
                kind = self.schema.field(name).type
                table = table.append_column(name, pa.nulls(table.num_rows, kind))
        return table.select(self.schema.names).cast(self.schema)

    def write(self, rows: list[dict]) -> None:
        values = PARTITIONS if self.is_partitioned else [None]
        for value in values:
            part = [row for row in rows if not self.is_partitioned or row["part"] == value]
            if part:
                self._write_file(self._folder_of(value) / f"{uuid.uuid4()}.parquet", part)

    def _folder_of(self, value: str | None) -> Path:
        if not self.is_partitioned:
            return self.path
        text = "__HIVE_DEFAULT_PARTITION__" if value is None else quote(value, safe="")
        return self.path / f"part={text}"

    def _write_file(self, path: Path, rows: list[dict]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        names = [n for n in self.schema.names if n != "part" or not self.is_partitioned]
        pq.write_table(self.table(rows, names), path, **WRITE)

    def remove(self, ids: Sequence[int]) -> None:
        for path in sorted(self.path.rglob("*.parquet")):
            if path.name.startswith("."):
                continue
            table = pq.ParquetFile(path).read()
            is_kept = [value not in ids for value in table["id"].to_pylist()]
            if not any(is_kept):
                path.unlink()
            elif not all(is_kept):
                new = path.with_name(f".{path.name}")
                pq.write_table(table.filter(pa.array(is_kept)), new, **WRITE)
                new.rename(path)

    def add_to_table(self, name: str, kind: pa.DataType, default: Any) -> None:
        # A folder has the columns of its files.
        self.append(self.new_rows(5))


KINDS = {
    "delta": ChangedDelta,
    "iceberg": ChangedIceberg,
    "folder": ChangedFolder,
    "mapped delta": ChangedMappedDelta,
}
