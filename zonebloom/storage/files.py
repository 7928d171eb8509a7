"""Where bytes come from: file systems whose reads are counted, and what identifies a file."""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import xxhash

from zonebloom.errors import FragmentUnreadable

# Of a file whose file system does not say when it was written: nothing known of it can be
# trusted later.
UNKNOWN_MTIME = -1


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """What a file must still be for an index of it to hold: size in bytes, mtime in ns."""

    size: int
    mtime_ns: int


class ReadCounter:
    """Bytes and requests of every read of a scan; threads may add to it together."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.num_bytes = 0
        self.num_requests = 0

    def add(self, num_bytes: int) -> None:
        """Count one read."""
        with self._lock:
            self.num_bytes += num_bytes
            self.num_requests += 1

    def __repr__(self) -> str:
        return f"<ReadCounter {self.num_bytes:,} bytes in {self.num_requests:,} reads>"


# Files handed to pyarrow's own threads, until those let go of them.
_open_files: weakref.WeakSet[_CountedFile] = weakref.WeakSet()
_EXIT_SECONDS = 5.0


@atexit.register
def _wait_for_readers() -> None:
    """Let pyarrow's threads drop their Python files: once Python is gone, they would abort."""
    until = time.monotonic() + _EXIT_SECONDS
    while _open_files and time.monotonic() < until:
        time.sleep(0.001)


class _CountedFile:
    """A Python file over a native one, for ``pyarrow.PythonFile``."""

    def __init__(self, native: pa.NativeFile, counter: ReadCounter):
        self._native = native
        self._counter = counter
        _open_files.add(self)

    def read(self, num_bytes: int = -1) -> bytes:
        data = self._native.read(num_bytes if num_bytes >= 0 else None)
        self._counter.add(len(data))
        return data

    def read_buffer(self, num_bytes: int = -1) -> pa.Buffer:
        data = self._native.read_buffer(num_bytes if num_bytes >= 0 else None)
        self._counter.add(data.size)
        return data

    def seek(self, position: int, whence: int = 0) -> int:
        return self._native.seek(position, whence)

    def tell(self) -> int:
        return self._native.tell()

    def size(self) -> int:
        return self._native.size()

    def close(self) -> None:
        self._native.close()

    @property
    def closed(self) -> bool:
        return self._native.closed

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return True


class _CountingHandler(pafs.FileSystemHandler):
    """Reads of a file system, counted; nothing else is asked of it."""

    def __init__(self, filesystem: pafs.FileSystem, counter: ReadCounter):
        self._filesystem = filesystem
        self._counter = counter

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def get_type_name(self) -> str:
        return self._filesystem.type_name

    def normalize_path(self, path: str) -> str:
        return self._filesystem.normalize_path(path)

    def get_file_info(self, paths: Sequence[str]) -> list[pafs.FileInfo]:
        return self._filesystem.get_file_info(list(paths))

    def get_file_info_selector(self, selector: pafs.FileSelector) -> list[pafs.FileInfo]:
        return self._filesystem.get_file_info(selector)

    def open_input_file(self, path: str) -> pa.NativeFile:
        native = self._filesystem.open_input_file(path)
        return pa.PythonFile(_CountedFile(native, self._counter), mode="r")

    def open_input_stream(self, path: str) -> pa.NativeFile:
        return self.open_input_file(path)

    def _read_only(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError("a counted file system is only read from")

    create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = _read_only
    delete_file = move = copy_file = open_output_stream = open_append_stream = _read_only


def counted(filesystem: pafs.FileSystem, counter: ReadCounter) -> pafs.FileSystem:
    """Wrap a file system so that what is read through it is added to a counter."""
    return pafs.PyFileSystem(_CountingHandler(filesystem, counter))


def is_local(filesystem: pafs.FileSystem) -> bool:
    """Whether paths of the file system can be given to ``os``."""
    return isinstance(filesystem, pafs.LocalFileSystem)


def identities(filesystem: pafs.FileSystem, paths: Iterable[str]) -> list[FileIdentity | None]:
    """What each file is now, None for one that is not there.

    Raises
    ------
    FragmentUnreadable
        When that cannot be told: a folder that may not be entered, a store that does not answer.
    """
    if is_local(filesystem):
        return [_local_identity(path) for path in paths]
    paths = list(paths)
    try:
        infos = filesystem.get_file_info(paths)
    except (OSError, pa.ArrowException):
        # Asked for again one by one: the message names the file.
        infos = [_info(filesystem, path) for path in paths]
    return [_identity(filesystem, info) for info in infos]


def _info(filesystem: pafs.FileSystem, path: str) -> pafs.FileInfo:
    try:
        return filesystem.get_file_info(path)
    except (OSError, pa.ArrowException) as error:
        raise _not_looked_at(path, error) from None


def _identity(filesystem: pafs.FileSystem, info: pafs.FileInfo) -> FileIdentity | None:
    if info.type == pafs.FileType.NotFound:
        return None
    if info.type != pafs.FileType.File:
        raise FragmentUnreadable(
            f"{info.path} is no file any more; put it back, or open the dataset again"
        )
    return FileIdentity(info.size or 0, _changed(filesystem, info))


def _not_looked_at(path: str, error: Exception) -> FragmentUnreadable:
    reason = (error.strerror if isinstance(error, OSError) else None) or error
    return FragmentUnreadable(
        f"cannot look at {path}: {reason}; make the file and its folders readable, or try again "
        "when they are"
    )


def _changed(filesystem: pafs.FileSystem, info: pafs.FileInfo) -> int:
    """When a file was last written, or a number that is another once it is written again."""
    if info.mtime_ns is not None:
        return info.mtime_ns
    handler = getattr(filesystem, "handler", None)
    if isinstance(handler, pafs.FSSpecHandler):
        # Of an object store: its entity tag and the like.
        key = str(handler.fs.ukey(info.path)).encode()
        return xxhash.xxh64_intdigest(key) >> 1
    return UNKNOWN_MTIME


def _local_identity(path: str) -> FileIdentity | None:
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _not_looked_at(path, error) from None
    return FileIdentity(status.st_size, status.st_mtime_ns)
