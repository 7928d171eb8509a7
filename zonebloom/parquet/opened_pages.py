"""Data pages of column chunks: where keys are in them, and values at chosen rows.

Pages are decompressed and their definition levels read; what they store is then dictionary
indices or PLAIN values, other encodings being brought to PLAIN. Kernels look for keys in those
bytes, and take of them the values of wanted rows alone. What is not known here (`Undecodable`) is
left to pyarrow.

Source: Encodings.md and README.md (data pages) of the Parquet format.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from zonebloom.errors import FragmentUnreadable
from zonebloom.parquet import decompression_kernels as body_kernels
from zonebloom.parquet import find_kernels, header_kernels, row_kernels, take_kernels
from zonebloom.parquet.codecs import decompressor, error_for_code, verify_checksum
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
# What `find_kernels` take of pages.
_FIELDS = BODY_ADDRESS, BODY_SIZE, NUM_STORED, FIRST_POSITION
_NO_DICTIONARY = 0, 0, 0
# What Arrow wants the values of a column to begin at a multiple of.
_ALIGNED = 64


class OpenedPages:
    """Some data pages of some columns of one row group, decompressed.

    Parameters
    ----------
    columns : sequence of LeafChunk, of n
    kinds : int64 array, shape (n, 2)
        Of each its greatest definition level, and its codec.
    data : uint8 array
        The pages as the file has them, one after another.
    pages : int64 array, shape (header_kernels.PAGE_FIELDS, m)
        What `row_kernels.place_pages` says of them, in place.
    num_rows : int
        Of all pages.
    bounds : int64 array, shape (n + 1,)
        Where those of each column begin, and end.
    dictionary : callable
        Gives the dictionary of a column.

    Raises
    ------
    FragmentUnreadable
    Undecodable
    """

    def __init__(
        self,
        columns: Sequence[LeafChunk],
        kinds: np.ndarray,
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
        has = np.empty(len(columns), dtype=np.int64)
        num_bytes = header_kernels.open_pages(data, pages, bounds, kinds, has)
        self._has: list[int] = has.tolist()
        _refuse(self._has)
        if any(flag & header_kernels.HAS_CHECKSUM for flag in self._has):
            for page in pages.T[pages[header_kernels.CHECKSUM] != -1]:
                verify_checksum(data, page)
        # Arrow's pool gives memory that was used before: fresh pages cost more than what is done.
        plain = np.frombuffer(pa.allocate_buffer(num_bytes), dtype=np.uint8)
        # What keeps the bytes of pages in memory.
        self._buffers: list[object] = [data, plain]
        if body_kernels.read_bodies(data, plain, pages, bounds, kinds) < 0:
            raise FragmentUnreadable("a page cannot be decompressed")
        self._edges: list[int] = bounds.tolist()
        for number, column in enumerate(columns):
            if column.chunk.codec not in (0, SNAPPY):
                self._decompress(column.chunk.codec, data, self._of(number))
        self._present = np.empty(num_rows, dtype=np.uint8)
        levels = np.empty(len(columns), dtype=np.int64)
        if row_kernels.read_levels(data, pages, bounds, kinds, self._present, levels) < 0:
            raise FragmentUnreadable("the levels of a page cannot be decoded")
        # Of each column where its rows begin in what tells of their presence; -1: none is null.
        self._levels: list[int] = levels.tolist()
        for number, column in enumerate(columns):
            is_boolean = column.leaf.physical_type == BOOLEAN
            if is_boolean or self._has[number] & header_kernels.HAS_OTHER_ENCODINGS:
                self._bring_to_plain(column, self._of(number))

    def _of(self, number: int) -> np.ndarray:
        """The pages of a column."""
        return self._pages[:, self._edges[number] : self._edges[number + 1]]

    def find_rows(
        self, keys: StoredKeys, nulls: bool, hits: Callable[[], np.ndarray]
    ) -> np.ndarray:
        """Rows of the row group that hold one of some keys, or null, ascending.

        Of the one column that there is; ``hits`` are of its dictionary.
        """
        pages, (has,) = self._pages, self._has
        parts = []
        for are_indices in (False, True):
            some = pages
            if not has & (header_kernels.HAS_INDICES if are_indices else _HAS_NO_INDICES):
                continue
            if has & _HAS_NO_INDICES and has & header_kernels.HAS_INDICES:
                some = np.ascontiguousarray(pages[:, _by_dictionary(pages) == are_indices])
            if nulls:
                width = self._columns[0].leaf.width
                _checked(take_kernels.check_values(some, width, are_indices))
            places = [some[field] for field in _FIELDS]
            room = self._present.size + 1
            parts.append(
                _find_indices(hits(), places, room)
                if are_indices
                else keys.find(*places, capacity=room)
            )
        rows = parts[0] if len(parts) == 1 else np.sort(np.concatenate(parts))
        if self._levels[0] < 0 or not (rows.size or nulls):
            return rows
        out = np.empty(self._present.size, dtype=np.int64)
        return out[: _checked(row_kernels.rows_of_values(self._present, pages, rows, nulls, out))]

    def take(self, rows: np.ndarray) -> list[pa.Array]:
        """The values of each column at some rows of the row group, ascending."""
        leaves, num_fixed, num_texts = [], 0, 0
        for number, column in enumerate(self._columns):
            width, place = column.leaf.width, _NO_DICTIONARY
            if self._has[number] & header_kernels.HAS_INDICES:
                dictionary = self._dictionary(column)
                self._buffers.append(dictionary)
                place = dictionary.kernel_args
            target = num_fixed if width else num_texts
            leaves.append((width, self._levels[number], target, *place))
            num_fixed += -(-width * rows.size // _ALIGNED) * _ALIGNED
            num_texts += not width
        out = np.frombuffer(pa.allocate_buffer(num_fixed), dtype=np.uint8)
        valid = np.empty((len(leaves), rows.size), dtype=np.uint8)
        starts = np.empty((num_texts, rows.size), dtype=np.uint64)
        lengths = np.empty((num_texts, rows.size), dtype=np.int64)
        place = self._pages, self._bounds, np.array(leaves, dtype=np.int64), self._present
        num_bytes = _checked(take_kernels.take_values(*place, rows, valid, out, starts, lengths))
        if num_bytes > MAX_INT32:
            raise Undecodable
        texts = np.empty(num_bytes, dtype=np.uint8)
        offsets = np.empty((num_texts, rows.size + 1), dtype=np.int32)
        if num_texts:
            _checked(take_kernels.copy_texts(starts, lengths, offsets, texts))
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
        begins, sizes, plain_sizes = pages[
            header_kernels.BODY_START : header_kernels.ENCODING
        ].tolist()
        for page, plain_size in enumerate(plain_sizes):
            if plain_size == 0:
                pages[BODY_SIZE, page] = 0
            elif plain_size > 0:
                begin = begins[page]
                body = decompress(compressed[begin : begin + sizes[page]], plain_size)
                self._buffers.append(body)
                pages[BODY_ADDRESS, page], pages[BODY_SIZE, page] = body.address, body.size

    def _bring_to_plain(self, column: LeafChunk, pages: np.ndarray) -> None:
        """Have values as PLAIN has them, booleans a byte each."""
        # Imported late: few files need its kernels.
        from zonebloom.parquet.plain_encoding import to_plain

        is_boolean = column.leaf.physical_type == BOOLEAN
        as_they_are = (pages[ENCODING] == header_kernels.PLAIN) | _by_dictionary(pages)
        for page in range(pages.shape[1]):
            if as_they_are[page] and not is_boolean:
                continue
            address, size, count = pages[[BODY_ADDRESS, BODY_SIZE, NUM_STORED], page].tolist()
            body = np.frombuffer(pa.foreign_buffer(address, size, self._buffers), dtype=np.uint8)
            plain = to_plain(column.leaf, int(pages[ENCODING, page]), body, count)
            self._buffers.append(plain)
            pages[BODY_ADDRESS, page], pages[BODY_SIZE, page] = plain.ctypes.data, plain.size
            pages[ENCODING, page] = header_kernels.PLAIN


def _by_dictionary(pages: np.ndarray) -> np.ndarray:
    """Which pages hold indices."""
    return header_kernels.is_dictionary_encoding.py_func(pages[ENCODING])


def _find_indices(hits: np.ndarray, pages: Sequence[np.ndarray], room: int) -> np.ndarray:
    """Positions of indices that refer to a hit."""
    if not hits.size and pages[2].any():
        raise FragmentUnreadable("a page refers to a dictionary that is not there")
    if not hits.any():
        return np.empty(0, dtype=np.int64)
    out = np.empty(room, dtype=np.int64)
    return out[: _checked(find_kernels.find_indices(*pages, hits, out))]


def _refuse(flags: Sequence[int]) -> None:
    """Raise what pages are refused for; what is damaged first."""
    errors = [error_for_code(flag) for flag in flags if flag < 0]
    for error in errors:
        if isinstance(error, FragmentUnreadable):
            raise error
    if errors:
        raise errors[0]


def _checked(count: int) -> int:
    if count < 0:
        raise FragmentUnreadable("values of a page lie outside it, or are missing")
    return count
