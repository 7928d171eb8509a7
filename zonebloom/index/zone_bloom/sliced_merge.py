"""Merge tables of either layout into one sliced table, with only a few blocks in memory."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence

import numpy as np
import xxhash

from zonebloom.base.threads import map_in_order, num_cores, thread_pool
from zonebloom.errors import InvalidArgument
from zonebloom.index.table import HashingFile, WrittenTable, ZoneRuns
from zonebloom.index.zone_bloom.sliced_file import PAGE_BYTES, SLICED_MAGIC, Directory
from zonebloom.index.zone_bloom.table import FilterRun, ZoneTable
from zonebloom.sbbf.slice_layout import Tile, place_tile
from zonebloom.storage.files import FileCreator

# A bit row of this many zones is a page of 4096 bytes. A lookup in a billion rows then takes 36
# short reads instead of the 270 that the small tiles of a build would take.
MERGED_TILE_ZONES = 32768

# Bytes of blocks that a thread transposes at a time. Filters of the input tables are far apart, so
# long pieces of each filter are read.
_MIN_MERGE_BYTES = 2 << 20
_MAX_MERGE_BYTES = 16 << 20
# Tiles with rows of at least this many words are aligned to pages. It saves no reads for others.
_ALIGNED_ROW_WORDS = 64


def new_salt() -> int:
    """Return a random salt that distinguishes the row checks of one file from those of others."""
    return secrets.randbits(64)


def merge_tables(
    tables: Sequence[ZoneTable],
    creator: FileCreator,
    path: str,
    tile_zones: int = MERGED_TILE_ZONES,
) -> WrittenTable:
    """Write the zones of all tables, in order, as one sliced table of full tiles."""
    parameters = {(table.number_of_items, table.probability) for table in tables}
    if len(parameters) != 1:
        raise InvalidArgument(
            f"{len(tables)} tables with {len(parameters)} sets of parameters cannot become one"
        )
    ((items, probability),) = parameters
    ids, starts, lengths, has_null, num_blocks = (
        np.concatenate([getattr(table, name) for table in tables])
        for name in ("fragment_ids", "starts", "lengths", "has_null", "num_blocks")
    )
    sizes, groups = np.unique(num_blocks, return_inverse=True)
    by_size: dict[int, list[FilterRun]] = {}
    for table in tables:
        for run in table.filter_runs():
            by_size.setdefault(run.num_blocks, []).append(run)
    salt = new_salt()
    tiles: list[Tile] = []
    with HashingFile(creator.open_output_stream(path)) as sink:
        sink.write(SLICED_MAGIC)
        for size, runs in by_size.items():
            group = int(np.searchsorted(sizes, size))
            for tile_runs in _split_into_tiles(runs, tile_zones):
                num_zones = sum(len(run.zones) for run in tile_runs)
                previous = tiles[-1] if tiles else None
                tile = place_tile(group, sink.size, num_zones, size, previous, salt)
                if tile.row_words >= _ALIGNED_ROW_WORDS:
                    padding = -sink.size % PAGE_BYTES
                    sink.write(bytes(padding))
                    tile = tile._replace(offset=tile.offset + padding)
                tiles.append(tile)
                for blocks in _merge_blocks(tile, tile_runs):
                    sink.write(blocks.data.cast("B"))
        directory = Directory(
            probability,
            ZoneRuns.from_zones(ids, starts, lengths, items),
            has_null,
            tuple(tiles),
            groups.astype(np.uint32) if sizes.size > 1 else None,
            salt,
            sink.checksum.intdigest(),
        ).to_bytes()
        sink.write(directory)
    return WrittenTable(sink.size, xxhash.xxh3_64_hexdigest(directory), starts.size)


def _split_into_tiles(runs: list[FilterRun], tile_zones: int) -> Iterator[list[FilterRun]]:
    tile_runs: list[FilterRun] = []
    num_free = tile_zones
    for run in runs:
        zones = run.zones
        while zones:
            tile_runs.append(run._replace(zones=zones[:num_free]))
            zones, num_free = zones[num_free:], num_free - len(zones[:num_free])
            if not num_free:
                yield tile_runs
                tile_runs, num_free = [], tile_zones
    if tile_runs:
        yield tile_runs


def _merge_blocks(tile: Tile, runs: list[FilterRun]) -> Iterator[np.ndarray]:
    """Yield the blocks of a tile in order. Later ones are transposed while the caller writes."""
    from zonebloom.sbbf import slices

    # Small parts of a small tile stay in the processor's cache. Large tiles need long pieces.
    size = min(max(tile.num_bytes // 64, _MIN_MERGE_BYTES), _MAX_MERGE_BYTES)
    step = max(1, size // (tile.block_words * 8))

    def transpose(start: int) -> np.ndarray:
        stop = min(start + step, tile.num_blocks)
        out = np.empty((stop - start, tile.block_words), dtype=np.uint64)
        loaded_runs = [run.load(run.zones, start, stop) for run in runs]
        filters = np.concatenate([addresses for _, addresses in loaded_runs])
        slices.slice_blocks(filters, start, tile.row_words, out)
        slices.write_checks(out, tile, start)
        return out

    threads = num_cores()
    with thread_pool(threads) as pool:
        yield from map_in_order(pool, transpose, range(0, tile.num_blocks, step), threads + 1)
