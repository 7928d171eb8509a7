"""Measure the bit-sliced layout on one core, compared with the row layout and with a memory copy.

20 M rows are 2,442 zones of 8192 rows. A filter of 8192 items has 32 KiB.
"""

from __future__ import annotations

import numpy as np
import pyarrow.fs as pafs
import pytest

from zonebloom.index.zone_bloom.rows import RowTableWriter, read_row_table
from zonebloom.index.zone_bloom.sliced import SlicedTable
from zonebloom.index.zone_bloom.sliced_merge import merge_tables
from zonebloom.index.zone_bloom.sliced_walk import load_blocks
from zonebloom.index.zone_bloom.table import Zones
from zonebloom.sbbf import blocks, slice_search, slices
from zonebloom.sbbf.slice_layout import place_tile

ZONES, NUM_BLOCKS, KEYS = 2_442, 1_024, 1_000_000
RANDOM = np.random.default_rng(7)
# The row layout looks up only some of the keys, because all of them would take half a minute.
ROW_KEYS = 2_000


@pytest.fixture(scope="module")
def filters():
    """Return filters of a column of random values, shape ``(zones, words)``."""
    filters = np.zeros((ZONES, 8 * NUM_BLOCKS), dtype=np.uint32)
    for words in filters:
        blocks.insert(words, RANDOM.integers(0, 2**64, 8192, dtype=np.uint64))
    return filters


@pytest.fixture(scope="module")
def table(filters, tmp_path_factory):
    path = str(tmp_path_factory.mktemp("sliced") / "bloomfilter.sliced")
    local, rows_path = pafs.LocalFileSystem(), f"{path}.rows"
    writer = RowTableWriter(local, rows_path, 8192, 0.00057)
    starts = np.arange(ZONES, dtype=np.uint64) * np.uint64(8192)
    lengths, has_null = np.full(ZONES, 8192, dtype=np.uint64), np.zeros(ZONES, dtype=bool)
    writer.write(0, Zones(starts, lengths, has_null, filters))
    table_file = writer.close()
    merge_tables(
        [read_row_table(local, rows_path, table_file.num_bytes, table_file.checksum)],
        local,
        path,
        tile_zones=4096,
    )
    return SlicedTable(local, path)


def make_row_search(filters, hashes):
    """Return a function that looks up hashes one by one in every filter."""
    words = filters.reshape(-1)
    first = np.arange(ZONES, dtype=np.uint64) * np.uint64(filters.shape[1])
    size = np.full(ZONES, NUM_BLOCKS, dtype=np.uint64)
    is_hit = np.empty(ZONES, dtype=bool)

    def search():
        for key in range(hashes.size):
            is_hit[:] = False
            blocks.check_filters(words, first, size, hashes[key : key + 1], is_hit)

    return search


def test_slice_and_seal(versus, filters):
    """Slice 80 MB of filters, 16 blocks at a time."""
    addresses = np.uint64(filters.ctypes.data) + np.arange(ZONES, dtype=np.uint64) * np.uint64(
        filters.strides[0]
    )
    tile = place_tile(0, 0, ZONES, NUM_BLOCKS, None, 0)
    out = np.empty((16, tile.block_words), dtype=np.uint64)
    copy = np.empty_like(filters)

    def slice_filters():
        for start in range(0, NUM_BLOCKS, 16):
            slices.slice_blocks(addresses, start, tile.row_words, out)
            slices.write_checks(out, tile, start)

    versus(slice_filters, {"a copy": lambda: np.copyto(copy, filters)}, rounds=20)


def test_one_key_kernel(versus, filters, table):
    """Look up one key in 20 M rows: read eight rows of bits from the page cache, verify, AND."""
    keys = iter(RANDOM.integers(0, 2**63, 100_000).tolist())
    table._positions_by_kernel(np.uint64(1))
    scratch = table._scratch

    def search():
        key_hash = next(keys)
        slice_search.plan_rows(key_hash, table._tiles, scratch.offsets, scratch.sizes)
        table.file.read_pieces(scratch.offsets, scratch.sizes, scratch.pieces)
        slice_search.intersect_rows(
            scratch.pieces, key_hash, table._tiles, scratch.out, scratch.state
        )

    search_rows = make_row_search(filters, RANDOM.integers(0, 2**64, 1, dtype=np.uint64))
    versus(search, {"row layout": search_rows}, rounds=5_000)


def test_one_key(versus, filters, table):
    keys = iter(RANDOM.integers(0, 2**64, (100_000, 1), dtype=np.uint64))
    search_rows = make_row_search(filters, RANDOM.integers(0, 2**64, 1, dtype=np.uint64))
    versus(lambda: table.find(next(keys)), {"row layout": search_rows}, rounds=5_000)


def test_a_million_keys(versus, filters, table):
    """Sort, read, verify and AND on one core. The row layout looks up 1/500 of the keys."""
    hashes = RANDOM.integers(0, 2**64, KEYS, dtype=np.uint64)
    (tile,) = table.directory.tiles
    keys, zones = np.empty(1 << 18, dtype=np.int64), np.empty(1 << 18, dtype=np.int64)
    numbers = np.array(tile, dtype=np.uint64)

    def search():
        ordered = hashes[np.argsort(hashes)]
        bounds = np.searchsorted(ordered, np.arange(0, 1 << 32, 1 << 26, dtype=np.uint64) << 32)
        for number in range(64):
            loaded, _ = load_blocks(table.file, tile, 16 * number, 16 * number + 16)
            end = bounds[number + 1] if number < 63 else KEYS
            state = np.zeros(2, dtype=np.int64)
            part = ordered[bounds[number] : end]
            slice_search.find_pairs_in_tile(loaded, 16 * number, numbers, part, keys, zones, state)

    search_rows = make_row_search(filters, hashes[:ROW_KEYS])
    versus(search, {"row layout, 1/500 of the keys": search_rows}, rounds=5)


def test_a_million_keys_on_all_cores(versus, filters, table):
    hashes = RANDOM.integers(0, 2**64, KEYS, dtype=np.uint64)
    search_rows = make_row_search(filters, hashes[:ROW_KEYS])
    versus(
        lambda: sum(keys.size for keys, _ in table.pairs(hashes)),
        {"row layout, 1/500 of the keys": search_rows},
        rounds=5,
    )
