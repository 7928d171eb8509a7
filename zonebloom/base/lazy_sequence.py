"""A sequence that makes its items late."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

ItemType = TypeVar("ItemType")


class LazySequence(Sequence[ItemType], Generic[ItemType]):
    """A sequence of known length that makes all its items when the first of them is needed."""

    def __init__(self, length: int, make: Callable[[], Sequence[ItemType]]):
        self._length = length
        self._make = make
        self._items: Sequence[ItemType] | None = None

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, position: Any) -> Any:
        return self._made_items()[position]

    def __iter__(self) -> Iterator[ItemType]:
        return iter(self._made_items())

    def _made_items(self) -> Sequence[ItemType]:
        # Two threads may both make the items. That does no harm, because they are equal.
        if self._items is None:
            self._items = self._make()
        return self._items
