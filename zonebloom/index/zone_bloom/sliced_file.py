"""Encode and decode the directory of a sliced table's file: its zones and where its tiles are.

    magic | tile | tile | ... | directory | trailer

    head      number_of_items i64, probability f64, zones, runs, groups, tiles u64,
              salt of the rows' checks u64, XXH3-64 of everything before the directory u64
    runs      fragment_id, first row, zones, rows       each u64[runs]
    groups    blocks per filter                         u64[groups]
    tiles     group, offset, zones                      each u64[tiles]
    nulls     one bit per zone
    group of each zone, only if there are several       u8, or u32 if there are over 256

    trailer   bytes of the directory u64, its XXH64 u64, version u32, 0 u32, magic

All numbers are little-endian. A group is the zones whose filters have the same number of blocks.
Its tiles hold these zones in ascending order. Version 1 had neither salt nor digest; its files are
still read.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
import xxhash

from zonebloom.index.table import ZoneRuns
from zonebloom.sbbf.slice_layout import MAX_TILE_ZONES, Tile, place_tile
from zonebloom.sbbf.spec import BYTES_PER_BLOCK, MAX_BYTES

SLICED_MAGIC = b"ZBSLICED"
VERSION = 2
# Large tiles are aligned to pages. Other tiles begin right after the previous one.
PAGE_BYTES = 4096
TRAILER = struct.Struct("<QQII8s")
_HEADS = {1: struct.Struct("<qdQQQQ"), VERSION: struct.Struct("<qdQQQQQQ")}
_RUN_COLUMNS = 4
_TILE_COLUMNS = 3

# Sums of counts that fit into a directory of this size cannot overflow.
_MAX_DIRECTORY_BYTES = 1 << 31
_MAX_BLOCKS = MAX_BYTES // BYTES_PER_BLOCK


@dataclass(frozen=True, slots=True)
class Directory:
    """The decoded directory of a sliced table: everything except the bits.

    ``zone_groups``, uint32, is None if there is only one group. ``content`` is the XXH3-64 of
    everything before the directory. In files of version 1 it is None, and the salt is 0.
    """

    probability: float
    runs: ZoneRuns
    has_null: np.ndarray
    tiles: tuple[Tile, ...]
    zone_groups: np.ndarray | None
    salt: int
    content: int | None

    def to_bytes(self) -> bytes:
        runs, tiles = self.runs, self.tiles
        blocks = dict(sorted((tile.group, tile.num_blocks) for tile in tiles))
        counts = self.has_null.size, runs.num_zones.size, len(blocks), len(tiles)
        columns = (
            runs.fragment_ids,
            runs.first_rows,
            runs.num_zones,
            runs.num_rows,
            list(blocks.values()),
            [tile.group for tile in tiles],
            [tile.offset for tile in tiles],
            [tile.num_zones for tile in tiles],
        )
        parts = [
            _HEADS[VERSION].pack(runs.items, self.probability, *counts, self.salt, self.content),
            *(np.asarray(column, dtype="<u8").tobytes() for column in columns),
            np.packbits(self.has_null, bitorder="little").tobytes(),
        ]
        if self.zone_groups is not None:
            parts.append(self.zone_groups.astype(_group_dtype(len(blocks))).tobytes())
        data = b"".join(parts)
        return data + TRAILER.pack(
            len(data), xxhash.xxh64_intdigest(data), VERSION, 0, SLICED_MAGIC
        )

    def zone_order(self) -> np.ndarray | None:
        """Return the zone number at each tile position, int64, or None if they are equal."""
        if self.zone_groups is None:
            return None
        by_group = np.argsort(self.zone_groups, kind="stable")
        counts = np.bincount(self.zone_groups)
        next_place = np.cumsum(counts) - counts
        order = np.empty(self.has_null.size, dtype=np.int64)
        for tile in self.tiles:
            first = int(next_place[tile.group])
            order[tile.first_zone : tile.first_zone + tile.num_zones] = by_group[
                first : first + tile.num_zones
            ]
            next_place[tile.group] += tile.num_zones
        return order


def directory_bytes(trailer: bytes, num_bytes: int) -> int:
    if len(trailer) != TRAILER.size:
        raise ValueError("it is too short")
    size, _, version, _, magic = TRAILER.unpack(trailer)
    if magic != SLICED_MAGIC:
        raise ValueError("it does not end with the magic bytes")
    if version not in _HEADS:
        raise ValueError(f"it has format {version}, but only {VERSION} is known")
    max_size = min(num_bytes - TRAILER.size - len(SLICED_MAGIC), _MAX_DIRECTORY_BYTES)
    if not _HEADS[version].size <= size <= max_size:
        raise ValueError(f"its directory claims {size:,} bytes")
    return size


def read_directory(data: bytes, trailer: bytes, num_bytes: int) -> Directory:
    """Decode a directory, and validate every count and offset in it."""
    _, checksum, version, _, _ = TRAILER.unpack(trailer)
    if xxhash.xxh64_intdigest(data) != checksum:
        raise ValueError("the checksum of its directory does not match")
    head = _HEADS[version]
    items, probability, num_zones, num_runs, num_groups, num_tiles, *rest = head.unpack_from(data)
    salt, content = rest or (None, None)
    num_values = _RUN_COLUMNS * num_runs + num_groups + _TILE_COLUMNS * num_tiles
    null_bytes = -(-num_zones // 8)
    group_bytes = _group_dtype(num_groups).itemsize * num_zones if num_groups > 1 else 0
    if head.size + 8 * num_values + null_bytes + group_bytes != len(data):
        raise ValueError("the size of its directory does not match its counts")
    if num_zones > num_bytes // BYTES_PER_BLOCK:
        raise ValueError("it is too short for the filters of its zones")
    values = np.frombuffer(data, dtype="<u8", count=num_values, offset=head.size)
    run_values, group_blocks, tile_values = np.split(
        values, [_RUN_COLUMNS * num_runs, _RUN_COLUMNS * num_runs + num_groups]
    )
    nulls_start = head.size + 8 * num_values
    bits = np.frombuffer(data, dtype=np.uint8, count=null_bytes, offset=nulls_start)
    has_null = np.unpackbits(bits, count=num_zones, bitorder="little").view(bool)
    groups = None
    zones_in_groups = [num_zones] if num_groups else []
    if num_groups > 1:
        stored = np.frombuffer(data, _group_dtype(num_groups), offset=nulls_start + null_bytes)
        groups = stored.astype(np.uint32)
        zones_in_groups = np.bincount(groups, minlength=num_groups).tolist()
    ids, first_rows, run_zones, run_rows = run_values.reshape(_RUN_COLUMNS, num_runs)
    runs = ZoneRuns(ids, first_rows, run_zones, run_rows, items)
    runs.require_valid(num_zones)
    end = num_bytes - TRAILER.size - len(data)
    tile_columns = tile_values.reshape(_TILE_COLUMNS, num_tiles)
    tiles = _read_tiles(tile_columns, group_blocks.tolist(), end, salt)
    zones_in_tiles = [0] * num_groups
    for tile in tiles:
        zones_in_tiles[tile.group] += tile.num_zones
    if zones_in_tiles != zones_in_groups or (num_zones and not num_groups):
        raise ValueError("its tiles do not hold exactly its zones")
    return Directory(probability, runs, has_null, tiles, groups, salt or 0, content)


def _group_dtype(num_groups: int) -> np.dtype:
    return np.dtype("u1" if num_groups <= 256 else "<u4")


def _read_tiles(
    columns: np.ndarray, group_blocks: list[int], end: int, salt: int | None
) -> tuple[Tile, ...]:
    if any(not 0 < num_blocks <= _MAX_BLOCKS for num_blocks in group_blocks):
        raise ValueError("it holds a filter of an impossible size")
    tiles: list[Tile] = []
    next_offset = len(SLICED_MAGIC)
    for group, offset, num_zones in columns.T.tolist():
        if group >= len(group_blocks) or not 0 < num_zones <= MAX_TILE_ZONES:
            raise ValueError("it holds a tile of an impossible size or group")
        previous = tiles[-1] if tiles else None
        tile = place_tile(group, offset, num_zones, group_blocks[group], previous, salt)
        # Gaps and overlaps mean that a tile has another size than stated, so refuse them.
        if (
            offset - next_offset not in (0, -next_offset % PAGE_BYTES)
            or offset + tile.num_bytes > end
        ):
            raise ValueError("it holds a tile at a wrong offset")
        next_offset = offset + tile.num_bytes
        tiles.append(tile)
    if next_offset != end:
        raise ValueError("it holds data beyond its tiles")
    return tuple(tiles)
