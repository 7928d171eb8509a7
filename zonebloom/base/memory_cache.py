"""The cache of what lookups read and prepare: pages, dictionaries, page tables, footers, blocks.

There is one for the whole process, `MEMORY_CACHE`, so that one number bounds all of them.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterable, Mapping
from typing import Any, Protocol, TypeVar

# The most bytes of all cached objects together.
MAX_CACHED_BYTES = 256 << 20
# Uses of objects that are not cached are remembered for this many times as many bytes.
_REMEMBERED_SIZE = 4
# A missing object, with its time and size.
_NOT_CACHED = None, 0, 0


class Cacheable(Protocol):
    """An object that knows about how much memory it takes."""

    @property
    def num_bytes(self) -> int: ...


C = TypeVar("C", bound=Cacheable)


class _Token:
    """What the keys of one owner begin with."""


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

    If lookups use more than it holds again and again, dropping objects for others would help none
    of them. So a full cache takes an object only in place of one that was used less recently: the
    last use of that one came before the previous use of the new one.

    A key identifies a part of one version of a file, and whoever may see it. Callers cache nothing
    of a file that may be written again without a change of its identity, so entries never become
    stale.
    """

    def __init__(self, max_bytes: int = MAX_CACHED_BYTES):
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        # The objects with the time of their last use and their size, in the order of these times.
        self._cached: OrderedDict[Hashable, tuple[Cacheable, int, int]] = OrderedDict()
        # The keys of each owner, and the owners that are gone.
        self._owned_keys: dict[_Token, set[Hashable]] = {}
        self._gone_owners: deque[_Token] = deque()
        # The sizes and times that `note_uses` noted, in the order of the times.
        self._recent_uses: OrderedDict[Hashable, tuple[int, int]] = OrderedDict()
        self._recent_bytes = 0
        # The number of uses so far.
        self._time = 0
        self.num_bytes = 0

    def get(self, key: Hashable, kind: type[C]) -> C | None:
        """Return a cached object, or None."""
        with self._lock:
            if self._gone_owners:
                self._drop_of_gone_owners()
            cached, _, size = self._cached.get(key, _NOT_CACHED)
            if not isinstance(cached, kind):
                return None
            self._time += 1
            self._cached[key] = cached, self._time, size
            self._cached.move_to_end(key)
            return cached

    def find(self, keys: Iterable[Hashable], kind: type[C]) -> list[C | None]:
        """Return the cached objects, with None for those that are not cached."""
        return [self.get(key, kind) for key in keys]

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
            _, oldest_use, oldest_size = next(droppable, (None, 0, 0))
            for key, size in sizes.items():
                previous_size, previous_use = self._recent_uses.pop(key, (0, 0))
                while room < size and 0 < oldest_use < previous_use:
                    room += oldest_size
                    _, oldest_use, oldest_size = next(droppable, (None, 0, 0))
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
        size = cacheable.num_bytes
        with self._lock:
            self._drop_of_gone_owners()
            if key not in self._cached:
                self._time += 1
                self._cached[key] = cacheable, self._time, size
                self.num_bytes += size
                if isinstance(key, tuple) and isinstance(key[0], _Token):
                    self._owned_keys.setdefault(key[0], set()).add(key)
            while self.num_bytes > self._max_bytes:
                self._drop(next(iter(self._cached)))

    def put_if_worth(self, key: Hashable, cacheable: Cacheable) -> None:
        """Cache an object that is used for the first time while there is room, or else later."""
        if self.note_uses({key: cacheable.num_bytes}, may_be_first=True)[0]:
            self.put(key, cacheable)

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
        _, _, size = self._cached.pop(key)
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
        self._cached, self._recent_uses = OrderedDict(), OrderedDict()
        self._owned_keys = {}
        self.num_bytes = self._recent_bytes = 0


MEMORY_CACHE = MemoryCache()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=MEMORY_CACHE.clear)
