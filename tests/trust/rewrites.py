"""Write files in place while a lookup reads their rows.

Each answer holds rows of one version of each file, every wanted one once, or is `FragmentChanged`.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from e2e_helpers import ShortReads
from trust.report import Report
from trust.small import quiet

import zonebloom as zb
from zonebloom.errors import FragmentChanged

FILES = 2
ROWS = 1200
ROUNDS = 4
FORMATS = ("parquet", "ipc")


def content(format: str, number: int, version: int, options: dict[str, Any]) -> bytes:
    """Return a file's bytes. Its versions have the same size and the same ids in another order."""
    ids = [number * ROWS + (row * 7 + version * 431) % ROWS for row in range(ROWS)]
    table = pa.table({"id": ids, "version": [version] * ROWS, "file": [number] * ROWS})
    sink = pa.BufferOutputStream()
    if format == "parquet":
        pq.write_table(table, sink, compression="none", use_dictionary=False, **options)
    else:
        with pa.ipc.new_file(sink, table.schema) as file:
            file.write_table(table, max_chunksize=options["row_group_size"])
    return sink.getvalue().to_pybytes()


class Writer:
    """A hook that writes a file in place at the n-th read that the store answers."""

    def __init__(self) -> None:
        self.count = 0
        self.write_at_read = -1
        self.write: Callable[[], object] = lambda: None

    def __call__(self, offset: int, num_bytes: int) -> int:
        self.count += 1
        if self.count == self.write_at_read:
            self.write()
        return num_bytes


def answers(ds: zb.Dataset, keys: list[int]) -> dict[str, Callable[[], list[dict[str, Any]]]]:
    """Return functions that read the rows of some keys in different ways."""
    text = f"id IN ({', '.join(map(str, keys))})"
    return {
        "to_table": lambda: ds.to_table(filter=text).to_pylist(),
        "to_batches": lambda: [
            row for batch in ds.to_batches(filter=text) for row in batch.to_pylist()
        ],
        "lookup": lambda: ds.lookup("id", keys).to_pylist(),
        "to_polars": lambda: ds.to_polars().filter(pl.col("id").is_in(keys)).collect().to_dicts(),
    }


def run_case(report: Report, number: int, folder: Path) -> None:
    """Repeat lookups, and write one file at a random moment of each."""
    rng = report.begin(number)
    format = FORMATS[number % len(FORMATS)]
    options = {
        "row_group_size": rng.choice([100, 300, ROWS]),
        **({"write_page_index": True, "max_rows_per_page": 50} if rng.random() < 0.5 else {}),
    }
    writer = Writer()
    data = folder / "data"
    data.mkdir(parents=True)
    paths = [data / f"{number}.{format}" for number in range(FILES)]
    files = ShortReads(writer).wrapped()
    with quiet():
        for turn in range(ROUNDS):
            for file_number, path in enumerate(paths):
                path.write_bytes(content(format, file_number, 0, options))
                # Give the file an old time, so that any later write changes it.
                os.utime(path, ns=(10**18 + turn, 10**18 + turn))
            ds = zb.dataset(str(data), format, filesystem=files)
            ds.create_scalar_index("id", spark=False, number_of_items=20)
            problem = _ask(report, rng, writer, ds, paths, format, options)
            if problem is not None:
                report.fail(f"{format}, {options}: {problem}")
                return


def _ask(
    report: Report,
    rng: random.Random,
    writer: Writer,
    ds: zb.Dataset,
    paths: list[Path],
    format: str,
    options: dict[str, Any],
) -> str | None:
    keys = sorted(rng.sample(range(FILES * ROWS), 6))
    method = rng.choice(["to_table", "to_batches", "lookup", "to_polars"])
    number = rng.randrange(FILES)
    new = content(format, number, 1, options)

    def write() -> None:
        with paths[number].open("r+b") as file:
            file.write(new)

    ask = answers(ds, keys)[method]
    writer.count, writer.write_at_read, writer.write = 0, -1, write
    ask()
    moment = rng.randrange(1, writer.count + 2)
    writer.count, writer.write_at_read = 0, moment
    report.tried[f"{method} of {format} while it is written"] += 1
    try:
        rows = ask()
    except FragmentChanged:
        report.refused["a file that changed while it was read"] += 1
        return None
    finally:
        writer.write_at_read = -1
    if sorted(row["id"] for row in rows) != keys:
        return f"{method} at read {moment}: {sorted(row['id'] for row in rows)}, not {keys}"
    versions = {(row["file"], row["version"]) for row in rows}
    if len(versions) != len({file for file, _ in versions}):
        return f"{method} at read {moment} mixes versions: {versions}"
    return None
