"""Measure how the files of a dataset changed since some indices of them were built.

Coverage compares files with a whole catalog version. Drift compares them with chosen indices, and
counts the bytes that were appended and deleted. See `zonebloom.catalog.coverage`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from zonebloom.catalog.coverage import PresentFragment
from zonebloom.catalog.model import Version


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
