"""Large pages in memory, divided into blocks of rows.

A page that holds a whole column chunk has to be decompressed before one of its values is known, and
strings have to be passed one by one. A lookup that uses such a page again searches only the blocks
that hold its rows, as if the file had small pages.

    page     100,000 rows: compressed, its values in one piece
    blocks   1,024 rows each: decompressed, each with the form of a page
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from zonebloom.parquet import block_kernels
from zonebloom.parquet.block_kernels import BLOCK_FIELDS, BLOCK_ROWS
from zonebloom.parquet.header_kernels import HAS_INDICES, HAS_PLAIN, is_dictionary_encoding

# The description of a page without blocks.
NO_BLOCKS = (0,) * 5
# The bytes that precede the packed indices of a block, and pad them to groups of eight.
_MAX_PADDING = 32 + 3


class PageBlocks:
    """The decompressed values of a page, in blocks of rows. The page has all values that it claims.

    Attributes
    ----------
    kernel_args : tuple of int
        The description of the blocks for `block_kernels.choose_blocks`.
    num_bytes : int
        The bytes that the blocks take in memory.
    """

    def __init__(
        self,
        encoding: int,
        values: np.ndarray,
        table: np.ndarray,
        present: np.ndarray | None,
    ):
        # Keep the arrays alive, because the kernels get their addresses.
        self._arrays = values, table, present
        present_address = 0 if present is None else present.ctypes.data
        flags = HAS_INDICES if _are_indices(encoding) else HAS_PLAIN
        self.kernel_args = table.ctypes.data, table.shape[1], present_address, encoding, flags
        self.num_bytes = values.nbytes + table.nbytes + (0 if present is None else present.nbytes)


def split_page(
    address: int,
    size: int,
    *,
    encoding: int,
    width: int,
    num_rows: int,
    present: np.ndarray | None,
) -> PageBlocks | None:
    """Copy a decoded page, and divide it into blocks. Return None if it lacks values.

    Parameters
    ----------
    address, size : int
        The place of the values, which are PLAIN or dictionary indices.
    encoding : int
    width : int
        The bytes of a value, 0 for strings.
    num_rows : int
    present : uint8 array or None
        Whether each row holds a value. None if no row is null.
    """
    table = np.empty((BLOCK_FIELDS, -(-num_rows // BLOCK_ROWS)), dtype=np.int64)
    room = size
    are_indices = _are_indices(encoding)
    if are_indices and size:
        # A run of equal indices takes few bytes in the page, but not in the blocks.
        index_bits = pa.foreign_buffer(address, 1)[0]
        room = num_rows * index_bits // 8 + table.shape[1] * _MAX_PADDING + 1
    # Arrow's pool reuses memory. New memory would cost more time than the copy.
    values = np.frombuffer(pa.allocate_buffer(room), dtype=np.uint8)
    levels = np.empty(0, dtype=np.uint8) if present is None else present
    num_bytes = block_kernels.cut_page(
        address, size, levels, num_rows, width, are_indices, table, values
    )
    if num_bytes < 0:
        return None
    return PageBlocks(encoding, values, table, None if present is None else present.copy())


def _are_indices(encoding: int) -> bool:
    return bool(is_dictionary_encoding.py_func(encoding))
