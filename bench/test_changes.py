"""Upsert and erase in tables of many files, compared with the table libraries' own commands.

The rows of a key lie in files all over the table. Both sides change their own copy, so each round
gives other keys.
"""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog.sql import SqlCatalog

import zonebloom as zb

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
