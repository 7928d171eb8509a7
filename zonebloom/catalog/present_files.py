"""Keep the coverage of an open dataset up to date, and warn of files that are missing or uncovered.

`zonebloom.catalog.coverage` says how this fits freshness, coverage and drift together.
"""

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
    """The files of an open dataset, compared anew with its catalog version for each request.

    The last coverage, row counts and new ids are cached for as long as the files do not change.
    """

    def __init__(self, source: Source, version: Version):
        self._source = source
        self._version = version
        # The last identities, their coverage, and whether it is valid while they stay the same.
        self._last: tuple[Sequence[FileIdentity | None], Coverage, bool] | None = None
        # Warnings that were issued, so that each is issued once.
        self._reported_gaps: tuple[tuple[str, str], ...] = ()
        self._reported_missing_keys: Sequence[str] = ()
        # The last coverage without gaps, and the names of the indices it was checked for.
        self._gapless: tuple[Coverage, tuple[str, ...]] | None = None
        self._row_counts: dict[tuple[str, FileIdentity], int] = {}
        self._free_ids = itertools.count(version.next_fragment_id)
        self._new_ids: dict[tuple[str, FileIdentity], int] = {}

    def coverage(self) -> Coverage:
        """Return the coverage of the files that exist now. Some files may be missing.

        The result is the same object for as long as the files do not change.
        """
        last = self._last
        fragments = self._source.fragments
        before = indexed_identities(fragments, self._version) if last is None else last[0]
        identities = self._source.identities(None, before)
        is_same = last is not None and last[0] == identities
        if last is not None and is_same and last[2]:
            return last[1]
        coverage = compute_coverage(fragments, identities, self._version, self._new_id)
        is_reusable = coverage.is_reusable
        has_same_ids = last is not None and np.array_equal(
            last[1].fragment_ids, coverage.fragment_ids
        )
        if last is not None and is_same and has_same_ids:
            coverage = last[1]
        self._last = identities, coverage, is_reusable
        return coverage

    def coverage_of_all_files(self) -> Coverage:
        """Return the coverage for a scan of all files.

        A missing file raises `FragmentUnreadable`, or warns with stale="ignore-missing".
        """
        coverage = self.coverage()
        if coverage.missing_keys:
            self._report_missing(coverage.missing_keys)
        return coverage

    def count_rows(self, fragment: PresentFragment) -> int:
        """Return the number of rows of a fragment, from the catalog or else from its file."""
        if fragment.num_rows is not None:
            return fragment.num_rows
        key = (fragment.fragment.path, fragment.identity)
        if key not in self._row_counts:
            self._row_counts[key] = self.count_rows_in_file(fragment)
        return self._row_counts[key]

    def count_rows_in_file(self, fragment: PresentFragment) -> int:
        """Return the number of rows of a fragment by its file as it is now."""
        files = without_short_reads(self._source.filesystem)
        parquet_in = self._source.filesystem if self._source.has_statistics else None
        with file_errors(fragment.fragment.path, parquet_in=parquet_in):
            return self._source.count_rows(fragment.fragment, files)

    def warn_of_uncovered_files(self, coverage: Coverage, index_names: Iterable[str]) -> None:
        """Warn once of files that not all named indices cover, or raise `StaleIndex`."""
        index_names = tuple(index_names)
        gapless = self._gapless
        if gapless is not None and gapless[0] is coverage and gapless[1] == index_names:
            return
        gaps = [(fragment.fragment.key, fragment.reason) for fragment in coverage.unknown_fragments]
        for name in index_names:
            # A file that changed may have been indexed again for other indices only.
            uncovered_ids = coverage.known_ids - self._version.indices[name].fragment_ids
            gaps += [
                (fragment.fragment.key, f"not in index {name}")
                for fragment in (coverage.fragments if uncovered_ids else ())
                if fragment.fragment_id in uncovered_ids
            ]
        self._gapless = None if gaps else (coverage, index_names)
        is_refused = self._source.stale == "raise"
        if gaps and (is_refused or self._reported_gaps != tuple(gaps)):
            self._reported_gaps = tuple(gaps)
            self._report_gaps(gaps, coverage, is_refused=is_refused)

    def _report_gaps(
        self, gaps: Sequence[tuple[str, str]], coverage: Coverage, *, is_refused: bool
    ) -> None:
        examples = ", ".join(f"{key} ({reason})" for key, reason in gaps[:3])
        examples += f", and {len(gaps) - 3:,} more" if len(gaps) > 3 else ""
        # A file is listed twice if two indices do not cover it.
        count = len({key for key, _ in gaps})
        verb, them = ("is", "it") if count == 1 else ("are", "them")
        text = f"{count:,} of {len(self._source.fragments):,} files {verb} not covered by"
        advice = f"call optimize.optimize_indices() to index {them}"
        if any(self._may_be_unchanged(fragment) for fragment in coverage.unknown_fragments):
            advice += (
                ", or adopt_index() where a file was only copied, linked or given other "
                "times or permissions"
            )
        if is_refused:
            raise StaleIndex(
                f"{text} the index: {examples}; {advice}, or open the dataset with "
                f'stale="read" to read {them} whole'
            )
        warn(StaleIndexWarning(f"{text} the index and {verb} read whole: {examples}; {advice}"))

    def _may_be_unchanged(self, fragment: PresentFragment) -> bool:
        """Return whether adopt_index() may find that a file has the content that was indexed."""
        entry = self._version.fragments.get(fragment.fragment.key)
        if entry is None:
            return False
        return entry.identity.size == fragment.identity.size and entry.footer != ""

    def _report_missing(self, missing_keys: Sequence[str]) -> None:
        """Raise `FragmentUnreadable`, or warn once with stale="ignore-missing"."""
        first = posixpath.join(self._source.root, missing_keys[0])
        more = f" and {len(missing_keys) - 1:,} more are" if len(missing_keys) > 1 else " is"
        text = f"{first}{more} gone since the dataset was opened"
        if self._source.stale != "ignore-missing":
            raise FragmentUnreadable(
                f"{text}; call ds.refresh() or open it again, or open it with "
                'stale="ignore-missing" to leave such files out'
            )
        if self._reported_missing_keys != missing_keys:
            self._reported_missing_keys = missing_keys
            message = f"{text} and left out; call ds.refresh() or open it again"
            warn(MissingFilesWarning(message))

    def _new_id(self, key: str, identity: FileIdentity) -> int:
        """Return the id of a file that the catalog does not know.

        The id is never reused for another file, because callers may ask for rows by it later.
        """
        file = key, identity
        if file not in self._new_ids:
            # Several threads may come here at once. The first one chooses the id.
            self._new_ids.setdefault(file, next(self._free_ids))
        return self._new_ids[file]
