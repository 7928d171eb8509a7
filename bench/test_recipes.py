"""Measure the notebook's recipes for Delta and Iceberg, compared with these libraries alone.

The store delays each response by 20 ms. Files and bytes are counted for the same rows.
"""

from __future__ import annotations

import time

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog.sql import SqlCatalog

import zonebloom as zb
from bench.conftest import NOTES
from bench.recipes import recipes as recipes_of_notebook
from bench.store_server import BUCKET, Server, serving

FILES, ROWS = 40, 25_000
SCHEMA = pa.schema({"id": pa.int64(), "at": pa.int64(), "x": pa.float64(), "y": pa.float64()})


@pytest.fixture(scope="module")
def recipes():
    return recipes_of_notebook()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("store"), 20) as server:
        yield server


@pytest.fixture(scope="module")
def s3(server):
    keys = {"access_key": "a", "secret_key": "b", "region": "us-east-1"}
    return pafs.S3FileSystem(**keys, endpoint_override=server.endpoint, scheme="http")


def parts():
    random = np.random.default_rng(0)
    ids = random.permutation(FILES * ROWS)
    for number in range(FILES):
        rows = np.arange(ROWS) + number * ROWS
        yield pa.table([ids[rows], rows, random.random(ROWS), random.random(ROWS)], schema=SCHEMA)


def run_and_note(server: Server, name: str, work) -> None:
    server.count_requests()
    start = time.perf_counter()
    work()
    seconds = time.perf_counter() - start
    counts = server.count_requests()
    requests = [line.split() for line in counts.lines if ".parquet" in line]
    files = {path.partition("?")[0] for method, path, _ in requests if method == "GET"}
    NOTES.append(f"{name}: {seconds:.2f} s, {len(files)} of {FILES} data files read; {counts}.")


def test_erasure_from_delta(recipes, server, s3):
    options = {
        "AWS_ENDPOINT_URL": f"http://{server.endpoint}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_REGION": "us-east-1",
        "conditional_put": "etag",
    }
    uri, keys = f"s3://{BUCKET}/delta", [5, 77_777, 1_234_567]
    for part in parts():
        write_deltalake(uri, part, mode="append", storage_options=options)
    table = DeltaTable(uri, storage_options=options)
    ds = zb.dataset(table, filesystem=s3)
    ds.create_scalar_index("id", spark=False)
    ds.count_rows("id = 7")
    run_and_note(server, "erasure of 3 keys", lambda: recipes["erase"](table, ds, "id", keys, "at"))
    table.restore(table.version() - 1)
    condition = f"id IN ({', '.join(map(str, keys))})"
    run_and_note(server, "erasure of 3 keys by deltalake alone", lambda: table.delete(condition))


@pytest.mark.parametrize("count", [3, 2_000])
def test_upsert_into_iceberg(recipes, server, s3, tmp_path, count):
    catalog = SqlCatalog(
        "c",
        uri=f"sqlite:///{tmp_path}/c.db",
        warehouse=f"s3://{BUCKET}/iceberg-{count}",
        **{
            "s3.endpoint": f"http://{server.endpoint}",
            "s3.access-key-id": "a",
            "s3.secret-access-key": "b",
            "s3.region": "us-east-1",
        },
    )
    catalog.create_namespace("n")
    table = catalog.create_table("n.t", SCHEMA)
    for part in parts():
        table.append(part)
    ds = zb.dataset(table, filesystem=s3)
    ds.create_scalar_index("id", spark=False)
    ds.count_rows("id = 7")
    random = np.random.default_rng(1)
    keys, zeros = random.choice(FILES * ROWS, count, replace=False), np.zeros(count)
    # The larger upsert changes rows of one day, which are all in the first files.
    if count > 3:
        keys = pa.concat_tables(parts())["id"].to_numpy()[keys % (5 * ROWS)]
    keys = np.unique(keys)
    zeros = np.zeros(len(keys))
    batch = pa.table([keys, zeros.astype(int), zeros, zeros], schema=SCHEMA)
    name = f"upsert of {len(keys):,} keys"
    run_and_note(server, name, lambda: recipes["upsert"](table, ds, batch, "id"))
    other_values = batch.set_column(2, "x", pa.array(zeros + 1))
    run_and_note(
        server,
        f"{name} by pyiceberg alone",
        lambda: table.upsert(other_values, join_cols=["id"]),
    )
    catalog.close()
