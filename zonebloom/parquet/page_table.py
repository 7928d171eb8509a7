"""The table of the pages of some columns, as kernels fill it in. No field changes its meaning.

A page goes through two phases. First it is a piece of a file:

    place     `row_kernels.choose_pages` says where it lies, and which rows it has
    header    `header_kernels.open_pages` says how it is stored

Then it is a piece of memory with stored values, which all kernels for values take. A slot holds a
value, or says that there is none. In a column that is not repeated, the slots are the rows.
Decoded pages begin in this phase.
"""

from __future__ import annotations

import numba
import numpy as np
from numba import types

# Fields of the type int64. Offsets count from the start of the bytes that were read.
_PLACE = (
    "file_start",
    "num_bytes",
    "read_start",
    "first_row",
    # -1 if a page may begin inside a row.
    "num_rows",
    # The rows after the last wanted one. PLAIN values of such rows are left out. Values of other
    # encodings and of small pages are all read, so `open_pages` sets this to 0 for them.
    "unwanted_rows",
)
_HEADER = (
    "body_start",
    "body_size",
    # -1 if the body is not compressed.
    "decompressed_size",
    # The offset of a body that Snappy compressed in the memory for all of them.
    "decompressed_start",
    # -1 if there is none.
    "checksum",
    # The start of the bytes that the checksum covers, which begin with levels that are not part of
    # the body.
    "checked_start",
    # The size of the levels, or in a repeated column that of the repetition levels, which precede
    # the others. -1 if the levels are part of the body.
    "level_bytes",
)
_VALUES = (
    "encoding",
    "address",
    "size",
    "first_slot",
    "num_slots",
    "num_stored",
    # The position of the first value among all stored values. Without nulls, it is the first slot.
    "first_position",
    # The address of a byte for each slot that says whether it holds a value, or 0 if no slot is
    # empty. Only for decoded pages, which have the field `is_decoded`.
    "present",
    "is_decoded",
)
PAGE = np.dtype([(name, np.int64) for name in (*_PLACE, *_HEADER, *_VALUES)])
# The types of tables that kernels change, and that they only read.
PAGES = types.Array(numba.from_dtype(PAGE), 1, "C")
STORED_PAGES = types.Array(numba.from_dtype(PAGE), 1, "C", readonly=True)
