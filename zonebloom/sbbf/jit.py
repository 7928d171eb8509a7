"""The one decorator that compiles every Numba kernel of zonebloom.

Kernels are never ``parallel``: Numba's workqueue aborts the process when two threads enter it. Each
kernel states its types, so it is compiled once, when its module is imported. Processes that write
the same file of Numba's cache at once can corrupt it, so the processes of a user compile and load
the kernels of a module under its lock. A process that does not get a lock in time compiles for
itself and does not use the cache.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import numba
import numba.extending
import xxhash
from numba.core import event

from zonebloom.base.notices import warn
from zonebloom.errors import ZoneBloomWarning
from zonebloom.sbbf.kernel_loader import KERNELS, path_in_cache

try:
    import fcntl
except ImportError:
    fcntl: Any = None
try:
    # Windows has this module in place of the other.
    import msvcrt
except ImportError:
    msvcrt: Any = None

# A process that waits for the lock looks this often whether it is free.
_POLL_SECONDS = 0.02
# Each installation has its own cache, so it has its own locks: other environments need not wait.
LOCK_PREFIX = f"compile-{xxhash.xxh64_hexdigest(os.path.abspath(__file__).encode())}-"


class CacheLocks:
    """The locks on Numba's cache, one for each module of kernels, for processes and threads.

    The package filelock takes long to import, and importing it fails while another thread forks the
    process.
    """

    def __init__(self) -> None:
        # The longest wait in seconds. No kernel takes nearly as long to compile.
        self.timeout_seconds = 60.0
        self.prefix = path_in_cache(LOCK_PREFIX)
        self._is_disabled = self.prefix is None or (fcntl is None and msvcrt is None)

    @contextlib.contextmanager
    def hold(self, module: str) -> Iterator[bool]:
        """Try to hold the lock of a module. Yield whether it is held.

        Only then may the cache be used.
        """
        handle = self._acquire(f"{self.prefix}{module}.lock")
        try:
            yield handle is not None
        finally:
            if handle is not None:
                _unlock(handle)
                os.close(handle)

    def _acquire(self, path: str) -> int | None:
        """Return the handle of the locked file, or None if the cache must not be used."""
        if self._is_disabled:
            return None
        try:
            # Each lock needs a handle of its own: a forked process shares those of its parent.
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError:
            self._is_disabled = True
            return None
        is_locked = False
        try:
            is_locked = self._wait_for(handle, path)
        finally:
            if not is_locked:
                os.close(handle)
        if is_locked:
            return handle
        # Let the next kernel not wait again.
        self._is_disabled = True
        return None

    def _wait_for(self, handle: int, path: str) -> bool:
        """Lock a file. Return False, perhaps after a warning, if that is not possible."""
        end = time.monotonic() + self.timeout_seconds
        while True:
            KERNELS.stop_if_asked()
            try:
                _lock(handle)
            except BlockingIOError:
                if time.monotonic() > end:
                    break
            except OSError:
                # The file system has no locks.
                return False
            else:
                return True
            time.sleep(_POLL_SECONDS)
        warn(
            ZoneBloomWarning(
                f"another process has held {path} for {self.timeout_seconds:g} seconds, "
                "so kernels are compiled for this process alone; end that process if it hangs"
            )
        )
        return False


def _lock(handle: int) -> None:
    """Lock an open file. Raise BlockingIOError if it is locked."""
    if fcntl is not None:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return
    try:
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
    except PermissionError:
        raise BlockingIOError from None


def _unlock(handle: int) -> None:
    # Closing is not enough, because a forked process may have a copy of the handle.
    if fcntl is not None:
        fcntl.flock(handle, fcntl.LOCK_UN)
    else:
        msvcrt.locking(handle, msvcrt.LK_UNLCK, 1)


LOCKS = CacheLocks()


class _StopListener(event.Listener):
    """Lets the background thread stop before each pass of the compiler."""

    def on_start(self, event: event.Event) -> None:
        KERNELS.stop_if_asked()

    def on_end(self, event: event.Event) -> None:
        pass


_STOP_LISTENER = _StopListener()


def readonly(dtype: Any, dimensions: int = 1) -> Any:
    """Return the type of a contiguous array that a kernel only reads. Writable arrays fit too."""
    return numba.types.Array(dtype, dimensions, "C", readonly=True)


def kernel(*signatures: Any) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator that compiles a function for the given signatures.

    A signature looks like ``void(readonly(uint64), uint64[::1])``.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        lock = LOCKS.hold(function.__module__)
        with lock as cache, event.install_listener("numba:run_pass", _STOP_LISTENER):
            return numba.njit(
                list(signatures), nogil=True, cache=cache, error_model="numpy", boundscheck=False
            )(function)

    return decorate


# Decorator for functions that emit LLVM instructions at the place of their call.
intrinsic: Any = numba.extending.intrinsic


def linked(function: Callable[..., Any]) -> Any:
    """Compile a helper that only kernels call, once for all of them. LLVM inlines its code.

    Numba's own inlining would copy the helper into each kernel before the types of its variables
    are found, which takes longer to compile.
    """
    # Only kernels call the helper, so it needs no entry points for Python and C.
    options: Any = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return numba.njit(forceinline=True, error_model="numpy", **options)(function)
