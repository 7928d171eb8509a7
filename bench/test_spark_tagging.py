"""Locate keys on Spark, compared with joins of Spark at its defaults.

Run it with ``--rows`` 5 and 20 million to see the growth. The peers read only the key columns and
``_metadata``, and they broadcast 100 keys.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as sf

import zonebloom as zb
import zonebloom.spark as zs


def _index(lake16: Path, folder: Path, kind: str) -> zb.Dataset:
    dataset = zb.dataset(lake16, index_dir=str(folder))
    dataset.create_scalar_index("id", kind, spark=False)
    return zb.dataset(lake16, index_dir=str(folder))


@pytest.fixture(scope="module")
def indexed(lake16: Path, tmp_path_factory):
    return _index(lake16, tmp_path_factory.mktemp("bloomfilter"), "BLOOMFILTER")


@pytest.fixture(scope="module")
def hash_indexed(lake16: Path, tmp_path_factory):
    return _index(lake16, tmp_path_factory.mktemp("hash"), "HASH")


@pytest.fixture
def key_frame(request, spark, lake16: Path, tmp_path: Path):
    """Return a frame of keys with another column, in two files. A share of the keys is present."""
    count, share = request.param
    random = np.random.default_rng(7)
    rows = pads.dataset(lake16, format="parquet").to_table(["id", "y"])
    row_numbers = random.integers(0, rows.num_rows, int(count * share))
    absent = random.integers(-(2**63), 2**63 - 1, count - row_numbers.size)
    columns = {
        "id": np.concatenate([rows["id"].to_numpy()[row_numbers], absent]),
        "y": np.concatenate(
            [rows["y"].to_numpy()[row_numbers], random.integers(0, 1000, absent.size)]
        ),
    }
    table = pa.table({**columns, "value": np.arange(count)}).take(random.permutation(count))
    for number in range(2):
        part = table.slice(number * count // 2, count // 2)
        pq.write_table(part, tmp_path / f"{number}.parquet")
    return spark.read.parquet(str(tmp_path))


def _rows(spark, lake16: Path, on: list[str]):
    return spark.read.parquet(str(lake16)).select(
        *on,
        sf.col("_metadata.file_path").alias("path"),
        sf.col("_metadata.row_index").alias("row_offset"),
    )


def _run(frame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _summarize_locations(frame) -> list:
    offset = sf.col("row_offset")
    return frame.select(sf.count(sf.lit(1)), sf.count(offset), sf.sum(offset)).collect()


@pytest.mark.parametrize(
    ("key_frame", "on"),
    [((1_000_000, 0.5), ["id"]), ((1_000_000, 1.0), ["id"]), ((1_000_000, 0.5), ["id", "y"])],
    ids=["half present", "all present", "two columns, half present"],
    indirect=["key_frame"],
)
def test_many_keys(versus, spark, indexed, lake16, key_frame, on):
    keys = key_frame.select(*on, "value")

    def theirs():
        return keys.join(_rows(spark, lake16, on), on, "left")

    assert _summarize_locations(zs.tag_location(keys, indexed, on)) == _summarize_locations(
        theirs()
    )
    versus(
        lambda: _run(zs.tag_location(keys, indexed, on)),
        {"left join": lambda: _run(theirs())},
        rounds=3,
    )


@pytest.mark.parametrize("key_frame", [(500_000, 0.5)], ids=["half present"], indirect=True)
def test_many_keys_by_kind(versus, spark, indexed, hash_indexed, lake16, key_frame):
    """Compare the hash index with a join and with the other kind of index."""
    keys = key_frame.select("id", "value")

    def by_join():
        return keys.join(_rows(spark, lake16, ["id"]), ["id"], "left")

    def by_index(dataset: zb.Dataset):
        return zs.tag_location(keys, dataset, ["id"])

    expected = _summarize_locations(by_join())
    for dataset in (indexed, hash_indexed):
        assert _summarize_locations(by_index(dataset)) == expected
    versus(
        lambda: _run(by_index(hash_indexed)),
        {
            "left join": lambda: _run(by_join()),
            "BLOOMFILTER": lambda: _run(by_index(indexed)),
        },
        rounds=3,
    )


@pytest.mark.parametrize("key_frame", [(100, 0.5)], ids=["half present"], indirect=True)
@pytest.mark.parametrize("on", [["id"], ["id", "y"]], ids=["one column", "two columns"])
def test_few_keys(versus, spark, indexed, lake16, key_frame, on):
    """Spark broadcasts the keys to all rows. zonebloom broadcasts only the matching rows."""
    keys = key_frame.select(*on, "value")

    def theirs():
        matches = _rows(spark, lake16, on).join(sf.broadcast(keys.select(*on)), on, "left_semi")
        return keys.join(sf.broadcast(matches), on, "left")

    assert _summarize_locations(zs.tag_location(keys, indexed, on)) == _summarize_locations(
        theirs()
    )
    versus(
        lambda: _run(zs.tag_location(keys, indexed, on)),
        {"keys broadcast": lambda: _run(theirs())},
        rounds=5,
    )
