"""Make the rows of tables of several formats, and check every way of reading them."""

from __future__ import annotations

import duckdb
import numpy as np
import pyarrow as pa
from support.e2e_helpers import same_tables

import zonebloom as zb

ROWS = 40_000


def rows(seed: int, count: int = ROWS) -> pa.Table:
    random = np.random.default_rng(seed)
    ids = random.permutation(count) + seed * count
    return pa.table(
        {
            "id": ids,
            "key": pa.array([f"key {row_id * 7919 % 1000003}" for row_id in ids]),
            "part": pa.array([None if row_id % 5 == 4 else f"p {row_id % 5}/%" for row_id in ids]),
            "x": random.random(count),
        }
    )


def in_order(rows: pa.Table | list[dict]) -> list[str]:
    """Return rows in an order that does not depend on their files. NaN equals NaN."""
    if isinstance(rows, pa.Table):
        rows = rows.to_pylist()
    return sorted(repr(sorted(row.items())) for row in rows)


# Each check compares a table with an integer column "id" of distinct values to rows in memory.
# ``sought`` are ids of present rows, of deleted rows, and ids that never existed.


def _whole(ds, want, sought):
    table = ds.to_table()
    assert table.schema == ds.schema
    assert in_order(table) == in_order(want)
    assert ds.count_rows() == want.num_rows


def _some(ds, want, sought):
    limit = want.num_rows // 2
    ids = set(want["id"].to_pylist())
    for part in (
        ds.scanner(limit=limit).to_table(),
        ds.scanner().head(limit),
        pa.Table.from_batches(ds.scanner(limit=limit, batch_size=3).to_batches(), want.schema),
    ):
        assert part.num_rows == limit
        assert ids.issuperset(part["id"].to_pylist())


def _filtered(ds, want, sought):
    wanted = in_order(want.filter(pa.compute.field("id").isin(sought)))
    text = f"id IN ({', '.join(map(str, sought))})"
    assert in_order(ds.to_table(filter=text)) == wanted
    assert ds.count_rows(filter=text) == len(wanted)
    assert in_order(ds.to_table(filter=f"NOT id NOT IN ({text[7:]}")) == wanted
    unindexed = ds.scanner(filter=text, use_scalar_index=False).to_table()
    assert in_order(unindexed) == wanted
    below = pa.compute.field("id") < sought[0]
    assert in_order(ds.to_table(filter=below)) == in_order(want.filter(below))


def _lookup(ds, want, sought):
    matches = ds.lookup("id", sought)
    expected = want.filter(pa.compute.field("id").isin(sought))
    assert in_order(matches.drop("key_index")) == in_order(expected)
    assert [sought[index] for index in matches["key_index"].to_pylist()] == matches[
        "id"
    ].to_pylist()


def _located(ds, want, sought):
    present = set(want["id"].to_pylist())
    located = ds.locate("id", sought)
    assert located.num_rows == len(sought)
    for row in located.to_pylist():
        assert (row["row"] is not None) == (sought[row["key_index"]] in present)
    files = ds.files_with_keys("id", sought)
    assert sum(files["num_rows"].to_pylist()) == len(present & set(sought))
    present_rows = located.filter(located["row"].is_valid())
    addresses = (present_rows["fragment_id"].to_numpy().astype(np.int64) << 32) | present_rows[
        "row"
    ].to_numpy()
    wanted = [sought[index] for index in present_rows["key_index"].to_pylist()]
    assert ds.take_rows(addresses, columns=["id"])["id"].to_pylist() == wanted


def _searched(ds, want, sought):
    universe = ds.search("true").universe
    assert len(universe) == want.num_rows
    ids = ds.take_rows(universe.rows(), columns=["id"])["id"].to_pylist()
    assert sorted(ids) == sorted(want["id"].to_pylist())
    at_most = ds.search(f"id = {sought[0]}").at_most
    assert at_most.issubset(universe)


def _polars(ds, want, sought):
    import polars as pl

    frame = ds.to_polars()
    assert sorted(frame.collect()["id"].to_list()) == sorted(want["id"].to_pylist())
    matches = frame.filter(pl.col("id").is_in(sought)).collect()
    assert sorted(matches["id"].to_list()) == sorted(set(sought) & set(want["id"].to_pylist()))


def _arrow(ds, want, sought):
    arrow = ds
    condition = pa.compute.field("id").isin(sought)
    assert in_order(arrow.to_table()) == in_order(want)
    assert arrow.count_rows() == want.num_rows
    assert in_order(arrow.to_table(filter=condition)) == in_order(want.filter(condition))
    assert same_tables(arrow.take(list(range(want.num_rows))), arrow.to_table())
    assert in_order(arrow.filter(condition).to_table()) == in_order(want.filter(condition))
    by_file = [fragment.to_table(schema=ds.schema) for fragment in arrow.get_fragments()]
    assert in_order(pa.concat_tables(by_file)) == in_order(want)
    by_file = [fragment.count_rows() for fragment in arrow.get_fragments(condition)]
    num_matches = want.filter(condition).num_rows
    assert num_matches <= sum(by_file)


def _duckdb(ds, want, sought):
    arrow = ds
    with duckdb.connect() as db:
        db.register("t", arrow)
        [(count,)] = db.sql("SELECT count(*) FROM t").fetchall()
        matches = db.sql(f"SELECT id FROM t WHERE id IN ({', '.join(map(str, sought))})").fetchall()
    assert count == want.num_rows
    assert sorted(row_id for (row_id,) in matches) == sorted(
        set(sought) & set(want["id"].to_pylist())
    )


READS = [
    *(_whole, _some, _filtered, _lookup, _located),
    *(_searched, _polars, _arrow, _duckdb),
]


def check_reads(ds: zb.Dataset, want: pa.Table, sought, reads=READS) -> None:
    """Check the rows of a dataset in each way of reading it."""
    want = want.select(ds.schema.names).cast(ds.schema)
    for read in reads:
        read(ds, want, sought)
