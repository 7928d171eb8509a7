"""Files that a pattern names, with nothing passed over that could not be looked into."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

from zonebloom.errors import FragmentUnreadable

# The folder that holds indices. Listings of data pass over it.
INDEX_FOLDER = "_zonebloom"

_GLOB_CHARACTERS = frozenset("*?[")
# A link that leads round in a circle leads to nothing.
_NOTHING = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


def data_folder_of(index_folder: str) -> str | None:
    """Return the data folder of an index at one of its default places, None for other folders.

    >>> data_folder_of("lake/_zonebloom/orders"), data_folder_of("lake/orders/_zonebloom")
    ('lake/orders', 'lake/orders')
    """
    top, name, below = _parted(index_folder)
    return "/".join([*top, *below]) if name else None


def shared_folder_of(index_folder: str) -> str | None:
    """Return the `_zonebloom` folder that holds an index among others, None for other folders.

    >>> shared_folder_of("lake/_zonebloom/orders"), shared_folder_of("lake/orders/_zonebloom")
    ('lake/_zonebloom', None)
    """
    top, name, below = _parted(index_folder)
    return "/".join([*top, name]) if name and below else None


def _parted(index_folder: str) -> tuple[list[str], str, list[str]]:
    """Return the parts before the last `_zonebloom`, that name or nothing, and the parts after."""
    parts = index_folder.rstrip("/").split("/")
    if INDEX_FOLDER not in parts:
        return parts, "", []
    last = len(parts) - 1 - parts[::-1].index(INDEX_FOLDER)
    return parts[:last], INDEX_FOLDER, parts[last + 1 :]


def is_pattern(path: str) -> bool:
    return not _GLOB_CHARACTERS.isdisjoint(path)


def fixed_folder(pattern: str) -> str:
    """Return the folder that all matching files are in, up to the first wildcard.

    >>> fixed_folder("/logs/2024-*/day=1/*.parquet"), fixed_folder("/logs/*.parquet")
    ('/logs', '/logs')
    """
    parts = pattern.split(os.sep)
    first = next(number for number, part in enumerate(parts) if is_pattern(part))
    return os.sep.join(parts[:first]) or os.sep


def matching_files(pattern: str) -> list[str]:
    """Return the files that match an absolute pattern, sorted.

    Unlike ``glob.glob``, raise for folders that are closed and for names that are not UTF-8. No
    wildcard matches an index."""
    drive, rest = os.path.splitdrive(pattern)
    parts = [part for part in rest.split(os.sep) if part]
    try:
        found = {path for path in _matching(drive + os.sep, parts) if stat.S_ISREG(_mode(path))}
        for path in found:
            # pyarrow opens no other names, and its own error does not say which name it is.
            path.encode()
        return sorted(found)
    except OSError as error:
        raise FragmentUnreadable(
            f"cannot look into {error.filename} for files that match {pattern}: {error.strerror}; "
            "make it readable, or name the files"
        ) from None


def _matching(folder: str, parts: Sequence[str]) -> Iterator[str]:
    if not parts:
        yield folder
    elif parts[0] == "**":
        yield from _matching(folder, parts[1:] or ["*"])
        for name in _names(folder):
            below = os.path.join(folder, name)
            if not _is_hidden(name, "**") and stat.S_ISDIR(_mode(below)):
                yield from _matching(below, parts)
    elif is_pattern(parts[0]):
        for name in _names(folder):
            if not _is_hidden(name, parts[0]) and fnmatchcase(name, parts[0]):
                yield from _matching(os.path.join(folder, name), parts[1:])
    else:
        yield from _matching(os.path.join(folder, parts[0]), parts[1:])


def _is_hidden(name: str, pattern: str) -> bool:
    return name == INDEX_FOLDER or (name.startswith(".") and not pattern.startswith("."))


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError as error:
        if error.errno in _NOTHING:
            return []
        raise


def _mode(path: str) -> int:
    """What kind of thing is there, 0 for nothing."""
    try:
        return os.stat(path).st_mode
    except OSError as error:
        if error.errno in _NOTHING:
            return 0
        raise
