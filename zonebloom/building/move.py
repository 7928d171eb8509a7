"""Move the index of a dataset to another folder.

Readers must find a complete index at any moment, and no commit may be lost meanwhile:

    1. Copy the files of the newest version to new segments, and verify the copies.
    2. Commit to the old folder that the index is being moved. This fails if another writer has
       committed since. Afterwards no writer can commit there.
    3. Commit the version to the new folder. This fails if there is a version already. Afterwards
       datasets find the index there.
    4. Delete the old versions, and the files that they name.

A move that is interrupted before step 2 leaves copies that nobody uses. After step 2, the old index
is still complete for its readers, and the same move can be repeated to finish it.

Other processes may build an index in either folder at the same time, or move the same index. So
every move copies to segments with names of its own, and if it fails, it deletes only those.
"""

from __future__ import annotations

import errno
import os
import posixpath
from collections.abc import Iterator
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
from zonebloom.catalog.locate import default_folders_of, locate_catalog
from zonebloom.catalog.model import IndexEntry, Version
from zonebloom.catalog.names import (
    SEGMENTS,
    VERSIONS,
    is_segment_file_name,
    is_segment_name,
    is_version_file_name,
)
from zonebloom.catalog.store import Catalog
from zonebloom.catalog.vacuum import LONGEST_BUILD, read_names, vacuum_catalog
from zonebloom.errors import (
    CatalogError,
    CommitConflict,
    CorruptIndex,
    IndexExists,
    IndexNotFound,
    InvalidArgument,
)
from zonebloom.scan.opened import OpenedDataset
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
    new_source, new = locate_catalog(
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
            num_files = len(base.file_sizes)
            version = _copy_index(old, new, _with_new_keys(base, opened.source, new_source), base)
        elif base.moved_to == new.folder:
            version = new.latest(for_writing=True)
        else:
            raise IndexExists(
                f"{new.folder} already holds an index; delete it, or give another folder"
            )
    foreign_files = _delete_index(old, new.folder)
    moved = OpenedDataset(new_source, new, version, embedded_filters=opened.uses_embedded_filters)
    return moved, MovedIndex(new.folder, num_files, foreign_files)


def _require_movable(opened: OpenedDataset) -> Version:
    """Return the newest version. Raise an error if it is unreadable or of other datasets too."""
    catalog = opened.catalog
    base = catalog.latest(for_writing=True)
    if base.number < catalog.newest_number():
        # Another process may have deleted the version that was being read, because it moved it.
        base = catalog.latest(for_writing=True)
    if base.number < catalog.newest_number():
        raise CorruptIndex(
            f"the newest version of the index in {catalog.folder} cannot be read; repair it: "
            f"zonebloom refresh {opened.source.root}"
        )
    if base.number == 0 and opened.version.number:
        raise CommitConflict(
            f"the index in {catalog.folder} was moved or deleted meanwhile; call ds.refresh()"
        )
    if base.number == 0:
        raise IndexNotFound(f"there is no index of {opened.source.root} to move; build one first")
    if other_fragments := OtherDatasets(opened.source, catalog).fragments(base):
        raise InvalidArgument(
            f"the index in {catalog.folder} also covers other files, which would lose it, such as "
            f"{other_fragments[0].key}; build an index of this dataset in the new folder instead"
        )
    return base


def _copy_index(old: Catalog, new: Catalog, moved: Version, base: Version) -> Version:
    """Copy the files of a version to new segments, and commit it to the new folder."""
    if base.moved_to not in ("", new.folder):
        raise CommitConflict(
            f"the index in {old.folder} is being moved to {base.moved_to}; finish that move first: "
            f"zonebloom move-index --to {base.moved_to}"
        )
    prefix = new.new_segment_prefix()
    names = {name: f"{prefix}-{number}" for number, name in enumerate(sorted(base.segment_names))}
    try:
        for segment, file in base.file_sizes:
            copy_file(
                old.decrypted_filesystem,
                old.path(segment, file),
                new.decrypted_filesystem,
                new.path(names[segment], file),
                new.open_output_stream,
            )
        return _commit_move(old, new, base, _with_new_segments(moved, names))
    finally:
        # This keeps the segments that the newest version names.
        new.delete_orphan_segments([prefix])


def _commit_move(old: Catalog, new: Catalog, base: Version, moved: Version) -> Version:
    """Close the old folder for writers, and commit to the new one. Undo the first on failure."""

    def close(latest: Version) -> Version:
        if replace(latest, number=base.number, listings=base.listings) != base:
            raise CommitConflict("another writer committed while the index was moved; try again")
        return replace(latest, moved_to=new.folder)

    def reopen(latest: Version) -> Version:
        return replace(latest, moved_to="")

    def commit_copies(latest: Version) -> Version:
        if latest.number and latest.fragments == moved.fragments:
            raise CommitConflict(
                f"another process has moved the index to {new.folder} meanwhile; open the dataset "
                "again"
            )
        if latest.number:
            raise IndexExists(f"another writer built an index in {new.folder}; delete one of both")
        return moved

    if not base.moved_to:
        old.commit(close)
    try:
        return new.commit(commit_copies)
    except BaseException as error:
        # If the new folder has a version, another process may have finished this move and may be
        # deleting the old index now. A move that this process did not begin stays to be finished.
        is_refused = isinstance(error, IndexExists) or new.newest_number() == 0
        if is_refused and not base.moved_to:
            old.commit(reopen)
        raise


def _with_new_keys(version: Version, before: Source, after: Source) -> Version:
    """Return a version whose fragments have the keys that datasets use with the new folder."""
    keys_are_paths = any(fragment.key == fragment.path for fragment in after.fragments[:1])
    fragments = {}
    for fragment in version.fragments.values():
        path = before.path_of(fragment.key)
        key = path if keys_are_paths else key_below(path, after.root)
        fragments[key] = fragment._replace(key=key)
    return replace(version, fragments=fragments, listings=(), segments_to_delete=(), moved_to="")


def _with_new_segments(version: Version, names: dict[str, str]) -> Version:
    """Return a version with other names of segments."""

    def renamed(entry: IndexEntry) -> IndexEntry:
        keys = entry.global_filter
        return replace(
            entry,
            segments=tuple(
                replace(segment, name=names[segment.name]) for segment in entry.segments
            ),
            global_filter=None if keys is None else replace(keys, segment=names[keys.segment]),
        )

    return replace(
        version,
        indices={name: renamed(entry) for name, entry in version.indices.items()},
        page_maps=tuple(
            replace(page_map, segment=names[page_map.segment]) for page_map in version.page_maps
        ),
    )


def _delete_remains(catalog: Catalog, default_folders: tuple[str, ...]) -> tuple[str, ...]:
    """Delete what an interrupted move to this folder left in the other default folders."""
    foreign_files: list[str] = []
    for folder in default_folders:
        other = Catalog(catalog.filesystem, folder, catalog.encryption)
        if folder == catalog.folder or not _folder_exists(other):
            continue
        newest = other.latest(for_writing=True) if other.newest_number() else Version()
        if newest.number and newest.moved_to != catalog.folder:
            raise IndexExists(
                f"there is another index in {folder}, which is not used; delete one of both"
            )
        foreign_files += _delete_index(other, catalog.folder)
    return tuple(foreign_files)


def _folder_exists(catalog: Catalog) -> bool:
    return catalog.filesystem.get_file_info(catalog.folder).type == pafs.FileType.Directory


def _delete_index(catalog: Catalog, new_folder: str) -> tuple[str, ...]:
    """Delete an index that was moved. Return the paths of files that do not belong to it.

    Segments that no version names may belong to a running build, so they are kept for a day.

    Raises
    ------
    CatalogError
        If a file cannot be deleted. The same move can be repeated.
    """
    newest = catalog.latest(for_writing=True)
    if newest.number and newest.moved_to != new_folder:
        raise CommitConflict(
            f"another writer committed to {catalog.folder} after the index was moved to "
            f"{new_folder}; delete one of both"
        )
    try:
        if newest.number:
            _delete_versions(catalog, newest.number)
        # Also delete what a build or move left that was interrupted more than a day ago.
        vacuum_catalog(catalog, LONGEST_BUILD)
        # In a store, deleting a folder may delete a segment that a first build writes meanwhile.
        if newest.number or is_local(catalog.filesystem):
            _remove_empty_folders(catalog)
    except OSError as error:
        raise CatalogError(
            f"the index was moved to {new_folder}, but its old files in {catalog.folder} cannot be "
            f"deleted ({error}); make that folder writable, and move the index again"
        ) from None
    catalog.forget()
    return tuple(
        path
        for path in _files_of_index(catalog)
        if not _is_own_path(posixpath.relpath(path, catalog.folder))
    )


def _delete_versions(catalog: Catalog, newest_number: int) -> None:
    """Delete all versions up to a number, and the segments that they name.

    The segments of a damaged version are kept, because their names are unknown.
    """
    filesystem = catalog.filesystem
    infos = list_folder(filesystem, posixpath.join(catalog.folder, VERSIONS), catalog.folder)
    # Documents, listings and claims begin with the number of their version.
    own_files = [
        info
        for info in infos
        if info.type == pafs.FileType.File
        and is_version_file_name(info.base_name)
        and info.base_name[:1].isdecimal()
        and int(info.base_name[:20]) <= newest_number
    ]
    documents = [info.base_name for info in own_files if info.base_name.endswith(".json")]
    names, _ = read_names(catalog, [int(name[:20]) for name in documents])
    segments = {folder for folder, _ in names}
    segments_folder = posixpath.join(catalog.folder, SEGMENTS)
    for segment in list_folder(filesystem, segments_folder, catalog.folder):
        # A symbolic link is not a directory here, so it is kept.
        if segment.type != pafs.FileType.Directory or segment.base_name not in segments:
            continue
        try:
            delete_segment(filesystem, segment.path, catalog.folder)
        except FileNotFoundError:
            pass
        except OSError as error:
            # A segment with foreign files is kept.
            if error.errno != errno.ENOTEMPTY:
                raise
    # Delete the newest document last among the documents, because it says that the index was moved.
    # Delete the listings after it, because it cannot be read without them.
    for info in sorted(
        own_files, key=lambda info: (not info.base_name.endswith(".json"), info.base_name)
    ):
        delete_file(filesystem, info.path, catalog.folder)


def _remove_empty_folders(catalog: Catalog) -> None:
    filesystem = catalog.filesystem
    for folder in (*_own_folders(catalog), catalog.folder):
        with suppress(OSError):
            if is_local(filesystem):
                # Unlike pyarrow's call, this refuses a folder in which there is a file by now.
                os.rmdir(folder)
            elif not list_folder(filesystem, folder, catalog.folder):
                filesystem.delete_dir(folder)
    catalog.remove_empty_folders()


def _own_folders(catalog: Catalog) -> list[str]:
    return [posixpath.join(catalog.folder, name) for name in (VERSIONS, SEGMENTS)]


def _files_of_index(catalog: Catalog) -> Iterator[str]:
    """Yield the paths of all files and links in the folder of an index.

    The folder may also contain the indices of folders below the data. They are not listed.
    """
    folders = [catalog.folder]
    own_folders = _own_folders(catalog)
    while folders:
        folder = folders.pop()
        for info in list_folder(catalog.filesystem, folder, catalog.folder):
            if info.type != pafs.FileType.Directory:
                yield info.path
            elif folder != catalog.folder or info.path in own_folders:
                folders.append(info.path)


def _is_own_path(path: str) -> bool:
    """Return whether an index has a file with this path below its folder."""
    folder, _, below = path.partition("/")
    if folder == VERSIONS:
        return is_version_file_name(below)
    segment, _, file = below.partition("/")
    return folder == SEGMENTS and is_segment_name(segment) and is_segment_file_name(file)
