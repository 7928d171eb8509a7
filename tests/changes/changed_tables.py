"""Tables of each kind that upserts and erasures change, with their rows in memory.

The libraries of the tables write and read them. `Model` says what a change does to rows in memory.
"""

from __future__ import annotations

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
from pyiceberg.types import StringType
from support.delta_by_hand import MappedTable
from support.iceberg_by_hand import delete_equal, delete_positions

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


def comparable(rows: Any) -> list[str]:
    """Return rows in an order that does not depend on their files. NaN equals NaN."""
    if isinstance(rows, pa.Table):
        rows = rows.to_pylist()
    return sorted(repr(sorted(row.items())) for row in rows)


class ChangedTable:
    """A table and its rows. Each of ``rows`` has all columns of ``schema``."""

    # Options of `zonebloom.dataset`.
    options: Mapping[str, Any] = MappingProxyType({})
    # Whether the table can rename columns.
    renames = False

    def __init__(self, rng: random.Random, folder: Path, *, is_partitioned: bool):
        self.rng = rng
        self.folder = folder
        self.is_partitioned = is_partitioned
        self.schema = SCHEMA
        self.rows: list[dict] = []
        self.next_id = 0

    # Values

    def row(self, row_id: int) -> dict[str, Any]:
        """Return a row. The columns name and num are another key, which its id determines."""
        rng = self.rng
        number = rng.randrange(40)
        known: dict[str, Any] = {
            "id": row_id,
            "name": f"user-{row_id // 3}",
            "num": row_id % 3,
            "part": rng.choice(PARTITIONS),
            "x": rng.choice([None, math.nan, math.inf, -0.0, number / 4]),
            "s": rng.choice([None, "", f"v{number % 5}", "long " * 20]),
            "n": rng.choice([None, {"a": None, "l": None}, {"a": number, "l": [1, None, number]}]),
            "t": None if number < 5 else 1_700_000_000_000_000 + number,
        }
        added = {
            name: rng.choice([None, f"w{number}"])
            for name in self.schema.names
            if name not in known
        }
        values = {**known, **added}
        table = pa.Table.from_pylist([values], self.schema)
        return table.to_pylist()[0]

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

    def add_column(self) -> None:
        name = f"added{len(self.schema)}"
        self.schema = self.schema.append(pa.field(name, pa.string()))
        self.rows = [{**row, name: None} for row in self.rows]
        self.add_to_table(name)

    def rename_column(self) -> None:
        old = self.schema.names[-1]
        new = f"renamed{self.rng.randrange(10**6)}"
        self.rename_in_table(old, new)
        names = [new if name == old else name for name in self.schema.names]
        self.schema = pa.schema(
            [field.with_name(name) for field, name in zip(self.schema, names, strict=True)]
        )
        self.rows = [dict(zip(names, row.values(), strict=True)) for row in self.rows]

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

    def add_to_table(self, name: str) -> None:
        raise NotImplementedError

    def rename_in_table(self, old: str, new: str) -> None:
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
            partition_by=["part"] if self.is_partitioned else None,
            writer_properties=deltalake.WriterProperties(max_row_group_size=16),
        )

    def remove(self, ids: Sequence[int]) -> None:
        self.load().delete(f"id IN ({', '.join(map(str, ids))})")

    def add_to_table(self, name: str) -> None:
        self.load().alter.add_columns([Field(name, PrimitiveType("string"))])

    def compact(self) -> None:
        self.load().optimize.compact()


class ChangedMappedDelta(ChangedDelta):
    """A Delta table with column mapping, which deltalake opens, but neither reads nor writes."""

    renames = True

    def __init__(self, rng: random.Random, folder: Path, *, is_partitioned: bool):
        super().__init__(rng, folder, is_partitioned=is_partitioned)
        partitioned_by = ["part"] if is_partitioned else []
        mode = rng.choice(["name", "id"])
        self.log = MappedTable(Path(self.path), mode, partitioned_by, ["timestampNtz"])
        plain = {"id": "long", "num": "integer", "x": "double", "t": "timestamp_ntz"}
        inner = [
            self.log.field("a", "long"),
            self.log.field("l", {"type": "array", "elementType": "long", "containsNull": True}),
        ]
        kinds = {**plain, "n": {"type": "struct", "fields": inner}}
        fields = [self.log.field(name, kinds.get(name, "string")) for name in SCHEMA.names]
        self.log.set_fields(fields)

    def files(self) -> dict[str, list[dict]]:
        """Return the rows of each file."""
        self.log.path = Path(self.path)
        self.log.load()
        return {name: self.log.rows(name) for name in self.log.adds}

    def read(self) -> pa.Table:
        return self.table([row for rows in self.files().values() for row in rows])

    def write(self, rows: list[dict]) -> None:
        for part in PARTITIONS if self.is_partitioned else [None]:
            chosen = [row for row in rows if not self.is_partitioned or row["part"] == part]
            if chosen:
                self.log.append(chosen, **WRITE)

    def remove(self, ids: Sequence[int]) -> None:
        for name, rows in self.files().items():
            kept = [row for row in rows if row["id"] not in ids]
            if len(kept) < len(rows):
                self._replace([name], kept)

    def _replace(self, names: Sequence[str], rows: list[dict]) -> None:
        if rows:
            self.log.append(rows, removed=names, **WRITE)
        else:
            self.log.remove(names)

    def add_to_table(self, name: str) -> None:
        self.log.set_fields([*self.log.fields, self.log.field(name, "string")])

    def rename_in_table(self, old: str, new: str) -> None:
        self.log.set_fields(
            [
                {**field, "name": new if field["name"] == old else field["name"]}
                for field in self.log.fields
            ]
        )

    def compact(self) -> None:
        places: dict[str | None, dict[str, list[dict]]] = {}
        for name, rows in self.files().items():
            place = rows[0]["part"] if self.is_partitioned else None
            places.setdefault(place, {})[name] = rows
        for files in places.values():
            self._replace(list(files), [row for rows in files.values() for row in rows])


class ChangedIceberg(ChangedTable):
    """An Iceberg table of pyiceberg, with delete files that it does not write itself."""

    renames = True

    def __init__(self, rng: random.Random, folder: Path, *, is_partitioned: bool):
        super().__init__(rng, folder, is_partitioned=is_partitioned)
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
        if is_partitioned:
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
        way = "copy" if self.version == "1" else self.rng.choice(["copy", "position", "equality"])
        if way == "copy" and self.has_equality_deletes():
            way = "equality"
        if way == "copy":
            table.delete(f"id IN ({', '.join(map(str, ids))})")
        elif way == "position":
            self._delete_positions(table, set(ids))
        else:
            places = {(file.spec_id, self._partition(file)) for file in self._files(table)}
            for spec_id, partition in places:
                options = {"partition": partition, "spec_id": spec_id}
                delete_equal(table, self.folder, {"id": list(ids)}, **options)
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

    def _partition(self, file: Any) -> tuple[Any, ...]:
        return tuple(file.partition[i] for i in range(len(file.partition)))

    def _delete_positions(self, table: Any, ids: set[int]) -> None:
        placed: dict[tuple[int, Any], dict[str, list[int]]] = {}
        for file in self._files(table):
            held = pq.ParquetFile(file.file_path.removeprefix("file://")).read(columns=["id"])
            rows = [row for row, value in enumerate(held["id"].to_pylist()) if value in ids]
            if rows:
                place = file.spec_id, self._partition(file)
                placed.setdefault(place, {})[file.file_path] = rows
        for (spec_id, partition), positions in placed.items():
            delete_positions(table, self.folder, positions, partition=partition, spec_id=spec_id)
            table.refresh()

    def add_to_table(self, name: str) -> None:
        with self.load().update_schema() as update:
            update.add_column(name, StringType())

    def rename_in_table(self, old: str, new: str) -> None:
        with self.load().update_schema() as update:
            update.rename_column(old, new)

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
        if self.read() is not None:
            self.load().overwrite(self.table(self.rows))


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
                table = table.append_column(name, pa.nulls(table.num_rows, pa.string()))
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

    def add_to_table(self, name: str) -> None:
        # A folder has the columns of its files.
        self.append(self.new_rows(5))


KINDS = {
    "delta": ChangedDelta,
    "iceberg": ChangedIceberg,
    "folder": ChangedFolder,
    "mapped delta": ChangedMappedDelta,
}
