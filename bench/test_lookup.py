"""Point lookups over Parquet, against scans of the same files."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest

import zonebloom as zb


@pytest.fixture(scope="module")
def indexed(lake: Path):
    dataset = zb.dataset(lake)
    dataset.create_scalar_index(["id", "uuid"], spark=False)
    yield dataset
    shutil.rmtree(lake / "_zonebloom")


@pytest.fixture(scope="module")
def present(lake: Path) -> int:
    file = pq.ParquetFile(sorted(lake.glob("*.parquet"))[2])
    return file.read_row_group(file.num_row_groups // 2, ["id"])["id"][1234].as_py()


@pytest.mark.parametrize("kind", ["present", "absent"])
def test_lookup(versus, indexed, lake, present, kind):
    key = present if kind == "present" else 12345
    scan = pads.dataset(lake, format="parquet")
    versus(
        lambda: indexed.to_table(filter=pc.field("id") == key),
        {"pyarrow.dataset": lambda: scan.to_table(filter=pc.field("id") == key)},
        rounds=5,
    )


def test_search_only(versus, indexed, present):
    """From a pyarrow filter to row ranges, against translating the filter alone."""
    from zonebloom.predicates import translate

    filter = pc.field("id") == present
    versus(
        lambda: indexed.search(filter),
        {"translate": lambda: translate(filter, indexed.schema)},
        rounds=200,
    )


def test_first_lookup_opens_the_index(versus, indexed, lake, present):
    """Opening the dataset, loading and checking the index included."""
    scan = pads.dataset(lake, format="parquet")
    versus(
        lambda: zb.dataset(lake).count_rows(filter=pc.field("id") == present),
        {"pyarrow.dataset": lambda: scan.count_rows(filter=pc.field("id") == present)},
        rounds=5,
    )
