"""Locate the catalog of a dataset: the folder of its index, and the keys of its files there."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from zonebloom.catalog.place import default_index_folders, find_index_folder
from zonebloom.catalog.store import Catalog
from zonebloom.errors import SourceError
from zonebloom.sources.source import Source
from zonebloom.storage.files import is_local
from zonebloom.storage.object_store import path_in

if TYPE_CHECKING:
    from zonebloom.storage.encryption import Encryption


def locate_catalog(
    source: Source, index_dir: str | None, encryption: Encryption | None = None
) -> tuple[Source, Catalog]:
    """Return the files of a dataset, and the catalog of their existing or future index.

    Every way to open a dataset calls this. The returned source identifies its files as the catalog
    does: by paths below their common folder, or by whole paths.
    """
    if is_local(source.filesystem):
        source = source.with_absolute_paths()
    if index_dir is None and source.root in ("", "/"):
        raise SourceError(
            "the files share no folder except the root, which cannot hold their index; "
            "give index_dir"
        )
    default_folders = default_folders_of(source)
    if index_dir is None:
        existing = find_index_folder(
            source.filesystem, source.root, source.is_table_snapshot, encryption
        )
        return source, Catalog(source.filesystem, existing or default_folders[0], encryption)
    folder = path_in(source.filesystem, index_dir)
    if is_local(source.filesystem):
        folder = os.path.abspath(folder)
    folder = folder.rstrip("/")
    default = _as_default(source, folder, default_folders)
    if default is None:
        # Several datasets may share the folder, so use whole paths as keys: file names may repeat.
        source = source.with_paths_as_keys()
    return source, Catalog(source.filesystem, default or folder, encryption)


def default_folders_of(source: Source) -> tuple[str, ...]:
    """Return the default folders for the index of a dataset, the preferred one first."""
    return default_index_folders(source.filesystem, source.root, source.is_table_snapshot)


def _as_default(source: Source, index_dir: str, defaults: Sequence[str]) -> str | None:
    """Return the default folder that `index_dir` is another spelling of, or None."""
    if not is_local(source.filesystem):
        return index_dir if index_dir in defaults else None
    real = os.path.realpath(index_dir)
    return next((folder for folder in defaults if os.path.realpath(folder) == real), None)
