"""Match the files that Spark listed with a catalog version, and ask its indices about them.

A file can be skipped only if it is unchanged since it was indexed and since Spark listed it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zonebloom.base.row_ranges import OFFSET_BITS
from zonebloom.catalog.coverage import (
    Coverage,
    FragmentColumns,
    KnownFiles,
    PresentFragment,
    coverage_of_states,
)
from zonebloom.catalog.fragment_table import fragment_table
from zonebloom.catalog.model import Version
from zonebloom.catalog.store import Catalog
from zonebloom.errors import IndexNotUsedWarning
from zonebloom.predicates.spark_calendar import without_rebased_literals
from zonebloom.predicates.type_requirements import columns_of_unfitting_literals
from zonebloom.scan.column_case import files_with_other_case
from zonebloom.scan.opened import OpenedDataset
from zonebloom.scan.search import NoIndex
from zonebloom.snapshot import Snapshot
from zonebloom.sources.discovery import source_of_files
from zonebloom.sources.source import Source, is_plain_parquet
from zonebloom.spark.pruning.explanation import Note, PruningResult, Reason
from zonebloom.spark.pruning.jvm_scan import HYBRID_SCAN, JvmScan, ListedFiles
from zonebloom.spark.pruning.stored_schema import stored_schema
from zonebloom.storage.file_states import look_at_files
from zonebloom.storage.store import store_of

_MAX_LISTED_FILES = 3


@dataclass(frozen=True, slots=True)
class _ListedSource(Source):
    """Listed Parquet files. They have no partition values or views, and are made late."""

    def __post_init__(self) -> None:
        is_parquet = self.file_format is None or is_plain_parquet(self.file_format)
        object.__setattr__(self, "is_parquet", is_parquet)
        object.__setattr__(self, "store", store_of(self.filesystem))
        object.__setattr__(self, "has_views", False)
        # `CatalogFiles` looks at the files, and knows their paths.
        object.__setattr__(self, "_paths", [])

    def partition_columns(self) -> set[str]:
        return set()


class _ListingCheck:
    """The existing files compared with Spark's listing and a catalog version."""

    def __init__(self, snapshot: Snapshot, coverage: Coverage, files: ListedFiles):
        self.snapshot = snapshot
        self.coverage = coverage
        states = coverage.states
        is_unchanged = files.unchanged_mask(states.sizes, states.mtimes_ns)[coverage.positions]
        is_same = coverage.is_known & is_unchanged
        # Fragment ids and numbers of the files that are unchanged since they were indexed and
        # since Spark listed them.
        self.ids = coverage.ids[is_same]
        self.numbers = files.numbers[coverage.positions[is_same]]
        num_changed = int(coverage.is_known.sum() - is_same.sum())
        self.notes = tuple(_notes_on_kept_files(coverage.unknown_fragments, num_changed))


@dataclass(frozen=True, eq=False)
class _TypedSnapshot:
    """The snapshot of a check whose schema has columns of given Spark types."""

    check: _ListingCheck
    column_types: Mapping[str, str]
    snapshot: Snapshot
    _ids_with_other_case: dict[tuple[str, ...], list[int]] = field(default_factory=dict)

    def ids_with_other_case(self, column: tuple[str, ...]) -> list[int]:
        """Return the ids of files that may spell a column name in another case."""
        if column not in self._ids_with_other_case:
            files = files_with_other_case(self.snapshot, column)
            self._ids_with_other_case[column] = [file.fragment_id for file, _ in files]
        return self._ids_with_other_case[column]


class CatalogFiles:
    """Listed files with their paths and catalog keys, and a catalog version with some of them."""

    def __init__(
        self, catalog: Catalog, version: Version, known_files: KnownFiles, files: ListedFiles
    ):
        self._files = files
        self._known_files = known_files
        # Files may have other columns and types than the table, so no file gives the schema.
        fragments = known_files.fragments
        assert isinstance(fragments, FragmentColumns)
        self._paths = fragments.paths
        first = source_of_files([fragments[0].path], filesystem=catalog.filesystem)
        self._source = _ListedSource(
            pa.schema([]), first.file_format, first.filesystem, first.root, fragments
        )
        self._opened = OpenedDataset(self._source, catalog, version)
        self._last_check: _ListingCheck | None = None
        self._last_snapshot: _TypedSnapshot | None = None

    def has_index_on(self, columns: frozenset[str]) -> bool:
        """Return whether there is an index on one of the columns, given in lower case."""
        paths = chain.from_iterable(index.columns for index in self._opened.indices.values())
        return any(path[0].lower() in columns for path in paths)

    def ask(self, scan: JvmScan) -> PruningResult:
        """Return which of these files hold no row that passes the filters of a scan."""
        check, is_hybrid = self._check(), scan.is_hybrid
        if check.notes and not is_hybrid:
            reasons = "; ".join(map(str, check.notes))
            text = (
                f"no index is used, because hybrid scan is disabled: {reasons}; refresh the index, "
                f"or set {HYBRID_SCAN} to true"
            )
            note = Note(Reason.HYBRID_SCAN_DISABLED, text)
            return PruningResult(notes=(note,), warnings=(IndexNotUsedWarning(text),))
        typed = self._typed_snapshot(check, scan.column_types)
        predicate = without_rebased_literals(scan.predicate(typed.snapshot.source.schema))
        search = self._opened.search_snapshot(typed.snapshot, predicate)
        # A row range never spans two fragments, so its start tells the fragment.
        candidate_ids = [search.result.at_most.starts >> OFFSET_BITS]
        # A file that no index of a column covers may store it in a wider type.
        for column in columns_of_unfitting_literals(predicate, typed.snapshot.source.schema):
            files = typed.snapshot.files_of_unknown_type(column)
            candidate_ids.append(np.array([file.fragment_id for file in files], np.int64))
        for view in search.used_views.values() if scan.ignores_case else ():
            for column in view.index.columns:
                ids = typed.ids_with_other_case(column)
                candidate_ids.append(np.array(ids, np.int64))
        is_kept = np.isin(check.ids, np.concatenate(candidate_ids))
        notes = [
            Note(
                Reason.NO_INDEX_ON_COLUMN
                if isinstance(reason, NoIndex)
                else Reason.FILTER_NOT_ANSWERED,
                f"not answered by an index: {part} ({reason})",
            )
            for part, reason in search.unanswered
        ]
        return PruningResult(
            excluded_numbers=check.numbers[~is_kept],
            predicates=(str(predicate),),
            indices=tuple(search.used_views),
            notes=(*notes, *check.notes),
        )

    def _check(self) -> _ListingCheck:
        """Look at the files. The result is the same object while the files do not change."""
        last = self._last_check
        states = look_at_files(self._source.filesystem, self._paths)
        if last is not None and last.coverage.is_reusable and last.coverage.states.equals(states):
            return last
        coverage = coverage_of_states(
            self._known_files,
            states,
            self._opened.new_id,
            earlier=None if last is None else last.coverage,
        )
        if last is not None and last.coverage.equals(coverage):
            # Keep the snapshot, which caches what searches need.
            last.coverage = coverage
            return last
        # Another thread may look at the same time and assign an earlier check.
        check = _ListingCheck(self._opened.snapshot_of(coverage), coverage, self._files)
        self._last_check = check
        return check

    def _typed_snapshot(
        self, check: _ListingCheck, column_types: Mapping[str, str]
    ) -> _TypedSnapshot:
        """Return the snapshot of a check with the types that Spark gives to some columns.

        It is the same object for the same files and types, also if other columns had been asked for
        in between.
        """
        last = self._last_snapshot
        types = {**({} if last is None else last.column_types), **column_types}
        if last is not None and last.check is check and last.column_types == types:
            return last
        schema = stored_schema(types, self._opened.version.indices.values())
        source = replace(self._source, schema=schema)
        last = _TypedSnapshot(check, types, replace(check.snapshot, source=source))
        # Another thread may assign one with other columns at the same time.
        self._last_snapshot = last
        return last


def find_known_files(
    version: Version, paths: pa.StringArray, root: str | None
) -> KnownFiles | None:
    """Return files with their keys in a version, or None if it knows none of them.

    The root is the data folder of the index, or None if the index serves several datasets.
    """
    compute: Any = pc
    entries = fragment_table(version.fragments)
    keys = [paths]
    if root is not None:
        prefix = f"{root.rstrip('/')}/"
        below = compute.utf8_slice_codeunits(paths, len(prefix))
        keys.insert(0, compute.if_else(compute.starts_with(paths, prefix), below, paths))
    all_known_files = (KnownFiles.of(FragmentColumns(paths, part), entries) for part in keys)
    return next((files for files in all_known_files if files.has_known_file), None)


def _notes_on_kept_files(unknown: Sequence[PresentFragment], num_changed: int) -> Iterator[Note]:
    new = [file.fragment.key for file in unknown if file.is_new]
    stale = [file.fragment.key for file in unknown if not file.is_new]
    if new:
        yield Note(Reason.NEW_FILES, f"not indexed, so kept: {_list_text(new)}")
    if stale:
        text = f"changed since they were indexed, so kept: {_list_text(stale)}"
        yield Note(Reason.STALE_FILES, text)
    if num_changed:
        text = f"changed since Spark listed them, so kept: {num_changed:,} files"
        yield Note(Reason.STALE_FILES, text)


def _list_text(names: Sequence[str]) -> str:
    more = (
        f", and {len(names) - _MAX_LISTED_FILES:,} more" if len(names) > _MAX_LISTED_FILES else ""
    )
    return ", ".join(names[:_MAX_LISTED_FILES]) + more
