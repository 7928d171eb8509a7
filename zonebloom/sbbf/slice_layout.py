"""Define the sliced layout: the place of each bit, and the lookup of one hash with NumPy.

A tile holds up to 65,536 zones whose filters all have ``z`` blocks. It holds the bits of the
filters, transposed: a bit row has one bit for each zone, padded to whole 64-bit words.

    tile     | block 0 | block 1 | ...                              | block z-1 |
                  |
    block    | row 0 | row 1 | ... | row 255 | 256 checks | padding |
                  |                                 |
    row      bit zone of the tile, little-endian    XXH64 of each row, seeded

    row number   word * 32 + bit:  that bit of that word, in this block of every zone's filter
    seed         salt + 256 * number of the block in its file + row number

Zone ``i`` may hold a hash if bit ``i`` is set in all eight rows that the hash selects. Each bit row
has a checksum (its check), because a bit that flips from one to zero would hide zones. The seed
ties a row to its place in the file, and a random salt ties it to the file. The checks of a block
follow its rows. If the length of a row is a multiple of 4096 bytes, so is the length of the padded
block: no row shares a memory page with another one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import xxhash

from zonebloom.sbbf.spec import BITS_PER_BLOCK, BITS_PER_WORD, WORDS_PER_BLOCK, bit_numbers

ROWS_PER_BLOCK = BITS_PER_BLOCK
MAX_TILE_ZONES = 1 << 16

_PAGE_WORDS = 512
ALL_ONES = np.uint64(0xFFFFFFFFFFFFFFFF)
_MAX_SEED = 0xFFFFFFFFFFFFFFFF
_WORD_ROWS = np.arange(WORDS_PER_BLOCK, dtype=np.uint32) * np.uint32(BITS_PER_WORD)


class Tile(NamedTuple):
    """The place and shape of a tile.

    ``offset`` is its first byte in the file. ``row_words`` and ``block_words`` are lengths in
    64-bit words. ``first_zone`` is counted over all tiles. ``seed`` is the seed for the check of
    its first row, and ``seed_step`` is added for each block.
    """

    group: int
    offset: int
    num_zones: int
    num_blocks: int
    row_words: int
    block_words: int
    first_zone: int
    seed: int
    seed_step: int

    @property
    def num_bytes(self) -> int:
        return self.num_blocks * self.block_words * 8

    def block_seed(self, block: int) -> int:
        """Return the seed for the check of the first row of a block."""
        return (self.seed + block * self.seed_step) & _MAX_SEED


def place_tile(
    group: int, offset: int, num_zones: int, num_blocks: int, before: Tile | None, salt: int | None
) -> Tile:
    """Return the tile that follows ``before`` in the file. Files of version 1 have no salt."""
    row_words = -(-num_zones // 64)
    words = ROWS_PER_BLOCK * (row_words + 1)
    if row_words % _PAGE_WORDS == 0:
        words = -(-words // _PAGE_WORDS) * _PAGE_WORDS
    first = before.first_zone + before.num_zones if before else 0
    seed = before.block_seed(before.num_blocks) if before else salt or 0
    step = 0 if salt is None else ROWS_PER_BLOCK
    return Tile(group, offset, num_zones, num_blocks, row_words, words, first, seed, step)


def row_numbers(hashed: np.uint64) -> np.ndarray:
    """Return the eight rows that a hash selects in its block, uint32, shape ``(8,)``."""
    return _WORD_ROWS + bit_numbers(hashed)


def intersect(
    rows: np.ndarray, checks: np.ndarray, hashed: np.uint64, seed: int
) -> tuple[np.ndarray, int]:
    """AND the eight rows that a hash selects.

    Return one bit for each zone, set if the zone may hold the hash, and the number of damaged rows.
    ``checks`` are the 256 checks of the block, and ``seed`` is the seed of the first. A damaged row
    counts as all ones.
    """
    num_damaged = 0
    for row, number in zip(rows, row_numbers(hashed).tolist(), strict=True):
        check = xxhash.xxh64_intdigest(row.data, seed=(seed + number) & _MAX_SEED)
        if check != int(checks[number]):
            row[:] = ALL_ONES
            num_damaged += 1
    return np.bitwise_and.reduce(rows, axis=0), num_damaged


def set_bit_numbers(bits: np.ndarray, num_zones: int) -> np.ndarray:
    """Return the numbers of the bits that are set below ``num_zones``, int64, ascending."""
    # Look only at words that are not zero: usually only a few of thousands of zones remain.
    words = np.flatnonzero(bits)
    flags = np.unpackbits(bits[words].view(np.uint8), bitorder="little").reshape(-1, 64)
    word, bit = np.nonzero(flags)
    zones = words[word] * 64 + bit
    return zones[zones < num_zones]
