"""Move the index of a dataset to another folder.

Readers must find a complete index at any moment, and no commit may be lost meanwhile:

    1. Copy every file of the newest version, and verify the copies.
    2. Commit to the old folder that the index is being moved. This fails if another writer has
       committed since. Afterwards no writer can commit there.
    3. Commit the version to the new folder. Afterwards datasets find the index there.
    4. Delete the old files.

A move that is interrupted before step 2 leaves copies that nobody uses. After step 2, the old index
is still complete for its readers, and the same move can be repeated to finish it.
"""

from __future__ import annotations

import os
import posixpath
from contextlib import suppress
from dataclasses import dataclass, replace

import pyarrow.fs as pafs

from zonebloom.building.other_datasets import OtherDatasets
from zonebloom.catalog.folder import (
    copy_file,
    delete_file,
    delete_segment,
    list_folder,
    wrapping_write_errors,
)
from zonebloom.catalog.model import Version
from zonebloom.catalog.names import SEGMENTS, VERSIONS, is_version_file_name
from zonebloom.catalog.store import Catalog
from zonebloom.errors import (
    CommitConflict,
    CorruptIndex,
    IndexExists,
    IndexNotFound,
    InvalidArgument,
)
from zonebloom.opened import OpenedDataset, default_folders_of, locate_catalog
from zonebloom.sources.source import Source
from zonebloom.storage.files import is_local
from zonebloom.storage.paths import key_below


@dataclass(frozen=True, slots=True)
class MovedIndex:
    """The result of `Dataset.move_index`.

    Attributes
    ----------
    index_dir : str
        The new folder of the index.
    num_files : int
        Number of copied files; 0 if the index was already in this folder.
    foreign_files : tuple of str
        Paths of files in the old folder that do not belong to the index. They were not deleted.
    """

    index_dir: str
    num_files: int
    foreign_files: tuple[str, ...]


def move_opened_index(
    opened: OpenedDataset, index_dir: str | None
) -> tuple[OpenedDataset, MovedIndex]:
    """Move an index. Return the dataset with the moved index, and the result of the move."""
    opened.require_unlocked()
    old, default_folders = opened.catalog, default_folders_of(opened.source)
    source, new = locate_catalog(
        opened.source.with_keys_below_root(),
        default_folders[0] if index_dir is None else index_dir,
        old.encryption,
    )
    if new.folder == old.folder:
        return opened, MovedIndex(old.folder, 0, _delete_remains(old, default_folders))
    base = _require_movable(opened)
    num_files = 0
    with wrapping_write_errors(new.folder):
        if new.newest_number() == 0:
            num_files = _copy_files(old, new, base)
            version = _commit_move(old, new, base, _with_new_keys(base, opened.source, source))
        elif base.moved_to == new.folder:
            version = new.latest(for_writing=True)
        else:
            raise IndexExists(
                f"{new.folder} already holds an index; delete it, or give another folder"
            )
    with wrapping_write_errors(old.folder):
        foreign_files = _delete_index(old)
    moved = OpenedDataset.create(
        source, new, version, embedded_filters=opened.planner.uses_embedded_filters
    )
    return moved, MovedIndex(new.folder, num_files, foreign_files)


def _require_movable(opened: OpenedDataset) -> Version:
    """Return the newest version. Raise an error if it is unreadable or of other datasets too."""
    catalog = opened.catalog
    base = catalog.latest(for_writing=True)
    if base.number < catalog.newest_number():
        raise CorruptIndex(
            f"the newest version of the index in {catalog.folder} cannot be read; repair it: "
            f"zonebloom refresh {opened.source.root}"
        )
    if base.number == 0:
        raise IndexNotFound(f"there is no index of {opened.source.root} to move; build one first")
    if other_fragments := OtherDatasets(opened.source, catalog).fragments(base):
        raise InvalidArgument(
            f"the index in {catalog.folder} also covers other files, which would lose it, such as "
            f"{other_fragments[0].key}; build an index of this dataset in the new folder instead"
        )
    return base


def _copy_files(old: Catalog, new: Catalog, base: Version) -> int:
    if base.moved_to not in ("", new.folder):
        raise CommitConflict(
            f"the index in {old.folder} is being moved to {base.moved_to}; finish that move first: "
            f"zonebloom move-index --to {base.moved_to}"
        )
    for segment, file in base.file_sizes:
        source, target = old.path(segment, file), new.path(segment, file)
        copy_file(old.filesystem, source, target, new.create_raw_file)
    return len(base.file_sizes)


def _commit_move(old: Catalog, new: Catalog, base: Version, moved: Version) -> Version:
    """Close the old folder for writers, and commit to the new one. Undo both on failure."""

    def close(latest: Version) -> Version:
        if replace(latest, number=base.number, listings=base.listings) != base:
            raise CommitConflict("another writer committed while the index was moved; try again")
        return replace(latest, moved_to=new.folder)

    def reopen(latest: Version) -> Version:
        return replace(latest, moved_to="")

    def place(latest: Version) -> Version:
        if latest.number:
            raise IndexExists(f"another writer built an index in {new.folder}; delete one of both")
        return moved

    try:
        if not base.moved_to:
            old.commit(close)
        try:
            return new.commit(place)
        except BaseException:
            old.commit(reopen)
            raise
    except BaseException:
        new.delete_orphan_segments({segment for segment, _ in base.file_sizes})
        raise


def _with_new_keys(version: Version, before: Source, after: Source) -> Version:
    """Return a version whose fragments have the keys that datasets use with the new folder."""
    has_paths = any(fragment.key == fragment.path for fragment in after.fragments[:1])
    fragments = {}
    for fragment in version.fragments.values():
        path = before.path_of(fragment.key)
        key = path if has_paths else key_below(path, after.root)
        fragments[key] = fragment._replace(key=key)
    return replace(version, fragments=fragments, listings=(), segments_to_delete=(), moved_to="")


def _delete_remains(catalog: Catalog, default_folders: tuple[str, ...]) -> tuple[str, ...]:
    """Delete what an interrupted move to this folder left in the other default folders."""
    foreign_files: list[str] = []
    for folder in default_folders:
        other = Catalog(catalog.filesystem, folder, catalog.encryption)
        if folder == catalog.folder or not _has_folder(other):
            continue
        newest = other.newest_number()
        if newest and other.latest(for_writing=True).moved_to != catalog.folder:
            raise IndexExists(
                f"there is another index in {folder}, which is not used; delete one of both"
            )
        foreign_files += _delete_index(other)
    return tuple(foreign_files)


def _has_folder(catalog: Catalog) -> bool:
    return catalog.filesystem.get_file_info(catalog.folder).type == pafs.FileType.Directory


def _delete_index(catalog: Catalog) -> tuple[str, ...]:
    """Delete the index in a folder. Return the paths of files that do not belong to it."""
    filesystem = catalog.filesystem
    segments = posixpath.join(catalog.folder, SEGMENTS)
    versions = posixpath.join(catalog.folder, VERSIONS)
    for segment in list_folder(filesystem, segments, catalog.folder):
        # A segment folder with foreign files is kept, and so is a symbolic link.
        if segment.type == pafs.FileType.Directory:
            with suppress(OSError):
                delete_segment(filesystem, segment.path, catalog.folder)
    infos = list_folder(filesystem, versions, catalog.folder)
    own = [info for info in infos if info.type == pafs.FileType.File]
    own = [info.path for info in own if is_version_file_name(info.base_name)]
    # Delete the newest document last among the documents, because it says that the index was moved.
    # Delete the listings after it, because it cannot be read without them.
    for path in sorted(own, key=lambda path: (not path.endswith(".json"), path)):
        delete_file(filesystem, path, catalog.folder)
    for folder in (versions, segments, catalog.folder):
        with suppress(OSError):
            if is_local(filesystem):
                # Unlike pyarrow's call, this refuses a folder in which there is a file by now.
                os.rmdir(folder)
            elif not list_folder(filesystem, folder, catalog.folder):
                filesystem.delete_dir(folder)
    catalog.remove_empty_folders()
    catalog.forget()
    # The folder may also hold the indices of folders below the data, so do not list it recursively.
    remaining = list_folder(filesystem, catalog.folder, catalog.folder)
    for name in (SEGMENTS, VERSIONS):
        path = posixpath.join(catalog.folder, name)
        with suppress(OSError):
            remaining += filesystem.get_file_info(
                pafs.FileSelector(path, allow_not_found=True, recursive=True)
            )
    return tuple(info.path for info in remaining if info.type == pafs.FileType.File)
