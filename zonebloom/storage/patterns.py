"""List the files that match a pattern, and tell the folders of indices by their names."""

from __future__ import annotations

import errno
import posixpath
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

import pyarrow.fs as pafs

from zonebloom.storage.files import FILE_ERRORS, unreadable
from zonebloom.storage.store import Store, store_of

# The folder that holds indices. Listings of data files skip it.
INDEX_FOLDER = "_zonebloom"

_GLOB_CHARACTERS = frozenset("*?[")


def data_folder_of(index_folder: str) -> str | None:
    """Return the data folder of an index at one of its default places, None for other folders.

    >>> data_folder_of("lake/_zonebloom/orders"), data_folder_of("lake/orders/_zonebloom")
    ('lake/orders', 'lake/orders')
    """
    top, name, below = _split_at_index_folder(index_folder)
    return "/".join([*top, *below]) if name else None


def shared_folder_of(index_folder: str) -> str | None:
    """Return the `_zonebloom` folder that holds an index among others, None for other folders.

    >>> shared_folder_of("lake/_zonebloom/orders"), shared_folder_of("lake/orders/_zonebloom")
    ('lake/_zonebloom', None)
    """
    top, name, below = _split_at_index_folder(index_folder)
    return "/".join([*top, name]) if name and below else None


def _split_at_index_folder(index_folder: str) -> tuple[list[str], str, list[str]]:
    """Return the parts before the last `_zonebloom`, that name or "", and the parts after it."""
    parts = index_folder.rstrip("/").split("/")
    if INDEX_FOLDER not in parts:
        return parts, "", []
    last = len(parts) - 1 - parts[::-1].index(INDEX_FOLDER)
    return parts[:last], INDEX_FOLDER, parts[last + 1 :]


def is_pattern(path: str) -> bool:
    return not _GLOB_CHARACTERS.isdisjoint(path)


def fixed_folder(pattern: str) -> str:
    """Return the folder above the first wildcard, which contains all matching files.

    >>> fixed_folder("/logs/2024-*/day=1/*.parquet"), fixed_folder("bucket/*.parquet")
    ('/logs', 'bucket')
    """
    parts = pattern.split("/")
    first = next(number for number, part in enumerate(parts) if is_pattern(part))
    return "/".join(parts[:first]) or ("/" if pattern.startswith("/") else "")


def matching_files(filesystem: pafs.FileSystem, pattern: str) -> list[str]:
    """Return the files that match a pattern, sorted. No wildcard matches an index folder.

    Only folders that match are listed.
    """
    folder = fixed_folder(pattern)
    parts = [part for part in pattern[len(folder) :].split("/") if part]
    advice = f"make the folder readable, or name the files that match {pattern}"
    try:
        return sorted(set(_matching(store_of(filesystem), folder, parts)))
    except UnicodeError:
        # The caller names the file whose name is not UTF-8.
        raise
    except FILE_ERRORS as error:
        raise unreadable(folder, error, advice, "list") from None


def _matching(store: Store, folder: str, parts: Sequence[str]) -> Iterator[str]:
    part, rest = parts[0], parts[1:]
    if not is_pattern(part):
        path = posixpath.join(folder, part)
        if rest:
            yield from _matching(store, path, rest)
        elif store.filesystem.get_file_info(path).type == pafs.FileType.File:
            yield path
        return
    if part == "**":
        # It also stands for no folder.
        yield from _matching(store, folder, rest or ["*"])
        rest = parts
    for info in _list_folder(store, folder):
        name = info.base_name
        if _is_hidden(name, part) or not fnmatchcase(name, part):
            continue
        if not rest and info.type == pafs.FileType.File:
            yield info.path
        elif rest and info.type == pafs.FileType.Directory:
            yield from _matching(store, info.path, rest)


def _list_folder(store: Store, folder: str) -> list[pafs.FileInfo]:
    try:
        return store.list_folder(folder, recursive=False)
    except OSError as error:
        # A link to a folder above leads round and round.
        if isinstance(error, NotADirectoryError) or error.errno == errno.ELOOP:
            return []
        raise


def _is_hidden(name: str, pattern: str) -> bool:
    return name == INDEX_FOLDER or (name.startswith(".") and not pattern.startswith("."))
