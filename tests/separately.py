"""Checks that need a Spark session of their own: a process runs one session at a time.

A test file's functions ``check_*`` run in their order in one process with one session, and each
is a test.
"""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

from filelock import FileLock

ROOT = Path(__file__).parents[1]
RESULTS = "results.json"


def connect_server() -> FileLock:
    """Held while a Connect server runs: each listens at one and the same port."""
    return FileLock(Path(tempfile.gettempdir()) / "zonebloom-tests-connect.lock")


def names_of(namespace) -> list[str]:
    return [name for name in namespace if name.startswith("check_")]


def run(script: str, folder: Path, **environment: str) -> dict[str, str]:
    """What each check of a script said, "" when nothing; and how long each took in ``seconds``."""
    paths = [str(ROOT), str(ROOT / "tests")]
    given = {key: value for key, value in os.environ.items() if not key.startswith("PYSPARK_")}
    given |= {"PYTHONPATH": os.pathsep.join(paths), **environment}
    done = subprocess.run(
        [sys.executable, script, str(folder)],
        env=given,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=500,
        check=False,
        cwd=folder,
    )
    path = folder / RESULTS
    said = json.loads(path.read_text()) if path.exists() else {}
    lines = (done.stdout + done.stderr).splitlines()[-60:]
    return {"otherwise": f"exit code {done.returncode}\n" + "\n".join(lines), **said}


def main(namespace, start, stop) -> None:
    """Run the checks of a script with what ``start(folder)`` makes, until one fails to run."""
    folder = Path(sys.argv[1])
    said: dict[str, str] = {}
    seconds: dict[str, float] = {}
    begun = time.perf_counter()
    session = start(folder)
    seconds["start"] = time.perf_counter() - begun
    try:
        for name in names_of(namespace):
            begun = time.perf_counter()
            own = folder / name
            own.mkdir()
            given = [session, own][: len(inspect.signature(namespace[name]).parameters)]
            try:
                namespace[name](*given)
                said[name] = ""
            except BaseException:  # noqa: BLE001 - the test that waits for it says what it was
                said[name] = traceback.format_exc()
            seconds[name] = time.perf_counter() - begun
            print(f"{name}: {seconds[name]:.1f} s {said[name]}", flush=True)
            (folder / RESULTS).write_text(json.dumps({**said, "seconds": json.dumps(seconds)}))
    finally:
        stop(session)


def python_without_zonebloom(folder: Path) -> str:
    """A Python with every package of this one but ours."""
    packages = folder / "packages"
    packages.mkdir()
    for path in map(Path, sys.path):
        if path.name not in ("site-packages", "dist-packages") or not path.is_dir():
            continue
        for entry in path.iterdir():
            is_ours = entry.name.startswith(("zonebloom", "pyspark_zonebloom"))
            link = packages / entry.name
            if not is_ours and entry.suffix != ".pth" and not link.exists():
                link.symlink_to(entry)
    command = folder / "python"
    # No site-packages, in which a .pth may lead to ours (-S), and not the folder it starts in (-P).
    command.write_text(f'#!/bin/sh\nPYTHONPATH={packages} exec {sys.executable} -S -P "$@"\n')
    command.chmod(0o755)
    return str(command)


def write_lake(folder: Path, files: int = 3, rows: int = 30_000) -> None:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(parents=True, exist_ok=True)
    for number in range(files):
        random = np.random.default_rng(number)
        names = [None if i % 7 == 0 else f"name {i}" for i in random.integers(0, rows, rows)]
        columns = {"id": random.integers(0, 2**40, rows), "name": names}
        pq.write_table(pa.table(columns), folder / f"{number}.parquet", row_group_size=11_000)


def segments(index: Path) -> list[tuple[str, bytes]]:
    """Every file of the segments of an index, by its contents: names are new for each build."""
    found = (index / "segments").rglob("*.arrow")
    return sorted((path.name, path.read_bytes()) for path in found)


def some_id(lake: Path) -> int:
    import pyarrow.parquet as pq

    return pq.read_table(lake / "1.parquet", columns=["id"])["id"][5_000].as_py()


def rows_of(found) -> list[tuple]:
    return sorted(tuple(row) for row in found.collect())


def rows_in(lake: Path, **wanted) -> list[tuple]:
    """The rows with these values, by PyArrow's read of all of them."""
    import pyarrow.dataset as pads

    table = pads.dataset(lake, format="parquet", exclude_invalid_files=True).to_table()
    rows = (row for row in table.to_pylist() if all(row[k] == v for k, v in wanted.items()))
    return sorted(tuple(row.values()) for row in rows)
