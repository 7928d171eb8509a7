"""Match the files that Spark listed with a catalog version, and ask its indices about them.

A file can be skipped only if it is unchanged since it was indexed and since Spark listed it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np

from zonebloom.base.row_ranges import OFFSET_BITS
from zonebloom.catalog.coverage import PresentFragment
from zonebloom.catalog.model import Version
from zonebloom.catalog.store import Catalog
from zonebloom.scan.opened import OpenedDataset
from zonebloom.scan.search import NoIndex
from zonebloom.snapshot import Snapshot
from zonebloom.sources.discovery import source_of_files
from zonebloom.sources.source import Fragment, Source
from zonebloom.spark.column_case import files_with_other_case
from zonebloom.spark.pruning.answer import PruningResult
from zonebloom.spark.pruning.jvm_scan import JvmScan
from zonebloom.spark.pruning.listed_files import ListedFiles
from zonebloom.spark.pruning.prune_plan import Note, Reason
from zonebloom.spark.rebase import without_rebased_literals

_MAX_LISTED_FILES = 3


class _ListingCheck:
    """The existing files compared with Spark's listing and a catalog version."""

    def __init__(self, snapshot: Snapshot, files: ListedFiles):
        self.snapshot = snapshot
        source, coverage = snapshot.source, snapshot.coverage
        vanished_keys = set(coverage.missing_keys)
        is_present = [fragment.key not in vanished_keys for fragment in source.fragments]
        present_files = files.take(np.flatnonzero(is_present))
        identities = [fragment.identity for fragment in coverage.fragments]
        sizes, mtimes_ns, *_ = zip(*identities, strict=True)
        is_known = np.array([fragment.num_rows is not None for fragment in coverage.fragments])
        is_same = is_known & present_files.unchanged_mask(np.array(sizes), np.array(mtimes_ns))
        # Fragment ids and numbers of the files that are unchanged since they were indexed and
        # since Spark listed them.
        self.ids, self.numbers = coverage.fragment_ids[is_same], present_files.numbers[is_same]
        num_changed = int(is_known.sum() - is_same.sum())
        self.notes = tuple(_notes_on_kept_files(coverage.unknown_fragments, num_changed))
        # Ids of files that may spell a column name in another case, by column.
        self.ids_with_other_case: dict[tuple[str, ...], list[int]] = {}


class CatalogFiles:
    """Listed files, with their paths and catalog keys, and a catalog version with some of them."""

    def __init__(
        self,
        catalog: Catalog,
        version: Version,
        paths: Sequence[str],
        keys: Sequence[str],
        files: ListedFiles,
    ):
        self._files = files
        # The first file by path gives the schema, as for a dataset of the folder.
        first = source_of_files([min(paths)], filesystem=catalog.filesystem)
        self._source: Source = replace(first, fragments=tuple(map(Fragment, paths, keys)))
        self._opened = OpenedDataset(self._source, catalog, version)
        self._listing_check: _ListingCheck | None = None

    def has_index_on(self, columns: frozenset[str]) -> bool:
        """Return whether there is an index on one of the columns, given in lower case."""
        paths = chain.from_iterable(index.columns for index in self._opened.indices.values())
        return any(path[0].lower() in columns for path in paths)

    def ask(self, scan: JvmScan) -> PruningResult:
        """Return which of these files hold no row that passes the filters of a scan."""
        predicate = without_rebased_literals(scan.predicate(self._source.schema))
        snapshot = self._opened.look()
        search = self._opened.search_snapshot(snapshot, predicate)
        check = self._listing_check
        if check is None or check.snapshot is not snapshot:
            # The snapshot is the same object while the files do not change.
            check = self._listing_check = _ListingCheck(snapshot, self._files)
        # A row range never spans two fragments, so its start tells the fragment.
        candidate_ids = [search.result.at_most.starts >> OFFSET_BITS]
        for view in search.used_views.values() if scan.ignores_case else ():
            for column in view.index.columns:
                ids = self._ids_with_other_case(check, column)
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

    def _ids_with_other_case(self, check: _ListingCheck, column: tuple[str, ...]) -> list[int]:
        if column not in check.ids_with_other_case:
            files = files_with_other_case(check.snapshot, column)
            check.ids_with_other_case[column] = [file.fragment_id for file, _ in files]
        return check.ids_with_other_case[column]


def known_keys(version: Version, paths: Sequence[str], root: str | None) -> list[str] | None:
    """Return the keys of files in a version, or None if it knows none of them.

    The root is the data folder of the index, or None if the index serves several datasets.
    """
    relative_paths: list[str] = []
    if root is not None:
        prefix = f"{root.rstrip('/')}/"
        relative_paths = [path.removeprefix(prefix) for path in paths]
    for keys in filter(None, (relative_paths, paths)):
        # Use the key strings of the version where possible, to save memory with many files.
        fragments = list(map(version.fragments.get, keys))
        if any(fragments):
            return [
                key if fragment is None else fragment.key
                for key, fragment in zip(keys, fragments, strict=True)
            ]
    return None


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
