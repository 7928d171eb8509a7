"""The records of a manager's indices, as numbered documents in the system folder.

    <system path>/<name of the index>/00000000000000000003.json    the highest number counts

A record tells which data an index covers, and whether it is deleted. Its filters are in the catalog
of the data. A catalog version is written in one step, so an index without filters has not been
built yet. There is no state in between, and a process may die at any time.
"""

from __future__ import annotations

import time
from collections.abc import Container
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.fs as pafs

from zonebloom.base.notices import collected_warnings, warn
from zonebloom.catalog.drift import Drift, measure_drift
from zonebloom.catalog.store import Catalog
from zonebloom.catalog.version_log import VersionLog, encode_document, from_json
from zonebloom.errors import (
    CommitConflict,
    CorruptIndex,
    IndexNotUsedWarning,
    InvalidArgument,
    SourceError,
    ZoneBloomError,
)
from zonebloom.facade.dataset import Dataset
from zonebloom.spark.hyperspace.config import CACHE_SECONDS, SYSTEM_PATH, read_settings
from zonebloom.spark.opening import open_dataset
from zonebloom.spark.session_settings import open_path
from zonebloom.spark.session_state import session_state
from zonebloom.storage.encryption import Encryption


class State(StrEnum):
    """The states of an index, with Hyperspace's names. No record has the state CREATING."""

    ACTIVE = "ACTIVE"
    CREATING = "CREATING"
    DELETED = "DELETED"
    DOESNOTEXIST = "DOESNOTEXIST"


@dataclass(frozen=True, slots=True)
class Record:
    """A record of an index. Its fields are the keys of the stored document.

    ``path`` is the path of the data.
    """

    name: str
    state: State = State.DOESNOTEXIST
    number: int = 0
    path: str = ""
    index_dir: str = ""
    columns: tuple[str, ...] = ()
    expected_num_items: int = 0
    fpp: float = 0.0

    @property
    def indices(self) -> dict[str, str]:
        """Return the names of the indices in the catalog of the data, by column."""
        return {column: f"{self.name}.{column}" for column in self.columns}

    def state_in(self, indices: Container[str]) -> State:
        """Return the state, which is CREATING while a catalog has none of its indices."""
        is_built = any(name in indices for name in self.indices.values())
        return State.CREATING if self.state == State.ACTIVE and not is_built else self.state

    def missing_from(self, indices: Container[str]) -> list[str]:
        """Return the names of its indices that a catalog lacks."""
        return [name for name in self.indices.values() if name not in indices]


class Records:
    """The records in a system folder, which may not exist yet, and access to their indices."""

    def __init__(self, path: str, spark: Any = None, encryption: Encryption | None = None):
        self.path = path
        self.spark = spark
        self.encryption = encryption
        # Data with several indices is opened only once.
        self._datasets: dict[tuple[str, str], Dataset] = {}
        try:
            self._filesystem, self._folder = open_path(spark, path)
        except SourceError as error:
            raise InvalidArgument(
                f"records of indices cannot be stored in {path} ({error}); set "
                f"{SYSTEM_PATH} to another folder"
            ) from None

    def all(self) -> list[Record]:
        """Return the latest records of all existing indices, ordered by name.

        Warn of damaged records, and leave them out.
        """
        selector = pafs.FileSelector(self._folder, allow_not_found=True)
        folders = [
            info.base_name
            for info in self._filesystem.get_file_info(selector)
            if info.type == pafs.FileType.Directory and not info.base_name.startswith(".")
        ]
        records: list[Record] = []
        for name in sorted(map(unquote, folders)):
            try:
                records.append(self.latest(name))
            except CorruptIndex as error:
                warn(IndexNotUsedWarning(f"index {name!r} is not used: {error}"))
        return [record for record in records if record.state != State.DOESNOTEXIST]

    def latest(self, name: str) -> Record:
        """Return the latest record of an index. If there is none, its state is DOESNOTEXIST."""
        log = self._log(name)
        numbers = log.numbers()
        if not numbers:
            return Record(name)
        number = numbers[-1]
        try:
            content = log.read(number)
            if "columns" not in content:
                raise ValueError("it names no columns")
            # Version 0.1 stored the changes that a quick refresh accepted. Now it indexes them.
            content.pop("accepted_changes", None)
            record = from_json(Record, content)
            if (record.name, record.number) != (name, number):
                raise ValueError(f"it is record {record.number} of index {record.name!r}")
            return record
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CorruptIndex(
                f"{log.path(number)} cannot be read ({error}); restore it, or delete its folder, "
                "which removes the index (its filters stay in the catalog of the data)"
            ) from error

    def put(self, record: Record) -> Record:
        """Write a record with the next number. Raise `CommitConflict` if that number exists."""
        record = replace(record, number=record.number + 1)
        if not self._log(record.name).create(record.number, encode_document(record)):
            raise CommitConflict(
                f"another manager changed index {record.name!r} meanwhile; check "
                f"index({record.name!r}) and try again"
            )
        return record

    def catalog(self, record: Record) -> Catalog:
        """Return the catalog of an index, also if its data is gone."""
        filesystem, _ = open_path(self.spark, record.path)
        return Catalog(filesystem, record.index_dir, self.encryption)

    def open(self, record: Record) -> Dataset:
        """Return the data of an index with all its indices, as they are now."""
        folder = self.catalog(record).folder
        return open_dataset(record.path, self.spark, folder, self.encryption)

    def drift(self, record: Record) -> Drift:
        """Return how the files of the data changed since an index was built."""
        place = record.path, record.index_dir
        if place not in self._datasets:
            self._datasets[place] = self.open(record)
        opened = self._datasets[place].opened
        return measure_drift(opened.version, record.indices.values(), opened.look().fragments)

    def _log(self, name: str) -> VersionLog:
        folder = f"{self._folder.rstrip('/')}/{quote(name, safe='')}"
        return VersionLog(self._filesystem, folder)


def deleted_indices(spark: Any) -> frozenset[tuple[str, str]]:
    """Return the deleted indices of a session's managers: the catalog's folder and the name.

    They are cached for the time that the conf allows, until a manager of the session changes one.
    """
    state, now = session_state(spark), time.monotonic()
    try:
        settings = read_settings(spark)
        path = settings[SYSTEM_PATH]
        cached = state.deleted_indices
        if cached and cached[1] == path and now - cached[0] < settings[CACHE_SECONDS]:
            return cached[2]
        records = Records(path, spark)
        with collected_warnings():
            deleted = frozenset(
                (records.catalog(record).folder, name)
                for record in records.all()
                if record.state == State.DELETED
                for name in record.indices.values()
            )
    except (ZoneBloomError, OSError, pa.ArrowException):
        # Queries do not depend on a system folder, and may use all indices without losing a row.
        return frozenset()
    state.deleted_indices = now, path, deleted
    return deleted


def forget_deleted_indices(spark: Any) -> None:
    session_state(spark).deleted_indices = None
