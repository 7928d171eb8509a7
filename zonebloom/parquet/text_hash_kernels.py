"""A kernel that hashes the strings of decompressed pages, and finds the least and greatest one.

No byte of a page is trusted. Source: Encodings.md of the Parquet format.
"""

from __future__ import annotations

import numpy as np
from numba import int64, uint64

from zonebloom.parquet.header_kernels import (
    PLAIN,
    is_dictionary_encoding,
)
from zonebloom.parquet.page_bytes import byte_at, text_at
from zonebloom.parquet.page_table import STORED_PAGES
from zonebloom.parquet.value_kernels import decode_indices
from zonebloom.sbbf.addresses import load_64
from zonebloom.sbbf.jit import kernel, linked, readonly
from zonebloom.sbbf.xxh64 import hash_memory

# Positions of the addresses and lengths of the least and the greatest string. Addresses are 0 if
# there is none.
MIN_ADDRESS, MIN_LENGTH, MAX_ADDRESS, MAX_LENGTH = range(4)


@linked
def _swap_bytes(value):
    value = ((value >> np.uint64(8)) & np.uint64(0x00FF00FF00FF00FF)) | (
        (value & np.uint64(0x00FF00FF00FF00FF)) << np.uint64(8)
    )
    value = ((value >> np.uint64(16)) & np.uint64(0x0000FFFF0000FFFF)) | (
        (value & np.uint64(0x0000FFFF0000FFFF)) << np.uint64(16)
    )
    return (value >> np.uint64(32)) | (value << np.uint64(32))


@linked
def _prefix(address, length):
    """Return the first eight bytes of a string as a number that is ordered like them."""
    if length >= 8:
        return _swap_bytes(load_64(address))
    prefix = np.uint64(0)
    for i in range(length):
        prefix |= byte_at(address, i) << np.uint64(56 - 8 * i)
    return prefix


@linked
def _is_less(address, length, other_address, other_length):
    for i in range(min(length, other_length)):
        byte, other = byte_at(address, i), byte_at(other_address, i)
        if byte != other:
            return byte < other
    return length < other_length


@kernel(int64(STORED_PAGES, readonly(uint64), uint64[::1], int64[::1]))
def write_text_hashes(pages, dictionary_hashes, out, ends):
    """Hash the stored strings of pages, one after another.

    Parameters
    ----------
    pages : array of page_table.PAGE
    dictionary_hashes : uint64 array
        The hashes of the strings of the dictionary.
    out : uint64 array
        Is filled with the hashes.
    ends : int64 array, shape (4,)
        Is updated if a string of a page without indices is less or greater than its strings.

    Returns
    -------
    int
        The number of hashes, or -1 if the bytes of a page run out or contradict one another.
    """
    used = np.int64(0)
    least, greatest = np.uint64(0), np.uint64(0)
    if ends[MIN_ADDRESS]:
        least = _prefix(np.uint64(ends[MIN_ADDRESS]), ends[MIN_LENGTH])
        greatest = _prefix(np.uint64(ends[MAX_ADDRESS]), ends[MAX_LENGTH])
    for page in range(pages.shape[0]):
        address, size = np.uint64(pages[page].address), pages[page].size
        count, encoding = pages[page].num_stored, pages[page].encoding
        if count < 0 or count > out.shape[0] - used:
            return np.int64(-1)
        if count == 0:
            continue
        if encoding == PLAIN:
            offset = np.int64(0)
            for i in range(used, used + count):
                offset, length = text_at(address, offset, size, 0)
                if length < 0:
                    return np.int64(-1)
                start = address + np.uint64(offset)
                out[i] = hash_memory(start, np.uint64(length), np.uint64(0))
                prefix = _prefix(start, length)
                if not ends[MIN_ADDRESS]:
                    ends[MIN_ADDRESS], ends[MIN_LENGTH] = np.int64(start), length
                    ends[MAX_ADDRESS], ends[MAX_LENGTH] = np.int64(start), length
                    least = greatest = prefix
                if prefix <= least and _is_less(
                    start, length, np.uint64(ends[MIN_ADDRESS]), ends[MIN_LENGTH]
                ):
                    ends[MIN_ADDRESS], ends[MIN_LENGTH], least = np.int64(start), length, prefix
                if prefix >= greatest and _is_less(
                    np.uint64(ends[MAX_ADDRESS]), ends[MAX_LENGTH], start, length
                ):
                    ends[MAX_ADDRESS], ends[MAX_LENGTH], greatest = np.int64(start), length, prefix
                offset += length
        elif is_dictionary_encoding(encoding):
            indices = np.empty(count, dtype=np.uint32)
            if decode_indices(address, size, indices) < 0:
                return np.int64(-1)
            for i in range(count):
                if indices[i] >= dictionary_hashes.shape[0]:
                    return np.int64(-1)
                out[used + i] = dictionary_hashes[indices[i]]
        else:
            return np.int64(-1)
        used += count
    return used
