"""Keys in the form in which a leaf stores them, and the search for them in pages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from zonebloom.base.arrays import allocate_array, distinct_numbers
from zonebloom.errors import FragmentUnreadable
from zonebloom.parquet import find_kernels
from zonebloom.parquet.leaf_type import FIXED_LEN_BYTE_ARRAY, LeafType, Undecodable
from zonebloom.sbbf.xxh64 import hash_offsets
from zonebloom.values.normal_types import hashed_type

_NUMBERS = (4, 8)
_NO_TABLE = np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.uint64)


class StoredKeys(ABC):
    """Base class of keys that are searched among the stored values of a leaf.

    Raises
    ------
    Undecodable
        If the leaf stores other bytes than Arrow.
    """

    # True if each value that is found is a key, and not only a candidate.
    is_exact: ClassVar[bool] = True

    def __init__(self, leaf: LeafType):
        if not leaf.has_arrow_bytes:
            raise Undecodable
        self._width = leaf.width

    def find(
        self,
        addresses: np.ndarray,
        sizes: np.ndarray,
        counts: np.ndarray,
        first_positions: np.ndarray,
        *,
        capacity: int,
    ) -> np.ndarray:
        """Return the positions of the keys among the values of pages, ascending.

        The first four parameters are those of `find_kernels`. ``capacity`` is more than the number
        of values.
        """
        positions = allocate_array(capacity, np.int64)
        hits = self._find((addresses, sizes, counts, first_positions, self._width), positions)
        if hits < 0:
            raise FragmentUnreadable("values of a page lie outside it")
        return positions[:hits]

    @abstractmethod
    def _find(self, pages: tuple[Any, ...], positions: np.ndarray) -> int:
        """Fill in the positions. Return their number, or -1."""


class KeySet(StoredKeys):
    """Keys that are compared with the stored values exactly.

    Parameters
    ----------
    leaf : LeafType
    forms : list of bytes, or pyarrow.Array
        The keys as Arrow stores them, little-endian (`values.literal.stored_bytes`), or an array
        with the bytes of the leaf's own type, without nulls.
    """

    def __init__(self, leaf: LeafType, forms: list[bytes] | pa.Array):
        super().__init__(leaf)
        self._is_number = leaf.width in _NUMBERS and leaf.physical_type != FIXED_LEN_BYTE_ARRAY
        if self._is_number:
            self._numbers = _numbers(leaf, forms)
            self._count = self._numbers.size
        else:
            self._bytes, self._starts = _spans(forms)
            self._count = self._starts.size - 1
        # The hash table of the keys is built when it is first needed. A single key needs none.
        self._table = _NO_TABLE if self._count == 1 else None

    def _find(self, pages: tuple[Any, ...], positions: np.ndarray) -> int:
        if not self._count:
            return 0
        if self._is_number:
            return find_kernels.find_numbers(*pages, self._numbers, *self._slots(), positions)
        keys = self._bytes, self._starts, *self._slots()
        return find_kernels.find_texts(*pages, *keys, positions)

    def _slots(self) -> tuple[np.ndarray, np.ndarray]:
        if self._table is None:
            if self._is_number:
                hashes = samples = self._numbers
            else:
                hashes, samples = np.empty((2, self._count), dtype=np.uint64)
                strings = self._bytes.ctypes.data, self._starts
                hash_offsets(*strings, hashes)
                find_kernels.sample_texts(*strings, samples)
            size = (2 * self._count).bit_length()
            table = np.zeros(1 << size, dtype=np.int64)
            bitmap = np.zeros(1 << size, dtype=np.uint64)
            find_kernels.fill_hash_table(hashes, samples, table, bitmap)
            self._table = table, bitmap
        return self._table


def _numbers(leaf: LeafType, forms: list[bytes] | pa.Array) -> np.ndarray:
    """Return the distinct keys as Parquet stores integers of 4 or 8 bytes, widened to uint64."""
    kind = hashed_type(leaf.arrow_type)
    width = kind.byte_width
    if isinstance(forms, list):
        stored = np.frombuffer(b"".join(forms), dtype=f"u{width}")
    else:
        stored = np.frombuffer(forms.buffers()[1] or b"", dtype=f"u{width}")
        stored = stored[forms.offset :][: len(forms)]
    stored = stored.astype(np.uint64)
    return stored if stored.size == 1 else distinct_numbers(stored)


def _spans(forms: list[bytes] | pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return the bytes of the distinct keys, one after another, and their offsets, int64."""
    if isinstance(forms, list):
        if len(forms) == 1:
            return np.frombuffer(forms[0], dtype=np.uint8), np.array([0, len(forms[0])])
        spans = pa.array(forms, pa.large_binary()).unique()
    else:
        spans = forms.cast(pa.large_binary()).unique()
    if not len(spans):
        return np.empty(0, dtype=np.uint8), np.zeros(1, dtype=np.int64)
    _, offsets, data = spans.buffers()
    starts = np.frombuffer(offsets, dtype=np.int64, count=len(spans) + 1)
    return np.frombuffer(data or b"", dtype=np.uint8)[: starts[-1]], starts
