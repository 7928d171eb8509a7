"""Files: what identifies one, reads that are counted, and errors that name it."""

from __future__ import annotations

import contextlib
import os
import posixpath
import stat
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from itertools import zip_longest
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.fs as pafs
import xxhash

from zonebloom.base.exit_guard import GuardedBytes, usage_mark
from zonebloom.base.threads import REMOTE_THREADS
from zonebloom.errors import FragmentUnreadable, SourceError
from zonebloom.storage.object_store import StoreHandler, object_reader

# Of a file whose file system does not say when it was written: nothing known of it can be
# trusted later.
UNKNOWN_MTIME = -1

# The digest of a file up to this size covers all of its bytes.
WHOLE_BYTES = 1 << 20
_SAMPLES = 64
_SAMPLE_BYTES = 4 << 10
# Read of the end of a file that is no Parquet: where other formats have their directory too.
_TAIL_BYTES = 64 << 10
_READ_BYTES = 1 << 20
_PARQUET_ENDS = (b"PAR1", b"PARE")
_PARQUET_NAMES = (".parquet", ".parq", ".pq")

_OBJECT_STORES = ("s3", "gcs", "abfs")
# What stores call a name of an object's content, or of one version of it.
_TAGS = ("etag", "e_tag", "generation", "versionid", "version_id")


class FileIdentity(NamedTuple):
    """What a file is known by without reading it.

    Change time and inode, which nobody can set, are 0 where not known; the tag is an object store's
    own name of the content, such as its ETag, or empty.
    """

    size: int
    mtime_ns: int
    ctime_ns: int = 0
    tag: str = ""
    inode: int = 0

    def is_still(self, now: FileIdentity | None) -> bool:
        """Whether a file is what it was, by all that is known of it both times."""
        if now is None or self.size != now.size:
            return False
        if self.tag and now.tag:
            # Some libraries leave the quotes of an ETag out.
            return self.tag.strip('"') == now.tag.strip('"')
        return (
            self.mtime_ns == now.mtime_ns
            and (self.ctime_ns == now.ctime_ns or not (self.ctime_ns and now.ctime_ns))
            and (self.inode == now.inode or not (self.inode and now.inode))
        )

    def __reduce__(self) -> tuple[Any, ...]:
        # Another machine may see the same file under another inode.
        return FileIdentity, (self.size, self.mtime_ns, self.ctime_ns, self.tag)


@contextlib.contextmanager
def file_errors(
    path: str,
    advice: str = "repair or remove the file",
    verb: str = "read",
    *,
    parquet_in: pafs.FileSystem | None = None,
) -> Iterator[None]:
    """Name the file in what pyarrow or the system raises while it is read.

    With the file system of a file that should be Parquet, a file of another kind, such as a README
    in the folder of the data, is called what it is.
    """
    try:
        yield
    except SourceError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        if parquet_in is not None:
            require_parquet(parquet_in, [path])
        raise FragmentUnreadable(f"cannot {verb} {path}: {error}; {advice}") from None


def require_parquet(filesystem: pafs.FileSystem, paths: Iterable[str]) -> None:
    """Raise FragmentUnreadable for the first file that is not meant to be Parquet."""
    for path in paths:
        if not _is_foreign(filesystem, path):
            continue
        pattern = f"{posixpath.dirname(path)}/**/*.parquet"
        advice = f'open the others by a pattern: "{pattern}"'
        raise FragmentUnreadable(
            f"{path} is not a Parquet file; move it, or give it a name that begins with _ or ., or "
            + (advice if is_local(filesystem) else "name the files to use")
        )


def _is_foreign(filesystem: pafs.FileSystem, path: str) -> bool:
    """Return whether a file has neither a name nor a beginning of Parquet.

    A damaged file of Parquet has one of them.
    """
    if path.lower().endswith(_PARQUET_NAMES):
        return False
    try:
        with filesystem.open_input_file(path) as file:
            return file.read(4) not in _PARQUET_ENDS
    except (pa.ArrowException, OSError, ValueError):
        return False


class ReadCounter:
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
    """A file that is being written, of pyarrow or of Python."""

    def write(self, data: Any, /) -> object: ...

    def close(self) -> None: ...


class FileCreator(Protocol):
    """Anything that opens new files for writing: a file system, or a catalog for its own files."""

    def open_output_stream(self, path: str) -> OutputStream: ...


class _CountedFile:
    """A file that counts its reads, and raises OSError if a read ends before the file does."""

    def __init__(self, native: pa.NativeFile, counter: ReadCounter):
        self._native = native
        self._counter = counter
        self._at = 0
        self._mark = usage_mark()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._native, name)

    def seek(self, position: int, whence: int = os.SEEK_SET) -> int:
        self._at = self._native.seek(position, whence)
        return self._at

    def read(self, num_bytes: int = -1) -> bytes:
        data = self._native.read(num_bytes if num_bytes >= 0 else None)
        self._add(len(data), num_bytes)
        return data

    def read_buffer(self, num_bytes: int = -1) -> GuardedBytes:
        data = self._native.read_buffer(num_bytes if num_bytes >= 0 else None)
        self._add(data.size, num_bytes)
        return GuardedBytes(data)

    def _add(self, num_bytes: int, num_wanted: int) -> None:
        start, self._at = self._at, self._at + num_bytes
        self._counter.add(num_bytes)
        # PyArrow takes a short read for the end of what it reads, and would lose rows silently.
        if num_bytes < num_wanted or num_wanted < 0:
            size = self._native.size()
            if self._at < (size if num_wanted < 0 else min(size, start + num_wanted)):
                raise OSError(
                    f"a read at byte {start:,} returned {num_bytes:,} bytes, and the file has "
                    f"{size:,}"
                )


class _CountingHandler(pafs.FileSystemHandler):
    """A file system for reading only, whose files are `_CountedFile`."""

    def __init__(self, filesystem: pafs.FileSystem, counter: ReadCounter):
        self._filesystem = filesystem
        self._counter = counter
        # Of a scan not read to its end, files are opened still.
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

    def open_input_stream(self, path: str) -> pa.NativeFile:
        return self.open_input_file(path)

    def _read_only(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError("a counted file system is only read from")

    create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = _read_only
    delete_file = move = copy_file = open_output_stream = open_append_stream = _read_only


def counting_filesystem(filesystem: pafs.FileSystem, counter: ReadCounter) -> pafs.FileSystem:
    """Return a file system that counts reads and refuses short ones.

    The end of the process waits for its files.
    """
    return pafs.PyFileSystem(_CountingHandler(filesystem, counter))


def without_short_reads(filesystem: pafs.FileSystem) -> pafs.FileSystem:
    """Return a file system of Python that refuses short reads, or another as it is.

    PyArrow reads from its own file systems without Python. Rows are counted there instead.
    """
    return (
        counting_filesystem(filesystem, ReadCounter())
        if is_python_filesystem(filesystem)
        else filesystem
    )


def is_python_filesystem(filesystem: pafs.FileSystem) -> bool:
    """Whether pyarrow's threads call Python to read."""
    return isinstance(_base(filesystem), pafs.PyFileSystem)


def is_local(filesystem: pafs.FileSystem) -> bool:
    return isinstance(filesystem, pafs.LocalFileSystem)


def identities(
    filesystem: pafs.FileSystem,
    paths: Iterable[str],
    before: Iterable[FileIdentity | None] = (),
) -> list[FileIdentity | None]:
    """What each file is now, None for one that is gone, past any listing a file system keeps.

    Of local files that are what they were before, the same object: of many, new ones take as long
    to make as the files to look at.
    """
    paths = list(paths)
    handler = object_reader(filesystem, *paths)
    if handler is not None:
        return _of_store(handler, paths)
    if is_local(filesystem):
        return [_local_identity(*each) for each in zip_longest(paths, before)]
    is_slow = getattr(_fsspec(filesystem), "async_impl", False) or _is_object_store(filesystem)
    if len(paths) < 2 or not is_slow:
        return [_identity(filesystem, path) for path in paths]
    with ThreadPoolExecutor(min(REMOTE_THREADS, len(paths))) as pool:
        return list(pool.map(lambda path: _identity(filesystem, path), paths))


def _of_store(handler: StoreHandler, paths: Sequence[str]) -> list[FileIdentity | None]:
    """A listing tells of a thousand objects in one request; of few each is asked for."""
    listed: dict[str, FileIdentity] = {}
    if len(paths) > REMOTE_THREADS:
        # Servers of plain files have no listing.
        with contextlib.suppress(OSError):
            listed = {
                path: _store_identity(meta) for path, meta in handler.list_heads(paths).items()
            }

    def identity(path: str) -> FileIdentity | None:
        try:
            return listed.get(path) or _store_identity(handler.head(path))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unseen(path, error) from None

    if len(listed) == len(paths):
        return [listed[path] for path in paths]
    with ThreadPoolExecutor(REMOTE_THREADS) as pool:
        return list(pool.map(identity, paths))


def _store_identity(meta: Any) -> FileIdentity:
    # Whole seconds: stores answer for one object with less than they list.
    mtime_ns = int(meta["last_modified"].timestamp()) * 10**9
    return FileIdentity(meta["size"], mtime_ns, 0, _tag(meta))


def identity_of_open_file(
    filesystem: pafs.FileSystem, path: str, file: pa.NativeFile
) -> FileIdentity | None:
    """What a file that is open is, without another request where its store said so on opening."""
    tagged = _tagged_identity(file) if _is_object_store(filesystem) else None
    return tagged or identities(filesystem, [path])[0]


def forget_listings(filesystem: pafs.FileSystem) -> None:
    fsspec = _fsspec(filesystem)
    if fsspec is not None:
        fsspec.invalidate_cache()


def _fsspec(filesystem: pafs.FileSystem) -> Any:
    handler = getattr(filesystem, "handler", None)
    return handler.fs if isinstance(handler, pafs.FSSpecHandler) else None


def _is_object_store(filesystem: pafs.FileSystem) -> bool:
    return _base(filesystem).type_name in _OBJECT_STORES


def _base(filesystem: pafs.FileSystem) -> pafs.FileSystem:
    while isinstance(filesystem, pafs.SubTreeFileSystem):
        filesystem = filesystem.base_fs
    return filesystem


def _identity(filesystem: pafs.FileSystem, path: str) -> FileIdentity | None:
    fsspec = _fsspec(filesystem)
    try:
        if fsspec is not None:
            return _fsspec_identity(fsspec, path)
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
        raise _unseen(path, error) from None


def _local_identity(path: str, before: FileIdentity | None) -> FileIdentity | None:
    try:
        now = os.stat(path)
        found = now.st_size, now.st_mtime_ns, now.st_ctime_ns, "", now.st_ino
        return before if found == before else FileIdentity(*found)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise _unseen(path, error) from None


def _unseen(path: str, error: Exception) -> FragmentUnreadable:
    reason = (error.strerror if isinstance(error, OSError) else None) or error
    return FragmentUnreadable(
        f"cannot look at {path}: {reason}; make the file and its folders readable, or try "
        "again when they are"
    )


def _tag(metadata: Mapping[str, Any]) -> str:
    return next((str(metadata[key]) for key in _TAGS if metadata.get(key)), "")


def _tagged_identity(file: pa.NativeFile) -> FileIdentity | None:
    """What an object store said of an object when it was opened; None without a tag."""
    metadata = {key.lower(): value.decode() for key, value in (file.metadata() or {}).items()}
    tag, mtime_ns = _tag(metadata), UNKNOWN_MTIME
    if not tag:
        return None
    with contextlib.suppress(KeyError, ValueError):
        written = datetime.fromisoformat(metadata["last-modified"])
        mtime_ns = int(written.timestamp()) * 10**9 + written.microsecond * 1000
    return FileIdentity(file.size(), mtime_ns, 0, tag)


def _fsspec_identity(filesystem: Any, path: str) -> FileIdentity:
    # Its information may come from a folder listed once.
    filesystem.invalidate_cache(path)
    info = filesystem.info(path)
    _require_file(path, info["type"] == "file")
    tag = _tag({key.lower(): value for key, value in info.items() if isinstance(key, str)})
    mtime_ns = None if tag else pafs.FileInfo(path, mtime=info.get("mtime")).mtime_ns
    if mtime_ns is not None:
        return FileIdentity(info["size"] or 0, mtime_ns)
    # Without either, all that it says is another once the file is written again.
    whole = str(sorted(info.items(), key=str)).encode()
    tag = tag or xxhash.xxh3_64_hexdigest(whole)
    return FileIdentity(info["size"] or 0, UNKNOWN_MTIME, 0, tag)


def _require_file(path: str, is_file: bool) -> None:
    if not is_file:
        raise FragmentUnreadable(
            f"{path} is no file any more; put it back, or open the dataset again"
        )


def identity_from_status(status: os.stat_result) -> FileIdentity:
    return FileIdentity(status.st_size, status.st_mtime_ns, status.st_ctime_ns, "", status.st_ino)


def content_digest(path: str) -> str:
    """Return the XXH3-128 of a local file's size and bytes.

    Of a file over `WHOLE_BYTES` it covers the footer and samples. Two digests that differ prove a
    change there, and two that agree prove nothing.
    """
    if not stat.S_ISREG(os.stat(path).st_mode):
        return ""
    with open(path, "rb") as file:
        size = tail = file.seek(0, os.SEEK_END)
        if size > WHOLE_BYTES:
            file.seek(size - 8)
            end = file.read(8)
            footer = int.from_bytes(end[:4], "little") + 8 if end[4:] in _PARQUET_ENDS else 0
            tail = min(size, max(footer, _TAIL_BYTES))
        before = size - tail
        ranges = [(at, min(at + _READ_BYTES, size)) for at in range(before, size, _READ_BYTES)]
        if before:
            starts = (number * before // _SAMPLES for number in range(_SAMPLES))
            ranges += [(start, start + _SAMPLE_BYTES) for start in starts]
        digest = xxhash.xxh3_128(size.to_bytes(8, "little"))
        for start, stop in ranges:
            file.seek(start)
            digest.update(file.read(stop - start))
    return digest.hexdigest()
