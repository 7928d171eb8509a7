"""Measure a build over many small files, compared with reading the column of each."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import zonebloom as zb
from bench.data import DATA_FOLDER

_NUM_SMALL_FILES = 10_000


@pytest.fixture(scope="session")
def small_files() -> Path:
    """Write 10,000 files of 200 rows: int64 id, float64, int64."""
    folder = DATA_FOLDER / "small-files"
    if not (folder / "_done").exists():
        folder.mkdir(parents=True, exist_ok=True)
        random = np.random.default_rng(2)
        for number in range(_NUM_SMALL_FILES):
            columns = {
                "id": random.integers(-(2**63), 2**63 - 1, 200),
                "x": random.random(200),
                "y": random.integers(0, 1000, 200),
            }
            pq.write_table(pa.table(columns), folder / f"part-{number:05}.parquet")
        (folder / "_done").touch()
    return folder


def test_build_of_10_000_files_of_200_rows(versus, small_files, tmp_path):
    """Open and index many small files in this process, and read the column of each once."""
    paths = sorted(small_files.glob("*.parquet"))
    versions = itertools.count()

    def ours() -> None:
        index_dir = str(tmp_path / f"index-{next(versions)}")
        zb.dataset(small_files, index_dir=index_dir).create_scalar_index("id", spark=False)

    def read() -> None:
        for path in paths:
            pq.ParquetFile(path).read(columns=["id"])

    versus(ours, {"pyarrow reading the column of each file": read}, rounds=3)
