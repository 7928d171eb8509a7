"""Decide whether lookups use NumPy or the compiled kernels, which take long to load."""

from __future__ import annotations


class NumpyBudget:
    """The number of block checks that NumPy may still do before the kernels are loaded."""

    def __init__(self, checks: int):
        self._checks = checks

    def spend(self, checks: int) -> bool:
        """Take checks from the budget. Return whether it sufficed; once used up, it never does."""
        self._checks -= checks
        return self._checks >= 0

    def end(self) -> None:
        """Set the budget to nothing. `zonebloom.sbbf.blocks` calls this when it is loaded."""
        self._checks = -1


# NumPy does this many block checks in about the time that Numba takes to load.
NUMPY = NumpyBudget(1 << 20)
