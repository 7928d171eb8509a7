"""Measure a whole build, compared with pylance on its own format and with reading the column."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest

import zonebloom as zb
from bench.data import DATA_FOLDER

_NUM_SMALL_FILES = 10_000


@pytest.fixture(scope="session")
def lance_lake(lake: Path):
    """Write the same rows in Lance's format, and return the dataset."""
    import lance

    folder = lake / "_lance"
    if not folder.exists():
        reader = pads.dataset(lake, format="parquet").scanner().to_reader()
        lance.write_dataset(reader, folder, max_rows_per_file=reader_rows(lake))
    return lance.dataset(folder)


def reader_rows(lake: Path) -> int:
    return max(pq.ParquetFile(file).metadata.num_rows for file in lake.glob("*.parquet"))


def read_column(lake: Path, column: str) -> None:
    """Decode a column batch by batch in two threads, each with half of the files."""

    def read(file: Path) -> None:
        for _ in pq.ParquetFile(file).iter_batches(1 << 17, columns=[column], use_threads=False):
            pass

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(read, sorted(lake.glob("*.parquet"))))


@pytest.mark.parametrize("column", ["id", "uuid"])
def test_build_in_process(versus, lake, lance_lake, tmp_path, column):
    dataset = zb.dataset(lake, index_dir=str(tmp_path / "index"))

    def ours() -> None:
        dataset.create_scalar_index(column, spark=False)

    versus(
        ours,
        {
            "pylance": lambda: lance_lake.create_scalar_index(column, "BLOOMFILTER", replace=True),
            "pyarrow reading the column": lambda: read_column(lake, column),
        },
        rounds=7,
    )


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


@pytest.mark.parametrize("column", ["id", "uuid"])
def test_build_hash_in_process(versus, lake, lance_lake, tmp_path, column):
    """Compare the hash index with the other kind, and with Lance's filters and B-tree."""
    dataset = zb.dataset(lake, index_dir=str(tmp_path / "index"))

    def build(kind: str) -> None:
        dataset.create_scalar_index(column, kind, name=kind, spark=False)

    def build_lance(kind: Literal["BLOOMFILTER", "BTREE"]) -> None:
        lance_lake.create_scalar_index(column, kind, replace=True)

    versus(
        lambda: build("HASH"),
        {
            "BLOOMFILTER": lambda: build("BLOOMFILTER"),
            "pylance BLOOMFILTER": lambda: build_lance("BLOOMFILTER"),
            "pylance BTREE": lambda: build_lance("BTREE"),
        },
        rounds=3,
        in_turn=True,
    )
