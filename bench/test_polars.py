"""Measure Polars queries over an indexed dataset, compared with a Polars scan of the same files."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow.dataset as pads
import pytest

import zonebloom as zb


@pytest.fixture(scope="module")
def indexed(paged: Path, tmp_path_factory: pytest.TempPathFactory):
    dataset = zb.dataset(paged, index_dir=str(tmp_path_factory.mktemp("index")))
    dataset.create_scalar_index("id", spark=False)
    return dataset


def theirs(paged: Path) -> pl.LazyFrame:
    return pl.scan_parquet(str(paged / "*.parquet"))


def test_one_key_in_polars(versus, indexed, paged, keys):
    """Create the scan once, as a service would, and run a query for each key."""
    ours, files, endless_keys = indexed.to_polars(), str(paged / "*.parquet"), itertools.cycle(keys)
    versus(
        lambda: ours.filter(pl.col("id") == next(endless_keys)).collect(),
        {
            "Polars": lambda: (
                pl.scan_parquet(files).filter(pl.col("id") == next(endless_keys)).collect()
            )
        },
        rounds=9,
    )


@pytest.mark.parametrize("column", ["x", "all"])
def test_a_filter_no_index_helps_in_polars(versus, indexed, paged, column):
    """An index that cannot help must not cost time."""

    def query(frame: pl.LazyFrame) -> pl.DataFrame:
        rows = frame.filter(pl.col("y") == 5)
        return (rows if column == "all" else rows.select(column)).collect()

    ours, other = indexed.to_polars(), theirs(paged)
    versus(lambda: query(ours), {"Polars": lambda: query(other)})


@pytest.mark.parametrize("zones", [25, 50, 100])
def test_keys_in_many_zones_in_polars(versus, indexed, paged, zones):
    """Look up keys that are in a percentage of the zones."""
    ids = pads.dataset(paged, format="parquet").to_table(columns=["id"])["id"]
    distant_ids = ids.take(np.arange(0, len(ids), 8192 * 100 // zones))
    keys = pl.Series(distant_ids.combine_chunks())
    ours, other = indexed.to_polars(), theirs(paged)
    versus(
        lambda: ours.filter(pl.col("id").is_in(keys.implode())).collect(),
        {"Polars": lambda: other.filter(pl.col("id").is_in(keys.implode())).collect()},
        rounds=3,
    )
