"""How files of the index folder are read and written: whole, on disk, with the data's permissions.
(One that nobody else may look into would fail the listing of the data itself.)"""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
import stat
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.fs as pafs
import xxhash

from zonebloom.errors import CatalogError, CommitConflict, CorruptIndex, ZoneBloomError
from zonebloom.storage.files import is_local
from zonebloom.storage.object_store import reader_of

# Of file systems that have no such thing.
_NOT_SYNCED = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)
# Syncs that wait together are served by one write of the file system's journal.
_THREADS = 16


class Gone(CorruptIndex):
    """A file of the index is not there."""


def missing(filesystem: pafs.FileSystem, sizes: Mapping[str, int]) -> str | None:
    """The path of a file that is not there, or has another size; None when all are."""
    infos = filesystem.get_file_info(list(sizes))
    for info, (path, size) in zip(infos, sizes.items(), strict=True):
        if info.type != pafs.FileType.File or info.size != size:
            return path
    return None


def whole(filesystem: pafs.FileSystem, path: str) -> pa.Buffer:
    """All of a file; of a store in one request."""
    store = reader_of(filesystem, path)
    if store is not None:
        return store.read(path)
    # A local file system may have been told to map what it opens.
    with pa.OSFile(path) if is_local(filesystem) else filesystem.open_input_file(path) as file:
        return file.read_buffer()


def read_file(
    filesystem: pafs.FileSystem, path: str, num_bytes: int, checksum: str | None
) -> pa.Buffer:
    """The bytes of a file of the index, in memory: what was verified is what is used."""
    try:
        buffer = whole(filesystem, path)
    except OSError as error:
        kind = Gone if isinstance(error, FileNotFoundError) else CorruptIndex
        raise kind(f"cannot open {path} ({error}); build the index again") from None
    if buffer.size != num_bytes:
        raise CorruptIndex(
            f"{path} has {buffer.size:,} bytes, {num_bytes:,} were written; build the index again"
        )
    if checksum is not None and xxhash.xxh3_64_hexdigest(buffer) != checksum:
        raise CorruptIndex(f"the checksum of {path} does not match; build the index again")
    return buffer


def write_whole(
    path: str, data: bytes, prepare: Callable[[str], None], place: Callable[[str, str], None]
) -> bool:
    """Write a local file that is on disk before `place` names it; whether the name was free."""
    draft = os.path.join(os.path.dirname(path), f".{uuid.uuid4().hex}")
    try:
        prepare(draft)
        with open(draft, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        place(draft, path)
    except FileExistsError:
        return False
    finally:
        # Once it is linked the file is there, whatever fails.
        with contextlib.suppress(OSError):
            os.unlink(draft)
    return True


def sync_files(paths: Iterable[str]) -> None:
    """Bring local files, and the folders that name them, to disk."""
    files = sorted(paths)
    if not files:
        return
    folders = {posixpath.dirname(path) for path in files}
    folders |= {posixpath.dirname(folder) for folder in folders}
    with ThreadPoolExecutor(min(_THREADS, len(files))) as pool:
        # The files first: a name is of use only when what it names is there.
        list(pool.map(sync, files))
        list(pool.map(sync, sorted(folders)))


def sync(path: str) -> None:
    if os.name != "posix":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _NOT_SYNCED:
            raise
    finally:
        os.close(handle)


def make_folder(path: str, like: str) -> None:
    """Make a local folder and those above it, with the permissions of another."""
    missing = []
    while path and not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for folder in reversed(missing):
        try:
            os.mkdir(folder)
        except FileExistsError:
            # Another writer was faster.
            continue
        _share(folder, os.stat(like), 0o2777)


def make_file(path: str, like: str) -> None:
    """Make an empty local file with the folder's read permissions, to be filled by its owner."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
    _share(path, os.stat(like), 0o644)


def _share(path: str, like: os.stat_result, allowed: int) -> None:
    if os.name != "posix":
        return
    mode = stat.S_IMODE(like.st_mode)
    own = os.stat(path)
    if (own.st_uid, own.st_gid) != (like.st_uid, like.st_gid):
        # Root builds for the owner of the data; others can give their file to a group of theirs.
        owner = like.st_uid if os.geteuid() == 0 else -1
        try:
            os.chown(path, owner, like.st_gid)
        except OSError:
            # What the group of the data may do is not for another group.
            mode = mode & ~0o070 | (mode & 0o007) << 3
    least = 0o700 if stat.S_ISDIR(own.st_mode) else 0o600
    with contextlib.suppress(OSError):
        os.chmod(path, mode & allowed | least)


@contextlib.contextmanager
def writing_to(folder: str) -> Iterator[None]:
    try:
        yield
    except ZoneBloomError:
        raise
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            step = "make room there, or give another index_dir"
        elif error.errno in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
            raise CommitConflict(
                f"cannot write to {folder} ({error}); something else is at work there, such as "
                "vacuum(); try again when that is done"
            ) from None
        else:
            step = "make it writable, or give another index_dir"
        raise CatalogError(f"cannot write to {folder} ({error}); {step}") from None
