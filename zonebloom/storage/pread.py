"""One file of an index open for reads at positions: short, many, and never more than asked.

Locally the kernel is told not to read ahead, and may be told beforehand what is wanted: a
disk answers hundreds of short reads side by side in the time it takes for a few in turn.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow.fs as pafs

from zonebloom.storage.files import ReadCounter, is_local

_REMOTE_THREADS = 16
# A read that takes longer came from a disk, not from memory.
_DISK_SECONDS = 10e-6


class PositionedFile:
    """A file read at positions, by any number of threads.

    Attributes
    ----------
    num_bytes : int
        Size of the file when it was opened.
    is_local : bool
    counter : ReadCounter
    """

    def __init__(self, filesystem: pafs.FileSystem, path: str, counter: ReadCounter | None = None):
        self.counter = counter or ReadCounter()
        self.is_local = is_local(filesystem)
        self._lock = threading.Lock()
        self._from_disk = False
        if self.is_local:
            self._handle = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
            self._close = weakref.finalize(self, os.close, self._handle)
            self.num_bytes = os.fstat(self._handle).st_size
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(self._handle, 0, 0, os.POSIX_FADV_RANDOM)
        else:
            self._file = filesystem.open_input_file(path)
            self._close = weakref.finalize(self, self._file.close)
            self.num_bytes = self._file.size()

    def read(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """The bytes of some (start, stop) ranges; fewer where the file ends before."""
        if self.is_local:
            if len(ranges) > 1:
                self.announce(ranges)
            found = [self._at(start, stop) for start, stop in ranges]
        elif len(ranges) == 1:
            found = [self._at(*ranges[0])]
        else:
            with ThreadPoolExecutor(min(_REMOTE_THREADS, len(ranges))) as pool:
                found = list(pool.map(lambda span: self._at(*span), ranges))
        for data in found:
            self.counter.add(len(data))
        return found

    def announce(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Have the disk begin on some (start, stop) ranges, side by side; a hint only."""
        if self.is_local and hasattr(os, "posix_fadvise"):
            for start, stop in ranges:
                os.posix_fadvise(self._handle, start, stop - start, os.POSIX_FADV_WILLNEED)

    def read_into(self, start: int, out: np.ndarray) -> None:
        """Fill an array with the bytes at a position; what the file lacks becomes zeros."""
        view = out.data.cast("B")
        done = 0
        while done < len(view):
            if self.is_local and hasattr(os, "preadv"):
                count = os.preadv(self._handle, [view[done:]], start + done)
            else:
                data = self._at(start + done, start + len(view))
                count = len(data)
                view[done : done + count] = data
            if not count:
                view[done:] = bytes(len(view) - done)
                break
            done += count
        self.counter.add(done)

    def read_pieces(self, offsets: np.ndarray, sizes: np.ndarray, out: np.ndarray) -> None:
        """Read pieces into an array, one after another; what the file lacks becomes zeros."""
        if not self.is_local or not hasattr(os, "pread"):
            self._read_pieces_one_by_one(offsets, sizes, out)
            return
        from zonebloom.storage import pread_kernel

        if self._from_disk:
            stops = offsets + sizes
            self.announce(list(zip(offsets.tolist(), stops.tolist(), strict=True)))
        began = time.perf_counter()
        num_bytes = pread_kernel.read_pieces(self._handle, offsets, sizes, out.view(np.uint8))
        seconds = time.perf_counter() - began
        # What one lookup found on the disk the next one is likely to find there too.
        self._from_disk = seconds > _DISK_SECONDS * offsets.size
        self.counter.add(num_bytes)

    def _read_pieces_one_by_one(
        self, offsets: np.ndarray, sizes: np.ndarray, out: np.ndarray
    ) -> None:
        view = out.data.cast("B")
        spans = list(zip(offsets.tolist(), (offsets + sizes).tolist(), strict=True))
        at = 0
        for (start, stop), data in zip(spans, self.read(spans), strict=True):
            view[at : at + stop - start] = data.ljust(stop - start, b"\0")
            at += stop - start

    def _at(self, start: int, stop: int) -> bytes:
        if not self.is_local:
            return self._file.read_at(stop - start, start)
        if hasattr(os, "pread"):
            return os.pread(self._handle, stop - start, start)
        with self._lock:
            os.lseek(self._handle, start, os.SEEK_SET)
            return os.read(self._handle, stop - start)

    def close(self) -> None:
        """Close the file; it also is when nothing refers to it any more."""
        with contextlib.suppress(OSError):
            self._close()
