"""The folder for files that the processes of a user share: locks, and marks of finished work."""

from __future__ import annotations

import contextlib
import os
import stat


def path_in_cache(name: str) -> str | None:
    """Return the path of a file in the cache folder of the user, or None if there is no folder.

    The folder is made if it is missing. No other user can write into it.
    """
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = f"{cache}/zonebloom"
    if not _is_private(folder):
        folder = _temporary_folder()
    return os.path.join(folder, name) if _is_private(folder) else None


def _temporary_folder() -> str:
    # Most processes have a cache folder, and this takes long to import.
    import tempfile

    user = str(os.geteuid()) if os.name == "posix" else "user"
    return f"{tempfile.gettempdir()}/zonebloom-{user}"


def _is_private(folder: str) -> bool:
    """Make a folder if it is missing. Return whether no other user can write into it."""
    try:
        os.makedirs(os.path.dirname(folder), mode=0o700, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        # Do not follow a symbolic link: another user may have put it there.
        status = os.lstat(folder)
    except OSError:
        return False
    if not stat.S_ISDIR(status.st_mode) or not os.access(folder, os.W_OK | os.X_OK):
        return False
    return os.name != "posix" or (status.st_uid == os.geteuid() and not status.st_mode & 0o022)
