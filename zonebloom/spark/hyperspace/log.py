"""The record of an index: a log of its states, one small document each.

    <system path>/
      <name>/
        00000000000000000001.json    CREATING: what is to be built
        00000000000000000002.json    ACTIVE
        ...                          the last is how things are
        .lock                        held by the process whose action is under way

An action writes its transitional state first and the stable one when it is done. Of two managers
that begin at once one finds its number taken, on file systems without working locks too. The lock
is let go by the operating system when its process ends, so a transitional state under a free lock
is what a crash left.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Container, Iterator
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from urllib.parse import quote, unquote

import pyarrow.fs as pafs
from filelock import FileLock, Timeout

from zonebloom.catalog.version_log import VersionLog, from_json, now
from zonebloom.errors import CommitConflict, CorruptIndex

# What earlier records hold besides: a fingerprint of the files, which nothing depends on.
_UNUSED = "accepted"


class State(StrEnum):
    """States of an index, as Hyperspace names them."""

    ACTIVE = "ACTIVE"
    CREATING = "CREATING"
    DELETING = "DELETING"
    DELETED = "DELETED"
    REFRESHING = "REFRESHING"
    VACUUMING = "VACUUMING"
    RESTORING = "RESTORING"
    OPTIMIZING = "OPTIMIZING"
    DOESNOTEXIST = "DOESNOTEXIST"
    CANCELLING = "CANCELLING"

    @property
    def is_stable(self) -> bool:
        """Whether no action is under way."""
        return self in (State.ACTIVE, State.DELETED, State.DOESNOTEXIST)


@dataclass(frozen=True, slots=True)
class Record:
    """One entry of the log, numbered from 1; times are UTC.

    The action led here: "create", "refresh incremental", "cancel" and so on; the message says why
    it failed. The path is that of the data, the bytes of its files are those at the last refresh
    that read them, and the changes what a quick refresh took note of, as `source.Drift` has them.
    The build is the prefix of the segments that its creation writes, by which an index in the
    catalog is known to be of it.
    """

    name: str
    state: State = State.DOESNOTEXIST
    action: str = ""
    number: int = 0
    time: str = ""
    message: str = ""
    path: str = ""
    index_dir: str = ""
    columns: tuple[str, ...] = ()
    expected_num_items: int = 0
    fpp: float = 0.0
    source_bytes: int = 0
    accepted_changes: tuple[str, ...] = ()
    created_at: str = ""
    build: str = ""

    @property
    def indices(self) -> dict[str, str]:
        """Names of the indices in the catalog of the data, by column."""
        return {column: f"{self.name}.{column}" for column in self.columns}

    def missing_from(self, indices: Container[str]) -> list[str]:
        """Names of its indices that a catalog does not hold."""
        return [name for name in self.indices.values() if name not in indices]


class IndexLog:
    """The log of one index."""

    def __init__(self, folder: str, name: str):
        self._folder = folder
        self.name = name
        keys = {field.name for field in fields(Record)} | {_UNUSED}
        self._log = VersionLog(pafs.LocalFileSystem(), folder, keys)

    def latest(self) -> Record:
        """The last entry; of a log without one, that there is no index."""
        numbers = self._log.numbers()
        return self._read(numbers[-1]) if numbers else Record(self.name)

    def latest_stable(self) -> Record:
        """The last entry of a stable state."""
        records = map(self._read, reversed(self._log.numbers()))
        return next((r for r in records if r.state.is_stable), Record(self.name))

    def history(self) -> list[Record]:
        """All entries, the first first."""
        return [self._read(number) for number in self._log.numbers()]

    def append(self, record: Record, after: int) -> Record:
        """Write an entry as the one that follows another."""
        record = replace(record, number=after + 1, time=now())
        if not self._log.create(record.number, asdict(record)):
            raise CommitConflict(
                f"another manager changed index {self.name!r} meanwhile; look at "
                f"index({self.name!r}) and try again"
            )
        return record

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of the index."""
        os.makedirs(self._folder, exist_ok=True)
        lock = FileLock(os.path.join(self._folder, ".lock"), timeout=0)
        try:
            lock.acquire()
        except Timeout:
            state = self.latest().state
            raise CommitConflict(
                f"index {self.name!r} is {state}: another process or thread is at work on it; "
                "wait until that is done, or stop it"
            ) from None
        try:
            yield
        finally:
            lock.release()

    def _read(self, number: int) -> Record:
        try:
            parts = dict(self._log.read(number).items())
            parts.pop(_UNUSED, None)
            if "columns" not in parts:
                raise ValueError("it names no columns")
            record = from_json(Record, parts)
            if (record.name, record.number) != (self.name, number):
                raise ValueError(f"it is entry {record.number} of index {record.name!r}")
            return record
        except (OSError, ValueError, AttributeError, RecursionError) as error:
            raise CorruptIndex(
                f"{self._log.path(number)} cannot be read ({error}); restore it, or remove the "
                "folder, which forgets the index (its filters stay in the catalog of the data)"
            ) from error


class System:
    """The system folder: the logs of all indices."""

    def __init__(self, path: str):
        self.path = path

    def log(self, name: str) -> IndexLog:
        """The log of an index, whether there is one or not."""
        return IndexLog(os.path.join(self.path, quote(name, safe="")), name)

    def logs(self) -> list[IndexLog]:
        """The logs there are, by name."""
        try:
            folders = [entry.name for entry in os.scandir(self.path) if entry.is_dir()]
        except FileNotFoundError:
            return []
        return [self.log(n) for n in sorted(unquote(f) for f in folders if not f.startswith("."))]
