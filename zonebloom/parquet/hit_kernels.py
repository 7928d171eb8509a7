"""Kernels that read the rows of few keys from a local file, in one call for each step of a lookup.

They call the kernels that `leaf_reader` calls one by one, with memory that the caller provides.
They refuse what needs more memory or another codec than theirs, and whatever looks damaged. Then
`leaf_reader` reads the pages, or raises the error.
"""

from __future__ import annotations

import numpy as np
from numba import int32, int64, uint8, uint64

from zonebloom.parquet.header_kernels import (
    BODY_ADDRESS,
    BODY_SIZE,
    ENCODING,
    FILE_START,
    FIRST_POSITION,
    FIRST_ROW,
    HAS_CHECKSUM,
    HAS_INDICES,
    HAS_OTHER_ENCODINGS,
    NUM_BYTES,
    NUM_ROWS,
    NUM_STORED,
    PAGE_FIELDS,
    PLAIN,
    READ_START,
    RLE,
    WIDTH,
    is_dictionary_encoding,
    open_pages,
)
from zonebloom.parquet.key_table_kernels import find_numbers, find_texts
from zonebloom.parquet.page_bytes import byte_at
from zonebloom.parquet.row_kernels import (
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

# Results of the kernels. `REFUSED` leaves the pages to `leaf_reader`, and `NEEDS_DICTIONARY` means
# that a page refers to a dictionary that the caller did not give.
REFUSED, NEEDS_DICTIONARY = -1, -2
# Rows of ``locations``: the place of a page in the file, and its rows.
START, SIZE, ROWS_START, ROWS_STOP = range(4)
# A position of the description of a column, after those of `header_kernels`: 1 for booleans.
IS_BOOLEAN = 3
# Positions in ``summary``: bytes read, and the bytes of all strings.
BYTES_READ, TEXT_BYTES = range(2)

# The memory of an opening: bytes read, decompressed bytes, levels, and the table of pages.
_MEMORY = (uint8[::1], uint8[::1], uint8[::1], int64[::1])


@inlined
def _unpack_booleans(page, out):
    """Write the booleans of a page as bytes, which become its body. Return 0, or -1."""
    address, size = np.uint64(page[BODY_ADDRESS]), page[BODY_SIZE]
    if page[ENCODING] == PLAIN:
        if (out.shape[0] + 7) // 8 > size:
            return -1
        for i in range(out.shape[0]):
            out[i] = byte_at(address, i >> 3) >> np.uint64(i & 7) & np.uint64(1)
    elif page[ENCODING] == RLE:
        # A length of 4 bytes precedes the values.
        if size < 4 or np.int64(load_32(address)) > size - 4:
            return -1
        if read_booleans(address + np.uint64(4), np.int64(load_32(address)), out) < 0:
            return -1
    else:
        return -1
    page[BODY_ADDRESS], page[BODY_SIZE] = np.int64(out.ctypes.data), out.shape[0]
    page[ENCODING] = PLAIN
    return 0


@kernel(
    int64(
        int64,
        readonly(int64, 2),
        readonly(int64),
        readonly(int64, 2),
        readonly(int64),
        readonly(int64),
        *_MEMORY,
        int64[::1],
        int64[::1],
        int64[::1],
        int64[::1],
    )
)
def _open_pages(
    handle,
    locations,
    bounds,
    columns,
    range_starts,
    range_stops,
    data,
    bodies,
    present,
    table,
    page_bounds,
    flags,
    levels,
    summary,
):
    """Read and decompress the pages of columns that hold rows of some ranges.

    The pages of column i are ``bounds[i]`` to ``bounds[i + 1]`` of ``locations``. The table of
    pages fills ``table`` row by row, and ``page_bounds`` has the first page of each column in it.
    Return the number of pages, or `REFUSED`.
    """
    count = num_bytes = num_rows = 0
    for fills in range(2):
        pages = table[: PAGE_FIELDS * count].reshape((PAGE_FIELDS, count))
        if fills and (num_bytes > data.shape[0] or num_rows > present.shape[0]):
            return REFUSED
        count = num_bytes = num_rows = 0
        page_bounds[0] = 0
        for column in range(bounds.shape[0] - 1):
            which = 0
            for page in range(bounds[column], bounds[column + 1]):
                first, stop = locations[ROWS_START, page], locations[ROWS_STOP, page]
                while which < range_starts.shape[0] and range_stops[which] <= first:
                    which += 1
                if which == range_starts.shape[0]:
                    break
                # pyarrow sometimes writes pages without rows.
                if first == stop or range_starts[which] >= stop:
                    continue
                if fills:
                    pages[FILE_START, count] = locations[START, page]
                    pages[NUM_BYTES, count] = locations[SIZE, page]
                    pages[READ_START, count] = num_bytes
                    pages[FIRST_ROW, count], pages[NUM_ROWS, count] = first, stop - first
                count += 1
                num_bytes += locations[SIZE, page]
                num_rows += stop - first
            page_bounds[column + 1] = count
        if PAGE_FIELDS * count > table.shape[0]:
            return REFUSED
    pages = table[: PAGE_FIELDS * count].reshape((PAGE_FIELDS, count))
    summary[BYTES_READ] = read_pieces(handle, pages[FILE_START], pages[NUM_BYTES], data)
    if summary[BYTES_READ] != num_bytes:
        return REFUSED
    num_decompressed = open_pages(data, pages, page_bounds, columns, flags)
    for column in range(columns.shape[0]):
        if flags[column] < 0 or flags[column] & HAS_CHECKSUM:
            return REFUSED
        if flags[column] & HAS_OTHER_ENCODINGS and not columns[column, IS_BOOLEAN]:
            return REFUSED
    if num_decompressed > bodies.shape[0]:
        return REFUSED
    if read_pages(data, bodies, pages, page_bounds, columns, present[:num_rows], levels) < 0:
        return REFUSED
    # The decompressed bodies take the start of ``bodies``. The booleans follow them.
    end = num_decompressed
    for column in range(columns.shape[0]):
        if columns[column, IS_BOOLEAN]:
            for i in range(page_bounds[column], page_bounds[column + 1]):
                num_values = pages[NUM_STORED, i]
                if num_values > bodies.shape[0] - end:
                    return REFUSED
                if _unpack_booleans(pages[:, i], bodies[end : end + num_values]) < 0:
                    return REFUSED
                end += num_values
    return count


@kernel(
    int64(
        int64,
        readonly(int64, 2),
        readonly(int64),
        readonly(int64, 2),
        readonly(int64),
        readonly(int64),
        readonly(uint64),
        readonly(uint8),
        readonly(int64),
        readonly(int32),
        readonly(uint64),
        readonly(uint8),
        *_MEMORY,
        int64[::1],
        int64[::1],
        int64[::1],
    )
)
def find_hits(
    handle,
    locations,
    bounds,
    columns,
    range_starts,
    range_stops,
    numbers,
    texts,
    text_starts,
    table_of_keys,
    bitmap,
    dictionary_hits,
    data,
    bodies,
    present,
    table,
    positions,
    rows,
    summary,
):
    """Find the rows of some ranges that hold a key in the only column.

    The keys are ``numbers``, or if there is none ``texts``, as in `find_numbers` and `find_texts`.
    ``dictionary_hits`` says for each entry of the dictionary whether it is a key. Write the rows to
    ``rows``, and return their number, `REFUSED` or `NEEDS_DICTIONARY`.
    """
    page_bounds = np.zeros(2, dtype=np.int64)
    flags, levels = np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64)
    count = _open_pages(
        handle,
        locations,
        bounds,
        columns,
        range_starts,
        range_stops,
        data,
        bodies,
        present,
        table,
        page_bounds,
        flags,
        levels,
        summary,
    )
    if count < 0:
        return count
    pages = table[: PAGE_FIELDS * count].reshape((PAGE_FIELDS, count))
    if flags[0] & HAS_INDICES and not dictionary_hits.shape[0]:
        return NEEDS_DICTIONARY
    num_found = num_present = i = 0
    while i < count:
        # Pages of one encoding are searched together.
        stop = i
        are_indices = is_dictionary_encoding(pages[ENCODING, i])
        while stop < count and is_dictionary_encoding(pages[ENCODING, stop]) == are_indices:
            num_present += pages[NUM_ROWS, stop]
            stop += 1
        addresses, sizes = pages[BODY_ADDRESS, i:stop], pages[BODY_SIZE, i:stop]
        counts, first_positions = pages[NUM_STORED, i:stop], pages[FIRST_POSITION, i:stop]
        out = positions[num_found:]
        if are_indices:
            hits = find_indices(addresses, sizes, counts, first_positions, dictionary_hits, out)
        elif numbers.shape[0]:
            hits = find_numbers(
                addresses,
                sizes,
                counts,
                first_positions,
                columns[0, WIDTH],
                numbers,
                table_of_keys,
                bitmap,
                out,
            )
        else:
            hits = find_texts(
                addresses,
                sizes,
                counts,
                first_positions,
                columns[0, WIDTH],
                texts,
                text_starts,
                table_of_keys,
                bitmap,
                out,
            )
        if hits < 0:
            return REFUSED
        num_found += hits
        i = stop
    found = positions[:num_found]
    if levels[0] >= 0 and num_found:
        if num_found > rows.shape[0]:
            return REFUSED
        num_found = rows_of_values(present[:num_present], pages, found, 0, rows)
        if num_found < 0:
            return REFUSED
        return rows_within(range_starts, range_stops, rows[:num_found])
    num_found = rows_within(range_starts, range_stops, found)
    if num_found > rows.shape[0]:
        return REFUSED
    rows[:num_found] = found[:num_found]
    return num_found


@kernel(
    int64(
        int64,
        readonly(int64, 2),
        readonly(int64),
        readonly(int64, 2),
        readonly(int64, 2),
        readonly(int64),
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
    locations,
    bounds,
    columns,
    dictionaries,
    rows,
    data,
    bodies,
    present,
    table,
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
    page_bounds = np.zeros(num_columns + 1, dtype=np.int64)
    count = _open_pages(
        handle,
        locations,
        bounds,
        columns,
        rows,
        rows + 1,
        data,
        bodies,
        present,
        table,
        page_bounds,
        flags,
        levels,
        summary,
    )
    if count < 0:
        return count
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
    pages = table[: PAGE_FIELDS * count].reshape((PAGE_FIELDS, count))
    starts = places[:size].reshape((num_texts, num_rows))
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
        starts,
        lengths,
    )
    if summary[TEXT_BYTES] < 0 or summary[TEXT_BYTES] > texts.shape[0]:
        return REFUSED
    text_offsets = offsets[: size + num_texts].reshape((num_texts, num_rows + 1))
    if copy_texts(starts, lengths, text_offsets, texts) < 0:
        return REFUSED
    return 0
