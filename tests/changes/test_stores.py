"""Test upsert and erase in object stores: the data files that they read, and the resulting rows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog.sql import SqlCatalog

import zonebloom as zb
from bench.store_server import serving

FILES, ROWS = 8, 500
KEYS = [3, 1_234, 2_345, 10**6]
SCHEMA = pa.schema({"id": pa.int64(), "at": pa.int64(), "x": pa.float64()})
ICEBERG_OPTIONS = {"access-key-id": "a", "secret-access-key": "b", "region": "us-east-1"}
DELTA_OPTIONS = {
    "AWS_ALLOW_HTTP": "true",
    "AWS_ACCESS_KEY_ID": "a",
    "AWS_SECRET_ACCESS_KEY": "b",
    "AWS_REGION": "us-east-1",
    "conditional_put": "etag",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("store"), 0) as server:
        yield server


@pytest.fixture
def s3(server):
    keys = {"access_key": "a", "secret_key": "b", "region": "us-east-1"}
    return pafs.S3FileSystem(**keys, endpoint_override=server.endpoint, scheme="http")


def parts():
    random = np.random.default_rng(0)
    ids = random.permutation(FILES * ROWS)
    for number in range(FILES):
        rows = np.arange(ROWS) + number * ROWS
        yield pa.table([ids[rows], rows, random.random(ROWS)], schema=SCHEMA)


@pytest.fixture
def delta(server, s3):
    options = {**DELTA_OPTIONS, "AWS_ENDPOINT_URL": f"http://{server.endpoint}"}
    for part in parts():
        write_deltalake("s3://lake/delta", part, mode="append", storage_options=options)
    table = DeltaTable("s3://lake/delta", storage_options=options)

    def read():
        table.update_incremental()
        return pa.table(table.to_pyarrow_table())

    return zb.dataset(table, filesystem=s3), read


@pytest.fixture
def iceberg(server, s3, tmp_path):
    options = {f"s3.{name}": value for name, value in ICEBERG_OPTIONS.items()}
    options["s3.endpoint"] = f"http://{server.endpoint}"
    uri = f"sqlite:///{tmp_path}/c.db"
    catalog = SqlCatalog("c", uri=uri, warehouse="s3://lake/iceberg", **options)
    catalog.create_namespace("n")
    table = catalog.create_table("n.t", SCHEMA)
    for part in parts():
        table.append(part)
    yield (
        zb.dataset(table, filesystem=s3),
        lambda: catalog.load_table("n.t").scan().to_arrow(),
    )
    catalog.close()


@pytest.fixture
def folder(server, s3):
    for number, part in enumerate(parts()):
        pq.write_table(part, f"lake/folder/{number}.parquet", filesystem=s3)
    return (
        zb.dataset("lake/folder", filesystem=s3),
        lambda: pads.dataset("lake/folder", filesystem=s3, format="parquet").to_table(),
    )


def files_of(counts, methods):
    """Return the names of the Parquet files of the requests with one of some methods."""
    requests = [line.split()[:2] for line in counts.lines]
    names = {
        path.partition("?")[0].rpartition("/")[2] for name, path in requests if name in methods
    }
    return {name for name in names if name.endswith(".parquet")}


@pytest.fixture(params=["delta", "iceberg", "folder"])
def ds_and_read(request):
    ds, read = request.getfixturevalue(request.param)
    ds.create_scalar_index("id", spark=False, number_of_items=ROWS)
    return ds, read


@pytest.mark.slow
def test_only_files_of_the_keys_are_read(server, ds_and_read):
    ds, read = ds_and_read
    before = pa.concat_tables(parts())
    is_changed = pc.is_in(before["id"], pa.array(KEYS))
    count = len(KEYS)
    batch = pa.table([KEYS, [-1] * count, np.zeros(count)], schema=SCHEMA)
    other_rows = before.filter(pc.invert(is_changed))
    for change, expected in (
        (lambda: ds.upsert(batch, on="id"), pa.concat_tables([other_rows, batch])),
        (lambda: ds.erase("id", KEYS), other_rows),
    ):
        paths = ds.files_with_keys("id", KEYS)["path"].to_pylist()
        names = {path.rpartition("/")[2] for path in paths}
        assert 0 < len(names) < FILES
        server.count_requests()
        change()
        requests = server.count_requests()
        written = files_of(requests, {"PUT", "POST"})
        assert files_of(requests, {"GET"}) <= names | written
        assert 1 <= len(written) <= len(names) + 1
        assert read().cast(SCHEMA).sort_by("id").equals(expected.sort_by("id"))
        ds.optimize.optimize_indices(spark=False)
    assert ds.files_with_keys("id", KEYS).num_rows == 0
