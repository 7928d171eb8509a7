"""Make a small dataset with known answers, for the parts that damage files or kill processes."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from support.e2e_helpers import merge_segments, numbered
from support.helpers import copy_dataset, index_folder

import zonebloom as zb

ROWS = 120
# Filters for keys that are present, absent, in two files or null, and the rows that match.
FILTERS: dict[str, Callable[[dict], bool]] = {
    "id = 10": lambda row: row["id"] == 10,
    "id = 1370": lambda row: row["id"] == 1370,
    "id IN (30, 1990, 2770)": lambda row: row["id"] in (30, 1990, 2770),
    "id = 5": lambda row: row["id"] == 5,
    "name = 'n7'": lambda row: row["name"] == "n7",
    "name IS NULL": lambda row: row["name"] is None,
    "id = 2550 AND name = 'n7'": lambda row: row["id"] == 2550 and row["name"] == "n7",
    "twin IN (1375, 2555)": lambda row: row["twin"] in (1375, 2555),
}


class WrongRows(AssertionError):
    """An error that is raised if a filter loses rows or returns other rows."""


def table(number: int, rows: int = ROWS) -> pa.Table:
    """Return the rows of one file."""
    row_numbers = range(number * ROWS, number * ROWS + rows)
    return numbered(
        number * ROWS,
        rows,
        id=pa.array([10 * row for row in row_numbers], pa.int64()),
        # The index of this column differs from the index of id only in the bits of the filters.
        twin=pa.array([10 * row + 5 for row in row_numbers], pa.int64()),
        name=pa.array([None if row % 31 == 0 else f"n{row % 62}" for row in row_numbers]),
    )


def write(folder: Path, number: int, **options: Any) -> None:
    """Write one file, with small pages."""
    folder.mkdir(parents=True, exist_ok=True)
    defaults = {"write_page_index": True, "max_rows_per_page": 20, "row_group_size": 60}
    pq.write_table(table(number), folder / f"{number}.parquet", **{**defaults, **options})


@functools.cache
def rows_of(number: int) -> list[dict]:
    """Return the rows of one file as Python dictionaries."""
    return table(number).to_pylist()


def wanted(numbers: Any, filter: str) -> list[int]:
    """Return the numbers of the rows of some files that match a filter, by plain Python."""
    rows = [row for number in sorted(numbers) for row in rows_of(number)]
    return [row["row"] for row in rows if FILTERS[filter](row)]


def check_answers(ds: zb.Dataset, numbers: Any, filters: Any = FILTERS) -> int:
    """Compare all answers with plain Python. Return the number of lookups."""
    for filter in filters:
        expected = wanted(numbers, filter)
        rows = ds.to_table(["row"], filter)["row"].to_pylist()
        if rows != expected:
            raise WrongRows(f"{filter} gave {rows[:9]}, not {expected[:9]}")
    return len(filters)


def check_requests(ds: zb.Dataset, numbers: Any) -> None:
    """Compare lookups of many keys, and scans of other engines, with plain Python."""
    import duckdb
    import polars as pl

    rows = [row for number in sorted(numbers) for row in rows_of(number)]
    present = {row["id"] for row in rows if row["id"] is not None}
    keys = np.arange(-1, 17_000, dtype=np.int64)
    expected = sorted(present.intersection(keys.tolist()))
    places = ds.locate("id", keys)
    answers = {
        "locate": sorted(keys[places["key_index"].filter(places["row"].is_valid())].tolist()),
        "lookup": sorted(ds.lookup("id", keys)["id"].to_pylist()),
        "polars": ds.to_polars().filter(pl.col("id").is_in(keys)).collect()["id"].sort().to_list(),
        "duckdb": sorted(
            key for (key,) in duckdb.sql("SELECT id FROM ds WHERE id > -2").fetchall()
        ),
    }
    for request, answer in answers.items():
        if answer != expected:
            raise WrongRows(f"{request} found {len(answer)} keys, not {len(expected)}")
    num_keys = sum(ds.files_with_keys("id", keys)["num_keys"].to_pylist())
    if num_keys < len(expected):
        raise WrongRows(f"files_with_keys counts {num_keys} keys, not {len(expected)}")


def build(ds: zb.Dataset, kind: str, **options: Any) -> None:
    ds.create_scalar_index(
        ["id", "name", "twin"],
        kind,
        spark=False,
        number_of_items=20,
        probability=0.001,
        **options,
    )


def prepare(folder: Path, kind: str | None) -> None:
    """Make a folder of two indexed files, then add a file and rewrite an indexed one."""
    copied(Path(_prepared(kind).name, "data"), folder)


@functools.cache
def _prepared(kind: str | None) -> tempfile.TemporaryDirectory:
    """Return one folder for all cases of a process. Each case changes a copy."""
    parent = tempfile.TemporaryDirectory(prefix="trust-")
    folder = Path(parent.name, "data")
    write(folder, 0)
    write(folder, 1)
    if kind is not None:
        build(zb.dataset(folder), kind, global_filter=True)
    write(folder, 2)
    write(folder, 1, compression="gzip")
    return parent


NUMBERS = (0, 1, 2)


def write_anew(ds: zb.Dataset, operation: str) -> None:
    """Run one of the writers."""
    match operation:
        case "build" | "build HASH":
            build(ds, "HASH" if "HASH" in operation else "BLOOMFILTER")
        case "optimize":
            ds.optimize.optimize_indices(spark=False)
        case "merge":
            names = [index.name for index in ds.describe_indices()]
            merge_segments(ds, names)
        case "drop":
            ds.drop_index("id_idx")
        case "vacuum":
            ds.vacuum(timedelta(0))


# Each writer, and the kind of the index that exists before it runs.
WRITERS = [
    *(("build", None), ("build HASH", None), ("build", "BLOOMFILTER"), ("optimize", "BLOOMFILTER")),
    *(("optimize", "HASH"), ("merge", "BLOOMFILTER"), ("merge", "HASH"), ("drop", "BLOOMFILTER")),
    *(("vacuum", "BLOOMFILTER"), ("vacuum", "HASH")),
]


def before_writer(ds: zb.Dataset, operation: str) -> None:
    """Prepare an index so that a writer has work to do."""
    if operation == "vacuum":
        ds.optimize.optimize_indices(spark=False)
        ds.drop_index("name_idx")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress warnings about stale or damaged indices."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", zb.errors.ZoneBloomWarning)
        yield


def copied(source: Path, target: Path) -> Path:
    """Replace a folder by a copy of a data folder, with its index and the times of its files."""
    for path in (target, index_folder(target)):
        for root, folders, _ in os.walk(path):
            for folder in folders:
                os.chmod(os.path.join(root, folder), 0o755)
        if path.exists():
            shutil.rmtree(path)
    return copy_dataset(source, target)


def validate_all(ds: zb.Dataset) -> None:
    """Compare every index with the data."""
    for index in ds.describe_indices():
        ds.validate_index(index.name, sample="all")
