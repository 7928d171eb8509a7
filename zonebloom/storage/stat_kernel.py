"""Look at many local files in one call of a kernel, with ``statx`` of the C library of Linux."""

from __future__ import annotations

import numpy as np
from numba import int32, int64, types, uint8, uint32, uint64

from zonebloom.sbbf.addresses import address_of
from zonebloom.sbbf.jit import kernel, linked, readonly

# Reading a path relative to an open folder takes half as long as reading the whole path.
_open = types.ExternalFunction("open", int32(uint64, int32))
_close = types.ExternalFunction("close", int32(int32))
_statx = types.ExternalFunction("statx", int32(int32, uint64, int32, uint32, uint64))

# Constants of Linux.
_OPEN_FOLDER = 0o10000000 | 0o2000000  # O_PATH | O_CLOEXEC
_WORKING_FOLDER = -100  # AT_FDCWD
_WANTED_FIELDS = 0x3C0  # STATX_MTIME | STATX_CTIME | STATX_INO | STATX_SIZE, and the type with it
# Positions in struct statx, in units of 8 bytes.
_INODE, _SIZE, _CTIME, _MTIME = 4, 5, 12, 14
_SLASH = 47
_MAX_PATH_BYTES = 4096


@linked
def _copy(text, start, path, begin, stop):
    """Copy the characters from ``begin`` to ``stop`` of the path that begins at ``start``."""
    # The assignment of a slice takes seconds to compile, because Numba compiles its errors, too.
    for k in range(begin, stop):
        path[k] = text[start + k]


@kernel(int64(readonly(uint8), readonly(int32), int64[:, ::1]))
def stat_paths(text, offsets, states):
    """Write the size, mtime, ctime and inode of each file to a row of `states`.

    Path i is ``text[offsets[i] : offsets[i + 1]]``. A row of a file that cannot be looked at gets
    the size -1. Return the number of such files.
    """
    num_failed = 0
    path = np.zeros(_MAX_PATH_BYTES, dtype=np.uint8)
    fields = np.zeros(32, dtype=np.int64)
    path_address = address_of(path)
    fields_address = address_of(fields)
    handle = np.int32(-1)
    # The path of the folder that is open, with its slash at the end.
    folder_start = folder_size = 0
    for i in range(offsets.shape[0] - 1):
        start, size = offsets[i], offsets[i + 1] - offsets[i]
        states[i, 0] = -1
        if size >= _MAX_PATH_BYTES:
            num_failed += 1
            continue
        name = size
        while name > 0 and text[start + name - 1] != _SLASH:
            name -= 1
        is_same_folder = handle >= 0 and name == folder_size
        if is_same_folder:
            for k in range(name):
                if text[start + k] != text[folder_start + k]:
                    is_same_folder = False
                    break
        if not is_same_folder:
            if handle >= 0:
                _close(handle)
                handle = np.int32(-1)
            _copy(text, start, path, 0, name)
            path[name] = 0
            if name > 0:
                handle = _open(path_address, np.int32(_OPEN_FOLDER))
            folder_start, folder_size = start, name
        _copy(text, start, path, name, size)
        path[size] = 0
        base, address = np.int32(_WORKING_FOLDER), path_address
        if handle >= 0:
            base, address = handle, path_address + np.uint64(name)
        elif name > 0:
            _copy(text, start, path, 0, name)
        if _statx(base, address, np.int32(0), np.uint32(_WANTED_FIELDS), fields_address) != 0:
            num_failed += 1
            continue
        states[i, 0] = fields[_SIZE]
        states[i, 1] = fields[_MTIME] * 1_000_000_000 + (fields[_MTIME + 1] & 0xFFFFFFFF)
        states[i, 2] = fields[_CTIME] * 1_000_000_000 + (fields[_CTIME + 1] & 0xFFFFFFFF)
        states[i, 3] = fields[_INODE]
    if handle >= 0:
        _close(handle)
    return num_failed
