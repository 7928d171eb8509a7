"""The parameters of a hash index, and the shape that they give to a file."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2
from typing import NamedTuple

from zonebloom.base import arguments
from zonebloom.index.table import require_zone_rows
from zonebloom.sbbf.sizing import validate_target

DEFAULT_ZONE_ROWS = 1024
DEFAULT_PROBABILITY = 0.004
# All tasks of a build in a process together hold about this many pairs of a hash and a zone in
# memory, each in 8 bytes.
MAX_BUFFERED_PAIRS = 1 << 26
# An entry must fit into one unaligned load of eight bytes.
MAX_ENTRY_BITS = 56
# With a smaller probability, an entry of a large table would need more bits than that.
_MIN_PROBABILITY = 1e-6
# A lookup reads one block, so a block is about as large as a piece that is cheap to read.
_MAX_BLOCK_BYTES = 16 << 10
# Small segments keep up to this many more bits of each hash, because merged segments need them.
_SPARE_BITS = 8
_MAX_HASH_BITS_WITH_SPARE = 33
_REFERENCE_BYTES = 16


@dataclass(frozen=True, slots=True)
class HashParameters:
    """The parameters of a hash index."""

    # Rows in a zone.
    number_of_items: int = DEFAULT_ZONE_ROWS
    # The expected number of zones that a segment returns for a key that it does not hold.
    probability: float = DEFAULT_PROBABILITY

    def __post_init__(self) -> None:
        require_zone_rows(self.number_of_items)
        validate_target(self.number_of_items, self.probability)
        if self.probability < _MIN_PROBABILITY:
            advice = f"give at least {_MIN_PROBABILITY}"
            raise arguments.invalid_value(self.probability, "probability", advice)


class BlockShape(NamedTuple):
    """The bits of a hash that choose the block and the bucket, and the parts of an entry.

    The remainder of a hash is the next ``remainder_bits`` bits. An entry holds it and a
    zone.
    """

    block_bits: int
    bucket_bits: int
    remainder_bits: int
    zone_bits: int

    @property
    def hash_bits(self) -> int:
        return self.block_bits + self.bucket_bits + self.remainder_bits

    @property
    def num_blocks(self) -> int:
        return 1 << self.block_bits

    @property
    def num_buckets(self) -> int:
        """Return the number of buckets of one block."""
        return 1 << self.bucket_bits

    @property
    def entry_bits(self) -> int:
        return self.remainder_bits + self.zone_bits

    @property
    def posting_mark(self) -> int:
        """Return the number in place of a zone that marks a posting."""
        return (1 << self.zone_bits) - 1


def hash_bits_to_keep(num_pairs: int, probability: float) -> int:
    """Return how many leading bits a new segment keeps. Small segments have a reserve for merges.

    >>> [hash_bits_to_keep(count, 0.004) for count in (1000, 1_000_000, 20_000_000)]
    [26, 33, 33]
    """
    # So many leading bits of a hash tell absent keys apart well enough.
    needed = max(1, ceil(log2(max(num_pairs, 1) / probability)))
    return max(needed, min(needed + _SPARE_BITS, _MAX_HASH_BITS_WITH_SPARE))


def zone_bits_for(num_zones: int) -> int:
    """Return the bits that hold the number of each zone and the mark of a posting."""
    return max(1, num_zones.bit_length())


def choose_shape(
    num_entries: int,
    num_postings: int,
    num_zones: int,
    hash_bits: int,
    max_block_bits: int = 40,
) -> BlockShape:
    """Return the shape of the smallest file, with at most ``1 << max_block_bits`` blocks.

    More buckets cost a bit each, and save a bit of each remainder.

    >>> choose_shape(20_000_000, 0, 19_532, 33)
    BlockShape(block_bits=12, bucket_bits=13, remainder_bits=8, zone_bits=15)
    """
    zone_bits = zone_bits_for(num_zones)
    widest = min(hash_bits, MAX_ENTRY_BITS - zone_bits)

    def num_bits(remainder_bits: int) -> int:
        return num_entries * (remainder_bits + zone_bits + 1) + (1 << (hash_bits - remainder_bits))

    # At least one bit, so that the kernels never shift by a whole word.
    remainder_bits = min(range(1, widest + 1), key=num_bits)
    num_bytes = num_bits(remainder_bits) // 8 + num_postings * _REFERENCE_BYTES
    block_bits = ceil(log2(max(1, num_bytes / _MAX_BLOCK_BYTES)))
    block_bits = min(block_bits, max_block_bits, hash_bits - remainder_bits)
    return BlockShape(
        block_bits, hash_bits - remainder_bits - block_bits, remainder_bits, zone_bits
    )
