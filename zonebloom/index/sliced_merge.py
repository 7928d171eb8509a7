"""Tables of either layout written as one sliced table; memory is some blocks'."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pyarrow.fs as pafs

from zonebloom.errors import InvalidArgument
from zonebloom.index.sliced_file import SlicedFile
from zonebloom.index.table import FilterRun, Table, WrittenTable
from zonebloom.threads import cores, in_order

# A bit row of so many zones is a page of 4096 bytes: a lookup of a billion rows then costs 36
# short reads, not the 270 of tiles as they are built.
MERGED_TILE_ZONES = 32768

# Blocks in the making: long pieces of every filter, for those of tables lie far apart.
_MIN_MERGE_BYTES = 2 << 20
_MAX_MERGE_BYTES = 16 << 20


def merge(
    tables: Sequence[Table],
    filesystem: pafs.FileSystem,
    path: str,
    tile_zones: int = MERGED_TILE_ZONES,
) -> WrittenTable:
    """Write tables as one sliced table, one after another, tiles filled."""
    parameters = {(table.number_of_items, table.probability) for table in tables}
    if len(parameters) != 1:
        raise InvalidArgument(
            f"{len(tables)} tables of {len(parameters)} sets of parameters cannot be one table"
        )
    by_size: dict[int, list[FilterRun]] = {}
    for table in tables:
        for run in table.filter_runs():
            by_size.setdefault(run.num_blocks, []).append(run)
    file = SlicedFile(filesystem, path)
    try:
        for runs in by_size.values():
            for of_tile in _tiles_of(runs, tile_zones):
                _write_tile(file, of_tile)
        return file.close(tables)
    except BaseException:
        file.abort()
        raise


def _tiles_of(runs: list[FilterRun], tile_zones: int) -> Iterator[list[FilterRun]]:
    """The filters of each tile, ``tile_zones`` zones in all but the last."""
    of_tile: list[FilterRun] = []
    room = tile_zones
    for run in runs:
        zones = run.zones
        while zones:
            of_tile.append(replace(run, zones=zones[:room]))
            zones, room = zones[room:], room - len(zones[:room])
            if not room:
                yield of_tile
                of_tile, room = [], tile_zones
    if of_tile:
        yield of_tile


def _write_tile(file: SlicedFile, runs: list[FilterRun]) -> None:
    from zonebloom.sbbf import slices

    num_blocks = runs[0].num_blocks
    tile = file.begin_tile(sum(len(run.zones) for run in runs), num_blocks)
    # Of few filters little at a time, which stays in the processor's cache; of many, long pieces.
    size = min(max(tile.num_bytes // 64, _MIN_MERGE_BYTES), _MAX_MERGE_BYTES)
    step = max(1, size // (tile.block_words * 8))

    def turned(start: int) -> np.ndarray:
        stop = min(start + step, num_blocks)
        out = np.empty((stop - start, tile.block_words), dtype=np.uint64)
        loaded = [run.load(run.zones, start, stop) for run in runs]
        filters = np.concatenate([places for _, places in loaded])
        slices.slice_blocks(filters, start, tile.row_words, out)
        slices.seal(out, tile, start)
        return out

    # Blocks are turned while those before them are written.
    threads = cores()
    with ThreadPoolExecutor(threads) as pool:
        for blocks in in_order(pool, turned, range(0, num_blocks, step), threads + 1):
            file.write_blocks(blocks)
