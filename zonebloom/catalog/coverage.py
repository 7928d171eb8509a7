"""Match the files of a dataset with one catalog version.

These modules answer whether an index still fits the files:

    freshness.py        is one file still the file that was indexed?
    coverage.py         which fragments does one catalog version know, and under which ids?
    listed_coverage.py  the same for very many files, in columns, with its own copy of the rule
    scan/opened.py      takes snapshots with a coverage of the current files, and warns of gaps
    drift.py            how far have the files moved away from what some indices cover?
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from zonebloom.base.row_ranges import OFFSET_BITS, RowRanges
from zonebloom.catalog.freshness import last_known_unchanged
from zonebloom.catalog.model import Version, require_row_count
from zonebloom.errors import NoFragments
from zonebloom.sources.source import Fragment
from zonebloom.storage.files import UNKNOWN_MTIME, FileIdentity, is_at_rest


class PresentFragment(NamedTuple):
    """A file of the dataset that exists now, matched with the catalog.

    The catalog knows a file if it has an entry for the path and the file did not change since.
    """

    fragment: Fragment
    identity: FileIdentity
    # The id in the catalog if the catalog knows the file, otherwise an unused id.
    fragment_id: int
    # None if the catalog does not know the file. `reason` says why it does not.
    num_rows: int | None = None
    reason: str = ""
    # When the file was last known to be unchanged, in ns since 1970; 0 if that is not known.
    seen_at: int = 0
    # True if the catalog has no entry for the path.
    is_new: bool = False

    @property
    def is_known(self) -> bool:
        return self.num_rows is not None


@dataclass(frozen=True)
class Coverage:
    """The files of a dataset that exist now, in scan order, compared with one catalog version."""

    fragments: Sequence[PresentFragment]
    # Keys of the fragments whose files were deleted since the dataset was opened.
    missing_keys: tuple[str, ...]
    # True if this coverage stays valid until the identity of a file changes. False if a file was
    # written so recently that another write may leave its times as they are.
    is_reusable: bool = True

    @cached_property
    def unknown_fragments(self) -> tuple[PresentFragment, ...]:
        """The fragments that are not in the catalog version, or changed since."""
        return tuple(fragment for fragment in self.fragments if not fragment.is_known)

    @cached_property
    def known_ids(self) -> frozenset[int]:
        """The ids of the fragments that the catalog version knows."""
        unknown_ids = (fragment.fragment_id for fragment in self.unknown_fragments)
        return frozenset(self.fragment_ids.tolist()).difference(unknown_ids)

    @cached_property
    def fragment_ids(self) -> np.ndarray:
        """The ids of all fragments, int64, in scan order."""
        return np.array([fragment.fragment_id for fragment in self.fragments], dtype=np.int64)

    def all_rows(self, count_rows: Callable[[PresentFragment], int]) -> RowRanges:
        """Return the addresses of all rows. `count_rows` counts those of an unknown fragment."""
        if not self.fragments:
            return RowRanges()
        row_counts = [
            count_rows(fragment) if fragment.num_rows is None else fragment.num_rows
            for fragment in self.fragments
        ]
        largest = int(np.argmax(row_counts))
        require_row_count(self.fragments[largest].fragment.path, row_counts[largest])
        starts = self.fragment_ids << OFFSET_BITS
        return RowRanges.from_arrays(starts, starts + row_counts)


def reason_of_unknown(identity: FileIdentity, *, is_new: bool) -> str:
    """Return why a catalog version does not know a file."""
    if identity.mtime_ns == UNKNOWN_MTIME and not identity.tag:
        return "its file system does not say when it was written"
    return "not indexed" if is_new else "changed since it was indexed"


def indexed_identities(
    fragments: Iterable[Fragment], version: Version
) -> Iterator[FileIdentity | None]:
    """Yield the identity that each file had when it was indexed, None if it was not indexed."""
    for fragment in fragments:
        entry = version.fragments.get(fragment.key)
        yield None if entry is None else entry.identity


def compute_coverage(
    fragments: Sequence[Fragment],
    identities: Sequence[FileIdentity | None],
    version: Version,
    new_id: Callable[[str, FileIdentity], int] | None = None,
    earlier: Coverage | None = None,
) -> Coverage:
    """Return the coverage of files by a catalog version.

    Files that are not in the version, or changed since, get new ids. `new_id` chooses the id for a
    key and an identity; the default are the next free ids of the version. Files whose digests an
    earlier coverage by the same version compared are not read again.
    """
    known_before = {
        fragment.fragment.path: (fragment.identity, fragment.seen_at)
        for fragment in (() if earlier is None else earlier.fragments)
        if fragment.is_known
    }
    present: list[PresentFragment] = []
    missing_keys: list[str] = []
    free_ids = itertools.count(version.next_fragment_id)
    is_reusable = True
    for fragment, identity in zip(fragments, identities, strict=True):
        if identity is None:
            missing_keys.append(fragment.key)
            continue
        entry, path = version.fragments.get(fragment.key), fragment.path
        seen_at = None
        if entry is not None:
            seen_at = last_known_unchanged(path, entry, identity, known_before.get(path))
        if entry is not None and seen_at is not None:
            rows, number = entry.num_rows, entry.fragment_id
            present.append(PresentFragment(fragment, identity, number, rows, "", seen_at))
            is_reusable &= seen_at == entry.seen_at or is_at_rest(identity, seen_at)
            continue
        number = next(free_ids) if new_id is None else new_id(fragment.key, identity)
        is_new = entry is None
        reason = reason_of_unknown(identity, is_new=is_new)
        present.append(PresentFragment(fragment, identity, number, None, reason, is_new=is_new))
    if fragments and not present:
        raise NoFragments("every file of the dataset is gone; open it again")
    return Coverage(tuple(present), tuple(missing_keys), is_reusable)
