"""Holding an index against its checksums and the rows it says it covers."""

from __future__ import annotations

import numpy as np

from zonebloom.errors import CorruptIndex
from zonebloom.index.catalog import Catalog, IndexEntry, Version
from zonebloom.index.global_filter import load
from zonebloom.index.loaded import Table, open_table
from zonebloom.index.sliced import SlicedTable
from zonebloom.index.table import read_file
from zonebloom.storage.parquet.pagemap import PageMap


def validate(catalog: Catalog, entry: IndexEntry, version: Version) -> int:
    """Read every byte of an index.

    Parameters
    ----------
    catalog : Catalog
    entry : IndexEntry
    version : Version
        The one the entry is of: it has the rows of fragments.

    Returns
    -------
    int
        Number of zones.

    Raises
    ------
    CorruptIndex
        Naming the first thing found: a file that is not what was written, or zones that are not
        the rows of their fragments.
    """
    rows = {known.fragment_id: known.num_rows for known in version.fragments.values()}
    num_zones = 0
    for segment in entry.segments:
        if segment.page_map_bytes:
            path = catalog.page_map_path(segment.name)
            data = read_file(
                catalog.filesystem, path, segment.page_map_bytes, segment.page_map_checksum
            )
            PageMap(data, path)
        if segment.ranges_bytes:
            path = catalog.ranges_path(segment.name)
            read_file(catalog.filesystem, path, segment.ranges_bytes, segment.ranges_checksum)
    if entry.global_filter is not None:
        load(catalog, entry.global_filter)
    for segment in entry.tables:
        table = open_table(catalog, segment)
        where = catalog.segment_path(segment.name, segment.layout)
        if isinstance(table, SlicedTable):
            table.validate()
        _require_rows(table, set(segment.fragment_ids), rows, where)
        num_zones += len(table)
    return num_zones


def _require_rows(table: Table, ids: set[int], rows: dict[int, int], where: str) -> None:
    """Refuse a table whose zones are not the rows of its fragments, each once and in order."""
    found = np.unique(table.fragment_ids).tolist()
    missing = {i for i in ids if rows.get(i)}.difference(found)
    if missing:
        raise CorruptIndex(
            f"{where} has no zones of fragment {min(missing)}, which it is to cover; build it again"
        )
    for fragment_id in found:
        zones = table.fragment_ids == fragment_id
        starts, lengths = table.starts[zones], table.lengths[zones]
        stops = np.cumsum(lengths)
        # What a file that is gone had in rows, the version may have forgotten.
        wanted = rows.get(fragment_id, int(stops[-1]))
        if int(stops[-1]) != wanted or (starts != stops - lengths).any():
            raise CorruptIndex(
                f"the zones of fragment {fragment_id} in {where} are not its {wanted:,} rows; "
                "build it again"
            )
