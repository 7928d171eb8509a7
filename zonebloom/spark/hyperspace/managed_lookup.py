"""Which of a manager's indices answer for a query, and why others do not.

Files that an index does not hold as they are now are read whatever is decided here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from zonebloom.errors import IndexNotUsedWarning, ZoneBloomError
from zonebloom.spark.hyperspace.config import (
    APPLY_ENABLED,
    HYBRID_ENABLED,
    MAX_APPENDED_RATIO,
    MAX_DELETED_RATIO,
)
from zonebloom.spark.hyperspace.records import Record, State
from zonebloom.spark.hyperspace.source import measure_drift, open_recorded
from zonebloom.spark.pruning.lookup import Answer, IndexedFiles, ListedFile, Lookup, Question
from zonebloom.spark.pruning.pruned import Note, Reason
from zonebloom.storage.paths import plain_path

_WARNED = (
    Reason.DATA_UNREADABLE,
    Reason.MISSING,
    Reason.HYBRID_SCAN_DISABLED,
    Reason.TOO_MUCH_APPENDED,
    Reason.TOO_MUCH_DELETED,
)


def why_refused(record: Record, settings: Mapping[str, Any]) -> Note | None:
    """Why an index may not answer, by its state and its files as they are now."""
    step = f"; call refresh_index({record.name!r}, mode='incremental')"

    def refused(reason: Reason, text: str) -> Note:
        return Note(reason, f"index {record.name!r} is not used: {text}")

    if record.state != State.ACTIVE:
        return refused(Reason.NOT_ACTIVE, f"it is {record.state}")
    try:
        ds = open_recorded(record)
        if gone := record.missing_from(ds.opened.version.indices):
            text = f"{', '.join(gone)} is not in {record.index_dir}; refresh it with mode='full'"
            return refused(Reason.MISSING, text)
        drift = measure_drift(ds, record, record.accepted_changes)
    except (ZoneBloomError, OSError, pa.ArrowException) as error:
        return refused(Reason.DATA_UNREADABLE, str(error))
    appended, deleted = drift.num_appended, drift.num_deleted
    if not settings[HYBRID_ENABLED] and (appended or deleted):
        text = f"{appended:,} files were appended and {deleted:,} deleted since"
        return refused(Reason.HYBRID_SCAN_DISABLED, f"{text}, and {HYBRID_ENABLED} is false{step}")
    most, ratio = settings[MAX_APPENDED_RATIO], drift.appended_ratio
    if ratio > most:
        text = f"{appended:,} files, {ratio:.0%} of the bytes, were appended"
        return refused(Reason.TOO_MUCH_APPENDED, f"{text}, {MAX_APPENDED_RATIO} is {most}{step}")
    most, ratio = settings[MAX_DELETED_RATIO], drift.deleted_ratio
    if ratio > most:
        text = f"{deleted:,} files, {ratio:.0%} of the bytes, were deleted"
        return refused(Reason.TOO_MUCH_DELETED, f"{text}, {MAX_DELETED_RATIO} is {most}{step}")
    return None


class ManagedLookup(Lookup):
    """Asks only the indices of a manager that may answer; says of others why they were refused."""

    def __init__(
        self,
        records: Sequence[Record],
        settings: Mapping[str, Any],
        cache: dict[Any, Any] | None = None,
    ):
        super().__init__(cache=cache)
        self.records = records
        self.refused: dict[str, Note] = {}
        self._settings = settings
        self._judged: dict[str, Note | None] = {}

    def ask(self, question: Question) -> Answer:
        """The same, with what a user wants to hear of indices that were refused."""
        if not self._settings[APPLY_ENABLED]:
            return Answer(notes=(Note(Reason.APPLY_DISABLED),))
        answer = super().ask(question)
        refused = [note.text for note in self.refused.values() if note.reason in _WARNED]
        return replace(answer, warnings=(*answer.warnings, *map(IndexNotUsedWarning, refused)))

    def _may_know(self, root: str) -> bool:
        return any(is_over(record, [root]) for record in self.records)

    def _indexed(
        self, root: str, filesystem: pafs.FileSystem, base: str, files: Mapping[str, ListedFile]
    ) -> Iterator[IndexedFiles]:
        """The files as each catalog with indices to use has them."""
        usable: dict[str, set[str]] = {}
        for record in self.records:
            if is_over(record, [root]) and not self._is_refused(record):
                usable.setdefault(record.index_dir, set()).update(record.indices.values())
        for folder, names in usable.items():
            catalog = self._catalog(filesystem, folder)
            indexed = self._open(root, catalog, files, frozenset(names))
            if indexed is not None:
                yield indexed

    def _is_refused(self, record: Record) -> bool:
        if record.name not in self._judged:
            note = self._judged[record.name] = why_refused(record, self._settings)
            if note is not None:
                self.refused[record.name] = note
        return record.name in self.refused


def is_over(record: Record, roots: Sequence[str]) -> bool:
    """Whether an index is over files of a relation: of a root, or of a folder in one or above."""
    path = record.path.rstrip("/") + "/"
    folders = [plain_path(root).rstrip("/") + "/" for root in roots]
    return any(path.startswith(folder) or folder.startswith(path) for folder in folders)
