"""Refresh an index of many files with new ones, compared with building it again."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import zonebloom as zb
from bench.conftest import NOTES

# Small files as a stream writes them, and large files as a job writes them.
_SHAPES = {"10,000 files of 200 rows": (10_000, 200, 1), "1,000 of 20,000": (1000, 20_000, 10)}
_OPENED = """
import json, resource, sys, time
import zonebloom as zb
began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
zb.dataset(sys.argv[1], index_dir=sys.argv[2]).count_rows("id = 7")
seconds = time.perf_counter() - began
print(json.dumps([seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before]))
"""


def table(rows: int, seed: int) -> pa.Table:
    ids = np.random.default_rng(seed).integers(0, 1 << 60, rows)
    return pa.table({"id": ids, "x": np.arange(rows)})


@pytest.fixture(scope="session", params=_SHAPES)
def many_files(request: pytest.FixtureRequest) -> tuple[str, Path]:
    files, rows, _ = _SHAPES[request.param]
    folder = Path(tempfile.gettempdir()) / f"zonebloom-bench-files-{files}-{rows}"
    if not (folder / "_done").exists():
        folder.mkdir(exist_ok=True)
        for number in range(files):
            pq.write_table(table(rows, number), folder / f"part-{number:05d}.parquet")
        (folder / "_done").touch()
    return request.param, folder


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_refresh_with_new_files(versus, many_files, tmp_path):
    name, folder = many_files
    files, rows, added = _SHAPES[name]
    index, again = str(tmp_path / "index"), str(tmp_path / "again")
    zb.dataset(folder, index_dir=index).create_scalar_index("id", spark=False)
    whole = size_of(Path(index))
    rounds = 5
    written = [tmp_path / f"new-{number}.parquet" for number in range((rounds + 1) * added)]
    for number, path in enumerate(written):
        pq.write_table(table(rows, files + number), path)
    new: list[Path] = []

    def refresh() -> None:
        for path in written[len(new) : len(new) + added]:
            new.append(folder / path.name)
            shutil.move(path, new[-1])
        zb.dataset(folder, index_dir=index).optimize.optimize_indices(spark=False)

    def build() -> None:
        shutil.rmtree(again, ignore_errors=True)
        zb.dataset(folder, index_dir=again).create_scalar_index("id", spark=False)

    try:
        versus(refresh, {"building it again": build}, rounds)
        num_bytes = (size_of(Path(index)) - whole) * added // len(new)
        run = [sys.executable, "-c", _OPENED, str(folder), index]
        seconds, held = json.loads(subprocess.check_output(run))
        NOTES.append(
            f"{name}: a refresh with {added:,} more writes {num_bytes / whole:.1%} of the index; "
            f"opened and asked for a key in a fresh process in {seconds:.2f} s and "
            f"{held / 1024:.0f} MB."
        )
    finally:
        for path in new:
            path.unlink()
