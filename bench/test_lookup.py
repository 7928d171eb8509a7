"""Point lookups with filters in the files, and their bytes. `bench.report` has other lookups."""

from __future__ import annotations

import itertools
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import zonebloom as zb
from bench.conftest import NOTES, PAGED, rewritten

EMBEDDED = {"bloom_filter_options": {"id": {"ndv": 1_000_000, "fpp": 0.00057}}}


@pytest.fixture(scope="module")
def embedded(lake: Path) -> Path:
    """The same rows with Bloom filters that pyarrow writes into the files."""
    return rewritten(lake, "embedded", **PAGED, **EMBEDDED)


def test_one_key_against_filters_in_the_files(versus, indexed, embedded, keys):
    """DuckDB skips row groups by the filters in the files, as zonebloom does without an index."""
    connection, files = duckdb.connect(), str(embedded / "*.parquet")
    unindexed = zb.dataset(embedded, embedded_filters=True)
    endless_keys = itertools.cycle(keys)
    versus(
        lambda: indexed.to_table(filter=pc.field("id") == next(endless_keys)),
        {
            "DuckDB, filters in the files": lambda: connection.sql(
                f"FROM '{files}' WHERE id = {next(endless_keys)}"
            ).to_arrow_table(),
            "zonebloom, filters in the files": lambda: unindexed.to_table(
                filter=pc.field("id") == next(endless_keys)
            ),
        },
        rounds=20,
    )


@pytest.mark.parametrize("count", [1, 100])
def test_duckdb_over_the_dataset(versus, indexed, paged, keys, count):
    """A query of DuckDB, pushed into a PyArrow dataset or into the files."""
    connection, wanted = duckdb.connect(), ", ".join(map(str, keys[:count]))
    connection.register("indexed", indexed.to_arrow_dataset())

    def query(source: str) -> pa.Table:
        return connection.sql(f"FROM {source} WHERE id IN ({wanted})").to_arrow_table()

    versus(lambda: query("indexed"), {"DuckDB": lambda: query(f"'{paged}/*.parquet'")})


def test_bytes_of_one_key(indexed, paged, keys):
    """Compare the bytes read with those of the pages that contain the zone."""
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
    """Return the bytes of all pages of all columns that overlap the rows of a plan."""
    total = 0
    for number, group in enumerate(part.pages.row_groups):
        inside = part.rows.window(group.first_row, group.first_row + group.num_rows)
        for leaf in range(len(group.chunks)):
            pages = part.pages.pages(number, leaf)
            for start, stop in inside:
                held = (pages.first_rows[:-1] < stop) & (pages.first_rows[1:] > start)
                total += int(pages.sizes[held].sum())
    return total
