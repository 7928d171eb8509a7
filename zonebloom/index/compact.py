"""Indices of a catalog put together, or gone for good, without a look at the data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from zonebloom.errors import CommitConflict
from zonebloom.index.catalog import Catalog, IndexEntry, Segment, Version
from zonebloom.index.layout import SLICED_ZONES, arrange


def compact(catalog: Catalog, names: Sequence[str], *, everything: bool) -> bool:
    """Merge segments of indices, in one commit.

    Parameters
    ----------
    catalog : Catalog
    names : sequence of str
        Names that are not there are passed over.
    everything : bool
        True brings all segments of an index to one, in the layout its size asks for. False
        leaves alone those of 4096 zones and more, which are dear to write again, and merges
        the others.

    Returns
    -------
    bool
        Whether anything was merged.

    Raises
    ------
    CorruptIndex
        When a segment is damaged.
    CommitConflict
        When another writer changed an index meanwhile.
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


def drop_for_good(catalog: Catalog, names: Iterable[str]) -> None:
    """Drop indices in one commit, and delete their segments.

    Readers of older versions scan the data instead, with a warning.

    Parameters
    ----------
    catalog : Catalog
    names : iterable of str
        Names that are not there are passed over.

    Raises
    ------
    CommitConflict, CorruptIndex
    """
    gone = set(names)
    entries = catalog.latest_for_writing().indices
    folders = {each for name in gone.intersection(entries) for each in entries[name].folders}
    if not gone.intersection(entries):
        return

    def change(latest: Version) -> Version:
        left = {name: entry for name, entry in latest.indices.items() if name not in gone}
        return replace(latest, indices=left)

    catalog.commit(change)
    _delete_unnamed(catalog, folders)


def _delete_unnamed(catalog: Catalog, prefixes: Iterable[str]) -> None:
    """Delete segments of finished builds, but those the newest version names."""
    entries = catalog.latest_for_writing().indices.values()
    named = {folder for entry in entries for folder in entry.folders}
    for prefix in prefixes:
        catalog.delete_segments(prefix, keep=named)
