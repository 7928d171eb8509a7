"""Upsert and erase in tables of many files, compared with the table libraries' own commands.

The rows of a key lie in files all over the table. Both sides change their own copy, so each round
gives other keys. The last two have their tables in a store that delays each response by 30 ms.
"""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog.sql import SqlCatalog

import zonebloom as zb
from bench.store_server import BUCKET, serving

ROWS_PER_FILE = 50_000


def rows(ids: np.ndarray) -> pa.Table:
    users = [f"user-{number % 2_500_000:07}" for number in (ids * 7919).tolist()]
    return pa.table({"id": ids, "user": users, "amount": ids * 0.5, "text": ids.astype(str)})


def files_of(num_files: int) -> list[pa.Table]:
    ids = np.random.default_rng(1).permutation(num_files * ROWS_PER_FILE)
    return [rows(part) for part in np.split(ids, num_files)]


@pytest.fixture(scope="module")
def delta(tmp_path_factory):
    """Return two equal tables of 5 million rows in 100 files, the first with indices."""
    paths = [str(tmp_path_factory.mktemp("delta") / "orders") for _ in range(2)]
    for part, path in itertools.product(files_of(100), paths):
        write_deltalake(path, part, mode="append")
    zb.dataset(DeltaTable(paths[0])).create_scalar_index(["id", "user"], "HASH", spark=False)
    return paths


def test_erase_a_user_in_delta(versus, delta):
    user = (f"user-{number:07}" for number in range(0, 2_500_000, 1009))
    other = (f"user-{number:07}" for number in range(0, 2_500_000, 1009))
    dataset = zb.dataset(DeltaTable(delta[0]))
    versus(
        lambda: dataset.erase("user", [next(user)]),
        {"DeltaTable.delete": lambda: DeltaTable(delta[1]).delete(f"user = '{next(other)}'")},
        rounds=3,
    )


def test_upsert_in_iceberg(versus, tmp_path):
    """30,000 keys, half of them new, in 2 million rows in 40 files."""
    catalog = SqlCatalog("c", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}")
    catalog.create_namespace("shop")
    parts = files_of(40)
    tables = [catalog.create_table(f"shop.{name}", parts[0].schema) for name in ("ours", "theirs")]
    for part, table in itertools.product(parts, tables):
        table.append(part)
    dataset = zb.dataset(tables[0])
    dataset.create_scalar_index("id", "HASH", spark=False)
    batches = [
        rows(np.concatenate([np.arange(start, start + 15_000), 10**7 + start + np.arange(15_000)]))
        for start in range(0, 150_000, 15_000)
    ]
    our_batches, their_batches = iter(batches), iter(batches)
    versus(
        lambda: dataset.upsert(next(our_batches), on="id"),
        {"Table.upsert": lambda: tables[1].upsert(next(their_batches), join_cols=["id"])},
        rounds=2,
    )


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("store"), 30) as server:
        yield server.endpoint


@pytest.fixture(scope="module")
def s3(endpoint):
    keys = {"access_key": "a", "secret_key": "b", "region": "us-east-1"}
    return pafs.S3FileSystem(**keys, endpoint_override=endpoint, scheme="http")


def test_erase_a_user_in_delta_in_a_store(versus, endpoint, s3):
    options = {
        "AWS_ENDPOINT_URL": f"http://{endpoint}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_REGION": "us-east-1",
        "conditional_put": "etag",
    }
    ours, theirs = [f"s3://{BUCKET}/{name}" for name in ("ours", "theirs")]
    for part, uri in itertools.product(files_of(40), (ours, theirs)):
        write_deltalake(uri, part, mode="append", storage_options=options)
    dataset = zb.dataset(DeltaTable(ours, storage_options=options), filesystem=s3)
    dataset.create_scalar_index("user", "HASH", spark=False)
    other = DeltaTable(theirs, storage_options=options)
    users = itertools.count(0, 1009)
    other_users = itertools.count(0, 1009)
    versus(
        lambda: dataset.erase("user", [f"user-{next(users):07}"]),
        {"DeltaTable.delete": lambda: other.delete(f"user = 'user-{next(other_users):07}'")},
        rounds=3,
    )


def test_upsert_in_iceberg_in_a_store(versus, endpoint, s3, tmp_path):
    """2,000 keys of 5 of 40 files."""
    options = {"access-key-id": "a", "secret-access-key": "b", "region": "us-east-1"}
    catalog = SqlCatalog(
        "c",
        uri=f"sqlite:///{tmp_path}/c.db",
        warehouse=f"s3://{BUCKET}/iceberg",
        **{f"s3.{name}": value for name, value in options.items()},
        **{"s3.endpoint": f"http://{endpoint}"},
    )
    catalog.create_namespace("shop")
    parts = files_of(40)
    tables = [catalog.create_table(f"shop.{name}", parts[0].schema) for name in ("ours", "theirs")]
    for part, table in itertools.product(parts, tables):
        table.append(part)
    dataset = zb.dataset(tables[0], filesystem=s3)
    dataset.create_scalar_index("id", "HASH", spark=False)
    ids = pa.concat_tables(parts[:5])["id"].to_numpy()
    changed = [rows(ids[start::125][:2_000]) for start in range(10)]
    batches = [part.set_column(2, "amount", pa.array(np.full(2_000, -1.0))) for part in changed]
    our_batches, their_batches = iter(batches), iter(batches)
    versus(
        lambda: dataset.upsert(next(our_batches), on="id"),
        {"Table.upsert": lambda: tables[1].upsert(next(their_batches), join_cols=["id"])},
        rounds=2,
    )
