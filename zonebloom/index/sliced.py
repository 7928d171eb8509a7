"""The bit-sliced table: the bits of a ``bloomfilter`` table, turned for lookups.

The row layout is touched once a zone; this one answers for thousands of zones from eight
short reads. The layout of the bits is drawn in `zonebloom.sbbf.slices_numpy`, the file in
`zonebloom.index.sliced_directory`.

What is verified when: the directory when the file is opened, against its own checksum and the
catalog's; every bit row by its own check each time it is read, for bits read in part can be
verified no other way. The directory holds the salt those checks are made with, so rows of
another file are damage, and so are rows of another block. A damaged row counts as all ones: its
tile's other rows still rule zones out, and no row of data is lost.
"""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from functools import cached_property

import numpy as np
import pyarrow.fs as pafs
import xxhash

from zonebloom.errors import CorruptIndex
from zonebloom.index.sliced_directory import TRAILER, Directory, directory_bytes, read_directory
from zonebloom.index.sliced_walk import find_any, find_pairs, load_blocks
from zonebloom.sbbf.slices_numpy import (
    ROWS_PER_BLOCK,
    block_numbers,
    intersect,
    row_numbers,
    set_bits,
)
from zonebloom.storage.files import ReadCounter
from zonebloom.storage.random_access import RandomAccessFile

# Read at first: the whole directory of most tables in one request.
_TAIL_BYTES = 16 << 10
# A short read costs a disk about as much as this many bytes more of a long one: many hashes
# are found sooner in the blocks read whole.
_READ_COST = 32 << 10
_FEW_REMOTE = 8
# Reads of this many pieces by NumPy take about as long as loading Numba.
_NUMPY_PIECES = 10_000
# Of a tile and hash: eight rows, and the checks of their block.
_PIECES = 9
_MIN_PAIRS = 1 << 16

Report = Callable[[CorruptIndex], None]


class SlicedTable:
    """A sliced table open for lookups; the arrays are those of a `ZoneTable`.

    Attributes
    ----------
    number_of_items : int
    probability : float
    num_bytes : int
        Size of the file.
    counter : ReadCounter
    """

    def __init__(
        self,
        filesystem: pafs.FileSystem,
        path: str,
        num_bytes: int | None = None,
        checksum: str | None = None,
        *,
        report: Report | None = None,
        counter: ReadCounter | None = None,
    ):
        self.path = path
        self.counter = counter or ReadCounter()
        self.directory: Directory
        self._report = report
        self._reported = False
        try:
            self.file = RandomAccessFile(filesystem, path, self.counter)
            self._open(num_bytes, checksum)
        except (OSError, ValueError) as error:
            raise CorruptIndex(
                f"{path} is not a sliced bloomfilter table ({error}); build the index again"
            ) from None
        self.num_bytes = self.file.num_bytes
        self.number_of_items = self.directory.number_of_items
        self.probability = self.directory.probability
        self._order = self.directory.zone_order()
        tiles = self.directory.tiles
        self._offsets = np.array([tile.offset for tile in tiles], dtype=np.int64)
        self._num_blocks = np.array([tile.num_blocks for tile in tiles], dtype=np.int64)
        self._num_zones = np.array([tile.num_zones for tile in tiles], dtype=np.int64)
        self._row_words = np.array([tile.row_words for tile in tiles], dtype=np.int64)
        self._block_words = np.array([tile.block_words for tile in tiles], dtype=np.int64)
        self._seeds = np.array([tile.seed for tile in tiles], dtype=np.uint64)
        # One for all tiles: it is the format's.
        self._seed_step = tiles[0].seed_step if tiles else 0
        self._scratch = threading.local()
        self._pieces_read = 0

    def _open(self, num_bytes: int | None, checksum: str | None) -> None:
        size = self.file.num_bytes
        if num_bytes is not None and size != num_bytes:
            raise ValueError(f"it has {size:,} bytes, {num_bytes:,} were written")
        tail = self.file.read([(max(0, size - _TAIL_BYTES), size)])[0]
        trailer = tail[-TRAILER.size :]
        wanted = directory_bytes(trailer, size) + TRAILER.size
        if wanted > len(tail):
            tail = self.file.read([(size - wanted, size - len(tail))])[0] + tail
        found = tail[-wanted:]
        if len(found) != wanted:
            raise ValueError("it ended while it was read")
        if checksum is not None and xxhash.xxh3_64_hexdigest(found) != checksum:
            raise ValueError("the checksum of its directory is not the catalog's")
        self._directory_at = size - wanted
        self.directory = read_directory(found[: -TRAILER.size], trailer, size)

    def __len__(self) -> int:
        return self.directory.num_zones

    def __repr__(self) -> str:
        tiles = len(self.directory.tiles)
        return f"<SlicedTable {len(self):,} zones in {tiles:,} tiles, {self.num_bytes:,} bytes>"

    @cached_property
    def _zones(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self.locate(np.arange(len(self), dtype=np.int64))

    @property
    def fragment_ids(self) -> np.ndarray:
        """Fragment of each zone, uint64, shape ``(zones,)``."""
        return self._zones[0]

    @property
    def starts(self) -> np.ndarray:
        """First row of each zone in its fragment, uint64, shape ``(zones,)``."""
        return self._zones[1]

    @property
    def lengths(self) -> np.ndarray:
        """Rows of each zone, uint64, shape ``(zones,)``."""
        return self._zones[2]

    @cached_property
    def has_null(self) -> np.ndarray:
        """Which zones hold a null, bool, shape ``(zones,)``."""
        bits = np.unpackbits(self.directory.has_null, count=len(self), bitorder="little")
        return bits.view(bool)

    @cached_property
    def num_blocks(self) -> np.ndarray:
        """Blocks of each zone's filter, uint64, shape ``(zones,)``."""
        return self._by_zone(np.repeat(self._num_blocks, self._num_zones)).astype(np.uint64)

    def locate(self, zones: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Fragment, start and length of some zones, without those of all others."""
        return self.directory.runs.locate(zones, self.number_of_items)

    def may_hold(self, hashes: np.ndarray) -> np.ndarray:
        """Tell for each zone whether it may hold any of some hashes."""
        hit = np.zeros(len(self), dtype=bool)
        hit[self.find(hashes)] = True
        return hit

    def find(self, hashes: np.ndarray) -> np.ndarray:
        """Numbers of the zones that may hold any of some hashes, int64, in order."""
        if not hashes.size or not len(self):
            return np.empty(0, dtype=np.int64)
        if not self._are_few(hashes.size):
            places = find_any(self.file, self.directory.tiles, np.unique(hashes), self.damaged)
        elif hashes.size == 1:
            places = self._places_of(int(hashes[0]))
        else:
            found = [self._places_of(hashed) for hashed in np.unique(hashes).tolist()]
            places = np.unique(np.concatenate(found))
        return places if self._order is None else np.sort(self._order[places])

    def search_many(self, hashes: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Find the zones that may hold each of many hashes, in bounded memory.

        Position in ``hashes`` and number of a zone; each pair once, in no order of use.
        """
        if not hashes.size or not len(self):
            return
        pairs = self._pairs_of_few(hashes) if self._are_few(hashes.size) else self._walked(hashes)
        for keys, places in pairs:
            yield keys, places if self._order is None else self._order[places]

    def validate(self) -> None:
        """Read the whole file and verify every bit row."""
        for tile in self.directory.tiles:
            step = max(1, (4 << 20) // (tile.block_words * 8))
            for start in range(0, tile.num_blocks, step):
                stop = min(start + step, tile.num_blocks)
                _, damage = load_blocks(self.file, tile, start, stop)
                if damage:
                    raise self._corrupt(damage)
        if self.directory.content not in (None, self._content()):
            raise self._corrupt("its content is not what was written")

    def close(self) -> None:
        """Close the file; it also is when nothing refers to the table any more."""
        self.file.close()

    def damaged(self, what: str) -> None:
        """Report damage met by a lookup."""
        error = self._corrupt(what)
        if self._report is None:
            raise error
        if not self._reported:
            self._reported = True
            self._report(error)

    def _content(self) -> int:
        """XXH3-64 of all before the directory, as it is now."""
        content, step = xxhash.xxh3_64(), 4 << 20
        try:
            for start in range(0, self._directory_at, step):
                stop = min(start + step, self._directory_at)
                content.update(self.file.read([(start, stop)])[0])
        except OSError as error:
            raise self._corrupt(f"it cannot be read ({error})") from None
        return content.intdigest()

    def _corrupt(self, what: str) -> CorruptIndex:
        return CorruptIndex(f"{self.path}: {what}; build the index again")

    def _by_zone(self, by_place: np.ndarray) -> np.ndarray:
        if self._order is None:
            return by_place
        by_zone = np.empty_like(by_place)
        by_zone[self._order] = by_place
        return by_zone

    def _are_few(self, count: int) -> bool:
        if not self.file.is_local:
            return count <= _FEW_REMOTE
        return count == 1 or count * self._offsets.size * _PIECES * _READ_COST <= self.num_bytes

    def _pairs_of_few(self, hashes: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        held: list[np.ndarray] = []
        first = count = 0
        for key, hashed in enumerate(hashes.tolist()):
            held.append(self._places_of(hashed))
            count += held[-1].size
            if count >= _MIN_PAIRS or key == hashes.size - 1:
                sizes = [places.size for places in held]
                keys = np.arange(first, key + 1, dtype=np.int64)
                yield np.repeat(keys, sizes), np.concatenate(held)
                held, first, count = [], key + 1, 0

    def _walked(self, hashes: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        # Blocks are monotone in the hash, for any number of them.
        order = np.argsort(hashes)
        for keys, places in find_pairs(
            self.file, self.directory.tiles, hashes[order], self.damaged
        ):
            yield order[keys], places

    def _places_of(self, hashed: int) -> np.ndarray:
        """Places in the tiles of the zones that may hold one hash."""
        if not self.file.is_local:
            return self._places_by_numpy(hashed)
        self._pieces_read += self._offsets.size * _PIECES
        if "zonebloom.sbbf.blocks" in sys.modules or self._pieces_read > _NUMPY_PIECES:
            return self._places_by_kernel(hashed)
        return self._places_by_numpy(hashed)

    def _places_by_kernel(self, hashed: int) -> np.ndarray:
        from zonebloom.sbbf import slice_search

        scratch = self._scratch
        if not hasattr(scratch, "pieces"):
            tiles = self._offsets.size
            words = int((self._row_words * 8 + ROWS_PER_BLOCK).sum())
            scratch.pieces = np.empty(words, dtype=np.uint64)
            scratch.offsets = np.empty(tiles * _PIECES, dtype=np.int64)
            scratch.sizes = np.empty(tiles * _PIECES, dtype=np.int64)
            scratch.out = np.empty(len(self), dtype=np.int64)
            scratch.state = np.empty(2, dtype=np.int64)
        slice_search.plan_rows(
            hashed,
            self._offsets,
            self._num_blocks,
            self._row_words,
            self._block_words,
            scratch.offsets,
            scratch.sizes,
        )
        self.file.read_pieces(scratch.offsets, scratch.sizes, scratch.pieces)
        slice_search.intersect_rows(
            scratch.pieces,
            hashed,
            self._num_blocks,
            self._row_words,
            self._num_zones,
            self._seeds,
            self._seed_step,
            scratch.out,
            scratch.state,
        )
        found, damaged = scratch.state.tolist()
        if damaged:
            self.damaged(f"{damaged} bit rows are damaged")
        return scratch.out[:found].copy()

    def _places_by_numpy(self, hashed: int) -> np.ndarray:
        found = []
        # A piece a row, or, for a request costs more than its bytes, a whole block.
        numbers = row_numbers(hashed).tolist()
        spans: list[tuple[int, int]] = []
        blocks: list[int] = []
        for tile in self.directory.tiles:
            block = int(block_numbers(np.array([hashed], dtype=np.uint64), tile.num_blocks)[0])
            blocks.append(block)
            start = tile.offset + block * tile.block_words * 8
            size = tile.row_words * 8
            checks = start + ROWS_PER_BLOCK * size
            if self.file.is_local:
                spans += [(start + n * size, start + (n + 1) * size) for n in numbers]
                spans.append((checks, checks + ROWS_PER_BLOCK * 8))
            else:
                spans.append((start, checks + ROWS_PER_BLOCK * 8))
        pieces = iter(self._read(spans))
        for tile, block in zip(self.directory.tiles, blocks, strict=True):
            size = tile.row_words * 8
            if self.file.is_local:
                data = bytearray(b"".join(itertools.islice(pieces, _PIECES)))
            else:
                block_data = next(pieces)
                rows = [block_data[n * size : (n + 1) * size] for n in numbers]
                data = bytearray(b"".join([*rows, block_data[ROWS_PER_BLOCK * size :]]))
            words = np.frombuffer(data, dtype=np.uint64)
            rows = words[: 8 * tile.row_words].reshape(8, tile.row_words)
            checks = words[8 * tile.row_words :]
            bits, damaged = intersect(rows, checks, hashed, tile.block_seed(block))
            if damaged:
                self.damaged(f"{damaged} bit rows are damaged")
            found.append(set_bits(bits, tile.num_zones) + tile.first)
        return np.concatenate(found)

    def _read(self, spans: list[tuple[int, int]]) -> list[bytes]:
        """Read spans; what cannot be read is zeros, which no row's check allows."""
        try:
            read = self.file.read(spans)
        except OSError as error:
            self.damaged(f"it cannot be read ({error})")
            read = [b""] * len(spans)
        return [
            data if len(data) == stop - start else data.ljust(stop - start, b"\0")
            for data, (start, stop) in zip(read, spans, strict=True)
        ]
