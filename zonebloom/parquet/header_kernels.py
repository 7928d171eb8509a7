"""Kernels that parse page headers, and compare them with the page locations and one another.

Source: parquet.thrift and thrift-compact-protocol.md.
"""

from __future__ import annotations

import numpy as np
from numba import int64, uint8

from zonebloom.parquet.leaf_type import LZ4, SNAPPY
from zonebloom.parquet.page_bytes import varint_at, zigzag
from zonebloom.parquet.page_table import PAGES
from zonebloom.sbbf.jit import kernel, linked, readonly

# Positions of the fields of a page header in an array. A field that a header lacks is -1.
_TYPE, _UNCOMPRESSED, _COMPRESSED, _CRC, _NUM_VALUES, _ENCODING = range(6)
_NUM_NULLS, _NUM_ROWS, _DEFINITION_BYTES, _REPETITION_BYTES, _IS_COMPRESSED = range(6, 11)
_LEVEL_ENCODING, _REPETITION_ENCODING = 11, 12
_HEADER_FIELDS = 13

# Positions of the description of a decoded page: its number among the pages of its columns; the
# addresses of its values, of the starts of its strings, and of the bytes that say whether a row
# holds a value; the bytes of a value, 0 for strings; and the encoding.
NUMBER, VALUES, STARTS, PRESENT, VALUE_WIDTH, VALUE_ENCODING = range(6)
DECODED_FIELDS = 6
# Positions of the description of a column, which all kernels get: the greatest definition level,
# the codec, the bytes of a value, 0 for strings, the greatest repetition level, and 1 for booleans.
MAX_LEVEL, CODEC, WIDTH, MAX_REPETITION, IS_BOOLEAN = range(5)
# Smaller pages are decompressed whole, so that any damage to their compressed bytes is noticed.
_MIN_PARTIAL_BYTES = 1 << 18
# Results of `open_pages`: flags for what the pages of a column have, or a code for a refused page.
HAS_INDICES, HAS_PLAIN, HAS_OTHER_ENCODINGS, HAS_CHECKSUM = 1, 2, 4, 8
MALFORMED, MISPLACED, CONTRADICTORY, UNKNOWN_LEVELS = -1, -2, -3, -4

_DEPTH = 4
# Types of the compact protocol.
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _STRUCT = 1, 2, 3, 4, 5, 6, 7, 8, 12
# The fields of a PageHeader that describe a page of each type; the page types; the encodings.
_DATA, _DICTIONARY, _DATA_V2 = 5, 7, 8
_V1_PAGE, _DICTIONARY_PAGE, _V2_PAGE = 0, 2, 3
PLAIN, PLAIN_DICTIONARY, RLE, RLE_DICTIONARY = 0, 2, 3, 8
# Not an encoding of Parquet: an index of 4 bytes for each value.
DECODED_INDICES = 1000
_MAX_BYTES = (1 << 31) - 1
# No body decompresses to more than this many times its size: Snappy makes 64 bytes of 3.
MAX_SNAPPY_RATIO, MAX_RATIO = 22, 1 << 16


@linked
def is_dictionary_encoding(encoding):
    """Return whether the values of an encoding are indices into a dictionary."""
    return (
        (encoding == PLAIN_DICTIONARY)
        | (encoding == RLE_DICTIONARY)
        | (encoding == DECODED_INDICES)
    )


@linked
def _position(outer, number):
    """Return the position of a field in the array, or -1.

    ``outer`` is the field whose struct holds this field, or 0 at the top.
    """
    if outer == 0 and 1 <= number <= 4:
        return number - 1
    if outer in (_DATA, _DICTIONARY) and 1 <= number <= 2:
        return _NUM_VALUES + number - 1
    if outer == _DATA and number in (3, 4):
        return _LEVEL_ENCODING + number - 3
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


# This is not linked, because LLVM would then inline its long code in each caller.
@kernel(int64(readonly(uint8), int64, int64, int64[::1], int64[::1], int64[::1]))
def _page_header(data, offset, stop, out, last, outer):
    """Read the known fields of a page header into ``out``. Return its end, or -1."""
    address = np.uint64(data.ctypes.data)
    out[:] = -1
    last[0] = 0
    outer[0] = 0
    depth = 0
    while offset < stop:
        byte = data[offset]
        offset += 1
        kind = byte & np.uint8(0x0F)
        if kind == 0:
            if depth == 0:
                return offset
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
            value, offset = varint_at(address, offset, stop)
            if offset < 0:
                return -1
            if position >= 0:
                out[position] = zigzag(value)
        elif kind == _BYTE:
            offset += 1
        elif kind == _DOUBLE:
            offset += 8
        elif kind == _BINARY:
            size, offset = varint_at(address, offset, stop)
            if offset < 0 or size > np.uint64(stop - offset):
                return -1
            offset += np.int64(size)
        elif kind == _STRUCT and depth + 1 < _DEPTH:
            depth += 1
            last[depth] = 0
            outer[depth] = number
        else:
            return -1
    return -1


@kernel(int64(readonly(uint8), int64, int64))
def _lz4_size(data, offset, stop):
    """Return the decompressed size of an LZ4 body, or -1 if it runs out.

    The body alternates literals and copies of earlier bytes. The last literals have no copy.
    """
    total = 0
    while offset < stop:
        token = np.int64(data[offset])
        offset += 1
        for part in range(2):
            length = token >> 4 if part == 0 else token & 15
            if length == 15:
                more = 255
                while more == 255:
                    if offset >= stop:
                        return -1
                    more = np.int64(data[offset])
                    offset += 1
                    length += more
            if part == 1:
                total += length + 4
                continue
            if length > stop - offset:
                return -1
            offset += length
            total += length
            if offset == stop:
                return total
            offset += 2
            if offset > stop:
                return -1
    return total


@linked
def _is_size(data, begin, stop, codec, size):
    """Return whether a body can have a decompressed size, which is -1 for uncompressed bodies."""
    if size <= 0:
        return True
    if codec == SNAPPY:
        return size <= MAX_SNAPPY_RATIO * (stop - begin)
    if size > MAX_RATIO * (stop - begin):
        return False
    return codec != LZ4 or _lz4_size(data, begin, stop) == size


@linked
def _describe_page(data, header, begin, stop, max_level, max_repetition, codec, is_boolean, page):
    """Fill in a page from its header, which ends at ``begin``. Return flags, or a refusal code."""
    num_rows, is_repeated = page.num_rows, max_repetition > 0
    if begin < 0:
        return MALFORMED
    kind, size, num_values = header[_TYPE], header[_UNCOMPRESSED], header[_NUM_VALUES]
    if header[_COMPRESSED] != stop - begin or num_values < num_rows:
        return MISPLACED
    if num_values != num_rows and not is_repeated:
        return MISPLACED
    if size < 0 or size > _MAX_BYTES or header[_NUM_VALUES] > _MAX_BYTES:
        return CONTRADICTORY
    page.checksum = header[_CRC]
    page.checked_start = begin
    page.level_bytes = 0
    page.decompressed_size = size
    if kind == _V2_PAGE:
        levels, repetition_bytes = header[_DEFINITION_BYTES], header[_REPETITION_BYTES]
        # Columns that are not repeated have no repetition levels, so a header that claims some is
        # damaged.
        if levels < 0 or repetition_bytes < 0 or (repetition_bytes and not is_repeated):
            return CONTRADICTORY
        page.level_bytes = repetition_bytes if is_repeated else levels
        levels += repetition_bytes
        if levels > size or levels > stop - begin:
            return CONTRADICTORY
        if num_rows >= 0 and header[_NUM_ROWS] != num_rows:
            return CONTRADICTORY
        begin += levels
        # A page without the field is compressed.
        page.decompressed_size = size - levels if header[_IS_COMPRESSED] else -1
    elif kind == _V1_PAGE:
        if max_level:
            if header[_LEVEL_ENCODING] != RLE:
                return UNKNOWN_LEVELS
            if is_repeated and header[_REPETITION_ENCODING] != RLE:
                return UNKNOWN_LEVELS
            page.level_bytes = -1
    else:
        return MISPLACED
    page.num_slots = num_values
    if codec == 0:
        if page.decompressed_size not in (-1, stop - begin):
            return CONTRADICTORY
        page.decompressed_size = -1
    elif not _is_size(data, begin, stop, codec, page.decompressed_size):
        return CONTRADICTORY
    page.body_start = begin
    page.body_size = stop - begin
    encoding = header[_ENCODING]
    if encoding == DECODED_INDICES or (is_boolean and encoding not in (PLAIN, RLE)):
        return MALFORMED
    page.encoding = encoding
    if encoding != PLAIN or is_boolean or page.decompressed_size < _MIN_PARTIAL_BYTES:
        page.unwanted_rows = 0
    flags = HAS_CHECKSUM if header[_CRC] != -1 else 0
    if is_dictionary_encoding(encoding):
        return flags | HAS_INDICES
    # `row_kernels.read_pages` converts booleans to PLAIN.
    return flags | (HAS_PLAIN if encoding == PLAIN or is_boolean else HAS_OTHER_ENCODINGS)


@kernel(int64(readonly(uint8), PAGES, readonly(int64), readonly(int64, 2), int64[::1]))
def open_pages(data, pages, bounds, columns, flags):
    """Read the headers of the data pages of columns, and compare them with the page locations.

    The pages of column i are ``bounds[i]`` to ``bounds[i + 1]``, and ``columns[i]`` describes it.
    ``flags[i]`` is set to flags for what its pages have (`HAS_INDICES`, ...), or to the code of a
    refused page (`MALFORMED`, ...), which is negative. Return the decompressed size of all pages
    that Snappy compressed.
    """
    last = np.zeros(_DEPTH, dtype=np.int64)
    outer = np.zeros(_DEPTH, dtype=np.int64)
    header = np.empty(_HEADER_FIELDS, dtype=np.int64)
    total = 0
    for column in range(bounds.shape[0] - 1):
        max_level, codec = columns[column, MAX_LEVEL], columns[column, CODEC]
        max_repetition, is_boolean = columns[column, MAX_REPETITION], columns[column, IS_BOOLEAN]
        flags[column] = 0
        for i in range(bounds[column], bounds[column + 1]):
            page = pages[i]
            if page.is_decoded:
                are_indices = is_dictionary_encoding(page.encoding)
                flags[column] |= HAS_INDICES if are_indices else HAS_PLAIN
                continue
            start, stop = page.read_start, page.read_start + page.num_bytes
            if start < 0 or stop < start or stop > data.shape[0]:
                flags[column] = MISPLACED
                break
            begin = _page_header(data, start, stop, header, last, outer)
            result = _describe_page(
                data, header, begin, stop, max_level, max_repetition, codec, is_boolean, page
            )
            if result < 0:
                flags[column] = result
                break
            flags[column] |= result
            page.decompressed_start = total
            if codec == SNAPPY and page.decompressed_size > 0:
                total += page.decompressed_size
    return total


@kernel(int64(readonly(uint8), int64, int64, int64, int64[:, ::1]))
def find_pages(data, num_bytes, num_values, encryption_bytes, pages):
    """Write the start, size, number of values and number of rows of the pages of a chunk.

    ``data`` begins with a page header. Follow the headers until one is not complete in ``data``, or
    until ``pages`` is full. ``num_bytes`` and ``num_values`` are those from here to the end of the
    chunk. In the file, headers take ``encryption_bytes`` more.

    The number of rows is -1 if a header does not have it. The number of values is -1 for a
    dictionary page, and -2 for other pages without values. Return the number of pages; or
    `MALFORMED` if the first header cannot be read; or `CONTRADICTORY` if a page ends outside the
    chunk, or if the pages have more values than it.
    """
    last = np.zeros(_DEPTH, dtype=np.int64)
    outer = np.zeros(_DEPTH, dtype=np.int64)
    header = np.empty(_HEADER_FIELDS, dtype=np.int64)
    count = start = 0
    while start < min(data.shape[0], num_bytes) and count < pages.shape[1]:
        begin = _page_header(data, start, data.shape[0], header, last, outer)
        if begin < 0:
            break
        begin += encryption_bytes
        kind, size = header[_TYPE], header[_COMPRESSED]
        page_values, page_rows = header[_NUM_VALUES], header[_NUM_ROWS]
        if kind < 0 or size < 0 or size > num_bytes - begin:
            return CONTRADICTORY
        if kind == _DICTIONARY_PAGE:
            page_values = -1
        elif kind not in (_V1_PAGE, _V2_PAGE):
            page_values = -2
        elif page_values < 0 or page_values > num_values or page_rows > page_values:
            return CONTRADICTORY
        pages[0, count], pages[1, count] = start, begin + size - start
        pages[2, count], pages[3, count] = page_values, page_rows
        num_values -= max(page_values, 0)
        count += 1
        start = begin + size
    return count if count else MALFORMED


@kernel(int64(readonly(uint8), int64, PAGES))
def open_dictionary(data, codec, pages):
    """Read the header of the only page. Return its number of values, or a refusal code."""
    page = pages[0]
    last = np.zeros(_DEPTH, dtype=np.int64)
    outer = np.zeros(_DEPTH, dtype=np.int64)
    header = np.empty(_HEADER_FIELDS, dtype=np.int64)
    begin = _page_header(data, 0, data.shape[0], header, last, outer)
    if begin < 0:
        return MALFORMED
    size = header[_UNCOMPRESSED]
    if header[_TYPE] != _DICTIONARY_PAGE or header[_COMPRESSED] != data.shape[0] - begin:
        return MISPLACED
    if size < 0 or size > _MAX_BYTES:
        return CONTRADICTORY
    if header[_NUM_VALUES] < 0 or header[_NUM_VALUES] > _MAX_BYTES:
        return CONTRADICTORY
    if codec and not _is_size(data, begin, data.shape[0], codec, size):
        return CONTRADICTORY
    page.body_start, page.body_size, page.decompressed_size = begin, header[_COMPRESSED], size
    page.encoding, page.checksum, page.checked_start = header[_ENCODING], header[_CRC], begin
    return header[_NUM_VALUES]
