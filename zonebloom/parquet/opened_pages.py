"""Open data pages of column chunks: find the rows of keys in them, and take values at rows.

Pages are decompressed, and their definition levels are read. Their values are then dictionary
indices or PLAIN values. Other encodings are converted to PLAIN. Kernels search these bytes for
keys, and take only the values of the wanted rows. Pages that the kernels cannot decode raise
`Undecodable`, and pyarrow decodes them.

Source: Encodings.md and README.md (data pages) of the Parquet format.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from zonebloom.errors import FragmentUnreadable
from zonebloom.parquet import find_kernels, header_kernels, row_kernels, take_kernels
from zonebloom.parquet.codecs import decompressor, error_for_code, verify_checksum
from zonebloom.parquet.decompression_kernels import read_bodies
from zonebloom.parquet.dictionaries import Dictionary
from zonebloom.parquet.header_kernels import (
    BODY_ADDRESS,
    BODY_SIZE,
    ENCODING,
    FIRST_POSITION,
    NUM_STORED,
)
from zonebloom.parquet.key_set import StoredKeys
from zonebloom.parquet.leaf_type import (
    BOOLEAN,
    MAX_INT32,
    SNAPPY,
    LeafChunk,
    Undecodable,
    fixed_width_array,
    text_array,
)

_HAS_NO_INDICES = header_kernels.HAS_PLAIN | header_kernels.HAS_OTHER_ENCODINGS
# The arguments of `find_kernels` that describe pages.
_FIELDS = BODY_ADDRESS, BODY_SIZE, NUM_STORED, FIRST_POSITION
_NO_DICTIONARY = 0, 0, 0
# Arrow recommends that buffers begin at a multiple of this number of bytes.
_ALIGNMENT = 64


class OpenedPages:
    """Some data pages of some columns of one row group, decompressed.

    Parameters
    ----------
    columns : sequence of LeafChunk, length n
    levels_and_codecs : int64 array, shape (n, 2)
        The greatest definition level and the codec of each column.
    data : uint8 array
        The pages as stored in the file, one after another.
    pages : int64 array, shape (header_kernels.PAGE_FIELDS, m)
        The table of pages that `row_kernels.place_pages` filled. It is changed in place.
    num_rows : int
        The number of rows of all pages.
    bounds : int64 array, shape (n + 1,)
        The first page of each column, and the end of the last one.
    dictionary : callable
        Returns the dictionary of a column.

    Raises
    ------
    FragmentUnreadable
    Undecodable
    """

    def __init__(
        self,
        columns: Sequence[LeafChunk],
        levels_and_codecs: np.ndarray,
        data: np.ndarray,
        pages: np.ndarray,
        num_rows: int,
        bounds: np.ndarray,
        dictionary: Callable[[LeafChunk], Dictionary],
    ):
        self._columns = columns
        self._pages = pages
        self._bounds = bounds
        self._dictionary = dictionary
        flags = np.empty(len(columns), dtype=np.int64)
        num_bytes = header_kernels.open_pages(data, pages, bounds, levels_and_codecs, flags)
        self._flags: list[int] = flags.tolist()
        _raise_refusals(self._flags)
        if any(flag & header_kernels.HAS_CHECKSUM for flag in self._flags):
            for page in pages.T[pages[header_kernels.CHECKSUM] != -1]:
                verify_checksum(data, page)
        # Arrow's pool reuses memory. New memory would cost more time than the decompression.
        bodies = np.frombuffer(pa.allocate_buffer(num_bytes), dtype=np.uint8)
        # Keep the page buffers alive: the addresses in ``pages`` point into them.
        self._buffers: list[object] = [data, bodies]
        if read_bodies(data, bodies, pages, bounds, levels_and_codecs) < 0:
            raise FragmentUnreadable("a page cannot be decompressed")
        self._column_bounds: list[int] = bounds.tolist()
        for number, column in enumerate(columns):
            if column.chunk.codec not in (0, SNAPPY):
                self._decompress(column.chunk.codec, data, self._pages_of(number))
        self._present = np.empty(num_rows, dtype=np.uint8)
        levels = np.empty(len(columns), dtype=np.int64)
        status = row_kernels.read_levels(
            data, pages, bounds, levels_and_codecs, self._present, levels
        )
        if status < 0:
            raise FragmentUnreadable("the levels of a page cannot be decoded")
        # The start of each column in ``self._present``, or -1 if none of its rows is null.
        self._levels: list[int] = levels.tolist()
        for number, column in enumerate(columns):
            is_boolean = column.leaf.physical_type == BOOLEAN
            if is_boolean or self._flags[number] & header_kernels.HAS_OTHER_ENCODINGS:
                self._convert_to_plain(column, self._pages_of(number))

    def _pages_of(self, number: int) -> np.ndarray:
        return self._pages[:, self._column_bounds[number] : self._column_bounds[number + 1]]

    def find_rows(
        self, keys: StoredKeys, nulls: bool, hits: Callable[[], np.ndarray]
    ) -> np.ndarray:
        """Return the rows of the row group that hold one of the keys, ascending.

        Include rows with a null if ``nulls``. There must be a single column. ``hits`` returns the
        mask of keys in its dictionary, and is called only if a page has indices.
        """
        all_pages, (flags,) = self._pages, self._flags
        parts = []
        for are_indices in (False, True):
            pages = all_pages
            if not flags & (header_kernels.HAS_INDICES if are_indices else _HAS_NO_INDICES):
                continue
            if flags & _HAS_NO_INDICES and flags & header_kernels.HAS_INDICES:
                pages = np.ascontiguousarray(pages[:, _have_indices(pages) == are_indices])
            if nulls:
                width = self._columns[0].leaf.width
                _checked_count(take_kernels.check_values(pages, width, are_indices))
            page_args = [pages[field] for field in _FIELDS]
            capacity = self._present.size + 1
            parts.append(
                _find_indices(hits(), page_args, capacity)
                if are_indices
                else keys.find(*page_args, capacity=capacity)
            )
        rows = parts[0] if len(parts) == 1 else np.sort(np.concatenate(parts))
        if self._levels[0] < 0 or not (rows.size or nulls):
            return rows
        out = np.empty(self._present.size, dtype=np.int64)
        count = row_kernels.rows_of_values(self._present, all_pages, rows, nulls, out)
        return out[: _checked_count(count)]

    def take(self, rows: np.ndarray) -> list[pa.Array]:
        """Return the values of each column at ascending rows of the row group."""
        leaves, fixed_bytes, num_texts = [], 0, 0
        for number, column in enumerate(self._columns):
            width, dictionary_args = column.leaf.width, _NO_DICTIONARY
            if self._flags[number] & header_kernels.HAS_INDICES:
                dictionary = self._dictionary(column)
                self._buffers.append(dictionary)
                dictionary_args = dictionary.kernel_args
            target = fixed_bytes if width else num_texts
            leaves.append((width, self._levels[number], target, *dictionary_args))
            fixed_bytes += -(-width * rows.size // _ALIGNMENT) * _ALIGNMENT
            num_texts += not width
        out = np.frombuffer(pa.allocate_buffer(fixed_bytes), dtype=np.uint8)
        valid = np.empty((len(leaves), rows.size), dtype=np.uint8)
        starts = np.empty((num_texts, rows.size), dtype=np.uint64)
        lengths = np.empty((num_texts, rows.size), dtype=np.int64)
        sources = self._pages, self._bounds, np.array(leaves, dtype=np.int64), self._present
        num_bytes = _checked_count(
            take_kernels.take_values(*sources, rows, valid, out, starts, lengths)
        )
        if num_bytes > MAX_INT32:
            raise Undecodable
        texts = np.empty(num_bytes, dtype=np.uint8)
        offsets = np.empty((num_texts, rows.size + 1), dtype=np.int32)
        if num_texts:
            _checked_count(take_kernels.copy_texts(starts, lengths, offsets, texts))
        arrays, begin = [], 0
        for number, (column, leaf) in enumerate(zip(self._columns, leaves, strict=True)):
            target = leaf[take_kernels.TARGET]
            are_valid = None if self._levels[number] < 0 else valid[number]
            if column.leaf.width:
                data = out[target : target + column.leaf.width * rows.size]
                arrays.append(fixed_width_array(column.leaf, data, are_valid))
            else:
                stop = begin + int(offsets[target, -1])
                arrays.append(
                    text_array(column.leaf, offsets[target], texts[begin:stop], are_valid)
                )
                begin = stop
        return arrays

    def _decompress(self, codec: int, data: np.ndarray, pages: np.ndarray) -> None:
        """Decompress pages of a codec that has no kernel."""
        decompress, compressed = decompressor(codec), data.data
        starts, sizes, decompressed_sizes = pages[
            header_kernels.BODY_START : header_kernels.ENCODING
        ].tolist()
        for page, decompressed_size in enumerate(decompressed_sizes):
            if decompressed_size == 0:
                pages[BODY_SIZE, page] = 0
            elif decompressed_size > 0:
                start = starts[page]
                body = decompress(compressed[start : start + sizes[page]], decompressed_size)
                self._buffers.append(body)
                pages[BODY_ADDRESS, page], pages[BODY_SIZE, page] = body.address, body.size

    def _convert_to_plain(self, column: LeafChunk, pages: np.ndarray) -> None:
        """Convert the values of pages to PLAIN encoding, with one byte for each boolean."""
        # This is imported late, because few files need its kernels.
        from zonebloom.parquet.plain_encoding import to_plain

        is_boolean = column.leaf.physical_type == BOOLEAN
        is_ready = (pages[ENCODING] == header_kernels.PLAIN) | _have_indices(pages)
        for page in range(pages.shape[1]):
            if is_ready[page] and not is_boolean:
                continue
            address, size, count = pages[[BODY_ADDRESS, BODY_SIZE, NUM_STORED], page].tolist()
            body = np.frombuffer(pa.foreign_buffer(address, size, self._buffers), dtype=np.uint8)
            plain = to_plain(column.leaf, int(pages[ENCODING, page]), body, count)
            self._buffers.append(plain)
            pages[BODY_ADDRESS, page], pages[BODY_SIZE, page] = plain.ctypes.data, plain.size
            pages[ENCODING, page] = header_kernels.PLAIN


def _have_indices(pages: np.ndarray) -> np.ndarray:
    return header_kernels.is_dictionary_encoding.py_func(pages[ENCODING])


def _find_indices(hits: np.ndarray, pages: Sequence[np.ndarray], capacity: int) -> np.ndarray:
    """Return the positions of the dictionary indices that refer to a hit."""
    if not hits.size and pages[2].any():
        raise FragmentUnreadable("a page refers to a dictionary, but the column chunk has none")
    if not hits.any():
        return np.empty(0, dtype=np.int64)
    out = np.empty(capacity, dtype=np.int64)
    return out[: _checked_count(find_kernels.find_indices(*pages, hits, out))]


def _raise_refusals(flags: Sequence[int]) -> None:
    """Raise the error of a refused page. Damage takes precedence over `Undecodable`."""
    errors = [error_for_code(flag) for flag in flags if flag < 0]
    for error in errors:
        if isinstance(error, FragmentUnreadable):
            raise error
    if errors:
        raise errors[0]


def _checked_count(count: int) -> int:
    if count < 0:
        raise FragmentUnreadable("values of a page lie outside it, or are missing")
    return count
