"""Measure a whole build, compared with pylance on its own format and with reading the column."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest

import zonebloom as zb


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
