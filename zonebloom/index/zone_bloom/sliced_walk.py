"""Look up many hashes in a sliced table by reading its blocks once, in order, on many threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from zonebloom.base.threads import map_in_order, num_cores, thread_pool
from zonebloom.index.table import Pairs
from zonebloom.sbbf.slice_layout import Tile
from zonebloom.sbbf.spec import block_numbers
from zonebloom.storage.random_access import RandomAccessFile

# Bytes of blocks that a thread holds at a time. Local blocks should still be in the processor's
# cache when they are searched.
_LOCAL_RUN_BYTES = 2 << 20
_REMOTE_RUN_BYTES = 8 << 20
_REMOTE_GAP_BYTES = 1 << 20
_REMOTE_THREADS = 16
# Pairs that a thread holds at a time, or more if one hash alone may hit more zones of a tile.
_MAX_PAIRS = 1 << 18


@dataclass(frozen=True, slots=True)
class _Run:
    """Blocks ``start`` to ``stop`` of a tile, and the sorted hashes that map to them."""

    tile: Tile
    start: int
    stop: int
    hashes: np.ndarray
    first_key: int


def load_blocks(
    file: RandomAccessFile, tile: Tile, start: int, stop: int
) -> tuple[np.ndarray, str]:
    """Return blocks of a tile, with damaged rows filled with ones, and a text about the damage.

    The text is empty if nothing is damaged.
    """
    from zonebloom.sbbf import slices

    blocks = np.empty((stop - start, tile.block_words), dtype=np.uint64)
    try:
        file.read_into(tile.offset + start * tile.block_words * 8, blocks)
    except OSError as error:
        blocks.fill(np.uint64(0xFFFFFFFFFFFFFFFF))
        return blocks, f"it cannot be read ({error})"
    damaged = slices.fill_damaged(blocks, tile, start)
    return blocks, f"{damaged} bit rows are damaged" if damaged else ""


def _runs(file: RandomAccessFile, tiles: Sequence[Tile], hashes: np.ndarray) -> Iterator[_Run]:
    for tile in tiles:
        size = tile.block_words * 8
        max_blocks = max(1, (_LOCAL_RUN_BYTES if file.is_local else _REMOTE_RUN_BYTES) // size)
        hash_blocks = block_numbers(hashes, tile.num_blocks).astype(np.int64)
        needed_blocks = np.unique(hash_blocks)
        # If most of the tile is needed, read all of it: long reads are fastest.
        if 2 * needed_blocks.size >= tile.num_blocks:
            gap = tile.num_blocks
        else:
            gap = 0 if file.is_local else _REMOTE_GAP_BYTES // size
        first = 0
        while first < needed_blocks.size:
            start = int(needed_blocks[first])
            end = int(np.searchsorted(needed_blocks, start + max_blocks))
            breaks = np.flatnonzero(np.diff(needed_blocks[first:end]) > gap + 1)
            end = first + int(breaks[0]) + 1 if breaks.size else end
            stop = int(needed_blocks[end - 1]) + 1
            low, high = np.searchsorted(hash_blocks, [start, stop]).tolist()
            yield _Run(tile, start, stop, hashes[low:high], low)
            first = end


def _pairs_of(run: _Run, blocks: np.ndarray) -> Iterator[Pairs]:
    from zonebloom.sbbf import slice_search

    tile, state = np.array(run.tile, dtype=np.uint64), np.zeros(2, dtype=np.int64)
    while num_left := run.hashes.size - int(state[0]):
        # Usually there are few hits, so start with little memory. The kernel resumes when it is
        # full.
        capacity = max(run.tile.num_zones, min(_MAX_PAIRS, 2 * num_left))
        keys, zones = np.empty(capacity, dtype=np.int64), np.empty(capacity, dtype=np.int64)
        slice_search.find_pairs_in_tile(blocks, run.start, tile, run.hashes, keys, zones, state)
        count = int(state[1])
        yield keys[:count] + run.first_key, zones[:count] + run.tile.first_zone


def find_sorted_pairs(
    file: RandomAccessFile,
    tiles: Sequence[Tile],
    hashes: np.ndarray,
    report: Callable[[str], None],
) -> Iterator[Pairs]:
    """Yield pairs of a position in sorted hashes and a position in the tiles, in parts."""

    def search(run: _Run) -> tuple[str, list[Pairs], Iterator[Pairs]]:
        blocks, damage = load_blocks(file, run.tile, run.start, run.stop)
        pairs = _pairs_of(run, blocks)
        # Most runs have only one part. Search it on the thread that read the blocks.
        return damage, list(islice(pairs, 1)), pairs

    threads = num_cores() if file.is_local else _REMOTE_THREADS
    runs = _runs(file, tiles, hashes)
    with thread_pool(threads) as pool:
        for damage, first, others in map_in_order(pool, search, runs, threads + 1):
            if damage:
                report(damage)
            yield from first
            yield from others
