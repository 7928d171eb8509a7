"""Kernels that partition pairs of a hash and a zone by the hash, sort them, and drop duplicates."""

from __future__ import annotations

import numpy as np
from numba import boolean, int64, uint8, uint32, uint64, void

from zonebloom.sbbf.jit import kernel, linked, readonly

# Pairs of one bucket up to this number are sorted by insertion.
_MAX_INSERTIONS = 32


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
        uint32[::1],
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
    out_hashes,
    out_zones,
):
    """Write the hash and the zone of each row that is not null to the place of its partition.

    ``nexts`` holds the next free place of each partition. The partition of a hash is
    ``hash >> shift``. Equal neighbours in a zone become one pair.
    """
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
                out_hashes[place] = hashed
                out_zones[place] = np.uint32(zone)
                last_hash, last_zone = hashed, zone
        num_left -= 1
        if num_left == 0:
            zone += 1
            num_left = items


@linked
def _is_after(hashes, zones, i, j):
    return hashes[i] > hashes[j] or (hashes[i] == hashes[j] and zones[i] > zones[j])


@linked
def _sort_by_insertion(hashes, zones, start, stop):
    for i in range(start + 1, stop):
        hashed, zone = hashes[i], zones[i]
        j = i - 1
        while j >= start and (hashes[j] > hashed or (hashes[j] == hashed and zones[j] > zone)):
            hashes[j + 1] = hashes[j]
            zones[j + 1] = zones[j]
            j -= 1
        hashes[j + 1] = hashed
        zones[j + 1] = zone


@linked
def _merge_halves(hashes, zones, start, middle, stop, to_hashes, to_zones):
    left, right = start, middle
    for i in range(start, stop):
        takes_left = left < middle and (right >= stop or not _is_after(hashes, zones, left, right))
        source = left if takes_left else right
        if takes_left:
            left += 1
        else:
            right += 1
        to_hashes[i] = hashes[source]
        to_zones[i] = zones[source]


@linked
def _sort_by_merging(hashes, zones, start, stop, other_hashes, other_zones):
    """Sort in time n log n whatever the order. The other arrays are scratch memory."""
    width = np.int64(1)
    while width < stop - start:
        for low in range(start, stop, 2 * width):
            middle = min(low + width, stop)
            high = min(low + 2 * width, stop)
            _merge_halves(hashes, zones, low, middle, high, other_hashes, other_zones)
        for i in range(start, stop):
            hashes[i] = other_hashes[i]
            zones[i] = other_zones[i]
        width *= 2


@kernel(
    int64(
        uint64[::1],
        uint32[::1],
        uint64,
        uint64,
        int64[::1],
        uint64[::1],
        uint32[::1],
    )
)
def sort_pairs(hashes, zones, mask, skip, counts, out_hashes, out_zones):
    """Sort pairs by masked hash, then zone, and drop duplicates. Return how many are left.

    All hashes share their first ``skip`` bits. ``counts`` has a power of two of items, at least
    two; hashes are distributed to as many buckets before each bucket is sorted. The input becomes
    scratch memory.
    """
    bits = np.uint64(0)
    while np.int64(1) << np.int64(bits) < counts.shape[0]:
        bits += np.uint64(1)
    shift = np.uint64(64) - bits
    counts[:] = 0
    for i in range(hashes.shape[0]):
        counts[np.int64(((hashes[i] & mask) << skip) >> shift)] += 1
    place = np.int64(0)
    for bucket in range(counts.shape[0]):
        count = counts[bucket]
        counts[bucket] = place
        place += count
    for i in range(hashes.shape[0]):
        hashed = hashes[i] & mask
        bucket = np.int64((hashed << skip) >> shift)
        place = counts[bucket]
        counts[bucket] = place + 1
        out_hashes[place] = hashed
        out_zones[place] = zones[i]
    # Each count is now the end of its bucket.
    start = count = np.int64(0)
    for bucket in range(counts.shape[0]):
        stop = counts[bucket]
        if stop - start > 1:
            is_sorted = True
            for i in range(start + 1, stop):
                if _is_after(out_hashes, out_zones, i - 1, i):
                    is_sorted = False
                    break
            if not is_sorted and stop - start <= _MAX_INSERTIONS:
                _sort_by_insertion(out_hashes, out_zones, start, stop)
            elif not is_sorted:
                _sort_by_merging(out_hashes, out_zones, start, stop, hashes, zones)
        for i in range(start, stop):
            hashed, zone = out_hashes[i], out_zones[i]
            if count and hashed == out_hashes[count - 1] and zone == out_zones[count - 1]:
                continue
            out_hashes[count] = hashed
            out_zones[count] = zone
            count += 1
        start = stop
    return count
