"""The bit-sliced layout: where a bit lies, and one hash looked up in NumPy.

A tile holds up to 65,536 zones whose filters have one number of blocks, ``z``. Its bits are
those of the filters, turned: a bit row holds one bit of every zone.

    tile     | block 0 | block 1 | ...                              | block z-1 |
                  |
    block    | row 0 | row 1 | ... | row 255 | 256 checks | padding |
                  |                                 |
    row      bit zone of the tile, little-endian    XXH64 of each row, seeded

    row number   word * 32 + bit:  bit of word of the block of every zone's filter
    seed         salt + 256 * number of the block in its file + row number

A row is padded with zeros to whole 64-bit words, so a tile costs what 64 zones, 128, ...
would. A hash is in zone ``i`` if bit ``i`` is set in all of the eight rows it names: eight
short reads answer for every zone of the tile.

Every row carries its own check, for a lookup must notice a bit lost without reading what
it does not need: a bit that fell from one to zero would hide rows. The seed ties a row to its
place and, by a salt drawn at random, to its file: one of another file or block is damage. All
the checks of a block lie together, after its rows: so a row of 512, 2048 or 4096 bytes never
straddles two pages of 4096. For that a block whose rows are whole pages is padded to whole
pages too.
"""

from __future__ import annotations

import numpy as np
import xxhash

from zonebloom.sbbf.blocks_numpy import SALT, WORDS_PER_BLOCK

ROWS_PER_BLOCK = 256
BITS_PER_WORD = 32
CHECK_BYTES = 8
MAX_TILE_ZONES = 1 << 16

_PAGE = 4096
_ONES = np.uint64(0xFFFFFFFFFFFFFFFF)
MAX_SEED = 0xFFFFFFFFFFFFFFFF
_WORD_ROWS = np.arange(WORDS_PER_BLOCK, dtype=np.uint32) * np.uint32(BITS_PER_WORD)


def row_words(num_zones: int) -> int:
    """Length of a bit row of a tile, 64-bit words."""
    return -(-num_zones // 64)


def block_words(row_words: int) -> int:
    """Length of a block of a tile with rows of a length, both in 64-bit words."""
    words = ROWS_PER_BLOCK * (row_words + 1)
    page = _PAGE // 8
    return words if row_words % page else -(-words // page) * page


def block_numbers(hashes: np.ndarray, num_blocks: int) -> np.ndarray:
    """Which block each hash falls in, int64, shape ``(n,)``; sorted if the hashes are."""
    high = hashes >> np.uint64(32)
    return ((high * np.uint64(num_blocks)) >> np.uint64(32)).astype(np.int64)


def row_numbers(hashed: int) -> np.ndarray:
    """The eight rows of its block a hash names, uint32, shape ``(8,)``."""
    return _WORD_ROWS + ((np.uint32(hashed & 0xFFFFFFFF) * SALT) >> np.uint32(27))


def row_is_sound(row: np.ndarray, seed: int, check: int) -> bool:
    """Whether a row of a block is what was written."""
    return xxhash.xxh64_intdigest(row.data, seed=seed & MAX_SEED) == check


def intersect(
    rows: np.ndarray, checks: np.ndarray, hashed: int, seed: int
) -> tuple[np.ndarray, int]:
    """Tell for each zone of a tile whether it may hold a hash.

    Parameters
    ----------
    rows : uint64 array, shape (8, words)
        The eight rows the hash names. A damaged one is filled with ones: it no longer rules
        any zone out.
    checks : uint64 array, shape (256,)
        The checks of the block.
    hashed : int
        XXH64 of the value.
    seed : int
        Of the check of the block's first row.

    Returns
    -------
    uint64 array, shape (words,)
        A bit a zone.
    int
        How many of the rows are damaged.
    """
    damaged = 0
    for row, number in zip(rows, row_numbers(hashed).tolist(), strict=True):
        if not row_is_sound(row, seed + number, int(checks[number])):
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
