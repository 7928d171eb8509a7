"""Point lookups over Parquet, against Lance on its own format and scans of the same files."""

from __future__ import annotations

import itertools
from pathlib import Path

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest

import zonebloom as zb
from bench.conftest import NOTES, PAGED, rewritten

EMBEDDED = {"bloom_filter_options": {"id": {"ndv": 1_000_000, "fpp": 0.00057}}}


@pytest.fixture(scope="module")
def embedded(lake: Path) -> Path:
    """With the Bloom filters pyarrow writes into the files."""
    return rewritten(lake, "embedded", **PAGED, **EMBEDDED)


@pytest.fixture(scope="module")
def lance_indexed(lake: Path):
    import lance

    folder = lake / "_lance"
    if not folder.exists():
        reader = pads.dataset(lake, format="parquet").scanner().to_reader()
        rows = pq.ParquetFile(next(lake.glob("*.parquet"))).metadata.num_rows
        lance.write_dataset(reader, folder, max_rows_per_file=rows)
    dataset = lance.dataset(folder)
    dataset.create_scalar_index("id", "BLOOMFILTER", replace=True)
    return lance.dataset(folder)


def scans(folder: Path) -> dict:
    """What finds rows of some keys by reading files, by name."""
    dataset = pads.dataset(folder, format="parquet")
    files = str(folder / "*.parquet")
    connection = duckdb.connect()

    def with_duckdb(wanted: list[int]) -> object:
        listed = ", ".join(map(str, wanted))
        return connection.sql(f"FROM '{files}' WHERE id IN ({listed})").to_arrow_table()

    return {
        "pyarrow.dataset": lambda wanted: dataset.to_table(filter=pc.field("id").isin(wanted)),
        "Polars": lambda wanted: (
            pl.scan_parquet(files).filter(pl.col("id").is_in(wanted)).collect()
        ),
        "DuckDB": with_duckdb,
    }


@pytest.mark.parametrize("kind", ["present", "absent"])
def test_one_key(versus, indexed, lance_indexed, paged, keys, kind):
    if kind == "absent":
        keys = list(range(len(keys)))
    each = itertools.cycle(keys)
    ours = lambda: indexed.to_table(filter=pc.field("id") == next(each))  # noqa: E731
    versus(
        ours,
        {"pylance": lambda: lance_indexed.to_table(filter=f"id = {next(each)}")},
        rounds=len(keys),
    )


@pytest.mark.parametrize("count", [1, 100])
def test_against_scans(versus, indexed, paged, keys, count):
    wanted = keys[:: max(1, len(keys) // count)][:count]
    peers = {name: lambda scan=scan: scan(wanted) for name, scan in scans(paged).items()}
    versus(lambda: indexed.to_table(filter=pc.field("id").isin(wanted)), peers, rounds=5)


def test_keys_in_nearly_all_zones(versus, indexed, paged):
    """An index that cannot help must not hurt."""
    ids = pads.dataset(paged, format="parquet").to_table(columns=["id"])["id"]
    wanted = ids.take(pa.array(np.arange(0, len(ids), 4096)))
    scan = pads.dataset(paged, format="parquet")
    versus(
        lambda: indexed.to_table(filter=pc.field("id").isin(wanted)),
        {"pyarrow.dataset": lambda: scan.to_table(filter=pc.field("id").isin(wanted))},
        rounds=3,
    )


def test_one_key_against_filters_in_the_files(versus, indexed, embedded, keys):
    """DuckDB drops row groups by the filters in the files; so do we where there is no index."""
    peer = scans(embedded)["DuckDB"]
    unindexed = zb.dataset(embedded, embedded_filters=True)
    each = itertools.cycle(keys)
    versus(
        lambda: indexed.to_table(filter=pc.field("id") == next(each)),
        {
            "DuckDB, filters in the files": lambda: peer([next(each)]),
            "zonebloom, filters in the files": lambda: unindexed.to_table(
                filter=pc.field("id") == next(each)
            ),
        },
        rounds=20,
    )


def test_first_lookup_opens_the_index(versus, indexed, paged, keys):
    """Opening the dataset, loading and checking the index included."""
    scan = pads.dataset(paged, format="parquet")
    key = keys[0]
    versus(
        lambda: zb.dataset(paged).count_rows(filter=pc.field("id") == key),
        {"pyarrow.dataset": lambda: scan.count_rows(filter=pc.field("id") == key)},
        rounds=5,
    )


def test_bytes_of_one_key(indexed, paged, keys):
    """Bytes read against those of the pages that hold the zone."""
    shares, read = [], []
    for key in keys:
        stats: list = []
        filter = pc.field("id") == key
        scanner = indexed.scanner(filter=filter, scan_stats_callback=stats.append)
        scanner.to_table()
        pages = sum(_zone_bytes(part) for part in scanner.plan().fragments)
        read.append(stats[0].data_bytes)
        shares.append(stats[0].data_bytes / pages)
    NOTES.append(
        f"one present key, all columns: at most {max(read) / 1000:,.0f} kB read, "
        f"{max(shares):.2f} of the bytes of the pages that hold its zone."
    )
    assert read


def _zone_bytes(part) -> int:
    """Bytes of all pages, of all columns, that overlap a plan's rows."""
    total = 0
    for number, group in enumerate(part.pages.row_groups):
        inside = part.rows.window(group.first_row, group.first_row + group.num_rows)
        for leaf in range(len(group.chunks)):
            pages = part.pages.pages(number, leaf)
            for start, stop in inside:
                held = (pages.first_rows[:-1] < stop) & (pages.first_rows[1:] > start)
                total += int(pages.sizes[held].sum())
    return total
