"""The files of a dataset as they are now, against one catalog version."""

from __future__ import annotations

import itertools
import posixpath
from collections.abc import Iterable, Sequence

import numpy as np

from zonebloom.base.notices import warn
from zonebloom.catalog.coverage import (
    Coverage,
    PresentFragment,
    compute_coverage,
    indexed_identities,
)
from zonebloom.catalog.model import Version
from zonebloom.errors import (
    FragmentUnreadable,
    MissingFilesWarning,
    StaleIndex,
    StaleIndexWarning,
)
from zonebloom.sources.source import Source
from zonebloom.storage.files import FileIdentity, file_errors, without_short_reads


class PresentFiles:
    """Looks at the files anew each time; what it knows of them is kept while they stay so."""

    def __init__(self, source: Source, version: Version):
        self._source = source
        self._version = version
        # What the files were, how they were covered, and whether that holds while they are so.
        self._last: tuple[Sequence[FileIdentity | None], Coverage, bool] | None = None
        self._warned: tuple[tuple[str, str], ...] = ()
        self._without_gaps: tuple[Coverage, tuple[str, ...]] | None = None
        self._missed: Sequence[str] = ()
        self._row_counts: dict[tuple[str, FileIdentity], int] = {}
        self._new_ids = itertools.count(version.next_fragment_id)
        self._given_ids: dict[tuple[str, FileIdentity], int] = {}

    def coverage(self) -> Coverage:
        """The files as they are now; some may be gone. The same object while they stay so."""
        last = self._last
        fragments = self._source.fragments
        before = indexed_identities(fragments, self._version) if last is None else last[0]
        identities = self._source.identities(None, before)
        is_same = last is not None and last[0] == identities
        if last is not None and is_same and last[2]:
            return last[1]
        coverage = compute_coverage(fragments, identities, self._version, self._new_id)
        settled = coverage.is_reusable
        if (
            last is not None
            and is_same
            and np.array_equal(last[1].fragment_ids, coverage.fragment_ids)
        ):
            coverage = last[1]
        self._last = identities, coverage, settled
        return coverage

    def coverage_of_all_files(self) -> Coverage:
        """The same, to answer for the rows of all files: one that is gone is an error, or said."""
        coverage = self.coverage()
        if coverage.missing_keys:
            self._miss(coverage.missing_keys)
        return coverage

    def count_rows(self, fragment: PresentFragment) -> int:
        """Rows of a fragment; of one the catalog does not know, its file says."""
        if fragment.num_rows is not None:
            return fragment.num_rows
        key = (fragment.fragment.path, fragment.identity)
        if key not in self._row_counts:
            files = without_short_reads(self._source.filesystem)
            opened = self._source.open(fragment.fragment, files)
            parquet_in = self._source.filesystem if self._source.has_statistics else None
            with file_errors(fragment.fragment.path, parquet_in=parquet_in):
                self._row_counts[key] = opened.count_rows()
        return self._row_counts[key]

    def warn_of_uncovered_files(self, coverage: Coverage, index_names: Iterable[str]) -> None:
        """Warn, once, of files that the indices used do not cover, or raise StaleIndex."""
        index_names = tuple(index_names)
        checked = self._without_gaps
        if checked is not None and checked[0] is coverage and checked[1] == index_names:
            return
        gaps = [(each.fragment.key, each.reason) for each in coverage.unknown_fragments]
        for name in index_names:
            # A file indexed again after it changed, for another index than this.
            others = coverage.known_ids - self._version.indices[name].fragment_ids
            gaps += [
                (each.fragment.key, f"not in index {name}")
                for each in (coverage.fragments if others else ())
                if each.fragment_id in others
            ]
        self._without_gaps = None if gaps else (coverage, index_names)
        is_refused = self._source.stale == "raise"
        if gaps and (is_refused or self._warned != tuple(gaps)):
            self._warned = tuple(gaps)
            shown = ", ".join(f"{key} ({why})" for key, why in gaps[:3])
            shown += f", and {len(gaps) - 3:,} more" if len(gaps) > 3 else ""
            # One may be in neither of two indices.
            count = len({key for key, _ in gaps})
            verb, them = ("is", "it") if count == 1 else ("are", "them")
            text = f"{count:,} of {len(self._source.fragments):,} files {verb} not covered by"
            step = f"call optimize.optimize_indices() to index {them}"
            if any(self._may_be_unchanged(file) for file in coverage.unknown_fragments):
                step += (
                    ", or adopt_index() where a file was only copied, linked or given other "
                    "times or permissions"
                )
            if is_refused:
                raise StaleIndex(
                    f"{text} the index: {shown}; {step}, or open the dataset with "
                    f'stale="read" to read {them} whole'
                )
            message = f"{text} the index and {verb} read whole: {shown}; {step}"
            warn(StaleIndexWarning(message))

    def _may_be_unchanged(self, file: PresentFragment) -> bool:
        """Return whether adopt_index() may find that a file is as it was indexed."""
        known = self._version.fragments.get(file.fragment.key)
        return (
            known is not None and known.identity.size == file.identity.size and known.footer != ""
        )

    def _miss(self, vanished: Sequence[str]) -> None:
        """Raise, or warn once, of files that are gone."""
        more = f" and {len(vanished) - 1:,} more are" if len(vanished) > 1 else " is"
        gone = f"{posixpath.join(self._source.root, vanished[0])}{more} gone since the dataset was"
        if self._source.stale != "ignore-missing":
            raise FragmentUnreadable(
                f"{gone} opened; call ds.refresh() or open it again, or open it with "
                'stale="ignore-missing" to leave such files out'
            )
        if self._missed != vanished:
            self._missed = vanished
            message = f"{gone} opened and left out; call ds.refresh() or open it again"
            warn(MissingFilesWarning(message))

    def _new_id(self, key: str, identity: FileIdentity) -> int:
        """The id of an unindexed file, never another's later: rows may be asked for by it."""
        file = key, identity
        if file not in self._given_ids:
            # Threads may come here together: the first to come gives the id.
            self._given_ids.setdefault(file, next(self._new_ids))
        return self._given_ids[file]
