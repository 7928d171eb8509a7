"""Many short reads in one call: ``pread`` of the C library, without Python in between."""

from __future__ import annotations

import numpy as np
from numba import int64, types, uint8, uint64

from zonebloom.sbbf.jit import kernel, readonly

_pread = types.ExternalFunction("pread", int64(types.int32, uint64, uint64, int64))


@kernel(int64(int64, readonly(int64), readonly(int64), uint8[::1]))
def read_pieces(handle, offsets, sizes, out):
    """Read pieces of a file in turn, zeros for what cannot be read; the number of bytes read."""
    at = total = 0
    for i in range(offsets.shape[0]):
        stop = at + sizes[i]
        offset = offsets[i]
        if stop > out.shape[0]:
            break
        while at < stop:
            target = np.uint64(out.ctypes.data) + np.uint64(at)
            count = _pread(np.int32(handle), target, np.uint64(stop - at), offset)
            if count <= 0:
                break
            at += count
            offset += count
            total += count
        out[at:stop] = 0
        at = stop
    return total
