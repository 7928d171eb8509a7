"""The cache of what lookups read and prepare: pages, dictionaries, page tables, footers, blocks.

There is one for the whole process, `MEMORY_CACHE`, so that one number bounds all of them.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict, deque
from collections.abc import Hashable
from typing import Any, Protocol, TypeVar

# The most bytes of all cached objects together.
MAX_CACHED_BYTES = 256 << 20
_NOT_CACHED = None, 0


class Cacheable(Protocol):
    """An object that knows about how much memory it takes."""

    @property
    def num_bytes(self) -> int: ...


C = TypeVar("C", bound=Cacheable)


class _Token:
    """The beginning of the keys of one owner."""


class CacheOwner:
    """The owner of cached objects, which are dropped with it.

    Their keys are tuples that begin with ``token``.
    """

    def __init__(self) -> None:
        self.token = _Token()

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy in another process owns nothing.
        return CacheOwner, ()

    def __del__(self) -> None:
        # Python may have dropped the globals of this module when it ends.
        if MEMORY_CACHE is not None:
            MEMORY_CACHE.forget_later(self.token)


class MemoryCache:
    """A cache that drops the least recently used objects beyond a number of bytes.

    A key identifies a part of one version of a file, and whoever may see it. Callers cache nothing
    of a file that may be written again without a change of its identity, so entries never become
    stale.
    """

    def __init__(self, max_bytes: int = MAX_CACHED_BYTES):
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        # The objects with their sizes, in the order of their last uses.
        self._cached: OrderedDict[Hashable, tuple[Cacheable, int]] = OrderedDict()
        # The keys of each owner, and the owners that are gone.
        self._owned_keys: dict[_Token, set[Hashable]] = {}
        self._gone_owners: deque[_Token] = deque()
        self.num_bytes = 0

    def get(self, key: Hashable, kind: type[C]) -> C | None:
        """Return a cached object, or None."""
        with self._lock:
            if self._gone_owners:
                self._drop_of_gone_owners()
            cached, _ = self._cached.get(key, _NOT_CACHED)
            if not isinstance(cached, kind):
                return None
            self._cached.move_to_end(key)
            return cached

    @property
    def room(self) -> int:
        """The bytes that can be added without dropping anything."""
        return self._max_bytes - self.num_bytes

    def put(self, key: Hashable, cacheable: Cacheable) -> None:
        """Cache an object in place of the one with this key. One above the bound is not cached."""
        size = cacheable.num_bytes
        if size > self._max_bytes:
            return
        with self._lock:
            if self._gone_owners:
                self._drop_of_gone_owners()
            if key in self._cached:
                self._drop(key)
            self._cached[key] = cacheable, size
            self.num_bytes += size
            if isinstance(key, tuple) and isinstance(key[0], _Token):
                self._owned_keys.setdefault(key[0], set()).add(key)
            while self.num_bytes > self._max_bytes:
                self._drop(next(iter(self._cached)))

    def forget_later(self, token: _Token) -> None:
        """Drop the objects of an owner at the next use of the cache.

        Python may collect an owner at any time, also while this thread holds the lock.
        """
        self._gone_owners.append(token)

    def _drop_of_gone_owners(self) -> None:
        while self._gone_owners:
            for key in list(self._owned_keys.get(self._gone_owners.popleft(), ())):
                self._drop(key)

    def _drop(self, key: Hashable) -> None:
        _, size = self._cached.pop(key)
        self.num_bytes -= size
        if isinstance(key, tuple) and isinstance(key[0], _Token):
            owned_keys = self._owned_keys[key[0]]
            owned_keys.discard(key)
            if not owned_keys:
                del self._owned_keys[key[0]]

    def clear(self) -> None:
        """Drop everything. A forked process calls this, because another thread may hold the lock.

        The new lock replaces the old one first, which nobody in this process would release.
        """
        self._lock = threading.Lock()
        self._cached, self._owned_keys = OrderedDict(), {}
        self.num_bytes = 0


MEMORY_CACHE = MemoryCache()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=MEMORY_CACHE.clear)
