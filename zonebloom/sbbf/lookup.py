"""Look hashes up in filters that are in memory.

The first lookups use NumPy, because the compiled kernels take long to load.
"""

from __future__ import annotations

import numpy as np

from zonebloom.sbbf.kernel_loader import KERNELS
from zonebloom.sbbf.spec import WORDS_PER_BLOCK, block_numbers, blocks_hold

# The fixed cost of one NumPy call, as a number of block checks.
_CHECKS_PER_CALL = 100


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
