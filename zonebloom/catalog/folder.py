"""Read, create and delete files of an index folder.

Files are synced to disk before a version names them. Local files and folders get the permissions of
the data folder. Otherwise, an index folder that nobody else may enter would break listings of the
data.

Root may build an index in a folder that other users can write to. So files are created exclusively,
and symbolic links inside the index folder are not followed: every folder below `base` is opened
from the descriptor of its parent. Owners and permissions are also changed by descriptor. A file
gets its permissions after its last byte was written.
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
from zonebloom.catalog.names import is_own_name, is_segment_file_name, is_segment_name
from zonebloom.errors import CatalogError, CommitConflict, CorruptIndex, ZoneBloomError
from zonebloom.storage.files import OutputStream, is_local, read_whole_file

_FOLDER = os.O_RDONLY | os.O_DIRECTORY
# Error numbers of file systems that do not support fsync.
_SYNC_UNSUPPORTED = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)
_CHUNK_BYTES = 16 << 20
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
    """A local file that is being written. Only its owner may open it until it is complete."""

    def __init__(self, handle: int, model: os.stat_result):
        self._file = open(handle, "wb")  # noqa: SIM115 - closed by `close`
        self._model = model

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        return self._file.write(data)

    def sync(self) -> None:
        """Set the final permissions, and sync all bytes to disk."""
        self._share()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        if self.closed:
            return
        try:
            self._share()
        finally:
            super().close()
            self._file.close()

    def _share(self) -> None:
        self._file.flush()
        _share(self._file.fileno(), self._model, 0o644)


def create_file(path: str, base: str, model_folder: str) -> NewFile:
    """Create a local file that does not exist yet, with the permissions of `model_folder`."""
    with open_folder(path=posixpath.dirname(path), base=base, model_folder=model_folder) as folder:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        handle = os.open(posixpath.basename(path), flags, 0o600, dir_fd=folder)
    return NewFile(handle, os.stat(model_folder))


def write_atomically(
    path: str, data: bytes, create: Callable[[str], NewFile], publish: Callable[[str, str], None]
) -> bool:
    """Write a local draft, sync it, and let `publish(draft, path)` give it its name.

    Return False if `publish` raises FileExistsError because the name is taken.
    """
    draft = os.path.join(os.path.dirname(path), f".{uuid.uuid4().hex}")
    try:
        with create(draft) as file:
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
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _SYNC_UNSUPPORTED:
            raise
    finally:
        os.close(handle)


@contextlib.contextmanager
def open_folder(path: str, base: str, model_folder: str | None = None) -> Iterator[int]:
    """Open a local folder, and yield its descriptor.

    Symbolic links in the path of `base` are followed, and those below it are not. If `model_folder`
    is given, missing folders are created with its permissions.

    Raises
    ------
    CatalogError
        If a folder below `base` is a symbolic link.
    """
    top = base
    while model_folder is not None and top and not os.path.isdir(top):
        top = os.path.dirname(top)
    handle = os.open(top or ".", _FOLDER)
    try:
        for name in _names_below(path, top):
            child = _open_child(handle, name, path, model_folder)
            os.close(handle)
            handle = child
        yield handle
    finally:
        os.close(handle)


def _names_below(path: str, top: str) -> list[str]:
    below = os.path.relpath(path, top or ".")
    return [] if below == os.curdir else below.split(os.sep)


def _open_child(folder: int, name: str, path: str, model_folder: str | None) -> int:
    is_new = False
    if model_folder is not None:
        # Another writer may have created it.
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=folder)
            is_new = True
    try:
        child = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)
    except OSError as error:
        if not isinstance(error, FileNotFoundError) and _is_link(name, folder):
            raise CatalogError(
                f"{name} in {path} is a symbolic link, which an index does not follow inside its "
                "folder; replace it by a folder, or give another index_dir"
            ) from None
        raise
    # The owner of the parent folder could have swapped in another folder after mkdir. Change
    # permissions only if everything in it belongs to an index.
    if is_new and model_folder is not None and all(map(is_own_name, os.listdir(child))):
        _share(child, os.stat(model_folder), 0o2777)
    return child


def _is_link(name: str, folder: int) -> bool:
    return stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)


def _share(handle: int, model: os.stat_result, allowed: int) -> None:
    """Give an open file or folder the owner, group and permissions of a model, where possible."""
    mode = stat.S_IMODE(model.st_mode)
    own = os.fstat(handle)
    if (own.st_uid, own.st_gid) != (model.st_uid, model.st_gid):
        # Only root may change the owner. Other users may choose among their own groups.
        owner = model.st_uid if os.geteuid() == 0 else -1
        try:
            os.fchown(handle, owner, model.st_gid)
        except OSError:
            # The group could not be set, so give the group the permissions of all other users.
            mode = mode & ~0o070 | (mode & 0o007) << 3
    least = 0o700 if stat.S_ISDIR(own.st_mode) else 0o600
    with contextlib.suppress(OSError):
        os.fchmod(handle, mode & allowed | least)


def list_folder(filesystem: pafs.FileSystem, path: str, base: str) -> list[pafs.FileInfo]:
    """List a folder; return an empty list if it does not exist.

    Symbolic links in a local folder have the type Unknown.
    """
    if not is_local(filesystem):
        return filesystem.get_file_info(pafs.FileSelector(path, allow_not_found=True))
    infos = []
    with contextlib.suppress(FileNotFoundError), open_folder(path, base) as folder:
        for name in os.listdir(folder):
            # Another process may have deleted the file since.
            with contextlib.suppress(FileNotFoundError):
                status = os.stat(name, dir_fd=folder, follow_symlinks=False)
                infos.append(_info(posixpath.join(path, name), status))
    return infos


def _info(path: str, status: os.stat_result) -> pafs.FileInfo:
    kind = pafs.FileType.Unknown
    if stat.S_ISREG(status.st_mode):
        kind = pafs.FileType.File
    elif stat.S_ISDIR(status.st_mode):
        kind = pafs.FileType.Directory
    size = status.st_size if kind == pafs.FileType.File else None
    return pafs.FileInfo(path, kind, mtime_ns=status.st_mtime_ns, size=size)


def delete_file(filesystem: pafs.FileSystem, path: str, base: str) -> None:
    """Delete a file of an index, if it exists."""
    with contextlib.suppress(FileNotFoundError):
        if not is_local(filesystem):
            filesystem.delete_file(path)
            return
        with open_folder(posixpath.dirname(path), base) as folder:
            os.unlink(posixpath.basename(path), dir_fd=folder)


def delete_segment(filesystem: pafs.FileSystem, path: str, base: str) -> None:
    """Delete the folder of a segment with its files.

    Raises
    ------
    OSError
        With ``errno.ENOTEMPTY`` if the folder contains anything else. In this case nothing is
        deleted, unless the other file appeared during the deletion.
    """
    infos = list_folder(filesystem, path, base)
    if not is_segment_name(posixpath.basename(path)) or not all(map(is_own_file, infos)):
        raise OSError(errno.ENOTEMPTY, "there are files that do not belong to the index", path)
    if not is_local(filesystem):
        filesystem.delete_dir(path)
        return
    for info in infos:
        delete_file(filesystem, info.path, base)
    with open_folder(posixpath.dirname(path), base) as folder:
        os.rmdir(posixpath.basename(path), dir_fd=folder)


def is_own_file(info: pafs.FileInfo) -> bool:
    """Return whether an entry of a segment folder is a file that a build writes there."""
    return info.type == pafs.FileType.File and is_segment_file_name(info.base_name)


def copy_file(
    source_filesystem: pafs.FileSystem,
    source: str,
    target_filesystem: pafs.FileSystem,
    target: str,
    create: Callable[[str], OutputStream],
) -> None:
    """Copy the bytes of a file, and verify the copy. Raise `CatalogError` if it differs."""
    digest = xxhash.xxh3_128()
    with contextlib.closing(create(target)) as sink:
        for chunk in _chunks(source_filesystem, source):
            digest.update(chunk)
            sink.write(chunk)
    copy_digest = xxhash.xxh3_128()
    for chunk in _chunks(target_filesystem, target):
        copy_digest.update(chunk)
    if copy_digest.digest() != digest.digest():
        raise CatalogError(f"{target} is not a copy of {source}, which may have changed; try again")


def _chunks(filesystem: pafs.FileSystem, path: str) -> Iterator[bytes]:
    with filesystem.open_input_file(path) as file:
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk


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
