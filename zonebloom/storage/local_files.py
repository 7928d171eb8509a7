"""Write and list the local files of an index, without following symbolic links."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import posixpath
import stat
import uuid
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow.fs as pafs

from zonebloom.base.threads import thread_pool
from zonebloom.errors import CatalogError

# Windows has no such flag.
_NO_LINKS = getattr(os, "O_NOFOLLOW", 0)
# Error numbers of file systems that do not support fsync.
_SYNC_UNSUPPORTED = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)
# The errors of file systems without hard links, such as exFAT, SMB and many FUSE mounts.
_LINKS_UNSUPPORTED = (errno.EPERM, errno.EACCES, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)
# One write of the file system's journal serves all syncs that wait at the same time.
_SYNC_THREADS = 16


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
    """Write a draft, sync it, and let `publish(draft, path)` give it its name.

    Return False if `publish` raises FileExistsError because the name is taken.
    """
    require_no_link(os.path.dirname(path))
    draft = posixpath.join(posixpath.dirname(path), f".{uuid.uuid4().hex}")
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


def create_exclusively(path: str, data: bytes) -> bool:
    """Write and sync a new file and its name. Return False if the name is taken.

    Without hard links, others see the file while it is written.
    """
    link = getattr(os, "link", None)
    try:
        is_made = write_atomically(path, data, link) if link else _write_in_place(path, data)
    except OSError as error:
        if error.errno not in _LINKS_UNSUPPORTED:
            raise
        is_made = _write_in_place(path, data)
    if is_made:
        with contextlib.suppress(OSError):
            sync_path(os.path.dirname(path))
    return is_made


def _write_in_place(path: str, data: bytes) -> bool:
    try:
        file = NewFile(path)
    except FileExistsError:
        return False
    try:
        with file:
            file.write(data)
            file.sync()
    except BaseException:
        # If the deletion fails, others skip what is there, because its checksum is wrong.
        with contextlib.suppress(OSError):
            os.unlink(path)
        raise
    return True


def sync_files(paths: Iterable[str]) -> None:
    """Sync files to disk, then the folders that contain them."""
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
    # Windows syncs only files that are open for writing, and no folders.
    if os.name == "nt" and os.path.isdir(path):
        return
    access = os.O_RDWR if os.name == "nt" else os.O_RDONLY
    # Without O_NONBLOCK, opening a named pipe would block.
    handle = os.open(path, access | _NO_LINKS | getattr(os, "O_NONBLOCK", 0))
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


def list_without_links(folder: str) -> list[pafs.FileInfo]:
    """Return the entries of a folder. Symbolic links have the type Unknown."""
    require_no_link(folder)
    infos = []
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(folder):
            # Another process may have deleted the file since.
            with contextlib.suppress(FileNotFoundError):
                infos.append(_info(path := posixpath.join(folder, name), os.lstat(path)))
    return infos


def _info(path: str, status: os.stat_result) -> pafs.FileInfo:
    kind = pafs.FileType.Unknown
    if stat.S_ISREG(status.st_mode):
        kind = pafs.FileType.File
    elif stat.S_ISDIR(status.st_mode):
        kind = pafs.FileType.Directory
    size = status.st_size if kind == pafs.FileType.File else None
    return pafs.FileInfo(path, kind, mtime_ns=status.st_mtime_ns, size=size)
