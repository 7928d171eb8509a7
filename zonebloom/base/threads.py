"""Run work on several threads and return the results in order."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

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


def map_in_order(
    pool: ThreadPoolExecutor,
    work: Callable[[Item], Result],
    items: Iterable[Item],
    window: int,
) -> Iterator[Result]:
    """Yield the results of ``work`` in the order of the items.

    At most ``window`` of them are computed ahead.
    """
    waiting: deque[Future[Result]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) >= window:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()


def map_slices(size: int, work: Callable[[slice], Result]) -> list[Result]:
    """Split ``size`` items into as many slices as there are cores, and work on them in parallel."""
    bounds = [size * number // num_cores() for number in range(num_cores() + 1)]
    with thread_pool(num_cores()) as pool:
        return list(pool.map(work, map(slice, bounds, bounds[1:])))
