"""The split-block Bloom filter: salts, sizes, the bits of a hash, and lookups by NumPy.

A filter is ``z`` blocks of 256 bits; a block is eight 32-bit words:

    filter   | block 0 | block 1 | ...                  | block z-1 |
                  |
    block    | word 0 | word 1 | word 2 | ... | word 7 |     32 bytes
                  |
    word     one bit set:  (uint32(hash) * SALT[i]) >> 27

The upper half of a hash picks the block, ``((hash >> 32) * z) >> 32``; the lower half picks
one bit in each of the block's eight words. ``z`` need not be a power of two. Source: Parquet
format, BloomFilter.md, section "Technical Approach".

The first lookups use NumPy, because the compiled kernels take long to load.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from zonebloom.sbbf.kernel_loader import KERNELS

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
# The fixed cost of one NumPy call, as a number of block checks.
_CHECKS_PER_CALL = 100


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


def check_any(
    words: np.ndarray, first_words: np.ndarray, num_blocks: np.ndarray, hashes: np.ndarray
) -> np.ndarray:
    """Return whether each filter may hold any of the hashes, bool, shape ``(filters,)``.

    The filters lie in ``words``. Filter i begins at ``first_words[i]`` and has ``num_blocks[i]``
    blocks. ``hashes``, ``first_words`` and ``num_blocks`` are uint64.
    """
    hits = np.zeros(first_words.size, dtype=bool)
    checks = hashes.size * (first_words.size + _CHECKS_PER_CALL)
    if KERNELS.are_loaded or KERNELS.are_worth(checks):
        from zonebloom.sbbf.blocks import check_filters

        check_filters(words, first_words, num_blocks, hashes, hits)
        return hits
    for hash_value in hashes:
        hits |= check_one(words, first_words, num_blocks, hash_value)
    return hits


def check_one(
    words: np.ndarray, first_words: np.ndarray, num_blocks: np.ndarray, hash_value: np.uint64
) -> np.ndarray:
    """Return whether each filter may hold one hash. Like `check_any`, but always with NumPy."""
    starts = first_words + block_numbers(hash_value, num_blocks) * np.uint64(WORDS_PER_BLOCK)
    blocks = words[starts[:, None] + np.arange(WORDS_PER_BLOCK, dtype=np.uint64)]
    return blocks_hold(blocks, hash_value)
