"""Look up hashes in the sliced layout: a transposed table, in which a lookup is eight short reads.

The directory is verified when the file is opened, and a bit row whenever it is read. A damaged row
counts as all ones, so that no match is lost. The other rows still exclude zones.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import pyarrow.fs as pafs
import xxhash

from zonebloom.catalog.folder import MissingIndexFile
from zonebloom.errors import CorruptIndex
from zonebloom.index.file_end import read_file_end
from zonebloom.index.table import Pairs
from zonebloom.index.zone_bloom.sliced_file import (
    TRAILER,
    Directory,
    directory_bytes,
    read_directory,
)
from zonebloom.index.zone_bloom.sliced_walk import find_sorted_pairs, load_blocks
from zonebloom.index.zone_bloom.table import FilterRun, ZoneTable
from zonebloom.sbbf.kernel_loader import KERNELS
from zonebloom.sbbf.slice_layout import (
    ROWS_PER_BLOCK,
    Tile,
    intersect,
    row_numbers,
    set_bit_numbers,
)
from zonebloom.sbbf.spec import BYTES_PER_BLOCK, block_numbers
from zonebloom.storage.encryption import open_random_access
from zonebloom.storage.files import ReadCounter
from zonebloom.storage.random_access import read_merged_ranges

_MAX_REMOTE_ROW_SEARCHES = 8
_FIRST_HASHES = 1 << 16
# A lookup of one hash reads nine pieces of a tile: eight bit rows, and the checksums of their
# block.
_PIECES_PER_LOOKUP = 9
# Remote reads less than this far apart become one request, because a request costs more than the
# bytes between them.
_MAX_REMOTE_GAP = 1 << 20
# NumPy needs as long for a piece as for testing this many blocks of filters in memory.
_NUMPY_CHECKS_PER_PIECE = 100
# `verify` reads this much at a time, to bound the memory it takes.
_VERIFY_STEP_BYTES = 4 << 20
# Filters are loaded from this much of a tile at a time.
_LOAD_STEP_BYTES = 2 << 20


class SlicedTable(ZoneTable):
    """A sliced table that is open for lookups.

    The table passes the first damage to ``report``. Without ``report`` it raises every damage.
    """

    def __init__(
        self,
        filesystem: pafs.FileSystem,
        path: str,
        num_bytes: int | None = None,
        checksum: str | None = None,
        *,
        report: Callable[[CorruptIndex], None] | None = None,
    ):
        self.path = path
        self.counter = ReadCounter()
        self._report = report
        self._has_reported = False
        try:
            self.file = open_random_access(filesystem, path, self.counter, num_bytes)
            try:
                self.directory = self._open(num_bytes, checksum)
            except BaseException:
                self.file.close()
                raise
        except (OSError, ValueError) as error:
            kind = MissingIndexFile if isinstance(error, FileNotFoundError) else CorruptIndex
            raise kind(
                f"{path} is not a sliced bloomfilter table ({error}); build the index again"
            ) from None
        self.num_bytes = self.file.num_bytes
        self.runs = self.directory.runs
        self.number_of_items = self.runs.items
        self.probability = self.directory.probability
        self.has_null = self.directory.has_null
        self._order = self.directory.zone_order()
        self._tiles = np.array(self.directory.tiles, dtype=np.uint64).reshape(-1, 9)
        self._scratch = threading.local()

    def _open(self, num_bytes: int | None, checksum: str | None) -> Directory:
        directory, trailer = read_file_end(
            self.file, num_bytes, checksum, TRAILER.size, directory_bytes
        )
        self._directory_at = self.file.num_bytes - len(directory) - len(trailer)
        return read_directory(directory, trailer, self.file.num_bytes)

    @property
    def loaded_bytes(self) -> int:
        return self.counter.num_bytes

    @property
    def num_blocks(self) -> np.ndarray:
        by_place = np.repeat(
            np.array([tile.num_blocks for tile in self.directory.tiles], dtype=np.uint64),
            [tile.num_zones for tile in self.directory.tiles],
        )
        by_zone = np.empty_like(by_place)
        by_zone[slice(None) if self._order is None else self._order] = by_place
        return by_zone

    def find(self, hashes: np.ndarray) -> np.ndarray:
        if hashes.size == 1 and self._order is None and len(self):
            return self._positions_of(hashes[0])
        hit = np.zeros(len(self), dtype=bool)
        # The first of very many hashes may already hit every zone.
        for part in (hashes[:_FIRST_HASHES], hashes[_FIRST_HASHES:]):
            for _, zones in self._pairs(part) if part.size and not hit.all() else ():
                hit[zones] = True
        return np.flatnonzero(hit)

    def _pairs(self, hashes: np.ndarray) -> Iterator[Pairs]:
        for keys, positions in self._by_rows(hashes) or self._by_blocks(hashes):
            yield keys, positions if self._order is None else self._order[positions]

    def _by_rows(self, hashes: np.ndarray) -> Iterator[Pairs] | None:
        """Return pairs with positions in the tiles, read row by row for each hash.

        Return None if there are so many hashes that reading whole blocks is cheaper.
        """
        pieces = hashes.size * len(self._tiles) * _PIECES_PER_LOOKUP
        has_few = hashes.size <= _MAX_REMOTE_ROW_SEARCHES
        if self.file.is_local:
            has_few = hashes.size == 1 or pieces * self.file.read_cost <= self.num_bytes
        if not has_few:
            return None
        positions = (self._positions_of(hashed) for hashed in hashes)
        return (
            (np.full(zone_positions.size, key), zone_positions)
            for key, zone_positions in enumerate(positions)
        )

    def _by_blocks(self, hashes: np.ndarray) -> Iterator[Pairs]:
        # Block numbers grow with the hash in tables of any size, so sort once for all tiles.
        order = np.argsort(hashes)
        tiles = self.directory.tiles
        for keys, positions in find_sorted_pairs(
            self.file, tiles, hashes[order], self._report_damage
        ):
            yield order[keys], positions

    def verify(self) -> None:
        for tile in self.directory.tiles:
            step = max(1, _VERIFY_STEP_BYTES // (tile.block_words * 8))
            for start in range(0, tile.num_blocks, step):
                self._undamaged_blocks(tile, start, min(start + step, tile.num_blocks))
        if self.directory.content not in (None, self._content_checksum()):
            raise self._corrupt_index("its content is not what was written")

    def _content_checksum(self) -> int:
        """Return the XXH3-64 of everything before the directory, read from the file."""
        checksum = xxhash.xxh3_64()
        try:
            for start in range(0, self._directory_at, _VERIFY_STEP_BYTES):
                stop = min(start + _VERIFY_STEP_BYTES, self._directory_at)
                checksum.update(self.file.read([(start, stop)])[0])
        except OSError as error:
            raise self._corrupt_index(f"it cannot be read ({error})") from None
        return checksum.intdigest()

    def close(self) -> None:
        self.file.close()

    def _undamaged_blocks(self, tile: Tile, start: int, stop: int) -> np.ndarray:
        blocks, damage = load_blocks(self.file, tile, start, stop)
        if damage:
            raise self._corrupt_index(damage)
        return blocks

    def filter_runs(self) -> Iterator[FilterRun]:
        for tile in self.directory.tiles:
            yield FilterRun(
                tile.num_blocks, range(tile.num_zones), partial(self._load_filters, tile)
            )

    def _load_filters(
        self, tile: Tile, zones: range, start: int, stop: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the words of blocks ``start`` to ``stop`` of zones' filters, and addresses.

        The addresses are those that block 0 of each filter would have.
        """
        from zonebloom.sbbf import slices

        first = zones.start // 64 * 64
        words = np.empty((zones.stop - first, (stop - start) * 8), dtype=np.uint32)
        strides = np.arange(len(words), dtype=np.uint64) * np.uint64(words.strides[0])
        addresses = np.uint64(words.ctypes.data) + strides
        step = max(1, _LOAD_STEP_BYTES // (tile.block_words * 8))
        for block in range(start, stop, step):
            blocks = self._undamaged_blocks(tile, block, min(block + step, stop))
            slices.unslice_blocks(blocks, block - start, tile.row_words, first, addresses)
        return words, addresses[zones.start - first :] - np.uint64(start * BYTES_PER_BLOCK)

    def _report_damage(self, damage: str) -> None:
        if self._report is None:
            raise self._corrupt_index(damage)
        if not self._has_reported:
            self._has_reported = True
            self._report(self._corrupt_index(damage))

    def _corrupt_index(self, damage: str) -> CorruptIndex:
        return CorruptIndex(f"{self.path}: {damage}; build the index again")

    def _positions_of(self, hashed: np.uint64) -> np.ndarray:
        """Return where in the tiles the zones are that may hold one hash: int64, ascending."""
        checks = len(self._tiles) * _PIECES_PER_LOOKUP * _NUMPY_CHECKS_PER_PIECE
        if self.file.is_local and (KERNELS.are_loaded or KERNELS.are_worth(checks)):
            positions, num_damaged = self._positions_by_kernel(hashed)
        else:
            positions, num_damaged = self._positions_by_numpy(hashed)
        if num_damaged:
            self._report_damage(f"{num_damaged} bit rows are damaged")
        return positions

    def _positions_by_kernel(self, hashed: np.uint64) -> tuple[np.ndarray, int]:
        from zonebloom.sbbf import slice_search

        scratch = self._scratch
        if not hasattr(scratch, "pieces"):
            count = len(self._tiles) * _PIECES_PER_LOOKUP
            words = sum(tile.row_words * 8 + ROWS_PER_BLOCK for tile in self.directory.tiles)
            scratch.pieces = np.empty(words, dtype=np.uint64)
            scratch.offsets = np.empty(count, dtype=np.int64)
            scratch.sizes = np.empty(count, dtype=np.int64)
            scratch.out = np.empty(len(self), dtype=np.int64)
            scratch.state = np.empty(2, dtype=np.int64)
        slice_search.plan_rows(hashed, self._tiles, scratch.offsets, scratch.sizes)
        self.file.read_pieces(scratch.offsets, scratch.sizes, scratch.pieces)
        slice_search.intersect_rows(scratch.pieces, hashed, self._tiles, scratch.out, scratch.state)
        count, num_damaged = scratch.state.tolist()
        return scratch.out[:count].copy(), num_damaged

    def _positions_by_numpy(self, hashed: np.uint64) -> tuple[np.ndarray, int]:
        tiles = self.directory.tiles
        blocks = [int(block_numbers(hashed, tile.num_blocks)) for tile in tiles]
        spans = [
            span
            for tile, block in zip(tiles, blocks, strict=True)
            for span in _row_spans(tile, block, hashed)
        ]
        pieces = read_merged_ranges(self._read, spans, 0 if self.file.is_local else _MAX_REMOTE_GAP)
        positions, total_damaged = [], 0
        for number, (tile, block) in enumerate(zip(tiles, blocks, strict=True)):
            tile_pieces = pieces[number * _PIECES_PER_LOOKUP : (number + 1) * _PIECES_PER_LOOKUP]
            words = np.frombuffer(bytearray().join(tile_pieces), dtype=np.uint64)
            rows = words[: 8 * tile.row_words].reshape(8, tile.row_words)
            checks = words[8 * tile.row_words :]
            bits, num_damaged = intersect(rows, checks, hashed, tile.block_seed(block))
            positions.append(set_bit_numbers(bits, tile.num_zones) + tile.first_zone)
            total_damaged += num_damaged
        return np.concatenate(positions), total_damaged

    def _read(self, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read spans. Bytes that cannot be read become zeros, which fail the check of their row."""
        try:
            parts = self.file.read(spans)
        except OSError as error:
            self._report_damage(f"it cannot be read ({error})")
            parts = [b""] * len(spans)
        return [
            data.ljust(stop - start, b"\0")
            for data, (start, stop) in zip(parts, spans, strict=True)
        ]


def _row_spans(tile: Tile, block: int, hashed: np.uint64) -> list[tuple[int, int]]:
    """Return the byte ranges of the eight rows that a hash selects, and of their block's checks."""
    start, size = tile.offset + block * tile.block_words * 8, tile.row_words * 8
    row_starts = [start + number * size for number in row_numbers(hashed).tolist()]
    checks = start + ROWS_PER_BLOCK * size
    return [*((row, row + size) for row in row_starts), (checks, checks + ROWS_PER_BLOCK * 8)]
