"""Folders and files of the index open to those who may read the data, whatever the umask is.

A folder nobody else may look into, beside the data, would fail the listing of the data itself.
"""

from __future__ import annotations

import contextlib
import os
import stat


def make_folder(path: str, like: str) -> None:
    """Make a local folder and those above it, with the permissions of another."""
    missing = []
    while path and not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for each in reversed(missing):
        try:
            os.mkdir(each)
        except FileExistsError:
            # Another writer was faster.
            continue
        _share(each, os.stat(like), 0o2777)


def make_file(path: str, like: str) -> None:
    """Make an empty local file that those may read who may read a folder.

    It is filled in place: nobody but its owner writes to it.
    """
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
    _share(path, os.stat(like), 0o644)


def _share(path: str, like: os.stat_result, allowed: int) -> None:
    if os.name != "posix":
        return
    mode = stat.S_IMODE(like.st_mode)
    own = os.stat(path)
    if (own.st_uid, own.st_gid) != (like.st_uid, like.st_gid):
        # Root builds for the owner of the data; others can give their file to a group of theirs.
        owner = like.st_uid if os.geteuid() == 0 else -1
        try:
            os.chown(path, owner, like.st_gid)
        except OSError:
            # What the group of the data may do is not for another group.
            mode = mode & ~0o070 | (mode & 0o007) << 3
    least = 0o700 if stat.S_ISDIR(own.st_mode) else 0o600
    with contextlib.suppress(OSError):
        os.chmod(path, mode & allowed | least)
