"""Cache decoded dictionaries and large pages for the next lookup."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Mapping
from typing import Protocol, TypeVar

# The most bytes of all cached objects together.
MAX_CACHED_BYTES = 256 << 20
# Uses of objects that are not cached are remembered for this many times as many bytes.
_REMEMBERED_SIZE = 4


class Cacheable(Protocol):
    """An object that knows how much memory it takes."""

    @property
    def num_bytes(self) -> int: ...


C = TypeVar("C", bound=Cacheable)


class PageCache:
    """A cache that drops the least recently used objects beyond a number of bytes.

    If lookups use more than it holds again and again, dropping objects for others would help none
    of them. So a full cache takes an object only in place of one that was used less recently: the
    last use of that one came before the previous use of the new one.

    A key identifies a part of one version of a file. Callers cache nothing of a file that may be
    written again without a change of its identity, so entries never become stale.
    """

    def __init__(self, max_bytes: int = MAX_CACHED_BYTES):
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        # The objects with the time of their last use, in the order of these times.
        self._cached: OrderedDict[Hashable, tuple[Cacheable, int]] = OrderedDict()
        # The sizes and times that `note_uses` noted, in the order of the times.
        self._recent_uses: OrderedDict[Hashable, tuple[int, int]] = OrderedDict()
        self._recent_bytes = 0
        # The number of uses so far.
        self._time = 0
        self.num_bytes = 0

    def find(self, keys: Iterable[Hashable], kind: type[C]) -> list[C | None]:
        """Return the cached objects, with None for those that are not cached."""
        objects: list[C | None] = []
        with self._lock:
            for key in keys:
                cached, _ = self._cached.get(key, (None, 0))
                is_found = isinstance(cached, kind)
                objects.append(cached if is_found else None)
                if is_found:
                    self._time += 1
                    self._cached[key] = cached, self._time
                    self._cached.move_to_end(key)
        return objects

    def note_uses(self, sizes: Mapping[Hashable, int], *, may_be_first: bool = False) -> list[bool]:
        """Note that objects are used which are not cached. Return for each whether to cache it.

        An object should be cached when it is used again, so that a scan that uses each object once
        takes no memory. With ``may_be_first``, it should be cached at once while there is room.
        ``sizes`` has about the bytes of each object. The result has the same order.
        """
        are_worth: list[bool] = []
        with self._lock:
            room = self._max_bytes - self.num_bytes
            # The objects that would be dropped, in this order.
            droppable = iter(self._cached.values())
            oldest, oldest_use = next(droppable, (None, 0))
            for key, size in sizes.items():
                previous_size, previous_use = self._recent_uses.pop(key, (0, 0))
                while room < size and oldest is not None and oldest_use < previous_use:
                    room += oldest.num_bytes
                    oldest, oldest_use = next(droppable, (None, 0))
                is_worth = room >= size and (may_be_first or previous_use > 0)
                room -= size if is_worth else 0
                are_worth.append(is_worth)
                self._time += 1
                self._recent_uses[key] = size, self._time
                self._recent_bytes += size - previous_size
            while self._recent_bytes > _REMEMBERED_SIZE * self._max_bytes:
                _, (size, _) = self._recent_uses.popitem(last=False)
                self._recent_bytes -= size
        return are_worth

    def put(self, key: Hashable, cacheable: Cacheable) -> None:
        """Cache an object, unless another thread was faster."""
        with self._lock:
            if key not in self._cached:
                self._time += 1
                self._cached[key] = cacheable, self._time
                self.num_bytes += cacheable.num_bytes
            while self.num_bytes > self._max_bytes:
                _, (dropped, _) = self._cached.popitem(last=False)
                self.num_bytes -= dropped.num_bytes

    def clear(self) -> None:
        """Drop everything. A forked process calls this, because another thread may hold the lock.

        The new lock replaces the old one first, which nobody in this process would release.
        """
        self._lock = threading.Lock()
        self._cached, self._recent_uses = OrderedDict(), OrderedDict()
        self.num_bytes = self._recent_bytes = 0


PAGE_CACHE = PageCache()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=PAGE_CACHE.clear)
