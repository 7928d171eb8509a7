"""Kernels that find the rows of keys in leaves, and take the values of rows.

    find_rows, take_rows             in pages that `leaf_reader` opened
    find_in_file, take_from_file     in a local file, whose pages they open

They call the kernels of single steps, and allocate what these fill in. Those that open pages say
what they need, and `leaf_reader` provides it and calls again.
"""

from __future__ import annotations

import numpy as np
from numba import int32, int64, types, uint8, uint32, uint64

from zonebloom.parquet.header_kernels import (
    CODEC,
    HAS_CHECKSUM,
    HAS_INDICES,
    HAS_OTHER_ENCODINGS,
    WIDTH,
    is_dictionary_encoding,
    open_pages,
)
from zonebloom.parquet.key_kernels import find_hashed, find_numbers, find_texts
from zonebloom.parquet.leaf_type import MAX_INT32, SNAPPY
from zonebloom.parquet.page_table import PAGES, STORED_PAGES
from zonebloom.parquet.row_kernels import (
    choose_pages,
    level_bytes,
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
from zonebloom.sbbf.jit import kernel, linked, readonly
from zonebloom.storage.pread_kernel import read_pieces

# `find_in_file` and `take_from_file` say what they need: nothing; a dictionary to which a page
# refers, if none was given or an empty one; fewer pages at once; or pages that are opened in steps,
# because they have a codec of Arrow, a rare encoding or a checksum, or look damaged.
NOTHING, DICTIONARY, FEWER_PAGES, STEPS = range(4)

# The places of the pages, as `choose_pages` gets them.
_PLACES = types.Tuple((readonly(int64), readonly(int64), readonly(int64, 2), readonly(int64)))
# The file, the places, the columns, the ranges of rows, the decoded pages as `choose_pages` gets
# them, and the most bytes and rows of the pages.
_OPENING = types.Tuple(
    (
        int64,
        _PLACES,
        readonly(int64, 2),
        readonly(int64),
        readonly(int64),
        readonly(int64, 2),
        types.UniTuple(int64, 2),
    )
)
# Opened pages: the table of pages, the first page of each column in it, the columns, their levels,
# their dictionaries, and whether rows hold a value. See `take_values`.
_STORED = types.Tuple(
    (
        STORED_PAGES,
        readonly(int64),
        readonly(int64, 2),
        readonly(int64),
        readonly(int64, 2),
        readonly(uint8),
    )
)
# Numbers, or texts and their offsets, with their hash table, its bitmap and its seed, as
# `find_numbers` and `find_texts` get them; or the words of a filter of keys. The others are empty.
_KEYS = types.Tuple(
    (
        readonly(uint64),
        readonly(uint8),
        readonly(int64),
        readonly(int32),
        readonly(uint64),
        uint64,
        readonly(uint32),
    )
)


@linked
def _read(handle, pages, data):
    """Read the pages from a file. Return the number of bytes."""
    places = np.empty((2, pages.shape[0]), dtype=np.int64)
    for i in range(pages.shape[0]):
        places[0, i], places[1, i] = pages[i].file_start, pages[i].num_bytes
    return read_pieces(handle, places[0], places[1], data)


@linked
def _need_other_codecs(pages, bounds, columns):
    """Return whether a page to read has a codec that no kernel decompresses."""
    for column in range(columns.shape[0]):
        if columns[column, CODEC] not in (0, SNAPPY):
            for i in range(bounds[column], bounds[column + 1]):
                if not pages[i].is_decoded:
                    return True
    return False


@kernel(
    types.Tuple((int64, PAGES, int64[::1], uint8[::1], uint8[::1], uint8[::1]))(
        _OPENING, int64[::1], int64[::1]
    )
)
def _open_rows(opening, flags, levels):
    """Read and decompress the pages of columns that hold rows of some ranges.

    Return what is needed; the table of pages; the first page of each column in it; the bytes read;
    the decompressed bodies; and for each row of optional columns whether it holds a value. The
    caller uses the bytes and bodies last, because pages point into them. Memory is freed after its
    last use.
    """
    handle, places, columns, starts, stops, decoded, limits = opening
    pages, bounds, num_bytes, num_rows = choose_pages(
        places[0], places[1], places[2], places[3], starts, stops, decoded
    )
    nothing = np.empty(0, dtype=np.uint8)
    if num_bytes > limits[0] or num_rows > limits[1]:
        return FEWER_PAGES, pages, bounds, nothing, nothing, nothing
    if _need_other_codecs(pages, bounds, columns):
        return STEPS, pages, bounds, nothing, nothing, nothing
    data = np.empty(num_bytes, dtype=np.uint8)
    if _read(handle, pages, data) != num_bytes:
        return STEPS, pages, bounds, data, nothing, nothing
    bodies = np.empty(open_pages(data, pages, bounds, columns, flags), dtype=np.uint8)
    for column in range(columns.shape[0]):
        if flags[column] < 0 or flags[column] & (HAS_CHECKSUM | HAS_OTHER_ENCODINGS):
            return STEPS, pages, bounds, data, bodies, nothing
    present = np.empty(level_bytes(pages, bounds, columns), dtype=np.uint8)
    target = np.uint64(bodies.ctypes.data)
    if read_pages(data, target, pages, bounds, columns, present, levels) < 0:
        return STEPS, pages, bounds, data, bodies, present
    return NOTHING, pages, bounds, data, bodies, present


@kernel(
    types.Tuple((int64, int64[::1]))(
        STORED_PAGES,
        int64,
        int64,
        readonly(uint8),
        _KEYS,
        readonly(uint8),
        int64,
        readonly(int64),
        readonly(int64),
    )
)
def find_rows(pages, width, level, present, keys, dictionary_hits, nulls, starts, stops):
    """Find the rows of some ranges that hold a key in the only column, ascending.

    ``level`` is -1 if no row is null. With ``nulls``, rows without a value are found, too.
    ``dictionary_hits`` says for each entry of the dictionary whether it is a key. Return 0, or -1
    if a page is damaged, and the rows.
    """
    numbers, texts, text_starts, key_table, bitmap, seed, words = keys
    has_hits = dictionary_hits.any()
    nothing = np.empty(0, dtype=np.int64)
    count, capacity, num_rows = pages.shape[0], 1, 0
    for i in range(count):
        capacity += pages[i].num_stored
        num_rows += pages[i].num_slots
    positions = np.empty(capacity, dtype=np.int64)
    num_found = i = 0
    while i < count:
        # Pages of one encoding are searched together.
        stop = i
        are_indices = is_dictionary_encoding(pages[i].encoding)
        while stop < count and is_dictionary_encoding(pages[stop].encoding) == are_indices:
            stop += 1
        part, out = pages[i:stop], positions[num_found:]
        if are_indices:
            hits = 0
            if has_hits or nulls or not dictionary_hits.shape[0]:
                hits = find_indices(part, dictionary_hits, out)
        elif words.shape[0]:
            hits = find_hashed(part, width, words, out)
        elif numbers.shape[0]:
            hits = find_numbers(part, width, numbers, key_table, bitmap, seed, out)
        else:
            # Without keys, this only verifies that the pages hold all their values.
            hits = find_texts(part, width, texts, text_starts, key_table, bitmap, seed, out)
        if hits < 0:
            return np.int64(-1), nothing
        num_found += hits
        i = stop
    rows = positions[:num_found]
    if level >= 0 and (num_found or nulls):
        rows = np.empty(num_rows, dtype=np.int64)
        num_found = rows_of_values(present[:num_rows], pages, positions[:num_found], nulls, rows)
        if num_found < 0:
            return np.int64(-1), nothing
    # Copy the few rows, so that the memory of all positions can be freed.
    return np.int64(0), rows[: rows_within(starts, stops, rows[:num_found])].copy()


@kernel(
    types.Tuple((int64, uint8[:, ::1], uint8[::1], int32[:, ::1], uint8[::1]))(
        _STORED, readonly(int64)
    )
)
def take_rows(stored, rows):
    """Take the values of columns at some rows, which are ascending. See `take_values`.

    Return the bytes of all strings, or -1; for each row of each column whether it is valid; the
    values of a fixed width, one column after another; and the offsets and the strings of each
    other column. If a column of strings has 2 GiB or more, none is copied.
    """
    columns = stored[2]
    num_rows, num_columns = rows.shape[0], columns.shape[0]
    num_texts = num_fixed = 0
    for column in range(num_columns):
        width = columns[column, WIDTH]
        num_texts += np.int64(width == 0)
        num_fixed += (width * num_rows + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
    valid = np.empty((num_columns, num_rows), dtype=np.uint8)
    out = np.empty(num_fixed, dtype=np.uint8)
    starts = np.empty((num_texts, num_rows), dtype=np.int64)
    lengths = np.empty((num_texts, num_rows), dtype=np.int64)
    size = take_values(*stored, rows, valid, out, starts, lengths)
    is_readable = 0 <= size <= MAX_INT32
    texts = np.empty(size if is_readable else 0, dtype=np.uint8)
    offsets = np.empty((num_texts, num_rows + 1), dtype=np.int32)
    if is_readable and copy_texts(starts, lengths, offsets, texts) < 0:
        size = np.int64(-1)
    return size, valid, out, offsets, texts


@kernel(
    types.Tuple((int64, int64, int64, int64, int64[::1]))(_OPENING, _KEYS, readonly(uint8), int64),
)
def find_in_file(opening, keys, dictionary_hits, nulls):
    """Find the rows of some ranges that hold a key in the only column. See `find_rows`.

    Return what is needed, the numbers of pages, bytes read and decompressed bytes, and the rows.
    """
    states = np.zeros((2, 1), dtype=np.int64)
    needed, pages, _, data, bodies, present = _open_rows(opening, states[0], states[1])
    _, _, columns, starts, stops, _, _ = opening
    rows = np.empty(0, dtype=np.int64)
    if needed == NOTHING:
        if states[0, 0] & HAS_INDICES and not dictionary_hits.shape[0]:
            needed = DICTIONARY
        else:
            width, level = columns[0, WIDTH], states[1, 0]
            status, rows = find_rows(
                pages, width, level, present, keys, dictionary_hits, nulls, starts, stops
            )
            if status < 0:
                needed = STEPS
    return np.int64(needed), pages.shape[0], data.shape[0], bodies.shape[0], rows


@kernel(
    types.Tuple(
        (int64, int64, int64, int64, int64, uint8[:, ::1], uint8[::1], int32[:, ::1], uint8[::1])
    )(_OPENING, readonly(int64, 2), int64[:, ::1]),
)
def take_from_file(opening, dictionaries, states):
    """Take the values of columns at some rows. ``opening`` has each row as a range of one row.

    ``states`` receives the flags and the levels of each column, as `open_pages` and `read_pages`
    set them. Return what is needed, the numbers of pages, bytes read and decompressed bytes, and
    the results of `take_rows`.
    """
    needed, pages, bounds, data, bodies, present = _open_rows(opening, states[0], states[1])
    _, _, columns, rows, _, _, _ = opening
    for column in range(columns.shape[0]):
        lacks_dictionary = states[0, column] & HAS_INDICES and not dictionaries[column, NUM_ENTRIES]
        if needed == NOTHING and lacks_dictionary:
            needed = DICTIONARY
    num_pages = pages.shape[0]
    if needed != NOTHING:
        pages, rows = pages[:0], rows[:0]
        bounds[:] = 0
    stored = pages, bounds, columns, states[1], dictionaries, present
    size, valid, out, offsets, texts = take_rows(stored, rows)
    if needed == NOTHING and size < 0:
        needed = STEPS
    counts = np.int64(needed), num_pages, data.shape[0], bodies.shape[0]
    return (*counts, size, valid, out, offsets, texts)
