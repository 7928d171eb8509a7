"""Values at chosen positions among those that pages store; as in `find_kernels`.

Source: Encodings.md of the Parquet format.
"""

from __future__ import annotations

import numpy as np
from numba import int64, uint8, uint64

from zonebloom.sbbf.jit import kernel, readonly
from zonebloom.sbbf.xxh64 import load_64
from zonebloom.storage.parquet.find_kernels import PAGES
from zonebloom.storage.parquet.page_bytes import bits_at, byte_at, run_at, text_at


@kernel(int64(*PAGES[:3], int64, int64))
def have_values(addresses, sizes, counts, width, are_indices):
    """Whether pages have as many values, or dictionary indices, as they are to: 0, or -1."""
    for page in range(addresses.shape[0]):
        address, size, count = addresses[page], sizes[page], counts[page]
        if width and not are_indices:
            if count * width > size:
                return -1
            continue
        if count and are_indices:
            if size < 1 or byte_at(address, 0) > np.uint64(32):
                return -1
            width = np.int64(byte_at(address, 0))
        at = np.int64(are_indices)
        done = 0
        while done < count:
            wanted = 1
            if are_indices:
                wanted, _, _, at = run_at(address, at, size, width, count - done)
            else:
                at, length = text_at(address, at, size, 0)
                wanted = 1 if length >= 0 else -1
                at += length
            if wanted < 0:
                return -1
            done += wanted
    return 0


@kernel(int64(*PAGES, readonly(int64), int64, int64[::1]))
def take_indices(addresses, sizes, counts, bases, positions, size, out):
    """The dictionary indices at some positions, ascending, below ``size``; how many, or -1."""
    taken = 0
    for page in range(addresses.shape[0]):
        address, stop, count, base = addresses[page], sizes[page], counts[page], bases[page]
        if taken == positions.shape[0] or positions[taken] >= base + count:
            continue
        if stop < 1 or positions[taken] < base:
            return -1
        width = np.int64(byte_at(address, 0))
        if width > 32:
            return -1
        at = 1
        done = 0
        while done < count and taken < positions.shape[0] and positions[taken] < base + count:
            wanted, value, begin, at = run_at(address, at, stop, width, count - done)
            if wanted < 0:
                return -1
            while taken < positions.shape[0] and positions[taken] < base + done + wanted:
                index = value
                if value < 0:
                    bit = begin * 8 + (positions[taken] - base - done) * width
                    index = np.int64(bits_at(address, bit, width, stop))
                if index >= size:
                    return -1
                out[taken] = index
                taken += 1
            done += wanted
    return taken


@kernel(int64(*PAGES, int64, readonly(int64), uint64[::1], int64[::1]))
def take_texts(addresses, sizes, counts, bases, width, positions, starts, lengths):
    """Where the values at some positions, ascending, lie in memory; how many, or -1.

    Values have a width, or their length before them.
    """
    taken = 0
    for page in range(addresses.shape[0]):
        address, size, base = addresses[page], sizes[page], bases[page]
        if taken == positions.shape[0] or positions[taken] >= base + counts[page]:
            continue
        if positions[taken] < base:
            return -1
        at = 0
        i = 0
        while taken < positions.shape[0] and positions[taken] < base + counts[page]:
            if width:
                i = positions[taken] - base
                at = i * width
            at, length = text_at(address, at, size, width)
            if length < 0:
                return -1
            if base + i == positions[taken]:
                starts[taken] = address + np.uint64(at)
                lengths[taken] = length
                taken += 1
            at += length
            i += 1
    return taken


@kernel(int64(*PAGES, int64, readonly(int64), uint8[::1]))
def take_fixed(addresses, sizes, counts, bases, width, positions, out):
    """Copy the values of a width at some positions, ascending; how many, or -1."""
    if positions.shape[0] * width > out.shape[0]:
        return -1
    taken = 0
    for page in range(addresses.shape[0]):
        address, count, base = addresses[page], counts[page], bases[page]
        if count * width > sizes[page]:
            return -1
        while taken < positions.shape[0] and positions[taken] < base + count:
            if positions[taken] < base:
                return -1
            start = address + np.uint64((positions[taken] - base) * width)
            end = taken * width
            if width == 8:
                value = load_64(start)
                for k in range(8):
                    out[end + k] = np.uint8(value >> np.uint64(8 * k))
            else:
                for k in range(width):
                    out[end + k] = np.uint8(byte_at(start, k))
            taken += 1
    return taken


@kernel(int64(readonly(uint64), readonly(int64), uint8[::1]))
def copy_texts(starts, lengths, out):
    """Copy bytes in memory, one text after another; bytes copied, or -1 where there is no room."""
    end = 0
    for i in range(starts.shape[0]):
        length = lengths[i]
        if length < 0 or length > out.shape[0] - end:
            return -1
        start = starts[i]
        j = 0
        while length - j >= 8:
            value = load_64(start + np.uint64(j))
            for k in range(8):
                out[end + j + k] = np.uint8(value >> np.uint64(8 * k))
            j += 8
        while j < length:
            out[end + j] = np.uint8(byte_at(start, j))
            j += 1
        end += length
    return end
