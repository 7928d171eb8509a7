"""Test the recipes for Delta and Iceberg: the files that they read, and the resulting rows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pytest

import zonebloom as zb
from bench.recipes import recipes as recipes_of_notebook
from bench.store_server import serving

pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")
pytest.importorskip("sqlalchemy")
from deltalake import DeltaTable, write_deltalake
from obstore.store import S3Store
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, ValidationException

FILES, ROWS = 8, 500
KEYS = [3, 1_234, 2_345, 10**6]
SCHEMA = pa.schema({"id": pa.int64(), "at": pa.int64(), "x": pa.float64()})


@pytest.fixture(scope="module")
def recipes():
    return recipes_of_notebook()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("store"), 0) as server:
        yield server


@pytest.fixture
def s3(server):
    return pafs.S3FileSystem(
        access_key="a",
        secret_key="b",
        endpoint_override=server.endpoint,
        scheme="http",
        region="us-east-1",
    )


@pytest.fixture
def store(server):
    return S3Store(
        "lake",
        endpoint=f"http://{server.endpoint}",
        access_key_id="a",
        secret_access_key="b",
        client_options={"allow_http": True},
    )


def parts():
    random = np.random.default_rng(0)
    ids = random.permutation(FILES * ROWS)
    for number in range(FILES):
        rows = np.arange(ROWS) + number * ROWS
        columns = [ids[rows], rows, random.random(ROWS)]
        yield pa.table(columns, schema=SCHEMA)


def data_files(counts):
    """Return the names of the Parquet files that were read, and of those that were written."""
    lines = [line.split() for line in counts.lines if ".parquet" in line]
    requests = [(method, path.partition("?")[0].rpartition("/")[2]) for method, path, _ in lines]
    read_files = {name for method, name in requests if method == "GET"}
    return read_files, {name for method, name in requests if method in ("PUT", "POST")}


def names_of(files):
    return {path.rpartition("/")[2] for path in files["path"].to_pylist()}


def test_a_delta_erasure_reads_the_files_of_its_keys(recipes, server, s3, store):
    options = {
        "AWS_ENDPOINT_URL": f"http://{server.endpoint}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_REGION": "us-east-1",
        "conditional_put": "etag",
    }
    uri = "s3://lake/delta"
    for part in parts():
        write_deltalake(uri, part, mode="append", storage_options=options)
    table = DeltaTable(uri, storage_options=options)
    ds = zb.dataset(table, filesystem=s3)
    ds.create_scalar_index("id", spark=False, number_of_items=ROWS)
    files_with_keys = names_of(ds.files_with_keys("id", KEYS))
    assert 0 < len(files_with_keys) < FILES
    # A dataset over a store of obstore has the same version and rows.
    obstore_ds = zb.dataset(table, filesystem=store)
    assert (obstore_ds.version, obstore_ds.count_rows("id = 3")) == (1, 1)
    before = pa.concat_tables(parts())
    server.count_requests()
    recipes["erase"](table, ds, "id", KEYS, "at")
    read_files, written_files = data_files(server.count_requests())
    assert read_files == files_with_keys
    assert len(written_files) >= 1
    expected = before.filter(pc.invert(pc.is_in(before["id"], pa.array(KEYS))))
    assert pa.table(table.to_pyarrow_table()).select(SCHEMA.names).sort_by("at").equals(expected)
    ds.optimize.optimize_indices(spark=False)
    assert ds.files_with_keys("id", KEYS).num_rows == 0
    # The library alone reads all files.
    table.restore(table.version() - 1)
    all_files = {uri.rpartition("/")[2] for uri in table.file_uris()}
    server.count_requests()
    table.delete(f"id IN ({', '.join(map(str, KEYS))})")
    assert data_files(server.count_requests())[0] == all_files


def test_an_erasure_deletes_rows_with_a_null_in_the_other_column(recipes, tmp_path):
    part = pa.table({"id": [1, 2, 3, 4], "at": [1, None, None, 9]})
    write_deltalake(tmp_path, part)
    table = DeltaTable(tmp_path)
    ds = zb.dataset(table)
    ds.create_scalar_index("id", spark=False)
    recipes["erase"](table, ds, "id", [1, 2], "at")
    recipes["erase"](table, ds, "id", [7], "at")
    assert sorted(pa.table(table.to_pyarrow_table())["id"].to_pylist()) == [3, 4]


@pytest.fixture
def iceberg(server, tmp_path):
    catalog = SqlCatalog(
        "c",
        uri=f"sqlite:///{tmp_path}/c.db",
        warehouse="s3://lake/iceberg",
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
    yield table
    catalog.close()


def test_an_iceberg_upsert_reads_the_files_of_its_keys(recipes, server, s3, store, iceberg):
    ds = zb.dataset(iceberg, filesystem=s3)
    ds.create_scalar_index("id", spark=False, number_of_items=ROWS)
    files_with_keys = names_of(ds.files_with_keys("id", KEYS))
    assert 0 < len(files_with_keys) < FILES
    count = len(KEYS)
    batch = pa.table([KEYS, [-1] * count, np.zeros(count)], schema=SCHEMA)
    old_table = iceberg.catalog.load_table("n.t")
    old_ds = zb.dataset(old_table, filesystem=s3)
    obstore_ds = zb.dataset(old_table, filesystem=store)
    assert (obstore_ds.version, obstore_ds.count_rows("id = 3")) == (1, 1)
    server.count_requests()
    recipes["upsert"](iceberg, ds, batch, "id")
    read_files, written_files = data_files(server.count_requests())
    assert read_files == files_with_keys
    assert len(written_files) == 1
    before = pa.concat_tables(parts())
    other_rows = before.filter(pc.invert(pc.is_in(before["id"], pa.array(KEYS))))
    expected = pa.concat_tables([other_rows, batch]).sort_by("id")
    assert iceberg.scan().to_arrow().cast(SCHEMA).sort_by("id").equals(expected)
    # A second upsert from the same snapshot must fail.
    with pytest.raises((CommitFailedException, ValidationException)):
        recipes["upsert"](old_table, old_ds, batch, "id")
    # The library alone reads all files.
    all_files = {task.file.file_path.rpartition("/")[2] for task in iceberg.scan().plan_files()}
    server.count_requests()
    iceberg.upsert(batch.set_column(2, "x", pa.array(np.ones(count))), join_cols=["id"])
    assert data_files(server.count_requests())[0] == all_files
