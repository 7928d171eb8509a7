"""Choose the slots of hash tables in memory such that nobody can predict which keys collide.

The tables search slot after slot, so keys that were chosen to share one would make them quadratic.
"""

from __future__ import annotations

import secrets

import numpy as np

from zonebloom.sbbf.jit import linked
from zonebloom.sbbf.xxh64 import PRIME_1

# The secret of the process. Kernels get it as an argument: their machine code, which Numba keeps on
# the disk, would contain the value of a global. It is odd, so that multiplying loses no bits.
TABLE_SEED = np.uint64(secrets.randbits(64) | 1)


@linked
def slot_of(number, seed, table):
    """Return the first slot to search for a number, uint64. The table has a power of two slots."""
    # All bits of the number count: integers may differ in the low ones only, floats in the high.
    number *= seed
    number ^= number >> np.uint64(32)
    number = (number * PRIME_1) >> np.uint64(32)
    return np.int64(number & np.uint64(table.shape[0] - 1))
