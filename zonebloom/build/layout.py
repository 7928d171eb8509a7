"""Which layout the bits of an index take, and bringing its segments to one."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing

import numpy as np
import pyarrow as pa

from zonebloom import arguments
from zonebloom.catalog.model import KEY_RANGES_FILE, Segment
from zonebloom.catalog.store import Catalog
from zonebloom.index.key_ranges import read_ranges, to_file
from zonebloom.index.loaded import open_table, write_table

LAYOUTS = ("auto", "table", "sliced")

# From here on eight short reads are quicker than a look at every zone, and padding is nothing.
SLICED_ZONES = 4096
# Tables a search opens before they are worth putting together.
_MANY_TABLES = 16


def require_layout(layout: str) -> None:
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
    wanted = layout_for(layout, segments)
    alike = all(segment.layout == wanted for segment in segments)
    if alike and len(segments) <= (1 if wanted == "sliced" else most_tables or _MANY_TABLES):
        return tuple(segments)
    with ExitStack() as stack:
        tables = []
        for segment in segments:
            tables.append(stack.enter_context(closing(open_table(catalog, segment))))
        written = write_table(catalog, name, wanted, tables)
    ranges_bytes, ranges_checksum = _merge_ranges(catalog, name, segments)
    merged = Segment(
        name,
        written.num_bytes,
        written.checksum,
        written.num_zones,
        tuple(i for segment in segments for i in segment.fragment_ids),
        wanted,
        ranges_bytes,
        ranges_checksum,
    )
    return (merged,)


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
    return catalog.write(catalog.path(name, KEY_RANGES_FILE), to_file(tables))
