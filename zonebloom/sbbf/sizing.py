"""How large a split-block Bloom filter must be.

The false positive probability of a filter of blocks of 256 bits, 8 of them set by a value,
is a Poisson mixture (F. Putze, P. Sanders, J. Singler, "Cache-, Hash- and Space-Efficient
Bloom Filters", equation 3): a block receives ``i`` values with probability
``Poisson(i; 256 / c)``, ``c`` being bits per distinct value, and then each of its 32-bit
words holds a given bit with probability ``1 - (31/32)**i``.

Lance and Impala sum 750 terms from the high end and take the smallest power of two from
2**5 to 2**27 bytes that reaches the target; ``sizing="log2"`` gives their sizes to the byte.
``sizing="exact"`` takes the least number of blocks instead.
"""

from __future__ import annotations

from functools import lru_cache
from math import exp, lgamma, log

from zonebloom.arguments import choice, shown
from zonebloom.errors import InvalidArgument

BITS_PER_BLOCK = 256
BYTES_PER_BLOCK = 32
BITS_PER_WORD = 32
WORDS_PER_BLOCK = 8
MIN_LOG2_BYTES = 5
MAX_LOG2_BYTES = 27
SIZINGS = ("log2", "exact")

_TERMS = 750


@lru_cache(maxsize=4096)
def false_positive_probability(ndv: int, num_bytes: int) -> float:
    """Probability that a filter says "maybe" to a value it does not hold.

    Parameters
    ----------
    ndv : int
        Distinct values inserted.
    num_bytes : int
        Size of the filter, bytes; a positive multiple of 32.

    Returns
    -------
    float
        Between 0.0 (nothing inserted) and 1.0 (more than two values a bit: the sum
        converges slowly there, and the filter is useless).

    Raises
    ------
    InvalidArgument
        For a negative ``ndv`` or a size that is not whole blocks.

    Examples
    --------
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
    for i in range(_TERMS - 1, 0, -1):
        log_poisson = i * log_values_per_block - values_per_block - lgamma(i + 1)
        log_all_words_hit = WORDS_PER_BLOCK * log(1.0 - (1.0 - 1.0 / BITS_PER_WORD) ** i)
        total += exp(log_poisson + log_all_words_hit)
    return min(total, 1.0)


def validate_target(
    ndv: int, probability: float, names: tuple[str, str] = ("number_of_items", "probability")
) -> None:
    """Refuse an ndv or a probability no filter can be made for.

    Parameters
    ----------
    names : (str, str)
        What the caller calls the two.

    Raises
    ------
    InvalidArgument
    """
    if isinstance(ndv, bool) or not isinstance(ndv, int) or not 1 <= ndv < 1 << 63:
        raise InvalidArgument(
            f"{names[0]} is {shown(ndv)}; give a whole number of at least 1, and below 2**63"
        )
    if isinstance(probability, bool) or not isinstance(probability, int | float):
        raise InvalidArgument(f"{names[1]} is {shown(probability)}; give a number between 0 and 1")
    if not 0.0 < probability < 1.0:
        raise InvalidArgument(
            f"{names[1]} is {shown(probability)}; give a number between 0 and 1, both excluded"
        )


def size_for(ndv: int, probability: float, sizing: str = "log2") -> int:
    """Bytes of the smallest filter whose false positive probability is at most a target.

    Parameters
    ----------
    ndv : int
        Distinct values the filter is to hold.
    probability : float
        Target, between 0 and 1, both excluded.
    sizing : {"log2", "exact"}
        A power of two as Lance takes it, or the least number of blocks.

    Returns
    -------
    int
        Bytes, a multiple of 32.

    Raises
    ------
    InvalidArgument
        For a parameter out of range, or when 128 MiB would not be enough.

    Examples
    --------
    >>> size_for(8192, 0.00057), size_for(8192, 0.00057, "exact")
    (32768, 19328)
    """
    validate_target(ndv, probability)
    return _size_for(ndv, probability, choice(sizing, "sizing", SIZINGS))


@lru_cache(maxsize=256)
def _size_for(ndv: int, probability: float, sizing: str) -> int:
    for log2_bytes in range(MIN_LOG2_BYTES, MAX_LOG2_BYTES + 1):
        num_bytes = 1 << log2_bytes
        if false_positive_probability(ndv, num_bytes) <= probability:
            break
    else:
        raise InvalidArgument(
            f"{shown(ndv)} items at a false positive probability of {probability} need a filter of "
            f"more than {1 << MAX_LOG2_BYTES - 20} MiB; give fewer items a zone or a larger "
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
