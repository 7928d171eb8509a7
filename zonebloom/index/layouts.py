"""Which layout a table has on disk: the one place that knows both."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from zonebloom.catalog.model import TABLE_FILES, Segment
from zonebloom.catalog.store import Catalog
from zonebloom.errors import CorruptIndex
from zonebloom.index.rows import read_table, write_rows
from zonebloom.index.sliced import SlicedTable
from zonebloom.index.table import Table, WrittenTable


def open_table(
    catalog: Catalog, segment: Segment, report: Callable[[CorruptIndex], None] | None = None
) -> Table:
    """Open the table of a segment, in the layout it has."""
    path = catalog.path(segment.name, TABLE_FILES[segment.layout])
    if segment.layout == SlicedTable.layout:
        return SlicedTable(
            catalog.filesystem, path, segment.num_bytes, segment.checksum, report=report
        )
    return read_table(catalog.filesystem, path, segment.num_bytes, segment.checksum)


def write_table(catalog: Catalog, name: str, layout: str, tables: Sequence[Table]) -> WrittenTable:
    """Write tables of one index as the one table of a segment, in a layout."""
    path = catalog.path(name, TABLE_FILES[layout])
    catalog.prepare(path)
    if layout == SlicedTable.layout:
        from zonebloom.index.sliced_merge import merge

        return merge(tables, catalog.filesystem, path)
    return write_rows(tables, catalog.filesystem, path)
