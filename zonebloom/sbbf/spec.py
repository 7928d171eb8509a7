"""The specification of the split-block Bloom filter: salts, sizes, and the bits of a hash.

A filter is ``z`` blocks of 256 bits; a block is eight 32-bit words:

    filter   | block 0 | block 1 | ...                  | block z-1 |
                  |
    block    | word 0 | word 1 | word 2 | ... | word 7 |     32 bytes
                  |
    word     one bit set:  (uint32(hash) * SALT[i]) >> 27

The upper half of a hash picks the block, ``((hash >> 32) * z) >> 32``; the lower half picks
one bit in each of the block's eight words. ``z`` need not be a power of two. Source: Parquet
format, BloomFilter.md, section "Technical Approach".
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

# One uint64 hash, or an array of them.
HashOrHashes: TypeAlias = np.ndarray | np.uint64

SALT = np.array(
    [
        0x47B6137B,
        0x44974D91,
        0x8824AD5B,
        0xA2B7289D,
        0x705495C7,
        0x2DF1424B,
        0x9EFC4947,
        0x5C6BFB31,
    ],
    dtype=np.uint32,
)
WORDS_PER_BLOCK = 8
BITS_PER_WORD = 32
BITS_PER_BLOCK = 256
BYTES_PER_BLOCK = 32
MAX_BYTES = 1 << 27


def block_numbers(hashes: HashOrHashes, num_blocks: int | np.ndarray) -> np.ndarray:
    """Return the block number of each hash, uint64. Sorted hashes give sorted block numbers."""
    return ((hashes >> np.uint64(32)) * np.asarray(num_blocks, dtype=np.uint64)) >> np.uint64(32)


def bit_numbers(hashes: HashOrHashes) -> np.ndarray:
    """Return the bit that each hash sets in each of the eight words, uint32, shape ``(..., 8)``."""
    low = np.asarray(hashes).astype(np.uint32)
    return (low[..., None] * SALT) >> np.uint32(27)


def blocks_hold(words: np.ndarray, hashes: HashOrHashes) -> np.ndarray:
    """Return whether each block holds its hash.

    ``words`` are n blocks, uint32, shape ``(n, 8)``. ``hashes`` is one hash for all of them, or one
    for each. The result is bool, shape ``(n,)``.
    """
    mask = np.uint32(1) << bit_numbers(hashes)
    return ((words & mask) == mask).all(axis=1)
