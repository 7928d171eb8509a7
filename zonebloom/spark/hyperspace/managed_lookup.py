"""Choose the indices of a manager that a query may use, and report why others are not used.

Spark always reads files that changed after an index was built, whatever is chosen here.
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
)
from zonebloom.spark.hyperspace.records import Record, Records, State
from zonebloom.spark.pruning.answer import PruningResult
from zonebloom.spark.pruning.explanation import Note, Reason
from zonebloom.spark.pruning.index_lookup import IndexLookup, KnownFolders
from zonebloom.spark.pruning.indexed_files import CatalogFiles
from zonebloom.spark.pruning.jvm_scan import JvmScan
from zonebloom.spark.pruning.listed_files import ListedFiles
from zonebloom.spark.session_state import LruCache
from zonebloom.storage.paths import plain_path


class ManagedLookup(IndexLookup):
    """A lookup that asks only usable indices of a manager, and notes why others are refused."""

    def __init__(
        self,
        records: Records,
        chosen: Sequence[Record],
        settings: Mapping[str, Any],
        cache: LruCache[Any],
    ):
        super().__init__(records.spark, encryption=records.encryption, cache=cache)
        self._records = records
        self._chosen = chosen
        self._settings = settings
        # Why an index is refused for this query, or None if it is used, by name.
        self._refusals: dict[str, Note | None] = {}

    def ask(self, scan: JvmScan) -> PruningResult:
        """Return the result of the usable indices, with notes about those that were refused."""
        if not self._settings[APPLY_ENABLED]:
            return PruningResult.keep_all(Reason.APPLY_DISABLED)
        result = super().ask(scan)
        names = [record.name for record in self._chosen if _covers_roots(record, scan.roots)]
        refusal_notes = [note for note in map(self._refusals.get, names) if note is not None]
        # There is no warning about a deleted index, because its user deleted it on purpose.
        warned_texts = [note.text for note in refusal_notes if note.reason != Reason.NOT_ACTIVE]
        return replace(
            result,
            notes=(*refusal_notes, *result.notes),
            warnings=(*result.warnings, *map(IndexNotUsedWarning, warned_texts)),
        )

    def _may_know(
        self, root: str, known_folders: KnownFolders, columns: frozenset[str] = frozenset()
    ) -> bool:
        return any(_covers_roots(record, [root]) for record in self._chosen)

    def _merged_roots(self, roots: Sequence[str], known_folders: KnownFolders) -> list[str]:
        # Each root has its own records.
        return list(roots)

    def _catalog_files(
        self,
        place: tuple[str, str],
        filesystem: pafs.FileSystem,
        files: ListedFiles,
        columns: frozenset[str],
        known_folders: KnownFolders,
    ) -> Iterator[CatalogFiles]:
        """Yield the files as each catalog with usable indices knows them."""
        usable: dict[str, set[str]] = {}
        for record in self._chosen:
            if not _covers_roots(record, place[:1]):
                continue
            if record.name not in self._refusals:
                self._refusals[record.name] = self._why_refused(record, filesystem, files)
            if self._refusals[record.name] is None:
                folder = self._records.catalog(record).folder
                usable.setdefault(folder, set()).update(record.indices.values())
        for folder, names in usable.items():
            catalog = self._catalog(filesystem, folder)
            catalog_files = self._open_files(place, catalog, files, frozenset(names))
            if catalog_files is not None:
                yield catalog_files

    def _why_refused(
        self, record: Record, filesystem: pafs.FileSystem, files: ListedFiles
    ) -> Note | None:
        """Return why an index may not be used, by its state and the changes of its files."""

        def refusal(reason: Reason, text: str) -> Note:
            return Note(reason, f"index {record.name!r} is not used: {text}")

        if record.state != State.ACTIVE:
            return refusal(Reason.NOT_ACTIVE, f"it is {record.state}")
        index_dir = self._records.catalog(record).folder
        version = self._catalog(filesystem, index_dir).latest()
        if version.locked_reason:
            return refusal(Reason.DATA_UNREADABLE, version.locked_reason)
        if missing_names := record.missing_from(version.indices):
            text = f"{', '.join(missing_names)} is not in {index_dir}; refresh it with mode='full'"
            return refusal(Reason.MISSING, text)
        try:
            # The drift stays the same while Spark's listing and the catalog version do.
            drift = self._cached(
                ("drift", record), (version, files), lambda: self._records.drift(record)
            )
        except (ZoneBloomError, OSError, pa.ArrowException) as error:
            return refusal(Reason.DATA_UNREADABLE, str(error))
        # Deleted files need no work, and the index still excludes as many of the others. A changed
        # file counts as deleted and as appended.
        if not self._settings[HYBRID_ENABLED] and drift.appended:
            mode = "incremental" if drift.deleted else "quick"
            return refusal(
                Reason.HYBRID_SCAN_DISABLED,
                f"{len(drift.appended):,} files were appended or changed since, and "
                f"{HYBRID_ENABLED} is false; call refresh_index({record.name!r}, mode={mode!r})",
            )
        return None


def _covers_roots(record: Record, roots: Sequence[str]) -> bool:
    """Return whether an index is on a root of a relation, or on a folder below or above one."""
    path = record.path.rstrip("/") + "/"
    folders = [plain_path(root).rstrip("/") + "/" for root in roots]
    return any(path.startswith(folder) or folder.startswith(path) for folder in folders)
