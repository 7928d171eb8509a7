"""What a commit relies on: files that are there, on disk and not in the system's memory alone."""

from __future__ import annotations

import errno
import os
import posixpath
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor

import pyarrow.fs as pafs

from zonebloom.errors import CatalogError

# Of file systems that have no such thing.
_NOT_SYNCED = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)
# Syncs that wait together are served by one write of the file system's journal.
_THREADS = 16


def missing(filesystem: pafs.FileSystem, sizes: Mapping[str, int]) -> str | None:
    """The path of a file that is not there, or has another size; None when all are."""
    infos = filesystem.get_file_info(list(sizes))
    for info, (path, size) in zip(infos, sizes.items(), strict=True):
        if info.type != pafs.FileType.File or info.size != size:
            return path
    return None


def sync_files(paths: Iterable[str]) -> None:
    """Bring local files, and the folders that name them, to disk."""
    files = sorted(paths)
    if not files:
        return
    folders = {posixpath.dirname(path) for path in files}
    folders |= {posixpath.dirname(folder) for folder in folders}
    with ThreadPoolExecutor(min(_THREADS, len(files))) as pool:
        # The files first: a name is of use only when what it names is there.
        for each in (files, sorted(folders)):
            list(pool.map(sync, each))


def sync(path: str) -> None:
    """Bring a local file, or the names in a folder, to disk."""
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


def not_written(folder: str, error: OSError) -> CatalogError:
    """What to say when the index folder cannot be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        step = "make room there, or give another index_dir"
    elif error.errno in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
        step = "something else is at work there, such as vacuum(); try again when that is done"
    else:
        step = "make it writable, or give another index_dir"
    return CatalogError(f"cannot write to {folder} ({error}); {step}")
