"""Give warnings to the code that called this package, or collect them for one call."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from zonebloom.errors import ZoneBloomWarning

Result = TypeVar("Result")

_PACKAGE = __name__.partition(".")[0]
_collector: ContextVar[list[ZoneBloomWarning] | None] = ContextVar("collector", default=None)


def warn(warning: ZoneBloomWarning) -> None:
    """Warn the first caller outside this package, or hand the warning to `collected_warnings`."""
    collected = _collector.get()
    if collected is not None:
        collected.append(warning)
        return
    frame, level = inspect.currentframe(), 1
    while frame is not None and _is_ours(frame.f_globals.get("__name__", "")):
        frame, level = frame.f_back, level + 1
    warnings.warn(warning, stacklevel=level)


@contextmanager
def collected_warnings() -> Iterator[list[ZoneBloomWarning]]:
    """Collect the warnings of this thread in a list, and show none of them.

    Unlike `warnings.catch_warnings`, this changes nothing for other threads and other packages.

    >>> with collected_warnings() as issued:
    ...     warn(ZoneBloomWarning("the index is stale"))
    >>> issued
    [ZoneBloomWarning('the index is stale')]
    """
    issued: list[ZoneBloomWarning] = []
    token = _collector.set(issued)
    try:
        yield issued
    finally:
        _collector.reset(token)


def call_collecting(
    function: Callable[..., Result], *arguments: object
) -> tuple[Result, list[ZoneBloomWarning]]:
    """Call a function on a thread of a pool. Return its result, and the warnings to issue.

    The caller of the package has no frame on that thread, so the thread cannot warn it.
    """
    with collected_warnings() as issued:
        return function(*arguments), issued


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] == _PACKAGE
