"""A plugin that removes what other systems lack: ``pytest -p tests.support.without_linux``."""

from __future__ import annotations

import fcntl
import os

# It takes a module `msvcrt` for Windows, so import it before there is one.
import subprocess  # noqa: F401
import sys
import types

# Functions and flags of `os` that one of the two systems does not have.
for _name in (
    *("O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC"),
    *("pread", "preadv", "pwrite", "pwritev", "sendfile", "posix_fadvise", "posix_fallocate"),
    *("POSIX_FADV_RANDOM", "POSIX_FADV_WILLNEED", "POSIX_FADV_DONTNEED", "POSIX_FADV_SEQUENTIAL"),
    *("sched_getaffinity", "register_at_fork", "link", "statvfs", "fdatasync"),
):
    if hasattr(os, _name):
        delattr(os, _name)


def _locking(handle: int, mode: int, num_bytes: int) -> None:
    try:
        fcntl.flock(handle, mode)
    except BlockingIOError:
        raise PermissionError from None


# The locks of Windows. Without any, each process would compile all kernels.
_locks = types.ModuleType("msvcrt")
_locks.locking = _locking
_locks.LK_NBLCK, _locks.LK_UNLCK = fcntl.LOCK_EX | fcntl.LOCK_NB, fcntl.LOCK_UN
sys.modules["msvcrt"] = _locks
for _name in ("fcntl", "resource"):
    sys.modules[_name] = None  # type: ignore[assignment]
