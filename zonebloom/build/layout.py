"""Which layout the bits of an index take, and bringing its segments to one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack

import numpy as np
import pyarrow as pa

from zonebloom import arguments
from zonebloom.catalog.model import Segment
from zonebloom.catalog.store import Catalog
from zonebloom.index.key_ranges import stored_ranges, to_file
from zonebloom.index.loaded import open_table
from zonebloom.index.sliced import SlicedTable
from zonebloom.index.sliced_rows import write_rows
from zonebloom.index.table import read_file
from zonebloom.storage.parquet.pagemap import PageMap, merged_page_map

LAYOUTS = ("auto", "table", "sliced")

# From here on eight short reads are quicker than a look at every zone, and padding is nothing.
SLICED_ZONES = 4096
# Tables a search opens before they are worth putting together.
_MANY_TABLES = 16
# Page maps are put together up to this size.
_MAP_BYTES = 64 << 10


def require_layout(layout: str) -> None:
    """Refuse a layout there is not."""
    arguments.choice(layout, "layout", LAYOUTS)


def layout_for(layout: str, segments: Sequence[Segment]) -> str:
    """The layout some segments are to have: "auto" slices from 4096 zones on."""
    num_zones = sum(segment.num_zones for segment in segments)
    if layout == "auto":
        return "sliced" if num_zones >= SLICED_ZONES else "table"
    # Without a zone there is nothing to slice.
    return layout if num_zones else "table"


def arrange(
    catalog: Catalog,
    name: str,
    segments: Sequence[Segment],
    layout: str,
    most_tables: int | None = None,
) -> tuple[Segment, ...]:
    """Bring the segments of an index to a layout, and many of them to one.

    The same where they are as wanted already. Else one with all filters and key ranges, and
    some of layout "pages" with the page maps.
    """
    tables = [segment for segment in segments if segment.layout != "pages"]
    wanted = layout_for(layout, tables)
    alike = all(segment.layout == wanted for segment in tables)
    most = 1 if wanted == "sliced" else most_tables or _MANY_TABLES
    if alike and len(tables) <= most:
        return tuple(segments)
    path = catalog.segment_path(name, wanted)
    catalog.prepare(path)
    with ExitStack() as stack:
        opened = []
        for segment in tables:
            opened.append(open_table(catalog, segment))
            if isinstance(opened[-1], SlicedTable):
                stack.callback(opened[-1].close)
        if wanted == "sliced":
            from zonebloom.index.sliced_merge import merge

            written = merge(opened, catalog.filesystem, path)
        else:
            written = write_rows(opened, catalog.filesystem, path)
    ids = tuple(i for segment in tables for i in segment.fragment_ids)
    ranges = _merged_ranges(catalog, name, segments)
    joined = Segment(
        name,
        written.num_bytes,
        written.checksum,
        written.num_zones,
        ids,
        layout=wanted,
        ranges_bytes=ranges[0],
        ranges_checksum=ranges[1],
    )
    return (joined, *_merged_maps(catalog, name, segments))


def _latest(segments: Iterable[Segment]) -> list[tuple[Segment, list[int]]]:
    """Which fragments each segment is the last to say something of."""
    found, seen = [], set()
    for each in reversed(list(segments)):
        ids = [i for i in each.fragment_ids if i not in seen]
        seen.update(ids)
        if ids:
            found.append((each, ids))
    return found[::-1]


def _merged_ranges(catalog: Catalog, name: str, segments: Sequence[Segment]) -> tuple[int, str]:
    """Put the key ranges of all segments into one file of a new one."""
    tables = []
    for each, ids in _latest(each for each in segments if each.ranges_bytes):
        path = catalog.ranges_path(each.name)
        data = read_file(catalog.filesystem, path, each.ranges_bytes, each.ranges_checksum)
        tables.append(_of_fragments(stored_ranges(data, path), ids))
    if not tables:
        return 0, ""
    return catalog.write(catalog.ranges_path(name), to_file(tables))


def _merged_maps(catalog: Catalog, name: str, segments: Sequence[Segment]) -> list[Segment]:
    """The page maps of all segments: small ones together, large ones where they are.

    A lookup loads the map of the fragment it reads, and should not load that of all others.
    """
    groups: list[list[tuple[Segment, list[int]]]] = []
    held = _MAP_BYTES
    for each, ids in _latest(each for each in segments if each.page_map_bytes):
        if held + each.page_map_bytes > _MAP_BYTES:
            groups.append([])
            held = 0
        groups[-1].append((each, ids))
        held += each.page_map_bytes
    found = []
    for number, group in enumerate(groups):
        ids = tuple(i for _, ids in group for i in ids)
        at, written = group[0][0].name, (group[0][0].page_map_bytes, group[0][0].page_map_checksum)
        if len(group) > 1:
            at, maps = f"{name}-pages-{number}", []
            for each, own in group:
                path = catalog.page_map_path(each.name)
                size, checksum = each.page_map_bytes, each.page_map_checksum
                data = read_file(catalog.filesystem, path, size, checksum)
                maps.append(_of_fragments(PageMap(data, path).table, own))
            written = catalog.write(catalog.page_map_path(at), merged_page_map(maps))
        found.append(Segment(at, 0, "", 0, ids, *written, layout="pages"))
    return found


def _of_fragments(table: pa.Table, ids: Sequence[int]) -> pa.Table:
    """The rows of some fragments."""
    kept = np.isin(table["fragment_id"].to_numpy(), np.array(ids, dtype=np.uint64))
    return table if kept.all() else table.filter(pa.array(kept))
