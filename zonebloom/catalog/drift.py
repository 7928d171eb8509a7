"""How the files of a dataset changed since an index of them was built."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import xxhash

from zonebloom.catalog.coverage import PresentFragment
from zonebloom.catalog.model import Version


@dataclass(frozen=True, slots=True)
class Drift:
    """Files as they are now, against those an index was built of: the bytes of all, and of each.

    A file written anew is one that was appended and one that was deleted. What was appended goes by
    "+" and the XXH3-64 of its path, size and time, what was deleted by "-" and its id in the
    catalog.
    """

    num_bytes: int
    indexed: Mapping[int, int]
    appended: Mapping[str, int]
    deleted: Mapping[str, int]


def measure_drift(
    version: Version, index_names: Iterable[str], fragments: Sequence[PresentFragment]
) -> Drift:
    """Compare the files there are with those that all of some indices of a version hold."""
    entries = [version.indices.get(name) for name in index_names]
    ids = [entry.fragment_ids if entry else set[int]() for entry in entries]
    covered = set.intersection(*ids) if ids else set[int]()
    # What the catalog does not know as it is has an id of its own.
    same = {file.fragment_id for file in fragments} & covered
    sizes = {f.fragment_id: f.identity.size for f in version.fragments.values()}
    known = [sizes[i] for i in covered if i in sizes]
    # The catalog may have forgotten how large some were that went: they count as the others.
    typical = sum(known) // len(known) if known else 1
    indexed = {i: sizes.get(i, typical) for i in sorted(covered)}
    return Drift(
        sum(file.identity.size for file in fragments),
        indexed,
        {_mark(file): file.identity.size for file in fragments if file.fragment_id not in same},
        {f"-{i}": size for i, size in indexed.items() if i not in same},
    )


def _mark(file: PresentFragment) -> str:
    """What tells a file that was appended from all others, itself at another time included."""
    identity = file.identity
    text = f"{file.fragment.key}\0{identity.size}\0{identity.mtime_ns}{identity.tag}"
    return f"+{xxhash.xxh3_64_hexdigest(text.encode())}"
