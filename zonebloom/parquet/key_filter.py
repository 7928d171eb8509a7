"""A Bloom filter of keys, for so many keys that only their filter fits the processor's cache."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from zonebloom.parquet.filter_kernels import find_hashed
from zonebloom.parquet.key_set import StoredKeys
from zonebloom.parquet.leaf_type import LeafType
from zonebloom.sbbf import blocks
from zonebloom.sbbf.hashing import hash_array
from zonebloom.sbbf.sizing import size_for

# One value in 500 is decoded and compared needlessly.
_PROBABILITY = 0.002
# A filter sized for more keys would be over 128 MiB. More keys share a filter of this size, and
# more values pass it.
_MAX_NDV = 1 << 26


class KeyFilter(StoredKeys):
    """Keys in a Bloom filter, so that a value that passes is only a candidate.

    Parameters
    ----------
    leaf : LeafType
    keys : pyarrow.Array
        Keys whose bytes are those that the leaf stores, without nulls.
    """

    is_exact: ClassVar[bool] = False

    def __init__(self, leaf: LeafType, keys: pa.Array):
        super().__init__(leaf)
        num_bytes = size_for(min(len(keys), _MAX_NDV), _PROBABILITY, "exact")
        self._words = np.zeros(num_bytes // 4, dtype=np.uint32)
        blocks.insert(self._words, hash_array(keys).values)

    def _find(self, pages: tuple[Any, ...], positions: np.ndarray) -> int:
        return find_hashed(*pages, self._words, positions)
