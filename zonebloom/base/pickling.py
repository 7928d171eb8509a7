"""Mixins for objects that do not pickle: those of one process, and those with keys in clear."""

from __future__ import annotations

import sys
from abc import abstractmethod
from typing import Any, Never, Self

from zonebloom.errors import NotPicklable


class ProcessBound:
    """Mixin for objects that are bound to open files of this process, such as plans.

    A copy is the object itself, because these objects are immutable.
    """

    __slots__ = ()

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> Never:
        raise NotPicklable(
            f"{type(self).__name__} objects belong to the process that made them and do not "
            "pickle; pickle the dataset, and call its methods in the other process"
        )


class KeyHolder:
    """Mixin for objects that pickle only if they find their keys by an importable function.

    The pickle then has the name of the function. `zonebloom.spark.jobs.pickle_for_workers` alone
    pickles keys in clear, because the tasks of a build on Spark need them.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def holds_keys(self) -> bool:
        """Return whether a pickle of this object could contain keys in clear."""

    @abstractmethod
    def reduce_with_keys(self) -> tuple[Any, ...]:
        """Return what `__reduce__` returns, with all keys."""

    def __reduce__(self) -> tuple[Any, ...]:
        if self.holds_keys:
            name = type(self).__name__
            raise NotPicklable(
                f"zb.{name} holds keys in clear, or a function that cannot be imported and may "
                "hold some, so neither it nor its dataset pickles; give it a function of an "
                "importable module that finds the keys, or open the dataset with zb.dataset(...) "
                "in the process that uses it"
            )
        return self.reduce_with_keys()

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        # A copy stays in the process, and these objects are immutable.
        return self


def is_importable(function: object) -> bool:
    """Return whether every pickler pickles a function or class by its name.

    Cloudpickle pickles what it cannot import by its contents, and all of ``__main__``.
    """
    module_name, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if not isinstance(module_name, str) or module_name == "__main__":
        return False
    found: Any = sys.modules.get(module_name)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found is function
