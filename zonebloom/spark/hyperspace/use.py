"""Which of a manager's indices answer for a query, and why others do not.

    relation of the plan -> records over its files -> verdicts -> catalog with those indices alone

An index answers while its stable state is ACTIVE and its files are those it was built of, or are
known to a quick refresh, or hybrid scan allows for what changed besides. A refresh or merge under
way changes nothing of that: the catalog holds what was there before until it is done. Files an
index does not hold are read whatever is decided here.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

import pyarrow as pa

from zonebloom.catalog.store import Catalog
from zonebloom.errors import IndexNotUsedWarning, ZoneBloomError
from zonebloom.predicates import ast
from zonebloom.spark.hyperspace.config import (
    HYBRID_ENABLED,
    MAX_APPENDED_RATIO,
    MAX_DELETED_RATIO,
    Settings,
)
from zonebloom.spark.hyperspace.log import Record, State
from zonebloom.spark.hyperspace.source import Drift, measure_drift, open_recorded
from zonebloom.spark.pruning.answers import Answer, AnsweringFiles, ListedFile
from zonebloom.spark.pruning.lookup import Lookup, keys_of, root_of
from zonebloom.spark.pruning.prune import Pruning
from zonebloom.spark.pruning.pruned import Note, Reason
from zonebloom.storage.paths import filesystem_of, plain_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class IndexReason(Enum):
    """Why an index of a manager is not asked at all; the value is for people."""

    APPLY_DISABLED = "indices are disabled in the session"
    NOT_ACTIVE = "the index is not ACTIVE"
    OTHER_SOURCE = "the query does not read what the index is over"
    DATA_UNREADABLE = "the files of the index cannot be looked at"
    MISSING = "its filters are not in the catalog any more"
    HYBRID_SCAN_DISABLED = "its files changed, and hybrid scan is disabled"
    TOO_MUCH_APPENDED = "more was appended than hybrid scan allows"
    TOO_MUCH_DELETED = "more was deleted than hybrid scan allows"
    OTHER_INDEX = "another index on the column answers"
    COLUMN_NOT_IN_FILTER = "no filter on the column reaches the scan"


# Of these a user wants to hear when a query runs.
_WARNED = (
    IndexReason.DATA_UNREADABLE,
    IndexReason.MISSING,
    IndexReason.HYBRID_SCAN_DISABLED,
    IndexReason.TOO_MUCH_APPENDED,
    IndexReason.TOO_MUCH_DELETED,
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether an index may answer for a relation.

    Attributes
    ----------
    record : Record
    reason : IndexReason or None
        None when it may.
    text : str
        A sentence for people, with numbers.
    """

    record: Record
    reason: IndexReason | None = None
    text: str = ""


def judge(record: Record, settings: Settings) -> Verdict:
    """Say whether an index may answer, by its state and its files as they are now."""
    name = record.name

    def refused(reason: IndexReason, text: str) -> Verdict:
        return Verdict(record, reason, f"index {name!r} is not used: {text}")

    if record.state != State.ACTIVE:
        return refused(IndexReason.NOT_ACTIVE, f"it is {record.state}")
    try:
        ds = open_recorded(record)
        if gone := record.missing_from(ds.opened.version.indices):
            text = f"{', '.join(gone)} is not in {record.index_dir}; refresh it with mode='full'"
            return refused(IndexReason.MISSING, text)
        names = list(record.indices.values())
        drift = measure_drift(ds, names, record.source_bytes, record.accepted_changes)
    except (ZoneBloomError, OSError, pa.ArrowException) as error:
        return refused(IndexReason.DATA_UNREADABLE, str(error))
    if drift.is_none or drift.fingerprint == record.accepted:
        return Verdict(record)
    found = _too_much(drift, settings)
    if found is None:
        return Verdict(record)
    return refused(found[0], f"{found[1]}; call refresh_index({name!r}, mode='incremental')")


def _too_much(drift: Drift, settings: Settings) -> tuple[IndexReason, str] | None:
    """Why files that changed are too many for hybrid scan, None when they are not."""
    if not settings.hybrid_enabled:
        text = (
            f"{drift.num_appended:,} files were appended and {drift.num_deleted:,} deleted since, "
            f"and {HYBRID_ENABLED} is false"
        )
        return IndexReason.HYBRID_SCAN_DISABLED, text
    for reason, ratio, most, count, key, done in (
        (
            IndexReason.TOO_MUCH_APPENDED,
            drift.appended_ratio,
            settings.max_appended_ratio,
            drift.num_appended,
            MAX_APPENDED_RATIO,
            "appended",
        ),
        (
            IndexReason.TOO_MUCH_DELETED,
            drift.deleted_ratio,
            settings.max_deleted_ratio,
            drift.num_deleted,
            MAX_DELETED_RATIO,
            "deleted",
        ),
    ):
        if ratio > most:
            return (
                reason,
                f"{count:,} files, {ratio:.0%} of the bytes, were {done}, {key} is {most}",
            )
    return None


class ManagedLookup(Lookup):
    """Asks only the indices of a manager that may answer.

    Attributes
    ----------
    verdicts : dict of str to list of Verdict
        Of the indices over the files of each root, as Spark names it.
    """

    def __init__(self, records: Sequence[Record], settings: Settings):
        super().__init__(None)
        self._records = records
        self._settings = settings
        self.verdicts: dict[str, list[Verdict]] = {}

    def _open(self, root: str, files: Sequence[ListedFile]) -> AnsweringFiles | Note:
        try:
            filesystem, base = filesystem_of(root)
        except (OSError, pa.ArrowException, NotImplementedError) as error:
            return Note(Reason.NO_INDEX, f"pyarrow cannot look into {root}: {error}")
        there = {base + each.path.removeprefix(root): each for each in files}
        related = [each for each in self._records if is_over(each, root)]
        verdicts = [judge(each, self._settings) for each in related]
        self.verdicts[root] = verdicts
        usable: dict[str, list[Record]] = {}
        for each in verdicts:
            if each.reason is None:
                usable.setdefault(each.record.index_dir, []).append(each.record)
        answering = [
            _answering(Catalog(filesystem, folder), records, there)
            for folder, records in usable.items()
        ]
        found = [each for each in answering if each is not None]
        if not found:
            return Note(Reason.NO_INDEX, f"the manager has no index to use over {root}")
        return found[0] if len(found) == 1 else _SeveralCatalogs(found)

    def of_relation(self, name: str) -> list[Verdict]:
        """Verdicts for a relation, by the name it has in a plan."""
        root = root_of(name.partition(" and ")[0], self.verdicts)
        return [] if root is None else self.verdicts[root]


class _SeveralCatalogs(AnsweringFiles):
    """The same files, known to catalogs in several folders; what one excludes is excluded."""

    def __init__(self, parts: Sequence[AnsweringFiles]):
        self._parts = parts

    @property
    def schema(self) -> pa.Schema:
        return self._parts[0].schema

    def ask(self, predicate: ast.Predicate, ignores_case: bool) -> Answer:
        """Files that hold no row for which a predicate is true."""
        answers = [each.ask(predicate, ignores_case) for each in self._parts]
        notes = dict.fromkeys(note for answer in answers for note in answer.notes)
        # What one catalog leaves unanswered another may answer.
        unanswered = (Reason.NO_INDEX_ON_COLUMN, Reason.FILTER_NOT_ANSWERED)
        return Answer(
            set().union(*(answer.excluded for answer in answers)),
            answers[0].predicate,
            tuple(name for answer in answers for name in answer.indices),
            tuple(
                note
                for note in notes
                if note.reason not in unanswered or all(note in a.notes for a in answers)
            ),
        )


def _answering(
    catalog: Catalog, records: Sequence[Record], there: dict[str, ListedFile]
) -> AnsweringFiles | None:
    """The files with those indices alone, None when the catalog knows none of them."""
    version = catalog.latest()
    names = {name for record in records for name in record.indices.values()}
    allowed = {name: entry for name, entry in version.indices.items() if name in names}
    keys = keys_of(catalog.folder, there, version, True)
    if not keys:
        return None
    return AnsweringFiles(catalog, replace(version, indices=allowed), keys, there)


def is_over(record: Record, root: str) -> bool:
    """Whether an index is over files of a relation's root: the same folder, or one in another."""
    one, other = record.path.rstrip("/"), plain_path(root).rstrip("/")
    return one == other or one.startswith(f"{other}/") or other.startswith(f"{one}/")


def is_over_relation(record: Record, name: str) -> bool:
    """The same, of a relation by the name it has in a plan."""
    return is_over(record, re.sub(r" and [\d,]+ more$", "", name))


class ManagedPruning:
    """A frame, and what a manager's indices leave of it."""

    def __init__(self, df: DataFrame, records: Sequence[Record], settings: Settings):
        self.lookup = ManagedLookup(records, settings)
        self._pruning = Pruning(df, self.lookup)
        self.plan = self._pruning.plan

    def frame(self) -> DataFrame:
        """The frame with fewer files, or the same."""
        return self._pruning.frame()

    def warn(self, stacklevel: int) -> None:
        """Give the warnings of a query that runs."""
        for each in self._pruning.warnings:
            warnings.warn(each, stacklevel=stacklevel + 1)
        verdicts = [each for found in self.lookup.verdicts.values() for each in found]
        for each in dict.fromkeys(v.text for v in verdicts if v.reason in _WARNED):
            warnings.warn(each, IndexNotUsedWarning, stacklevel=stacklevel + 1)
