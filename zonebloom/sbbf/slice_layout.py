"""The bit-sliced layout: where a bit lies, and one hash looked up in NumPy.

A tile holds up to 65,536 zones whose filters have one number of blocks, ``z``. Its bits are
those of the filters, turned: a bit row holds one bit of every zone, padded to 64-bit words.

    tile     | block 0 | block 1 | ...                              | block z-1 |
                  |
    block    | row 0 | row 1 | ... | row 255 | 256 checks | padding |
                  |                                 |
    row      bit zone of the tile, little-endian    XXH64 of each row, seeded

    row number   word * 32 + bit:  bit of word of the block of every zone's filter
    seed         salt + 256 * number of the block in its file + row number

A hash is in zone ``i`` if bit ``i`` is set in all of the eight rows it names. Every row carries its
own check, for a bit that fell from one to zero would hide rows. The seed ties a row to its place
and, by a salt drawn at random, to its file. The checks of a block lie after its rows, and a block
whose rows are whole pages is padded to such: so no row straddles two pages.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import xxhash

from zonebloom.sbbf.spec import BITS_PER_BLOCK, BITS_PER_WORD, WORDS_PER_BLOCK, bit_numbers

ROWS_PER_BLOCK = BITS_PER_BLOCK
MAX_TILE_ZONES = 1 << 16

_PAGE_WORDS = 512
_ONES = np.uint64(0xFFFFFFFFFFFFFFFF)
_MAX_SEED = 0xFFFFFFFFFFFFFFFF
_WORD_ROWS = np.arange(WORDS_PER_BLOCK, dtype=np.uint32) * np.uint32(BITS_PER_WORD)


class Tile(NamedTuple):
    """Where a tile lies, lengths in 64-bit words, ``first`` its first zone of all tiles; ``seed``
    is of its first row's check, ``seed_step`` a block's share."""

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
        return (self.seed + block * self.seed_step) & _MAX_SEED


def place_tile(
    group: int, offset: int, num_zones: int, num_blocks: int, before: Tile | None, salt: int | None
) -> Tile:
    """The tile after another one in its file; a file of version 1 has no salt."""
    row_words = -(-num_zones // 64)
    words = ROWS_PER_BLOCK * (row_words + 1)
    if row_words % _PAGE_WORDS == 0:
        words = -(-words // _PAGE_WORDS) * _PAGE_WORDS
    first = before.first + before.num_zones if before else 0
    seed = before.block_seed(before.num_blocks) if before else salt or 0
    step = 0 if salt is None else ROWS_PER_BLOCK
    return Tile(group, offset, num_zones, num_blocks, row_words, words, first, seed, step)


def row_numbers(hashed: np.uint64) -> np.ndarray:
    """The eight rows of its block a hash names, uint32, shape ``(8,)``."""
    return _WORD_ROWS + bit_numbers(hashed)


def intersect(
    rows: np.ndarray, checks: np.ndarray, hashed: np.uint64, seed: int
) -> tuple[np.ndarray, int]:
    """AND the eight rows a hash names: a bit for each zone that may hold it, and rows damaged.

    ``checks`` are all 256 of the block, ``seed`` of the first. A damaged row counts as all ones.
    """
    damaged = 0
    for row, number in zip(rows, row_numbers(hashed).tolist(), strict=True):
        check = xxhash.xxh64_intdigest(row.data, seed=(seed + number) & _MAX_SEED)
        if check != int(checks[number]):
            row[:] = _ONES
            damaged += 1
    return np.bitwise_and.reduce(rows, axis=0), damaged


def set_bits(bits: np.ndarray, num_zones: int) -> np.ndarray:
    """Numbers of the bits that are set below ``num_zones``, int64, in order."""
    # Words with a bit first: of thousands of zones few are left.
    words = np.flatnonzero(bits)
    flags = np.unpackbits(bits[words].view(np.uint8), bitorder="little").reshape(-1, 64)
    word, bit = np.nonzero(flags)
    zones = words[word] * 64 + bit
    return zones[zones < num_zones]
