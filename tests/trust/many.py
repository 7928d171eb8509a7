"""Run processes that create, refresh, drop and vacuum indices while others add files and read.

Files are never deleted, so a reader must find the rows of all files that it has listed. Every
writer keeps a ledger of its commits. Each version must have the indices of the version before it
with the change of its writer, and the newest version must be the result of all changes.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import multiprocessing
import os
import random
import statistics
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
from trust.kill import PRELOADED
from trust.report import Report
from trust.small import ROWS, quiet, rows_of, table, validate_all

import zonebloom as zb
from zonebloom.errors import CommitConflict

if TYPE_CHECKING:
    from obstore.store import S3Store

SECONDS = 60.0
WRITERS = 4
READERS = 4
MOST_FILES = 40
STORES = ("local", "object store")
# The names and columns that writers compete for.
INDICES = {"id_idx": "id", "twin_idx": "twin", "name_idx": "name", "id_too": "id"}
# The limits for the growth of a process between the first third of a run and its end.
MOST_GROWTH = 24 << 20
MOST_MORE_OPEN = 4
# The fewest samples of a third. A run of a few seconds has fewer, and what its processes load once
# (the kernels take 25 MiB) would look like growth.
MIN_SAMPLES = 100


class Lake:
    """The place of the files: a local folder, or one that a server presents as a bucket."""

    def __init__(self, folder: Path, endpoint: str | None):
        self.folder, self.endpoint = folder, endpoint

    def opened(self) -> zb.Dataset:
        if self.endpoint is None:
            return zb.dataset(self.folder)
        return zb.dataset("data", filesystem=self._store)

    @functools.cached_property
    def _store(self) -> S3Store:
        from obstore.store import S3Store

        from bench.store_server import BUCKET

        # Each process has its own file system, with its own connections.
        return S3Store(
            BUCKET,
            endpoint=f"http://{self.endpoint}",
            access_key_id="test",
            secret_access_key="test",
            region="us-east-1",
            client_options={"allow_http": True},
        )

    def put(self, number: int) -> None:
        """Write a file that appears complete or not at all, as writers of tables do."""
        sink = io.BytesIO()
        pq.write_table(
            table(number), sink, write_page_index=True, max_rows_per_page=20, row_group_size=60
        )
        draft = self.folder.parent / f"draft-{number}"
        draft.write_bytes(sink.getvalue())
        os.replace(draft, self.folder / f"{number}.parquet")


class Worker:
    """The part of one process: it repeats its action until the time is over, and records it."""

    def __init__(self, lake: Lake, seed: str, until: float, notes: str):
        self.lake, self.until = lake, until
        self.rng = random.Random(seed)
        self.notes = notes
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []
        # Samples of the elapsed share of the time, the resident bytes, and the open files except
        # those of the index.
        self.held: list[tuple[float, int, int]] = []
        self.ledger: list[dict[str, Any]] = []

    def run(self) -> None:
        begun = time.time()
        try:
            with quiet():
                self.begin()
                while (now := time.time()) < self.until and len(self.failures) < 50:
                    try:
                        self.step()
                    except Exception:  # noqa: BLE001 - nothing else may come of it
                        self.failures.append(traceback.format_exc())
                    # Garbage that Python has not yet collected would look like growth.
                    share = (now - begun) / (self.until - begun)
                    memory, files = held_now()
                    self.held.append((share, memory, files - self.num_tables()))
        except Exception:  # noqa: BLE001 - nothing else may come of it
            self.failures.append(traceback.format_exc())
        noted = {name: getattr(self, name) for name in ("counts", "failures", "held", "ledger")}
        Path(self.notes).write_text(json.dumps(noted))

    def begin(self) -> None:
        self.ds = self.lake.opened()

    def step(self) -> None:
        raise NotImplementedError

    def num_tables(self) -> int:
        """Return how many tables of indices may be open, because builds leave varying numbers."""
        return 0


class Writer(Worker):
    def step(self) -> None:
        if self.rng.random() < 0.3:
            self.ds = self.lake.opened()
        deed = self.rng.choice(["create", "create", "refresh", "refresh", "drop", "vacuum"])
        try:
            getattr(self, deed)()
        except CommitConflict:
            self.counts[f"{deed}: told of a conflict"] += 1
            return
        self.counts[f"{deed}: done"] += 1

    def create(self) -> None:
        name = self.rng.choice(list(INDICES))
        kind = self.rng.choice(["BLOOMFILTER", "HASH"])
        self.ds.create_scalar_index(
            INDICES[name],
            kind,
            name=name,
            spark=False,
            number_of_items=20,
            probability=0.001,
        )
        self.note("create", [name])

    def refresh(self) -> None:
        done = self.ds.optimize.optimize_indices(spark=False)
        if changed := [result.name for result in done if result.changed]:
            self.note("refresh", changed)

    def drop(self) -> None:
        self.ds.refresh()
        # Keep one index, for readers to use and others to refresh.
        if names := [index.name for index in self.ds.describe_indices()][1:]:
            name = self.rng.choice(names)
            self.ds.drop_index(name)
            self.note("drop", [name])

    def vacuum(self) -> None:
        self.ds.vacuum(timedelta(seconds=self.rng.choice([0, 0, 2])))

    def note(self, deed: str, names: list[str]) -> None:
        noted = {"deed": deed, "names": names, "indices": indices_of(self.ds)}
        self.ledger.append({"version": self.ds.version, **noted})


class Reader(Worker):
    def step(self) -> None:
        match self.rng.randrange(10):
            case 0 | 1:
                self.ds = self.lake.opened()
            case 2 | 3:
                self.ds.refresh()
        numbers = [int(Path(path).stem) for path in self.ds.files]
        filter, wanted = self.question(numbers)
        found = sorted(self.ds.to_table(["row"], filter)["row"].to_pylist())
        used = "by an index" if self.ds.opened.version.indices else "without an index"
        self.counts[f"lookups {used}"] += 1
        if found != wanted:
            self.failures.append(
                f"{filter} of version {self.ds.version}, {len(numbers)} files: "
                f"{found[:9]}, not {wanted[:9]}"
            )

    def num_tables(self) -> int:
        indices = self.ds.opened.version.indices.values()
        return sum(len(entry.segments) for entry in indices)

    def question(self, numbers: list[int]) -> tuple[str, list[int]]:
        """Return a filter, and the rows that match it by plain Python."""
        number = self.rng.choice([*numbers, max(numbers) + 1])
        key = 10 * (number * ROWS + self.rng.randrange(ROWS)) + 5 * self.rng.randrange(2)
        name = f"n{self.rng.randrange(64)}"
        filter, test = self.rng.choice(
            [
                (f"id = {key}", lambda row: row["id"] == key),
                (f"twin = {key}", lambda row: row["twin"] == key),
                (f"id = {key} OR twin = {key}", lambda row: key in (row["id"], row["twin"])),
                (f"name = '{name}'", lambda row: row["name"] == name),
                ("name IS NULL", lambda row: row["name"] is None),
            ]
        )
        rows = (row for number in numbers for row in rows_of(number))
        return filter, sorted(row["row"] for row in rows if test(row))


class Appender(Worker):
    """Add one file after another, spread evenly over the time."""

    def begin(self) -> None:
        self.pause = max(0.0, self.until - time.time()) / MOST_FILES
        self.number = 2

    def step(self) -> None:
        self.lake.put(self.number)
        self.counts["files put"] += 1
        self.number += 1
        time.sleep(self.pause)


def indices_of(ds: zb.Dataset) -> dict[str, list[str]]:
    """Return what identifies the indices of a version: no two builds share a segment."""
    indices = ds.opened.version.indices
    return {name: sorted(indices[name].segment_names) for name in sorted(indices)}


def held_now() -> tuple[int, int]:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE"), len(os.listdir("/proc/self/fd"))


def growth(held: list[tuple[float, int, int]]) -> tuple[float, float]:
    """Return how much more a process holds in the last third of a run than in the second.

    Return zeros for a run that is too short to tell.
    """
    middle = [sample for sample in held if 1 / 3 <= sample[0] < 2 / 3]
    end = [sample for sample in held if sample[0] >= 2 / 3]
    if min(len(middle), len(end)) < MIN_SAMPLES:
        return 0, 0
    memory, files = (
        statistics.median(sample[place] for sample in end)
        - statistics.median(sample[place] for sample in middle)
        for place in (1, 2)
    )
    return memory, files


def lost_commits(ledger: list[dict[str, Any]], newest: dict[str, list[str]]) -> list[str]:
    """Return the inconsistencies in the ledger of all writers.

    A version that is in no ledger was deleted by its writer after a conflict.
    """
    problems = []
    now: dict[str, list[str]] = {}
    for commit in sorted(ledger, key=lambda commit: commit["version"]):
        names, indices = commit["names"], commit["indices"]
        for name in names:
            if commit["deed"] == "drop":
                now.pop(name, None)
            else:
                now[name] = indices.get(name, [])
        if now != indices:
            problems.append(
                f"version {commit['version']}, {commit['deed']} {names}: {indices}, {now}"
            )
            now = dict(indices)
    if now != newest:
        problems.append(f"the newest is {newest}, by the ledger {now}")
    numbers = Counter(commit["version"] for commit in ledger)
    return problems + [f"{count} made version {n}" for n, count in numbers.items() if count > 1]


@contextlib.contextmanager
def placed(kind: str, folder: Path) -> Iterator[Lake]:
    data = folder / ("bucket/data" if kind == "object store" else "data")
    data.mkdir(parents=True)
    if kind == "local":
        yield Lake(data, None)
        return
    from bench.store_server import serving

    with serving(folder / "bucket", 0) as server:
        yield Lake(data, server.endpoint)


def run_case(report: Report, number: int, folder: Path, seconds: float = SECONDS) -> None:
    """Run all processes at once for a while, on a local disk or an object store."""
    report.begin(number)
    kind = STORES[number % len(STORES)]
    with placed(kind, folder) as lake:
        for first in range(2):
            lake.put(first)
        begun = lake.opened()
        begun.create_scalar_index("id", name="id_idx", number_of_items=20, spark=False)
        ledger = [
            {"version": 1, "deed": "create", "names": ["id_idx"], "indices": indices_of(begun)}
        ]
        until = time.time() + seconds
        roles = [*[Writer] * WRITERS, *[Reader] * READERS, Appender]
        context = multiprocessing.get_context("forkserver")
        os.environ["PYTHONPATH"] = os.pathsep.join(folder for folder in sys.path if folder)
        context.set_forkserver_preload([*PRELOADED, "trust.many"])
        workers, processes = [], []
        for place, role in enumerate(roles):
            seed = f"{report.seed} {number} {place}"
            workers.append(role(lake, seed, until, str(folder / f"notes-{place}.json")))
            processes.append(context.Process(target=workers[-1].run))
            processes[-1].start()
        for process in processes:
            process.join()
        for worker, process in zip(workers, processes, strict=True):
            role = f"{kind}, {type(worker).__name__.lower()}"
            if process.exitcode != 0:
                report.fail(f"{role}: exit code {process.exitcode}")
                continue
            noted = json.loads(Path(worker.notes).read_text())
            for name, count in noted["counts"].items():
                report.tried[f"{kind}, {name}"] += count
            for text in noted["failures"]:
                report.fail(f"{role}: {text}")
            ledger += noted["ledger"]
            memory, files = growth(noted["held"])
            if isinstance(worker, Reader) and (memory > MOST_GROWTH or files > MOST_MORE_OPEN):
                report.fail(f"{role}: {memory / 2**20:.1f} MiB and {files} open files more")
        with quiet():
            ds = lake.opened()
            report.tried[f"{kind}, commits in the ledger"] += len(ledger)
            for problem in lost_commits(ledger, indices_of(ds)):
                report.fail(f"{kind}: {problem}")
            validate_all(ds)
            ds.vacuum(timedelta(0))
            validate_all(lake.opened())
