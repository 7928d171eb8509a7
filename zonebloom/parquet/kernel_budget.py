"""Decide whether pages are read by PyArrow or by compiled kernels, which take long to load.

Loading the kernels of an installation for the first time compiles them, which takes much longer. A
file in the user's cache folder marks that they were compiled.
"""

from __future__ import annotations

import contextlib
import os
from functools import cached_property

import xxhash

from zonebloom.sbbf.cache_folder import path_in_cache
from zonebloom.sbbf.numpy_budget import NUMPY, NumpyBudget

# PyArrow reads pages for this many block checks, the unit of `NUMPY`, in about half of the time
# that the compilation of the kernels takes.
_CHECKS_BEFORE_COMPILATION = 1 << 23


class KernelBudget:
    """The work that PyArrow may still do before the kernels that read pages are loaded."""

    @cached_property
    def _before_compilation(self) -> NumpyBudget:
        marker = _marker_path()
        # Without a marker no process can tell, so the kernels are loaded as if they were compiled.
        is_compiled = marker is None or os.path.exists(marker)
        return NumpyBudget(-1 if is_compiled else _CHECKS_BEFORE_COMPILATION)

    def spend(self, checks: int) -> bool:
        """Take work from the budget. Return whether PyArrow should do it."""
        return self._before_compilation.spend(checks) or NUMPY.spend(checks)

    def end(self) -> None:
        """Set the budget to nothing. `leaf_reader` calls this when it is loaded."""
        self._before_compilation.end()
        NUMPY.end()
        marker = _marker_path()
        if marker is not None:
            with contextlib.suppress(OSError):
                open(marker, "xb").close()


def _marker_path() -> str | None:
    """Return the path of the marker that the kernels in Numba's cache are compiled.

    Each installation and each cache has its own. Return None if no marker can be kept.
    """
    kernels = os.path.join(os.path.dirname(os.path.abspath(__file__)), "value_kernels.py")
    try:
        status = os.stat(kernels)
    except OSError:
        # The package is in an archive, so Numba has no cache.
        return None
    parts = (kernels, status.st_mtime_ns, status.st_ino, os.environ.get("NUMBA_CACHE_DIR"))
    return path_in_cache(f"compiled-{xxhash.xxh64_hexdigest(repr(parts).encode())}")


KERNELS = KernelBudget()
