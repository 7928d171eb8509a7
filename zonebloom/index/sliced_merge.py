"""Sliced tables of tables there are already, of either layout; memory is some blocks'."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pyarrow.fs as pafs

from zonebloom.errors import CorruptIndex, InvalidArgument
from zonebloom.index.sliced import SlicedTable
from zonebloom.index.sliced_directory import Tile
from zonebloom.index.sliced_walk import load_blocks
from zonebloom.index.sliced_write import Metadata, SlicedFile, require_tile
from zonebloom.index.table import WrittenTable, ZoneTable
from zonebloom.sbbf.slices_numpy import block_words, row_words
from zonebloom.threads import cores, in_order

# A bit row of so many zones is a page of 4096 bytes: a lookup of a billion rows then costs 36
# short reads, not the 270 of tiles as they are built.
MERGED_TILE_ZONES = 32768

# Blocks in the making: long pieces of every filter, for those of tables lie far apart.
_MIN_MERGE_BYTES = 2 << 20
_MAX_MERGE_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class _Part:
    """Zones of one source that follow each other in it, all of one size of filter.

    ``source`` is the addresses of filters, or a tile of a sliced table.
    """

    source: np.ndarray | tuple[SlicedTable, Tile]
    first: int
    count: int

    def joined(self, other: _Part) -> _Part | None:
        """One part of both, if filters of both are known by address."""
        if not isinstance(self.source, np.ndarray) or not isinstance(other.source, np.ndarray):
            return None
        return _Part(np.concatenate([self.source, other.source]), 0, self.count + other.count)

    def cut(self, count: int) -> tuple[_Part, _Part]:
        left = _Part(self.source, self.first, count)
        return left, _Part(self.source, self.first + count, self.count - count)

    def put(self, start: int, stop: int, tile: Tile, at: int, out: np.ndarray) -> None:
        """Put blocks of these zones into the rows of a tile, from zone ``at`` on."""
        from zonebloom.sbbf import slices

        if isinstance(self.source, np.ndarray):
            filters = self.source[self.first : self.first + self.count]
            words = row_words(self.count)
            whole = at == 0 and self.count == tile.num_zones
            size = block_words(words)
            blocks = out if whole else np.empty((stop - start) * size, dtype=np.uint64)
            slices.slice_blocks(filters, start, stop - start, words, size, blocks)
            if whole:
                return
            first = 0
        else:
            table, source = self.source
            blocks, damage = load_blocks(table.file, source, start, stop)
            if damage:
                raise CorruptIndex(f"{table.path}: {damage}; build the index again")
            words, size, first = source.row_words, source.block_words, self.first
        slices.splice(
            blocks, words, size, first, self.count, tile.row_words, tile.block_words, at, out
        )


def merge(
    tables: Sequence[ZoneTable | SlicedTable],
    filesystem: pafs.FileSystem,
    path: str,
    tile_zones: int = MERGED_TILE_ZONES,
) -> WrittenTable:
    """Write tables of either layout as one sliced table, one after another, tiles filled."""
    require_tile(tile_zones)
    parameters = {(table.number_of_items, table.probability) for table in tables}
    if len(parameters) != 1:
        raise InvalidArgument(
            f"{len(tables)} tables of {len(parameters)} sets of parameters cannot be one table"
        )
    zones = Metadata()
    parts: dict[int, list[_Part]] = {}
    for table in tables:
        zones.add(table.fragment_ids, table.starts, table.lengths, table.has_null, table.num_blocks)
        for num_blocks, part in _parts(table):
            of_size = parts.setdefault(num_blocks, [])
            if of_size and (joined := of_size[-1].joined(part)):
                of_size[-1] = joined
            else:
                of_size.append(part)
    file = SlicedFile(filesystem, path, *parameters.pop())
    try:
        for num_blocks, of_size in parts.items():
            for of_tile in _tiles_of(of_size, tile_zones):
                _write_tile(file, of_tile, num_blocks)
    except BaseException:
        file.abort()
        raise
    return file.close(zones)


def _parts(table: ZoneTable | SlicedTable) -> Iterator[tuple[int, _Part]]:
    if isinstance(table, SlicedTable):
        for tile in table.directory.tiles:
            yield tile.num_blocks, _Part((table, tile), 0, tile.num_zones)
        return
    base = np.uint64(table.words.ctypes.data)
    for num_blocks in np.unique(table.num_blocks).tolist():
        first = table.first_words[table.num_blocks == num_blocks]
        yield num_blocks, _Part(base + first * np.uint64(4), 0, first.size)


def _tiles_of(parts: list[_Part], tile_zones: int) -> Iterator[list[_Part]]:
    """The parts of each tile, ``tile_zones`` zones in all but the last."""
    held: list[_Part] = []
    room = tile_zones
    for part in parts:
        while part.count:
            taken, part = part.cut(min(room, part.count))
            held.append(taken)
            room -= taken.count
            if not room:
                yield held
                held, room = [], tile_zones
    if held:
        yield held


def _write_tile(file: SlicedFile, parts: list[_Part], num_blocks: int) -> None:
    from zonebloom.sbbf import slices

    tile = file.begin_tile(sum(part.count for part in parts), num_blocks)
    # Of few filters little at a time, which stays in the processor's cache; of many, long pieces.
    wanted = min(max(tile.num_bytes // 64, _MIN_MERGE_BYTES), _MAX_MERGE_BYTES)
    step = max(1, wanted // (tile.block_words * 8))

    def turned(start: int) -> np.ndarray:
        stop = min(start + step, num_blocks)
        out = np.zeros((stop - start) * tile.block_words, dtype=np.uint64)
        at = 0
        for part in parts:
            part.put(start, stop, tile, at, out)
            at += part.count
        seed = tile.block_seed(start)
        slices.seal(out, tile.row_words, tile.block_words, seed, tile.seed_step)
        return out

    # Blocks are turned while those before them are written.
    threads = cores()
    with ThreadPoolExecutor(threads) as pool:
        for blocks in in_order(pool, turned, range(0, num_blocks, step), threads + 1):
            file.write_blocks(blocks)
