"""Decode dictionary pages, and cache them for the next lookup.

Source: Encodings.md (dictionary encoding) of the Parquet format.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable

import numpy as np
import pyarrow as pa

from zonebloom.errors import FragmentUnreadable
from zonebloom.parquet import header_kernels, value_kernels
from zonebloom.parquet.codecs import decompressor, error_for_code, verify_checksum
from zonebloom.parquet.key_tests import KeySet
from zonebloom.parquet.leaf_type import LeafType, Undecodable

_ENCODINGS = header_kernels.PLAIN, header_kernels.PLAIN_DICTIONARY
# The most bytes of all cached dictionaries together.
MAX_CACHED_BYTES = 256 << 20


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
            page = np.empty(header_kernels.PAGE_FIELDS, dtype=np.int64)
            self.size = header_kernels.open_dictionary(data, codec, page)
            if self.size < 0:
                raise error_for_code(self.size)
            if page[header_kernels.ENCODING] not in _ENCODINGS:
                raise Undecodable
            if page[header_kernels.CHECKSUM] != -1:
                verify_checksum(data, page)
            begin, num_bytes = (
                int(page[header_kernels.BODY_START]),
                int(page[header_kernels.DECOMPRESSED_SIZE]),
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
        # The one page as the arguments of `value_kernels` describe it.
        self._page = [np.array([number]) for number in (body.address, body.size, self.size, 0)]
        num_bytes = self.size * leaf.width
        # The offset of each string in the page, and one past the end. A length precedes each string
        # in PLAIN encoding, so the offsets are known only after a pass over all of them.
        self._text_starts = np.empty(0 if leaf.width else self.size + 1, dtype=np.uint32)
        if not leaf.width:
            num_bytes = value_kernels.text_starts(body.address, body.size, self._text_starts)
        # A page that understates its number of values would hide the remaining keys from a lookup.
        if num_bytes != body.size:
            raise FragmentUnreadable("the size of a dictionary does not fit its number of values")
        # The description of the dictionary for `value_kernels.take_values`.
        self.kernel_args = body.address, self._text_starts.ctypes.data, self.size

    @property
    def num_bytes(self) -> int:
        """The bytes that the dictionary takes in memory."""
        return self._body.size + self._text_starts.nbytes

    def find_keys(self, keys: KeySet) -> np.ndarray:
        """Return a uint8 mask of the values that are among the keys."""
        hits = np.zeros(self.size, dtype=np.uint8)
        hits[keys.find(*self._page, capacity=self.size + 1)] = 1
        return hits


class DictionaryCache:
    """A cache of the least recently used dictionaries, up to a number of bytes.

    A key identifies one column chunk of one version of a file, so entries never become stale.
    """

    def __init__(self, max_bytes: int = MAX_CACHED_BYTES):
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._cached: OrderedDict[Hashable, Dictionary] = OrderedDict()
        self.num_bytes = 0

    def get(self, key: Hashable | None, read: Callable[[], Dictionary]) -> Dictionary:
        """Return the cached dictionary, or read and cache it.

        If ``key`` is None, do not cache it.
        """
        with self._lock:
            dictionary = self._cached.get(key)
            if dictionary is not None:
                self._cached.move_to_end(key)
                return dictionary
        dictionary = read()
        if key is None:
            return dictionary
        with self._lock:
            if key not in self._cached:
                self._cached[key] = dictionary
                self.num_bytes += dictionary.num_bytes
            while self.num_bytes > self._max_bytes:
                self.num_bytes -= self._cached.popitem(last=False)[1].num_bytes
        return dictionary


DICTIONARY_CACHE = DictionaryCache()
