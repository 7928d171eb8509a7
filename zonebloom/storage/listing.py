"""Files that a pattern names, with nothing passed over that could not be looked into."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

from zonebloom.errors import FragmentUnreadable

_GLOB_CHARACTERS = frozenset("*?[")


def is_pattern(path: str) -> bool:
    return not _GLOB_CHARACTERS.isdisjoint(path)


def matching_files(pattern: str) -> list[str]:
    """Files that match an absolute pattern, sorted; unlike ``glob.glob``, closed folders raise."""
    drive, rest = os.path.splitdrive(pattern)
    parts = [part for part in rest.split(os.sep) if part]
    try:
        return sorted(
            {path for path in _matching(drive + os.sep, parts) if stat.S_ISREG(_mode(path))}
        )
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
            if not name.startswith(".") and stat.S_ISDIR(_mode(below)):
                yield from _matching(below, parts)
    elif is_pattern(parts[0]):
        for name in _names(folder):
            hidden = name.startswith(".") and not parts[0].startswith(".")
            if not hidden and fnmatchcase(name, parts[0]):
                yield from _matching(os.path.join(folder, name), parts[1:])
    else:
        yield from _matching(os.path.join(folder, parts[0]), parts[1:])


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _mode(path: str) -> int:
    """What kind of thing is there, 0 for nothing."""
    try:
        return os.stat(path).st_mode
    except OSError as error:
        # A link that leads round in a circle leads to nothing.
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return 0
        raise
