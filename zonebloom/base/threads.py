"""Run work on several threads and return the results in order."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

# Parallel requests to an object store. A request mostly waits, so more threads than cores help.
REMOTE_THREADS = 16

Item = TypeVar("Item")
Result = TypeVar("Result")


def num_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def thread_pool(num_threads: int) -> ThreadPoolExecutor:
    """Return a pool of threads.

    Many lookups need no threads, so ``concurrent.futures`` is imported only here.
    """
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(num_threads)


class OrderedTasks(Generic[Item, Result]):
    """An iterator of the results of ``work``, in the order of the items.

    The first tasks are submitted at once. At most ``window`` of them are computed ahead.
    """

    def __init__(
        self,
        pool: ThreadPoolExecutor,
        work: Callable[[Item], Result],
        items: Iterable[Item],
        window: int,
    ):
        self._pool = pool
        self._work = work
        self._items = iter(items)
        self._waiting: deque[Future[Result]] = deque()
        for item in islice(self._items, window):
            self._waiting.append(pool.submit(work, item))

    def __iter__(self) -> OrderedTasks[Item, Result]:
        return self

    def __next__(self) -> Result:
        if not self._waiting:
            raise StopIteration
        result = self._waiting.popleft().result()
        for item in islice(self._items, 1):
            self._waiting.append(self._pool.submit(self._work, item))
        return result

    def close(self) -> None:
        """Cancel the tasks that have not begun, and wait for the others."""
        running = [future for future in self._waiting if not future.cancel()]
        self._waiting.clear()
        for future in running:
            future.exception()


def map_in_order(
    pool: ThreadPoolExecutor,
    work: Callable[[Item], Result],
    items: Iterable[Item],
    window: int,
) -> Iterator[Result]:
    """Yield the results of ``work`` in the order of the items. See `OrderedTasks`."""
    tasks = OrderedTasks(pool, work, items, window)
    try:
        yield from tasks
    finally:
        tasks.close()


def map_slices(size: int, work: Callable[[slice], Result]) -> list[Result]:
    """Split ``size`` items into as many slices as there are cores, and work on them in parallel."""
    bounds = [size * number // num_cores() for number in range(num_cores() + 1)]
    with thread_pool(num_cores()) as pool:
        return list(pool.map(work, map(slice, bounds, bounds[1:])))
