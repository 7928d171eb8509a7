"""Where the rows of a million keys lie, against a join of Polars over the same files.

Files of four, pages of 2,048 rows, row groups of a million, no order in the keys. An upsert asks so
for keys that are mostly new, or for rows that are all there.
"""

from __future__ import annotations

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import zonebloom as zb

KEYS = 1_000_000


@pytest.fixture(scope="module")
def located(paged, tmp_path_factory):
    dataset = zb.dataset(paged, index_dir=str(tmp_path_factory.mktemp("index")))
    dataset.create_scalar_index("id", spark=False, global_filter=True)
    return dataset


@pytest.mark.parametrize("share", [0.001, 1.0], ids=["1 in 1,000 present", "all present"])
def test_locate_a_million_keys(versus, paged, located, share):
    ids = pq.read_table(paged, columns=["id"])["id"].to_numpy()
    dice = np.random.default_rng(3)
    present = dice.choice(ids, int(KEYS * share), replace=False)
    new = dice.integers(-(2**63), 2**63 - 1, KEYS - present.size)
    keys = pa.array(dice.permutation(np.concatenate([present, new])))

    def ours() -> int:
        found = located.locate("id", keys)
        return len(found) - found["row"].null_count

    def theirs() -> int:
        files = sorted(map(str, paged.glob("*.parquet")))
        rows = [
            pl.scan_parquet(file, row_index_name="row").select(
                "id", "row", fragment_id=pl.lit(number)
            )
            for number, file in enumerate(files)
        ]
        asked = pl.LazyFrame({"id": keys}).with_row_index("key_index")
        found = asked.join(pl.concat(rows), on="id", how="left").collect()
        return len(found) - found["row"].null_count()

    assert ours() == theirs()
    versus(ours, {"Polars' join": theirs}, rounds=3)
