"""The segments of indices: the layout their bits take, many put together, or gone for good."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace

import numpy as np
import pyarrow as pa

from zonebloom.base import arguments
from zonebloom.catalog.model import KEY_RANGES_FILE, IndexEntry, Segment, Version
from zonebloom.catalog.page_maps import merge_small_page_maps
from zonebloom.catalog.store import Catalog
from zonebloom.errors import CommitConflict, ZoneBloomWarning
from zonebloom.index.key_ranges import read_ranges, tables_to_buffer
from zonebloom.index.loaded import open_index_table, write_index_table

LAYOUTS = ("auto", "table", "sliced")

# From here on eight short reads are quicker than a look at every zone, and padding is nothing.
SLICED_ZONES = 4096
# Segments a search opens before small tables of rows are worth putting together.
_MANY_SEGMENTS = 16


def require_layout(layout: str) -> None:
    arguments.require_choice(layout, "layout", LAYOUTS)


def choose_layout(layout: str, segments: Sequence[Segment]) -> str:
    """The layout some segments are to have: "auto" slices from 4096 zones on."""
    num_zones = _zones(segments)
    if layout == "auto":
        return "sliced" if num_zones >= SLICED_ZONES else "table"
    # Without a zone there is nothing to slice.
    return layout if num_zones else "table"


def arrange_segments(
    catalog: Catalog,
    name: str,
    kept: Sequence[Segment],
    added: Sequence[Segment],
    layout: str,
) -> tuple[Segment, ...]:
    """The segments of an index after a build: those there were and those it added, some merged.

    Segments merge with such as are at most as large as they are together, so a zone is written
    anew only into a segment of twice the size: as often as the index doubles.
    """
    # What is written in another layout anyway is put together with what came.
    other = [each for each in kept if layout not in ("auto", each.layout)]
    units = [[each] for each in kept if each not in other]
    if other or added:
        units.append([*other, *added])
    arranged: list[Segment] = []
    for number, group in enumerate(_tiers(units)):
        wanted = choose_layout(layout, group)
        is_alike = all(segment.layout == wanted for segment in group)
        is_cheap = wanted == "table" and len(kept) + len(added) <= _MANY_SEGMENTS
        if is_alike and (len(group) == 1 or is_cheap):
            arranged += group
        else:
            arranged.append(_merged(catalog, f"{name}-{number}", group, wanted))
    return tuple(arranged)


def _tiers(units: Sequence[list[Segment]]) -> list[list[Segment]]:
    """Segments in groups, each of more zones than all before it; those of one unit are in one."""
    groups: list[list[Segment]] = []
    for unit in sorted(units, key=_zones):
        if groups and _zones(unit) <= _zones(groups[-1]):
            groups[-1] += unit
        else:
            groups.append(unit)
    return groups


def _zones(segments: Sequence[Segment]) -> int:
    return sum(segment.num_zones for segment in segments)


def _merged(catalog: Catalog, name: str, segments: Sequence[Segment], layout: str) -> Segment:
    with ExitStack() as stack:
        tables = []
        for segment in segments:
            tables.append(stack.enter_context(closing(open_index_table(catalog, segment))))
        written = write_index_table(catalog, name, layout, tables)
    ranges_bytes, ranges_checksum = _merge_ranges(catalog, name, segments)
    return Segment(
        name,
        written.num_bytes,
        written.checksum,
        written.num_zones,
        tuple(i for segment in segments for i in segment.fragment_ids),
        layout,
        ranges_bytes,
        ranges_checksum,
    )


def _merge_ranges(catalog: Catalog, name: str, segments: Sequence[Segment]) -> tuple[int, str]:
    tables = []
    for segment in segments:
        if segment.ranges_bytes:
            path = catalog.path(segment.name, KEY_RANGES_FILE)
            data = catalog.read(path, segment.ranges_bytes, segment.ranges_checksum)
            table = read_ranges(data, path)
            ids = np.array(segment.fragment_ids, dtype=np.uint64)
            tables.append(table.filter(pa.array(np.isin(table["fragment_id"].to_numpy(), ids))))
    if not tables:
        return 0, ""
    return catalog.write(catalog.path(name, KEY_RANGES_FILE), tables_to_buffer(tables))


def compact_indices(catalog: Catalog, names: Sequence[str], *, everything: bool) -> bool:
    """Merge segments of indices, in one commit; whether anything was merged."""
    base = catalog.latest(for_writing=True)
    prefix = catalog.new_segment_prefix()
    entries: dict[str, IndexEntry] = {}
    try:
        for number, entry in enumerate(
            base.indices[name] for name in names if name in base.indices
        ):
            merged = _compacted(catalog, f"{prefix}-{number}", entry.segments, everything)
            if merged != entry.segments:
                entries[entry.name] = replace(entry, segments=merged)
        page_maps = merge_small_page_maps(catalog, f"{prefix}-pages", base.page_maps)
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
        catalog.delete_orphan_segments([prefix])
    return bool(entries)


def _compacted(
    catalog: Catalog, name: str, segments: Sequence[Segment], everything: bool
) -> tuple[Segment, ...]:
    large = [] if everything else [each for each in segments if each.num_zones >= SLICED_ZONES]
    rest = [each for each in segments if each not in large]
    wanted = choose_layout("auto", rest)
    if len(rest) < 2 and all(each.layout == wanted or not everything for each in rest):
        return tuple(segments)
    return (*large, _merged(catalog, name, rest, wanted))


def drop_indices(catalog: Catalog, names: Iterable[str], *, build: str | None = None) -> None:
    """Drop indices, or those with segments of a build, in one commit, and delete their segments."""
    doomed = set(names)
    folders: set[str] = set() if build is None else {build}

    def left(indices: Mapping[str, IndexEntry]) -> dict[str, IndexEntry]:
        return {
            name: entry
            for name, entry in indices.items()
            if name not in doomed
            or (build is not None and not any(f.startswith(build) for f in entry.segment_names))
        }

    def change(latest: Version) -> Version:
        changed = latest.with_indices(left(latest.indices))
        folders.update(latest.segment_names - changed.segment_names)
        return changed

    latest = catalog.latest(for_writing=True)
    if left(latest.indices) != latest.indices:
        catalog.commit(change)
    error = catalog.delete_orphan_segments(folders)
    if error is not None:
        warnings.warn(
            f"segments of {', '.join(sorted(doomed))} are left in {catalog.folder} ({error}); "
            "vacuum() of the dataset deletes them when that is mended",
            ZoneBloomWarning,
            stacklevel=2,
        )
