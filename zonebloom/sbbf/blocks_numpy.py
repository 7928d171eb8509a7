"""One hash against many filters in NumPy: a first lookup answers before Numba could load."""

from __future__ import annotations

import numpy as np

# Parquet format, BloomFilter.md, section "Technical Approach".
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


def check_one(
    words: np.ndarray, first_words: np.ndarray, num_blocks: np.ndarray, hashed: int
) -> np.ndarray:
    """Tell for each filter whether it may hold a hash.

    Parameters
    ----------
    words : uint32 array
        Memory in which all the filters lie.
    first_words, num_blocks : uint64 array, shape (filters,)
        Where each filter begins in ``words``, and its number of blocks.
    hashed : int
        XXH64 of the value.

    Returns
    -------
    bool array, shape (filters,)
    """
    high, low = np.uint64(hashed >> 32), np.uint32(hashed & 0xFFFFFFFF)
    block = (num_blocks * high) >> np.uint64(32)
    mask = np.uint32(1) << ((low * SALT) >> np.uint32(27))
    at = first_words + block * np.uint64(WORDS_PER_BLOCK)
    found = words[at[:, None] + np.arange(WORDS_PER_BLOCK, dtype=np.uint64)]
    return ((found & mask) == mask).all(axis=1)
