"""The places where the index of a data folder may lie, and the one where it lies.

    lake/orders/               the data
    lake/_zonebloom/orders/    its index, beside the data: no reader of lake/orders comes by
    lake/orders/_zonebloom/    its index, inside the data: some readers take its files for data

A new index is made beside the data. It is made inside where the data folder has no parent that can
hold it, and in Delta and Iceberg tables, whose readers follow a log. An index that is inside
already stays in use there. If there is an index in both places, all use the one beside the data.
"""

from __future__ import annotations

import os
import posixpath
import stat
import uuid
from collections.abc import Iterator
from contextlib import suppress

import pyarrow as pa
import pyarrow.fs as pafs

from zonebloom.catalog.store import Catalog
from zonebloom.errors import CatalogError
from zonebloom.storage.files import is_local
from zonebloom.storage.object_store import obstore_handler
from zonebloom.storage.patterns import INDEX_FOLDER, data_folder_of


def default_index_folders(
    filesystem: pafs.FileSystem, root: str, in_table: bool = False
) -> tuple[str, ...]:
    """Return the folders that may hold the index of a data folder, the default one first.

    Two spellings of a local folder, such as a symbolic link and its target, share one default.
    Partition folders such as ``lake/orders/day=1`` have theirs beside the whole dataset, in
    ``lake/_zonebloom/orders/day=1``.

    Parameters
    ----------
    filesystem : pyarrow.fs.FileSystem
    root : str
        The data folder.
    in_table : bool
        Whether the folder is of a Delta or Iceberg table.
    """
    inside = posixpath.join(root, INDEX_FOLDER)
    beside = None if in_table else _place_beside(filesystem, root)
    return (inside,) if beside in (None, inside) else (beside, inside)


def _place_beside(filesystem: pafs.FileSystem, root: str) -> str | None:
    parent = os.path.realpath(root) if is_local(filesystem) else root.rstrip("/")
    below: list[str] = []
    while not below or "=" in below[0]:
        if is_local(filesystem) and os.path.ismount(parent):
            # The index must come along when the volume is mounted elsewhere.
            return None
        parent, name = posixpath.split(parent)
        below.insert(0, name)
    # In pyarrow's stores the first part of a path is a bucket, which must not be made.
    has_bucket = obstore_handler(filesystem) is None and not isinstance(
        filesystem, pafs.SubTreeFileSystem
    )
    if not below[0] or (has_bucket and not parent.strip("/")) or _is_sticky(filesystem, parent):
        return None
    return posixpath.join(parent, INDEX_FOLDER, *below)


def _is_sticky(filesystem: pafs.FileSystem, folder: str) -> bool:
    """Return whether a local folder is like /tmp, where users cannot replace each other's folders.

    Beside the data of one user, another could put an index there that hides rows.
    """
    if not is_local(filesystem):
        return False
    try:
        return bool(os.stat(folder).st_mode & stat.S_ISVTX)
    except OSError:
        return False


def find_index_folder(filesystem: pafs.FileSystem, root: str, in_table: bool = False) -> str | None:
    """Return the folder of the index of a data folder, None if there is none.

    The arguments are those of `index_places`.
    """
    places = default_index_folders(filesystem, root, in_table)
    there = [place for place in places if _may_exist(filesystem, place)]
    if there == [places[0]] != [places[-1]]:
        return places[0]
    # A folder inside may also be what holds the indices of the folders below, and a move may have
    # died before it wrote a version. So only a version makes a folder an index.
    numbers = {place: _newest_number(filesystem, place) for place in there}
    readable = (place for place in there if numbers[place])
    unreadable = (place for place in there if numbers[place] is None)
    return next(readable, None) or next(unreadable, None)


def _may_exist(filesystem: pafs.FileSystem, folder: str) -> bool:
    """Return whether a folder holds an index, as far as one look tells."""
    try:
        versions = posixpath.join(folder, "versions")
        return filesystem.get_file_info(versions).type == pafs.FileType.Directory
    except (OSError, pa.ArrowException):
        # The catalog says so when it cannot be read either.
        return True


def _newest_number(filesystem: pafs.FileSystem, folder: str) -> int | None:
    """Return the number of the newest version, 0 without any, None if the folder is unreadable."""
    try:
        return Catalog(filesystem, folder).newest_number()
    except (CatalogError, pa.ArrowException):
        return None


def was_index_read(filesystem: pafs.FileSystem, folder: str) -> bool:
    """Return whether this process has read an index in a folder, which may be gone by now."""
    return Catalog(filesystem, folder).was_read


def folders_above(path: str) -> Iterator[str]:
    """Yield a path and all folders above it but the root, the nearest first."""
    while path.strip("/"):
        yield path
        path = posixpath.dirname(path)


def current_index_folder(
    filesystem: pafs.FileSystem, path: str, folder: str, in_table: bool = False
) -> str:
    """Return where an index is now that was in a folder, which is another one if it was moved.

    Only an index at a default place of the path, or of a folder above, is looked for elsewhere.
    """
    if not _may_exist(filesystem, folder):
        for root in folders_above(path):
            if folder in default_index_folders(filesystem, root, in_table):
                return find_index_folder(filesystem, root, in_table) or folder
    return folder


def root_of_index(filesystem: pafs.FileSystem, path: str, folder: str) -> str | None:
    """Return the data folder of an index as a path in it is spelled, None if it has no such one."""
    for root in folders_above(path):
        if folder in default_index_folders(filesystem, root):
            return root
    return data_folder_of(folder)


def is_writable(filesystem: pafs.FileSystem, folder: str) -> bool:
    """Return whether an index can be made in a folder. In a store, this writes a file there."""
    if is_local(filesystem):
        while not os.path.lexists(folder):
            folder = os.path.dirname(folder)
        return os.path.isdir(folder) and os.access(
            folder, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids
        )
    probe = posixpath.join(folder, f".{uuid.uuid4().hex}")
    try:
        filesystem.create_dir(folder, recursive=True)
        with filesystem.open_output_stream(probe) as sink:
            sink.write(b"")
    except (OSError, NotImplementedError, pa.ArrowException):
        return False
    with suppress(OSError):
        filesystem.delete_file(probe)
    return True
