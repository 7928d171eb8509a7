"""Verify and delete files of an index folder."""

from __future__ import annotations

import contextlib
import errno
import posixpath
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.fs as pafs
import xxhash

from zonebloom.catalog.names import is_segment_file_name, is_segment_name
from zonebloom.errors import CatalogError, CommitConflict, CorruptIndex, ZoneBloomError
from zonebloom.storage.store import Store

if TYPE_CHECKING:
    from zonebloom.storage.encryption import IndexStore


class MissingIndexFile(CorruptIndex):
    """An error for a file of the index that does not exist."""


def find_missing_file(store: Store, sizes: Mapping[str, int]) -> str | None:
    """Return the path of a file that is missing or has another size, or None if there is none."""
    infos = store.filesystem.get_file_info(list(sizes))
    for info, (path, size) in zip(infos, sizes.items(), strict=True):
        if info.type != pafs.FileType.File or info.size != size:
            return path
    return None


def read_file(store: IndexStore, path: str, num_bytes: int, checksum: str) -> pa.Buffer:
    """Read a file of the index into memory and verify its size and checksum.

    The file is not mapped, so the verified bytes cannot change afterwards.
    """
    try:
        buffer = store.read_whole(path, num_bytes)
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


def delete_segment(store: Store, path: str) -> None:
    """Delete the folder of a segment with its files.

    Raises
    ------
    OSError
        With ``errno.ENOTEMPTY`` if the folder contains anything else. In this case nothing is
        deleted, unless the other file appeared during the deletion.
    """
    infos = store.list_index_folder(path)
    if not is_segment_name(posixpath.basename(path)) or not all(map(is_own_file, infos)):
        raise OSError(errno.ENOTEMPTY, "there are files that do not belong to the index", path)
    store.delete_folder(path)


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
