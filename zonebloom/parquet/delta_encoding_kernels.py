"""Kernels for the DELTA encodings. They return -1 if bytes run out or contradict one another.

Source: Encodings.md (DELTA_BINARY_PACKED and after it) of the Parquet format.
"""

from __future__ import annotations

import numpy as np
from numba import int64, uint8

from zonebloom.parquet.page_bytes import copy_bytes, varint_at, zigzag
from zonebloom.sbbf.addresses import address_of
from zonebloom.sbbf.jit import kernel, readonly


@kernel(int64(readonly(uint8), int64, int64, int64, int64[::1]))
def decode_deltas(data, offset, stop, bits, out):
    """Decode ``out.size`` integers of ``bits`` bits from DELTA_BINARY_PACKED.

    Return the end of their bytes, or -1.
    """
    if stop > data.shape[0]:
        return -1
    address = address_of(data)
    block, offset = varint_at(address, offset, stop)
    if offset < 0:
        return -1
    miniblocks, offset = varint_at(address, offset, stop)
    if offset < 0:
        return -1
    count, offset = varint_at(address, offset, stop)
    if offset < 0 or count != np.uint64(out.shape[0]):
        return -1
    first, offset = varint_at(address, offset, stop)
    if offset < 0 or block == 0 or block > np.uint64(1 << 24) or miniblocks == 0:
        return -1
    if miniblocks > np.uint64(1 << 16) or block % miniblocks:
        return -1
    per_miniblock = np.int64(block // miniblocks)
    if block % 128 or per_miniblock % 32:
        return -1
    if out.shape[0] == 0:
        return offset
    value = zigzag(first)
    out[0] = value
    num_decoded = 1
    while num_decoded < out.shape[0]:
        encoded_min, offset = varint_at(address, offset, stop)
        if offset < 0 or np.int64(miniblocks) > stop - offset:
            return -1
        min_delta = zigzag(encoded_min)
        widths = offset
        offset += np.int64(miniblocks)
        for miniblock in range(np.int64(miniblocks)):
            if num_decoded >= out.shape[0]:
                # Miniblocks without values have no bytes.
                break
            width = np.int64(data[widths + miniblock])
            num_bytes = per_miniblock // 8 * width
            num_values = min(per_miniblock, out.shape[0] - num_decoded)
            if width > bits or num_bytes > stop - offset:
                return -1
            bit = offset * 8
            for _ in range(num_values):
                delta = np.uint64(0)
                num_bits = 0
                while num_bits < width:
                    byte = np.uint64(data[bit >> 3]) >> np.uint64(bit & 7)
                    piece = min(8 - (bit & 7), width - num_bits)
                    byte &= (np.uint64(1) << np.uint64(piece)) - np.uint64(1)
                    delta |= byte << np.uint64(num_bits)
                    num_bits += piece
                    bit += piece
                value = np.int64(np.uint64(value) + np.uint64(min_delta) + delta)
                out[num_decoded] = value
                num_decoded += 1
            offset += num_bytes
    return offset


@kernel(int64(readonly(uint8), int64, int64, readonly(int64), readonly(int64), uint8[::1]))
def join_prefixes(data, offset, stop, prefixes, suffixes, out):
    """Decode the strings of DELTA_BYTE_ARRAY into ``out``, one after another.

    ``prefixes`` and ``suffixes`` are lengths, and ``out`` has room for all of them. Return the end
    of the suffixes in ``data``, or -1.
    """
    if stop > data.shape[0]:
        return -1
    source, target = address_of(data), address_of(out)
    previous = 0
    length = 0
    end = 0
    for i in range(prefixes.shape[0]):
        prefix, suffix = prefixes[i], suffixes[i]
        if prefix < 0 or prefix > length or suffix < 0 or suffix > stop - offset:
            return -1
        if prefix + suffix > out.shape[0] - end:
            return -1
        copy_bytes(target + np.uint64(end), target + np.uint64(previous), prefix)
        copy_bytes(target + np.uint64(end + prefix), source + np.uint64(offset), suffix)
        offset += suffix
        previous = end
        length = prefix + suffix
        end += length
    return offset


@kernel(int64(readonly(uint8), int64, readonly(int64), uint8[::1]))
def write_plain_texts(data, offset, lengths, out):
    """Write consecutive strings to ``out`` in PLAIN encoding, each after its length.

    Return the number of bytes written, or -1.
    """
    source, target = address_of(data), address_of(out)
    end = 0
    for i in range(lengths.shape[0]):
        length = lengths[i]
        if length < 0 or length > data.shape[0] - offset or length + 4 > out.shape[0] - end:
            return -1
        for k in range(4):
            out[end + k] = np.uint8((length >> (8 * k)) & 0xFF)
        copy_bytes(target + np.uint64(end + 4), source + np.uint64(offset), length)
        offset += length
        end += length + 4
    return end
