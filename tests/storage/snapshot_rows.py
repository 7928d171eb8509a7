"""Rows that tables of several formats are made of."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

ROWS = 40_000


def rows(seed: int, count: int = ROWS) -> pa.Table:
    random = np.random.default_rng(seed)
    ids = random.permutation(count) + seed * count
    return pa.table(
        {
            "id": ids,
            "key": pa.array([f"key {each * 7919 % 1000003}" for each in ids]),
            "part": pa.array([None if each % 5 == 4 else f"p {each % 5}/%" for each in ids]),
            "x": random.random(count),
        }
    )


def in_order(table: pa.Table) -> list[dict]:
    return sorted(table.to_pylist(), key=repr)


def check_addresses(opened) -> None:
    """Rows of a zone that was found are taken by their addresses."""
    ranges = opened.search("id = 50000").to_table()
    base = ranges["fragment_id"][0].as_py() << 32
    at = np.arange(ranges["start"][0].as_py(), ranges["stop"][0].as_py())
    ids = opened.take(base | at, columns=["id"])["id"].to_pylist()
    assert 50_000 in ids and len(ids) == at.size
