"""Indices of a catalog put together, or gone for good, without a look at the data."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace

from zonebloom.build.layout import SLICED_ZONES, arrange
from zonebloom.catalog.model import IndexEntry, Segment, Version
from zonebloom.catalog.store import Catalog
from zonebloom.errors import CatalogError, CommitConflict, ZoneBloomWarning


def compact(catalog: Catalog, names: Sequence[str], *, everything: bool) -> bool:
    """Merge segments of indices, in one commit.

    Whether anything was merged.
    """
    base = catalog.latest_for_writing()
    prefix = catalog.new_segment_prefix()
    made: dict[str, IndexEntry] = {}

    def change(latest: Version) -> Version:
        changed = [name for name in made if latest.indices.get(name) != base.indices[name]]
        if changed:
            raise CommitConflict(f"another writer changed index {changed[0]!r} meanwhile")
        return replace(latest, indices={**latest.indices, **made})

    try:
        for number, entry in enumerate(
            base.indices[name] for name in names if name in base.indices
        ):
            merged = _merged(catalog, f"{prefix}-{number}", entry.segments, everything)
            if merged != entry.segments:
                made[entry.name] = replace(entry, segments=merged)
        if made:
            catalog.commit(change)
    finally:
        # Whatever happened, what the newest version names stays.
        _delete_unnamed(catalog, [prefix])
    return bool(made)


def _merged(
    catalog: Catalog, name: str, segments: Sequence[Segment], everything: bool
) -> tuple[Segment, ...]:
    if everything:
        return arrange(catalog, name, segments, "auto", most_tables=1)
    small = [s for s in segments if s.layout != "pages" and s.num_zones < SLICED_ZONES]
    if len(small) < 2:
        return tuple(segments)
    kept = [segment for segment in segments if segment not in small]
    return (*kept, *arrange(catalog, name, small, "auto", most_tables=1))


def drop_for_good(catalog: Catalog, names: Iterable[str], *, build: str | None = None) -> None:
    """Drop indices in one commit, and delete their segments.

    Readers of older versions scan the data instead, with a warning.

    Warns
    -----
    ZoneBloomWarning
        When segments cannot be deleted; the indices are gone nevertheless.
    """
    asked = set(names)
    folders: set[str] = set()

    def doomed(version: Version) -> dict[str, IndexEntry]:
        found = {name: entry for name, entry in version.indices.items() if name in asked}
        if build is None:
            return found
        return {n: e for n, e in found.items() if any(f.startswith(build) for f in e.folders)}

    def change(latest: Version) -> Version:
        gone = doomed(latest)
        folders.clear()
        folders.update(*(entry.folders for entry in gone.values()))
        left = {name: entry for name, entry in latest.indices.items() if name not in gone}
        return replace(latest, indices=left)

    if doomed(catalog.latest_for_writing()):
        catalog.commit(change)
    error = _delete_unnamed(catalog, folders if build is None else {*folders, build})
    if error is not None:
        warnings.warn(
            f"segments of {', '.join(sorted(asked))} are left in {catalog.folder} ({error}); "
            "vacuum() of the dataset deletes them when that is mended",
            ZoneBloomWarning,
            stacklevel=2,
        )


def _delete_unnamed(catalog: Catalog, prefixes: Iterable[str]) -> Exception | None:
    """Delete segments of finished builds, but those the newest version names.

    Why some are left, which `vacuum` deletes later: what was committed before stands.
    """
    failed = None
    try:
        entries = catalog.latest_for_writing().indices.values()
    except (CatalogError, OSError) as error:
        return error
    named = {folder for entry in entries for folder in entry.folders}
    for prefix in prefixes:
        try:
            catalog.delete_segments(prefix, keep=named)
        except OSError as error:
            failed = error
    return failed
