"""Headers of pages, held against where the pages lie and against one another.

Source: parquet.thrift and thrift-compact-protocol.md.
"""

from __future__ import annotations

import numpy as np
from numba import int64, uint8

from zonebloom.sbbf.jit import inlined, kernel, readonly
from zonebloom.storage.parquet.leaf_type import LZ4, SNAPPY
from zonebloom.storage.parquet.page_bytes import varint_at, zigzag

# Fields of a page header, by position; what a header does not have is -1.
_TYPE, _UNCOMPRESSED, _COMPRESSED, _CRC, _NUM_VALUES, _ENCODING = range(6)
_NUM_NULLS, _NUM_ROWS, _DEFINITION_BYTES, _REPETITION_BYTES, _IS_COMPRESSED = range(6, 11)
_LEVEL_ENCODING = 11
_HEADER_FIELDS = 12

# What is known of a page, each in a row of its own of a table. Where it lies in the file, and what
# rows of its row group it has: `row_kernels.place_pages`.
START, NUM_BYTES, AT, FIRST_ROW, NUM_ROWS = range(5)
# Where the bytes of its body begin in what was read, and their number; how many they become when
# they are decompressed, -1 where they are not compressed; its encoding; its checksum or -1, and
# where the bytes that it is of begin; the bytes of its levels, -1 where they are among the others.
BEGIN, SIZE, PLAIN_SIZE, ENCODING, CHECKSUM, CHECKED, LEVEL_BYTES = range(5, 12)
# The address of the body, `body_kernels.read_bodies`, its size then being the decompressed one;
# how many values it stores, and the position of the first: `row_kernels.read_levels`.
ADDRESS, STORED, BASE = range(12, 15)
PAGE_FIELDS = 15
# What `open_pages` gives: what some page has, or why a page is refused.
HAS_INDICES, HAS_PLAIN, HAS_OTHERS, HAS_CHECKSUM = 1, 2, 4, 8
MALFORMED, MISPLACED, CONTRADICTORY, UNKNOWN_LEVELS = -1, -2, -3, -4

_DEPTH = 4
# Types of the compact protocol.
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _STRUCT = 1, 2, 3, 4, 5, 6, 7, 8, 12
# Fields of a PageHeader that describe a page of each type, the types, and encodings.
_DATA, _DICTIONARY, _DATA_V2 = 5, 7, 8
_V1_PAGE, _DICTIONARY_PAGE, _V2_PAGE = 0, 2, 3
PLAIN, PLAIN_DICTIONARY, _RLE, RLE_DICTIONARY = 0, 2, 3, 8
_MOST_BYTES = (1 << 31) - 1
# More than Snappy makes of a byte (64 of 3), and than any codec does.
MOST_SNAPPY_RATIO, MOST_RATIO = 22, 1 << 16


@inlined
def of_dictionary(encoding):
    """Whether what is encoded are indices into a dictionary."""
    return (encoding == PLAIN_DICTIONARY) | (encoding == RLE_DICTIONARY)


@inlined
def _position(outer, number):
    """Where a field goes; ``outer`` is the field that its struct is of, 0 at the top."""
    if outer == 0 and 1 <= number <= 4:
        return number - 1
    if outer in (_DATA, _DICTIONARY) and 1 <= number <= 2:
        return _NUM_VALUES + number - 1
    if outer == _DATA and number == 3:
        return _LEVEL_ENCODING
    if outer == _DATA_V2:
        if number == 1:
            return _NUM_VALUES
        if number in (2, 3):
            return _NUM_NULLS + number - 2
        if number == 4:
            return _ENCODING
        if number in (5, 6):
            return _DEFINITION_BYTES + number - 5
        if number == 7:
            return _IS_COMPRESSED
    return -1


# Not inlined: it would be compiled for each that calls it, and takes seconds.
@kernel(int64(readonly(uint8), int64, int64, int64[::1], int64[::1], int64[::1]))
def _page_header(data, at, stop, out, last, outer):
    """Read a page header: the fields that are known into ``out``; where it ends, or -1."""
    address = np.uint64(data.ctypes.data)
    out[:] = -1
    last[0] = 0
    outer[0] = 0
    depth = 0
    while at < stop:
        byte = data[at]
        at += 1
        kind = byte & np.uint8(0x0F)
        if kind == 0:
            if depth == 0:
                return at
            depth -= 1
            continue
        delta = np.int64(byte >> np.uint8(4))
        if delta == 0:
            return -1
        number = last[depth] + delta
        last[depth] = number
        position = _position(outer[depth], number) if depth < 2 else -1
        if kind in (_TRUE, _FALSE):
            if position == _IS_COMPRESSED:
                out[position] = np.int64(kind == _TRUE)
        elif kind in (_I16, _I32, _I64):
            value, at = varint_at(address, at, stop)
            if at < 0:
                return -1
            if position >= 0:
                out[position] = zigzag(value)
        elif kind == _BYTE:
            at += 1
        elif kind == _DOUBLE:
            at += 8
        elif kind == _BINARY:
            size, at = varint_at(address, at, stop)
            if at < 0 or size > np.uint64(stop - at):
                return -1
            at += np.int64(size)
        elif kind == _STRUCT and depth + 1 < _DEPTH:
            depth += 1
            last[depth] = 0
            outer[depth] = number
        else:
            return -1
    return -1


@kernel(int64(readonly(uint8), int64, int64))
def _lz4_size(data, at, stop):
    """Bytes that a body becomes; -1 where it runs out.

    It is literals and a copy of what came before, again and again; the last has no copy.
    """
    total = 0
    while at < stop:
        token = np.int64(data[at])
        at += 1
        for part in range(2):
            length = token >> 4 if part == 0 else token & 15
            if length == 15:
                more = 255
                while more == 255:
                    if at >= stop:
                        return -1
                    more = np.int64(data[at])
                    at += 1
                    length += more
            if part == 1:
                total += length + 4
                continue
            if length > stop - at:
                return -1
            at += length
            total += length
            if at == stop:
                return total
            at += 2
            if at > stop:
                return -1
    return total


@inlined
def _is_size(data, begin, stop, codec, size):
    """Whether a body can become so many bytes; -1 when it is not compressed."""
    if size <= 0:
        return True
    if codec == SNAPPY:
        return size <= MOST_SNAPPY_RATIO * (stop - begin)
    if size > MOST_RATIO * (stop - begin):
        return False
    return codec != LZ4 or _lz4_size(data, begin, stop) == size


@inlined
def _described(data, header, begin, stop, max_level, codec, page):
    """What a page has, by its header, which ends at ``begin``; or why it is refused."""
    num_rows = page[NUM_ROWS]
    if begin < 0:
        return MALFORMED
    kind, size = header[_TYPE], header[_UNCOMPRESSED]
    if header[_COMPRESSED] != stop - begin or header[_NUM_VALUES] != num_rows:
        return MISPLACED
    if size < 0 or size > _MOST_BYTES or header[_NUM_VALUES] > _MOST_BYTES:
        return CONTRADICTORY
    page[CHECKSUM] = header[_CRC]
    page[CHECKED] = begin
    page[LEVEL_BYTES] = 0
    page[PLAIN_SIZE] = size
    if kind == _V2_PAGE:
        levels = header[_DEFINITION_BYTES]
        if levels < 0 or levels > size or levels > stop - begin:
            return CONTRADICTORY
        # Nothing is repeated; a header that does not say so is damaged.
        if header[_NUM_ROWS] != num_rows or header[_REPETITION_BYTES] != 0:
            return CONTRADICTORY
        page[LEVEL_BYTES] = levels
        begin += levels
        # Whether it is compressed is true unless it is said.
        page[PLAIN_SIZE] = size - levels if header[_IS_COMPRESSED] else -1
    elif kind == _V1_PAGE:
        if max_level:
            if header[_LEVEL_ENCODING] != _RLE:
                return UNKNOWN_LEVELS
            page[LEVEL_BYTES] = -1
    else:
        return MISPLACED
    if codec == 0:
        if page[PLAIN_SIZE] not in (-1, stop - begin):
            return CONTRADICTORY
        page[PLAIN_SIZE] = -1
    elif not _is_size(data, begin, stop, codec, page[PLAIN_SIZE]):
        return CONTRADICTORY
    page[BEGIN] = begin
    page[SIZE] = stop - begin
    encoding = header[_ENCODING]
    page[ENCODING] = encoding
    has = HAS_CHECKSUM if header[_CRC] != -1 else 0
    if of_dictionary(encoding):
        return has | HAS_INDICES
    return has | (HAS_PLAIN if encoding == PLAIN else HAS_OTHERS)


@kernel(int64(readonly(uint8), int64[:, ::1], readonly(int64), readonly(int64, 2), int64[::1]))
def open_pages(data, pages, bounds, columns, has):
    """Read the headers of data pages of some columns, and hold them against their locations.

    The pages of column i are ``bounds[i]`` to ``bounds[i + 1]``; ``columns[i]`` is its
    greatest definition level, and its codec. ``has[i]`` becomes what its pages have
    (`HAS_INDICES`, ...), or why one is refused (`MALFORMED`, ...). The bytes that those of
    Snappy become.
    """
    last = np.zeros(_DEPTH, dtype=np.int64)
    outer = np.zeros(_DEPTH, dtype=np.int64)
    header = np.empty(_HEADER_FIELDS, dtype=np.int64)
    total = 0
    for column in range(bounds.shape[0] - 1):
        max_level, codec = columns[column]
        has[column] = 0
        for i in range(bounds[column], bounds[column + 1]):
            page = pages[:, i]
            start, stop = page[AT], page[AT] + page[NUM_BYTES]
            if start < 0 or stop < start or stop > data.shape[0]:
                has[column] = MISPLACED
                break
            begin = _page_header(data, start, stop, header, last, outer)
            result = _described(data, header, begin, stop, max_level, codec, page)
            if result < 0:
                has[column] = result
                break
            has[column] |= result
            if codec == SNAPPY and page[PLAIN_SIZE] > 0:
                total += page[PLAIN_SIZE]
    return total


@kernel(int64(readonly(uint8), int64, int64[::1]))
def open_dictionary(data, codec, page):
    """Read the header of a dictionary page; its number of values, or why it is refused."""
    last = np.zeros(_DEPTH, dtype=np.int64)
    outer = np.zeros(_DEPTH, dtype=np.int64)
    header = np.empty(_HEADER_FIELDS, dtype=np.int64)
    begin = _page_header(data, 0, data.shape[0], header, last, outer)
    if begin < 0:
        return MALFORMED
    size = header[_UNCOMPRESSED]
    if header[_TYPE] != _DICTIONARY_PAGE or header[_COMPRESSED] != data.shape[0] - begin:
        return MISPLACED
    if size < 0 or size > _MOST_BYTES:
        return CONTRADICTORY
    if header[_NUM_VALUES] < 0 or header[_NUM_VALUES] > _MOST_BYTES:
        return CONTRADICTORY
    if codec and not _is_size(data, begin, data.shape[0], codec, size):
        return CONTRADICTORY
    page[BEGIN], page[SIZE], page[PLAIN_SIZE] = begin, header[_COMPRESSED], size
    page[ENCODING], page[CHECKSUM], page[CHECKED] = header[_ENCODING], header[_CRC], begin
    return header[_NUM_VALUES]
