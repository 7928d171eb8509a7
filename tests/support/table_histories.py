"""Make random histories of Delta and Iceberg tables, with their expected rows after each step.

A history has the rows in memory beside the table. Its steps append, delete in every way the format
knows, update, rename, drop and add columns, and write files anew.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.types import DoubleType, IntegerType, StringType
from support.delta_by_hand import MappedTable
from support.iceberg_by_hand import delete_by_vector, delete_equal, delete_positions

KINDS = {"long": pa.int64(), "int": pa.int32(), "double": pa.float64(), "string": pa.string()}
WRITE = {"row_group_size": 24, "max_rows_per_page": 8, "write_page_index": True}


class History:
    """Steps that every table can take. Column "id" has distinct values and is never dropped."""

    def __init__(self, random: np.random.Generator):
        self.random = random
        self.rows: dict[int, dict] = {}
        self.gone: list[int] = []
        self.columns = {"id": "long", "key": "string", "grp": "long", "x": "double", "s": "s"}
        self.inner = "a"
        self.next_id = 0

    def types(self) -> pa.Schema:
        inner = pa.struct({self.inner: pa.int64(), "b": pa.string()})
        return pa.schema({name: KINDS.get(kind, inner) for name, kind in self.columns.items()})

    def table(self, ids=None) -> pa.Table:
        rows = [self.rows[row_id] for row_id in (self.rows if ids is None else ids)]
        return pa.Table.from_pylist(rows, self.types())

    def value(self, kind):
        number = int(self.random.integers(40))
        if number < 6:
            return None
        if kind == "s":
            return {self.inner: number, "b": f"b{number % 5}"}
        return {"long": number, "double": number / 4, "string": f"v{number}"}[kind]

    def row(self, number) -> dict:
        values = {name: self.value(kind) for name, kind in self.columns.items()}
        return {**values, "id": number}

    def some(self, min_count: int = 1) -> list[int]:
        """Return some ids of present rows, but never all."""
        max_count = max(min_count, min(len(self.rows) - 5, 12))
        count = int(self.random.integers(min_count, max_count + 1))
        return self.random.permutation(list(self.rows))[:count].tolist()

    def sought(self) -> list[int]:
        """Return ids of present rows, ids of deleted rows, and one that never existed."""
        present_ids = self.random.permutation(list(self.rows))[:3].tolist()
        return [*present_ids, *dict.fromkeys(self.gone[-3:]), 10**9]

    def step(self) -> str:
        steps = [self.append, self.delete, self.delete, self.update, *self.more()]
        step = steps[int(self.random.integers(len(steps)))]
        if len(self.rows) < 20:
            step = self.append
        step()
        return step.__name__

    def append(self) -> None:
        count = int(self.random.integers(10, 60))
        ids = range(self.next_id, self.next_id + count)
        self.next_id += count
        self.put({row_id: self.row(row_id) for row_id in ids})

    def delete(self) -> None:
        self.drop_rows(self.some())

    def update(self) -> None:
        ids = self.some()
        self.drop_rows(ids)
        self.put({row_id: self.row(row_id) for row_id in ids})
        self.gone = [row_id for row_id in self.gone if row_id not in ids]

    def put(self, rows: dict[int, dict]) -> None:
        self.rows |= rows
        self.write(list(rows))

    def drop_rows(self, ids: list[int]) -> None:
        self.remove(ids)
        self.forget(ids)

    def forget(self, ids) -> None:
        for row_id in ids:
            self.rows.pop(row_id, None)
        self.gone += ids

    def one_of(self, *without: str) -> str:
        names = [name for name in self.columns if name not in ("id", "s", *without)]
        return names[int(self.random.integers(len(names)))]

    def free_name(self) -> str:
        names = [name for name in ("key", "grp", "x", "n1", "n2", "n3") if name not in self.columns]
        return names[int(self.random.integers(len(names)))]

    def rename_in_memory(self, names: dict[str, str]) -> None:
        self.columns = {names.get(name, name): kind for name, kind in self.columns.items()}
        self.rows = {
            number: {names.get(name, name): value for name, value in row.items()}
            for number, row in self.rows.items()
        }

    def rename_inner_in_memory(self, new: str) -> None:
        old, self.inner = self.inner, new
        for row in self.rows.values():
            if row["s"] is not None:
                row["s"] = {new: row["s"][old], "b": row["s"]["b"]}

    def add_in_memory(self, name: str, kind: str, value=None) -> None:
        self.columns[name] = kind
        for row in self.rows.values():
            row[name] = value

    def drop_in_memory(self, name: str) -> None:
        del self.columns[name]
        for row in self.rows.values():
            del row[name]


class WrittenDelta(History):
    """A Delta table that deltalake writes, without deletion vectors and column mapping."""

    def __init__(self, random, folder):
        super().__init__(random)
        self.path = folder / "written"

    def load(self):
        return DeltaTable(self.path)

    def theirs(self) -> pa.Table:
        return pa.table(self.load().scan().read_all())

    def more(self):
        return [self.compact, self.add_column]

    def write(self, ids) -> None:
        write_deltalake(self.path, self.table(ids), mode="append", schema_mode="merge")

    def remove(self, ids) -> None:
        self.load().delete(f"id IN ({', '.join(map(str, ids))})")

    def compact(self) -> None:
        self.load().optimize.compact()

    def add_column(self) -> None:
        if len(self.columns) < 8:
            self.add_in_memory(f"m{len(self.columns)}", "string")
            self.append()


class MappedDelta(History):
    """A Delta table with deletion vectors, and columns mapped by name or by id."""

    def __init__(self, random, folder):
        super().__init__(random)
        mode = ["name", "id"][int(random.integers(2))]
        self.made = new_table = MappedTable(folder / "mapped", mode)
        inner = {
            "type": "struct",
            "fields": [new_table.field("a", "long"), new_table.field("b", "string")],
        }
        # A table that was mapped later has files with the names from before.
        keeps_names = random.random() < 0.5
        new_table.set_fields(
            [
                new_table.field(name, inner if kind == "s" else kind, name if keeps_names else None)
                for name, kind in self.columns.items()
            ]
        )
        self.files: dict[str, list[int]] = {}
        self.deleted: dict[str, set[int]] = {}

    def load(self):
        return DeltaTable(self.made.path)

    def theirs(self) -> pa.Table:
        return pa.table(self.load().scan().read_all())

    def more(self):
        return [self.compact, self.rename, self.swap, self.rename_inner, self.add, self.drop]

    def write(self, ids, removed=()) -> None:
        name = self.made.append([self.rows[row_id] for row_id in ids], removed=removed, **WRITE)
        self.files[name], self.deleted[name] = list(ids), set()

    def remove(self, ids) -> None:
        for name, row_ids in self.files.items():
            rows = {
                row
                for row, row_id in enumerate(row_ids)
                if row_id in ids and row not in self.deleted[name]
            }
            if rows:
                self.deleted[name] |= rows
                self.made.delete(name, self.deleted[name], bool(self.random.integers(2)))

    def compact(self) -> None:
        names = list(self.files)[: int(self.random.integers(1, len(self.files) + 1))]
        ids = [
            row_id
            for name in names
            for row, row_id in enumerate(self.files[name])
            if row not in self.deleted[name]
        ]
        if ids:
            for name in names:
                del self.files[name], self.deleted[name]
            self.write(ids, names)

    def _renamed(self, names) -> None:
        self.made.set_fields(
            [
                {**field, "name": names.get(field["name"], field["name"])}
                for field in self.made.fields
            ]
        )
        self.rename_in_memory(names)

    def rename(self) -> None:
        self._renamed({self.one_of(): self.free_name()})

    def swap(self) -> None:
        one = self.one_of()
        other = self.one_of(one)
        self._renamed({one: other, other: one})

    def rename_inner(self) -> None:
        new = {"a": "c", "c": "a"}[self.inner]
        fields = []
        for field in self.made.fields:
            if field["name"] == "s":
                inner = [
                    {**child, "name": new if child["name"] == self.inner else child["name"]}
                    for child in field["type"]["fields"]
                ]
                field = {**field, "type": {**field["type"], "fields": inner[::-1]}}
            fields.append(field)
        self.made.set_fields(fields)
        self.rename_inner_in_memory(new)

    def add(self) -> None:
        if len(self.columns) < 7:
            name, kind = self.free_name(), ["long", "double", "string"][self.random.integers(3)]
            self.made.set_fields([*self.made.fields, self.made.field(name, kind)])
            self.add_in_memory(name, kind)

    def drop(self) -> None:
        if len(self.columns) > 4:
            name = self.one_of()
            self.made.set_fields([field for field in self.made.fields if field["name"] != name])
            self.drop_in_memory(name)


class Iceberg(History):
    """An Iceberg table with position deletes, equality deletes, deletion vectors and rewrites."""

    def __init__(self, random, folder):
        super().__init__(random)
        (folder / "house").mkdir()
        self.folder = folder
        self.catalog = SqlCatalog(
            "c", uri=f"sqlite:///{folder}/c.db", warehouse=(folder / "house").as_uri()
        )
        self.catalog.create_namespace("n")
        version = "1" if random.random() < 0.2 else "2"
        self.deletes = version == "2"
        self.made = self.catalog.create_table(
            "n.t",
            schema=self.types(),
            properties={
                "format-version": version,
                "write.parquet.row-group-limit": "24",
                "write.parquet.page-row-limit": "8",
            },
        )
        # For each data file: its rows, the rows that position deletes and vectors deleted, and the
        # manifest of its vector.
        self.files: dict[str, list[int]] = {}
        self.positions: dict[str, set[int]] = {}
        self.vectors: dict[str, str] = {}
        self.is_deleted = self.has_equality = False
        self.homes: dict[int, tuple[str, int]] = {}

    def load(self):
        return self.made

    def theirs(self) -> pa.Table | None:
        # pyiceberg does not read equality deletes.
        return None if self.has_equality else self.made.scan().to_arrow()

    def more(self):
        return [self.compact, self.rename, self.swap, self.rename_inner, self.add, self.drop]

    def write(self, ids) -> None:
        self.made.append(self.table(ids))
        self._look()

    def _look(self) -> None:
        """Read the rows of new files."""
        live = {
            entry.data_file.file_path
            for manifest in self.made.current_snapshot().manifests(self.made.io)
            if not manifest.content
            for entry in manifest.fetch_manifest_entry(self.made.io)
        }
        for path in live - self.files.keys():
            # Find the id column by its field id of 1, whatever its name is.
            ids = pq.read_table(path.removeprefix("file://"))["id"].to_pylist()
            self.files[path] = ids
            self.homes |= {row_id: (path, row) for row, row_id in enumerate(ids)}
        for path in self.files.keys() - live:
            del self.files[path]
            self.positions.pop(path, None)
            self.vectors.pop(path, None)

    def remove(self, ids) -> None:
        ways = [self._by_position, self._by_position, self._by_vector, self._by_vector]
        ways.append(self._by_equality)
        if not self.is_deleted:
            ways += [self._by_copy, self._by_copy]
        if not self.deletes:
            ways = [self._by_copy]
        ways[int(self.random.integers(len(ways)))](ids)

    def _placed(self, ids) -> dict[str, list[int]]:
        by_file: dict[str, list[int]] = {}
        for row_id in ids:
            path, row = self.homes[row_id]
            by_file.setdefault(path, []).append(row)
        return by_file

    def _by_copy(self, ids) -> None:
        self.made.delete(f"id IN ({', '.join(map(str, ids))})")
        self._look()

    def _by_position(self, ids) -> None:
        self.is_deleted = True
        placed = self._placed(ids)
        # A vector replaces all earlier deletes of its file.
        for path in self.vectors.keys() & placed.keys():
            self._vector(path, placed.pop(path))
        if placed:
            delete_positions(self.made, self.folder, placed)
        for path, rows in placed.items():
            self.positions.setdefault(path, set()).update(rows)

    def _by_vector(self, ids) -> None:
        self.is_deleted = True
        for path, rows in self._placed(ids).items():
            self._vector(path, rows)

    def _vector(self, path, rows) -> None:
        file_positions = self.positions.setdefault(path, set())
        file_positions.update(rows)
        before = self.vectors.get(path)
        self.vectors[path] = delete_by_vector(
            self.made, self.folder, path, list(file_positions), before
        )

    def _by_equality(self, ids) -> None:
        self.is_deleted = self.has_equality = True
        delete_equal(self.made, self.folder, {"id": [*ids, 10**8]})
        other_names = [name for name in self.columns if name not in ("id", "s")]
        if self.random.random() < 0.5 and len(other_names) > 1:
            names = self.random.permutation(other_names)[:2].tolist()
            sample = [self.rows[row_id] for row_id in self.some()]
            keys = {name: [row[name] for row in sample] for name in names}
            delete_equal(self.made, self.folder, keys)
            tuples = set(zip(*keys.values(), strict=True))
            self.forget(
                [
                    number
                    for number, row in self.rows.items()
                    if number not in ids and tuple(row[name] for name in names) in tuples
                ]
            )

    def compact(self) -> None:
        self.made.overwrite(self.table())
        self._look()
        self.is_deleted = self.has_equality = False

    def _changed(self, change) -> None:
        with self.made.update_schema() as update:
            change(update)

    def rename(self) -> None:
        old, new = self.one_of(), self.free_name()
        self._changed(lambda update: update.rename_column(old, new))
        self.rename_in_memory({old: new})

    def swap(self) -> None:
        one = self.one_of()
        other = self.one_of(one)
        for old, new in ((one, "?"), (other, one), ("?", other)):
            self._changed(lambda update, old=old, new=new: update.rename_column(old, new))
        self.rename_in_memory({one: other, other: one})

    def rename_inner(self) -> None:
        new = {"a": "c", "c": "a"}[self.inner]
        self._changed(lambda update: update.rename_column(f"s.{self.inner}", new))
        self.rename_inner_in_memory(new)

    def add(self) -> None:
        if len(self.columns) >= 7:
            return
        name = self.free_name()
        value = int(self.random.integers(40)) if self.random.random() < 0.5 else None
        if value is None:
            kind, column_type = [("string", StringType()), ("double", DoubleType())][
                int(self.random.integers(2))
            ]
            self._changed(lambda update: update.add_column(name, column_type))
        else:
            kind, column_type = "int", IntegerType()
            self._changed(lambda update: update.add_column(name, column_type, default_value=value))
        self.add_in_memory(name, kind, value)

    def drop(self) -> None:
        if len(self.columns) > 4:
            name = self.one_of()
            self._changed(lambda update: update.delete_column(name))
            self.drop_in_memory(name)

    def value(self, kind):
        return super().value("long" if kind == "int" else kind)


FORMATS = [WrittenDelta, MappedDelta, Iceberg]
