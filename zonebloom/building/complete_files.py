"""Remember which files of a rewrite are complete, so that a later rewrite can continue it.

    new/.zonebloom-rewrite              the list, which is deleted when all files are complete
    new/.zonebloom-rewrite.lock         the lock of the process that writes into the folder
    new/year=2024/a.parquet             a complete file
    new/year=2024/.b.parquet.partial    a file that is being written

Readers of a data folder skip names that begin with a dot.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zonebloom.errors import InvalidArgument
from zonebloom.parquet.rewritten_file import partial_path
from zonebloom.storage.files import FileIdentity

if TYPE_CHECKING:
    from filelock import BaseFileLock

_NAME = ".zonebloom-rewrite"
_LOCK_NAME = f"{_NAME}.lock"
_FORMAT = 1


class CompleteFiles:
    """The list of complete files in a folder: one JSON object for each line.

    The first line has the options of the rewrite. A crash may leave a part of a line at the end,
    which is ignored.
    """

    def __init__(
        self, path: Path, records: Sequence[Mapping[str, Any]], folder_lock: BaseFileLock | None
    ):
        self._path = path
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
        os.makedirs(folder, exist_ok=True)
        lock = _lock_folder(folder)
        try:
            path, records = _open_list(folder, options, keys, resume=resume)
        except BaseException:
            _unlock_folder(folder, lock)
            raise
        return cls(path, records, lock)

    def has(self, key: str, identity: FileIdentity, target: str) -> bool:
        """Return whether a file is complete, and its source is still the one that was rewritten."""
        record = self._records.get(key)
        if record is None or not FileIdentity(*record["source"]).is_still(identity):
            return False
        try:
            return os.path.getsize(target) == record["bytes"]
        except OSError:
            return False

    def add(self, key: str, identity: FileIdentity, target: str) -> None:
        """Add a complete file."""
        record = {"path": key, "source": list(identity), "bytes": os.path.getsize(target)}
        with self._lock, self._path.open("a", encoding="utf-8") as file:
            file.write(_line(record))
            self._records[key] = record

    def close(self, *, is_finished: bool) -> None:
        """Delete the list if all files are complete, or if none is."""
        if is_finished or not self._records:
            with suppress(FileNotFoundError):
                os.remove(self._path)
        _unlock_folder(str(self._path.parent), self._folder_lock)
        if not self._records:
            # Other files in the folder are not ours, so leave it if there are any.
            with suppress(OSError):
                os.rmdir(self._path.parent)


def _open_list(
    folder: str, options: Mapping[str, Any], keys: Collection[str], *, resume: bool
) -> tuple[Path, list[dict[str, Any]]]:
    """Return the path of the list, and its records of complete files."""
    path = Path(folder, _NAME)
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
        _remove_former_files(folder, {record["path"]: record for record in objects[1:]}, keys)
        # End the part of a line that a crash left, so that it does not spoil the next line.
        with path.open("a", encoding="utf-8") as file:
            file.write("\n")
        return path, objects[1:]
    if any(name != _LOCK_NAME for name in _files_below(folder)):
        reason = ", and it has no interrupted rewrite to continue" if resume else ""
        raise InvalidArgument(f"{folder} is not empty{reason}; give a new folder")
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(_line(head))
    except FileExistsError:
        raise _busy_error(folder) from None
    return path, []


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


def _lock_folder(folder: str) -> BaseFileLock | None:
    """Let no other process write into a folder. Return None if the file system has no locks."""
    from filelock import FileLock, Timeout

    lock = FileLock(os.path.join(folder, _LOCK_NAME))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise _busy_error(folder) from None
    except (OSError, NotImplementedError):
        return None
    return lock


def _unlock_folder(folder: str, lock: BaseFileLock | None) -> None:
    if lock is not None:
        with suppress(OSError):
            os.remove(os.path.join(folder, _LOCK_NAME))
        lock.release()


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
