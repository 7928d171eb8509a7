"""Merge segments, and drop indices together with their segments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace

import numpy as np
import pyarrow as pa

from zonebloom.base.notices import warn
from zonebloom.catalog.model import KEY_RANGES_FILE, IndexEntry, Segment, Version
from zonebloom.catalog.page_maps import merge_small_page_maps
from zonebloom.catalog.store import Catalog
from zonebloom.errors import CommitConflict, ZoneBloomWarning
from zonebloom.index.base_kind import IndexKind
from zonebloom.index.kinds import is_known_kind, kind_of
from zonebloom.index.table import HashingFile
from zonebloom.index.zone_map.bounds import read_zone_map, write_zone_map

# Segments of this many zones are merged only if everything is.
_LARGE_SEGMENT_ZONES = 4096
# Merge small tables if an index has more segments than this, because a search opens them all.
_MANY_SEGMENTS = 16


def arrange_segments(
    catalog: Catalog,
    kind: IndexKind,
    name: str,
    kept: Sequence[Segment],
    added: Sequence[Segment],
) -> tuple[Segment, ...]:
    """Merge kept and added segments where that pays, and return the segments of the index.

    A segment is merged only with smaller segments that together have at least as many zones. Each
    merge at least doubles the segment that holds a zone, so a zone is rewritten rarely. New
    segments count together as one segment here.
    """
    units = [[segment] for segment in kept]
    if added:
        units.append(list(added))
    # Opening several small tables costs little.
    may_stay_apart = len(kept) + len(added) <= _MANY_SEGMENTS
    arranged: list[Segment] = []
    for number, group in enumerate(_tiers(units)):
        if len(group) == 1 or may_stay_apart:
            arranged += group
        else:
            arranged.append(_merge_segments(catalog, kind, f"{name}-{number}", group))
    return tuple(arranged)


def _tiers(units: Sequence[list[Segment]]) -> list[list[Segment]]:
    """Group units by size, so that every group has more zones than the one before it."""
    groups: list[list[Segment]] = []
    for unit in sorted(units, key=_count_zones):
        if groups and _count_zones(unit) <= _count_zones(groups[-1]):
            groups[-1] += unit
        else:
            groups.append(unit)
    return groups


def _count_zones(segments: Sequence[Segment]) -> int:
    return sum(segment.num_zones for segment in segments)


def _merge_segments(
    catalog: Catalog, kind: IndexKind, name: str, segments: Sequence[Segment]
) -> Segment:
    with ExitStack() as stack:
        tables = []
        for segment in segments:
            tables.append(stack.enter_context(closing(kind.open(catalog, segment, None))))
        written = kind.merge(catalog, catalog.path(name, kind.file_name), tables)
    ranges_bytes, ranges_checksum = _merge_ranges(catalog, name, segments)
    return Segment(
        name,
        kind.file_name,
        written.num_bytes,
        written.checksum,
        written.num_zones,
        tuple(i for segment in segments for i in segment.fragment_ids),
        ranges_bytes,
        ranges_checksum,
    )


def _merge_ranges(catalog: Catalog, name: str, segments: Sequence[Segment]) -> tuple[int, str]:
    tables = []
    for segment in segments:
        if segment.ranges_bytes:
            path = catalog.path(segment.name, KEY_RANGES_FILE)
            data = catalog.read(path, segment.ranges_bytes, segment.ranges_checksum)
            table = read_zone_map(data, path)
            ids = np.array(segment.fragment_ids, dtype=np.uint64)
            tables.append(table.filter(pa.array(np.isin(table["fragment_id"].to_numpy(), ids))))
    if not tables:
        return 0, ""
    sink = HashingFile(catalog.open_output_stream(catalog.path(name, KEY_RANGES_FILE)))
    written = write_zone_map(sink, tables)
    return written.num_bytes, written.checksum


def compact_indices(catalog: Catalog, names: Sequence[str], *, everything: bool) -> None:
    """Merge segments of indices, and page maps if there are many, in one commit.

    Do not commit if nothing can be merged. Indices of an unknown kind are not changed.
    """
    base = catalog.latest(for_writing=True)
    prefix = catalog.new_segment_prefix()
    entries: dict[str, IndexEntry] = {}
    try:
        for number, entry in enumerate(
            base.indices[name]
            for name in names
            if name in base.indices and is_known_kind(base.indices[name].kind)
        ):
            merged = _compact_segments(catalog, f"{prefix}-{number}", entry, everything)
            if merged != entry.segments:
                entries[entry.name] = replace(entry, segments=merged)
        page_maps = merge_small_page_maps(catalog, f"{prefix}-pages", base.page_maps)
        new_maps = [page_map for page_map in page_maps if page_map not in base.page_maps]

        def change(latest: Version) -> Version:
            changed = [name for name in entries if latest.indices.get(name) != base.indices[name]]
            if changed:
                raise CommitConflict(f"another writer has changed index {changed[0]!r}; try again")
            return latest.with_indices({**latest.indices, **entries}, new_maps)

        if entries or new_maps:
            catalog.commit(change)
    finally:
        # This keeps the segments that the newest version names, also after an error.
        catalog.delete_orphan_segments([prefix])


def _compact_segments(
    catalog: Catalog, name: str, entry: IndexEntry, everything: bool
) -> tuple[Segment, ...]:
    kind, segments = kind_of(entry), entry.segments
    large: list[Segment] = []
    if not everything:
        large = [segment for segment in segments if segment.num_zones >= _LARGE_SEGMENT_ZONES]
    rest = [segment for segment in segments if segment not in large]
    if len(rest) < 2:
        return segments
    return (*large, _merge_segments(catalog, kind, name, rest))


def drop_indices(catalog: Catalog, names: Iterable[str]) -> None:
    """Drop indices in one commit, and delete their segments."""
    dropped_names = set(names)
    prefixes: set[str] = set()

    def remaining(indices: Mapping[str, IndexEntry]) -> dict[str, IndexEntry]:
        return {name: entry for name, entry in indices.items() if name not in dropped_names}

    def change(latest: Version) -> Version:
        changed = latest.with_indices(remaining(latest.indices))
        prefixes.update(latest.segment_names - changed.segment_names)
        return changed

    latest = catalog.latest(for_writing=True)
    if remaining(latest.indices) != latest.indices:
        catalog.commit(change)
    error = catalog.delete_orphan_segments(prefixes)
    if error is not None:
        warn(
            ZoneBloomWarning(
                f"segments of {', '.join(sorted(dropped_names))} are left in {catalog.folder} "
                f"({error}); remove the cause, then call vacuum() of the dataset to delete them"
            )
        )
