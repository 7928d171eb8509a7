"""Locate the catalog of a dataset: the folder of its index, and the keys of its files there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zonebloom.catalog.place import default_index_folder
from zonebloom.catalog.store import Catalog
from zonebloom.errors import SourceError
from zonebloom.sources.source import Source
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
    source = source.with_absolute_paths()
    if index_dir is None and source.root in ("", "/"):
        raise SourceError(
            "the files share no folder except the root, which cannot hold their index; "
            "give index_dir"
        )
    default_folder = default_folder_of(source)
    if index_dir is None:
        return source, Catalog(source.filesystem, default_folder, encryption)
    store = source.store
    folder = store.absolute_path(path_in(source.filesystem, index_dir)).rstrip("/")
    if store.resolve(folder) == store.resolve(default_folder):
        return source, Catalog(source.filesystem, default_folder, encryption)
    # Several datasets may share the folder, so use whole paths as keys: file names may repeat.
    return source.with_paths_as_keys(), Catalog(source.filesystem, folder, encryption)


def default_folder_of(source: Source) -> str:
    """Return the default folder for the index of a dataset."""
    return default_index_folder(source.filesystem, source.root, source.is_table_snapshot)
