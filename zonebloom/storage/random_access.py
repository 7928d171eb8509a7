"""A file open for reads at positions: short, many, and never more than what is asked for."""

from __future__ import annotations

import contextlib
import os
import time
import weakref
from bisect import bisect_right
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow.fs as pafs

from zonebloom.base.threads import REMOTE_THREADS
from zonebloom.errors import FragmentChanged, FragmentUnreadable
from zonebloom.storage.files import (
    FileIdentity,
    ReadCounter,
    file_errors,
    identities,
    identity_from_status,
    identity_of_open_file,
    is_local,
)
from zonebloom.storage.object_store import object_reader

# Bytes between two reads below which they are one: a request to an object store costs as
# much as reading this many more.
LOCAL_COALESCE_GAP = 4 << 10
REMOTE_COALESCE_GAP = 64 << 10

# A read that takes longer came from a disk, not from memory.
_DISK_SECONDS = 10e-6


class RandomAccessFile:
    """A file of an index, read by any number of threads; locally without read-ahead, and wanted
    pieces may be told beforehand, which a disk answers side by side."""

    # A short read costs a disk about as much as this many bytes more of a long one: many hashes
    # are found sooner in blocks read whole.
    read_cost = 32 << 10

    def __init__(
        self,
        filesystem: pafs.FileSystem,
        path: str,
        counter: ReadCounter | None = None,
        num_bytes: int | None = None,
        tag: str = "",
    ):
        self.counter = counter or ReadCounter()
        self.is_local = is_local(filesystem)
        self._store = object_reader(filesystem, path)
        self._from_disk = False
        self._name, self._tag = path, tag
        if self.is_local:
            self._handle = os.open(path, os.O_RDONLY)
            self._close = weakref.finalize(self, os.close, self._handle)
            self.num_bytes = os.fstat(self._handle).st_size
            self._advise(0, 0, "POSIX_FADV_RANDOM")
        elif self._store is not None:
            # Nothing is open: each read says of which object it is.
            self._close = lambda: None
            self.num_bytes = self._store.head(path)["size"] if num_bytes is None else num_bytes
        else:
            self._file = filesystem.open_input_file(path)
            self._close = weakref.finalize(self, self._file.close)
            self.num_bytes = self._file.size()

    def read(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        if self.is_local or len(ranges) < 2:
            if self.is_local and len(ranges) > 1:
                self._announce(ranges)
            pieces = [self._at(start, stop) for start, stop in ranges]
        else:
            with ThreadPoolExecutor(min(REMOTE_THREADS, len(ranges))) as pool:
                pieces = list(pool.map(lambda span: self._at(*span), ranges))
        for data in pieces:
            self.counter.add(len(data))
        return pieces

    def _announce(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Have the disk begin on some (start, stop) ranges, side by side; a hint only."""
        for start, stop in ranges:
            self._advise(start, stop - start, "POSIX_FADV_WILLNEED")

    def _advise(self, start: int, num_bytes: int, advice: str) -> None:
        if hasattr(os, advice):
            os.posix_fadvise(self._handle, start, num_bytes, getattr(os, advice))

    def read_into(self, start: int, out: np.ndarray) -> None:
        """Fill an array with the bytes at a position; what the file lacks becomes zeros."""
        view = out.data.cast("B")
        done = 0
        while done < len(view):
            if self.is_local:
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

    def read_pieces(self, offsets: np.ndarray, sizes: np.ndarray, out: np.ndarray) -> int:
        """Read pieces of a local file into an array; what the file lacks becomes zeros.

        How many bytes it had.
        """
        from zonebloom.storage.pread_kernel import read_pieces

        if self._from_disk:
            self._announce(list(zip(offsets.tolist(), (offsets + sizes).tolist(), strict=True)))
        began = time.perf_counter()
        num_bytes = read_pieces(self._handle, offsets, sizes, out.view(np.uint8))
        seconds = time.perf_counter() - began
        # What one lookup found on the disk the next one is likely to find there too.
        self._from_disk = seconds > _DISK_SECONDS * offsets.size
        self.counter.add(num_bytes)
        return num_bytes

    def _at(self, start: int, stop: int) -> bytes:
        if self._store is not None:
            return self._store.read_range(self._name, start, stop, self._tag)
        if not self.is_local:
            return self._file.read_at(stop - start, start)
        data = os.pread(self._handle, stop - start, start)
        # The system reads 2 GiB at a time at most.
        while data and len(data) < stop - start:
            more = os.pread(self._handle, stop - start - len(data), start + len(data))
            if not more:
                break
            data += more
        return data

    def close(self) -> None:
        """Close the file; it also is when nothing refers to it any more."""
        with contextlib.suppress(OSError):
            self._close()


class FragmentFile(RandomAccessFile):
    """A data file that is refused once it is another; errors name it."""

    def __init__(
        self,
        filesystem: pafs.FileSystem,
        path: str,
        identity: FileIdentity,
        counter: ReadCounter,
    ):
        self.path = path
        self.identity = identity
        self._filesystem = filesystem
        # Where it lies in the file, and what was read.
        self._ahead: list[tuple[tuple[int, int], bytes]] = []
        with file_errors(path, "check that it is there", "open"):
            super().__init__(filesystem, path, counter, identity.size, identity.tag)
            # Asked once the file is open: one put in its place before is noticed.
            if self._store is not None:
                # Every read asks for the object of that tag.
                now = identity if identity.tag else identities(filesystem, [path])[0]
            elif self.is_local:
                now = identity_from_status(os.fstat(self._handle))
            else:
                now = identity_of_open_file(filesystem, path, self._file)
        if not identity.is_still(now):
            self.close()
            raise FragmentChanged(f"{path} changed while it was read; read it again")

    def require_unchanged(self) -> None:
        """Raise `FragmentChanged` if the file was written since it was opened.

        A local file that another one replaced meanwhile stays what it was for who has it open.
        """
        if self._store is not None and self.identity.tag:
            # Each read asked for the object of that tag.
            return
        if self.is_local:
            status = os.fstat(self._handle)
            now = identity_from_status(status)
            if not status.st_nlink:
                # The loss of its name changed the change time, too.
                now = now._replace(ctime_ns=0)
        else:
            (now,) = identities(self._filesystem, [self.path])
        if not self.identity.is_still(now):
            raise FragmentChanged(f"{self.path} changed while it was read; read it again")

    @property
    def coalesce(self) -> int:
        """Bytes between two reads below which one read is better."""
        return LOCAL_COALESCE_GAP if self.is_local else REMOTE_COALESCE_GAP

    def read_ahead(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Read at once what will be asked for soon, in place of what was so read before."""
        self._ahead = []
        merged = merge_ranges(ranges, self.coalesce)
        self._ahead = list(zip(merged, self.read(merged), strict=True))

    def read(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        held = [self._held(*span) for span in ranges] if self._ahead else [None] * len(ranges)
        missing = [span for span, data in zip(ranges, held, strict=True) if data is None]
        read = iter(self._read(missing) if missing else ())
        return [next(read) if data is None else data for data in held]

    def _held(self, start: int, stop: int) -> bytes | None:
        for (first, last), data in self._ahead:
            if first <= start and stop <= last:
                return data[start - first : stop - first]
        return None

    def _read(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        with file_errors(self.path, "try again"):
            pieces = super().read(ranges)
        for (start, stop), data in zip(ranges, pieces, strict=True):
            if len(data) < stop - start:
                raise FragmentUnreadable(
                    f"cannot read {self.path}: it ends at {start + len(data):,} bytes, and was "
                    f"read up to {stop:,}; repair or remove the file"
                )
        return pieces

    def __enter__(self) -> FragmentFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def merge_ranges(ranges: Sequence[tuple[int, int]], gap: int) -> list[tuple[int, int]]:
    """Some (start, stop) ranges, ascending, those with few bytes between them as one."""
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(ranges):
        if merged and start - merged[-1][1] <= gap:
            merged[-1] = merged[-1][0], max(merged[-1][1], stop)
        else:
            merged.append((start, stop))
    return merged


def read_merged_ranges(
    read: Callable[[Sequence[tuple[int, int]]], list[bytes]],
    ranges: Sequence[tuple[int, int]],
    gap: int = LOCAL_COALESCE_GAP,
) -> list[memoryview]:
    """The bytes of each of some ranges; those with few bytes between them are read as one."""
    merged = merge_ranges(ranges, gap)
    # Cast: the view of an Arrow buffer is one of signed bytes.
    views = [memoryview(data).cast("B") for data in read(merged)] if merged else []
    starts = [start for start, _ in merged]
    pieces = []
    for start, stop in ranges:
        at = bisect_right(starts, start) - 1
        pieces.append(views[at][start - starts[at] : stop - starts[at]])
    return pieces
