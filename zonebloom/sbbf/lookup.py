"""Hashes looked up in filters in memory: by NumPy until it pays to load the kernels."""

from __future__ import annotations

import numpy as np

from zonebloom.sbbf.numpy_budget import NUMPY
from zonebloom.sbbf.spec import WORDS_PER_BLOCK, block_numbers, holds

# What a call takes beside its checks.
_CHECKS_PER_CALL = 100


def check_any(
    words: np.ndarray, first_words: np.ndarray, num_blocks: np.ndarray, hashes: np.ndarray
) -> np.ndarray:
    """Whether each filter may hold any of some hashes, bool, shape ``(filters,)``; they lie in
    ``words`` from ``first_words``, with ``num_blocks`` (uint64) each."""
    hit = np.zeros(first_words.size, dtype=bool)
    if NUMPY.spend(hashes.size * (first_words.size + _CHECKS_PER_CALL)):
        for hashed in hashes:
            hit |= check_one(words, first_words, num_blocks, hashed)
        return hit
    from zonebloom.sbbf import blocks

    blocks.check_any(words, first_words, num_blocks, hashes, hit)
    return hit


def check_one(
    words: np.ndarray, first_words: np.ndarray, num_blocks: np.ndarray, hashed: np.uint64
) -> np.ndarray:
    """The same of one hash, by NumPy."""
    at = first_words + block_numbers(hashed, num_blocks) * np.uint64(WORDS_PER_BLOCK)
    return holds(words[at[:, None] + np.arange(WORDS_PER_BLOCK, dtype=np.uint64)], hashed)
