"""Which layout the bits of an index take, and bringing its segments to one."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

from zonebloom.errors import InvalidArgument
from zonebloom.index.catalog import Catalog, Segment
from zonebloom.index.loaded import open_table
from zonebloom.index.sliced import SlicedTable
from zonebloom.index.sliced_rows import write_rows

LAYOUTS = ("auto", "table", "sliced")

# From here on eight short reads are quicker than a look at every zone, and padding is nothing.
SLICED_ZONES = 4096
# Tables a search opens before they are worth putting together.
_MANY_TABLES = 16


def require_layout(layout: str) -> None:
    """Refuse a layout there is not.

    Raises
    ------
    InvalidArgument
    """
    if layout not in LAYOUTS:
        raise InvalidArgument(f"layout is {layout!r}; it is one of {', '.join(LAYOUTS)}")


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
    most_tables: int = _MANY_TABLES,
) -> tuple[Segment, ...]:
    """Bring the segments of an index to a layout, and many of them to one.

    Parameters
    ----------
    catalog : Catalog
    name : str
        Of the segment written, if one is: one no other build uses.
    segments : sequence of Segment
        All of one index.
    layout : {"auto", "table", "sliced"}
    most_tables : int
        That may stay; of sliced ones it is one.

    Returns
    -------
    tuple of Segment
        The same where they are as wanted already. Of those written anew the page maps stay
        where they are, as segments of layout "pages".

    Raises
    ------
    CorruptIndex
        When one of them is damaged.
    """
    tables = [segment for segment in segments if segment.layout != "pages"]
    wanted = layout_for(layout, tables)
    alike = all(segment.layout == wanted for segment in tables)
    if alike and len(tables) <= (1 if wanted == "sliced" else most_tables):
        return tuple(segments)
    path = catalog.segment_path(name, wanted)
    catalog.filesystem.create_dir(posixpath.dirname(path), recursive=True)
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
    joined = Segment(
        name, written.num_bytes, written.checksum, written.num_zones, ids, layout=wanted
    )
    maps = [
        replace(segment, num_bytes=0, checksum="", num_zones=0, layout="pages")
        for segment in segments
        if segment.page_map_bytes
    ]
    return (joined, *maps)
