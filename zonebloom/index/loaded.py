"""One index as it is on disk: its tables and key ranges, opened when first needed."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import TypeAlias

import pyarrow as pa

from zonebloom.catalog.coverage import PresentFragment
from zonebloom.catalog.model import IndexEntry, Segment
from zonebloom.catalog.store import Catalog
from zonebloom.errors import CorruptIndex, IndexNotUsedWarning
from zonebloom.index.global_filter import GlobalFilter, against
from zonebloom.index.key_ranges import read_ranges, schema_for
from zonebloom.index.sliced import SlicedTable
from zonebloom.index.table import ZoneTable, read_table

Table: TypeAlias = ZoneTable | SlicedTable


def open_table(
    catalog: Catalog, segment: Segment, report: Callable[[CorruptIndex], None] | None = None
) -> Table:
    """Open the table of a segment, in the layout it has."""
    path = catalog.segment_path(segment.name, segment.layout)
    if segment.layout == "sliced":
        return SlicedTable(
            catalog.filesystem, path, segment.num_bytes, segment.checksum, report=report
        )
    return read_table(catalog.filesystem, path, segment.num_bytes, segment.checksum)


class LoadedIndex:
    """One index with its tables, loaded when first searched."""

    def __init__(self, catalog: Catalog, entry: IndexEntry):
        self.entry = entry
        self._catalog = catalog
        self._tables: list[Table] | None = None
        self._key_ranges: pa.Table | None = None
        self._read_bytes = 0

    @property
    def loaded_bytes(self) -> int:
        """Bytes of its files brought into memory so far."""
        sliced = [table for table in self._tables or () if isinstance(table, SlicedTable)]
        return self._read_bytes + sum(table.counter.num_bytes for table in sliced)

    def tables(self) -> list[Table]:
        """The tables that are what was written; others are reported and left out.

        Of a sliced table that is known of its directory; its bits are verified as they are read.
        """
        if self._tables is None:
            tables = []
            for segment in self.entry.segments:
                try:
                    table = open_table(self._catalog, segment, self._report_damage)
                    tables.append(table)
                    if isinstance(table, ZoneTable):
                        self._read_bytes += table.num_bytes
                except CorruptIndex as error:
                    self._report(error, "Its fragments are scanned meanwhile")
            self._tables = tables
        return self._tables

    def _report_damage(self, error: CorruptIndex) -> None:
        self._report(error, "It is used as far as it is sound")

    def key_ranges(self, arrow_type: pa.DataType) -> pa.Table:
        """The key ranges of its fragments, as `zonebloom.index.key_ranges.schema_for` says.

        Raises nothing: damaged ones are reported and left out.
        """
        if self._key_ranges is None:
            tables = [schema_for(arrow_type).empty_table()]
            for segment in self.entry.segments:
                if not segment.ranges_bytes:
                    continue
                path = self._catalog.ranges_path(segment.name)
                try:
                    buffer = self._catalog.read(path, segment.ranges_bytes, segment.ranges_checksum)
                    tables.append(read_ranges(buffer, arrow_type, path))
                except CorruptIndex as error:
                    self._report(error, "Its fragments may hold any key meanwhile")
            self._key_ranges = pa.concat_tables(tables)
        return self._key_ranges

    def global_filter(
        self, arrow_type: pa.DataType, present: Sequence[PresentFragment]
    ) -> GlobalFilter | None:
        """Its filter over all keys, against the fragments there are; None when it has none."""
        return against(self._catalog, self.entry, arrow_type, present)

    def _report(self, error: CorruptIndex, instead: str) -> None:
        warnings.warn(
            f"index {self.entry.name!r}: {error}. {instead}", IndexNotUsedWarning, stacklevel=3
        )
