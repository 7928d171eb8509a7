"""Keys so many that the processor's cache does not hold them: a filter of them, which it does."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from zonebloom.sbbf import blocks
from zonebloom.sbbf.hashing import hash_array
from zonebloom.sbbf.sizing import size_for
from zonebloom.storage.parquet.filter_kernels import find_hashed
from zonebloom.storage.parquet.key_set import Keys
from zonebloom.storage.parquet.leaf_type import LeafType

# A value in five hundred is decoded in vain.
_PROBABILITY = 0.002
# More would need a filter over 128 MiB: one of these is fuller.
_MOST_SIZED = 1 << 26


class KeyFilter(Keys):
    """Values that may be keys.

    Parameters
    ----------
    leaf : LeafType
    keys : pyarrow.Array
        Of the leaf's own bytes, without nulls.
    """

    is_exact: ClassVar[bool] = False

    def __init__(self, leaf: LeafType, keys: pa.Array):
        super().__init__(leaf)
        num_bytes = size_for(min(len(keys), _MOST_SIZED), _PROBABILITY, "exact")
        self._words = np.zeros(num_bytes // 4, dtype=np.uint32)
        blocks.insert(self._words, hash_array(keys).values)

    def _find(self, pages: tuple[Any, ...], positions: np.ndarray) -> int:
        return find_hashed(*pages, self._words, positions)
