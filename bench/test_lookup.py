"""Measure lookups in files with Bloom filters, and the bytes read. See also `bench.report`."""

from __future__ import annotations

import itertools
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import zonebloom as zb
from bench.conftest import NOTES, PAGED, rewrite

EMBEDDED = {"bloom_filter_options": {"id": {"ndv": 1_000_000, "fpp": 0.00057}}}


@pytest.fixture(scope="module")
def embedded(lake: Path) -> Path:
    """Write the same rows with Bloom filters of pyarrow in the files."""
    return rewrite(lake, "embedded", **PAGED, **EMBEDDED)


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
    """Compare a DuckDB query over a PyArrow dataset with the same query over the files."""
    connection, key_list = duckdb.connect(), ", ".join(map(str, keys[:count]))
    connection.register("indexed", indexed)

    def query(source: str) -> pa.Table:
        return connection.sql(f"FROM {source} WHERE id IN ({key_list})").to_arrow_table()

    versus(lambda: query("indexed"), {"DuckDB": lambda: query(f"'{paged}/*.parquet'")})


def test_bytes_of_one_key(indexed, paged, keys):
    """Compare the bytes read with those of the pages that contain the zone."""
    shares, read_bytes = [], []
    for key in keys:
        stats: list = []
        filter = pc.field("id") == key
        scanner = indexed.scanner(filter=filter, scan_stats_callback=stats.append)
        scanner.to_table()
        pages = sum(_zone_bytes(part) for part in scanner.plan().fragments)
        read_bytes.append(stats[0].data_bytes)
        shares.append(stats[0].data_bytes / pages)
    NOTES.append(
        f"one present key, all columns: at most {max(read_bytes) / 1000:,.0f} kB read, "
        f"{max(shares):.2f} of the bytes of the pages that hold its zone."
    )
    assert read_bytes


def _zone_bytes(part) -> int:
    """Return the bytes of all pages of all columns that overlap the rows of a plan."""
    num_bytes = 0
    for number, group in enumerate(part.pages.row_groups):
        row_ranges = part.rows.window(group.first_row, group.first_row + group.num_rows)
        for leaf in range(len(group.chunks)):
            pages = part.pages.locations(number, leaf)
            for start, stop in row_ranges:
                overlaps = (pages.first_rows[:-1] < stop) & (pages.first_rows[1:] > start)
                num_bytes += int(pages.sizes[overlaps].sum())
    return num_bytes
