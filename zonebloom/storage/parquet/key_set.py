"""Keys as a leaf stores them, and where they are among stored values."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from zonebloom.arrays import distinct, empty
from zonebloom.errors import FragmentUnreadable
from zonebloom.sbbf.hashing import value_type
from zonebloom.sbbf.xxh64 import hash_offsets
from zonebloom.storage.parquet import find_kernels
from zonebloom.storage.parquet.leaf_type import (
    BOOLEAN,
    FIXED,
    INT32,
    INT96,
    LeafType,
    Undecodable,
)

_NUMBERS = (4, 8)


class Keys(ABC):
    """Some keys of a leaf.

    Raises
    ------
    Undecodable
        The leaf stores its values in another form.
    """

    # Whether what is found are keys, and not only may be.
    is_exact: ClassVar[bool] = True

    def __init__(self, leaf: LeafType):
        kind = value_type(leaf.arrow_type)
        if leaf.physical_type in (BOOLEAN, INT96) or pa.types.is_decimal(kind):
            raise Undecodable
        if leaf.physical_type == INT32 and kind.bit_width < 32:
            # What the higher bytes of an 8 or 16 bit value are, writers may decide.
            raise Undecodable
        self._width = leaf.width

    def find(
        self,
        addresses: np.ndarray,
        sizes: np.ndarray,
        counts: np.ndarray,
        bases: np.ndarray,
        *,
        room: int,
    ) -> np.ndarray:
        """Positions of the keys among values of pages, ascending; see `find_kernels`.

        ``room`` is more than there are values.
        """
        positions = empty(room, np.int64)
        hits = self._find((addresses, sizes, counts, bases, self._width), positions)
        if hits < 0:
            raise FragmentUnreadable("values of a page lie outside it")
        return positions[:hits]

    @abstractmethod
    def _find(self, pages: tuple[Any, ...], positions: np.ndarray) -> int:
        """Fill in the positions; how many, or -1."""


class KeySet(Keys):
    """Keys held against values exactly.

    Parameters
    ----------
    leaf : LeafType
    forms : list of bytes, or pyarrow.Array
        The keys as Arrow stores them, little-endian (`values.literal.stored_bytes`); or an array
        of the leaf's own bytes, without nulls.
    """

    def __init__(self, leaf: LeafType, forms: list[bytes] | pa.Array):
        super().__init__(leaf)
        self._is_number = leaf.width in _NUMBERS and leaf.physical_type != FIXED
        if self._is_number:
            self._numbers = _numbers(leaf, forms)
            self._count = self._numbers.size
        else:
            self._bytes, self._starts = _spans(forms)
            self._count = self._starts.size - 1
        # A hash table of the keys, made when it is first needed; one key is compared as it is.
        self._table: tuple[np.ndarray, np.ndarray] | None = None
        if self._count == 1:
            self._table = np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.uint64)

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
                place = self._bytes.ctypes.data, self._starts
                hash_offsets(*place, hashes)
                find_kernels.samples(*place, samples)
            size = (2 * self._count).bit_length()
            table = np.zeros(1 << size, dtype=np.int64)
            bitmap = np.zeros(1 << size, dtype=np.uint64)
            find_kernels.hash_table(hashes, samples, table, bitmap)
            self._table = table, bitmap
        return self._table


def _numbers(leaf: LeafType, forms: list[bytes] | pa.Array) -> np.ndarray:
    """Keys as Parquet's integers of 4 or 8 bytes, uint64, each once."""
    kind = value_type(leaf.arrow_type)
    width = kind.byte_width
    if isinstance(forms, list):
        stored = np.frombuffer(b"".join(forms), dtype=f"u{width}")
    else:
        stored = np.frombuffer(forms.buffers()[1] or b"", dtype=f"u{width}")
        stored = stored[forms.offset :][: len(forms)]
    stored = stored.astype(np.uint64)
    return stored if stored.size == 1 else distinct(stored)


def _spans(forms: list[bytes] | pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Keys of any length, each once: their bytes, and where in those each begins, int64."""
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
