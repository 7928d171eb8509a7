"""The one decorator every Numba kernel of zonebloom goes through.

Not ``parallel``: Numba's workqueue aborts the process when two threads enter it. Each kernel states
its types, so it is compiled when its module is imported and never again. Processes that write
Numba's cache at the same time can corrupt it: compiling and loading happens under one lock between
the processes of a user. Who does not get it in time compiles for itself and leaves the cache alone.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numba
import numba.extending
import xxhash
from filelock import BaseFileLock, FileLock, Timeout

from zonebloom.errors import ZoneBloomWarning

# Of each installation its own, as their caches are: those of other environments do not wait.
LOCK_NAME = f"compile-{xxhash.xxh64_hexdigest(os.path.abspath(__file__).encode())}.lock"


def _is_private(folder: str) -> bool:
    """Whether a folder is there, made if need be, that no other user can put anything into."""
    try:
        os.makedirs(os.path.dirname(folder), mode=0o700, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        # Not of what a link leads to: somebody else may have put it there.
        status = os.lstat(folder)
    except OSError:
        return False
    if not stat.S_ISDIR(status.st_mode) or not os.access(folder, os.W_OK | os.X_OK):
        return False
    return os.name != "posix" or (status.st_uid == os.geteuid() and not status.st_mode & 0o022)


def _lock_path() -> str | None:
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    user = str(os.geteuid()) if os.name == "posix" else "user"
    folders = (f"{cache}/zonebloom", f"{tempfile.gettempdir()}/zonebloom-{user}")
    return next((os.path.join(f, LOCK_NAME) for f in folders if _is_private(f)), None)


class CacheLock:
    """The lock on Numba's cache, between processes and threads."""

    def __init__(self) -> None:
        # Far longer than any kernel takes to compile.
        self.seconds = 60.0
        self.path = _lock_path()
        self._is_given_up = self.path is None

    @contextlib.contextmanager
    def hold(self) -> Iterator[bool]:
        """Hold the lock, or do not: the cache may be used only where that is true."""
        lock = self._acquired()
        with lock or contextlib.nullcontext():
            yield lock is not None

    def _acquired(self) -> BaseFileLock | None:
        if self.path is None or self._is_given_up:
            return None
        # A new one each time: a process that was forked may not use those of before.
        lock = FileLock(self.path)
        try:
            lock.acquire(timeout=self.seconds)
        except Timeout:
            warnings.warn(
                f"another process has held {self.path} for {self.seconds:g} seconds, so kernels "
                "are compiled for this process alone; end that process if it hangs",
                ZoneBloomWarning,
                stacklevel=2,
            )
        except (OSError, NotImplementedError):
            # A file system without locks.
            pass
        else:
            return lock
        # The next kernel does not wait again.
        self._is_given_up = True
        return None


LOCK = CacheLock()


def readonly(dtype: Any, dimensions: int = 1) -> Any:
    """Type of a contiguous array that a kernel only reads; a writable one fits too."""
    return numba.types.Array(dtype, dimensions, "C", readonly=True)


def kernel(*signatures: Any) -> Callable[[Callable[..., Any]], Any]:
    """Compile a function for signatures such as ``void(readonly(uint64), uint64[::1])``."""

    def decorate(function: Callable[..., Any]) -> Any:
        with LOCK.hold() as cache:
            return numba.njit(
                list(signatures), nogil=True, cache=cache, error_model="numpy", boundscheck=False
            )(function)

    return decorate


# Makes a function of the compiler's own: it emits LLVM instructions where it is called.
intrinsic: Any = numba.extending.intrinsic


def inlined(function: Callable[..., Any]) -> Any:
    """A helper that only kernels call: LLVM inlines it, nothing of it is cached apart."""
    return numba.njit(inline="always", error_model="numpy")(function)
