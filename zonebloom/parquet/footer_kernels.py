"""A kernel that finds the row groups, column chunks and pages of a small file in its bytes.

It reads the same as `zonebloom.parquet.footer.read_footer`, for builds that index many small files.
Whatever it finds odd it refuses, and `read_footer` then decides what is wrong.

Source: parquet.thrift and thrift-compact-protocol.md.
"""

from __future__ import annotations

import numpy as np
from numba import int64, uint8

from zonebloom.parquet.header_kernels import locate_pages
from zonebloom.parquet.page_bytes import byte_at, varint_at, zigzag
from zonebloom.sbbf.jit import inlined, kernel, linked, readonly

# The integers of a column chunk, in the order of a page map: physical type, codec, encodings as
# bits, number of values, start, start of data pages, stop, number of pages.
(_TYPE, _CODEC, _ENCODINGS, _NUM_VALUES, _START, _DATA_START, _STOP, _NUM_PAGES) = range(8)
CHUNK_INTS = 8
# Rows of the table of row groups.
GROUP_ROWS, GROUP_PAGES = range(2)
# Positions in the result.
NUM_GROUPS, NUM_LEAVES, NUM_PAGES, SCHEMA_STOP, GROUPS_STOP = range(5)
RESULT_INTS = 5

_FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _STRUCT = (
    2, 3, 4, 5, 6, 7, 8, 9, 10, 12
)  # fmt: skip
_MAX_DEPTH = 32
_MAX_VARINT_BYTES = 9
_MAX_ROWS = 1 << 40
_MAX_ENUM = 31
_MAX_TYPE = 7
_MAGIC_BYTES = 4
_TAIL_BYTES = 8


@linked
def _number(address, offset, stop):
    """Return an integer and its end, which is -1 if there is none."""
    value, end = varint_at(address, offset, stop)
    if end < 0 or end - offset > _MAX_VARINT_BYTES:
        return np.int64(0), np.int64(-1)
    return zigzag(value), np.int64(end)


@inlined
def _is_number(kind):
    return (kind >= _I16) & (kind <= _I64)


@linked
def _field(address, offset, stop, last):
    """Return the type, the number and the start of the value of the next field of a struct.

    The type is 0 at the end of the struct, and -1 for a field that is refused.
    """
    if offset >= stop:
        return np.int64(-1), np.int64(0), offset
    byte = np.int64(byte_at(address, offset))
    kind, delta = byte & 15, byte >> 4
    if kind and not delta:
        return np.int64(-1), np.int64(0), offset
    return kind, last + delta, offset + 1


@linked
def _list(address, offset, stop):
    """Return the type, the length and the first element of a list. The type is -1 if refused."""
    if offset >= stop:
        return np.int64(-1), np.int64(0), offset
    byte = np.int64(byte_at(address, offset))
    kind, size = byte & 15, byte >> 4
    offset += 1
    if size == 15:
        length, end = varint_at(address, offset, stop)
        if end < 0 or length > np.uint64(stop - end):
            return np.int64(-1), np.int64(0), offset
        size, offset = np.int64(length), np.int64(end)
    if size > stop - offset:
        return np.int64(-1), np.int64(0), offset
    return kind, size, offset


@linked
def _skip(address, offset, stop, kind, stack):
    """Return the end of a value, or -1. ``stack`` is for the structs and lists around a value."""
    depth = 0
    while True:
        if kind <= _BYTE:
            offset += 1
        elif kind <= _I64:
            _, end = varint_at(address, offset, stop)
            if end < 0:
                return np.int64(-1)
            offset = np.int64(end)
        elif kind == _DOUBLE:
            offset += 8
        elif kind == _BINARY:
            size, end = varint_at(address, offset, stop)
            if end < 0 or size > np.uint64(stop - end):
                return np.int64(-1)
            offset = np.int64(end) + np.int64(size)
        elif kind in (_LIST, _SET, _STRUCT) and depth < _MAX_DEPTH:
            stack[depth, 0] = _STRUCT
            stack[depth, 1] = -1
            if kind != _STRUCT:
                stack[depth, 0], stack[depth, 1], offset = _list(address, offset, stop)
            depth += 1
        else:
            return np.int64(-1)
        if offset > stop:
            return np.int64(-1)
        kind = np.int64(0)
        while depth and not kind:
            if stack[depth - 1, 1] < 0:
                kind, _, offset = _field(address, offset, stop, 0)
                if kind < 0:
                    return np.int64(-1)
                if kind == 0:
                    depth -= 1
                elif kind <= _FALSE:
                    # The type of a boolean field is its value.
                    kind = np.int64(0)
            elif stack[depth - 1, 1] == 0:
                depth -= 1
            else:
                stack[depth - 1, 1] -= 1
                kind = stack[depth - 1, 0]
                if kind <= 0:
                    return np.int64(-1)
        if not depth and not kind:
            return offset


@kernel(int64(readonly(uint8), int64, int64, int64[::1], int64[:, ::1]))
def _column_metadata(data, offset, stop, fields, stack):
    """Read the integers of a ColumnMetaData by field number; encodings as bits. Return its end."""
    address = np.uint64(data.ctypes.data)
    fields[:] = -1
    number = np.int64(0)
    while True:
        kind, number, offset = _field(address, offset, stop, number)
        if kind <= 0:
            return offset if kind == 0 else np.int64(-1)
        if number in (1, 4, 5, 7, 9, 11):
            if not _is_number(kind):
                return np.int64(-1)
            fields[number], offset = _number(address, offset, stop)
            if offset < 0 or fields[number] < 0:
                return np.int64(-1)
        elif number == 2:
            if kind != _LIST:
                return np.int64(-1)
            kind, size, offset = _list(address, offset, stop)
            if size and not _is_number(kind):
                return np.int64(-1)
            fields[2] = 0
            for _ in range(size):
                encoding, offset = _number(address, offset, stop)
                if offset < 0 or not 0 <= encoding <= _MAX_ENUM:
                    return np.int64(-1)
                fields[2] |= np.int64(1) << encoding
        elif kind > _FALSE:
            offset = _skip(address, offset, stop, kind, stack)
            if offset < 0:
                return np.int64(-1)


@kernel(int64(readonly(uint8), int64, int64, int64[::1], int64[::1], int64[::1], int64[:, ::1]))
def _column_chunk(data, offset, stop, chunk, index, fields, stack):
    """Read a ColumnChunk, and the start and size of its offset index. Return its end, or -1."""
    address = np.uint64(data.ctypes.data)
    index[:] = 0
    has_metadata = False
    number = np.int64(0)
    while True:
        kind, number, offset = _field(address, offset, stop, number)
        if kind < 0:
            return np.int64(-1)
        if kind == 0:
            break
        if number in (4, 5):
            if not _is_number(kind):
                return np.int64(-1)
            index[number - 4], offset = _number(address, offset, stop)
        elif number == 3 and kind == _STRUCT:
            offset = _column_metadata(data, offset, stop, fields, stack)
            has_metadata = True
        elif number in (1, 3, 8, 9):
            # The column lies in another file, or is encrypted.
            return np.int64(-1)
        elif kind > _FALSE:
            offset = _skip(address, offset, stop, kind, stack)
        if offset < 0:
            return np.int64(-1)
    if not has_metadata or min(fields[1], fields[2], fields[4], fields[5]) < 0:
        return np.int64(-1)
    if fields[1] > _MAX_TYPE or fields[4] > _MAX_ENUM:
        return np.int64(-1)
    start = data_start = chunk_stop = np.int64(_MAGIC_BYTES)
    if fields[5]:
        data_start, size = fields[9], fields[7]
        if not _MAGIC_BYTES <= data_start <= data.shape[0] or not 0 <= size <= data.shape[0]:
            return np.int64(-1)
        start = fields[11] if 0 < fields[11] < data_start else data_start
        chunk_stop = start + size
        if start < _MAGIC_BYTES or not data_start <= chunk_stop <= data.shape[0]:
            return np.int64(-1)
    if not 0 <= index[0] <= data.shape[0] or not 0 <= index[1] <= data.shape[0] - index[0]:
        return np.int64(-1)
    if index[1] and not index[0]:
        return np.int64(-1)
    chunk[_TYPE], chunk[_CODEC], chunk[_ENCODINGS] = fields[1], fields[4], fields[2]
    chunk[_NUM_VALUES], chunk[_START], chunk[_DATA_START] = fields[5], start, data_start
    chunk[_STOP], chunk[_NUM_PAGES] = chunk_stop, 0
    return offset


@kernel(
    int64(readonly(uint8), readonly(int64), int64, int64, int64, int64[:, ::1], int64),
)
def _indexed_pages(data, chunk, index_start, index_bytes, num_rows, pages, first):
    """Read the page locations of an OffsetIndex. Return their number, or -1."""
    address = np.uint64(data.ctypes.data)
    stop = index_start + index_bytes
    kind, number, offset = _field(address, index_start, stop, 0)
    if kind != _LIST or number != 1:
        return np.int64(-1)
    kind, size, offset = _list(address, offset, stop)
    if kind != _STRUCT or not 0 < size <= pages.shape[1] - first:
        return np.int64(-1)
    previous_stop, previous_row = chunk[_DATA_START], np.int64(0)
    for page in range(first, first + size):
        number = np.int64(0)
        for field in range(3):
            kind, number, offset = _field(address, offset, stop, number)
            # `parse_offset_index` accepts only these types.
            if kind != (_I32 if field == 1 else _I64) or number != field + 1:
                return np.int64(-1)
            pages[field, page], offset = _number(address, offset, stop)
            if offset < 0:
                return np.int64(-1)
        kind, number, offset = _field(address, offset, stop, number)
        start, num_bytes, row = pages[0, page], pages[1, page], pages[2, page]
        if kind or start < previous_stop or num_bytes <= 0 or num_bytes > chunk[_STOP] - start:
            return np.int64(-1)
        if row < previous_row or row > num_rows or (page == first and row):
            return np.int64(-1)
        previous_stop, previous_row = start + num_bytes, row
    return size


@kernel(int64(readonly(uint8), int64[:, ::1], int64[:, ::1], int64[:, ::1], int64[::1]))
def read_row_groups(data, groups, chunks, pages, result):
    """Read the row groups of a file, their column chunks and their pages.

    Parameters
    ----------
    data : uint8 array
        The whole file, which ends as a Parquet file does.
    groups : int64 array, shape (g, 2)
        Is filled with the number of rows and of pages of each row group.
    chunks : int64 array, shape (c, CHUNK_INTS + 2)
        Is filled with the integers of each chunk, and the start and size of its offset index.
    pages : int64 array, shape (3, p)
        Is filled with the start, size and first row of each page.
    result : int64 array, shape (RESULT_INTS,)
        Is filled with the number of row groups, leaves and pages, and the places where the schema
        and the row groups end.

    Returns
    -------
    int
        The start of the FileMetaData, or -1 if something is odd or an array is too small.
    """
    address = np.uint64(data.ctypes.data)
    stop = data.shape[0] - _TAIL_BYTES
    if stop < _MAGIC_BYTES:
        return np.int64(-1)
    size = np.int64(0)
    for i in range(4):
        size |= np.int64(data[stop + i]) << (8 * i)
    start = stop - size
    if start < _MAGIC_BYTES:
        return np.int64(-1)
    stack = np.zeros((_MAX_DEPTH, 2), dtype=np.int64)
    fields = np.zeros(16, dtype=np.int64)
    index = np.zeros(2, dtype=np.int64)
    offset, number, total_rows, claimed_rows = start, np.int64(0), np.int64(0), np.int64(-1)
    num_groups, num_leaves, num_pages = np.int64(0), np.int64(-1), np.int64(0)
    result[:] = 0
    while True:
        kind, number, offset = _field(address, offset, stop, number)
        if kind <= 0:
            break
        if number == 3 and _is_number(kind):
            claimed_rows, offset = _number(address, offset, stop)
            if not result[SCHEMA_STOP]:
                return np.int64(-1)
        elif number == 4 and kind == _LIST:
            kind, num_groups, offset = _list(address, offset, stop)
            if num_groups > groups.shape[0] or (num_groups and kind != _STRUCT):
                return np.int64(-1)
            for group in range(num_groups):
                inner = np.int64(0)
                group_rows, group_chunks = np.int64(-1), np.int64(-1)
                first_chunk = max(num_leaves, 0) * group
                while True:
                    kind, inner, offset = _field(address, offset, stop, inner)
                    if kind <= 0:
                        break
                    if inner == 1 and kind == _LIST and group_chunks < 0:
                        kind, group_chunks, offset = _list(address, offset, stop)
                        if group_chunks and kind != _STRUCT:
                            return np.int64(-1)
                        if first_chunk + group_chunks > chunks.shape[0]:
                            return np.int64(-1)
                        for column in range(first_chunk, first_chunk + group_chunks):
                            chunk = chunks[column]
                            offset = _column_chunk(
                                data, offset, stop, chunk[:CHUNK_INTS], index, fields, stack
                            )
                            if offset < 0:
                                return np.int64(-1)
                            chunk[CHUNK_INTS], chunk[CHUNK_INTS + 1] = index[0], index[1]
                    elif inner == 3 and _is_number(kind):
                        group_rows, offset = _number(address, offset, stop)
                    elif inner in (1, 3):
                        return np.int64(-1)
                    elif kind > _FALSE:
                        offset = _skip(address, offset, stop, kind, stack)
                    if offset < 0:
                        return np.int64(-1)
                if kind < 0 or group_chunks < 0 or not 0 <= group_rows <= _MAX_ROWS:
                    return np.int64(-1)
                if num_leaves >= 0 and group_chunks != num_leaves:
                    return np.int64(-1)
                num_leaves = group_chunks
                groups[group, GROUP_ROWS] = group_rows
                groups[group, GROUP_PAGES] = 0
                total_rows += group_rows
                for column in range(first_chunk, first_chunk + group_chunks):
                    chunk = chunks[column]
                    if not group_rows:
                        continue
                    if chunk[CHUNK_INTS + 1]:
                        count = _indexed_pages(
                            data,
                            chunk[:CHUNK_INTS],
                            chunk[CHUNK_INTS],
                            chunk[CHUNK_INTS + 1],
                            group_rows,
                            pages,
                            num_pages,
                        )
                    else:
                        count = locate_pages(
                            data,
                            chunk[_START],
                            chunk[_STOP],
                            chunk[_NUM_VALUES],
                            group_rows,
                            pages,
                            num_pages,
                        )
                    # `walk_pages` locates no page before the place where data should begin.
                    if count < 0 or (count and pages[0, num_pages] < chunk[_DATA_START]):
                        return np.int64(-1)
                    chunk[_NUM_PAGES] = count
                    groups[group, GROUP_PAGES] += count
                    num_pages += count
            result[GROUPS_STOP] = offset
        elif number in (3, 4):
            return np.int64(-1)
        elif kind > _FALSE:
            offset = _skip(address, offset, stop, kind, stack)
        if offset < 0:
            return np.int64(-1)
        if number == 2:
            result[SCHEMA_STOP] = offset
    if kind < 0 or not result[SCHEMA_STOP] or not result[GROUPS_STOP]:
        return np.int64(-1)
    if claimed_rows != total_rows:
        return np.int64(-1)
    result[NUM_GROUPS], result[NUM_LEAVES], result[NUM_PAGES] = num_groups, num_leaves, num_pages
    return start
