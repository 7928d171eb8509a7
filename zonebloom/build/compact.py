"""Indices of a catalog put together, or gone for good, without a look at the data."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from zonebloom.build.layout import SLICED_ZONES, arrange
from zonebloom.catalog.model import IndexEntry, Segment, Version
from zonebloom.catalog.page_maps import merged_page_maps
from zonebloom.catalog.store import Catalog
from zonebloom.errors import CommitConflict, ZoneBloomWarning


def compact(catalog: Catalog, names: Sequence[str], *, everything: bool) -> bool:
    """Merge segments of indices, in one commit; whether anything was merged."""
    base = catalog.latest(for_writing=True)
    prefix = catalog.new_segment_prefix()
    entries: dict[str, IndexEntry] = {}
    try:
        for number, entry in enumerate(
            base.indices[name] for name in names if name in base.indices
        ):
            merged = _merged(catalog, f"{prefix}-{number}", entry.segments, everything)
            if merged != entry.segments:
                entries[entry.name] = replace(entry, segments=merged)
        page_maps = merged_page_maps(catalog, f"{prefix}-pages", base.page_maps)
        new_maps = [each for each in page_maps if each not in base.page_maps]

        def change(latest: Version) -> Version:
            changed = [name for name in entries if latest.indices.get(name) != base.indices[name]]
            if changed:
                raise CommitConflict(f"another writer changed index {changed[0]!r} meanwhile")
            return latest.with_indices({**latest.indices, **entries}, new_maps)

        if entries:
            catalog.commit(change)
    finally:
        # Whatever happened, what the newest version names stays.
        catalog.delete_unnamed([prefix])
    return bool(entries)


def _merged(
    catalog: Catalog, name: str, segments: Sequence[Segment], everything: bool
) -> tuple[Segment, ...]:
    if everything:
        return arrange(catalog, name, segments, "auto", most_tables=1)
    small = [segment for segment in segments if segment.num_zones < SLICED_ZONES]
    if len(small) < 2:
        return tuple(segments)
    large = [segment for segment in segments if segment not in small]
    return (*large, *arrange(catalog, name, small, "auto", most_tables=1))


def drop_for_good(catalog: Catalog, names: Iterable[str], *, build: str | None = None) -> None:
    """Drop indices, or those with segments of a build, in one commit, and delete their segments."""
    doomed = set(names)
    folders: set[str] = set() if build is None else {build}

    def left(indices: Mapping[str, IndexEntry]) -> dict[str, IndexEntry]:
        return {
            name: entry
            for name, entry in indices.items()
            if name not in doomed
            or (build is not None and not any(f.startswith(build) for f in entry.folders))
        }

    def change(latest: Version) -> Version:
        changed = latest.with_indices(left(latest.indices))
        folders.update(latest.folders - changed.folders)
        return changed

    latest = catalog.latest(for_writing=True)
    if left(latest.indices) != latest.indices:
        catalog.commit(change)
    error = catalog.delete_unnamed(folders)
    if error is not None:
        warnings.warn(
            f"segments of {', '.join(sorted(doomed))} are left in {catalog.folder} ({error}); "
            "vacuum() of the dataset deletes them when that is mended",
            ZoneBloomWarning,
            stacklevel=2,
        )
