"""Many hashes through a sliced table: its blocks read once, in order, by several threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from zonebloom.index.sliced_directory import Tile
from zonebloom.sbbf.slices_numpy import block_numbers, set_bits
from zonebloom.storage.random_access import RandomAccessFile
from zonebloom.threads import cores, in_order

# Bytes of blocks a thread holds at a time. Locally what it reads should still be in the
# processor's cache when it is searched.
_LOCAL_RUN = 2 << 20
_REMOTE_RUN = 8 << 20
_REMOTE_GAP = 1 << 20
_REMOTE_THREADS = 16
# Pairs a thread holds at a time; at least those of one hash.
_PAIRS = 1 << 18


@dataclass(frozen=True, slots=True)
class _Run:
    """Blocks ``start`` to ``stop`` of a tile, and the sorted hashes that fall in them."""

    tile: Tile
    start: int
    stop: int
    hashes: np.ndarray
    first_key: int


def load_blocks(
    file: RandomAccessFile, tile: Tile, start: int, stop: int
) -> tuple[np.ndarray, str]:
    """Blocks of a tile, damaged rows filled with ones, and what is wrong with them if anything."""
    from zonebloom.sbbf import slices

    blocks = np.empty((stop - start) * tile.block_words, dtype=np.uint64)
    try:
        file.read_into(tile.offset + start * tile.block_words * 8, blocks)
    except OSError as error:
        blocks.fill(np.uint64(0xFFFFFFFFFFFFFFFF))
        return blocks, f"it cannot be read ({error})"
    seed = tile.block_seed(start)
    damaged = slices.open_damaged(blocks, tile.row_words, tile.block_words, seed, tile.seed_step)
    return blocks, f"{damaged} bit rows are damaged" if damaged else ""


def _runs(file: RandomAccessFile, tiles: Sequence[Tile], hashes: np.ndarray) -> Iterator[_Run]:
    for tile in tiles:
        size = tile.block_words * 8
        longest = max(1, (_LOCAL_RUN if file.is_local else _REMOTE_RUN) // size)
        numbers = block_numbers(hashes, tile.num_blocks)
        touched = np.unique(numbers)
        # Most of the tile: all of it in one go is what disks and stores do best.
        if 2 * touched.size >= tile.num_blocks:
            gap = tile.num_blocks
        else:
            gap = 0 if file.is_local else _REMOTE_GAP // size
        at = 0
        while at < touched.size:
            start = int(touched[at])
            end = int(np.searchsorted(touched, start + longest))
            breaks = np.flatnonzero(np.diff(touched[at:end]) > gap + 1)
            end = at + int(breaks[0]) + 1 if breaks.size else end
            stop = int(touched[end - 1]) + 1
            low, high = np.searchsorted(numbers, [start, stop]).tolist()
            yield _Run(tile, start, stop, hashes[low:high], low)
            at = end


class _Search:
    """The pairs of one run, as many at a time as there is room for."""

    def __init__(self, file: RandomAccessFile, run: _Run):
        self._run = run
        self._state = np.zeros(2, dtype=np.int64)
        self._blocks, self.damage = load_blocks(file, run.tile, run.start, run.stop)

    def next(self) -> tuple[np.ndarray, np.ndarray] | None:
        from zonebloom.sbbf import slice_search

        run, tile = self._run, self._run.tile
        left = run.hashes.size - int(self._state[0])
        if not left:
            return None
        # Little memory for the usual few hits; the kernel comes back for more.
        room = max(tile.num_zones, min(_PAIRS, 2 * left))
        keys, zones = np.empty(room, dtype=np.int64), np.empty(room, dtype=np.int64)
        slice_search.find_pairs(
            self._blocks,
            run.start,
            tile.num_blocks,
            tile.row_words,
            tile.block_words,
            tile.num_zones,
            run.hashes,
            keys,
            zones,
            self._state,
        )
        count = int(self._state[1])
        return keys[:count] + run.first_key, zones[:count] + tile.first


def _threads(file: RandomAccessFile) -> int:
    return cores() if file.is_local else _REMOTE_THREADS


def find_pairs(
    file: RandomAccessFile,
    tiles: Sequence[Tile],
    hashes: np.ndarray,
    report: Callable[[str], None],
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Pairs of a position in sorted hashes and a place in the tiles, a part at a time."""

    def begin(run: _Run) -> tuple[_Search, tuple[np.ndarray, np.ndarray] | None]:
        search = _Search(file, run)
        return search, search.next()

    threads = _threads(file)
    with ThreadPoolExecutor(threads) as pool:
        for search, pairs in in_order(pool, begin, _runs(file, tiles, hashes), threads + 1):
            if search.damage:
                report(search.damage)
            while pairs is not None:
                yield pairs
                pairs = search.next()


def find_any(
    file: RandomAccessFile,
    tiles: Sequence[Tile],
    hashes: np.ndarray,
    report: Callable[[str], None],
) -> np.ndarray:
    """Places in the tiles that may hold any of sorted hashes, int64, in order."""
    from zonebloom.sbbf import slice_search

    def search(run: _Run) -> tuple[Tile, np.ndarray, str]:
        tile = run.tile
        blocks, damage = load_blocks(file, tile, run.start, run.stop)
        bits = np.zeros(tile.row_words, dtype=np.uint64)
        slice_search.find_any(
            blocks,
            run.start,
            tile.num_blocks,
            tile.row_words,
            tile.block_words,
            run.hashes,
            bits,
        )
        return tile, bits, damage

    threads = _threads(file)
    hits = {tile.first: np.zeros(tile.row_words, dtype=np.uint64) for tile in tiles}
    with ThreadPoolExecutor(threads) as pool:
        for tile, bits, damage in in_order(pool, search, _runs(file, tiles, hashes), threads + 1):
            if damage:
                report(damage)
            hits[tile.first] |= bits
    found = [set_bits(hits[tile.first], tile.num_zones) + tile.first for tile in tiles]
    return np.concatenate(found)
