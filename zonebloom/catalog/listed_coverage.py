"""Match very many files with a catalog version, column by column.

The result equals that of `zonebloom.catalog.coverage.compute_coverage`. Objects are made only for
files that changed, and for callers that ask for all fragments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zonebloom.base.arrays import to_numpy
from zonebloom.base.lazy_sequence import LazySequence
from zonebloom.base.row_ranges import OFFSET_BITS, RowRanges
from zonebloom.catalog.coverage import Coverage, PresentFragment, reason_of_unknown
from zonebloom.catalog.fragment_table import FragmentTable
from zonebloom.catalog.freshness import last_known_unchanged
from zonebloom.catalog.model import require_row_count
from zonebloom.errors import NoFragments
from zonebloom.sources.source import Fragment
from zonebloom.storage.file_states import FileStates, without_quotes
from zonebloom.storage.files import (
    COARSE_REST_NS,
    FINE_REST_NS,
    UNKNOWN_MTIME,
    FileIdentity,
    is_at_rest,
)

_SECOND = 10**9
_NO_ROW = -1


@dataclass(frozen=True, eq=False)
class KnownFiles:
    """Files with their catalog keys, and their rows in the catalog's table, -1 if they have none.

    Attributes
    ----------
    paths, keys : pyarrow.StringArray
    entries : FragmentTable
    rows : int64 array
    """

    paths: pa.StringArray
    keys: pa.StringArray
    entries: FragmentTable
    rows: np.ndarray

    @classmethod
    def of(cls, paths: pa.StringArray, keys: pa.StringArray, entries: FragmentTable) -> KnownFiles:
        compute: Any = pc
        rows = compute.index_in(keys, value_set=entries.texts("key")).fill_null(_NO_ROW)
        return cls(paths, keys, entries, to_numpy(rows).astype(np.int64))

    @property
    def has_known_file(self) -> bool:
        return bool((self.rows != _NO_ROW).any())

    def fragments(self) -> tuple[Fragment, ...]:
        return tuple(map(Fragment, self.paths.to_pylist(), self.keys.to_pylist()))


@dataclass(frozen=True, kw_only=True, eq=False)
class ListedCoverage(Coverage):
    """A coverage whose fragments are made late. See `coverage_of_states`.

    Attributes
    ----------
    files : KnownFiles
    states : FileStates
        The states of all files, also of the missing ones.
    positions : int64 array
        The positions of the present files among all files.
    ids : int64 array
        The ids of the present files.
    is_known : bool array
        A mask of the present files that are unchanged since they were indexed.
    seen_at : int64 array
        When each of them was last known to be unchanged.
    """

    files: KnownFiles
    states: FileStates
    positions: np.ndarray
    ids: np.ndarray
    is_known: np.ndarray
    seen_at: np.ndarray

    @cached_property
    def unknown_fragments(self) -> tuple[PresentFragment, ...]:
        return self.fragments_at(np.flatnonzero(~self.is_known))

    @cached_property
    def known_ids(self) -> frozenset[int]:
        return frozenset(self.ids[self.is_known].tolist())

    @cached_property
    def fragment_ids(self) -> np.ndarray:
        return self.ids

    def all_rows(self, count_rows: Callable[[PresentFragment], int]) -> RowRanges:
        if not self.ids.size:
            return RowRanges()
        row_counts = np.empty(self.ids.size, np.int64)
        rows = self.files.rows[self.positions[self.is_known]]
        row_counts[self.is_known] = self.files.entries.numbers("num_rows")[rows]
        row_counts[~self.is_known] = [count_rows(file) for file in self.unknown_fragments]
        largest = int(np.argmax(row_counts))
        path = self.files.paths[int(self.positions[largest])].as_py()
        require_row_count(path, int(row_counts[largest]))
        starts = self.ids << OFFSET_BITS
        return RowRanges.from_arrays(starts, starts + row_counts)

    def fragments_at(self, numbers: np.ndarray) -> tuple[PresentFragment, ...]:
        """Return some of the present fragments, by their numbers."""
        positions = pa.array(self.positions[numbers])
        rows = self.files.rows[self.positions[numbers]]
        all_row_counts = self.files.entries.numbers("num_rows")
        paths, keys = self.files.paths.take(positions), self.files.keys.take(positions)
        fragments = []
        for number, path, key, row in zip(
            numbers.tolist(), paths.to_pylist(), keys.to_pylist(), rows.tolist(), strict=True
        ):
            identity = self.states.identity(int(self.positions[number]))
            fragment, fragment_id = Fragment(path, key), int(self.ids[number])
            if self.is_known[number]:
                seen_at = int(self.seen_at[number])
                row_count = int(all_row_counts[row])
                present = PresentFragment(fragment, identity, fragment_id, row_count, "", seen_at)
            else:
                is_new = row == _NO_ROW
                reason = reason_of_unknown(identity, is_new=is_new)
                present = PresentFragment(
                    fragment, identity, fragment_id, None, reason, is_new=is_new
                )
            fragments.append(present)
        return tuple(fragments)

    def equals(self, other: ListedCoverage) -> bool:
        """Return whether another coverage of the same files is equal in all but `seen_at`."""
        return (
            self.states.equals(other.states)
            and np.array_equal(self.ids, other.ids)
            and np.array_equal(self.is_known, other.is_known)
        )

    def known_state(self, position: int) -> tuple[FileIdentity, int] | None:
        """Return the identity of a known file and when it was unchanged, or None."""
        number = int(np.searchsorted(self.positions, position))
        if number == self.positions.size or self.positions[number] != position:
            return None
        if not self.is_known[number]:
            return None
        return self.states.identity(position), int(self.seen_at[number])


def coverage_of_states(
    files: KnownFiles,
    states: FileStates,
    new_id: Callable[[str, FileIdentity], int],
    earlier: ListedCoverage | None = None,
) -> ListedCoverage:
    """Return the coverage of files in the given states. See `compute_coverage`.

    ``earlier`` is a coverage of the same files.
    """
    positions = np.flatnonzero(states.is_present)
    if files.rows.size and not positions.size:
        raise NoFragments("every file of the dataset is gone; open it again")
    rows = files.rows[positions]
    is_indexed = rows != _NO_ROW
    is_known = np.zeros(positions.size, bool)
    is_known[is_indexed] = unchanged_without_digest(
        files.entries, rows[is_indexed], states.take(positions[is_indexed])
    )
    seen_at, ids = np.zeros(positions.size, np.int64), np.zeros(positions.size, np.int64)
    seen_at[is_known] = files.entries.numbers("seen_at")[rows[is_known]]
    is_reusable = True
    doubtful = np.flatnonzero(is_indexed & ~is_known)
    entries = files.entries.fragments_at(rows[doubtful])
    for number, entry in zip(doubtful.tolist(), entries, strict=True):
        position = int(positions[number])
        identity = states.identity(position)
        before = None if earlier is None else earlier.known_state(position)
        checked_at = last_known_unchanged(files.paths[position].as_py(), entry, identity, before)
        if checked_at is not None:
            is_known[number], seen_at[number] = True, checked_at
            is_reusable &= checked_at == entry.seen_at or is_at_rest(identity, checked_at)
    ids[is_known] = files.entries.numbers("fragment_id")[rows[is_known]]
    for number in np.flatnonzero(~is_known).tolist():
        position = int(positions[number])
        ids[number] = new_id(files.keys[position].as_py(), states.identity(position))
    missing_keys = files.keys.filter(pa.array(~states.is_present)).to_pylist()
    coverage: ListedCoverage

    def make_fragments() -> Sequence[PresentFragment]:
        return coverage.fragments_at(np.arange(positions.size))

    coverage = ListedCoverage(
        LazySequence(positions.size, make_fragments),
        tuple(missing_keys),
        is_reusable,
        files=files,
        states=states,
        positions=positions,
        ids=ids,
        is_known=is_known,
        seen_at=seen_at,
    )
    return coverage


def unchanged_without_digest(
    entries: FragmentTable, rows: np.ndarray, current: FileStates
) -> np.ndarray:
    """Return a mask of the files that are unchanged by their identities alone.

    ``rows`` are the rows of the files in the catalog's table. `last_known_unchanged` says the same
    of these files. For the others it has to decide, and may compare digests.
    """
    compute: Any = pc

    def numbers(name: str) -> np.ndarray:
        return entries.numbers(name)[rows]

    def has_text(texts: Any) -> np.ndarray:
        return to_numpy(compute.binary_length(texts)) > 0

    positions = pa.array(rows)
    mtimes_ns, ctimes_ns, inodes = numbers("mtime_ns"), numbers("ctime_ns"), numbers("inode")
    is_still = (
        (mtimes_ns == current.mtimes_ns)
        & ((ctimes_ns == current.ctimes_ns) | (ctimes_ns == 0) | (current.ctimes_ns == 0))
        & ((inodes == current.inodes) | (inodes == 0) | (current.inodes == 0))
    )
    tags = entries.texts("tag").take(positions)
    has_tag, has_tag_now = has_text(tags), np.zeros(rows.size, bool)
    if current.tags is not None:
        has_tag_now = has_text(current.tags)
        is_same_tag = compute.equal(without_quotes(tags), without_quotes(current.tags))
        is_still = np.where(has_tag & has_tag_now, to_numpy(is_same_tag), is_still)
    is_still &= numbers("size") == current.sizes
    is_still &= (current.mtimes_ns != UNKNOWN_MTIME) | has_tag_now
    # If the entry has a tag, the current file has to be at rest, otherwise the indexed one.
    current_times = np.where(current.ctimes_ns != 0, current.ctimes_ns, current.mtimes_ns)
    indexed_times = np.where(ctimes_ns != 0, ctimes_ns, mtimes_ns)
    written = np.where(has_tag, current_times, indexed_times)
    rests_from = written + np.where(written % _SECOND != 0, FINE_REST_NS, COARSE_REST_NS)
    seen_at = numbers("seen_at")
    # Old versions, which have no digests, did not record the time.
    is_old = ~has_text(entries.texts("digest").take(positions)) & (seen_at == 0)
    return is_still & (is_old | (has_tag & has_tag_now) | (rests_from < seen_at))
