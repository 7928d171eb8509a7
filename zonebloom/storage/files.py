"""Identify files without reading them, count reads, and name the file in errors."""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
import stat
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.fs as pafs
import xxhash

from zonebloom.base.exit_guard import GuardedBytes, usage_mark
from zonebloom.errors import FragmentUnreadable, SourceError

# Errors of pyarrow and the system about a file. `SourceError` is one of them.
FILE_ERRORS = (pa.ArrowException, OSError, ValueError)
# This stands for a file system that does not say when a file was written. Nothing that is known
# about such a file can be trusted later.
UNKNOWN_MTIME = -1

# The digest of a file up to this size covers all of its bytes.
WHOLE_BYTES = 1 << 20
_NUM_SAMPLES = 64
_SAMPLE_BYTES = 4 << 10
# Bytes at the end that a digest covers in files other than Parquet, which often have their table of
# contents there.
_DIGEST_TAIL_BYTES = 64 << 10
_DIGEST_READ_BYTES = 1 << 20
_PARQUET_MAGICS = (b"PAR1", b"PARE")
PARQUET_EXTENSIONS = (".parquet", ".parq", ".pq")


class FileIdentity(NamedTuple):
    """The size, times, inode and tag that identify a state of a file without reading it.

    Users cannot set the change time and the inode; both are 0 if unknown. The tag is an object
    store's name for the content, such as its ETag, or empty.
    """

    size: int
    mtime_ns: int
    ctime_ns: int = 0
    tag: str = ""
    inode: int = 0

    def is_still(self, now: FileIdentity | None) -> bool:
        """Return whether the file is unchanged. Compare only what is known in both identities."""
        if now is None or self.size != now.size:
            return False
        if self.tag and now.tag:
            # Some libraries drop the quotes of an ETag.
            return self.tag.strip('"') == now.tag.strip('"')
        return (
            self.mtime_ns == now.mtime_ns
            and (self.ctime_ns == now.ctime_ns or not (self.ctime_ns and now.ctime_ns))
            and (self.inode == now.inode or not (self.inode and now.inode))
        )

    def __reduce__(self) -> tuple[Any, ...]:
        # Another machine may see the same file under another inode.
        return FileIdentity, (self.size, self.mtime_ns, self.ctime_ns, self.tag)


_SECOND = 10**9
# File systems that store times in whole seconds may round them to two seconds.
COARSE_REST_NS = 2 * _SECOND
# Other file systems use the time of the last kernel tick, which is at most 10 ms old.
FINE_REST_NS = _SECOND // 20


def is_at_rest(identity: FileIdentity, at: int) -> bool:
    """Return whether every write to a file after a time would change its identity."""
    return bool(identity.tag) or rests_from(identity) < at


def rests_from(identity: FileIdentity) -> int:
    """Return the time from which on a file is at rest, in ns since 1970."""
    written = written_at(identity)
    return written + rest_ns(written)


def written_at(identity: FileIdentity) -> int:
    # Prefer the change time: every write sets it, and users cannot set it back.
    return identity.ctime_ns or identity.mtime_ns


def rest_ns(written: int) -> int:
    """Return how long after a write the next one may leave the times as they are, in ns."""
    return FINE_REST_NS if written % _SECOND else COARSE_REST_NS


@contextlib.contextmanager
def file_errors(
    path: str,
    advice: str = "repair or remove the file",
    verb: str = "read",
    *,
    parquet_in: pafs.FileSystem | None = None,
) -> Iterator[None]:
    """Turn errors of pyarrow and the system into `FragmentUnreadable` errors that name the file.

    Give the file system of a file that should be Parquet as `parquet_in`. The error then says if
    the file is of another kind, such as a README among the data.
    """
    try:
        yield
    except FILE_ERRORS as error:
        if parquet_in is not None and not isinstance(error, SourceError):
            require_parquet(parquet_in, [path])
        raise unreadable(path, error, advice, verb) from None


def unreadable(
    path: str, error: BaseException, advice: str = "repair or remove the file", verb: str = "read"
) -> SourceError:
    """Return the error to raise for a file in place of an error of pyarrow or the system."""
    if isinstance(error, SourceError):
        return error
    if isinstance(error, PermissionError) and verb != "write":
        # The content may be sound, so no advice to repair, replace or remove it fits.
        advice = "make it readable"
    return FragmentUnreadable(f"cannot {verb} {path}: {error}; {advice}")


def require_parquet(filesystem: pafs.FileSystem, paths: Iterable[str]) -> None:
    """Raise FragmentUnreadable for the first file that is not meant to be Parquet."""
    for path in paths:
        if not _is_other_format(filesystem, path):
            continue
        pattern = f"{posixpath.dirname(path)}/**/*.parquet"
        advice = f'open the others by a pattern: "{pattern}"'
        raise FragmentUnreadable(
            f"{path} is not a Parquet file; move it, or give it a name that begins with _ or ., or "
            + (advice if isinstance(filesystem, pafs.LocalFileSystem) else "name the files to use")
        )


def _is_other_format(filesystem: pafs.FileSystem, path: str) -> bool:
    """Return whether a file has neither an extension nor a magic number of Parquet.

    A damaged Parquet file has at least one of them.
    """
    if path.lower().endswith(PARQUET_EXTENSIONS):
        return False
    try:
        with filesystem.open_input_file(path) as file:
            return file.read(4) not in _PARQUET_MAGICS
    except (pa.ArrowException, OSError, ValueError):
        return False


class ReadCounter:
    """The number of reads and bytes read, summed over threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.num_bytes: int = 0
        self.num_requests: int = 0

    def __repr__(self) -> str:
        return f"<ReadCounter {self.num_bytes:,} bytes in {self.num_requests:,} reads>"

    def add(self, num_bytes: int) -> None:
        with self._lock:
            self.num_bytes += num_bytes
            self.num_requests += 1


class OutputStream(Protocol):
    """A pyarrow or Python file that is open for writing."""

    def write(self, data: Any, /) -> object: ...

    def close(self) -> None: ...


class FileCreator(Protocol):
    """An object that opens new files for writing: a file system, or a catalog for its own files."""

    def open_output_stream(self, path: str) -> OutputStream: ...


class _CountedFile:
    """A file that counts its reads, and raises OSError if a read stops before the file ends."""

    def __init__(self, native: pa.NativeFile, counter: ReadCounter):
        self._native = native
        self._counter = counter
        self._position = 0
        self._mark = usage_mark()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._native, name)

    def seek(self, position: int, whence: int = os.SEEK_SET) -> int:
        self._position = self._native.seek(position, whence)
        return self._position

    def read(self, num_bytes: int = -1) -> bytes:
        data = self._native.read(num_bytes if num_bytes >= 0 else None)
        self._add(len(data), num_bytes)
        return data

    def read_buffer(self, num_bytes: int = -1) -> GuardedBytes:
        data = self._native.read_buffer(num_bytes if num_bytes >= 0 else None)
        self._add(data.size, num_bytes)
        return GuardedBytes(data)

    def _add(self, num_bytes: int, num_wanted: int) -> None:
        start, self._position = self._position, self._position + num_bytes
        self._counter.add(num_bytes)
        # PyArrow takes a short read for the end of the data, and would lose rows silently.
        if num_bytes < num_wanted or num_wanted < 0:
            size = self._native.size()
            if self._position < (size if num_wanted < 0 else min(size, start + num_wanted)):
                raise OSError(
                    f"a read at byte {start:,} returned only {num_bytes:,} bytes, although the "
                    f"file has {size:,}"
                )


class _CountingHandler(pafs.FileSystemHandler):
    """A read-only file system that shows another one. Its open files are `_CountedFile` objects."""

    def __init__(self, filesystem: pafs.FileSystem, counter: ReadCounter):
        self._filesystem = filesystem
        self._counter = counter
        # A scan that is not read to its end still opens files in the background.
        self._mark = usage_mark()

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

    open_input_stream = open_input_file

    def _not_supported(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError("this file system is read-only")

    create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = _not_supported
    delete_file = move = copy_file = open_output_stream = open_append_stream = _not_supported


def counting_filesystem(filesystem: pafs.FileSystem, counter: ReadCounter) -> pafs.FileSystem:
    """Return a file system that counts reads and raises OSError for short ones.

    The process does not exit before its files are released.
    """
    return pafs.PyFileSystem(_CountingHandler(filesystem, counter))


def without_short_reads(filesystem: pafs.FileSystem) -> pafs.FileSystem:
    """Wrap a Python file system so that short reads raise. Return other file systems as they are.

    PyArrow would call Python for each read of a wrapped file system, so callers count rows instead.
    """
    return (
        counting_filesystem(filesystem, ReadCounter())
        if is_python_filesystem(filesystem)
        else filesystem
    )


def is_python_filesystem(filesystem: pafs.FileSystem) -> bool:
    """Return whether pyarrow's threads call Python to read."""
    return isinstance(below_subtrees(filesystem)[0], pafs.PyFileSystem)


def open_regular_file(path: str) -> tuple[int, os.stat_result]:
    """Open a local file for reading. Raise OSError if it is a pipe, a device or a folder."""
    # Opening a pipe without this flag would wait for a writer.
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "it is not a regular file", path)
    return handle, status


def require_size(path: str, num_bytes: int, max_bytes: int) -> None:
    if num_bytes > max_bytes:
        raise OSError(errno.EFBIG, f"it has {num_bytes:,} bytes, at most {max_bytes:,} fit", path)


def below_subtrees(filesystem: pafs.FileSystem, path: str = "") -> tuple[pafs.FileSystem, str]:
    """Return the file system below all subtrees, and the path that a file has there."""
    while isinstance(filesystem, pafs.SubTreeFileSystem):
        path = posixpath.join(filesystem.base_path, path.lstrip("/"))
        filesystem = filesystem.base_fs
    return filesystem, path


def lookup_error(path: str, error: Exception) -> FragmentUnreadable:
    """Return the error to raise for a file that cannot be looked at."""
    reason = (error.strerror if isinstance(error, OSError) else None) or error
    return FragmentUnreadable(
        f"cannot look at {path}: {reason}; make the file and its folders readable, or try again "
        "later"
    )


def identity_from_status(status: os.stat_result) -> FileIdentity:
    return FileIdentity(status.st_size, status.st_mtime_ns, status.st_ctime_ns, "", status.st_ino)


def content_digest(path: str) -> str:
    """Return the XXH3-128 of a local file's size and bytes.

    For a file larger than `WHOLE_BYTES`, the digest covers the footer and samples. So different
    digests prove a change, but equal digests of large files do not prove that nothing changed.
    """
    if not stat.S_ISREG(os.stat(path).st_mode):
        return ""
    with open(path, "rb") as file:
        size = tail = file.seek(0, os.SEEK_END)
        if size > WHOLE_BYTES:
            file.seek(size - 8)
            end = file.read(8)
            footer = int.from_bytes(end[:4], "little") + 8 if end[4:] in _PARQUET_MAGICS else 0
            tail = min(size, max(footer, _DIGEST_TAIL_BYTES))
        before = size - tail
        ranges = [
            (start, min(start + _DIGEST_READ_BYTES, size))
            for start in range(before, size, _DIGEST_READ_BYTES)
        ]
        if before:
            starts = (number * before // _NUM_SAMPLES for number in range(_NUM_SAMPLES))
            ranges += [(start, start + _SAMPLE_BYTES) for start in starts]
        digest = xxhash.xxh3_128(size.to_bytes(8, "little"))
        for start, stop in ranges:
            file.seek(start)
            digest.update(file.read(stop - start))
    return digest.hexdigest()


def digest_of_bytes(data: pa.Buffer) -> str:
    """Return the `content_digest` of a file of at most `WHOLE_BYTES` with these bytes."""
    digest = xxhash.xxh3_128(data.size.to_bytes(8, "little"))
    digest.update(data)
    return digest.hexdigest()
