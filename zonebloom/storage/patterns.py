"""List the files that match a pattern, and raise if a folder cannot be listed."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

from zonebloom.errors import FragmentUnreadable

# The folder that holds indices. Listings of data files skip it.
INDEX_FOLDER = "_zonebloom"

_GLOB_CHARACTERS = frozenset("*?[")
# A link that points to itself is treated like a missing file.
_MISSING_ERRORS = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


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

    >>> fixed_folder("/logs/2024-*/day=1/*.parquet"), fixed_folder("/logs/*.parquet")
    ('/logs', '/logs')
    """
    parts = pattern.split(os.sep)
    first = next(number for number, part in enumerate(parts) if is_pattern(part))
    return os.sep.join(parts[:first]) or os.sep


def matching_files(pattern: str) -> list[str]:
    """Return the files that match an absolute pattern, sorted.

    Unlike ``glob.glob``, raise for folders that cannot be listed and for names that are not
    UTF-8. No wildcard matches an index folder.
    """
    drive, rest = os.path.splitdrive(pattern)
    parts = [part for part in rest.split(os.sep) if part]
    try:
        paths = {path for path in _matching(drive + os.sep, parts) if stat.S_ISREG(_mode(path))}
        for path in paths:
            # pyarrow opens UTF-8 names only, and its error does not say which name is invalid.
            path.encode()
        return sorted(paths)
    except OSError as error:
        raise FragmentUnreadable(
            f"cannot list {error.filename} for files that match {pattern}: {error.strerror}; "
            "make the folder readable, or name the files"
        ) from None


def _matching(folder: str, parts: Sequence[str]) -> Iterator[str]:
    if not parts:
        yield folder
    elif parts[0] == "**":
        yield from _matching(folder, parts[1:] or ["*"])
        for name in _list_names(folder):
            below = os.path.join(folder, name)
            if not _is_hidden(name, "**") and stat.S_ISDIR(_mode(below)):
                yield from _matching(below, parts)
    elif is_pattern(parts[0]):
        for name in _list_names(folder):
            if not _is_hidden(name, parts[0]) and fnmatchcase(name, parts[0]):
                yield from _matching(os.path.join(folder, name), parts[1:])
    else:
        yield from _matching(os.path.join(folder, parts[0]), parts[1:])


def _is_hidden(name: str, pattern: str) -> bool:
    return name == INDEX_FOLDER or (name.startswith(".") and not pattern.startswith("."))


def _list_names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError as error:
        if error.errno in _MISSING_ERRORS:
            return []
        raise


def _mode(path: str) -> int:
    """Return the file mode of a path, or 0 if it does not exist."""
    try:
        return os.stat(path).st_mode
    except OSError as error:
        if error.errno in _MISSING_ERRORS:
            return 0
        raise
