"""Which of the two ways of looking up is taken: NumPy until it pays to load the kernels."""

from __future__ import annotations


class NumpyBudget:
    """How many checks of a block NumPy may do before the kernels are loaded: the one choice."""

    def __init__(self, checks: int):
        self._checks = checks

    def spend(self, checks: int) -> bool:
        """Whether NumPy is to do so many checks; once it is not, it is no more."""
        self._checks -= checks
        return self._checks >= 0

    def end(self) -> None:
        """The kernels are loaded; said by `zonebloom.sbbf.blocks`."""
        self._checks = -1


# NumPy takes about as long for so many checks of a block as Numba takes to load.
NUMPY = NumpyBudget(1 << 20)
