"""Collect the complete files of a rewrite, so that a later rewrite can continue it.

    new/.zonebloom-rewrite/.list                      the list of complete files
    new/.zonebloom-rewrite/.lock                      the lock of the process that writes
    new/.zonebloom-rewrite/year=2024/a.parquet        a complete file
    new/.zonebloom-rewrite/year=2024/.b.parquet.partial    a file that is being written

When all files are complete, they move to their places, and the folder ``.zonebloom-rewrite`` is
deleted. Readers of a data folder skip names that begin with a dot, so until then they find no rows
in the new folder, and not a part of them.
"""

from __future__ import annotations

import errno
import json
import os
import posixpath
import shutil
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zonebloom.errors import FragmentUnreadable, InvalidArgument
from zonebloom.parquet.rewritten_file import partial_path
from zonebloom.storage.files import FileIdentity

if TYPE_CHECKING:
    from filelock import BaseFileLock

STAGING_NAME = ".zonebloom-rewrite"
_LIST_NAME = ".list"
_LOCK_NAME = ".lock"
_FORMAT = 1
# The errors of file systems that have no locks.
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)


class CompleteFiles:
    """The complete files of a folder, and the list of them: one JSON object for each line.

    The first line has the options of the rewrite. A crash may leave a part of a line at the end,
    which is ignored.
    """

    def __init__(
        self, folder: str, records: Sequence[Mapping[str, Any]], folder_lock: BaseFileLock | None
    ):
        self._folder = folder
        self._staging = _staging_folder(folder)
        self._folder_lock = folder_lock
        self._records = {record["path"]: record for record in records}
        self._lock = threading.Lock()

    @classmethod
    def open(
        cls, folder: str, options: Mapping[str, Any], keys: Collection[str], *, resume: bool
    ) -> CompleteFiles:
        """Create the folder and the list, or continue the list of an interrupted rewrite.

        ``keys`` are the paths of all files to write. Raise `InvalidArgument` if the folder has
        other files, or if another process writes into it.
        """
        if os.path.lexists(folder) and not os.path.isdir(folder):
            raise InvalidArgument(f"{folder} is not a folder; give a new folder")
        staging = _staging_folder(folder)
        if not os.path.isdir(staging):
            _require_empty(folder, resume=resume)
        os.makedirs(staging, exist_ok=True)
        lock = _lock_folder(folder, staging)
        try:
            records = _open_list(folder, options, keys, resume=resume)
        except BaseException:
            # Another process may lock the folder as soon as it is released, so remove it before,
            # if it is new.
            if not os.path.exists(_list_path(staging)):
                shutil.rmtree(staging, ignore_errors=True)
            _release(lock)
            raise
        return cls(folder, records, lock)

    def path_of(self, key: str) -> str:
        """Return where to write a file, before it moves to its place."""
        return posixpath.join(self._staging, key)

    def has(self, key: str, identity: FileIdentity) -> bool:
        """Return whether a file is complete, and its source is still the one that was rewritten."""
        record = self._records.get(key)
        if record is None or not FileIdentity(*record["source"]).is_still(identity):
            return False
        # The last step of the interrupted rewrite may have moved the file.
        staged_size = _size_of(self.path_of(key))
        size = _size_of(self._place_of(key)) if staged_size is None else staged_size
        return size == record["bytes"]

    def add(self, key: str, identity: FileIdentity) -> int:
        """Add a complete file. Return its size in bytes."""
        num_bytes = os.path.getsize(self.path_of(key))
        record = {"path": key, "source": list(identity), "bytes": num_bytes}
        with self._lock, Path(_list_path(self._staging)).open("a", encoding="utf-8") as file:
            file.write(_line(record))
            self._records[key] = record
        return num_bytes

    def num_bytes(self, key: str) -> int:
        """Return the size of a complete file in bytes."""
        return self._records[key]["bytes"]

    def move_all(self, keys: Collection[str]) -> None:
        """Move all files to their places. Raise `FragmentUnreadable` if one does not exist."""
        for key in keys:
            path, target = self.path_of(key), self._place_of(key)
            if os.path.exists(path):
                os.makedirs(posixpath.dirname(target), exist_ok=True)
                os.replace(path, target)
            # The interrupted rewrite may have moved it.
            elif _size_of(target) != self.num_bytes(key):
                raise FragmentUnreadable(
                    f"{path} was deleted before it moved to its place; continue with resume=True "
                    "(--resume)"
                )

    def close(self, *, is_finished: bool) -> None:
        """Release the folder. Delete the list if all files have moved, or if none is complete."""
        # Delete before the release: afterwards, the files may be those of another process.
        if is_finished or not self._records:
            shutil.rmtree(self._staging, ignore_errors=True)
        if not self._records:
            # Other files in the folder are not ours, so leave it if there are any.
            with suppress(OSError):
                os.rmdir(self._folder)
        _release(self._folder_lock)

    def _place_of(self, key: str) -> str:
        return posixpath.join(self._folder, key)


def _staging_folder(folder: str) -> str:
    return posixpath.join(folder, STAGING_NAME)


def _list_path(staging: str) -> str:
    return posixpath.join(staging, _LIST_NAME)


def _require_empty(folder: str, *, resume: bool) -> None:
    if os.path.isdir(folder) and set(os.listdir(folder)) - {STAGING_NAME}:
        reason = ", and it has no interrupted rewrite to continue" if resume else ""
        raise InvalidArgument(f"{folder} is not empty{reason}; give a new folder")


def _open_list(
    folder: str, options: Mapping[str, Any], keys: Collection[str], *, resume: bool
) -> list[dict[str, Any]]:
    """Create the list of complete files, or return the records of an existing one."""
    staging = _staging_folder(folder)
    path = Path(_list_path(staging))
    head = {"format": _FORMAT, **options}
    if path.exists():
        if not resume:
            raise InvalidArgument(
                f"{folder} has the files of an interrupted rewrite; continue it with "
                "resume=True (--resume), or delete the folder"
            )
        objects = _read_objects(path)
        if objects[:1] != [head]:
            raise InvalidArgument(
                f"{folder} has files that were written with other options; give the same "
                "options, or delete the folder"
            )
        records = {record["path"]: record for record in objects[1:]}
        _remove_former_files(staging, records, keys)
        _remove_former_files(folder, records, records.keys() & set(keys))
        # End the part of a line that a crash left, so that it does not spoil the next line.
        with path.open("a", encoding="utf-8") as file:
            file.write("\n")
        return objects[1:]
    # Another rewrite may have finished since the folder was looked at.
    _require_empty(folder, resume=resume)
    try:
        path.write_text(_line(head), encoding="utf-8")
    except BaseException:
        # A later rewrite would take a part of the line for other options.
        path.unlink(missing_ok=True)
        raise
    return []


def _remove_former_files(
    folder: str, records: Mapping[str, Mapping[str, Any]], keys: Collection[str]
) -> None:
    """Delete new files whose source was deleted since, and files that a crash left half written.

    Raise `InvalidArgument` if the folder has a file that no rewrite has completed: readers of the
    folder would find rows that the source does not have.
    """
    partial_names = {partial_path(key) for key in (*records, *keys)}
    for name in sorted(_files_below(folder)):
        path = os.path.join(folder, name)
        if name in partial_names:
            os.remove(path)
        elif name in keys or any(part.startswith((".", "_")) for part in name.split("/")):
            continue
        elif name in records and os.path.getsize(path) == records[name]["bytes"]:
            os.remove(path)
        else:
            raise InvalidArgument(
                f"{path} is not a file of the source; move it, and continue the rewrite then"
            )


def _files_below(folder: str) -> Iterator[str]:
    """Yield the paths of all files in a folder, and of links to folders, relative to it."""
    for parent, folders, files in os.walk(folder):
        links = [name for name in folders if os.path.islink(os.path.join(parent, name))]
        for name in (*files, *links):
            yield os.path.relpath(os.path.join(parent, name), folder).replace(os.sep, "/")


def _lock_folder(folder: str, staging: str) -> BaseFileLock | None:
    """Let no other process write into a folder. Return None if the file system has no locks."""
    from filelock import FileLock, Timeout

    lock = FileLock(os.path.join(staging, _LOCK_NAME))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise _busy_error(folder) from None
    except NotImplementedError:
        return None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return None
    return lock


def _release(lock: BaseFileLock | None) -> None:
    if lock is not None:
        lock.release()


def _size_of(path: str) -> int | None:
    """Return the size of a file, or None if it does not exist."""
    try:
        return os.path.getsize(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _busy_error(folder: str) -> InvalidArgument:
    return InvalidArgument(
        f"another rewrite writes into {folder}; wait for it, or give another folder"
    )


def _line(record: Mapping[str, Any]) -> str:
    return json.dumps(record) + "\n"


def _read_objects(path: Path) -> list[dict[str, Any]]:
    objects = []
    for line in path.read_text(encoding="utf-8").splitlines():
        with suppress(ValueError):
            objects.append(json.loads(line))
    return objects
