"""Kernels that read the rows of few keys from a file, in one call for each step of a lookup.

They call the kernels that `leaf_reader` calls one by one, with memory that the caller provides.
They refuse what needs more memory or another codec than theirs, and whatever looks damaged. Then
`leaf_reader` reads the pages, or raises the error.
"""

from __future__ import annotations

import numpy as np
from numba import int32, int64, types, uint8, uint64

from zonebloom.parquet.header_kernels import (
    HAS_CHECKSUM,
    HAS_INDICES,
    HAS_OTHER_ENCODINGS,
    IS_BOOLEAN,
    PLAIN,
    RLE,
    WIDTH,
    is_dictionary_encoding,
    open_pages,
)
from zonebloom.parquet.key_table_kernels import find_numbers, find_texts
from zonebloom.parquet.page_bytes import byte_at
from zonebloom.parquet.page_table import PAGES
from zonebloom.parquet.row_kernels import (
    choose_pages,
    read_booleans,
    read_pages,
    rows_of_values,
    rows_within,
)
from zonebloom.parquet.value_kernels import (
    ALIGNMENT,
    NUM_ENTRIES,
    copy_texts,
    find_indices,
    take_values,
)
from zonebloom.sbbf.addresses import load_32
from zonebloom.sbbf.jit import inlined, kernel, readonly
from zonebloom.storage.pread_kernel import read_pieces

# Results of the kernels. `REFUSED` leaves the pages to `leaf_reader`. `NEEDS_DICTIONARY` means that
# a page has dictionary indices, and the caller gave no dictionary or an empty one.
REFUSED, NEEDS_DICTIONARY = -1, -2
# Positions in ``summary``: bytes read, and the bytes of all strings.
BYTES_READ, TEXT_BYTES = range(2)

# The places of the pages, as `choose_pages` gets them, and the descriptions of the columns.
_PLACES = (readonly(int64), readonly(int64), readonly(int64, 2), readonly(int64))
# A handle that stands for bytes that the caller read.
NO_HANDLE = -1
_COLUMNS = readonly(int64, 2)
# The memory of an opening: bytes read, decompressed bytes, and levels.
_MEMORY = (uint8[::1], uint8[::1], uint8[::1])


@inlined
def _read(handle, pages, data):
    """Read the pages from a file. Return the number of bytes."""
    places = np.empty((2, pages.shape[0]), dtype=np.int64)
    for i in range(pages.shape[0]):
        places[0, i], places[1, i] = pages[i].file_start, pages[i].num_bytes
    return read_pieces(handle, places[0], places[1], data)


@inlined
def _unpack_booleans(page, out):
    """Write the booleans of a page as bytes, which become its body. Return 0, or -1."""
    address, size = np.uint64(page.address), page.size
    if page.encoding == PLAIN:
        if (out.shape[0] + 7) // 8 > size:
            return -1
        for i in range(out.shape[0]):
            out[i] = byte_at(address, i >> 3) >> np.uint64(i & 7) & np.uint64(1)
    elif page.encoding == RLE:
        # A length of 4 bytes precedes the values.
        if size < 4 or np.int64(load_32(address)) > size - 4:
            return -1
        if read_booleans(address + np.uint64(4), np.int64(load_32(address)), out) < 0:
            return -1
    else:
        return -1
    page.address, page.size = np.int64(out.ctypes.data), out.shape[0]
    page.encoding = PLAIN
    return 0


@kernel(
    types.Tuple((int64, PAGES, int64[::1]))(
        int64,
        *_PLACES,
        _COLUMNS,
        readonly(int64),
        readonly(int64),
        readonly(int64, 2),
        *_MEMORY,
        int64[::1],
        int64[::1],
        int64[::1],
    )
)
def _open_pages(
    handle,
    starts,
    sizes,
    page_rows,
    bounds,
    columns,
    range_starts,
    range_stops,
    decoded,
    data,
    bodies,
    present,
    flags,
    levels,
    summary,
):
    """Read and decompress the pages of columns that hold rows of some ranges.

    With `NO_HANDLE`, ``data`` has the bytes of the pages already. ``decoded`` describes pages in
    memory, as for `choose_pages`. Return 0 or `REFUSED`, the table of pages, and the first page of
    each column in it.
    """
    summary[BYTES_READ] = 0
    pages, page_bounds, num_bytes, num_rows = choose_pages(
        starts, sizes, page_rows, bounds, range_starts, range_stops, decoded
    )
    refusal = (np.int64(REFUSED), pages, page_bounds)
    if num_bytes > data.shape[0] or num_rows > present.shape[0]:
        return refusal
    if handle != NO_HANDLE:
        summary[BYTES_READ] = _read(handle, pages, data)
        if summary[BYTES_READ] != num_bytes:
            return refusal
    num_decompressed = open_pages(data, pages, page_bounds, columns, flags)
    for column in range(columns.shape[0]):
        if flags[column] < 0 or flags[column] & HAS_CHECKSUM:
            return refusal
        if flags[column] & HAS_OTHER_ENCODINGS and not columns[column, IS_BOOLEAN]:
            return refusal
    if num_decompressed > bodies.shape[0]:
        return refusal
    target, page_present = np.uint64(bodies.ctypes.data), present[:num_rows]
    if read_pages(data, target, pages, page_bounds, columns, page_present, levels) < 0:
        return refusal
    # The decompressed bodies take the start of ``bodies``. The booleans follow them.
    end = num_decompressed
    for column in range(columns.shape[0]):
        if columns[column, IS_BOOLEAN]:
            for i in range(page_bounds[column], page_bounds[column + 1]):
                num_values = pages[i].num_stored
                if pages[i].is_decoded:
                    continue
                if num_values > bodies.shape[0] - end:
                    return refusal
                if _unpack_booleans(pages[i], bodies[end : end + num_values]) < 0:
                    return refusal
                end += num_values
    return np.int64(0), pages, page_bounds


@kernel(
    int64(
        int64,
        *_PLACES,
        _COLUMNS,
        readonly(int64),
        readonly(int64),
        readonly(uint64),
        readonly(uint8),
        readonly(int64),
        readonly(int32),
        readonly(uint64),
        uint64,
        readonly(uint8),
        readonly(int64, 2),
        *_MEMORY,
        int64[::1],
        int64[::1],
        int64[::1],
    )
)
def find_hits(
    handle,
    starts,
    sizes,
    page_rows,
    bounds,
    columns,
    range_starts,
    range_stops,
    numbers,
    texts,
    text_starts,
    key_table,
    bitmap,
    seed,
    dictionary_hits,
    decoded,
    data,
    bodies,
    present,
    positions,
    rows,
    summary,
):
    """Find the rows of some ranges that hold a key in the only column.

    The keys are ``numbers``, or if there is none ``texts``, as in `find_numbers` and `find_texts`.
    ``dictionary_hits`` says for each entry of the dictionary whether it is a key. Write the rows to
    ``rows``, and return their number, `REFUSED` or `NEEDS_DICTIONARY`.
    """
    flags, levels = np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64)
    status, pages, page_bounds = _open_pages(
        handle,
        starts,
        sizes,
        page_rows,
        bounds,
        columns,
        range_starts,
        range_stops,
        decoded,
        data,
        bodies,
        present,
        flags,
        levels,
        summary,
    )
    if status < 0:
        return status
    count = page_bounds[1]
    if flags[0] & HAS_INDICES and not dictionary_hits.shape[0]:
        return NEEDS_DICTIONARY
    num_found = num_rows = i = 0
    while i < count:
        # Pages of one encoding are searched together.
        stop = i
        are_indices = is_dictionary_encoding(pages[i].encoding)
        while stop < count and is_dictionary_encoding(pages[stop].encoding) == are_indices:
            num_rows += pages[stop].num_rows
            stop += 1
        part, out = pages[i:stop], positions[num_found:]
        if are_indices:
            hits = find_indices(part, dictionary_hits, out)
        elif numbers.shape[0]:
            hits = find_numbers(part, columns[0, WIDTH], numbers, key_table, bitmap, seed, out)
        else:
            width = columns[0, WIDTH]
            hits = find_texts(part, width, texts, text_starts, key_table, bitmap, seed, out)
        if hits < 0:
            return REFUSED
        num_found += hits
        i = stop
    positions = positions[:num_found]
    if levels[0] >= 0 and num_found:
        if num_found > rows.shape[0]:
            return REFUSED
        num_found = rows_of_values(present[:num_rows], pages, positions, 0, rows)
        if num_found < 0:
            return REFUSED
        return rows_within(range_starts, range_stops, rows[:num_found])
    num_found = rows_within(range_starts, range_stops, positions)
    if num_found > rows.shape[0]:
        return REFUSED
    rows[:num_found] = positions[:num_found]
    return num_found


@kernel(
    int64(
        int64,
        *_PLACES,
        _COLUMNS,
        readonly(int64, 2),
        readonly(int64),
        readonly(int64, 2),
        *_MEMORY,
        int64[::1],
        int64[::1],
        int64[::1],
        uint8[::1],
        uint8[::1],
        int32[::1],
        uint8[::1],
        int64[::1],
    )
)
def take_hits(
    handle,
    starts,
    sizes,
    page_rows,
    bounds,
    columns,
    dictionaries,
    rows,
    decoded,
    data,
    bodies,
    present,
    places,
    flags,
    levels,
    valid,
    out,
    offsets,
    texts,
    summary,
):
    """Take the values of columns at some rows, which are ascending.

    ``flags`` and ``levels`` are set for each column, as by `open_pages` and `read_pages`.
    ``valid``, ``out``, ``offsets`` and ``texts`` receive the values, as from `take_values` and
    `copy_texts`. Return 0, `REFUSED` or `NEEDS_DICTIONARY`.
    """
    num_rows, num_columns = rows.shape[0], columns.shape[0]
    status, pages, page_bounds = _open_pages(
        handle,
        starts,
        sizes,
        page_rows,
        bounds,
        columns,
        rows,
        rows + 1,
        decoded,
        data,
        bodies,
        present,
        flags,
        levels,
        summary,
    )
    if status < 0:
        return status
    num_texts = num_fixed = 0
    for column in range(num_columns):
        if flags[column] & HAS_INDICES and not dictionaries[column, NUM_ENTRIES]:
            return NEEDS_DICTIONARY
        width = columns[column, WIDTH]
        num_texts += np.int64(width == 0)
        num_fixed += (width * num_rows + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
    size = num_texts * num_rows
    if num_fixed > out.shape[0] or num_columns * num_rows > valid.shape[0]:
        return REFUSED
    if 2 * size > places.shape[0] or size + num_texts > offsets.shape[0]:
        return REFUSED
    text_starts = places[:size].reshape((num_texts, num_rows))
    lengths = places[size : 2 * size].reshape((num_texts, num_rows))
    summary[TEXT_BYTES] = take_values(
        pages,
        page_bounds,
        columns,
        levels,
        dictionaries,
        present,
        rows,
        valid[: num_columns * num_rows].reshape((num_columns, num_rows)),
        out,
        text_starts,
        lengths,
    )
    if summary[TEXT_BYTES] < 0 or summary[TEXT_BYTES] > texts.shape[0]:
        return REFUSED
    text_offsets = offsets[: size + num_texts].reshape((num_texts, num_rows + 1))
    if copy_texts(text_starts, lengths, text_offsets, texts) < 0:
        return REFUSED
    return 0
