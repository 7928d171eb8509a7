"""Decoded pages, which lookups of few keys keep in memory.

A large page has to be decompressed before one of its values is known, and strings have to be passed
one by one. In decoded form, any row is found at once:

    fixed width   the values that are stored
    strings       the strings that are stored, each after its length, and where each begins
    dictionary    the index of each value that is stored, uint32

If some rows are null, each row has a byte that says whether it holds a value.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from zonebloom.parquet import value_kernels
from zonebloom.parquet.header_kernels import (
    DECODED_INDICES,
    PLAIN,
    is_dictionary_encoding,
)
from zonebloom.parquet.leaf_type import Undecodable

# The fields of `page_table.PAGE` from which `decode_page` makes a decoded page.
STORED_FIELDS = ("address", "size", "encoding", "num_stored")
_INDEX_BYTES = 4
# About the bytes of the Python objects of a page.
_OBJECT_BYTES = 1000


def allocate_kept_memory(num_bytes: int) -> pa.Buffer:
    """Return memory for one page, to be cached.

    It comes from NumPy, which gets new memory from the system much faster than Arrow's pool. For
    arrays that are soon freed, `allocate_array` is faster, because the pool hands them out again.
    """
    return pa.py_buffer(np.empty(num_bytes, dtype=np.uint8))


class DecodedPage:
    """The first rows of a page, or all of them, in decoded form.

    ``starts`` are those of strings, and ``present`` has a byte for each row. Either may be None.

    Attributes
    ----------
    num_rows : int
        The number of rows that are decoded.
    kernel_args : tuple of int
        The fields of the page from `header_kernels.VALUES` on, for `row_kernels.choose_pages`.
    num_bytes : int
        The bytes that the page takes in memory.
    """

    def __init__(
        self,
        num_rows: int,
        values: pa.Buffer,
        starts: pa.Buffer | None,
        present: pa.Buffer | None,
        width: int,
        encoding: int,
    ):
        self.num_rows = num_rows
        # Keep the buffers alive, because the kernels get their addresses.
        self._buffers = buffers = values, starts, present
        addresses = [0 if buffer is None else buffer.address for buffer in buffers]
        self.kernel_args = *addresses, width, encoding
        self.num_bytes = _OBJECT_BYTES + sum(b.size for b in buffers if b is not None)


def decode_page(
    stored: Sequence[int],
    num_rows: int,
    width: int,
    present: np.ndarray | None,
    bodies: Sequence[pa.Buffer],
) -> DecodedPage:
    """Return a page with PLAIN values or dictionary indices in decoded form.

    Parameters
    ----------
    stored : sequence of int
        The `STORED_FIELDS` of the page.
    num_rows : int
    width : int
        The bytes of a value, 0 for strings.
    present : uint8 array or None
        Whether each row holds a value. None if no row is null.
    bodies : sequence of pyarrow.Buffer
        Memory with one page each, which may be kept. Values are copied from any other memory.

    Raises
    ------
    Undecodable
        If the page lacks values.
    """
    address, size, encoding, num_stored = stored
    validity = None
    if present is not None and num_stored < num_rows:
        validity = pa.py_buffer(present.tobytes())
    if is_dictionary_encoding.py_func(encoding):
        indices = allocate_kept_memory(_INDEX_BYTES * num_stored)
        out = np.frombuffer(indices, dtype=np.uint32)
        if value_kernels.decode_indices(address, size, out) < 0:
            raise Undecodable
        return DecodedPage(num_rows, indices, None, validity, _INDEX_BYTES, DECODED_INDICES)
    starts = None
    if width:
        if num_stored * width > size:
            raise Undecodable
        size = num_stored * width
    else:
        starts = allocate_kept_memory(_INDEX_BYTES * (num_stored + 1))
        size = value_kernels.text_starts(address, size, np.frombuffer(starts, dtype=np.uint32))
        if size < 0:
            raise Undecodable
    for body in bodies:
        if body.address <= address < body.address + body.size:
            values = body.slice(address - body.address, size)
            break
    else:
        values = allocate_kept_memory(size)
        source = pa.foreign_buffer(address, size)
        np.frombuffer(values, dtype=np.uint8)[:] = np.frombuffer(source, dtype=np.uint8)
    return DecodedPage(num_rows, values, starts, validity, width, PLAIN)
