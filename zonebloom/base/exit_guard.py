"""Make a process wait, before it exits, for Python objects that pyarrow's own threads still hold.

A thread that asks for Python's lock (the GIL) after Python has shut down aborts the process, or
hangs. This can happen: pyarrow's threads run on for a moment after a scan is abandoned, and may
drop their last buffer after the last batch was returned.
"""

from __future__ import annotations

import atexit
import sys
import threading
import time
from collections.abc import Iterator
from typing import TypeVar

import numpy as np
import pyarrow as pa

GuardedItem = TypeVar("GuardedItem")

# If the count of objects stays the same for this long, the program itself holds the rest, such as
# in a table. No thread will drop them.
_QUIET_SECONDS = 0.5
# Do not wait longer than this for a running iterator, because it may never return.
_RUNNING_SECONDS = 10.0

_mark = object()
_running: set[int] = set()
_ending = threading.Event()


def usage_mark() -> object:
    """Return the mark. An object that pyarrow's threads use keeps it as its last attribute.

    The reference count of the mark tells how many of these objects exist. Python drops attributes
    in order, and dropping the mark runs no code, so after it a thread no longer needs the lock.
    """
    return _mark


class GuardedIterator(Iterator[GuardedItem]):
    """An iterator that pyarrow's threads read. It makes no more items when the process ends."""

    def __init__(self, items: Iterator[GuardedItem]):
        self._items = items
        self._mark = usage_mark()

    def __next__(self) -> GuardedItem:
        if _ending.is_set():
            raise RuntimeError("the process ends; read to the end before it does")
        _running.add(id(self))
        try:
            return next(self._items)
        finally:
            _running.discard(id(self))


class GuardedBytes(np.ndarray):
    """A uint8 array whose bytes pyarrow's threads use and drop."""

    def __new__(cls, data: bytes | pa.Buffer) -> GuardedBytes:
        return np.frombuffer(data, np.uint8).view(cls)

    def __init__(self, data: bytes | pa.Buffer):
        self._mark = usage_mark()


def _num_references() -> int:
    return sys.getrefcount(_mark)


_num_idle_references = _num_references()


@atexit.register
def _wait_for_threads() -> None:
    _ending.set()
    last_count, last_change = _num_idle_references, 0.0
    while (count := _num_references()) > _num_idle_references:
        now = time.monotonic()
        if count != last_count:
            last_count, last_change = count, now
        elif now - last_change > (_RUNNING_SECONDS if _running else _QUIET_SECONDS):
            return
        time.sleep(0.001)
