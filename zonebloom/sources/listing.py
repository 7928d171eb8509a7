"""List the data files of folders, on the local disk and in stores."""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

import pyarrow.fs as pafs

from zonebloom.base.threads import thread_pool
from zonebloom.errors import FragmentUnreadable, NoFragments
from zonebloom.sources.table_folders import refuse_listed_tables, refuse_tables_above
from zonebloom.storage.files import PARQUET_EXTENSIONS, file_errors
from zonebloom.storage.store import Store, store_of


class FolderListing(NamedTuple):
    """The kind of a path, and the data files of a folder, sorted by path, with their sizes."""

    kind: pafs.FileType
    root: str
    sizes: dict[str, int | None]


def list_data_files(filesystem: pafs.FileSystem, path: str) -> FolderListing:
    """Return the data files below a folder, or the file if the path is that of one.

    Raises
    ------
    FragmentUnreadable
        When the folder cannot be listed.
    SourceError
        When the path lies in a table, or the folder contains one.
    """
    store = store_of(filesystem)
    if store.has_round_trips:
        with thread_pool(1) as pool:
            above = pool.submit(refuse_tables_above, filesystem, path)
            kind, infos = _list(store, path)
        if kind != pafs.FileType.NotFound:
            above.result()
    else:
        kind, infos = _list(store, path)
        if kind != pafs.FileType.NotFound:
            refuse_tables_above(filesystem, path)
    if kind != pafs.FileType.Directory:
        return FolderListing(
            kind, posixpath.dirname(path), {info.path: info.size for info in infos}
        )
    root = path.rstrip("/")
    start = f"{root}/" if root else ""
    foreign = next((info.path for info in infos if not info.path.startswith(start)), None)
    if foreign is not None:
        raise FragmentUnreadable(
            f"cannot list {path}: its file system calls a file there {foreign}; give the path of "
            "the folder as the file system does"
        )
    # Only local files have a size. Testing `info.type` instead takes as long as their listing.
    sizes = {
        info.path: info.size
        for info in infos
        if info.size is not None and (not store.has_round_trips or info.is_file)
    }
    # A path is hidden if one of its parts below the folder begins with a dot or an underscore.
    skipped = max(len(start) - 1, 0)
    below = ((file, file[skipped:] if start else f"/{file}") for file in sizes)
    files = sorted(file for file, key in below if "/_" not in key and "/." not in key)
    folders = [info.path for info in infos if info.size is None]
    refuse_listed_tables(filesystem, root, folders, files)
    return FolderListing(kind, root, {file: sizes[file] for file in files})


def _list(store: Store, path: str) -> tuple[pafs.FileType, list[pafs.FileInfo]]:
    """Return what a path names, and all that is below a folder, or the file."""
    store.forget_listings()
    if store.has_round_trips and not path.rstrip("/").lower().endswith(PARQUET_EXTENSIONS):
        # One listing tells more than a look at the folder before it. What fails is looked at.
        try:
            infos = store.list_folder(path, recursive=True)
        except OSError:
            infos = []
        if infos:
            return pafs.FileType.Directory, infos
    with file_errors(path, "make it readable, or try again later", "look at"):
        info = store.filesystem.get_file_info(path)
        if info.type == pafs.FileType.Directory:
            return info.type, store.list_folder(path.rstrip("/") or path, recursive=True)
    return info.type, [] if info.type == pafs.FileType.NotFound else [info]


def is_name(filesystem: pafs.FileSystem, path: str) -> bool:
    """Return whether a path with wildcards names a file or folder, and is no pattern.

    A name such as a[1].parquet does not match itself, so it may name a file. The file *.parquet
    matches itself, and must not hide the others.
    """
    if fnmatchcase(path, path):
        return False
    with file_errors(path, "make it readable, or try again later", "look at"):
        return filesystem.get_file_info(path).type != pafs.FileType.NotFound


def folders_among(filesystem: pafs.FileSystem, paths: Sequence[str]) -> set[str]:
    """Return the paths that are folders."""
    candidates = list(paths)
    if store_of(filesystem).has_round_trips:
        # Asking a store about many paths takes long, and paths with an extension are files.
        candidates = [path for path in paths if "." not in posixpath.basename(path)]
    with file_errors(candidates[0] if candidates else "", "make it readable", "look at"):
        infos = filesystem.get_file_info([path.rstrip("/") or "/" for path in candidates])
    folders: set[str] = set()
    for path, info in zip(candidates, infos, strict=True):
        if info.type == pafs.FileType.NotFound:
            raise NoFragments(f"{path} does not exist; check the path")
        if info.type == pafs.FileType.Directory:
            folders.add(path)
    return folders


def expand_folders(
    filesystem: pafs.FileSystem, paths: Sequence[str], folders: Collection[str]
) -> dict[str, int | None]:
    """Return the files of paths and below folders among them, with their sizes if known."""
    files: dict[str, int | None] = {}
    for path in paths:
        below: Mapping[str, int | None] = {path: None}
        if path in folders:
            below = list_data_files(filesystem, path).sizes
            if not below:
                raise NoFragments(
                    f"{path} holds no data file; write some first, or leave it out of the list"
                )
        files |= below
    return files
