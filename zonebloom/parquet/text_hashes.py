"""Hash the strings of a column chunk in its pages, without making Arrow arrays of them.

That takes half the time, because most of the bytes of strings need not be copied.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from zonebloom.base.arrays import allocate_array
from zonebloom.errors import FragmentUnreadable
from zonebloom.parquet import header_kernels, row_kernels, text_hash_kernels
from zonebloom.parquet.dictionaries import Dictionary
from zonebloom.parquet.leaf_reader import open_bodies
from zonebloom.parquet.leaf_type import LeafChunk, Undecodable, describe_column
from zonebloom.parquet.text_hash_kernels import MAX_ADDRESS, MAX_LENGTH, MIN_ADDRESS, MIN_LENGTH
from zonebloom.sbbf.hashing import Hashes
from zonebloom.storage.random_access import FragmentFile

# Pages are read and decompressed in batches of about this size, so that they fit a cache.
_BATCH_BYTES = 1 << 21
_NO_BITMAP = np.empty(0, dtype=np.uint8)
_NO_HASHES = np.empty(0, dtype=np.uint64)


class HashedTexts(NamedTuple):
    """The hashes of consecutive rows, and the least and greatest of the strings.

    A page with indices may add the least and greatest string of the whole dictionary.
    """

    hashes: Hashes
    ends: list[bytes]


def hash_texts(file: FragmentFile, column: LeafChunk) -> Iterator[HashedTexts]:
    """Yield the hashes of all rows of a column chunk of strings in a local file.

    Raises
    ------
    Undecodable
        If the kernels do not know the encoding of the pages, or Arrow does not know their codec.
    FragmentUnreadable
    """
    description = np.array([describe_column(column.leaf, column.chunk.codec)], dtype=np.int64)
    locations = column.pages
    dictionary_hashes, dictionary_ends = _NO_HASHES, []
    first_start = int(locations.starts[0])
    if column.chunk.start < first_start:
        data = _read(file, column.chunk.start, first_start)
        dictionary_hashes, dictionary_ends = _hash_dictionary(column, data)
    batches = (locations.starts - first_start) // _BATCH_BYTES
    cuts = (np.flatnonzero(np.diff(batches)) + 1).tolist()
    for first, stop in zip([0, *cuts], [*cuts, batches.size], strict=True):
        pages = np.zeros((header_kernels.PAGE_FIELDS, stop - first), dtype=np.int64)
        starts, sizes = locations.starts[first:stop], locations.sizes[first:stop]
        pages[header_kernels.FILE_START], pages[header_kernels.NUM_BYTES] = starts, sizes
        pages[header_kernels.READ_START] = starts - starts[0]
        pages[header_kernels.FIRST_ROW] = locations.first_rows[first:stop]
        pages[header_kernels.NUM_ROWS] = np.diff(locations.first_rows[first : stop + 1])
        data = _read(file, int(starts[0]), int(starts[-1] + sizes[-1]))
        yield _hash_pages(data, pages, description, dictionary_hashes, dictionary_ends)


def _read(file: FragmentFile, start: int, stop: int) -> np.ndarray:
    data = allocate_array(stop - start, np.uint8)
    file.read_into(start, data)
    return data


def _hash_dictionary(column: LeafChunk, data: np.ndarray) -> tuple[np.ndarray, list[bytes]]:
    """Return the hashes of the strings of a dictionary, and the least and greatest string."""
    dictionary = Dictionary(column.leaf, column.chunk.codec, data)
    pages = np.zeros((header_kernels.PAGE_FIELDS, 1), dtype=np.int64)
    address, size, count = dictionary.page
    pages[header_kernels.BODY_ADDRESS], pages[header_kernels.BODY_SIZE] = address, size
    pages[header_kernels.NUM_STORED], pages[header_kernels.ENCODING] = count, header_kernels.PLAIN
    hashes = np.empty(count, dtype=np.uint64)
    return hashes, _hash_into(pages, _NO_HASHES, hashes)


def _hash_pages(
    data: np.ndarray,
    pages: np.ndarray,
    description: np.ndarray,
    dictionary_hashes: np.ndarray,
    dictionary_ends: list[bytes],
) -> HashedTexts:
    bounds = np.array([0, pages.shape[1]])
    # The pages have the addresses of the buffers, which must live until the strings are hashed.
    flags, _buffers = open_bodies(data, pages, bounds, description)
    if flags[0] & header_kernels.HAS_OTHER_ENCODINGS:
        raise Undecodable
    num_rows = int(pages[header_kernels.NUM_ROWS].sum())
    present, levels = allocate_array(num_rows, np.uint8), np.empty(1, dtype=np.int64)
    if row_kernels.read_pages(data, pages, bounds, description, present, levels) < 0:
        raise FragmentUnreadable("the body or the definition levels of a page cannot be decoded")
    hashes = allocate_array(int(pages[header_kernels.NUM_STORED].sum()), np.uint64)
    ends = _hash_into(pages, dictionary_hashes, hashes)
    if flags[0] & header_kernels.HAS_INDICES:
        ends += dictionary_ends
    if levels[0] < 0:
        return HashedTexts(Hashes(hashes, _NO_BITMAP, 0, 0), ends)
    is_valid = present.astype(bool)
    values = np.zeros(num_rows, dtype=np.uint64)
    values[is_valid] = hashes
    validity = np.packbits(is_valid, bitorder="little")
    return HashedTexts(Hashes(values, validity, 0, num_rows - hashes.size), ends)


def _hash_into(pages: np.ndarray, dictionary_hashes: np.ndarray, hashes: np.ndarray) -> list[bytes]:
    """Fill an array with the hashes of the stored strings. Return the least and greatest string."""
    ends = np.zeros(4, dtype=np.int64)
    if text_hash_kernels.hash_stored_texts(pages, dictionary_hashes, hashes, ends) != hashes.size:
        raise FragmentUnreadable("values of a page lie outside it, or are missing")
    if not ends[MIN_ADDRESS]:
        return []
    return [
        ctypes.string_at(int(ends[address]), int(ends[length]))
        for address, length in ((MIN_ADDRESS, MIN_LENGTH), (MAX_ADDRESS, MAX_LENGTH))
    ]
