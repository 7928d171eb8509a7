"""Measure new processes: one lookup without the page cache, and how long programs take to start.

``python -m bench.cold FOLDER COMPETITOR KEY`` drops the files of a data set from the page cache,
looks up a key, and prints the measurements as JSON. Imports are timed separately, because a service
imports once, and the time of that says nothing about an index.

``python -m bench.cold`` prints the CPU time of short programs as JSON: imports, and a lookup in
small cached files, where starting takes longer than looking up.

``python -m bench.cold fresh`` writes 5 million rows, and measures how long new processes take to
find one: the command and DuckDB from start to end, and the first lookup in Python after the
imports. The files are in the page cache.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.processes import run_module


@dataclass(frozen=True, slots=True)
class FirstLookup:
    """The time and memory of the first lookup of a process.

    Attributes
    ----------
    import_seconds : float
        Time to import the packages.
    seconds : float
        Time from opening the data set until the rows are there.
    storage_bytes : int or None
        Bytes read from the disk, including readahead; None if the system does not report them.
    peak_bytes : int
        Peak memory of the process.
    rows : int
        Number of rows found.
    """

    import_seconds: float
    seconds: float
    storage_bytes: int | None
    peak_bytes: int
    rows: int


# Programs by their names. The argument is a folder with an indexed column ``id``.
STARTS = {
    "import pyarrow": "import pyarrow",
    "import pyarrow's modules": "import pyarrow, pyarrow.compute, pyarrow.fs",
    "import pyarrow.dataset": "import pyarrow.dataset",
    "import zonebloom": "import zonebloom",
    "zonebloom.Dataset": "import zonebloom; zonebloom.Dataset",
    "filter": "import sys, zonebloom; zonebloom.dataset(sys.argv[1]).to_table(filter='id = 31000')",
    "lookup": "import sys, zonebloom; zonebloom.dataset(sys.argv[1]).lookup('id', [31000])",
    "command": (
        "import sys; from zonebloom.cli.main import main;"
        "main(['lookup', sys.argv[1], 'id = 31000', '--output', 'json'])"
    ),
}


# Programs that find a row of 5 million in a new process. The arguments are the folder and the key.
COMMAND = (
    "import sys; from zonebloom.cli.__main__ import main; folder, key = sys.argv[1:];"
    "sys.argv[1:] = ['lookup', folder, '--key', f'id={key}']; sys.exit(main())"
)
DUCKDB = (
    "import sys, duckdb; folder, key = sys.argv[1:];"
    "duckdb.sql(f\"select * from '{folder}/*.parquet' where id = {key}\").fetchall()"
)
# Prints the seconds until the dataset is open, and until the row is there.
FIRST_LOOKUP = """
import sys, time
from zonebloom import Dataset, dataset

folder, key = sys.argv[1], int(sys.argv[2])
start = time.perf_counter()
ds = dataset(folder)
opened = time.perf_counter()
assert ds.lookup("id", [key]).num_rows == 1
print(opened - start, time.perf_counter() - start)
"""


@dataclass(frozen=True, slots=True)
class FreshTimes:
    """The least times of new processes that look up one key, in seconds.

    Attributes
    ----------
    command_seconds, duckdb_seconds : float
        Time of a process from start to end.
    command_cpu_seconds, duckdb_cpu_seconds : float
        Processor time of the same.
    open_seconds : float
        Time to open the dataset in Python, after the imports.
    lookup_seconds : float
        Time to open it and to find the row.
    """

    command_seconds: float
    command_cpu_seconds: float
    duckdb_seconds: float
    duckdb_cpu_seconds: float
    open_seconds: float
    lookup_seconds: float


def fresh_times(
    rows: int = 5_000_000, rounds: int = 9, root: Path | None = None
) -> dict[str, FreshTimes]:
    """Return the times for files as pyarrow writes them by default, and for files with small pages.

    The files are written into a temporary folder, which is made in ``root`` if it is given.
    """
    with tempfile.TemporaryDirectory(dir=root) as folder:
        keys = _write_large_files(folder, rows)
        return {
            layout: _fresh_times(f"{folder}/{layout}", keys, rounds)
            for layout in ("default", "recommended")
        }


def _fresh_times(folder: str, keys: list[int], rounds: int) -> FreshTimes:
    times: dict[str, list[tuple[float, float]]] = {COMMAND: [], DUCKDB: []}
    in_python: list[tuple[float, float]] = []
    for number in range(rounds + 1):
        key = keys[number % len(keys)]
        for program, measured in times.items():
            start, before = time.perf_counter(), _child_seconds()
            _run_program(program, folder, key)
            measured.append((time.perf_counter() - start, _child_seconds() - before))
        open_seconds, seconds = map(float, _run_program(FIRST_LOOKUP, folder, key).split())
        in_python.append((open_seconds, seconds))
    # The first round may compile bytecode.
    (command, command_cpu), (duckdb, duckdb_cpu), (opening, lookup) = (
        [round(min(values), 4) for values in zip(*measured[1:], strict=True)]
        for measured in (*times.values(), in_python)
    )
    return FreshTimes(command, command_cpu, duckdb, duckdb_cpu, opening, lookup)


def _run_program(program: str, folder: str, key: int) -> str:
    process = subprocess.run(
        [sys.executable, "-c", program, folder, str(key)],
        check=True,
        capture_output=True,
        text=True,
    )
    return process.stdout


def _write_large_files(root: str, rows: int) -> list[int]:
    """Write five files of random keys and other columns. Return some keys."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    import zonebloom as zb

    random = np.random.default_rng(9)
    keys = random.permutation(rows) * 7919
    os.mkdir(f"{root}/default")
    for number, ids in enumerate(np.array_split(keys, 5)):
        table = pa.table(
            {
                "id": ids,
                "value": random.random(ids.size),
                "day": random.integers(0, 365, ids.size).astype(np.int32),
                "name": [f"customer {key % 100_000}" for key in ids.tolist()],
            }
        )
        pq.write_table(table, f"{root}/default/{number}.parquet")
    os.mkdir(f"{root}/recommended")
    for name in os.listdir(f"{root}/default"):
        pq.write_table(
            pq.read_table(f"{root}/default/{name}"),
            f"{root}/recommended/{name}",
            write_page_index=True,
            max_rows_per_page=2048,
            use_dictionary=["day", "name"],
        )
    for layout in ("default", "recommended"):
        zb.dataset(f"{root}/{layout}").create_scalar_index("id", spark=False)
    return keys[:: max(1, rows // 20)].tolist()


def start_times(rounds: int = 20) -> dict[str, float]:
    """Return the least CPU time of each program of `STARTS`, in seconds.

    The programs take turns, so that the load of the machine is the same for all. The times include
    that of the interpreter.
    """
    times: dict[str, list[float]] = {name: [] for name in STARTS}
    with tempfile.TemporaryDirectory() as root:
        folder = f"{root}/data"
        _write_indexed_files(folder)
        for _ in range(rounds + 1):
            for name, program in STARTS.items():
                before = _child_seconds()
                subprocess.run(
                    [sys.executable, "-c", program, folder], check=True, capture_output=True
                )
                times[name].append(_child_seconds() - before)
    # The first round may compile bytecode.
    return {name: round(min(seconds[1:]), 4) for name, seconds in times.items()}


def _child_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _write_indexed_files(folder: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    import zonebloom as zb

    os.mkdir(folder)
    for number in range(4):
        ids = range(number * 20_000, (number + 1) * 20_000)
        table = pa.table({"id": ids, "name": [f"n{i}" for i in ids]})
        pq.write_table(table, f"{folder}/{number}.parquet", row_group_size=10_000)
    zb.dataset(folder).create_scalar_index("id", spark=False)


def drop_from_cache(paths: Iterable[Path]) -> None:
    """Ask the system to drop the pages of files. Pages that a process maps stay."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            # The system drops only pages that are already on disk.
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def bytes_read() -> tuple[int, int] | None:
    """Return the bytes that this process read from storage, and by read calls, or None."""
    try:
        text = Path("/proc/self/io").read_text(encoding="ascii")
    except OSError:
        return None
    counts = dict(line.split(": ") for line in text.splitlines())
    return int(counts["read_bytes"]), int(counts["rchar"])


def peak_bytes() -> int:
    """Return the peak memory of this process."""
    status = Path("/proc/self/status")
    if status.exists():
        # The peak that getrusage reports starts with that of the parent process.
        lines = status.read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def first_lookup(folder: Path, competitor: str, key: Any) -> FirstLookup:
    """Look up a key in a new process."""
    return FirstLookup(**run_module("bench.cold", str(folder), competitor, json.dumps(key)))


def main(folder: str, name: str, key: str) -> None:
    """Look up a key in this process, and print the measurements."""
    start = time.perf_counter()
    from bench.competitors import BY_NAME
    from bench.data import DataSet

    competitor = BY_NAME[name](DataSet.load(Path(folder)))
    importlib.import_module(competitor.package)
    import_seconds = time.perf_counter() - start
    drop_from_cache(competitor.paths())

    keys = [json.loads(key)]
    before = bytes_read()
    start = time.perf_counter()
    competitor.open()
    rows = competitor.lookup(keys)
    seconds = time.perf_counter() - start
    after = bytes_read()
    result = FirstLookup(
        import_seconds=import_seconds,
        seconds=seconds,
        storage_bytes=after[0] - before[0] if after and before else None,
        peak_bytes=peak_bytes(),
        rows=rows.num_rows,
    )
    print(json.dumps(asdict(result)))


if __name__ == "__main__":
    if sys.argv[1:] == ["fresh"]:
        fresh = {layout: asdict(times) for layout, times in fresh_times().items()}
        print(json.dumps(fresh, indent=2))
    elif len(sys.argv) > 1:
        main(*sys.argv[1:])
    else:
        print(json.dumps(start_times(), indent=2))
