"""Identify files without reading them, count reads, and name the file in errors."""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
import stat
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import zip_longest
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.fs as pafs
import xxhash

from zonebloom.base.exit_guard import GuardedBytes, usage_mark
from zonebloom.base.threads import REMOTE_THREADS, thread_pool
from zonebloom.errors import FragmentUnreadable, SourceError
from zonebloom.storage.object_store import StoreHandler, object_reader

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

_OBJECT_STORES = ("s3", "gcs", "abfs")
# The fields in which stores return a tag of an object's content or version.
_TAG_FIELDS = ("etag", "e_tag", "generation", "versionid", "version_id")


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
            + (advice if is_local(filesystem) else "name the files to use")
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

    def add(self, num_bytes: int) -> None:
        with self._lock:
            self.num_bytes += num_bytes
            self.num_requests += 1

    def __repr__(self) -> str:
        return f"<ReadCounter {self.num_bytes:,} bytes in {self.num_requests:,} reads>"


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


class ReadingHandler(pafs.FileSystemHandler):
    """The handler of a file system that shows the files of another one. It only reads."""

    def __init__(self, filesystem: pafs.FileSystem):
        self.filesystem = filesystem

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def get_type_name(self) -> str:
        return self.filesystem.type_name

    def normalize_path(self, path: str) -> str:
        return self.filesystem.normalize_path(path)

    def get_file_info(self, paths: Sequence[str]) -> list[pafs.FileInfo]:
        return self.filesystem.get_file_info(list(paths))

    def get_file_info_selector(self, selector: pafs.FileSelector) -> list[pafs.FileInfo]:
        return self.filesystem.get_file_info(selector)

    def open_input_stream(self, path: str) -> pa.NativeFile:
        return self.open_input_file(path)

    def read_whole_file(self, path: str, max_bytes: int) -> pa.Buffer:
        with self.open_input_file(path) as file:
            require_size(path, file.size(), max_bytes)
            return file.read_buffer()

    def _not_supported(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError("this file system is read-only")

    create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = _not_supported
    delete_file = move = copy_file = open_output_stream = open_append_stream = _not_supported


class _CountingHandler(ReadingHandler):
    """A read-only file system whose open files are `_CountedFile` objects."""

    def __init__(self, filesystem: pafs.FileSystem, counter: ReadCounter):
        super().__init__(filesystem)
        self._counter = counter
        # A scan that is not read to its end still opens files in the background.
        self._mark = usage_mark()

    def open_input_file(self, path: str) -> pa.NativeFile:
        native = self.filesystem.open_input_file(path)
        return pa.PythonFile(_CountedFile(native, self._counter), mode="r")


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
    return isinstance(_below_subtrees(filesystem)[0], pafs.PyFileSystem)


def is_local(filesystem: pafs.FileSystem) -> bool:
    return isinstance(filesystem, pafs.LocalFileSystem)


def open_regular_file(path: str) -> tuple[int, os.stat_result]:
    """Open a local file for reading. Raise OSError if it is a pipe, a device or a folder."""
    # Opening a pipe without this flag would wait for a writer.
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "it is not a regular file", path)
    return handle, status


def read_whole_file(filesystem: pafs.FileSystem, path: str, max_bytes: int) -> pa.Buffer:
    """Return the bytes of a file. A file in an object store takes one request.

    Raise OSError, before anything is read, if the file is larger than ``max_bytes``.
    """
    store = object_reader(filesystem, path)
    if store is not None:
        return store.read(path, max_bytes)
    # Do not use a local file system of the user's: it may be set to memory-map files.
    if is_local(filesystem):
        handle, status = open_regular_file(path)
        with open(handle, "rb", buffering=0) as file:
            require_size(path, status.st_size, max_bytes)
            buffer = pa.allocate_buffer(status.st_size)
            view, num_read = memoryview(buffer).cast("B"), 0
            while count := file.readinto(view[num_read:]):
                num_read += count
            return buffer if num_read == buffer.size else buffer.slice(0, num_read)
    if isinstance(handler := getattr(filesystem, "handler", None), ReadingHandler):
        return handler.read_whole_file(path, max_bytes)
    with filesystem.open_input_file(path) as file:
        require_size(path, file.size(), max_bytes)
        return file.read_buffer()


def require_size(path: str, num_bytes: int, max_bytes: int) -> None:
    if num_bytes > max_bytes:
        raise OSError(errno.EFBIG, f"it has {num_bytes:,} bytes, at most {max_bytes:,} fit", path)


def local_path(filesystem: pafs.FileSystem, path: str) -> str | None:
    """Return the path of a file on the local disk, or None if it is not there.

    Subtrees and fsspec's local file system are on the local disk, too.
    """
    below, whole_path = _below_subtrees(filesystem, path)
    if is_local(below):
        return whole_path
    protocol = getattr(_fsspec_filesystem(below), "protocol", ())
    names = (protocol,) if isinstance(protocol, str) else protocol
    return whole_path if "file" in names else None


def is_folder(filesystem: pafs.FileSystem, path: str) -> bool:
    return folder_info(filesystem, path).type == pafs.FileType.Directory


def folder_info(filesystem: pafs.FileSystem, path: str) -> pafs.FileInfo:
    """Return the information about a possible folder. A file in a store may count as missing."""
    handler = None if is_local(filesystem) else object_reader(filesystem, path)
    return filesystem.get_file_info(path) if handler is None else handler.folder_info(path)


def identities(
    filesystem: pafs.FileSystem,
    paths: Sequence[str],
    before: Iterable[FileIdentity | None] = (),
) -> list[FileIdentity | None]:
    """Return the current identity of each file, or None if it is gone. Bypass cached listings.

    An unchanged local file gets the object from `before`, because creating many new objects takes
    as long as looking at the files.
    """
    if is_local(filesystem):
        return _local_identities(paths, before)
    handler = object_reader(filesystem, *paths)
    if handler is not None:
        return _object_identities(handler, paths)
    is_slow = getattr(_fsspec_filesystem(filesystem), "async_impl", False) or _is_object_store(
        filesystem
    )
    if len(paths) < 2 or not is_slow:
        return [_identity(filesystem, path) for path in paths]
    with thread_pool(min(REMOTE_THREADS, len(paths))) as pool:
        return list(pool.map(lambda path: _identity(filesystem, path), paths))


def _object_identities(handler: StoreHandler, paths: Sequence[str]) -> list[FileIdentity | None]:
    """Return the identities of objects.

    A listing covers a thousand objects in one request, so it is tried first for many objects.
    """
    listed_identities: dict[str, FileIdentity] = {}
    if len(paths) > REMOTE_THREADS:
        # Plain HTTP servers cannot list.
        with contextlib.suppress(OSError):
            heads = handler.list_heads(paths)
            listed_identities = {
                path: _identity_from_metadata(meta) for path, meta in heads.items()
            }

    def identity(path: str) -> FileIdentity | None:
        try:
            return listed_identities.get(path) or _identity_from_metadata(handler.head(path))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _lookup_error(path, error) from None

    if len(listed_identities) == len(paths):
        return [listed_identities[path] for path in paths]
    with thread_pool(REMOTE_THREADS) as pool:
        return list(pool.map(identity, paths))


def _identity_from_metadata(meta: Any) -> FileIdentity:
    # Round to seconds: for a single object, stores return times less precisely than in listings.
    mtime_ns = int(meta["last_modified"].timestamp()) * 10**9
    return FileIdentity(meta["size"], mtime_ns, 0, _tag_of(meta))


def identity_of_open_file(
    filesystem: pafs.FileSystem, path: str, file: pa.NativeFile
) -> FileIdentity | None:
    """Return the identity of an open file, from the response to its opening where possible."""
    tagged = _tagged_identity(file) if _is_object_store(filesystem) else None
    return tagged or identities(filesystem, [path])[0]


def forget_listings(filesystem: pafs.FileSystem) -> None:
    fsspec = _fsspec_filesystem(filesystem)
    if fsspec is not None:
        fsspec.invalidate_cache()


def _fsspec_filesystem(filesystem: pafs.FileSystem) -> Any:
    handler = getattr(_below_subtrees(filesystem)[0], "handler", None)
    return handler.fs if isinstance(handler, pafs.FSSpecHandler) else None


def _is_object_store(filesystem: pafs.FileSystem) -> bool:
    return _below_subtrees(filesystem)[0].type_name in _OBJECT_STORES


def _below_subtrees(filesystem: pafs.FileSystem, path: str = "") -> tuple[pafs.FileSystem, str]:
    """Return the file system below all subtrees, and the path that a file has there."""
    while isinstance(filesystem, pafs.SubTreeFileSystem):
        path = posixpath.join(filesystem.base_path, path.lstrip("/"))
        filesystem = filesystem.base_fs
    return filesystem, path


def _identity(filesystem: pafs.FileSystem, path: str) -> FileIdentity | None:
    fsspec = _fsspec_filesystem(filesystem)
    try:
        if fsspec is not None:
            return _fsspec_identity(fsspec, _below_subtrees(filesystem, path)[1])
        if _is_object_store(filesystem):
            with filesystem.open_input_file(path) as file:
                tagged = _tagged_identity(file)
            if tagged is not None:
                return tagged
        info = filesystem.get_file_info(path)
        if info.type == pafs.FileType.NotFound:
            return None
        _require_file(path, info.type == pafs.FileType.File)
        mtime_ns = UNKNOWN_MTIME if info.mtime_ns is None else info.mtime_ns
        return FileIdentity(info.size or 0, mtime_ns)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except FragmentUnreadable:
        raise
    except Exception as error:  # noqa: BLE001 - fsspec's implementations raise errors of their own
        raise _lookup_error(path, error) from None


def _local_identities(
    paths: Sequence[str], before: Iterable[FileIdentity | None]
) -> list[FileIdentity | None]:
    found: list[FileIdentity | None] = [None] * len(paths)
    for number, (path, known) in enumerate(zip_longest(paths, before)):
        try:
            now = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, ValueError) as error:
            raise _lookup_error(path, error) from None
        fields = now.st_size, now.st_mtime_ns, now.st_ctime_ns, "", now.st_ino
        found[number] = known if fields == known else FileIdentity(*fields)
    return found


def _lookup_error(path: str, error: Exception) -> FragmentUnreadable:
    reason = (error.strerror if isinstance(error, OSError) else None) or error
    return FragmentUnreadable(
        f"cannot look at {path}: {reason}; make the file and its folders readable, or try again "
        "later"
    )


def _tag_of(metadata: Mapping[str, Any]) -> str:
    return next((str(metadata[key]) for key in _TAG_FIELDS if metadata.get(key)), "")


def _tagged_identity(file: pa.NativeFile) -> FileIdentity | None:
    """Return the identity that an object store sent with an open object, or None without a tag."""
    metadata = {key.lower(): value.decode() for key, value in (file.metadata() or {}).items()}
    tag, mtime_ns = _tag_of(metadata), UNKNOWN_MTIME
    if not tag:
        return None
    with contextlib.suppress(KeyError, ValueError):
        mtime = datetime.fromisoformat(metadata["last-modified"])
        mtime_ns = int(mtime.timestamp()) * 10**9 + mtime.microsecond * 1000
    return FileIdentity(file.size(), mtime_ns, 0, tag)


def _fsspec_identity(filesystem: Any, path: str) -> FileIdentity:
    # The information may come from a cached listing of the folder.
    filesystem.invalidate_cache(path)
    info = filesystem.info(path)
    _require_file(path, info["type"] == "file")
    tag = _tag_of({key.lower(): value for key, value in info.items() if isinstance(key, str)})
    mtime_ns = None if tag else pafs.FileInfo(path, mtime=info.get("mtime")).mtime_ns
    if mtime_ns is not None:
        return FileIdentity(info["size"] or 0, mtime_ns)
    # Without a time or tag, use a digest of all fields: some field changes when the file does.
    all_fields = str(sorted(info.items(), key=str)).encode()
    tag = tag or xxhash.xxh3_64_hexdigest(all_fields)
    return FileIdentity(info["size"] or 0, UNKNOWN_MTIME, 0, tag)


def _require_file(path: str, is_file: bool) -> None:
    if not is_file:
        raise FragmentUnreadable(
            f"{path} is no longer a file; put the file back, or open the dataset again"
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


def read_whole(path: str, size: int) -> pa.Buffer | None:
    """Return the bytes of a local file, or None if it has another size."""
    # Arrow's pool reuses memory.
    data = pa.allocate_buffer(size)
    view, count = memoryview(data).cast("B"), 0
    with open(path, "rb", buffering=0) as file:
        while count < size and (num_read := file.readinto(view[count:])):
            count += num_read
        return data if count == size and not file.read(1) else None
