"""Random histories of a table that is changed by upserts and erasures, and by other writers."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from support.changed_tables import KINDS, ChangedFolder, ChangedIceberg, ChangedTable
from support.snapshot_rows import in_order

import zonebloom as zb
from zonebloom.errors import ChangeRefused, InvalidArgument, ZoneBloomWarning

STEPS = 6
KEYS = [["id"], ["id"], ["name", "num"]]
# Filters, and the same conditions in Python.
FILTERS: list[tuple[str, Callable[[dict], bool]]] = [
    ("id < 4", lambda row: row["id"] is not None and row["id"] < 4),
    ("s = 'v3'", lambda row: row["s"] == "v3"),
    ("part = 'b c/%' AND num = 1", lambda row: row["part"] == "b c/%" and row["num"] == 1),
    ("t IS NULL AND x IS NULL", lambda row: row["t"] is None and row["x"] is None),
    ("name IN ('user-1', 'user-4')", lambda row: row["name"] in ("user-1", "user-4")),
]


def upserted(
    rows: list[dict],
    batch: list[dict],
    on: Sequence[str],
    names: Sequence[str],
    columns: Sequence[str] | None,
    *,
    updates: bool,
    inserts: bool,
) -> tuple[list[dict], int, int]:
    """Return the rows after an upsert, and how many were updated and inserted."""
    by_key = {tuple(new[name] for name in on): new for new in batch}
    changed = [name for name in (names if columns is None else columns) if name not in on]
    result, num_updated, held = [], 0, set()
    for row in rows:
        key = tuple(row[name] for name in on)
        new = by_key.get(key)
        if new is not None:
            held.add(key)
        if new is not None and updates and changed:
            row = {**row, **{name: new[name] for name in changed}}
            num_updated += 1
        result.append(row)
    absent = [new for key, new in by_key.items() if key not in held] if inserts else []
    columns_of_table = rows[0] if rows else batch[0]
    for new in absent:
        result.append({name: new[name] if name in names else None for name in columns_of_table})
    return result, num_updated, len(absent)


class ChangeHistory:
    """A table, its steps so far, and datasets that were opened after some of them."""

    def __init__(self, kind: str, rng: random.Random, folder: Path):
        self.rng = rng
        self.is_partitioned = rng.random() < 0.5
        self.table: ChangedTable = KINDS[kind](rng, folder, is_partitioned=self.is_partitioned)
        self.table.append(self.table.new_rows(40))
        self.opened = [self.open()]
        self.steps: list[str] = [f"partitioned: {self.is_partitioned}"]

    def open(self) -> zb.Dataset:
        return zb.dataset(self.table.load(), **self.table.options)

    def step(self) -> None:
        steps = [
            *[self.upsert] * 5,
            *[self.erase] * 2,
            self.erase_by_filter,
            self.append,
            self.delete,
            self.table.compact,
            self.index,
            self.table.add_column,
        ]
        if self.table.renames:
            steps.append(self.rename_column)
        if isinstance(self.table, ChangedIceberg):
            steps.append(self.table.change_spec)
        step = self.append if len(self.table.rows) < 12 else self.rng.choice(steps)
        self.steps.append(step.__name__)
        step()
        if self.rng.random() < 0.4:
            self.opened.append(self.open())

    def note(self, *texts: object) -> None:
        self.steps[-1] += "".join(f" {text}" for text in texts)

    def ds(self) -> zb.Dataset:
        """Return a dataset, which may be older than the last change."""
        ds = self.opened[-1] if self.rng.random() < 0.5 else self.rng.choice(self.opened)
        self.note(f"dataset {self.opened.index(ds)} of {len(self.opened)}")
        return ds

    def ids(self) -> set[int]:
        return {row["id"] for row in self.table.rows}

    def some(self, max_count: int) -> list[dict]:
        rows = self.table.rows
        return self.rng.sample(rows, self.rng.randint(1, min(max_count, len(rows))))

    # Steps

    def append(self) -> None:
        rows = self.table.new_rows(self.rng.randint(10, 40))
        if self.rng.random() < 0.2 and self.table.rows:
            # Another writer does not look whether a key exists.
            rows.append(self.table.row(self.rng.choice(self.table.rows)["id"] or 0))
        self.table.append(rows)

    def delete(self) -> None:
        self.table.delete([row["id"] for row in self.some(4)])

    def index(self) -> None:
        ds = self.open()
        for name in ("id", "name"):
            ds.create_scalar_index(
                name, self.rng.choice(["HASH", "BLOOMFILTER"]), number_of_items=8, spark=False
            )
        self.opened.append(ds)

    def rename_column(self) -> None:
        if len(self.table.schema) > 8:
            self.table.rename_column(self.table.schema.names[-1])

    def upsert(self) -> None:
        rng, table = self.rng, self.table
        on = rng.choice(KEYS)
        batch = {tuple(row[name] for name in on): row for row in map(self.anew, self.some(8))}
        batch = {key: row for key, row in batch.items() if None not in key}
        for row in table.new_rows(rng.choice([0, 3, 9])):
            batch[tuple(row[name] for name in on)] = row
        new_rows = list(batch.values())
        rng.shuffle(new_rows)
        names = table.schema.names
        if rng.random() < 0.3:
            kept = set(rng.sample(names, rng.randint(2, len(names))))
            names = [name for name in names if name in kept or name in on]
        columns = None
        if rng.random() < 0.3:
            columns = rng.sample(names, rng.randint(1, len(names)))
        updates, inserts = rng.random() < 0.8, rng.random() < 0.8
        self.note(on, names, columns, f"updates={updates} inserts={inserts}", len(new_rows))

        def expected() -> tuple[list[dict], int, int]:
            return upserted(
                table.rows, new_rows, on, names, columns, updates=updates, inserts=inserts
            )

        def run(ds: zb.Dataset, **options: Any) -> zb.Receipt:
            rows: Any = table.table(new_rows, names)
            if rng.random() < 0.3:
                rows = rows.to_reader(max_chunksize=3)
            return ds.upsert(
                rows,
                on if len(on) > 1 else on[0],
                when_matched="update" if updates else "ignore",
                when_not_matched="insert" if inserts else "ignore",
                columns=columns,
                **options,
            )

        def counts(receipt: zb.Receipt) -> tuple[int, int]:
            return receipt.num_updated, receipt.num_inserted

        self.carry_out(run, expected, counts, new_rows)

    def anew(self, row: dict) -> dict:
        """Return a row with the same keys and other values, at times in the same partition."""
        new = {**self.table.row(row["id"] or 0), "id": row["id"]}
        new |= {"name": row["name"], "num": row["num"]}
        return {**new, "part": row["part"]} if self.rng.random() < 0.5 else new

    def erase(self) -> None:
        columns = self.rng.choice([*KEYS, ["name"]])
        rows = self.some(4)
        keys = [tuple(row[name] for name in columns) for row in rows]
        # A key that no row has, and one that is given twice.
        keys += [tuple("none" if name == "name" else -1 for name in columns), keys[0]]
        keys = [key for key in keys if None not in key]
        types = [self.table.schema.field(name).type for name in columns]
        arrays = [pa.array([key[i] for key in keys], kind) for i, kind in enumerate(types)]
        given: Any = arrays[0] if len(columns) == 1 else pa.table(arrays, columns)
        self.note(columns, keys)

        def expected() -> tuple[list[dict], int, int]:
            kept = [
                row for row in self.table.rows if tuple(row[name] for name in columns) not in keys
            ]
            return kept, len(self.table.rows) - len(kept), 0

        self.carry_out(
            lambda ds, **options: ds.erase(
                columns if len(columns) > 1 else columns[0], given, **options
            ),
            expected,
            lambda receipt: (receipt.num_deleted, 0),
            rows,
        )

    def erase_by_filter(self) -> None:
        text, condition = self.rng.choice(FILTERS)
        if all(map(condition, self.table.rows)):
            return
        self.note(text)

        def expected() -> tuple[list[dict], int, int]:
            kept = [row for row in self.table.rows if not condition(row)]
            return kept, len(self.table.rows) - len(kept), 0

        self.carry_out(
            lambda ds, **options: ds.erase(filter=text, **options),
            expected,
            lambda receipt: (receipt.num_deleted, 0),
            [],
        )

    def carry_out(
        self,
        run: Callable[..., zb.Receipt],
        expected: Callable[[], tuple[list[dict], int, int]],
        counts: Callable[[zb.Receipt], tuple[int, int]],
        batch: list[dict],
    ) -> None:
        """Plan a change, make it, perhaps while another writer commits, and compare."""
        ds = self.ds()
        try:
            if self.rng.random() < 0.3:
                plan = run(ds, plan=True)
                assert not plan.is_committed
                assert counts(plan) == expected()[1:]
                self.check_rows()
            ids, before = self.ids(), expected()
            conflict = self.conflict(batch) if self.rng.random() < 0.25 else None
            receipt = run(ds, progress=conflict)
        except (InvalidArgument, ChangeRefused) as error:
            # The rows would have to move, but do not have all columns, or must not be inserted.
            assert "partition" in str(error)
            assert self.is_partitioned or isinstance(self.table, ChangedIceberg)
            self.note("refused")
            self.check_rows()
            return
        rows, *numbers = expected()
        if isinstance(self.table, ChangedFolder) and receipt.tries == 1:
            # The other writer changed other files, as if it came after the change.
            rows, *numbers = before
            rows = [row for row in rows if row["id"] not in ids - self.ids()]
        self.note(counts(receipt), f"tries={receipt.tries}")
        assert counts(receipt) == tuple(numbers)
        self.table.rows = rows
        assert receipt.is_committed == (receipt.verification is not None)
        if receipt.verification is not None:
            assert receipt.verification.is_proven, receipt.verification
        self.check(ds)

    def conflict(self, batch: list[dict]) -> Callable[[int, int], None]:
        """Return a progress function, at whose first call another writer changes the table."""
        is_done = False
        table = self.table

        def other_writer(done: int, total: int) -> None:
            nonlocal is_done
            if is_done:
                return
            is_done = True
            if isinstance(table, ChangedFolder) or self.rng.random() < 0.5:
                self.note("[delete]")
                table.delete([row["id"] for row in self.some(3)])
            else:
                self.note("[append]")
                old_ids = {row["id"] for row in table.rows}
                rows = [table.row(row["id"]) for row in batch if row["id"] not in old_ids][:2]
                table.append([*table.new_rows(2), *rows])

        return other_writer

    # Checks

    def check_rows(self) -> None:
        """Compare the rows, as the table's own library reads them."""
        theirs = self.table.read()
        if theirs is not None:
            assert in_order(theirs.select(self.table.schema.names)) == in_order(self.table.rows)

    def check(self, ds: zb.Dataset) -> None:
        """Compare all rows, and those of some keys, with and without the index."""
        self.check_rows()
        rows = in_order(self.table.rows)
        for dataset in (ds, self.open()):
            assert dataset.count_rows() == len(rows)
            found = dataset.to_table()
            assert set(found.column_names) <= set(self.table.schema.names)
            if found.num_columns < len(self.table.schema):
                # No file has the column any more.
                found = self.with_nulls(found)
            assert in_order(found) == rows
            # `lookup` returns the rows of a key each time that it is given.
            ids = [*{row["id"] for row in self.some(5)} - {None}, -1]
            wanted = sorted(row["id"] for row in self.table.rows if row["id"] in ids)
            assert sorted(dataset.lookup("id", ids)["id"].to_pylist()) == wanted
            condition = pc.field("id").isin(ids)
            for uses_index in (True, False):
                scan = dataset.scanner(filter=condition, use_scalar_index=uses_index)
                assert sorted(scan.to_table()["id"].to_pylist()) == wanted

    def with_nulls(self, found: pa.Table) -> pa.Table:
        for name in self.table.schema.names:
            if name not in found.column_names:
                kind = self.table.schema.field(name).type
                found = found.append_column(name, pa.nulls(found.num_rows, kind))
        return found


def run_history(kind: str, rng: random.Random, folder: Path, steps: int = STEPS) -> list[str]:
    """Run a history, and return its steps. An error names them."""
    history = ChangeHistory(kind, rng, folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ZoneBloomWarning)
        warnings.filterwarnings("ignore", "Delete operation did not match any records")
        try:
            for _ in range(steps):
                history.step()
                history.check_rows()
            history.check(history.open())
        except Exception as error:
            raise AssertionError("after " + "\n".join(history.steps)) from error
    return history.steps
