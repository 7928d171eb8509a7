"""Dictionary pages, decompressed, and kept for the next lookup.

Source: Encodings.md (dictionary encoding) of the Parquet format.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import cached_property

import numpy as np
import pyarrow as pa

from zonebloom.errors import FragmentUnreadable
from zonebloom.storage.parquet import header_kernels, take_kernels
from zonebloom.storage.parquet.codecs import decompressor, refusal, verify
from zonebloom.storage.parquet.key_set import KeySet
from zonebloom.storage.parquet.leaf_type import LeafType, Undecodable

_PLAIN, _PLAIN_DICTIONARY = 0, 2
# Of all dictionaries that are kept.
MOST_BYTES = 256 << 20
_LENGTH_BYTES = 4


class Dictionary:
    """The values of a dictionary page; none where there is no page.

    Raises
    ------
    FragmentUnreadable
    Undecodable
    """

    def __init__(self, leaf: LeafType, codec: int, data: np.ndarray | None):
        self._width = leaf.width
        body, self.size = pa.py_buffer(b""), 0
        if data is not None:
            page = np.empty(header_kernels.PAGE_FIELDS, dtype=np.int64)
            self.size = header_kernels.open_dictionary(data, codec, page)
            if self.size < 0:
                raise refusal(self.size)
            if page[header_kernels.ENCODING] not in (_PLAIN, _PLAIN_DICTIONARY):
                raise Undecodable
            if page[header_kernels.CHECKSUM] != -1:
                verify(data, page)
            begin, num_bytes = int(page[header_kernels.BEGIN]), int(page[header_kernels.PLAIN_SIZE])
            if codec and num_bytes:
                body = decompressor(codec)(data[begin:], num_bytes)
            elif num_bytes:
                # A copy: of what was read with it nothing is kept.
                body = pa.py_buffer(data[begin:].tobytes())
            if body.size != num_bytes:
                raise FragmentUnreadable("a page does not have the size it claims")
            if self.size * (leaf.width or 4) > body.size:
                raise FragmentUnreadable("a dictionary claims more values than it has bytes")
        self._body = body
        place = np.array([body.address], dtype=np.uint64), np.array([body.size])
        self._page = *place, np.array([self.size]), np.array([0])
        num_bytes = self.size * leaf.width
        if self.size and not leaf.width:
            num_bytes = int(self._text_starts[-1]) - _LENGTH_BYTES
        # Of one that claims too few values, a key among the others would not be found.
        if num_bytes != body.size:
            raise FragmentUnreadable("a dictionary does not have the bytes of its values")

    @property
    def num_bytes(self) -> int:
        """Bytes it takes in memory."""
        return self._body.size + (0 if self._width else 4 * self.size + 4)

    def locate(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Address and length of some values, uint64 and int64."""
        base = np.uint64(self._body.address)
        if self._width:
            lengths = np.full(indices.size, self._width, dtype=np.int64)
            return base + (indices * self._width).astype(np.uint64), lengths
        starts = self._text_starts[indices]
        lengths = self._text_starts[indices + 1].astype(np.int64) - starts - _LENGTH_BYTES
        return base + starts, lengths

    @cached_property
    def _text_starts(self) -> np.ndarray:
        """Where each text begins, and where one more would, uint32: a length stands before each."""
        starts = np.empty(self.size, dtype=np.uint64), np.empty(self.size, dtype=np.int64)
        every = np.arange(self.size)
        if take_kernels.take_texts(*self._page, self._width, every, *starts) != self.size:
            raise FragmentUnreadable("a dictionary ends before its values")
        addresses, lengths = starts
        stop = addresses[-1:] + lengths[-1:].astype(np.uint64) + np.uint64(_LENGTH_BYTES)
        return (np.append(addresses, stop) - np.uint64(self._body.address)).astype(np.uint32)

    def hits(self, keys: KeySet) -> np.ndarray:
        """Which of the values are keys, uint8."""
        hits = np.zeros(self.size, dtype=np.uint8)
        hits[keys.find(*self._page)] = 1
        return hits


class Dictionaries:
    """The dictionaries read last, by what names a chunk for good."""

    def __init__(self, most_bytes: int = MOST_BYTES):
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._kept: OrderedDict[Hashable, Dictionary] = OrderedDict()
        self.num_bytes = 0

    def get(self, key: Hashable | None, read: Callable[[], Dictionary]) -> Dictionary:
        """The dictionary of a chunk, read if it is not kept; without a key it never is."""
        with self._lock:
            dictionary = self._kept.get(key)
            if dictionary is not None:
                self._kept.move_to_end(key)
                return dictionary
        dictionary = read()
        if key is None:
            return dictionary
        with self._lock:
            if key not in self._kept:
                self._kept[key] = dictionary
                self.num_bytes += dictionary.num_bytes
            while self.num_bytes > self._most_bytes:
                self.num_bytes -= self._kept.popitem(last=False)[1].num_bytes
        return dictionary


DICTIONARIES = Dictionaries()
