"""Run checks that need a Spark session of their own, because a process has one session at a time.

The functions ``check_*`` of a test file run in their order, in one process with one session. They
are one test. As several tests, each process of a parallel run would start a session of its own.
"""

from __future__ import annotations

import inspect
import json
import os
import shutil
import subprocess
import sys
import time
import traceback
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
from support.helpers import index_folder

import zonebloom as zb
from zonebloom.errors import EngineError

ROOT = Path(__file__).parents[2]
_RESULTS = "results.json"


def _names(namespace) -> list[str]:
    return [name for name in namespace if name.startswith("check_")]


def run(script: str, folder: Path, **environment: str) -> None:
    """Run the checks of a script in a process of its own, and fail with what failed there."""
    paths = [str(ROOT), str(ROOT / "tests")]
    variables = {key: value for key, value in os.environ.items() if not key.startswith("PYSPARK_")}
    variables |= {"PYTHONPATH": os.pathsep.join(paths), **environment}
    process = subprocess.run(
        [sys.executable, script, str(folder)],
        env=variables,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=1000,
        check=False,
        cwd=folder,
    )
    print(process.stdout)
    path = folder / _RESULTS
    errors = json.loads(path.read_text()) if path.exists() else {}
    failed = {name: text for name, text in errors.items() if text}
    last = "\n".join((process.stdout + process.stderr).splitlines()[-60:])
    assert not failed, "\n".join(f"{name}: {text}" for name, text in failed.items())
    assert process.returncode == 0, f"exit code {process.returncode}\n{last}"
    assert errors, f"no check ran\n{last}"


def main(namespace, start, stop) -> None:
    """Run the checks of a script with what ``start(folder)`` makes, until one fails to run."""
    folder = Path(sys.argv[1])
    errors: dict[str, str] = dict.fromkeys(_names(namespace), "did not run")
    begun = time.perf_counter()
    session = start(folder)
    print(f"start: {time.perf_counter() - begun:.1f} s")
    try:
        for name in errors:
            begun = time.perf_counter()
            own = folder / name
            own.mkdir()
            fixtures = [session, own][: len(inspect.signature(namespace[name]).parameters)]
            try:
                namespace[name](*fixtures)
                errors[name] = ""
            except BaseException:  # noqa: BLE001 - the test that waits for it says what it was
                errors[name] = traceback.format_exc()
            print(f"{name}: {time.perf_counter() - begun:.1f} s", flush=True)
            (folder / _RESULTS).write_text(json.dumps(errors))
    finally:
        stop(session)


def run_without_zonebloom(script: str, folder: Path, cache: Path) -> None:
    """Run checks with executors that lack the package, and with a cache for the sent package."""
    python = python_without_zonebloom(folder)
    run(script, folder, PYSPARK_PYTHON=python, XDG_CACHE_HOME=str(cache))


def python_without_zonebloom(folder: Path) -> str:
    """Return a Python environment that has every package of this one except zonebloom."""
    packages = folder / "packages"
    packages.mkdir()
    for path in map(Path, sys.path):
        if path.name not in ("site-packages", "dist-packages") or not path.is_dir():
            continue
        for entry in path.iterdir():
            is_ours = entry.name.startswith("zonebloom")
            link = packages / entry.name
            if not is_ours and entry.suffix != ".pth" and not link.exists():
                link.symlink_to(entry)
    command = folder / "python"
    # No site-packages, in which a .pth may lead to ours (-S), and not the folder it starts in (-P).
    command.write_text(f'#!/bin/sh\nPYTHONPATH={packages} exec {sys.executable} -S -P "$@"\n')
    command.chmod(0o755)
    return str(command)


def write_lake(folder: Path, files: int = 3, rows: int = 30_000) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(files):
        random = np.random.default_rng(number)
        names = [None if i % 7 == 0 else f"name {i}" for i in random.integers(0, rows, rows)]
        columns = {"id": random.integers(0, 2**40, rows), "name": names}
        pq.write_table(pa.table(columns), folder / f"{number}.parquet", row_group_size=11_000)


def segments(index: Path) -> list[tuple[str, bytes]]:
    """Return the contents of all segment files. Their names differ between builds."""
    paths = (index / "segments").rglob("*.arrow")
    return sorted((path.name, path.read_bytes()) for path in paths)


def some_id(lake: Path) -> int:
    return pq.read_table(lake / "1.parquet", columns=["id"])["id"][5_000].as_py()


def rows_of(frame) -> list[tuple]:
    return sorted(tuple(row) for row in frame.collect())


def rows_in(lake: Path, **wanted) -> list[tuple]:
    """Return the rows with these values, by a full scan of PyArrow."""
    table = pads.dataset(lake, format="parquet", exclude_invalid_files=True).to_table()
    rows = (row for row in table.to_pylist() if all(row[k] == v for k, v in wanted.items()))
    return sorted(tuple(row.values()) for row in rows)


# Checks that are the same of every session


def check_without_the_package(spark, folder):
    write_lake(folder / "lake", files=1)
    dataset = zb.dataset(folder / "lake")
    with pytest.raises(EngineError, match=rf"Executors need zonebloom {zb.__version__}") as raised:
        dataset.create_scalar_index("id", spark=spark)
    assert "No module named 'zonebloom'" in str(raised.value.__cause__)
    assert not index_folder(folder / "lake").exists()


def check_it_was_sent_the_package(spark, folder):
    """Send the package to the executors, as the documentation says."""
    archive = shutil.make_archive(str(folder / "zonebloom"), "zip", ROOT, "zonebloom")
    spark.addArtifacts(archive, pyfile=True)
    write_lake(folder / "lake", files=1)
    zb.dataset(folder / "lake").create_scalar_index("id", spark=spark)
    assert zb.dataset(folder / "lake").opened.indices


def check_same_bytes_as_in_process(spark, folder, more_indices=()):
    lake = folder / "lake"
    write_lake(lake)
    written = []
    for engine in (spark, False):
        index_dir = folder / f"index-{len(written)}"
        dataset = zb.dataset(lake, index_dir=str(index_dir))
        dataset.create_scalar_index(["id", "name"], global_filter=True, spark=engine)
        for options in more_indices:
            dataset.create_scalar_index(**options, spark=engine)
        written.append(segments(index_dir))
    assert written[0] == written[1]
    assert len(written[0]) >= 6


def check_refresh_and_scan(spark, folder):
    lake = folder / "lake"
    write_lake(lake, files=2)
    zb.dataset(lake).create_scalar_index("id", spark=spark)
    write_lake(lake, files=4)
    (lake / "0.parquet").unlink()
    (refreshed,) = zb.dataset(lake).optimize.optimize_indices(spark=spark)
    # A rebuilt file has the same bytes.
    assert (refreshed.fragments_added, refreshed.fragments_dropped) == (2, 1)
    wanted = some_id(lake)
    filter = f"id = {wanted} AND name IS NOT NULL OR id = -1"
    expected = [row for row in rows_in(lake, id=wanted) if row[1] is not None]
    assert rows_of(zb.spark.scan(spark, lake, filter)) == expected
    names = zb.spark.scan(spark, lake, f"id = {wanted}", columns=["name"])
    assert names.columns == ["name"]
    assert rows_of(names) == [(name,) for _, name in rows_in(lake, id=wanted)]
    assert zb.spark.scan(spark, lake).count() == 3 * 30_000
    plan = zb.spark.explain(zb.spark.scan(spark, lake, f"id = {wanted}")).scans[0]
    (part, *_) = plan.fragments
    assert part.rows is not None and 0 < len(part.rows) < 30_000
