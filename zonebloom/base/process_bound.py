"""`ProcessBound`, for objects that do not pickle because they belong to one process."""

from __future__ import annotations

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
