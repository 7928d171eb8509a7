"""Work on several threads, with results in order and few of them waiting."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

# Requests to a store side by side, where each is a round trip and little else.
REMOTE_THREADS = 16

Item = TypeVar("Item")
Result = TypeVar("Result")


def cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def in_order(
    pool: ThreadPoolExecutor,
    work: Callable[[Item], Result],
    items: Iterable[Item],
    window: int,
) -> Iterator[Result]:
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


def in_parts(size: int, work: Callable[[slice], Result]) -> list[Result]:
    """Work on some items in as many parts as there are cores, side by side."""
    bounds = [size * number // cores() for number in range(cores() + 1)]
    with ThreadPoolExecutor(cores()) as pool:
        return list(pool.map(work, map(slice, bounds, bounds[1:])))
