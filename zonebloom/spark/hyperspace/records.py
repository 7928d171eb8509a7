"""What a manager remembers of its indices, as numbered documents in the system folder.

    <system path>/<name of the index>/00000000000000000003.json    the last is how things are

A record says over what an index is, and whether it is deleted. Its filters are in the catalog of
the data, whose versions are written in one step: an index whose filters are not there has not
been built. So there is no state between two steps, and a process may die at any time.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.fs as pafs

from zonebloom.catalog.version_log import VersionLog, from_json
from zonebloom.errors import CommitConflict, CorruptIndex, InvalidArgument
from zonebloom.spark.hyperspace.config import SYSTEM_PATH
from zonebloom.storage.paths import filesystem_of

# What records of earlier versions hold besides, and their states while an action was under way:
# such a record says nothing that the one before it, or the catalog, does not say.
_UNUSED = {"accepted", "action", "build", "created_at", "message", "source_bytes", "time"}
_UNDER_WAY = {
    *("CREATING", "DELETING", "REFRESHING", "VACUUMING"),
    *("RESTORING", "OPTIMIZING", "CANCELLING"),
}


class State(StrEnum):
    """States of an index, as Hyperspace names them; CREATING is in no record."""

    ACTIVE = "ACTIVE"
    CREATING = "CREATING"
    DELETED = "DELETED"
    DOESNOTEXIST = "DOESNOTEXIST"


@dataclass(frozen=True, slots=True)
class Record:
    """What is known of an index.

    The path is that of the data; the changes are what a quick refresh took note of, as
    `source.Drift` has them.
    """

    name: str
    state: State = State.DOESNOTEXIST
    number: int = 0
    path: str = ""
    index_dir: str = ""
    columns: tuple[str, ...] = ()
    expected_num_items: int = 0
    fpp: float = 0.0
    accepted_changes: tuple[str, ...] = ()

    @property
    def indices(self) -> dict[str, str]:
        """Names of the indices in the catalog of the data, by column."""
        return {column: f"{self.name}.{column}" for column in self.columns}

    def missing_from(self, indices: Container[str]) -> list[str]:
        """Names of its indices that a catalog does not hold."""
        return [name for name in self.indices.values() if name not in indices]


class Records:
    """The records of a system folder, which need not be there."""

    def __init__(self, path: str):
        self.path = path
        try:
            self._filesystem, self._folder = filesystem_of(path)
        except (OSError, ValueError, NotImplementedError, pa.ArrowException) as error:
            raise InvalidArgument(
                f"records of indices would be kept in {path}, which pyarrow cannot open "
                f"({error}); set {SYSTEM_PATH} to another folder"
            ) from error

    def all(self) -> list[Record]:
        """The last record of each index there is, by name."""
        selector = pafs.FileSelector(self._folder, allow_not_found=True)
        folders = [
            info.base_name
            for info in self._filesystem.get_file_info(selector)
            if info.type == pafs.FileType.Directory and not info.base_name.startswith(".")
        ]
        records = map(self.latest, sorted(map(unquote, folders)))
        return [record for record in records if record.state != State.DOESNOTEXIST]

    def latest(self, name: str) -> Record:
        """The last record of an index; where there is none, that it does not exist."""
        log = self._log(name)
        numbers = log.numbers()
        last = numbers[-1] if numbers else 0
        for number in reversed(numbers):
            record = self._read(log, name, number)
            if record is not None:
                return replace(record, number=last)
        return Record(name, number=last)

    def put(self, record: Record) -> Record:
        """Write a record in place of the one it was made from."""
        record = replace(record, number=record.number + 1)
        if not self._log(record.name).create(record.number, asdict(record)):
            raise CommitConflict(
                f"another manager changed index {record.name!r} meanwhile; look at "
                f"index({record.name!r}) and try again"
            )
        return record

    def _log(self, name: str) -> VersionLog:
        keys = {field.name for field in fields(Record)} | _UNUSED
        folder = f"{self._folder.rstrip('/')}/{quote(name, safe='')}"
        return VersionLog(self._filesystem, folder, keys)

    def _read(self, log: VersionLog, name: str, number: int) -> Record | None:
        """A record, None when it is of an earlier version's action under way."""
        try:
            content = log.read(number)
            parts = {key: part for key, part in content.items() if key not in _UNUSED}
            if "columns" not in parts:
                raise ValueError("it names no columns")
            if parts["state"] in _UNDER_WAY:
                return None
            record = from_json(Record, parts)
            if (record.name, record.number) != (name, number):
                raise ValueError(f"it is record {record.number} of index {record.name!r}")
            return record
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CorruptIndex(
                f"{log.path(number)} cannot be read ({error}); restore it, or remove the folder, "
                "which forgets the index (its filters stay in the catalog of the data)"
            ) from error
