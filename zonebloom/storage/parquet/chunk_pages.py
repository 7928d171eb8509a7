"""Data pages of one column chunk: where keys are in them, and values at chosen rows.

Pages are decompressed and their definition levels read; what they store is then dictionary
indices or PLAIN values, other encodings being brought to PLAIN. Kernels look for keys in those
bytes, and take of them the values of wanted rows alone. What is not known here (`Undecodable`) is
left to pyarrow.

Source: Encodings.md and README.md (data pages) of the Parquet format.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from zonebloom.errors import FragmentUnreadable
from zonebloom.storage.parquet import find_kernels, header_kernels, row_kernels, take_kernels
from zonebloom.storage.parquet.dictionaries import Dictionary
from zonebloom.storage.parquet.key_set import KeySet
from zonebloom.storage.parquet.leaf_type import (
    BOOLEAN,
    MAX_INT32,
    LeafType,
    Undecodable,
    fixed_array,
    text_array,
)

# Addresses, sizes, counts and bases of pages.
_Pages: TypeAlias = tuple[np.ndarray, ...]

_PLAIN, _PLAIN_DICTIONARY, _RLE_DICTIONARY = 0, 2, 8
_HAS_VALUES = header_kernels.HAS_PLAIN | header_kernels.HAS_OTHERS


class ChunkPages:
    """Some data pages of one column chunk, decompressed.

    Parameters
    ----------
    leaf : LeafType
    has : int
        What the pages have, as `header_kernels.open_pages` says.
    encodings : int64 array, shape (n,)
    values : tuple of arrays, shape (n,)
        Addresses and sizes of the stored values, and how many there are.
    rows : tuple of int64 arrays, shape (n,)
        The first row of each page in its row group, and how many it has.
    present : uint8 array or None
        Of the rows of all pages which hold a value; None where all do.
    kept : list
        What keeps their bytes in memory.
    dictionary : callable
        Gives the chunk's dictionary, should a page refer to it.
    """

    def __init__(
        self,
        leaf: LeafType,
        has: int,
        encodings: np.ndarray,
        values: tuple[np.ndarray, np.ndarray, np.ndarray],
        rows: tuple[np.ndarray, np.ndarray],
        present: np.ndarray | None,
        kept: list[object],
        dictionary: Callable[[], Dictionary],
    ):
        self._leaf = leaf
        self._dictionary = dictionary
        self._kept = kept
        self._has = has
        self._first_rows, self._num_rows = rows
        self._present = present
        # Where every row holds a value, rows and positions of values are the same.
        counts = values[2]
        bases = self._first_rows if present is None else counts.cumsum() - counts
        self._values: _Pages = (*values, bases)
        # Whether they have all values that their levels say.
        self._is_checked = False
        # Which pages hold indices; None where all or none do.
        self._by_dictionary: np.ndarray | None = None
        if has & header_kernels.HAS_INDICES and has & _HAS_VALUES:
            self._by_dictionary = (encodings == _PLAIN_DICTIONARY) | (encodings == _RLE_DICTIONARY)
        self._others = None
        if has & header_kernels.HAS_OTHERS or leaf.physical_type == BOOLEAN:
            self._others = encodings.tolist()

    def find(
        self, keys: KeySet, nulls: bool, hits_of_dictionary: Callable[[], np.ndarray]
    ) -> np.ndarray:
        """Rows of the row group that hold one of some keys, or null, ascending."""
        of_indices, of_values = self._parts()
        if nulls:
            self._require_values(of_indices, of_values)
        parts = []
        if of_values is not None:
            parts.append(keys.find(*of_values))
        if of_indices is not None:
            parts.append(_find_indices(hits_of_dictionary(), of_indices))
        rows = parts[0] if len(parts) == 1 else np.sort(np.concatenate(parts))
        if self._present is None or not (rows.size or nulls):
            return rows
        out = np.empty(self._present.size, dtype=np.int64)
        place = self._present, self._first_rows, self._num_rows
        return out[: _checked(row_kernels.rows_of_values(*place, rows, nulls, out))]

    def take(self, rows: np.ndarray) -> pa.Array:
        """The values at some rows of the row group, ascending."""
        leaf, valid, positions = self._leaf, None, rows
        if self._present is not None:
            valid, positions = np.empty(rows.size, dtype=np.uint8), np.empty_like(rows)
            place = self._present, self._first_rows, self._num_rows
            count = _checked(row_kernels.ranks(*place, rows, valid, positions))
            positions = positions[:count]
        of_indices, of_values = self._parts()
        self._require_values(of_indices, of_values)
        if of_indices is None and of_values is not None and leaf.width:
            data = np.empty(positions.size * leaf.width, dtype=np.uint8)
            _require(take_kernels.take_fixed(*of_values, leaf.width, positions, data), positions)
            return fixed_array(leaf, data, valid)
        starts = np.empty(positions.size, dtype=np.uint64)
        lengths = np.empty(positions.size, dtype=np.int64)
        if self._by_dictionary is None:
            self._locate(of_indices, of_values, positions, starts, lengths)
        else:
            bases = np.searchsorted(positions, self._values[3][1:])
            some = np.repeat(self._by_dictionary, np.diff(bases, prepend=0, append=positions.size))
            for among, indices, values in ((some, of_indices, None), (~some, None, of_values)):
                part = np.empty_like(starts[among]), np.empty_like(lengths[among])
                self._locate(indices, values, positions[among], *part)
                starts[among], lengths[among] = part
        size = int(lengths.sum())
        if size > MAX_INT32:
            raise Undecodable
        data = np.empty(size, dtype=np.uint8)
        _checked(take_kernels.copy_texts(starts, lengths, data))
        if leaf.width:
            return fixed_array(leaf, data, valid)
        return text_array(leaf, data, lengths, valid)

    def _parts(self) -> tuple[_Pages | None, _Pages | None]:
        """The pages of dictionary indices and those of values, as kernels take them."""
        if self._others is not None:
            self._bring_to_plain(self._others)
            self._others = None
        pages = self._values
        if self._by_dictionary is None:
            return (pages, None) if self._has & header_kernels.HAS_INDICES else (None, pages)
        some, others = self._by_dictionary, ~self._by_dictionary
        return tuple(each[some] for each in pages), tuple(each[others] for each in pages)

    def _require_values(self, of_indices: _Pages | None, of_values: _Pages | None) -> None:
        """Refuse pages with fewer values than their levels say, which are wrong then.

        Values that nobody wants have a say too: the wanted ones may be others.
        """
        for pages, are_indices in ((of_indices, True), (of_values, False)):
            if pages is not None and not self._is_checked:
                _checked(take_kernels.have_values(*pages[:3], self._leaf.width, are_indices))
        self._is_checked = True

    def _locate(
        self,
        of_indices: _Pages | None,
        of_values: _Pages | None,
        positions: np.ndarray,
        starts: np.ndarray,
        lengths: np.ndarray,
    ) -> None:
        """Where in memory the values at some positions lie, of pages of one kind."""
        width = self._leaf.width
        if of_values is not None:
            taken = take_kernels.take_texts(*of_values, width, positions, starts, lengths)
            _require(taken, positions)
        elif of_indices is not None and positions.size:
            dictionary = self._dictionary()
            self._kept.append(dictionary)
            indices = np.empty(positions.size, dtype=np.int64)
            size = dictionary.size
            _require(take_kernels.take_indices(*of_indices, positions, size, indices), positions)
            starts[:], lengths[:] = dictionary.locate(indices)

    def _bring_to_plain(self, encodings: Sequence[int]) -> None:
        """Have values as PLAIN has them, booleans a byte each."""
        # Imported late: few files need its kernels.
        from zonebloom.storage.parquet.plain import to_plain

        addresses, sizes, counts, _ = self._values
        as_they_are = {_PLAIN, _PLAIN_DICTIONARY, _RLE_DICTIONARY}
        if self._leaf.physical_type == BOOLEAN:
            as_they_are.clear()
        for page, encoding in enumerate(encodings):
            if encoding not in as_they_are:
                body = pa.foreign_buffer(int(addresses[page]), int(sizes[page]), self._kept)
                body = np.frombuffer(body, dtype=np.uint8)
                plain = to_plain(self._leaf, encoding, body, int(counts[page]))
                self._kept.append(plain)
                addresses[page], sizes[page] = plain.ctypes.data, plain.size


def _find_indices(hits: np.ndarray, of_indices: _Pages) -> np.ndarray:
    """Positions of indices that refer to a hit."""
    counts = of_indices[2]
    if not hits.size and counts.any():
        raise FragmentUnreadable("a page refers to a dictionary that is not there")
    if not hits.any():
        return np.empty(0, dtype=np.int64)
    out = np.empty(int(counts.sum()) + 1, dtype=np.int64)
    return out[: _checked(find_kernels.find_indices(*of_indices, hits, out))]


def _checked(count: int) -> int:
    if count < 0:
        raise FragmentUnreadable("values of a page lie outside it")
    return count


def _require(count: int, positions: np.ndarray) -> None:
    if count != positions.size:
        raise FragmentUnreadable("a page ends before its values")
