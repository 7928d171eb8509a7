"""Run random histories of a dataset: files and indices come, change and go, while readers read.

What a reader may answer: the rows of the files it has listed, as they are now. Where one of those
is gone it may also raise a `ZoneBloomError`, or warn and answer with the rows of the others.
"""

from __future__ import annotations

import os
import random
import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from trust.report import Report

import zonebloom as zb

STEPS = 25
LOOKUPS = 3
KEYS = 60


@dataclass
class Reader:
    """A dataset or a Polars frame of one. It sees the files of its last listing."""

    opened: Any
    of: zb.Dataset
    born: int

    @property
    def files(self) -> set[str]:
        return {os.path.basename(path) for path in self.of.files}


class History:
    """One dataset, its readers, and the steps that change them."""

    def __init__(self, report: Report, folder: Path, rng: random.Random):
        self.report, self.folder, self.rng = report, folder / "data", rng
        self.aside = folder / "aside"
        self.folder.mkdir(parents=True)
        self.aside.mkdir()
        self.step = 0
        self.steps_taken: list[str] = []
        self.rows: dict[str, list[tuple[int, str | None]]] = {}
        self.readers: list[Reader] = []
        # In some histories all files have the same size and footer, whatever their values.
        self.is_plain = rng.random() < 0.5
        self.options: dict[str, Any] = (
            {"compression": "none", "use_dictionary": False, "write_statistics": False}
            if self.is_plain
            else {"write_page_index": True, "max_rows_per_page": 20}
        )
        for _ in range(3):
            self.append()
        self.reopen()

    # Steps that change the files

    def drawn(self, rows: int) -> list[tuple[int, str | None]]:
        """Return keys, some of which are in several files, and names of the same length."""
        keys = [self.rng.randrange(KEYS) for _ in range(rows)]
        return [(key, f"n{self.rng.randrange(30):02d}") for key in keys]

    def write(self, name: str, rows: list[tuple[int, str | None]]) -> None:
        table = pa.table(
            {"id": pa.array([key for key, _ in rows], pa.int64()), "name": [n for _, n in rows]}
        )
        pq.write_table(table, self.folder / name, **self.options)
        self.rows[name] = rows

    def append(self) -> None:
        name = f"{len(self.rows):02d}-{self.rng.randrange(10**6):06d}.parquet"
        self.write(name, self.drawn(self.rng.choice([40, 100])))

    def some(self) -> str:
        return self.rng.choice(sorted(self.rows))

    def rewrite(self) -> None:
        name = self.some()
        self.write(name, self.drawn(self.rng.choice([len(self.rows[name]), 70])))

    def rewrite_alike(self) -> None:
        """Write other rows, in the same number of bytes if possible, with the same time."""
        name = self.some()
        path = self.folder / name
        status = path.stat()
        if self.rng.random() < 0.5:
            # Replace the file by a new one, like rsync does.
            path.rename(self.aside / name)
        self.write(name, self.drawn(len(self.rows[name])))
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

    def delete(self) -> None:
        if len(self.rows) > 1:
            name = self.some()
            (self.folder / name).rename(self.aside / name)
            del self.rows[name]

    def rename(self) -> None:
        old = self.some()
        new = f"r-{self.rng.randrange(10**6):06d}.parquet"
        (self.folder / old).rename(self.folder / new)
        self.rows[new] = self.rows.pop(old)

    def exchange(self) -> None:
        """Swap the names of two files."""
        one, other = self.some(), self.some()
        if one != other:
            (self.folder / one).rename(self.aside / "between")
            (self.folder / other).rename(self.folder / one)
            (self.aside / "between").rename(self.folder / other)
            self.rows[one], self.rows[other] = self.rows[other], self.rows[one]

    def touch(self) -> None:
        os.utime(self.folder / self.some())

    def chmod(self) -> None:
        (self.folder / self.some()).chmod(self.rng.choice([0o600, 0o644]))

    def copy_back(self) -> None:
        """Replace a file by a new one with the same bytes."""
        name = self.some()
        copied = self.rng.choice([shutil.copy, shutil.copy2])(self.folder / name, self.aside / name)
        os.replace(copied, self.folder / name)

    # Steps that change the indices, by any reader

    def dataset(self) -> Reader:
        return self.rng.choice([reader for reader in self.readers if not is_lazy(reader)])

    def create(self) -> None:
        reader = self.dataset()
        kind = self.rng.choice(["BLOOMFILTER", "HASH"])
        column = self.rng.choice(["id", "name"])
        reader.opened.create_scalar_index(
            column, kind, spark=False, number_of_items=16, probability=0.001
        )
        self.listed(reader)

    def optimize(self) -> None:
        reader = self.dataset()
        reader.opened.optimize.optimize_indices(spark=False)
        self.listed(reader)

    def drop(self) -> None:
        ds = self.dataset().opened
        if ds.describe_indices():
            ds.drop_index(self.rng.choice(ds.describe_indices()).name)

    def vacuum(self) -> None:
        self.dataset().opened.vacuum(self.rng.choice([timedelta(0), timedelta(days=7)]))

    def validate(self) -> None:
        """Validate the indices over files that are unchanged."""
        ds = self.dataset().opened
        for index in ds.describe_indices():
            ds.validate_index(index.name)

    # Steps that change the readers

    def reopen(self) -> None:
        ds = zb.dataset(self.folder)
        self.readers.append(Reader(ds, ds, self.step))
        self.listed(self.readers[-1])

    def pin_frame(self) -> None:
        reader = self.dataset()
        self.readers.append(Reader(reader.opened.to_polars(), reader.of, self.step))

    def refresh(self) -> None:
        reader = self.dataset()
        reader.opened.refresh()
        self.listed(reader)

    def listed(self, reader: Reader) -> None:
        """Compare the files that a reader listed with those that exist."""
        if reader.files != set(self.rows):
            raise AssertionError(f"it lists {reader.files ^ set(self.rows)} wrongly")

    # Comparison of answers with the files

    def check(self, reader: Reader) -> str | None:
        """Return what is wrong with a random lookup of a reader, or None."""
        key, name = self.rng.randrange(KEYS + 5), f"n{self.rng.randrange(31):02d}"
        sql, test = self.rng.choice(
            [
                (f"id = {key}", lambda row: row[0] == key),
                (f"name = '{name}'", lambda row: row[1] == name),
                (f"id = {key} OR name = '{name}'", lambda row: row[0] == key or row[1] == name),
                (f"id > {key}", lambda row: row[0] > key),
            ]
        )
        with warnings.catch_warnings(record=True) as issued:
            warnings.simplefilter("always", zb.errors.ZoneBloomWarning)
            try:
                result = look_up(reader.opened, sql)
            except zb.errors.ZoneBloomError as error:
                missing = reader.files - set(self.rows)
                return None if missing else f"{sql}: refused, and no file is gone: {error!r:.200}"
            except pl.exceptions.PolarsError as error:
                missing = reader.files - set(self.rows)
                return None if missing and is_lazy(reader) else f"{sql}: {error!r:.200}"
        present = [row for file in reader.files & set(self.rows) for row in self.rows[file]]
        newest = [row for rows in self.rows.values() for row in rows]
        if sorted(result) == sorted(filter(test, newest)):
            return None
        if sorted(result) != sorted(filter(test, present)):
            return f"{sql}: {len(result)} rows, not {sum(map(test, present))}"
        # Rows of existing files must be right. Missing files must cause a warning or an error,
        # unless the lookup needs none of their rows.
        missing = reader.files - set(self.rows)
        return f"{sql}: {missing} left out, not a word" if missing and not issued else None

    def run(self) -> None:
        steps: list[Callable[[], None]] = [
            *(self.append, self.rewrite, self.rewrite_alike, self.rewrite_alike, self.delete),
            *(self.rename, self.exchange, self.touch, self.chmod, self.copy_back),
            *(self.create, self.create, self.optimize, self.optimize, self.drop, self.vacuum),
            *(self.reopen, self.pin_frame, self.refresh, self.validate),
        ]
        for self.step in range(1, STEPS + 1):
            action = self.create if self.step == 1 else self.rng.choice(steps)
            name = action.__name__
            self.steps_taken.append(name)
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", zb.errors.ZoneBloomWarning)
                    action()
            except zb.errors.ZoneBloomError as error:
                # A reader with missing files may raise an error when it builds an index.
                self.report.refused[f"{name}, {type(error).__name__}"] += 1
            except Exception as error:  # noqa: BLE001 - not one of ours
                self.fail(f"{name} raised {error!r:.200}")
                return
            self.readers = self.readers[-6:]
            if all(map(is_lazy, self.readers)):
                self.reopen()
            for reader in self.readers:
                for _ in range(LOOKUPS):
                    self.report.tried[f"after {name}"] += 1
                    problem = self.check(reader)
                    if problem:
                        kind = "frame" if is_lazy(reader) else "dataset"
                        self.fail(f"{kind} of step {reader.born}: {problem}")
                        return

    def fail(self, text: str) -> None:
        plain = "plain files, " if self.is_plain else ""
        self.report.fail(f"{plain}step {self.step} ({', '.join(self.steps_taken[-6:])}): {text}")


def is_lazy(reader: Reader) -> bool:
    return isinstance(reader.opened, pl.LazyFrame)


def look_up(opened: Any, sql: str) -> list[tuple[int, str | None]]:
    """Return the rows that a dataset or a frame finds for a filter."""
    if isinstance(opened, pl.LazyFrame):
        return opened.filter(pl.sql_expr(sql)).select("id", "name").collect().rows()
    return [(row["id"], row["name"]) for row in opened.to_table(["id", "name"], sql).to_pylist()]


def run_case(report: Report, number: int, folder: Path) -> None:
    """Run one history."""
    History(report, folder, report.begin(number)).run()
