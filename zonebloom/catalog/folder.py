"""Read, create and delete files of an index folder.

Files are synced to disk before a version names them. They are created exclusively, and a symbolic
link in the place of a file or of a folder of the index is not followed.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import posixpath
import stat
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import xxhash

from zonebloom.base.threads import thread_pool
from zonebloom.catalog.names import is_segment_file_name, is_segment_name
from zonebloom.errors import CatalogError, CommitConflict, CorruptIndex, ZoneBloomError
from zonebloom.storage.files import is_local, read_whole_file

# Windows has no such flag.
_NO_LINKS = getattr(os, "O_NOFOLLOW", 0)
# Error numbers of file systems that do not support fsync.
_SYNC_UNSUPPORTED = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)
# One write of the file system's journal serves all syncs that wait at the same time.
_SYNC_THREADS = 16


class MissingIndexFile(CorruptIndex):
    """An error for a file of the index that does not exist."""


def find_missing_file(filesystem: pafs.FileSystem, sizes: Mapping[str, int]) -> str | None:
    """Return the path of a file that is missing or has another size, or None if there is none."""
    infos = filesystem.get_file_info(list(sizes))
    for info, (path, size) in zip(infos, sizes.items(), strict=True):
        if info.type != pafs.FileType.File or info.size != size:
            return path
    return None


def read_file(filesystem: pafs.FileSystem, path: str, num_bytes: int, checksum: str) -> pa.Buffer:
    """Read a file of the index into memory and verify its size and checksum.

    The file is not mapped, so the verified bytes cannot change afterwards.
    """
    try:
        buffer = read_whole_file(filesystem, path, num_bytes)
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise CorruptIndex(
                f"{path} has more than the {num_bytes:,} bytes that were written; build the index "
                "again"
            ) from None
        kind = MissingIndexFile if isinstance(error, FileNotFoundError) else CorruptIndex
        raise kind(f"cannot open {path} ({error}); build the index again") from None
    if buffer.size != num_bytes:
        raise CorruptIndex(
            f"{path} has {buffer.size:,} bytes, {num_bytes:,} were written; build the index again"
        )
    if xxhash.xxh3_64_hexdigest(buffer) != checksum:
        raise CorruptIndex(f"the checksum of {path} does not match; build the index again")
    return buffer


class NewFile(io.RawIOBase):
    """A local file that is being written."""

    def __init__(self, path: str):
        os.makedirs(posixpath.dirname(path), exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINKS | getattr(os, "O_BINARY", 0)
        self._file = open(os.open(path, flags, 0o666), "wb")  # noqa: SIM115 - closed by `close`

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        return self._file.write(data)

    def sync(self) -> None:
        """Sync all bytes to disk."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._file.close()


def write_atomically(path: str, data: bytes, publish: Callable[[str, str], None]) -> bool:
    """Write a local draft, sync it, and let `publish(draft, path)` give it its name.

    Return False if `publish` raises FileExistsError because the name is taken.
    """
    require_no_link(os.path.dirname(path))
    draft = os.path.join(os.path.dirname(path), f".{uuid.uuid4().hex}")
    try:
        with NewFile(draft) as file:
            file.write(data)
            file.sync()
        publish(draft, path)
    except FileExistsError:
        return False
    finally:
        # A draft that cannot be deleted does no harm: the published file is complete.
        with contextlib.suppress(OSError):
            os.unlink(draft)
    return True


def sync_files(paths: Iterable[str]) -> None:
    """Sync local files to disk, then the folders that contain them."""
    files = sorted(paths)
    if not files:
        return
    folders = {posixpath.dirname(path) for path in files}
    folders |= {posixpath.dirname(folder) for folder in folders}
    with thread_pool(min(_SYNC_THREADS, len(files))) as pool:
        # Sync the files first: after a crash, a name without its content would be useless.
        list(pool.map(sync_path, files))
        list(pool.map(sync_path, sorted(folders)))


def sync_path(path: str) -> None:
    # Without O_NONBLOCK, opening a named pipe would block.
    handle = os.open(path, os.O_RDONLY | _NO_LINKS | getattr(os, "O_NONBLOCK", 0))
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _SYNC_UNSUPPORTED:
            raise
    finally:
        os.close(handle)


def require_no_link(path: str) -> None:
    """Raise `CatalogError` if a folder of an index is a symbolic link."""
    if os.path.islink(path):
        raise CatalogError(
            f"{path} is a symbolic link, which an index does not follow inside its folder; replace "
            "it by a folder, or give another index_dir"
        )


def list_folder(filesystem: pafs.FileSystem, path: str) -> list[pafs.FileInfo]:
    """List a folder of an index; return an empty list if it does not exist.

    Symbolic links in a local folder have the type Unknown.
    """
    if not is_local(filesystem):
        return filesystem.get_file_info(pafs.FileSelector(path, allow_not_found=True))
    require_no_link(path)
    infos = []
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(path):
            # Another process may have deleted the file since.
            with contextlib.suppress(FileNotFoundError):
                infos.append(_info(entry := posixpath.join(path, name), os.lstat(entry)))
    return infos


def _info(path: str, status: os.stat_result) -> pafs.FileInfo:
    kind = pafs.FileType.Unknown
    if stat.S_ISREG(status.st_mode):
        kind = pafs.FileType.File
    elif stat.S_ISDIR(status.st_mode):
        kind = pafs.FileType.Directory
    size = status.st_size if kind == pafs.FileType.File else None
    return pafs.FileInfo(path, kind, mtime_ns=status.st_mtime_ns, size=size)


def delete_file(filesystem: pafs.FileSystem, path: str) -> None:
    """Delete a file of an index, if it exists."""
    with contextlib.suppress(FileNotFoundError):
        if is_local(filesystem):
            require_no_link(posixpath.dirname(path))
            os.unlink(path)
        else:
            filesystem.delete_file(path)


def delete_segment(filesystem: pafs.FileSystem, path: str) -> None:
    """Delete the folder of a segment with its files.

    Raises
    ------
    OSError
        With ``errno.ENOTEMPTY`` if the folder contains anything else. In this case nothing is
        deleted, unless the other file appeared during the deletion.
    """
    infos = list_folder(filesystem, path)
    if not is_segment_name(posixpath.basename(path)) or not all(map(is_own_file, infos)):
        raise OSError(errno.ENOTEMPTY, "there are files that do not belong to the index", path)
    if not is_local(filesystem):
        filesystem.delete_dir(path)
        return
    for info in infos:
        delete_file(filesystem, info.path)
    os.rmdir(path)


def is_own_file(info: pafs.FileInfo) -> bool:
    """Return whether an entry of a segment folder is a file that a build writes there."""
    return info.type == pafs.FileType.File and is_segment_file_name(info.base_name)


@contextlib.contextmanager
def wrapping_write_errors(folder: str) -> Iterator[None]:
    try:
        yield
    except ZoneBloomError:
        raise
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            step = "make room there, or give another index_dir"
        elif error.errno in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
            raise CommitConflict(
                f"cannot write to {folder} ({error}); another process is changing it, such as "
                "vacuum(); try again when that is done"
            ) from None
        else:
            step = "make it writable, or give another index_dir"
        raise CatalogError(f"cannot write to {folder} ({error}); {step}") from None
