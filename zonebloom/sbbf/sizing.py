"""Compute the size of a split-block Bloom filter, and fold one that is larger than it needs to be.

The false positive probability is a Poisson mixture (F. Putze, P. Sanders, J. Singler, "Cache-,
Hash- and Space-Efficient Bloom Filters", equation 3): a block of 256 bits receives ``i`` values
with probability ``Poisson(i; 256 / c)``, ``c`` being bits per distinct value, and then each of its
32-bit words holds a given bit with probability ``1 - (31/32)**i``. Lance and Impala sum 750 terms
from the high end; ``sizing="log2"`` gives their sizes to the byte.
"""

from __future__ import annotations

from functools import cache, lru_cache, reduce
from math import exp, lgamma, log

import numpy as np

from zonebloom.base.arguments import invalid_value, require_choice, short_repr
from zonebloom.base.arrays import allocate_array
from zonebloom.errors import InvalidArgument
from zonebloom.sbbf.spec import (
    BITS_PER_BLOCK,
    BITS_PER_WORD,
    BYTES_PER_BLOCK,
    MAX_BYTES,
    WORDS_PER_BLOCK,
)

SIZINGS = ("log2", "exact")
DEFAULT_ZONE_PROBABILITY = 0.00057

_TERMS = 750


@lru_cache(maxsize=4096)
def false_positive_probability(ndv: int, num_bytes: int) -> float:
    """Return the probability that a filter answers "maybe" for a value it does not hold.

    The result is 1.0 if there are more than two values for each bit.

    >>> round(false_positive_probability(26_214, 1024 * 32), 4)
    0.0126
    """
    if ndv < 0:
        raise InvalidArgument(f"ndv is {ndv}; give the number of distinct values, 0 or more")
    if num_bytes < BYTES_PER_BLOCK or num_bytes % BYTES_PER_BLOCK:
        raise InvalidArgument(
            f"a filter of {num_bytes} bytes is not a whole number of {BYTES_PER_BLOCK}-byte blocks"
        )
    if ndv == 0:
        return 0.0
    bits = num_bytes * 8
    if ndv / bits > 2:
        return 1.0
    values_per_block = BITS_PER_BLOCK / (bits / ndv)
    log_values_per_block = log(values_per_block)
    total = 0.0
    for i, log_factorial, log_all_words_hit in _log_terms():
        log_poisson = i * log_values_per_block - values_per_block - log_factorial
        total += exp(log_poisson + log_all_words_hit)
    return min(total, 1.0)


@cache
def _log_terms() -> list[tuple[int, float, float]]:
    """Return the parts of each term that are the same for all filters.

    These are the number of values in a block, the logarithm of its factorial, and that of the
    probability that all words have the bit of another value.
    """
    return [
        (i, lgamma(i + 1), WORDS_PER_BLOCK * log(1.0 - (1.0 - 1.0 / BITS_PER_WORD) ** i))
        for i in range(_TERMS - 1, 0, -1)
    ]


def validate_target(
    ndv: int, probability: float, names: tuple[str, str] = ("number_of_items", "probability")
) -> None:
    """Raise `InvalidArgument` if no filter can have this ndv or probability.

    ``names`` are the caller's names of the two arguments, for the message.
    """
    if isinstance(ndv, bool) or not isinstance(ndv, int) or not 1 <= ndv < 1 << 63:
        raise invalid_value(ndv, names[0], "give a whole number of at least 1, and below 2**63")
    is_number = isinstance(probability, int | float) and not isinstance(probability, bool)
    if not is_number or not 0.0 < probability < 1.0:
        raise invalid_value(probability, names[1], "give a number between 0 and 1, both excluded")


def size_for(ndv: int, probability: float, sizing: str = "log2") -> int:
    """Return the size in bytes of the smallest filter that meets a false positive probability.

    >>> size_for(8192, 0.00057), size_for(8192, 0.00057, "exact")
    (32768, 19328)
    """
    validate_target(ndv, probability)
    return _size_for(ndv, probability, require_choice(sizing, "sizing", SIZINGS))


@lru_cache(maxsize=256)
def _size_for(ndv: int, probability: float, sizing: str) -> int:
    num_bytes = BYTES_PER_BLOCK
    while false_positive_probability(ndv, num_bytes) > probability:
        num_bytes *= 2
        if num_bytes > MAX_BYTES:
            raise InvalidArgument(
                f"{short_repr(ndv)} items at a false positive probability of {probability} need a "
                f"filter of more than {MAX_BYTES >> 20} MiB; give fewer items a zone or a larger "
                "probability"
            )
    if sizing == "log2" or num_bytes == BYTES_PER_BLOCK:
        return num_bytes
    too_few, enough = num_bytes // 2 // BYTES_PER_BLOCK, num_bytes // BYTES_PER_BLOCK
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        if false_positive_probability(ndv, middle * BYTES_PER_BLOCK) <= probability:
            enough = middle
        else:
            too_few = middle
    return enough * BYTES_PER_BLOCK


def estimated_fpp(words: np.ndarray) -> float:
    """Return the false positive probability of a filter with the bits that it has now.

    In one block, it is the product of the shares of set bits of the eight words. In a filter, it is
    the mean over all blocks.
    """
    shares = np.bitwise_count(words).reshape(-1, WORDS_PER_BLOCK).T / BITS_PER_WORD
    # Add in a fixed order. The order of np.sum may change between versions of NumPy, and the last
    # digit decides how often a filter is folded.
    return float(np.add.accumulate(reduce(np.multiply, shares))[-1]) / shares.shape[1]


def fold_filter(words: np.ndarray, probability: float) -> np.ndarray:
    """Halve a filter while its estimated false positive probability stays at most ``probability``.

    Each step ORs adjacent blocks. This is right because the block number of a hash halves, rounded
    down, when the number of blocks halves.
    """
    return fold_filters(words.reshape(1, -1), probability)[0]


def fold_filters(filters: np.ndarray, probability: float) -> tuple[np.ndarray, np.ndarray]:
    """Fold filters, uint32, shape ``(n, words)``, each as `fold_filter` does.

    Return the words of all of them, one filter after another, and the words of each, int64.
    """
    from zonebloom.sbbf import blocks

    folded = allocate_array(filters.size, np.uint32)
    sizes = np.empty(len(filters), dtype=np.int64)
    return folded[: blocks.fold_each(filters, probability, folded, sizes)], sizes
