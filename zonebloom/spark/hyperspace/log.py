"""The record of an index: a log of its states, one small file each.

    <system path>/
      <name>/
        00000000000000000001.json    CREATING: what is to be built
        00000000000000000002.json    ACTIVE
        ...                          the last is how things are
        .lock                        held by the process whose action is under way

An action writes its transitional state first and the stable one when it is done. An entry is
written whole under a name of its own and then linked to its number, which fails if the number
is taken: of two managers that begin at once, one is told so, on file systems without working
locks too. The lock is let go by the operating system when its process ends, so a transitional
state under a free lock is what a crash left.
"""

from __future__ import annotations

import contextlib
import os
import re
import uuid
from collections.abc import Container, Iterator
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from filelock import FileLock, Timeout

from zonebloom.catalog.log import FORMAT_VERSION, from_document, now, to_document
from zonebloom.errors import CommitConflict, CorruptIndex

_ENTRY_NAME = re.compile(r"(\d{20})\.json")


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
    """One entry of the log.

    Attributes
    ----------
    name : str
    state : State
    action : str
        That led here: "create", "refresh incremental", "cancel" and so on.
    number : int
        Of the entry, from 1.
    time : str
        UTC.
    message : str
        Why the action failed, when the entry puts things back.
    path : str
        Folder, file or URI of the data.
    index_dir : str
        Folder of the catalog, in the file system of the data.
    columns : tuple of str
    expected_num_items : int
    fpp : float
    source_bytes : int
        Of the files indexed, at the last refresh that read them.
    accepted : str
        Fingerprint of the files as the last refresh found them; see `source.Drift`.
    accepted_changes : tuple of str
        What a quick refresh took note of; see `source.Drift`.
    created_at : str
    build : str
        Prefix of the segments its creation writes, by which an index in the catalog is known to
        be of it.
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
    accepted: str = ""
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

    def __init__(self, folder: Path, name: str):
        self._folder = folder
        self.name = name

    def latest(self) -> Record:
        """The last entry; of a log without one, that there is no index."""
        numbers = self._numbers()
        return self._read(numbers[-1]) if numbers else Record(self.name)

    def latest_stable(self) -> Record:
        """The last entry of a stable state."""
        for number in reversed(self._numbers()):
            found = self._read(number)
            if found.state.is_stable:
                return found
        return Record(self.name)

    def history(self) -> list[Record]:
        """All entries, the first first."""
        return [self._read(number) for number in self._numbers()]

    def append(self, record: Record, after: int) -> Record:
        """Write an entry as the one that follows another."""
        written = replace(record, number=after + 1, time=now())
        self._folder.mkdir(parents=True, exist_ok=True)
        draft = self._folder / f".{uuid.uuid4().hex}"
        try:
            with open(draft, "wb") as file:
                file.write(to_document(asdict(written)))
                file.flush()
                os.fsync(file.fileno())
            os.link(draft, self._folder / f"{written.number:020d}.json")
        except FileExistsError:
            raise CommitConflict(
                f"another manager changed index {self.name!r} meanwhile; look at "
                f"index({self.name!r}) and try again"
            ) from None
        finally:
            draft.unlink(missing_ok=True)
        return written

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of the index."""
        self._folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self._folder / ".lock", timeout=0)
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

    def _numbers(self) -> list[int]:
        try:
            names = os.listdir(self._folder)
        except FileNotFoundError:
            return []
        found = (_ENTRY_NAME.fullmatch(name) for name in names)
        return sorted(int(each[1]) for each in found if each)

    def _read(self, number: int) -> Record:
        path = self._folder / f"{number:020d}.json"
        try:
            keys = {field.name for field in fields(Record)}
            written_as, document = from_document(path.read_bytes(), keys)
            if written_as > FORMAT_VERSION:
                raise ValueError("it was written by a newer zonebloom; update this one")
            found = _from_json(document)
            if (found.name, found.number) != (self.name, number):
                raise ValueError(f"it is entry {found.number} of index {found.name!r}")
            return found
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CorruptIndex(
                f"{path} cannot be read ({error}); restore it, or remove the folder, which forgets "
                "the index (its filters stay in the catalog of the data)"
            ) from error


class System:
    """The system folder: the logs of all indices."""

    def __init__(self, path: str):
        self.path = path

    def log(self, name: str) -> IndexLog:
        """The log of an index, whether there is one or not."""
        return IndexLog(Path(self.path) / quote(name, safe=""), name)

    def logs(self) -> list[IndexLog]:
        """The logs there are, by name."""
        try:
            found = [each.name for each in os.scandir(self.path) if each.is_dir()]
        except FileNotFoundError:
            return []
        names = (unquote(each) for each in found if not each.startswith("."))
        return [self.log(name) for name in sorted(names)]


def _from_json(document: dict[str, Any]) -> Record:
    columns, changes = document.pop("columns"), document.pop("accepted_changes", [])
    if not isinstance(columns, list) or not isinstance(changes, list):
        raise ValueError("one of its lists is none")
    document["state"] = State(document["state"])
    record = Record(**document, columns=tuple(columns), accepted_changes=tuple(changes))
    texts = (record.name, record.action, record.time, record.message, record.path)
    texts += (record.accepted, record.created_at, record.index_dir, record.build)
    texts += (*record.columns, *record.accepted_changes)
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("one of its texts is none")
    if not all(isinstance(n, int) for n in (record.expected_num_items, record.source_bytes)):
        raise ValueError("one of its numbers is none")
    if not isinstance(record.fpp, int | float):
        raise ValueError("one of its numbers is none")
    return record
