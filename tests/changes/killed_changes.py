"""Kill upserts and erasures at random moments, and complete them.

The killed process is forked from one that has imported all modules and has no threads.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import random
import shutil
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from support.changed_tables import KINDS, ChangedFolder, ChangedIceberg, ChangedTable
from support.snapshot_rows import in_order

import zonebloom as zb
from zonebloom.errors import ZoneBloomWarning

PRELOADED = ["changes.killed_changes", "zonebloom.facade.changing", "zonebloom.building.builder"]
MAX_SECONDS = 60
NUM_ROWS = 400


def make_change(folder: Path, table: ChangedTable, batch: pa.Table | None, erased: list) -> None:
    table.folder = folder
    # The files of the index were copied with the data, which gave them other times.
    warnings.simplefilter("ignore", ZoneBloomWarning)
    ds = zb.dataset(table.load(), **table.options)
    (folder / "ready").touch()
    if batch is None:
        ds.erase("name", erased)
    else:
        ds.upsert(batch, on="id")
    (folder / "done").touch()


def _make_pickled(folder: str, arguments: bytes) -> None:
    make_change(Path(folder), *pickle.loads(arguments))


def run_killed_change(kind: str, rng: random.Random, folder: Path, num_kills: int) -> Iterator[str]:
    """Kill one change ``num_kills`` times. Yield whether each table was old, new or between."""
    context = multiprocessing.get_context("forkserver")
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    context.set_forkserver_preload(PRELOADED)
    # The location of an Iceberg table is absolute, so it is killed where it was made.
    work, saved = folder / "work", folder / "saved"
    work.mkdir()
    table = KINDS[kind](rng, work, is_partitioned=rng.random() < 0.5)
    for _ in range(4):
        table.append(table.new_rows(NUM_ROWS // 4))
    ds = zb.dataset(table.load(), **table.options)
    ds.create_scalar_index(["id", "name"], "HASH", spark=False)
    changed = [{**table.row(row["id"])} for row in rng.sample(table.rows, 40)]
    new_rows = [*changed, *table.new_rows(40)]
    erased = [row["name"] for row in rng.sample(table.rows, 10)]
    is_erasure = rng.random() < 0.5
    old = in_order(table.rows)
    if is_erasure:
        new = in_order([row for row in table.rows if row["name"] not in erased])
    else:
        by_id = {row["id"]: row for row in [*table.rows, *new_rows]}
        new = in_order(list(by_id.values()))
    change = None if is_erasure else table.table(new_rows), erased
    arguments = pickle.dumps((table, *change))
    shutil.copytree(work, saved)
    seconds = None
    for number in range(num_kills + 1):
        shutil.rmtree(work)
        shutil.copytree(saved, work)
        # The first run is not killed, and says how long a change takes.
        delay = None if seconds is None else rng.uniform(0, seconds)
        child = context.Process(target=_make_pickled, args=(str(work), arguments))
        child.start()
        seconds = _wait_and_kill(child, work, delay, seconds)
        rows = in_order(table.read())
        outcome = "old" if rows == old else "new" if rows == new else "between"
        if number == 0:
            assert outcome == "new", "the change that was not killed"
            continue
        if not isinstance(table, ChangedFolder):
            assert outcome != "between", f"{kind}, killed after {delay} s"
        # The same change completes the one that was killed, and clean-ups find what it left.
        make_change(work, table, *change)
        assert in_order(table.read()) == new
        ds = zb.dataset(table.load(), **table.options)
        assert in_order(ds.to_table()) == new
        ids = [row["id"] for row in new_rows]
        wanted = sorted(id for id in ids if f"('id', {id})" in "".join(new))
        assert sorted(ds.lookup("id", ids)["id"].to_pylist()) == wanted
        left = leftovers(table)
        assert not left, left
        yield outcome


def _wait_and_kill(child: Any, folder: Path, delay: float | None, seconds: float | None) -> float:
    """Wait until a change begins, kill it after a delay, and return the time of a whole change."""
    while not (folder / "ready").exists() and child.is_alive():
        time.sleep(0.001)
    start = time.perf_counter()
    if delay is not None:
        time.sleep(delay)
        child.kill()
    child.join(MAX_SECONDS)
    if seconds is not None:
        return seconds
    assert child.exitcode == 0
    return time.perf_counter() - start


def leftovers(table: ChangedTable) -> list[str]:
    """Return the data files that neither the table names nor its clean-up removes."""
    if isinstance(table, ChangedFolder):
        paths = [str(path) for path in table.path.rglob("*") if path.is_file()]
        named = zb.dataset(table.load(), **table.options).files
        hidden = [path for path in paths if Path(path).name.startswith(".zonebloom-")]
        return sorted({*paths} - {*named} - {*hidden})
    if isinstance(table, ChangedIceberg):
        # pyiceberg has no clean-up of files without an owner. They lie in the folder of the data.
        return []
    delta = table.load()
    delta.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    paths = [path for path in Path(delta.table_uri.removeprefix("file://")).rglob("*.parquet")]
    named = {Path(uri.removeprefix("file://")).name for uri in delta.file_uris()}
    return [str(path) for path in paths if path.name not in named and "_delta_log" not in str(path)]
