"""Files that Spark listed, as a catalog version knows them, and what its indices say of them.

One is left out only when the catalog knows it as it is now, and as it was when Spark listed it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from zonebloom.base.row_ranges import OFFSET_BITS
from zonebloom.catalog.coverage import Coverage, PresentFragment
from zonebloom.catalog.model import Version
from zonebloom.catalog.store import Catalog
from zonebloom.scan.planner import Planner
from zonebloom.scan.search import NoIndex
from zonebloom.sources.discovery import source_of_files
from zonebloom.sources.source import Fragment, Source
from zonebloom.spark.column_case import files_with_other_case
from zonebloom.spark.pruning.answer import PruningRequest, PruningResult
from zonebloom.spark.pruning.listed_files import ListedFiles
from zonebloom.spark.pruning.prune_plan import Note, Reason
from zonebloom.spark.rebase import without_rebased_literals

_SHOWN = 3


class _Present:
    """Files as they are now, against the listing of Spark and a catalog version."""

    def __init__(self, coverage: Coverage, source: Source, files: ListedFiles):
        self.coverage = coverage
        gone = set(coverage.missing_keys)
        listed = files.take(np.flatnonzero([each.key not in gone for each in source.fragments]))
        sizes, mtimes_ns, *_ = zip(*(each.identity for each in coverage.fragments), strict=True)
        is_known = np.array([each.num_rows is not None for each in coverage.fragments])
        is_same = is_known & listed.unchanged_mask(np.array(sizes), np.array(mtimes_ns))
        # Those that are as they were indexed and as Spark listed them.
        self.ids, self.numbers = coverage.fragment_ids[is_same], listed.numbers[is_same]
        num_changed = int(is_known.sum() - is_same.sum())
        self.notes = tuple(_gaps(coverage.unknown_fragments, num_changed))
        # By column, the ids of files that may call it by another name.
        self.hiding: dict[tuple[str, ...], list[int]] = {}


class CatalogFiles:
    """Files, by their paths and keys, with the catalog version that knows some of them."""

    def __init__(
        self,
        catalog: Catalog,
        version: Version,
        paths: Sequence[str],
        keys: Sequence[str],
        files: ListedFiles,
    ):
        self._files = files
        # The schema is that of the first file by path, as of a dataset of the folder.
        first = source_of_files([min(paths)], filesystem=catalog.filesystem)
        self._source: Source = replace(first, fragments=tuple(map(Fragment, paths, keys)))
        self._planner = Planner(self._source, catalog, version)
        self._present: _Present | None = None

    def has_index_on(self, columns: frozenset[str]) -> bool:
        """Return whether there is an index on one of some columns, given in small letters."""
        indices = self._planner.version.indices.values()
        return any(entry.column[0].lower() in columns for entry in indices)

    def ask(self, question: PruningRequest) -> PruningResult:
        """Say which of these files hold no row of the condition."""
        asked = without_rebased_literals(question.bind_predicate(self._source.schema))
        coverage, search = self._planner.search_existing_files(asked)
        present = self._present
        if present is None or present.coverage is not coverage:
            # It is the same object while the files stay as they are.
            present = self._present = _Present(coverage, self._source, self._files)
        # No range crosses a fragment.
        may_match = [search.result.at_most.starts >> OFFSET_BITS]
        for view in search.used_views.values() if question.ignores_case else ():
            may_match.append(np.array(self._hiding(present, view.index.entry.column), np.int64))
        is_kept = np.isin(present.ids, np.concatenate(may_match))
        notes = [
            Note(
                Reason.NO_INDEX_ON_COLUMN
                if isinstance(why, NoIndex)
                else Reason.FILTER_NOT_ANSWERED,
                f"not answered by an index: {part} ({why})",
            )
            for part, why in search.unanswered
        ]
        excluded, indices = present.numbers[~is_kept], tuple(search.used_views)
        return PruningResult(excluded, (str(asked),), indices, (*notes, *present.notes))

    def _hiding(self, present: _Present, column: tuple[str, ...]) -> list[int]:
        if column not in present.hiding:
            hiding = files_with_other_case(self._planner, present.coverage, self._source, column)
            present.hiding[column] = [file.fragment_id for file, _ in hiding]
        return present.hiding[column]


def known_keys(version: Version, paths: Sequence[str], root: str | None) -> list[str] | None:
    """Return the keys of files in a version, None if it knows none of them.

    The root is the data folder that the index belongs to, None where it serves several datasets.
    """
    below = [] if root is None else [path.removeprefix(f"{root.rstrip('/')}/") for path in paths]
    for keys in filter(None, (below, paths)):
        # Of many files each text counts: the version has most of them.
        known = list(map(version.fragments.get, keys))
        if any(known):
            return [
                key if each is None else each.key for key, each in zip(keys, known, strict=True)
            ]
    return None


def _gaps(unknown: Sequence[PresentFragment], num_changed: int) -> Iterator[Note]:
    new = [file.fragment.key for file in unknown if file.is_new]
    stale = [file.fragment.key for file in unknown if not file.is_new]
    if new:
        yield Note(Reason.NEW_FILES, f"not indexed, so kept: {_shown(new)}")
    if stale:
        text = f"changed since they were indexed, so kept: {_shown(stale)}"
        yield Note(Reason.STALE_FILES, text)
    if num_changed:
        text = f"changed since Spark listed them, so kept: {num_changed:,} files"
        yield Note(Reason.STALE_FILES, text)


def _shown(names: Sequence[str]) -> str:
    more = f", and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
