"""Locate the rows of a million keys, compared with a join of Polars over the same files.

There are four files with pages of 2,048 rows and row groups of a million, and the keys are in
random order. An upsert locates such keys: either most of them are new, or all of them exist.
"""

from __future__ import annotations

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import zonebloom as zb

KEYS = 1_000_000


@pytest.fixture(scope="module", params=["BLOOMFILTER", "HASH"])
def indexed(request, paged, tmp_path_factory):
    """Return a dataset with one index. Only filters need a global filter for many keys."""
    dataset = zb.dataset(paged, index_dir=str(tmp_path_factory.mktemp("index")))
    is_bloom = request.param == "BLOOMFILTER"
    dataset.create_scalar_index("id", request.param, spark=False, global_filter=is_bloom)
    return dataset


@pytest.mark.parametrize(
    "share",
    [0.0, 0.001, 1.0],
    ids=["none present", "1 in 1,000 present", "all present"],
)
def test_locate_a_million_keys(versus, paged, indexed, share):
    ids = pq.read_table(paged, columns=["id"])["id"].to_numpy()
    random = np.random.default_rng(3)
    present_keys = random.choice(ids, int(KEYS * share), replace=False)
    new_keys = random.integers(-(2**63), 2**63 - 1, KEYS - present_keys.size)
    keys = pa.array(random.permutation(np.concatenate([present_keys, new_keys])))

    def ours() -> int:
        locations = indexed.locate("id", keys)
        return len(locations) - locations["row"].null_count

    def theirs() -> int:
        files = sorted(map(str, paged.glob("*.parquet")))
        rows = [
            pl.scan_parquet(file, row_index_name="row").select(
                "id", "row", fragment_id=pl.lit(number)
            )
            for number, file in enumerate(files)
        ]
        key_frame = pl.LazyFrame({"id": keys}).with_row_index("key_index")
        locations = key_frame.join(pl.concat(rows), on="id", how="left").collect()
        return len(locations) - locations["row"].null_count()

    assert ours() == theirs()
    versus(ours, {"Polars' join": theirs}, rounds=3)
