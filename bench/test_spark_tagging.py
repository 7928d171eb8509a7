"""Locating keys on Spark against Spark's own joins; ``--rows`` 5 and 20 million show the growth.

Peers are given what helps them: the key column and ``_metadata`` alone, 100 keys broadcast.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as sf

import zonebloom as zb
import zonebloom.spark as zs


@pytest.fixture(scope="module")
def located(lake16: Path):
    dataset = zb.dataset(lake16)
    dataset.create_scalar_index("id", spark=False)
    yield zb.dataset(lake16)
    shutil.rmtree(lake16 / "_zonebloom")


@pytest.fixture
def asked(request, spark, lake16: Path, tmp_path: Path):
    """Keys of which half are there, with another column, in two files."""
    count = request.param
    random = np.random.default_rng(7)
    ids = pads.dataset(lake16, format="parquet").to_table(["id"])["id"].to_numpy()
    present = ids[random.integers(0, ids.size, count // 2)]
    absent = random.integers(-(2**63), 2**63 - 1, count - count // 2)
    keys = random.permutation(np.concatenate([present, absent]))
    for number in range(2):
        part = pa.table({"id": keys[number::2], "value": np.arange(keys[number::2].size)})
        pq.write_table(part, tmp_path / f"{number}.parquet")
    return spark.read.parquet(str(tmp_path))


def _rows(spark, lake16: Path):
    return spark.read.parquet(str(lake16)).select(
        "id",
        sf.col("_metadata.file_path").alias("path"),
        sf.col("_metadata.row_index").alias("row_offset"),
    )


def _run(frame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _places(frame) -> list:
    offset = sf.col("row_offset")
    return frame.select(sf.count(sf.lit(1)), sf.count(offset), sf.sum(offset)).collect()


@pytest.mark.parametrize("asked", [1_000_000], indirect=True)
def test_many_keys(versus, spark, located, lake16, asked):
    theirs = asked.join(_rows(spark, lake16), "id", "left")
    assert _places(zs.tag_location(asked, located, "id")) == _places(theirs)
    versus(
        lambda: _run(zs.tag_location(asked, located, "id")),
        {"left join": lambda: _run(asked.join(_rows(spark, lake16), "id", "left"))},
        rounds=3,
    )


@pytest.mark.parametrize("asked", [100], indirect=True)
def test_few_keys(versus, spark, located, lake16, asked):
    """The keys broadcast against all rows, and the few rows found broadcast to the keys."""

    def theirs():
        found = _rows(spark, lake16).join(sf.broadcast(asked.select("id")), "id", "left_semi")
        return asked.join(sf.broadcast(found), "id", "left")

    assert _places(zs.tag_location(asked, located, "id")) == _places(theirs())
    versus(
        lambda: _run(zs.tag_location(asked, located, "id")),
        {"keys broadcast": lambda: _run(theirs())},
        rounds=7,
    )
