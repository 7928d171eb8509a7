"""Find the folder of the index of a data folder, or choose one for a new index.

    lake/orders/               the data
    lake/_zonebloom/orders/    its index beside the data, which no reader of lake/orders sees
    lake/orders/_zonebloom/    its index inside the data, which some readers take for data

A new index is created beside the data. It is created inside if the data folder has no parent that
can hold it, and in Delta and Iceberg tables, whose readers follow a log. An existing index inside
stays in use. If both folders have an index, the one beside the data is used.
"""

from __future__ import annotations

import os
import posixpath
import stat
import uuid
from contextlib import suppress
from functools import partial
from itertools import compress
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.fs as pafs

from zonebloom.base.threads import thread_pool
from zonebloom.catalog.names import VERSIONS
from zonebloom.catalog.store import Catalog
from zonebloom.errors import CatalogError
from zonebloom.storage.files import is_folder, is_local
from zonebloom.storage.object_store import obstore_handler
from zonebloom.storage.paths import folders_above
from zonebloom.storage.patterns import INDEX_FOLDER, data_folder_of

if TYPE_CHECKING:
    from zonebloom.storage.encryption import Encryption


def default_index_folders(
    filesystem: pafs.FileSystem, root: str, in_table: bool = False
) -> tuple[str, ...]:
    """Return the folders that may hold the index of a data folder, the preferred one first.

    A symbolic link to a local folder has the same index folder as its target. Indices of partition
    folders such as ``lake/orders/day=1`` lie beside the whole dataset, in
    ``lake/_zonebloom/orders/day=1``.

    Parameters
    ----------
    filesystem : pyarrow.fs.FileSystem
    root : str
        The data folder.
    in_table : bool
        Whether the folder belongs to a Delta or Iceberg table.
    """
    inside = posixpath.join(root, INDEX_FOLDER)
    beside = None if in_table else _folder_beside(filesystem, root)
    return (inside,) if beside in (None, inside) else (beside, inside)


def _folder_beside(filesystem: pafs.FileSystem, root: str) -> str | None:
    parent = os.path.realpath(root) if is_local(filesystem) else root.rstrip("/")
    below: list[str] = []
    while not below or "=" in below[0]:
        if is_local(filesystem) and os.path.ismount(parent):
            # The index must stay on the volume, which may be mounted elsewhere later.
            return None
        parent, name = posixpath.split(parent)
        below.insert(0, name)
    # The first part of a path in a PyArrow object store is a bucket, which must not be created.
    has_bucket = obstore_handler(filesystem) is None and not isinstance(
        filesystem, pafs.SubTreeFileSystem
    )
    if not below[0] or (has_bucket and not parent.strip("/")) or _is_sticky(filesystem, parent):
        return None
    return posixpath.join(parent, INDEX_FOLDER, *below)


def _is_sticky(filesystem: pafs.FileSystem, folder: str) -> bool:
    """Return whether a local folder has the sticky bit, as /tmp has.

    In such a folder, another user could create an index that hides rows, and the owner of the data
    could not delete it.
    """
    if not is_local(filesystem):
        return False
    try:
        return bool(os.stat(folder).st_mode & stat.S_ISVTX)
    except OSError:
        return False


def find_index_folder(
    filesystem: pafs.FileSystem,
    root: str,
    in_table: bool = False,
    encryption: Encryption | None = None,
) -> str | None:
    """Return the folder of the index of a data folder, or None if there is none.

    The first arguments are those of `default_index_folders`. `encryption` is needed only to see
    that an encrypted index was moved, if an interrupted move left both.
    """
    folders = default_index_folders(filesystem, root, in_table)
    if is_local(filesystem) or len(folders) == 1:
        may_hold_index = [_may_hold_index(filesystem, folder) for folder in folders]
    else:
        with thread_pool(len(folders)) as pool:
            may_hold_index = list(pool.map(partial(_may_hold_index, filesystem), folders))
    existing = list(compress(folders, may_hold_index))
    if existing == [folders[0]] != [folders[-1]]:
        return folders[0]
    # The folder inside may also hold the indices of folders below the data, and an interrupted
    # move may have left a folder without a version. So a folder needs a version to be an index.
    numbers = {folder: _newest_number(filesystem, folder) for folder in existing}
    readable = [folder for folder in existing if numbers[folder]]
    unreadable = [folder for folder in existing if numbers[folder] is None]
    if len(readable) > 1:
        # An interrupted move may have deleted some files of the old index.
        catalogs = [Catalog(filesystem, folder, encryption) for folder in readable]
        readable = [
            catalog.folder for catalog in catalogs if _new_folder(catalog) not in readable
        ] or readable
    return next(iter([*readable, *unreadable]), None)


def _new_folder(catalog: Catalog) -> str:
    """Return the folder that an index was moved to, or "" if that is not known."""
    try:
        return catalog.version_without_fragments(catalog.newest_number()).moved_to
    except (CatalogError, pa.ArrowException):
        return ""


def _may_hold_index(filesystem: pafs.FileSystem, folder: str) -> bool:
    """Return whether a folder has a folder of versions, or cannot be read."""
    try:
        return is_folder(filesystem, posixpath.join(folder, VERSIONS))
    except (OSError, pa.ArrowException):
        # Assume that there is an index. If its catalog cannot be read either, that is reported.
        return True


def _newest_number(filesystem: pafs.FileSystem, folder: str) -> int | None:
    """Return the number of the newest version, 0 if there is none, None if it is unreadable."""
    try:
        return Catalog(filesystem, folder).newest_number()
    except (CatalogError, pa.ArrowException):
        return None


def current_index_folder(
    filesystem: pafs.FileSystem, path: str, folder: str, in_table: bool = False
) -> str:
    """Return the current folder of an index that was in `folder`. It may have been moved.

    If `folder` is a default folder of the path or of a folder above it, the other default folders
    are searched too.
    """
    if not _may_hold_index(filesystem, folder):
        for root in folders_above(path):
            if folder in default_index_folders(filesystem, root, in_table):
                return find_index_folder(filesystem, root, in_table) or folder
    return folder


def root_of_index(filesystem: pafs.FileSystem, path: str, folder: str) -> str | None:
    """Return the data folder of an index, spelled as in `path`, or None if it has none."""
    for root in folders_above(path):
        if folder in default_index_folders(filesystem, root):
            return root
    return data_folder_of(folder)


def can_create_index(filesystem: pafs.FileSystem, folder: str) -> bool:
    """Return whether an index can be created in a folder. In a store, this writes a test file."""
    if is_local(filesystem):
        folder = os.path.abspath(folder)
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
