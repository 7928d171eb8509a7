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

from zonebloom.base.arrays import allocate_array
from zonebloom.parquet import value_kernels
from zonebloom.parquet.header_kernels import (
    DECODED_FIELDS,
    DECODED_INDICES,
    PLAIN,
    is_dictionary_encoding,
)
from zonebloom.parquet.leaf_type import Undecodable

NO_DECODED_PAGES = np.empty((0, DECODED_FIELDS), dtype=np.int64)
_INDEX_BYTES = 4
# About the bytes of the Python objects of a page.
_OBJECT_BYTES = 1000


class DecodedPage:
    """The first rows of a page, or all of them, in decoded form.

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
        values: np.ndarray | pa.Buffer,
        starts: np.ndarray | None,
        present: np.ndarray | None,
        width: int,
        encoding: int,
    ):
        self.num_rows = num_rows
        # Keep the arrays alive, because the kernels get their addresses.
        self._arrays = values, starts, present
        arrays = [np.frombuffer(values, dtype=np.uint8), starts, present]
        addresses = [0 if array is None else array.ctypes.data for array in arrays]
        self.kernel_args = *addresses, width, encoding
        self.num_bytes = _OBJECT_BYTES + sum(a.nbytes for a in arrays if a is not None)


def decode_page(
    page: np.void, width: int, present: np.ndarray | None, bodies: Sequence[pa.Buffer]
) -> DecodedPage:
    """Return an opened page in decoded form.

    Parameters
    ----------
    page : numpy.void of the type page_table.PAGE
        A page after `row_kernels.read_pages`. The values are PLAIN or dictionary indices.
    width : int
        The bytes of a value, 0 for strings.
    present : uint8 array or None
        Whether each row holds a value. None if no row is null.
    bodies : sequence of pyarrow.Buffer
        Memory with a single page each. The values are copied from any other memory.

    Raises
    ------
    Undecodable
        If the page lacks values.
    """
    num_rows = int(page["num_rows"] - page["unwanted_rows"])
    address, size = int(page["address"]), int(page["size"])
    stored, encoding = int(page["num_stored"]), int(page["encoding"])
    present = None if present is None or stored == num_rows else present[:num_rows].copy()
    if is_dictionary_encoding.py_func(encoding):
        indices = allocate_array(stored, np.uint32)
        if value_kernels.decode_indices(address, size, indices) < 0:
            raise Undecodable
        return DecodedPage(num_rows, indices, None, present, _INDEX_BYTES, DECODED_INDICES)
    starts = None
    if width:
        if stored * width > size:
            raise Undecodable
        size = stored * width
    else:
        starts = allocate_array(stored + 1, np.uint32)
        size = value_kernels.text_starts(address, size, starts)
        if size < 0:
            raise Undecodable
    for body in bodies:
        if body.address == address:
            return DecodedPage(num_rows, body, starts, present, width, PLAIN)
    values = allocate_array(size, np.uint8)
    values[:] = np.frombuffer(pa.foreign_buffer(address, size, page), dtype=np.uint8)
    return DecodedPage(num_rows, values, starts, present, width, PLAIN)
