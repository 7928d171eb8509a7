"""Files that were copied, moved or uploaded with their index: known again by size and footer."""

from __future__ import annotations

import posixpath
import time
from collections.abc import Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeAlias

from zonebloom.build.others import OtherDatasets
from zonebloom.catalog.coverage import PresentFragment, cover
from zonebloom.catalog.model import KnownFragment, Version
from zonebloom.errors import CommitConflict, FragmentUnreadable
from zonebloom.opened import Opened
from zonebloom.storage.files import REMOTE_THREADS, ReadCounter, content_digest, is_local
from zonebloom.storage.parquet.footer import footer_digest
from zonebloom.storage.random_access import FragmentFile
from zonebloom.storage.source import Source

# Indexed files that are not where, or as, they were, by size and digest of their footer.
Orphans: TypeAlias = dict[tuple[int, str], list[KnownFragment]]


@dataclass(frozen=True, slots=True)
class Adopted:
    """What `Dataset.adopt_index` did.

    Attributes
    ----------
    num_files : int
        Files that the index covers again.
    left : tuple of str
        Paths of files that are none it was built of, or are no Parquet: read whole until they are
        indexed.
    """

    num_files: int
    left: tuple[str, ...]


def adopt(opened: Opened) -> tuple[Version, Adopted]:
    """Commit which files are those that were indexed, at other places or with other times."""
    opened.require_unlocked()
    source, base = opened.source, opened.version
    present = cover(source.fragments, source.identities(), base).present
    strangers = [each for each in present if not each.is_known]
    others = OtherDatasets(source, opened.catalog)
    known = {each.fragment_id for each in base.fragments.values()}
    in_place = {each.fragment_id for each in present if each.is_known}
    orphans = _orphans(base, in_place | others.unchanged(base, known))
    with ThreadPoolExecutor(REMOTE_THREADS) as pool:
        seen = list(pool.map(lambda each: _seen_now(source, each, orphans), strangers))
    adopted: dict[str, KnownFragment] = {}
    for now in seen:
        before = None if now is None else _take_original(now, orphans)
        if now is not None and before is not None:
            adopted[before.key] = now._replace(
                fragment_id=before.fragment_id, num_rows=before.num_rows
            )
    keys = {known.key for known in adopted.values()}
    left = tuple(each.fragment.path for each in strangers if each.fragment.key not in keys)
    if not adopted:
        return base, Adopted(0, left)

    def change(latest: Version) -> Version:
        if any(latest.fragments.get(key) != base.fragments[key] for key in adopted):
            raise CommitConflict("another writer indexed some of the files meanwhile; try again")
        kept = {key: known for key, known in latest.fragments.items() if key not in adopted}
        again = {known.key: known for known in adopted.values()}
        return replace(latest, fragments={**kept, **again})

    return opened.catalog.commit(change), Adopted(len(adopted), left)


def _orphans(base: Version, in_place: Set[int]) -> Orphans:
    orphans: Orphans = {}
    for known in base.fragments.values():
        if known.fragment_id not in in_place and known.footer:
            orphans.setdefault((known.identity.size, known.footer), []).append(known)
    return orphans


def _seen_now(source: Source, each: PresentFragment, orphans: Orphans) -> KnownFragment | None:
    """A file as the catalog would know it from now on, but for its id and rows; None when it is
    none of the orphans."""
    path, identity = each.fragment.path, each.identity
    # Not a byte is read of a file whose size none of them has.
    if not source.is_parquet or all(size != identity.size for size, _ in orphans):
        return None
    seen_at = time.time_ns()
    try:
        with FragmentFile(source.filesystem, path, identity, ReadCounter()) as file:
            footer = footer_digest(file.num_bytes, file.read)
        digest = content_digest(path) if is_local(source.filesystem) else ""
    except (FragmentUnreadable, OSError):
        # Whoever reads it says why it cannot be read.
        return None
    return KnownFragment(-1, each.fragment.key, identity, 0, digest, seen_at, footer)


def _take_original(now: KnownFragment, orphans: Orphans) -> KnownFragment | None:
    """The indexed file that a file is a copy of, taken out of the orphans."""
    alike = orphans.get((now.identity.size, now.footer), [])
    # Between two local places there are samples of the content too.
    originals = [k for k in alike if not (k.digest and now.digest) or k.digest == now.digest]
    if not originals:
        return None
    # Of several that are copies of one another each has a name of its own.
    original = min(originals, key=lambda k: (k.key != now.key, _name(k) != _name(now)))
    alike.remove(original)
    return original


def _name(known: KnownFragment) -> str:
    return posixpath.basename(known.key)
