"""Find the stored values of pages that a Bloom filter of keys may hold."""

from __future__ import annotations

import numpy as np
from numba import int64, uint32

from zonebloom.parquet.page_bytes import copy_bytes, text_at
from zonebloom.parquet.page_table import STORED_PAGES
from zonebloom.sbbf import blocks
from zonebloom.sbbf.jit import kernel, readonly
from zonebloom.sbbf.xxh64 import hash_memory, hash_width_4, hash_width_8

# Values are hashed in groups before they are checked, so that the processor can overlap the loads.
_GROUP_SIZE = 512


@kernel(int64(STORED_PAGES, int64, readonly(uint32), int64[::1]))
def find_hashed(pages, width, words, positions):
    """Write the positions of the values that a filter may hold. Return their number, or -1."""
    values = np.empty(_GROUP_SIZE, dtype=np.uint64)
    halves = values.view(np.uint32)
    values_address = np.uint64(values.ctypes.data)
    hashes = np.empty(_GROUP_SIZE, dtype=np.uint64)
    are_hits = np.empty(_GROUP_SIZE, dtype=np.bool_)
    hits = 0
    for page in range(pages.shape[0]):
        address, size = np.uint64(pages[page].address), pages[page].size
        count, first_position = pages[page].num_stored, pages[page].first_position
        if count < 0 or count * width > size or hits + count > positions.shape[0]:
            return -1
        offset = 0
        for first in range(0, count, _GROUP_SIZE):
            num = min(count - first, _GROUP_SIZE)
            if width in (4, 8):
                copy_bytes(values_address, address + np.uint64(first * width), num * width)
            if width == 8:
                hash_width_8(values[:num], hashes[:num])
            elif width == 4:
                hash_width_4(halves[:num], hashes[:num])
            else:
                for i in range(num):
                    offset, length = text_at(address, offset, size, width)
                    if length < 0:
                        return -1
                    start = address + np.uint64(offset)
                    hashes[i] = hash_memory(start, np.uint64(length), np.uint64(0))
                    offset += length
            blocks.check(words, hashes[:num], are_hits)
            for i in range(num):
                positions[hits] = first_position + first + i
                hits += np.int64(are_hits[i])
    return hits
