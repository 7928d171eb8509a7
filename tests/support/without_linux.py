"""A plugin that removes what other systems lack: ``pytest -p tests.support.without_linux``."""

from __future__ import annotations

import os
import sys

# Functions and flags of `os` that one of the two systems does not have.
for _name in (
    *("O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC"),
    *("pread", "preadv", "pwrite", "pwritev", "sendfile", "posix_fadvise", "posix_fallocate"),
    *("POSIX_FADV_RANDOM", "POSIX_FADV_WILLNEED", "POSIX_FADV_DONTNEED", "POSIX_FADV_SEQUENTIAL"),
    *("sched_getaffinity", "register_at_fork", "link", "statvfs", "fdatasync"),
):
    if hasattr(os, _name):
        delattr(os, _name)
for _name in ("fcntl", "resource"):
    sys.modules[_name] = None  # type: ignore[assignment]
