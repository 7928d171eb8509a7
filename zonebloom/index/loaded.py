"""One index as it is on disk: its tables and key ranges, opened when first needed."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import pyarrow as pa

from zonebloom.catalog.coverage import PresentFragment
from zonebloom.catalog.model import KEY_RANGES_FILE, IndexEntry
from zonebloom.catalog.store import Catalog
from zonebloom.errors import CorruptIndex, IndexNotUsedWarning
from zonebloom.index.global_filter import GlobalFilter, against
from zonebloom.index.key_ranges import read_ranges, schema_for
from zonebloom.index.layouts import open_table
from zonebloom.index.table import Table


class LoadedIndex:
    """One index with its tables, loaded when first searched.

    What is damaged is reported and left out; a strict one raises.
    """

    def __init__(self, catalog: Catalog, entry: IndexEntry, *, strict: bool = False):
        self.entry = entry
        self._catalog = catalog
        self._is_strict = strict
        self._tables: list[Table] | None = None
        self._key_ranges: pa.Table | None = None

    @property
    def loaded_bytes(self) -> int:
        """Bytes of its files brought into memory so far."""
        return sum(table.loaded_bytes for table in self._tables or ())

    def tables(self) -> list[Table]:
        """The tables that are what was written.

        Of a sliced table that is known of its directory; its bits are verified as they are read.
        """
        if self._tables is None:
            tables = []
            for segment in self.entry.segments:
                try:
                    report = None if self._is_strict else self._report_damage
                    tables.append(open_table(self._catalog, segment, report))
                except CorruptIndex as error:
                    self._report(error, "Its fragments are scanned meanwhile")
            self._tables = tables
        return self._tables

    def key_ranges(self, arrow_type: pa.DataType) -> pa.Table:
        """The key ranges of its fragments, as `zonebloom.index.key_ranges.schema_for` says."""
        if self._key_ranges is None:
            tables = [schema_for(arrow_type).empty_table()]
            for segment in self.entry.segments:
                if not segment.ranges_bytes:
                    continue
                path = self._catalog.path(segment.name, KEY_RANGES_FILE)
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

    def _report_damage(self, error: CorruptIndex) -> None:
        self._report(error, "It is used as far as it is sound")

    def _report(self, error: CorruptIndex, instead: str) -> None:
        if self._is_strict:
            raise error
        warnings.warn(
            f"index {self.entry.name!r}: {error}. {instead}", IndexNotUsedWarning, stacklevel=3
        )
