"""Python objects lent to pyarrow's own threads: the process waits at its end to have them back.

A thread that asks for Python's lock once Python is gone aborts the process, or it hangs. Scans that
are not read to their end go on for a moment, and a thread may drop its last buffer after the last
batch was given.
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

Item = TypeVar("Item")

# Without a change for as long, what is lent is kept to the end: by a table or a reader in use.
_QUIET_SECONDS = 0.5
# What runs is left to itself after as long: it may wait for what never comes.
_RUNNING_SECONDS = 10.0

_mark = object()
_running: set[int] = set()
_ending = threading.Event()


def mark() -> object:
    """What an object that is lent keeps as its last attribute.

    Python drops the attributes in order and this one without a line of code, so a thread that has
    dropped it asks for the lock no more.
    """
    return _mark


class LentIterator(Iterator[Item]):
    """Items made by Python for pyarrow's threads; when the process ends it makes no more."""

    def __init__(self, items: Iterator[Item]):
        self._items = items
        self._mark = mark()

    def __next__(self) -> Item:
        if _ending.is_set():
            raise RuntimeError("the process ends; read to the end before it does")
        _running.add(id(self))
        try:
            return next(self._items)
        finally:
            _running.discard(id(self))


class LentBytes(np.ndarray):
    """Bytes that pyarrow's threads drop, as an array of uint8."""

    def __new__(cls, data: bytes | pa.Buffer) -> LentBytes:
        return np.frombuffer(data, np.uint8).view(cls)

    def __init__(self, data: bytes | pa.Buffer):
        self._mark = mark()


def _num_references() -> int:
    return sys.getrefcount(_mark)


_num_unlent = _num_references()


@atexit.register
def _take_back() -> None:
    _ending.set()
    last, since = _num_unlent, 0.0
    while (now := _num_references()) > _num_unlent:
        if now != last:
            last, since = now, time.monotonic()
        elif time.monotonic() - since > (_RUNNING_SECONDS if _running else _QUIET_SECONDS):
            return
        time.sleep(0.001)
