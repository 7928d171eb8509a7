"""Remember which files of a rewrite are complete, so that a later rewrite can continue it.

    new/.zonebloom-rewrite              the list, which is deleted when all files are complete
    new/year=2024/a.parquet             a complete file
    new/year=2024/.b.parquet.partial    a file that is being written

Readers of a data folder skip names that begin with a dot.
"""

from __future__ import annotations

import json
import os
import posixpath
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from zonebloom.errors import InvalidArgument
from zonebloom.storage.files import FileIdentity

_NAME = ".zonebloom-rewrite"
_FORMAT = 1


class CompleteFiles:
    """The list of complete files in a folder: one JSON object for each line.

    The first line has the options of the rewrite. A crash may leave a part of a line at the end,
    which is ignored.
    """

    def __init__(self, path: Path, records: Sequence[Mapping[str, Any]]):
        self._path = path
        self._records = {record["path"]: record for record in records}
        self._lock = threading.Lock()

    @classmethod
    def open(cls, folder: str, options: Mapping[str, Any], *, resume: bool) -> CompleteFiles:
        """Create the folder and the list, or continue the list of an interrupted rewrite.

        Raise `InvalidArgument` if the folder has other files.
        """
        if os.path.lexists(folder) and not os.path.isdir(folder):
            raise InvalidArgument(f"{folder} is not a folder; give a new folder")
        os.makedirs(folder, exist_ok=True)
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
            # A part of a line at the end would spoil the next line, so write the list again.
            path.write_text("".join(map(_line, objects)), encoding="utf-8")
            return cls(path, objects[1:])
        if any(files for _, _, files in os.walk(folder)):
            raise InvalidArgument(f"{folder} is not empty; give a new folder")
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(_line(head))
        except FileExistsError:
            raise InvalidArgument(
                f"another rewrite has begun to write {folder}; give another folder"
            ) from None
        return cls(path, [])

    def has(self, key: str, identity: FileIdentity, target: str) -> bool:
        """Return whether a file is complete, and its source is still the one that was rewritten."""
        record = self._records.get(key)
        if record is None or record["source"] != _source_record(identity):
            return False
        try:
            return os.path.getsize(target) == record["bytes"]
        except OSError:
            return False

    def add(self, key: str, identity: FileIdentity, target: str) -> None:
        """Add a complete file."""
        record = {
            "path": key,
            "source": _source_record(identity),
            "bytes": os.path.getsize(target),
        }
        with self._lock, self._path.open("a", encoding="utf-8") as file:
            file.write(_line(record))
            self._records[key] = record

    def close(self, *, is_finished: bool) -> None:
        """Delete the list if all files are complete, or if none is."""
        if is_finished or not self._records:
            with suppress(FileNotFoundError):
                os.remove(self._path)
        if not self._records:
            # Other files in the folder are not ours, so leave it if there are any.
            with suppress(OSError):
                os.rmdir(posixpath.dirname(str(self._path)))


def _source_record(identity: FileIdentity) -> list[Any]:
    return [identity.size, identity.mtime_ns, identity.tag]


def _line(record: Mapping[str, Any]) -> str:
    return json.dumps(record) + "\n"


def _read_objects(path: Path) -> list[dict[str, Any]]:
    objects = []
    for line in path.read_text(encoding="utf-8").splitlines():
        with suppress(ValueError):
            objects.append(json.loads(line))
    return objects
