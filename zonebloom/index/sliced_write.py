"""The file of a sliced table as it is written: tiles one after another, then the directory."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

import numpy as np
import pyarrow.fs as pafs
import xxhash

from zonebloom.errors import InvalidArgument
from zonebloom.index.sliced_directory import MAGIC, Directory, Runs, Tile, place_tile
from zonebloom.index.table import WrittenTable
from zonebloom.sbbf.slices_numpy import MAX_TILE_ZONES, row_words

_PAGE = 4096
# Rows of a tile are aligned to pages only if they are long enough for that to save reads.
_ALIGNED_ROW = 512


def new_salt() -> int:
    """What the checks of one file's rows have in common, and no other file's."""
    return secrets.randbits(64)


@dataclass(slots=True)
class Metadata:
    """What is known of zones besides their filters, in their order, run by run."""

    fragment_ids: list[np.ndarray] = field(default_factory=list)
    starts: list[np.ndarray] = field(default_factory=list)
    lengths: list[np.ndarray] = field(default_factory=list)
    has_null: list[np.ndarray] = field(default_factory=list)
    num_blocks: list[np.ndarray] = field(default_factory=list)

    def add(
        self,
        fragment_ids: np.ndarray,
        starts: np.ndarray,
        lengths: np.ndarray,
        has_null: np.ndarray,
        num_blocks: np.ndarray,
    ) -> None:
        """Append a run of zones."""
        self.fragment_ids.append(fragment_ids)
        self.starts.append(starts)
        self.lengths.append(lengths)
        self.has_null.append(has_null)
        self.num_blocks.append(num_blocks)


class SlicedFile:
    """A sliced table in the making, tile by tile."""

    def __init__(self, filesystem: pafs.FileSystem, path: str, items: int, probability: float):
        self._items = items
        self._probability = probability
        self._sink = filesystem.open_output_stream(path)
        self._size = 0
        self._tiles: list[tuple[int, Tile]] = []
        self._salt = new_salt()
        self._content = xxhash.xxh3_64()
        self._write(MAGIC)

    def begin_tile(self, num_zones: int, num_blocks: int) -> Tile:
        """Lay out the next tile; its blocks are to be written next, all of them, in order."""
        if row_words(num_zones) * 8 >= _ALIGNED_ROW:
            self._write(bytes(-self._size % _PAGE))
        before = self._tiles[-1][1] if self._tiles else None
        tile = place_tile(0, self._size, num_zones, num_blocks, before, self._salt)
        self._tiles.append((num_blocks, tile))
        return tile

    def write_blocks(self, blocks: np.ndarray) -> None:
        """Write the next blocks of a tile, their checks made."""
        self._write(blocks)

    def close(self, zones: Metadata) -> WrittenTable:
        """Finish the file with what is known of its zones."""
        starts = _joined(zones.starts, np.uint64)
        sizes, groups = np.unique(_joined(zones.num_blocks, np.uint64), return_inverse=True)
        group_of = {size: group for group, size in enumerate(sizes.tolist())}
        directory = Directory(
            self._items,
            self._probability,
            Runs.of(
                _joined(zones.fragment_ids, np.uint64),
                starts,
                _joined(zones.lengths, np.uint64),
                self._items,
            ),
            np.packbits(_joined(zones.has_null, np.bool_), bitorder="little"),
            starts.size,
            tuple(tile._replace(group=group_of[size]) for size, tile in self._tiles),
            groups.astype(np.uint32) if sizes.size > 1 else None,
            self._salt,
            self._content.intdigest(),
        )
        data = directory.to_bytes()
        self._write(data)
        self._sink.close()
        return WrittenTable(self._size, xxhash.xxh3_64_hexdigest(data), starts.size)

    def abort(self) -> None:
        """Close what is open after a failure; the file is not a table."""
        self._sink.close()

    def _write(self, data: bytes | np.ndarray) -> None:
        view = memoryview(data if isinstance(data, bytes) else data.data).cast("B")
        self._content.update(view)
        self._sink.write(view)
        self._size += len(view)


def _joined(parts: list[np.ndarray], dtype: type) -> np.ndarray:
    return np.concatenate(parts) if parts else np.empty(0, dtype=dtype)


def require_tile(tile_zones: int) -> None:
    """Refuse a number of zones no tile can have."""
    if not 0 < tile_zones <= MAX_TILE_ZONES:
        raise InvalidArgument(
            f"a tile of {tile_zones} zones cannot be; give 1 to {MAX_TILE_ZONES:,}"
        )
