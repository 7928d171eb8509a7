"""Refresh an index of many files with new ones, compared with building it again."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import zonebloom as zb
from bench.competitors import folder_bytes
from bench.conftest import NOTES
from bench.data import DATA_FOLDER

# A stream writes many small files, and a job writes fewer large ones. The numbers are the files,
# the rows of each, and the files that each round adds.
_SHAPES = {"10,000 files of 200 rows": (10_000, 200, 1), "1,000 of 20,000": (1000, 20_000, 10)}
_OPEN_SCRIPT = """
import json, resource, sys, time
import zonebloom as zb
start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
zb.dataset(sys.argv[1], index_dir=sys.argv[2]).count_rows("id = 7")
seconds = time.perf_counter() - start
print(json.dumps([seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before]))
"""


def table(rows: int, seed: int) -> pa.Table:
    ids = np.random.default_rng(seed).integers(0, 1 << 60, rows)
    return pa.table({"id": ids, "x": np.arange(rows)})


@pytest.fixture(scope="session", params=_SHAPES)
def many_files(request: pytest.FixtureRequest) -> tuple[str, Path]:
    files, rows, _ = _SHAPES[request.param]
    folder = DATA_FOLDER / f"files-{files}-{rows}"
    if not (folder / "_done").exists():
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(files):
            pq.write_table(table(rows, number), folder / f"part-{number:05d}.parquet")
        (folder / "_done").touch()
    return request.param, folder


def test_refresh_with_new_files(versus, many_files, tmp_path):
    name, folder = many_files
    files, rows, files_per_round = _SHAPES[name]
    index, rebuilt_index = str(tmp_path / "index"), str(tmp_path / "rebuilt")
    zb.dataset(folder, index_dir=index).create_scalar_index("id", spark=False)
    index_bytes = folder_bytes(Path(index))
    rounds = 5
    new_files = [
        tmp_path / f"new-{number}.parquet" for number in range((rounds + 1) * files_per_round)
    ]
    for number, path in enumerate(new_files):
        pq.write_table(table(rows, files + number), path)
    moved_files: list[Path] = []

    def refresh() -> None:
        for path in new_files[len(moved_files) : len(moved_files) + files_per_round]:
            moved_files.append(folder / path.name)
            shutil.move(path, moved_files[-1])
        zb.dataset(folder, index_dir=index).optimize.optimize_indices(spark=False)

    def build() -> None:
        shutil.rmtree(rebuilt_index, ignore_errors=True)
        zb.dataset(folder, index_dir=rebuilt_index).create_scalar_index("id", spark=False)

    try:
        versus(refresh, {"building it again": build}, rounds=rounds)
        num_bytes = (folder_bytes(Path(index)) - index_bytes) * files_per_round // len(moved_files)
        command = [sys.executable, "-c", _OPEN_SCRIPT, str(folder), index]
        seconds, peak_memory = json.loads(subprocess.check_output(command))
        NOTES.append(
            f"{name}: a refresh with {files_per_round:,} more writes "
            f"{num_bytes / index_bytes:.1%} of the index; a fresh process opens it and looks up a "
            f"key in {seconds:.2f} s and {peak_memory / 1024:.0f} MB."
        )
    finally:
        for path in moved_files:
            path.unlink()
