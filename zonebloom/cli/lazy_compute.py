"""Import ``pyarrow.compute`` when a command first uses it.

The import takes as long as a lookup, and a lookup by key does not need it.
"""

from __future__ import annotations

import sys
import threading
from importlib import import_module
from types import ModuleType
from typing import Any

_NAME = "pyarrow.compute"


class _LazyModule(ModuleType):
    """A module that takes the names of the real one when it is first used."""

    def __init__(self, name: str):
        super().__init__(name)
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        # The import system asks for these names.
        if name.startswith("__"):
            raise AttributeError(name)
        with self._lock:
            if sys.modules.get(_NAME) is self:
                del sys.modules[_NAME]
            self.__dict__.update(vars(import_module(_NAME)))
        return self.__dict__[name] if name in self.__dict__ else getattr(import_module(_NAME), name)


def import_compute_lazily() -> None:
    """Let other modules import ``pyarrow.compute`` without loading it yet."""
    if _NAME not in sys.modules:
        sys.modules[_NAME] = _LazyModule(_NAME)
