"""Decode dictionary pages, and find keys in them.

Source: Encodings.md (dictionary encoding) of the Parquet format.
"""

from __future__ import annotations

from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa

from zonebloom.errors import FragmentUnreadable
from zonebloom.parquet import header_kernels, leaf_kernels, value_kernels
from zonebloom.parquet.codecs import decompressor, error_for_code, verify_checksum
from zonebloom.parquet.key_tests import KeySet, index_bytes, index_values, texts_of
from zonebloom.parquet.leaf_type import (
    BYTE_ARRAY,
    MAX_INT32,
    LeafType,
    Undecodable,
    text_array,
)
from zonebloom.parquet.page_table import PAGE

# A dictionary of at least this many entries is indexed after this many searches. Building the index
# takes as long as five to ten searches of all entries.
_MIN_INDEXED = 4096
_SEARCHES_BEFORE_INDEX = 8
# With more keys than one for this many entries, all entries are searched.
_ENTRIES_PER_KEY = 64
_LENGTH_BYTES = 4
_NO_BYTES = np.empty(0, dtype=np.uint8)
_ENCODINGS = header_kernels.PLAIN, header_kernels.PLAIN_DICTIONARY


class Dictionary:
    """The decoded dictionary page of a column chunk. Empty if the chunk has no dictionary page.

    Raises
    ------
    FragmentUnreadable
    Undecodable
    """

    def __init__(self, leaf: LeafType, codec: int, data: np.ndarray | None):
        body, self.size = pa.py_buffer(b""), 0
        if data is not None:
            pages = np.zeros(1, dtype=PAGE)
            self.size = header_kernels.open_dictionary(data, codec, pages)
            page = pages[0]
            if self.size < 0:
                raise error_for_code(self.size)
            if page["encoding"] not in _ENCODINGS:
                raise Undecodable
            if page["checksum"] != -1:
                verify_checksum(data, page)
            begin, num_bytes = (
                int(page["body_start"]),
                int(page["decompressed_size"]),
            )
            if codec and num_bytes:
                body = decompressor(codec)(data[begin:], num_bytes)
            elif num_bytes:
                # Copy the page, so that the large read buffer around it can be freed.
                body = pa.py_buffer(data[begin:].tobytes())
            if body.size != num_bytes:
                raise FragmentUnreadable("a page does not have the size it claims")
            if self.size * (leaf.width or 4) > body.size:
                raise FragmentUnreadable("a dictionary claims more values than it has bytes")
        self._body = body
        # The one page as kernels get it.
        self.page = np.zeros(1, dtype=PAGE)
        self.page["address"], self.page["size"] = body.address, body.size
        self.page["num_stored"] = self.size
        num_bytes = self.size * leaf.width
        # The offset of each string in the page, and one past the end. A length precedes each string
        # in PLAIN encoding, so the offsets are known only after a pass over all of them.
        self._text_starts = np.empty(0 if leaf.width else self.size + 1, dtype=np.uint32)
        if not leaf.width:
            num_bytes = value_kernels.text_starts(body.address, body.size, self._text_starts)
        # A page that understates its number of values would hide the remaining keys from a lookup.
        if num_bytes != body.size:
            raise FragmentUnreadable("the size of a dictionary does not fit its number of values")
        self._leaf = leaf
        # How often few keys were searched, and the values with their hash table, or None.
        self._num_searches = 0
        self._index: tuple[Any, ...] | None = None
        # The thread that makes the index acquires the lock, which is never released.
        self._has_no_index = Lock()
        # The description of the dictionary for `value_kernels.take_values`.
        self.kernel_args = body.address, self._text_starts.ctypes.data, self.size

    @property
    def num_bytes(self) -> int:
        """The bytes that the dictionary takes in memory, with its index."""
        num_bytes = self._body.size + self._text_starts.nbytes
        if self.size >= _MIN_INDEXED:
            # The index has a copy of the values.
            num_bytes += self._body.size + 8 * self.size + index_bytes(self.size)
        return num_bytes

    def texts(self, leaf: LeafType) -> pa.Array:
        """Return the values of a dictionary of strings."""
        starts = self._text_starts.astype(np.int64)
        # A length precedes each string.
        lengths = np.diff(starts) - _LENGTH_BYTES
        if lengths.sum() > MAX_INT32:
            raise Undecodable
        places = (starts[:-1] + self._body.address)[np.newaxis]
        texts = np.empty(lengths.sum(), dtype=np.uint8)
        offsets = np.empty((1, starts.size), dtype=np.int32)
        if value_kernels.copy_texts(places, lengths[np.newaxis], offsets, texts) < 0:
            raise FragmentUnreadable("values of a page lie outside it, or are missing")
        return text_array(leaf, offsets[0], texts, None)

    def find_keys(self, keys: KeySet) -> np.ndarray:
        """Return a uint8 mask of the values that are among the keys."""
        hits = np.zeros(self.size, dtype=np.uint8)
        is_large = self.size >= _MIN_INDEXED
        if is_large and keys.is_exact and keys.count * _ENTRIES_PER_KEY <= self.size:
            self._num_searches += 1
            # Threads that search at the same time may miss a count, and only one makes the index.
            is_due = self._num_searches >= _SEARCHES_BEFORE_INDEX
            if is_due and self._has_no_index.acquire(blocking=False):
                self._index = self._make_index()
            if self._index is not None:
                hits[keys.numbers_in(self._index)] = 1
                return hits
        status, entries = leaf_kernels.find_rows(
            self.page,
            self._leaf.width,
            -1,
            _NO_BYTES,
            keys.kernel_arguments,
            _NO_BYTES,
            False,
            np.zeros(1, dtype=np.int64),
            np.array([self.size]),
        )
        if status < 0:
            raise FragmentUnreadable("values of a page lie outside it")
        hits[entries] = 1
        return hits

    def _make_index(self) -> tuple[Any, ...] | None:
        """Return the values with a hash table of them, or None if some are equal."""
        leaf, body = self._leaf, np.frombuffer(self._body, dtype=np.uint8)
        if leaf.has_numbers:
            values = (body.view(f"u{leaf.width}").astype(np.uint64, copy=False),)
        elif leaf.width:
            values = body, np.arange(self.size + 1, dtype=np.int64) * leaf.width
        else:
            values = texts_of(self.texts(LeafType(pa.binary(), BYTE_ARRAY, 0, leaf.max_level)))
        index, num_distinct = index_values(values, self.size)
        # The hash table has only the first of equal values.
        return index if num_distinct == self.size else None
