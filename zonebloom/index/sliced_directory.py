"""What a sliced table says of itself: its zones, and where its tiles lie.

    magic | tile | tile | ... | directory | trailer

The directory comes last, so that a file is written in one pass and read from its end. It is
compact, for a lookup reads all of it: zones are runs (all of a fragment's but the last have
``number_of_items`` rows), null flags are bits.

    head      number_of_items i64, probability f64, zones, runs, groups, tiles u64,
              salt of the rows' checks u64, XXH3-64 of all before the directory u64
    runs      fragment_id, first row, zones, rows       each u64[runs]
    groups    blocks a filter                           u64[groups]
    tiles     group, offset, zones                      each u64[tiles]
    nulls     a bit a zone
    group of each zone, only when there are several     u8, or u32 when there are over 256

    trailer   bytes of the directory u64, its XXH64 u64, version u32, 0 u32, magic

All little-endian. A group is the zones whose filters have one number of blocks, and its tiles
hold them in their order.

Version 1 had neither salt nor digest, and its checks were seeded with the number of the row in
its block alone: one of its files or blocks put in the place of another went unnoticed. Its files
are still read.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import xxhash

from zonebloom.sbbf.sizing import BYTES_PER_BLOCK, MAX_LOG2_BYTES
from zonebloom.sbbf.slices_numpy import (
    MAX_SEED,
    MAX_TILE_ZONES,
    ROWS_PER_BLOCK,
    block_words,
    row_words,
)

MAGIC = b"ZBSLICED"
VERSION = 2
TRAILER = struct.Struct("<QQII8s")
_HEAD = struct.Struct("<qdQQQQQQ")
_HEAD_1 = struct.Struct("<qdQQQQ")
_HEADS = {1: _HEAD_1, VERSION: _HEAD}
_RUN_COLUMNS = 4
_TILE_COLUMNS = 3

# No sum of counts that fit a directory of this size can wrap.
_MAX_BYTES = 1 << 31
_MAX_ROWS = 1 << 32
_MAX_BLOCKS = (1 << MAX_LOG2_BYTES) // BYTES_PER_BLOCK


class Tile(NamedTuple):
    """One tile: where it lies and what shape it has.

    ``first`` counts zones over the tiles before it; lengths are in 64-bit words. ``seed`` is of
    the check of its first row, ``seed_step`` is from a block's to that of the next.
    """

    group: int
    offset: int
    num_zones: int
    num_blocks: int
    row_words: int
    block_words: int
    first: int
    seed: int
    seed_step: int

    @property
    def num_bytes(self) -> int:
        return self.num_blocks * self.block_words * 8

    def block_seed(self, block: int) -> int:
        """Seed of the check of the first row of one of its blocks."""
        return (self.seed + block * self.seed_step) & MAX_SEED


def place_tile(
    group: int, offset: int, num_zones: int, num_blocks: int, before: Tile | None, salt: int | None
) -> Tile:
    """The tile after another one in its file; a file of version 1 has no salt."""
    words = row_words(num_zones)
    first = before.first + before.num_zones if before else 0
    seed = before.block_seed(before.num_blocks) if before else salt or 0
    step = 0 if salt is None else ROWS_PER_BLOCK
    return Tile(group, offset, num_zones, num_blocks, words, block_words(words), first, seed, step)


@dataclass(frozen=True, slots=True)
class Runs:
    """Zones that follow each other in a fragment, all of one length but the last.

    Attributes
    ----------
    fragment_ids, first_rows, num_zones, num_rows : uint64 array, shape (runs,)
    """

    fragment_ids: np.ndarray
    first_rows: np.ndarray
    num_zones: np.ndarray
    num_rows: np.ndarray

    @classmethod
    def of(
        cls, fragment_ids: np.ndarray, starts: np.ndarray, lengths: np.ndarray, items: int
    ) -> Runs:
        """Put zones together to as few runs as say all of them."""
        goes_on = np.zeros(starts.size, dtype=bool)
        if 0 < items <= _MAX_ROWS:
            full = np.uint64(items)
            goes_on[1:] = (
                (fragment_ids[1:] == fragment_ids[:-1])
                & (lengths[:-1] == full)
                & (starts[1:] == starts[:-1] + lengths[:-1])
                & (lengths[1:] > 0)
                & (lengths[1:] <= full)
            )
        first = np.flatnonzero(~goes_on)
        num_zones = np.diff(first, append=starts.size).astype(np.uint64)
        num_rows = np.add.reduceat(lengths, first) if first.size else lengths[:0]
        return cls(fragment_ids[first], starts[first], num_zones, num_rows)

    def locate(self, zones: np.ndarray, items: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Fragment, start and length of zones given by number; uint64, shape ``(n,)`` each."""
        stops = np.cumsum(self.num_zones).astype(np.int64)
        run = np.searchsorted(stops, zones, side="right")
        within = (zones - stops[run]).astype(np.uint64) + self.num_zones[run]
        before = within * np.uint64(max(items, 0))
        left = self.num_rows[run] - before
        alone = self.num_zones[run] == 1
        lengths = np.where(alone, left, np.minimum(left, np.uint64(max(items, 0))))
        return self.fragment_ids[run], self.first_rows[run] + before, lengths


@dataclass(frozen=True, slots=True)
class Directory:
    """All of a sliced table but its bits.

    Attributes
    ----------
    number_of_items : int
    probability : float
    runs : Runs
    has_null : uint8 array
        A bit a zone, little-endian.
    num_zones : int
    tiles : tuple of Tile
    zone_groups : uint32 array, shape (zones,), or None
        Group of each zone, None when there is one.
    salt : int
        Of the checks of its rows; 0 in version 1.
    content : int or None
        XXH3-64 of all before the directory; None in version 1.
    """

    number_of_items: int
    probability: float
    runs: Runs
    has_null: np.ndarray
    num_zones: int
    tiles: tuple[Tile, ...]
    zone_groups: np.ndarray | None
    salt: int
    content: int | None

    def to_bytes(self) -> bytes:
        """The directory and the trailer."""
        blocks = dict(sorted((tile.group, tile.num_blocks) for tile in self.tiles))
        runs, tiles = self.runs, self.tiles
        parts = [
            _HEAD.pack(
                self.number_of_items,
                self.probability,
                self.num_zones,
                runs.num_zones.size,
                len(blocks),
                len(tiles),
                self.salt,
                self.content,
            ),
            *(
                column.astype("<u8").tobytes()
                for column in (
                    runs.fragment_ids,
                    runs.first_rows,
                    runs.num_zones,
                    runs.num_rows,
                    np.array(list(blocks.values()), dtype=np.uint64),
                    np.array([tile.group for tile in tiles], dtype=np.uint64),
                    np.array([tile.offset for tile in tiles], dtype=np.uint64),
                    np.array([tile.num_zones for tile in tiles], dtype=np.uint64),
                )
            ),
            self.has_null.tobytes(),
        ]
        if self.zone_groups is not None:
            parts.append(self.zone_groups.astype(_group_dtype(len(blocks))).tobytes())
        data = b"".join(parts)
        return data + TRAILER.pack(len(data), xxhash.xxh64_intdigest(data), VERSION, 0, MAGIC)

    def zone_order(self) -> np.ndarray | None:
        """Number of the zone at each place of the tiles, int64; None when it is that place."""
        if self.zone_groups is None:
            return None
        by_group = np.argsort(self.zone_groups, kind="stable")
        counts = np.bincount(self.zone_groups)
        next_place = np.cumsum(counts) - counts
        order = np.empty(self.num_zones, dtype=np.int64)
        for tile in self.tiles:
            at = int(next_place[tile.group])
            order[tile.first : tile.first + tile.num_zones] = by_group[at : at + tile.num_zones]
            next_place[tile.group] += tile.num_zones
        return order


def directory_bytes(trailer: bytes, num_bytes: int) -> int:
    """Length of the directory before a trailer, of a file of a size."""
    if len(trailer) != TRAILER.size:
        raise ValueError("it is too short")
    size, _, version, _, magic = TRAILER.unpack(trailer)
    if magic != MAGIC:
        raise ValueError("it does not end as one")
    if version not in _HEADS:
        raise ValueError(f"it is of format {version}, {VERSION} is known")
    if not _HEADS[version].size <= size <= min(num_bytes - TRAILER.size - len(MAGIC), _MAX_BYTES):
        raise ValueError(f"its directory claims {size:,} bytes")
    return size


def read_directory(data: bytes, trailer: bytes, num_bytes: int) -> Directory:
    """Make a directory of its bytes, with every count and offset checked."""
    _, checksum, version, _, _ = TRAILER.unpack(trailer)
    if xxhash.xxh64_intdigest(data) != checksum:
        raise ValueError("the checksum of its directory does not match")
    head = _HEADS[version]
    items, probability, num_zones, num_runs, num_groups, num_tiles, *rest = head.unpack_from(data)
    salt, content = rest or (None, None)
    numbers = _RUN_COLUMNS * num_runs + num_groups + _TILE_COLUMNS * num_tiles
    null_bytes = -(-num_zones // 8)
    group_bytes = _group_dtype(num_groups).itemsize * num_zones if num_groups > 1 else 0
    if head.size + 8 * numbers + null_bytes + group_bytes != len(data):
        raise ValueError("its directory has another size than its counts say")
    column = np.frombuffer(data, dtype="<u8", count=numbers, offset=head.size)
    at = head.size + 8 * numbers
    has_null = np.frombuffer(data, dtype=np.uint8, count=null_bytes, offset=at)
    groups = None
    if num_groups > 1:
        stored = np.frombuffer(data, _group_dtype(num_groups), offset=at + null_bytes)
        groups = stored.astype(np.uint32)
    runs = Runs(*column[: _RUN_COLUMNS * num_runs].reshape(_RUN_COLUMNS, num_runs))
    _check_runs(runs, items, num_zones)
    blocks = column[_RUN_COLUMNS * num_runs :][:num_groups].tolist()
    of_tiles = column[_RUN_COLUMNS * num_runs + num_groups :].reshape(_TILE_COLUMNS, num_tiles)
    end = num_bytes - TRAILER.size - len(data)
    tiles = _tiles(of_tiles.T.tolist(), blocks, end, salt)
    held = [0] * num_groups
    for tile in tiles:
        held[tile.group] += tile.num_zones
    if groups is None:
        sizes = [num_zones] if num_groups else []
    else:
        sizes = np.bincount(groups, minlength=num_groups).tolist()
    if held != sizes or (num_zones and not num_groups):
        raise ValueError("its tiles hold other zones than it has")
    return Directory(
        items, probability, runs, has_null, num_zones, tiles, groups, salt or 0, content
    )


def _group_dtype(num_groups: int) -> np.dtype:
    return np.dtype("u1" if num_groups <= 256 else "<u4")


def _check_runs(runs: Runs, items: int, num_zones: int) -> None:
    if (runs.num_zones > num_zones).any() or int(runs.num_zones.sum()) != num_zones:
        raise ValueError("its runs are not its zones")
    limit = np.uint64(_MAX_ROWS)
    if (runs.num_rows > limit).any() or (runs.first_rows > limit - runs.num_rows).any():
        raise ValueError("it holds a zone past 2**32 rows")
    several = runs.num_zones != 1
    if not several.any():
        return
    if not 0 < items <= _MAX_ROWS:
        raise ValueError(f"its zones claim {items} rows each")
    rows = runs.num_rows[several]
    wanted = (rows + np.uint64(items - 1)) // np.uint64(items)
    if (wanted != runs.num_zones[several]).any() or (rows == 0).any():
        raise ValueError("its runs have other rows than their zones")


def _tiles(
    columns: list[list[int]], blocks: list[int], end: int, salt: int | None
) -> tuple[Tile, ...]:
    if any(not 0 < count <= _MAX_BLOCKS for count in blocks):
        raise ValueError("it holds a filter of no size")
    tiles: list[Tile] = []
    free = len(MAGIC)
    for group, offset, num_zones in columns:
        if group >= len(blocks) or not 0 < num_zones <= MAX_TILE_ZONES:
            raise ValueError("it holds a tile of no size")
        before = tiles[-1] if tiles else None
        tile = place_tile(group, offset, num_zones, blocks[group], before, salt)
        if offset < free or offset % 8 or offset + tile.num_bytes > end:
            raise ValueError("it holds a tile outside its file")
        free = offset + tile.num_bytes
        tiles.append(tile)
    return tuple(tiles)
