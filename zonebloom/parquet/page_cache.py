"""Cache decoded dictionaries and large pages for the next lookup."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Mapping
from typing import Protocol, TypeVar

# The most bytes of all cached objects together.
MAX_CACHED_BYTES = 256 << 20


class Cacheable(Protocol):
    """An object that knows how much memory it takes."""

    @property
    def num_bytes(self) -> int: ...


C = TypeVar("C", bound=Cacheable)


class PageCache:
    """A cache that drops the least recently used objects beyond a number of bytes.

    A key identifies a part of one version of a file. Callers cache nothing of a file that may be
    written again without a change of its identity, so entries never become stale.
    """

    def __init__(self, max_bytes: int = MAX_CACHED_BYTES):
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._cached: OrderedDict[Hashable, Cacheable] = OrderedDict()
        # The sizes of objects that `note_uses` got, in the order of their last use.
        self._recent_uses: OrderedDict[Hashable, int] = OrderedDict()
        self._recent_bytes = 0
        self.num_bytes = 0

    def find(self, keys: Iterable[Hashable], kind: type[C]) -> list[C | None]:
        """Return the cached objects, with None for those that are not cached."""
        objects: list[C | None] = []
        with self._lock:
            for key in keys:
                cached = self._cached.get(key)
                is_found = isinstance(cached, kind)
                objects.append(cached if is_found else None)
                if is_found:
                    self._cached.move_to_end(key)
        return objects

    def note_uses(self, sizes: Mapping[Hashable, int]) -> list[bool]:
        """Note that objects are used which are not cached. Return for each whether to cache it.

        An object should be cached when it is used again before as many bytes were used as the cache
        holds. So a scan that uses each object once takes no memory, and evicts nothing.
        ``sizes`` has about the bytes of each object. The result has the same order.
        """
        are_used_again: list[bool] = []
        with self._lock:
            for key, size in sizes.items():
                previous = self._recent_uses.pop(key, None)
                are_used_again.append(previous is not None)
                self._recent_uses[key] = size
                self._recent_bytes += size - (previous or 0)
            while self._recent_bytes > self._max_bytes:
                self._recent_bytes -= self._recent_uses.popitem(last=False)[1]
        return are_used_again

    def put(self, key: Hashable, cacheable: Cacheable) -> None:
        """Cache an object, unless another thread was faster."""
        with self._lock:
            if key not in self._cached:
                self._cached[key] = cacheable
                self.num_bytes += cacheable.num_bytes
            while self.num_bytes > self._max_bytes:
                self.num_bytes -= self._cached.popitem(last=False)[1].num_bytes

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
