"""Kernels that turn repetition and definition levels into lists, maps and structs.

A leaf below lists, maps and structs is stored as slots. A slot holds a value, or says by its levels
where a null or an empty list is. Kernels decode the levels of all slots, select the slots of the
wanted rows, and compute the offsets and the validity of each level of nesting:

    slots of   [[1, 2], []], null, [[3]]      greatest levels: repetition 2, definition 5

    repetition    0  2  1  0  0      0 starts a row, 1 an inner list, 2 continues an inner list
    definition    5  5  3  0  5      5 is a value, 3 an empty inner list, 0 a null

No byte of a page is trusted: kernels return -1 if levels run out or contradict one another.

Source: Encodings.md (RLE) and README.md (nested encoding) of the Parquet format; "Dremel:
Interactive Analysis of Web-Scale Datasets".
"""

from __future__ import annotations

import numpy as np
from numba import int64, types, uint8

from zonebloom.parquet.page_table import PAGES
from zonebloom.parquet.row_kernels import decode_levels, strip_levels
from zonebloom.sbbf.jit import kernel, linked, readonly

# Results of `read_slots` if levels are damaged or contradict one another, or if a row is missing.
DAMAGED, MISSING = -1, -2
# The number of slots that are skipped together if no wanted row begins in them.
_GROUP_SIZE = 128


@linked
def _read_levels(data, pages, max_level, item_levels, definitions, repetitions, present, counts):
    """Decode the levels of the pages of a column, one page after another.

    ``present`` says for each slot whether it holds a value. ``item_levels[i]`` is the definition
    level from which a list of repetition level i has an item. That of level 0 is 0. If the column
    is not repeated, ``repetitions`` is empty. A page must begin with a row and have ``num_rows``
    rows. If this is -1, pages may begin inside a row, except the first one. In each page,
    ``first_slot`` and ``num_stored`` are set, and the levels are cut off the body. ``counts[i, j]``
    is increased by the number of slots with repetition level i and definition level j. Return the
    number of slots without a value, or -1.
    """
    base = nulls = 0
    max_repetition = item_levels.shape[0] - 1
    for i in range(pages.shape[0]):
        page = pages[i]
        size, num_rows = page.num_slots, page.num_rows
        if size < 0 or size > present.shape[0] - base:
            return -1
        levels = np.uint64(data.ctypes.data) + np.uint64(page.checked_start)
        is_apart = page.level_bytes >= 0
        num_bytes = page.level_bytes if max_repetition else 0
        if max_repetition:
            address = levels
            if not is_apart:
                address, num_bytes = strip_levels(page)
                if num_bytes < 0:
                    return -1
            page_levels = repetitions[base : base + size]
            if decode_levels(address, num_bytes, max_repetition, page_levels) < 0:
                return -1
            count = 0
            for j in range(size):
                count += np.int64(page_levels[j] == 0)
            begins_inside = size > 0 and page_levels[0] != 0
            if begins_inside and (base == 0 or num_rows >= 0):
                return -1
            if num_rows >= 0 and count != num_rows:
                return -1
        stored = size
        if not max_level:
            counts[0, 0] += size
        else:
            if is_apart:
                address = levels + np.uint64(num_bytes)
                num_bytes = page.body_start - page.checked_start - num_bytes
            else:
                address, num_bytes = strip_levels(page)
            page_levels = definitions[base : base + size]
            if num_bytes < 0:
                return -1
            if decode_levels(address, num_bytes, max_level, page_levels) < 0:
                return -1
            stored = 0
            for j in range(size):
                is_value = page_levels[j] == max_level
                present[base + j] = is_value
                stored += np.int64(is_value)
            if max_repetition:
                previous = np.int64(max_level) if base == 0 else np.int64(definitions[base - 1])
                for j in range(size):
                    level, repetition = np.int64(page_levels[j]), repetitions[base + j]
                    counts[repetition, level] += 1
                    # A slot that continues a list adds an item to one that has some. DuckDB also
                    # writes slots inside of nulls, which belong to no list.
                    if min(previous, level) < item_levels[repetition] and (
                        level >= item_levels[repetition - 1]
                    ):
                        return -1
                    previous = level
            else:
                for j in range(size):
                    counts[0, page_levels[j]] += 1
        page.first_slot, page.num_stored = base, stored
        nulls += size - stored
        base += size
    return nulls


@linked
def _skip_rows(repetitions, slot, end, row, next_row):
    """Skip slots before the start of ``next_row``. Return the row and the next slot.

    ``row`` is the last row that started before ``slot``. Some slots before may remain.
    """
    while slot + _GROUP_SIZE <= end:
        # The processor counts the rows of a group with vector instructions.
        num_starts = 0
        for i in range(_GROUP_SIZE):
            num_starts += np.int64(repetitions[slot + i] == 0)
        if row + num_starts >= next_row:
            break
        row += num_starts
        slot += _GROUP_SIZE
    return row, slot


@linked
def _select_slots(pages, rows, min_definition, definitions, repetitions, slots):
    """Keep only the levels of the slots of some rows, which are ascending.

    A page begins with ``first_row``, or inside a row if its ``num_rows`` is -1. The kept levels
    move to the front. Levels are empty if they are all 0. ``slots`` receives the slots from
    ``min_definition`` on, which are those that the array of the leaf has. Return how many levels
    are kept, or -1 if a row is missing, and the number of these slots.
    """
    is_repeated, has_levels = repetitions.shape[0] > 0, definitions.shape[0] > 0
    kept = num_slots = which = num_found = 0
    row = np.int64(-1)
    is_wanted = False
    for i in range(pages.shape[0]):
        begin, end = pages[i].first_slot, pages[i].first_slot + pages[i].num_slots
        if pages[i].num_rows >= 0:
            row = pages[i].first_row - 1
            is_wanted = False
        slot = next_skip = begin
        while slot < end:
            if slot >= next_skip and not is_wanted:
                while which < rows.shape[0] and rows[which] <= row:
                    which += 1
                # Slots are skipped up to the next wanted row. Without one, all of them are.
                next_row = rows[which] if which < rows.shape[0] else row + end - slot + 1
                if is_repeated:
                    row, slot = _skip_rows(repetitions, slot, end, row, next_row)
                    # The next wanted row begins in this group.
                    next_skip = slot + _GROUP_SIZE
                else:
                    num_skipped = min(next_row - row - 1, end - slot)
                    row += num_skipped
                    slot += num_skipped
                if slot >= end:
                    break
            if not is_repeated or repetitions[slot] == 0:
                row += 1
                while which < rows.shape[0] and rows[which] < row:
                    which += 1
                is_wanted = which < rows.shape[0] and rows[which] == row
                num_found += np.int64(is_wanted)
                if is_wanted:
                    next_skip = slot
            if not is_wanted:
                slot += 1
                continue
            level = np.int64(0)
            if has_levels:
                level = np.int64(definitions[slot])
                definitions[kept] = definitions[slot]
            if is_repeated:
                repetitions[kept] = repetitions[slot]
            kept += 1
            if level >= min_definition:
                slots[num_slots] = slot
                num_slots += 1
            slot += 1
    return kept if num_found == rows.shape[0] else np.int64(-1), num_slots


@kernel(
    types.Tuple((int64, int64[:, ::1], uint8[::1], uint8[::1], uint8[::1], int64[::1]))(
        readonly(uint8), PAGES, int64, readonly(int64), int64, readonly(int64)
    )
)
def read_slots(data, pages, max_level, item_levels, min_definition, rows):
    """Decode the levels of the pages of a leaf, and find the slots of some rows.

    Return the number of slots without a value, or `DAMAGED`, or `MISSING` if a row is missing; the
    counts and the presence of all slots, as `_read_levels` writes them; the definition and the
    repetition levels of the slots of the rows; and those slots from ``min_definition`` on.
    """
    num_slots = 0
    for i in range(pages.shape[0]):
        num_slots += pages[i].num_slots
    max_repetition = item_levels.shape[0] - 1
    definitions = np.empty(num_slots if max_level else 0, dtype=np.uint8)
    repetitions = np.empty(num_slots if max_repetition else 0, dtype=np.uint8)
    present = np.empty(num_slots, dtype=np.uint8)
    counts = np.zeros((max_repetition + 1, max_level + 1), dtype=np.int64)
    slots = np.empty(num_slots, dtype=np.int64)
    status = _read_levels(
        data, pages, max_level, item_levels, definitions, repetitions, present, counts
    )
    kept = num_kept_slots = np.int64(0)
    if status >= 0:
        kept, num_kept_slots = _select_slots(
            pages, rows, min_definition, definitions, repetitions, slots
        )
    if kept < 0:
        status, kept = np.int64(MISSING), np.int64(0)
    levels = definitions[:kept], repetitions[:kept]
    return status, counts, present, *levels, slots[:num_kept_slots]


@kernel(uint8[::1](readonly(uint8), readonly(uint8), int64, int64, int64))
def read_validity(definitions, repetitions, max_repetition, min_definition, valid_level):
    """Return which entries of a struct are not null.

    An entry is a slot that starts one: its repetition level is at most ``max_repetition``, and its
    definition level at least ``min_definition``. It is null below ``valid_level``.
    """
    valid = np.empty(definitions.shape[0], dtype=np.uint8)
    count = 0
    for i in range(definitions.shape[0]):
        if repetitions.shape[0] and repetitions[i] > max_repetition:
            continue
        if definitions[i] >= min_definition:
            valid[count] = definitions[i] >= valid_level
            count += 1
    return valid[:count]


@kernel(
    types.Tuple((int64[::1], uint8[::1]))(
        readonly(uint8), readonly(uint8), int64, int64, int64, int64
    )
)
def read_offsets(definitions, repetitions, repetition, min_definition, valid_level, item_level):
    """Return the offsets of lists, and which lists are not null.

    Slots belong to lists if their definition level is at least ``min_definition``. One with a
    repetition level below ``repetition`` starts a list. One with this level adds an item. A list
    is null below ``valid_level``, and empty below ``item_level``.
    """
    offsets = np.zeros(definitions.shape[0] + 1, dtype=np.int64)
    valid = np.empty(definitions.shape[0], dtype=np.uint8)
    count = num_items = 0
    for i in range(definitions.shape[0]):
        level = np.int64(definitions[i])
        if level < min_definition or repetitions[i] > repetition:
            continue
        if repetitions[i] == repetition:
            num_items += 1
            offsets[count] = num_items
        else:
            num_items += np.int64(level >= item_level)
            valid[count] = level >= valid_level
            count += 1
            offsets[count] = num_items
    return offsets[: count + 1], valid[:count]
