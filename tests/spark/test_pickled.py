"""A dataset in the functions that Spark sends to its executors."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

import zonebloom as zb


def test_tasks_open_the_dataset_of_the_driver(spark, tmp_path):
    for number in range(2):
        ids = pa.array(range(number * 100, number * 100 + 100))
        pq.write_table(pa.table({"id": ids}), tmp_path / f"{number}.parquet")
    ds = zb.dataset(tmp_path)
    ds.create_scalar_index("id", number_of_items=10, spark=False)
    pq.write_table(pa.table({"id": [42, 142]}), tmp_path / "later.parquet")

    def lookup(batches):
        for batch in batches:
            matches = ds.lookup("id", batch.column("id"))
            versions = pa.array([ds.version] * len(matches), pa.int64())
            yield from matches.append_column("version", versions).to_batches()

    keys = spark.createDataFrame([(42,), (142,), (999,)], "id bigint").coalesce(1)
    schema = "key_index bigint, id bigint, version bigint"
    rows = keys.mapInArrow(lookup, schema).collect()
    assert sorted(map(tuple, rows)) == [(0, 42, 1), (1, 142, 1)]
