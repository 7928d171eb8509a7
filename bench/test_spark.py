"""Building on Spark, and reading by zones there, against this process and Spark's own read."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import pytest

import zonebloom as zb
import zonebloom.spark as zs
from bench.conftest import NOTES


@pytest.fixture(scope="module")
def indexed16(lake16: Path):
    dataset = zb.dataset(lake16)
    dataset.create_scalar_index("id", spark=False, layout="sliced")
    yield dataset
    shutil.rmtree(lake16 / "_zonebloom")


@pytest.mark.parametrize("columns", [["id"], ["id", "uuid"]], ids=["one", "two"])
def test_build_on_spark(versus, spark, lake16, tmp_path, columns):
    """A warm session and sixteen files, against the same build in this process."""
    dataset = zb.dataset(lake16, index_dir=str(tmp_path / "index"))
    versus(
        lambda: dataset.create_scalar_index(columns, spark=spark),
        {"in process": lambda: dataset.create_scalar_index(columns, spark=False)},
        rounds=3,
    )


def test_point_lookup_on_spark(versus, spark, indexed16, lake16, keys):
    """One key and all columns, planned and read anew each time."""
    path, ours, theirs = str(lake16), itertools.cycle(keys), itertools.cycle(keys)
    versus(
        lambda: zs.scan(spark, path, f"id = {next(ours)}").collect(),
        {
            "spark.read.parquet": lambda: (
                spark.read.parquet(path).where(f"id = {next(theirs)}").collect()
            )
        },
        rounds=9,
    )
    planned = [zs.plan(spark, path, f"id = {key}") for key in keys[:20]]
    most = max(each.num_bytes + each.scan.index_bytes for each in planned)
    NOTES.append(
        f"one key through Spark, all columns: about {most / 1000:,.0f} kB of data and index, "
        f"1/{planned[0].all_bytes // most} of the files' bytes."
    )
