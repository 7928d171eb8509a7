"""Match the files of a dataset with one catalog version.

These modules answer whether an index still fits the files:

    freshness.py        are files still the files that were indexed?
    coverage.py         which fragments does one catalog version know, and under which ids?
    scan/opened.py      takes snapshots with a coverage of the current files, and warns of gaps
    `measure_drift`     how far have the files moved away from what some indices cover?

There may be very many files, so a coverage has columns. Objects are made for files that changed,
and for callers that ask for fragments.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zonebloom.base.arrays import to_numpy
from zonebloom.base.row_ranges import OFFSET_BITS, RowRanges
from zonebloom.catalog.fragment_table import FragmentTable, fragment_table
from zonebloom.catalog.freshness import CHANGED, last_known_unchanged
from zonebloom.catalog.model import Version, require_row_count
from zonebloom.errors import NoFragments
from zonebloom.sources.source import Fragment
from zonebloom.storage.file_states import FileStates
from zonebloom.storage.files import UNKNOWN_MTIME, FileIdentity, is_at_rest

_NO_ROW = -1


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


class FragmentColumns(Sequence[Fragment]):
    """Fragments whose paths and keys are columns. They have no partition values and no views."""

    def __init__(self, paths: pa.StringArray, keys: pa.StringArray):
        self.paths = paths
        self.keys = keys

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, position: Any) -> Any:
        if isinstance(position, slice):
            return FragmentColumns(self.paths[position], self.keys[position])
        return Fragment(self.paths[position].as_py(), self.keys[position].as_py())

    def __iter__(self) -> Iterator[Fragment]:
        return map(Fragment, self.paths.to_pylist(), self.keys.to_pylist())


@dataclass(frozen=True, eq=False)
class KnownFiles:
    """Files with their rows in the catalog's table, -1 if they have none.

    Attributes
    ----------
    fragments : sequence of Fragment
    entries : FragmentTable
    rows : int64 array
    """

    fragments: Sequence[Fragment]
    entries: FragmentTable
    rows: np.ndarray

    @classmethod
    def of(cls, fragments: Sequence[Fragment], entries: FragmentTable) -> KnownFiles:
        if isinstance(fragments, FragmentColumns):
            compute: Any = pc
            positions = compute.index_in(fragments.keys, value_set=entries.texts("key"))
            return cls(fragments, entries, to_numpy(positions.fill_null(_NO_ROW)).astype(np.int64))
        rows = [entries.rows.get(fragment.key, _NO_ROW) for fragment in fragments]
        return cls(fragments, entries, np.array(rows, np.int64))

    @property
    def has_known_file(self) -> bool:
        return bool((self.rows != _NO_ROW).any())


@dataclass(frozen=True, eq=False)
class Coverage:
    """The files of a dataset that exist now, in scan order, compared with one catalog version.

    Attributes
    ----------
    files : KnownFiles
        All files, also the missing ones.
    states : FileStates
        Their states.
    positions : int64 array
        The positions of the present files among all files.
    ids : int64 array
        The ids of the present files.
    seen_at : int64 array
        When each of them was last known to be unchanged since it was indexed. `CHANGED` if it
        changed, or was not indexed.
    is_reusable : bool
        True if this coverage stays valid until the identity of a file changes. False if a file was
        written so recently that another write may leave its times as they are.
    """

    files: KnownFiles
    states: FileStates
    positions: np.ndarray
    ids: np.ndarray
    seen_at: np.ndarray
    is_reusable: bool

    @cached_property
    def is_known(self) -> np.ndarray:
        """A mask of the present files that are unchanged since they were indexed."""
        return self.seen_at != CHANGED

    @cached_property
    def fragments(self) -> tuple[PresentFragment, ...]:
        """The present files."""
        return self._fragments_at(np.arange(self.ids.size))

    @cached_property
    def missing_keys(self) -> tuple[str, ...]:
        """The keys of the fragments whose files were deleted since the dataset was opened."""
        missing = np.flatnonzero(~self.states.is_present)
        return tuple(self.files.fragments[position].key for position in missing.tolist())

    @cached_property
    def unknown_fragments(self) -> tuple[PresentFragment, ...]:
        """The fragments that are not in the catalog version, or changed since."""
        return self._fragments_at(np.flatnonzero(~self.is_known))

    @cached_property
    def known_ids(self) -> frozenset[int]:
        """The ids of the fragments that the catalog version knows."""
        return frozenset(self.ids[self.is_known].tolist())

    def all_rows(self, count_rows: Callable[[PresentFragment], int]) -> RowRanges:
        """Return the addresses of all rows. `count_rows` counts those of an unknown fragment."""
        if not self.ids.size:
            return RowRanges()
        row_counts = np.empty(self.ids.size, np.int64)
        rows = self.files.rows[self.positions[self.is_known]]
        row_counts[self.is_known] = self.files.entries.numbers("num_rows")[rows]
        row_counts[~self.is_known] = [count_rows(file) for file in self.unknown_fragments]
        largest = int(np.argmax(row_counts))
        path = self.files.fragments[int(self.positions[largest])].path
        require_row_count(path, int(row_counts[largest]))
        starts = self.ids << OFFSET_BITS
        return RowRanges.from_arrays(starts, starts + row_counts)

    def _fragments_at(self, numbers: np.ndarray) -> tuple[PresentFragment, ...]:
        """Return some of the present fragments, by their numbers."""
        positions = self.positions[numbers]
        rows = self.files.rows[positions]
        is_known = self.is_known[numbers]
        row_counts = np.zeros(numbers.size, np.int64)
        row_counts[is_known] = self.files.entries.numbers("num_rows")[rows[is_known]]
        all_files = self.files.fragments
        are_all = isinstance(all_files, FragmentColumns) and numbers.size == len(all_files)
        fragments = all_files if are_all else map(all_files.__getitem__, positions.tolist())
        present = []
        for fragment, identity, number, num_rows, seen_at, is_new in zip(
            fragments,
            self.states.identities_at(positions),
            self.ids[numbers].tolist(),
            row_counts.tolist(),
            self.seen_at[numbers].tolist(),
            (rows == _NO_ROW).tolist(),
            strict=True,
        ):
            if seen_at != CHANGED:
                file = PresentFragment(fragment, identity, number, num_rows, "", seen_at)
            else:
                reason = _reason_of_unknown(identity, is_new=is_new)
                file = PresentFragment(fragment, identity, number, None, reason, is_new=is_new)
            present.append(file)
        return tuple(present)

    def equals(self, other: Coverage) -> bool:
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


def _reason_of_unknown(identity: FileIdentity, *, is_new: bool) -> str:
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
    """Return the coverage of files by a catalog version. See `coverage_of_states`.

    The default of `new_id` are the next free ids of the version.
    """
    free_ids = itertools.count(version.next_fragment_id)
    files = KnownFiles.of(fragments, fragment_table(version.fragments))
    states = FileStates.of_identities(identities)
    return coverage_of_states(files, states, new_id or (lambda *_: next(free_ids)), earlier)


def coverage_of_states(
    files: KnownFiles,
    states: FileStates,
    new_id: Callable[[str, FileIdentity], int],
    earlier: Coverage | None = None,
) -> Coverage:
    """Return the coverage of files in the given states.

    Files that are not in the catalog version, or changed since, get new ids. `new_id` chooses the
    id for a key and an identity. Files whose digests an earlier coverage of the same files by the
    same version compared are not read again.
    """
    positions = np.flatnonzero(states.is_present)
    if files.rows.size and not positions.size:
        raise NoFragments("every file of the dataset is gone; open it again")
    rows = files.rows[positions]
    is_indexed = rows != _NO_ROW
    indexed_positions, indexed_rows = positions[is_indexed], rows[is_indexed]

    def earlier_state(number: int) -> tuple[FileIdentity, int] | None:
        return None if earlier is None else earlier.known_state(int(indexed_positions[number]))

    seen_at = np.full(positions.size, CHANGED)
    seen_at[is_indexed] = last_known_unchanged(
        files.entries,
        indexed_rows,
        states.take(indexed_positions),
        lambda number: files.fragments[int(indexed_positions[number])].path,
        earlier_state,
    )
    is_known = seen_at != CHANGED
    ids = np.empty(positions.size, np.int64)
    ids[is_known] = files.entries.numbers("fragment_id")[rows[is_known]]
    for number in np.flatnonzero(~is_known).tolist():
        position = int(positions[number])
        ids[number] = new_id(files.fragments[position].key, states.identity(position))
    # The content of these files was compared.
    compared = np.flatnonzero(is_known)
    compared = compared[seen_at[compared] != files.entries.numbers("seen_at")[rows[compared]]]
    is_reusable = all(
        is_at_rest(states.identity(int(positions[number])), int(seen_at[number]))
        for number in compared.tolist()
    )
    return Coverage(files, states, positions, ids, seen_at, is_reusable)


@dataclass(frozen=True, slots=True)
class Drift:
    """The bytes of each file that was indexed, appended or deleted.

    A rewritten file counts as one deleted and one appended file.
    """

    indexed: tuple[int, ...]
    appended: tuple[int, ...]
    deleted: tuple[int, ...]


def measure_drift(
    version: Version, index_names: Iterable[str], fragments: Sequence[PresentFragment]
) -> Drift:
    """Compare the files that exist now with the files that all named indices cover."""
    entries = [version.indices.get(name) for name in index_names]
    ids_of_indices = [entry.fragment_ids if entry else set[int]() for entry in entries]
    covered_ids = set.intersection(*ids_of_indices) if ids_of_indices else set[int]()
    # A changed file has a new id, so equal ids mean an unchanged file.
    unchanged = {fragment.fragment_id for fragment in fragments} & covered_ids
    sizes = {entry.fragment_id: entry.identity.size for entry in version.fragments.values()}
    known_sizes = [sizes[i] for i in covered_ids if i in sizes]
    # The catalog may no longer know the size of a deleted file: assume the average of the others.
    average = sum(known_sizes) // len(known_sizes) if known_sizes else 1
    indexed = {i: sizes.get(i, average) for i in sorted(covered_ids)}
    return Drift(
        indexed=tuple(indexed.values()),
        appended=tuple(
            fragment.identity.size
            for fragment in fragments
            if fragment.fragment_id not in unchanged
        ),
        deleted=tuple(size for i, size in indexed.items() if i not in unchanged),
    )
