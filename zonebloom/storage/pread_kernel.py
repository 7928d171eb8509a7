"""Do many short reads in one call of a kernel, with ``pread`` of the C library.

Windows has no such function. There, `RandomAccessFile` reads in Python and gives kernels no handle.
"""

from __future__ import annotations

import os

import numpy as np
from numba import int64, types, uint8, uint64

from zonebloom.sbbf.jit import kernel, readonly

if os.name == "nt":

    @kernel(int64(types.int32, uint64, uint64, int64))
    def _pread(handle, target, num_bytes, offset):
        """Read nothing."""
        return np.int64(0)

else:
    _pread = types.ExternalFunction("pread", int64(types.int32, uint64, uint64, int64))


@kernel(int64(int64, readonly(int64), readonly(int64), uint8[::1]))
def read_pieces(handle, offsets, sizes, out):
    """Read pieces of a file one after another into `out`, and return the number of bytes read.

    Bytes that cannot be read become zeros.
    """
    position = total = 0
    for i in range(offsets.shape[0]):
        stop = position + sizes[i]
        offset = offsets[i]
        if stop > out.shape[0]:
            break
        while position < stop:
            target = np.uint64(out.ctypes.data) + np.uint64(position)
            count = _pread(np.int32(handle), target, np.uint64(stop - position), offset)
            if count <= 0:
                break
            position += count
            offset += count
            total += count
        out[position:stop] = 0
        position = stop
    return total
