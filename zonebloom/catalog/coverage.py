"""Which fragments of a dataset a catalog version knows, as they are on disk now."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from zonebloom.base.row_ranges import MAX_ROWS_PER_FRAGMENT, OFFSET_BITS, RowRanges
from zonebloom.catalog.freshness import is_at_rest, last_known_unchanged
from zonebloom.catalog.model import Version
from zonebloom.errors import NoFragments, SourceError
from zonebloom.sources.source import Fragment
from zonebloom.storage.files import UNKNOWN_MTIME, FileIdentity


class PresentFragment(NamedTuple):
    fragment: Fragment
    identity: FileIdentity
    # The catalog's when it knows the file as it is, else one nobody has.
    fragment_id: int
    # None for a file the catalog does not know as it is, and why it does not.
    num_rows: int | None = None
    reason: str = ""
    # When the file was last known to be as it was indexed, ns; 0 where that is not known.
    seen_at: int = 0
    # Whether the catalog knows no file of its name.
    is_new: bool = False

    @property
    def is_known(self) -> bool:
        return self.num_rows is not None


@dataclass(frozen=True)
class Coverage:
    """The fragments present now, in scan order, against one catalog version."""

    fragments: tuple[PresentFragment, ...]
    # Keys of fragments whose file is gone since the dataset was opened.
    missing_keys: tuple[str, ...]
    # Whether it holds while no file has other times: none was written a moment ago.
    is_reusable: bool = True

    @cached_property
    def unknown_fragments(self) -> tuple[PresentFragment, ...]:
        """Those that the version does not know as they are."""
        return tuple(each for each in self.fragments if each.num_rows is None)

    @cached_property
    def known_ids(self) -> frozenset[int]:
        """Ids of those that it knows."""
        return frozenset(self.fragment_ids.tolist()).difference(
            each.fragment_id for each in self.unknown_fragments
        )

    @cached_property
    def fragment_ids(self) -> np.ndarray:
        """Of all of them, int64."""
        return np.array([each.fragment_id for each in self.fragments])

    def all_rows(self, count_rows: Callable[[PresentFragment], int]) -> RowRanges:
        """Addresses of every row; rows of unknown fragments are counted by the caller."""
        rows = [count_rows(e) if e.num_rows is None else e.num_rows for e in self.fragments]
        if (most := max(rows)) > MAX_ROWS_PER_FRAGMENT:
            path = self.fragments[rows.index(most)].fragment.path
            raise SourceError(f"{path} has {most:,} rows; a fragment can have 2**32 - 1 at most")
        starts = self.fragment_ids << OFFSET_BITS
        return RowRanges.from_arrays(starts, starts + rows)


def indexed_identities(
    fragments: Iterable[Fragment], version: Version
) -> Iterator[FileIdentity | None]:
    """What files were when they were indexed."""
    for fragment in fragments:
        known = version.fragments.get(fragment.key)
        yield None if known is None else known.identity


def compute_coverage(
    fragments: Sequence[Fragment],
    identities: Sequence[FileIdentity | None],
    version: Version,
    new_id: Callable[[str, FileIdentity], int] | None = None,
) -> Coverage:
    """Match files with a catalog version; one that is not what was indexed gets a new id."""
    present: list[PresentFragment] = []
    vanished: list[str] = []
    in_order = itertools.count(version.next_fragment_id)
    is_settled = True
    for fragment, identity in zip(fragments, identities, strict=True):
        if identity is None:
            vanished.append(fragment.key)
            continue
        known = version.fragments.get(fragment.key)
        seen_at = None if known is None else last_known_unchanged(fragment.path, known, identity)
        if known is not None and seen_at is not None:
            rows, number = known.num_rows, known.fragment_id
            present.append(PresentFragment(fragment, identity, number, rows, "", seen_at))
            is_settled &= seen_at == known.seen_at or is_at_rest(identity, seen_at)
            continue
        why = "not indexed" if known is None else "changed since it was indexed"
        if identity.mtime_ns == UNKNOWN_MTIME and not identity.tag:
            why = "its file system does not say when it was written"
        given = next(in_order) if new_id is None else new_id(fragment.key, identity)
        present.append(PresentFragment(fragment, identity, given, None, why, is_new=known is None))
    if not present:
        raise NoFragments("every file of the dataset is gone; open it again")
    return Coverage(tuple(present), tuple(vanished), is_settled)
