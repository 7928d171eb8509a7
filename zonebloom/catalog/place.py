"""Locate the catalog of a dataset: the folder of its index, and the keys of its files there.

    lake/orders/               the data
    lake/_zonebloom/orders/    its index beside the data, which no reader of lake/orders sees
    lake/orders/_zonebloom/    its index inside the data, which some readers take for data

The index lies inside Delta and Iceberg tables, whose readers follow a log, and where the parent of
the data folder cannot hold it: at the root of a bucket or of a volume, and in folders such as
``/tmp``. Everywhere else it lies beside the data, unless the user gives an ``index_dir``.
"""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING

import pyarrow.fs as pafs

from zonebloom.catalog.store import Catalog
from zonebloom.errors import SourceError
from zonebloom.sources.source import Source
from zonebloom.storage.object_store import path_in
from zonebloom.storage.patterns import INDEX_FOLDER
from zonebloom.storage.store import store_of

if TYPE_CHECKING:
    from zonebloom.storage.encryption import Encryption


def locate_catalog(
    source: Source, index_dir: str | None, encryption: Encryption | None = None
) -> tuple[Source, Catalog]:
    """Return the files of a dataset, and the catalog of their existing or future index.

    Every way to open a dataset calls this. The returned source identifies its files as the catalog
    does: by paths below their common folder, or by whole paths.
    """
    source = source.with_absolute_paths()
    if index_dir is None and source.root in ("", "/"):
        raise SourceError(
            "the files share no folder except the root, which cannot hold their index; "
            "give index_dir"
        )
    filesystem = source.filesystem
    default_folder = default_index_folder(filesystem, source.root, source.is_table_snapshot)
    if index_dir is None:
        return source, Catalog(filesystem, default_folder, encryption)
    store = source.store
    folder = store.absolute_path(path_in(filesystem, index_dir)).rstrip("/")
    if store.resolve(folder) == store.resolve(default_folder):
        return source, Catalog(filesystem, default_folder, encryption)
    # Several datasets may share the folder, so use whole paths as keys: file names may repeat.
    return source.with_paths_as_keys(), Catalog(filesystem, folder, encryption)


def default_index_folder(filesystem: pafs.FileSystem, root: str, in_table: bool = False) -> str:
    """Return the folder of the index of a data folder.

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
    beside = None if in_table else _folder_beside(filesystem, root)
    return posixpath.join(root, INDEX_FOLDER) if beside is None else beside


def _folder_beside(filesystem: pafs.FileSystem, root: str) -> str | None:
    store = store_of(filesystem)
    parent = store.resolve(root)
    below: list[str] = []
    while not below or "=" in below[0]:
        if store.is_mount(parent):
            # The index must stay on the volume, which may be mounted elsewhere later.
            return None
        parent, name = posixpath.split(parent)
        below.insert(0, name)
    if not below[0] or not store.may_hold_index(parent):
        return None
    return posixpath.join(parent, INDEX_FOLDER, *below)
