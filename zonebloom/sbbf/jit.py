"""The one decorator every Numba kernel of zonebloom goes through.

Options and why:

``nogil``        kernels run in the threads of a ``ThreadPoolExecutor``.
``cache``        a process that finds the cache warm compiles nothing.
``error_model``  "numpy": no zero-division branch in the inner loops.
signatures       each kernel states the types it takes, so it is compiled when its
                 module is imported and never again; other types are an error.

Not ``parallel``: Numba's workqueue aborts the process when two threads enter it. Not
``fastmath``: nothing here is floating point.

Numba's cache can be corrupted by processes that write it at the same time, as Spark's
workers would, so compiling (and loading, which may turn into compiling) happens under one
lock between processes.
"""

from __future__ import annotations

import getpass
import os
import tempfile
from collections.abc import Callable
from typing import Any

import numba
import numba.extending
from filelock import FileLock


def _lock_path() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid()) if hasattr(os, "getuid") else "user"
    return os.path.join(tempfile.gettempdir(), f"zonebloom-compile-{user}.lock")


_LOCK = FileLock(_lock_path())


def readonly(dtype: Any) -> Any:
    """Type of a one-dimensional contiguous array a kernel only reads; a writable one fits too."""
    return numba.types.Array(dtype, 1, "C", readonly=True)


def kernel(*signatures: Any) -> Callable[[Callable[..., Any]], Any]:
    """Compile a function for the given signatures, or load it from the cache.

    Parameters
    ----------
    *signatures : Numba signatures
        Such as ``void(readonly(uint64), uint64[::1])``.

    Returns
    -------
    callable
        A decorator; the function it returns releases the GIL while it runs.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        with _LOCK:
            return numba.njit(
                list(signatures), nogil=True, cache=True, error_model="numpy", boundscheck=False
            )(function)

    return decorate


def intrinsic(function: Callable[..., Any]) -> Any:
    """Make a function of the compiler's own: it emits LLVM instructions where it is called."""
    return numba.extending.intrinsic(function)


def inlined(function: Callable[..., Any]) -> Any:
    """Mark a helper that only kernels call: LLVM inlines it, nothing of it is cached apart."""
    return numba.njit(inline="always", error_model="numpy")(function)
