"""Read many short byte ranges of a file, from any number of threads, with no extra bytes."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs

from zonebloom.base.threads import REMOTE_THREADS, thread_pool
from zonebloom.errors import FragmentChanged, FragmentUnreadable
from zonebloom.storage.files import (
    FILE_ERRORS,
    FileIdentity,
    ReadCounter,
    identity_from_status,
    is_at_rest,
    open_regular_file,
    unreadable,
)
from zonebloom.storage.object_store import StoreHandler, object_reader
from zonebloom.storage.store import LOCAL, store_of

# Two reads with at most this many bytes between them are merged into one, because a request to an
# object store costs as much as reading that many more bytes.
LOCAL_COALESCE_GAP = 4 << 10
_REMOTE_DATA_GAP = 64 << 10
# Blocks of an index lie far from each other, and are small.
_REMOTE_INDEX_GAP = 256 << 10

# Most systems let a process open 1,024 files, and some 256.
_MAX_OPEN_FILES = 128

# Windows cannot read at a position. There, a read moves the position of the handle.
_HAS_PREAD = hasattr(os, "pread")
_POSITION_LOCK = threading.Lock()
# These are None where the operating system takes no such advice.
_ADVISE_RANDOM = getattr(os, "POSIX_FADV_RANDOM", None)
_ADVISE_WILL_NEED = getattr(os, "POSIX_FADV_WILLNEED", None)
_CLOSED = -1

# Reads that take longer than this for each piece, and this for each byte, come from the disk. The
# page cache copies about five bytes in a nanosecond.
_DISK_SECONDS = 25e-6
_DISK_SECONDS_PER_BYTE = 0.4e-9


def _read_at(handle: int, start: int, stop: int) -> bytes:
    if _HAS_PREAD:
        return os.pread(handle, stop - start, start)
    with _POSITION_LOCK:
        os.lseek(handle, start, os.SEEK_SET)
        return os.read(handle, stop - start)


class RandomAccessFile:
    """A file from which any number of threads read ranges of bytes.

    Read-ahead of local files is disabled. Before several reads, the ranges are announced to the
    operating system, so that the disk reads them in parallel.
    """

    _remote_gap = _REMOTE_INDEX_GAP

    # A file that is closed, or whose opening failed, has only these defaults.
    _handle: int = _CLOSED
    _file: pa.NativeFile | None = None
    _bucket: StoreHandler | None = None

    def __init__(
        self,
        filesystem: pafs.FileSystem,
        path: str,
        counter: ReadCounter | None = None,
        num_bytes: int | None = None,
        tag: str = "",
    ):
        self.counter = counter or ReadCounter()
        store = self._store = store_of(filesystem)
        self.has_round_trips = store.has_round_trips
        # It is true if the last pieces came from the disk. Then the next ones probably do, too.
        self.is_on_disk = False
        self._path, self._tag = path, tag
        if store is LOCAL:
            self._handle, self._status = open_regular_file(path)
            self.num_bytes = self._status.st_size
            if _ADVISE_RANDOM is not None:
                os.posix_fadvise(self._handle, 0, 0, _ADVISE_RANDOM)
            return
        # If each read is a request of its own, there is no open file.
        bucket = self._bucket = object_reader(filesystem, path)
        if bucket is not None:
            self.num_bytes = bucket.head(path)["size"] if num_bytes is None else num_bytes
        else:
            self._file = file = filesystem.open_input_file(path)
            self.num_bytes = file.size()

    def read(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        if not self.has_round_trips or len(ranges) < 2:
            if len(ranges) > 1:
                self.prefetch(ranges)
            pieces = [self._read_range(start, stop) for start, stop in ranges]
        else:
            with thread_pool(min(REMOTE_THREADS, len(ranges))) as pool:
                pieces = list(pool.map(lambda span: self._read_range(*span), ranges))
        for data in pieces:
            self.counter.add(len(data))
        return pieces

    @property
    def coalesce(self) -> int:
        """The most bytes between two ranges that are read as one."""
        return self._remote_gap if self.has_round_trips else LOCAL_COALESCE_GAP

    @property
    def handle(self) -> int | None:
        """The number of an open local file for kernels to read it, or None if they cannot."""
        return self._handle if _HAS_PREAD and not self.has_round_trips else None

    def prefetch(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Hint to the system to load (start, stop) ranges of a local file from disk in parallel.

        Do nothing for files of other stores.
        """
        if not self.has_round_trips and _ADVISE_WILL_NEED is not None:
            for start, stop in ranges:
                os.posix_fadvise(self._handle, start, stop - start, _ADVISE_WILL_NEED)

    def read_pieces(self, offsets: np.ndarray, sizes: np.ndarray, out: np.ndarray) -> int:
        """Read pieces into an array, one after another, with zeros past the file's end.

        Return the number of bytes read.
        """
        if self.has_round_trips or not _HAS_PREAD:
            return copy_pieces(self.read, offsets, sizes, out, self.coalesce)
        from zonebloom.storage.pread_kernel import read_pieces

        if self.is_on_disk:
            self.prefetch_pieces(offsets, sizes)
        start_time = time.perf_counter()
        num_bytes = read_pieces(self._handle, offsets, sizes, out.view(np.uint8))
        max_seconds = _DISK_SECONDS * offsets.size + _DISK_SECONDS_PER_BYTE * num_bytes
        self.count_pieces(num_bytes, start_time, max_seconds)
        return num_bytes

    def prefetch_pieces(self, offsets: np.ndarray, sizes: np.ndarray) -> None:
        """Hint to the system to load pieces of a local file from disk in parallel."""
        self.prefetch(list(zip(offsets.tolist(), (offsets + sizes).tolist(), strict=True)))

    def count_pieces(self, num_bytes: int, start_time: float, max_seconds: float) -> None:
        """Count the bytes that a kernel read, from the disk if that took longer than expected."""
        if num_bytes:
            self.is_on_disk = time.perf_counter() - start_time > max_seconds
            self.counter.add(num_bytes)

    def _read_range(self, start: int, stop: int) -> bytes:
        if self._bucket is not None:
            return self._bucket.read_range(self._path, start, stop, self._tag)
        if self._file is not None:
            return self._file.read_at(stop - start, start)
        data = _read_at(self._handle, start, stop)
        # One call reads 2 GiB at most.
        while data and len(data) < stop - start:
            more = _read_at(self._handle, start + len(data), stop)
            if not more:
                break
            data += more
        return data

    def close(self) -> None:
        """Close the file. Garbage collection closes it too."""
        # Another thread may close the file too, so take the handle in one step. Otherwise both
        # could close the same number, which may belong to another file by then.
        handle = self.__dict__.pop("_handle", _CLOSED)
        file = self.__dict__.pop("_file", None)
        try:
            if handle != _CLOSED:
                os.close(handle)
            if file is not None:
                file.close()
        except OSError:
            # An error does no harm here, because the file was only read.
            pass

    def __del__(self) -> None:
        if self._handle != _CLOSED or self._file is not None:
            self.close()


class ReopenedFile:
    """A file that is opened when it is used, for objects that live long.

    Beyond `_MAX_OPEN_FILES`, those that were used least recently are closed. A thread that still
    reads one keeps it open.
    """

    def __init__(self, open_file: Callable[[], RandomAccessFile]):
        self._open_file = open_file
        self._file: RandomAccessFile | None = None
        self._reference: weakref.ref[ReopenedFile] = weakref.ref(
            self, lambda reference: _recently_used.pop(reference, None)
        )
        # A reference keeps its hash, and can have none after the file is gone.
        hash(self._reference)

    def get(self) -> RandomAccessFile:
        """Return the open file. Raise OSError or ValueError if it cannot be opened."""
        file = self._file
        if file is None:
            file = self._file = self._open_file()
        # These calls need no lock: each does its work in one step.
        _recently_used.pop(self._reference, None)
        _recently_used[self._reference] = None
        while len(_recently_used) > _MAX_OPEN_FILES:
            with contextlib.suppress(KeyError):
                reference, _ = _recently_used.popitem(last=False)
                if (oldest := reference()) is not None:
                    oldest.close()
        return file

    def close(self) -> None:
        """Forget the open file. It closes when no thread reads it, and `get` opens it again."""
        self._file = None


_recently_used: OrderedDict[weakref.ref[ReopenedFile], None] = OrderedDict()


class FragmentFile(RandomAccessFile):
    """A data file that raises `FragmentChanged` if its identity changed. Errors name the file."""

    _remote_gap = _REMOTE_DATA_GAP

    def __init__(
        self,
        filesystem: pafs.FileSystem,
        path: str,
        identity: FileIdentity,
        counter: ReadCounter,
    ):
        self.path = path
        self.identity = identity
        # The keys of cached parts of this version of the file begin with this. It is None if no
        # part may be cached, because a file that replaces this one may have the same identity.
        is_certain = identity.inode or identity.tag
        self.cache_key: tuple[Hashable, ...] | None = (path, identity) if is_certain else None
        # If it is true, every later write changes the identity, so parts may be cached.
        self.is_at_rest = is_at_rest(identity, time.time_ns())
        # The (start, stop) ranges that `read_ahead` read, and their bytes.
        self._prefetched: list[tuple[tuple[int, int], bytes]] = []
        try:
            super().__init__(filesystem, path, counter, identity.size, identity.tag)
            # Take the identity after opening, so that a file replaced before that is noticed.
            if not self.has_round_trips:
                now = identity_from_status(self._status)
            elif self._file is not None:
                now = self._store.identity_of_open_file(path, self._file)
            else:
                # Every read requires the object to have this tag.
                now = identity if identity.tag else self._store.identities([path])[0]
        except FILE_ERRORS as error:
            raise unreadable(path, error, "check that it is there", "open") from None
        if not identity.is_still(now):
            self.close()
            raise FragmentChanged(f"{path} changed while it was read; read it again")

    def require_unchanged(self) -> None:
        """Raise `FragmentChanged` if the file was written since it was opened.

        A local file that was replaced by another one stays readable while it is open.
        """
        if self._bucket is not None and self.identity.tag:
            # Each read required the object to have this tag.
            return
        if not self.has_round_trips:
            try:
                status = os.fstat(self._handle)
            except OSError as error:
                raise unreadable(self.path, error, verb="look at") from None
            now = identity_from_status(status)
            if not status.st_nlink:
                # Unlinking the file changed its change time, so ignore that time.
                now = now._replace(ctime_ns=0)
        else:
            (now,) = self._store.identities([self.path])
        if not self.identity.is_still(now):
            raise FragmentChanged(f"{self.path} changed while it was read; read it again")

    def read_ahead(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Read ranges that will be needed soon in few requests, and keep them for `read`.

        They replace the ranges of the call before.
        """
        self._prefetched = []
        merged = merge_ranges(ranges, self.coalesce)
        self._prefetched = list(zip(merged, self.read(merged), strict=True))

    def read(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        prefetched: list[bytes | None] = [None] * len(ranges)
        if self._prefetched:
            prefetched = [self._from_read_ahead(*span) for span in ranges]
        missing = [span for span, data in zip(ranges, prefetched, strict=True) if data is None]
        read = iter(self._read(missing) if missing else ())
        return [next(read) if data is None else data for data in prefetched]

    def _from_read_ahead(self, start: int, stop: int) -> bytes | None:
        for (first, last), data in self._prefetched:
            if first <= start and stop <= last:
                return data[start - first : stop - first]
        return None

    def _read(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return self.read_stored(ranges)

    def read_stored(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return ranges of the file as they are stored, also if the file is encrypted."""
        try:
            pieces = super().read(ranges)
        except FILE_ERRORS as error:
            raise unreadable(self.path, error, "try again") from None
        for (start, stop), data in zip(ranges, pieces, strict=True):
            if len(data) < stop - start:
                raise FragmentUnreadable(
                    f"cannot read {self.path}: it ends at {start + len(data):,} bytes, and bytes "
                    f"up to {stop:,} are needed; repair or remove the file"
                )
        return pieces

    def __enter__(self) -> FragmentFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def merge_ranges(ranges: Sequence[tuple[int, int]], gap: int) -> list[tuple[int, int]]:
    """Return (start, stop) ranges in ascending order, merged where at most `gap` lies between."""
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
    """Return the bytes of each range. Ranges with at most `gap` bytes between are read as one."""
    merged = merge_ranges(ranges, gap)
    # The view of an Arrow buffer has signed bytes, so cast it.
    views = [memoryview(data).cast("B") for data in read(merged)] if merged else []
    starts = [start for start, _ in merged]
    pieces = []
    for start, stop in ranges:
        index = bisect_right(starts, start) - 1
        pieces.append(views[index][start - starts[index] : stop - starts[index]])
    return pieces


def copy_pieces(
    read: Callable[[Sequence[tuple[int, int]]], list[bytes]],
    offsets: np.ndarray,
    sizes: np.ndarray,
    out: np.ndarray,
    gap: int,
) -> int:
    """Do what `RandomAccessFile.read_pieces` does, with few requests."""
    ranges = list(zip(offsets.tolist(), (offsets + sizes).tolist(), strict=True))
    target, start, num_bytes = out.reshape(-1).data.cast("B"), 0, 0
    pieces = read_merged_ranges(read, ranges, gap)
    for piece, size in zip(pieces, sizes.tolist(), strict=True):
        target[start : start + size] = bytes(piece).ljust(size, b"\0")
        start += size
        num_bytes += len(piece)
    return num_bytes
