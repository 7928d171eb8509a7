"""Kernels that partition pairs of a hash and a zone by the hash, and pack them for sorting.

An unsorted pair is one number: the 32 bits of the hash after those that choose its partition, then
the 32 bits of the zone.
"""

from __future__ import annotations

import numpy as np
from numba import boolean, int64, uint8, uint64, void

from zonebloom.sbbf.addresses import load_64
from zonebloom.sbbf.jit import kernel, linked, readonly

_U32 = np.uint64(32)
_ZONE_MASK = np.uint64(0xFFFFFFFF)


@linked
def _is_valid(validity, position):
    byte = validity[position >> 3]
    return (byte >> np.uint8(position & 7)) & np.uint8(1)


@kernel(
    void(
        readonly(uint64),
        readonly(uint8),
        int64,
        boolean,
        int64,
        int64,
        int64,
        uint64,
        int64[::1],
    )
)
def count_partitions(
    values, validity, validity_offset, has_nulls, first_row, items, first_zone, shift, counts
):
    """Count the pairs that `scatter_pairs` writes to each partition."""
    zone = first_zone + first_row // items
    num_left = items - first_row % items
    last_hash, last_zone = np.uint64(0), np.int64(-1)
    for i in range(values.shape[0]):
        if not has_nulls or _is_valid(validity, validity_offset + i):
            hashed = values[i]
            if hashed != last_hash or zone != last_zone:
                counts[np.int64(hashed >> shift)] += 1
                last_hash, last_zone = hashed, zone
        num_left -= 1
        if num_left == 0:
            zone += 1
            num_left = items


@kernel(
    void(
        readonly(uint64),
        readonly(uint8),
        int64,
        boolean,
        int64,
        int64,
        int64,
        uint64,
        int64[::1],
        uint64[::1],
    )
)
def scatter_pairs(
    values,
    validity,
    validity_offset,
    has_nulls,
    first_row,
    items,
    first_zone,
    shift,
    nexts,
    out,
):
    """Write the pair of each row that is not null to the place of its partition.

    ``nexts`` holds the next free place of each partition. The partition of a hash is
    ``hash >> shift``. Equal neighbours in a zone become one pair.
    """
    skip = np.uint64(64) - shift
    zone = first_zone + first_row // items
    num_left = items - first_row % items
    last_hash, last_zone = np.uint64(0), np.int64(-1)
    for i in range(values.shape[0]):
        if not has_nulls or _is_valid(validity, validity_offset + i):
            hashed = values[i]
            if hashed != last_hash or zone != last_zone:
                partition = np.int64(hashed >> shift)
                place = nexts[partition]
                nexts[partition] = place + 1
                out[place] = (((hashed << skip) >> _U32) << _U32) | np.uint64(zone)
                last_hash, last_zone = hashed, zone
        num_left -= 1
        if num_left == 0:
            zone += 1
            num_left = items


@kernel(void(readonly(uint64), readonly(int64, 2), int64, int64, int64, int64, uint64[::1]))
def pack_pairs(addresses, offsets, first_partition, partition_bits, hash_bits, zone_bits, out):
    """Pack the pairs of consecutive partitions so that they can be sorted as numbers.

    A packed pair is the first ``hash_bits`` bits of the hash, then ``zone_bits`` bits of the zone.

    Parameters
    ----------
    addresses : uint64 array, shape (arrays,)
        Where arrays of unsorted pairs are in memory.
    offsets : int64 array, shape (arrays, partitions + 1)
        Where the partitions begin in each array, and where the last one ends.
    first_partition, partition_bits : int
        The leading bits of the hashes in the first partition, and how many they are.
    hash_bits, zone_bits : int
        At most 64 together.
    out : uint64 array, shape (pairs,)
    """
    hash_shift = np.uint64(partition_bits + 32 - hash_bits)
    zone_shift = np.uint64(zone_bits)
    place = np.int64(0)
    for number in range(addresses.shape[0]):
        address = addresses[number]
        for partition in range(offsets.shape[1] - 1):
            prefix = np.uint64(first_partition + partition) << _U32
            for i in range(offsets[number, partition], offsets[number, partition + 1]):
                pair = load_64(address + np.uint64(8 * i))
                kept_hash = (prefix | (pair >> _U32)) >> hash_shift
                out[place] = (kept_hash << zone_shift) | (pair & _ZONE_MASK)
                place += 1


@kernel(int64(uint64[::1]))
def drop_duplicates(pairs):
    """Keep each of some sorted numbers once, at the front. Return how many are left."""
    count = np.int64(0)
    for i in range(pairs.shape[0]):
        if i == 0 or pairs[i] != pairs[count - 1]:
            pairs[count] = pairs[i]
            count += 1
    return count
