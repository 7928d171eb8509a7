"""Hash a column of strings by kernels, row group by row group, where they can decode it.

They hash the strings in their pages, without making Arrow arrays of them. That takes half the time,
because most of the bytes of strings need not be copied.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from zonebloom.base.arrays import allocate_array
from zonebloom.base.row_ranges import RowRanges
from zonebloom.errors import FragmentUnreadable
from zonebloom.parquet import text_hash_kernels as kernels
from zonebloom.parquet.dictionaries import Dictionary
from zonebloom.parquet.file_layout import FilePages
from zonebloom.parquet.footer import read_footer
from zonebloom.parquet.leaf_reader import PageTable, read_spans
from zonebloom.parquet.leaf_type import BYTE_ARRAY, LeafChunk, LeafType, Undecodable, leaf_at
from zonebloom.parquet.page_headers import walk_pages
from zonebloom.sbbf.hashing import Hashes
from zonebloom.sources.column_batches import Column, Run
from zonebloom.sources.source import Fragment, Source
from zonebloom.storage.files import FileIdentity, ReadCounter
from zonebloom.storage.random_access import FragmentFile

# Larger row groups are not hashed at once, because their hashes would take too much memory.
_MAX_ROWS = 4 << 20
_NO_BITMAP = np.empty(0, dtype=np.uint8)
_NO_HASHES = np.empty(0, dtype=np.uint64)


class HashedTexts(NamedTuple):
    """The hashes of consecutive rows, and the least and greatest of the strings.

    A page with indices may add the least and greatest string of the whole dictionary.
    """

    hashes: Hashes
    ends: list[bytes]


class TextColumn:
    """A column of strings of a local Parquet file, whose pages kernels may hash."""

    def __init__(self, file: FragmentFile, pages: FilePages, leaf: LeafType, number: int):
        self._file = file
        self._pages = pages
        self._leaf = leaf
        self._number = number

    @classmethod
    def open(
        cls, source: Source, fragment: Fragment, identity: FileIdentity, column: Column
    ) -> TextColumn | None:
        """Return a column, or None if pyarrow has to read it."""
        has_kernels = source.is_parquet and not source.store.has_round_trips
        if not has_kernels or fragment.view is not None:
            return None
        try:
            file = FragmentFile(source.filesystem, fragment.path, identity, ReadCounter())
        except FragmentUnreadable:
            # PyArrow says what is wrong.
            return None
        try:
            pages = read_footer(file.num_bytes, file.read)
        except FragmentUnreadable:
            # The columns may be encrypted. PyArrow reads the file, or says what is wrong.
            file.close()
            return None
        number, leaf = leaf_at(column.path, pages.schema, source.schema) or (0, None)
        if leaf is None or leaf.physical_type != BYTE_ARRAY:
            file.close()
            return None
        return cls(file, pages, leaf, number)

    def run_of(self, row_group: int) -> Run:
        """Return the run of one row group."""
        group = self._pages.row_groups[row_group]
        return Run(group.first_row, group.num_rows, (row_group,))

    def hash_row_group(self, row_group: int) -> list[HashedTexts] | None:
        """Return the hashes of all rows of a row group, or None if pyarrow has to read them."""
        group = self._pages.row_groups[row_group]
        chunk = group.chunks[self._number]
        if not 0 < group.num_rows <= _MAX_ROWS:
            return None
        try:
            locations = self._pages.locations(row_group, self._number)
            if locations is None:
                locations = walk_pages(self._file.read, chunk, group.num_rows)
            if locations is None:
                return None
            hashed = list(_hash_texts(self._file, LeafChunk(self._leaf, chunk, locations)))
        except (FragmentUnreadable, Undecodable):
            # PyArrow reads the row group, or says what is wrong with the file.
            return None
        num_rows = sum(part.hashes.values.size for part in hashed)
        return hashed if num_rows == group.num_rows else None


def _hash_texts(file: FragmentFile, column: LeafChunk) -> Iterator[HashedTexts]:
    """Yield the hashes of all rows of a column chunk of strings."""
    locations = column.pages
    # The cache of dictionaries is for lookups. A build reads each one once.
    start, size = column.chunk.start, int(locations.starts[0]) - column.chunk.start
    page = read_spans(file, np.array([start]), np.array([size]), size) if size > 0 else None
    dictionary = Dictionary(column.leaf, column.chunk.codec, page)
    dictionary_hashes, dictionary_ends = _hash_stored_texts(dictionary.page, _NO_HASHES)
    rows = RowRanges([(0, int(locations.first_rows[-1]))])
    for opened in PageTable([column]).open_in_batches(file, rows):
        hashes, ends = _hash_stored_texts(opened.pages, dictionary_hashes)
        if opened.has_indices:
            ends += dictionary_ends
        present = opened.present
        if present is None:
            yield HashedTexts(Hashes(hashes, _NO_BITMAP, 0, 0), ends)
            continue
        is_valid = present.astype(bool)
        values = np.zeros(is_valid.size, dtype=np.uint64)
        values[is_valid] = hashes
        validity = np.packbits(is_valid, bitorder="little")
        yield HashedTexts(Hashes(values, validity, 0, is_valid.size - hashes.size), ends)


def _hash_stored_texts(
    pages: np.ndarray, dictionary_hashes: np.ndarray
) -> tuple[np.ndarray, list[bytes]]:
    """Return the hashes of the strings that pages store, one page after another.

    Return also the least and the greatest string of the pages without indices, if there are such.
    """
    hashes = allocate_array(int(pages["num_stored"].sum()), np.uint64)
    ends = np.zeros(4, dtype=np.int64)
    if kernels.write_text_hashes(pages, dictionary_hashes, hashes, ends) != hashes.size:
        raise FragmentUnreadable("values of a page lie outside it, or are missing")
    if not ends[kernels.MIN_ADDRESS]:
        return hashes, []
    return hashes, [
        ctypes.string_at(int(ends[address]), int(ends[length]))
        for address, length in (
            (kernels.MIN_ADDRESS, kernels.MIN_LENGTH),
            (kernels.MAX_ADDRESS, kernels.MAX_LENGTH),
        )
    ]
