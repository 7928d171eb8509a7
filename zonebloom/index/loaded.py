"""Load the files of one index: its tables in their layouts, key ranges and global filter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pyarrow as pa

from zonebloom.base.notices import warn
from zonebloom.base.threads import REMOTE_THREADS
from zonebloom.catalog.coverage import PresentFragment
from zonebloom.catalog.model import KEY_RANGES_FILE, TABLE_FILES, IndexEntry, Segment
from zonebloom.catalog.store import Catalog
from zonebloom.errors import CorruptIndex, IndexNotUsedWarning
from zonebloom.index.global_filter import GlobalFilter, load_global_filter
from zonebloom.index.key_ranges import read_ranges, schema_for
from zonebloom.index.rows import read_row_table, write_row_table
from zonebloom.index.sliced import SlicedTable
from zonebloom.index.table import WrittenTable, ZoneTable
from zonebloom.sbbf.filter import Sbbf
from zonebloom.storage.files import is_local


def open_index_table(
    catalog: Catalog, segment: Segment, report: Callable[[CorruptIndex], None] | None = None
) -> ZoneTable:
    path = catalog.path(segment.name, TABLE_FILES[segment.layout])
    if segment.layout == SlicedTable.layout:
        return SlicedTable(
            catalog.decrypted_filesystem, path, segment.num_bytes, segment.checksum, report=report
        )
    return read_row_table(catalog.decrypted_filesystem, path, segment.num_bytes, segment.checksum)


def write_index_table(
    catalog: Catalog, name: str, layout: str, tables: Sequence[ZoneTable]
) -> WrittenTable:
    path = catalog.path(name, TABLE_FILES[layout])
    if layout == SlicedTable.layout:
        from zonebloom.index.sliced_merge import merge_tables

        return merge_tables(tables, catalog, path)
    return write_row_table(tables, catalog, path)


class LoadedIndex:
    """One index whose files are loaded on first use.

    A damaged file causes a warning and is ignored, or raises `CorruptIndex` if strict.
    """

    def __init__(self, catalog: Catalog, entry: IndexEntry, *, strict: bool = False):
        self.entry = entry
        self._catalog = catalog
        self._is_strict = strict
        self._tables: list[ZoneTable] | None = None
        self._key_ranges: pa.Table | None = None
        self._global_filter: Sbbf | None = None

    @property
    def loaded_bytes(self) -> int:
        return sum(table.loaded_bytes for table in self._tables or ())

    def tables(self) -> list[ZoneTable]:
        """Return the tables that are not damaged. Bit rows are only verified when they are read."""
        if self._tables is None:
            segments = self.entry.segments
            if len(segments) < 2 or is_local(self._catalog.filesystem):
                results = [self._open_or_error(segment) for segment in segments]
            else:
                with ThreadPoolExecutor(REMOTE_THREADS) as pool:
                    results = list(pool.map(self._open_or_error, segments))
            tables = []
            for result in results:
                if isinstance(result, CorruptIndex):
                    self._report(result, "Until then its fragments are read whole")
                else:
                    tables.append(result)
            self._tables = tables
        return self._tables

    def _open_or_error(self, segment: Segment) -> ZoneTable | CorruptIndex:
        # Do not pass a bound method: the reference cycle between table and index would keep the
        # file open until the garbage collector runs.
        report = partial(_warn, self.entry.name, instead="Its undamaged parts are still used")
        try:
            table = open_index_table(self._catalog, segment, None if self._is_strict else report)
        except CorruptIndex as error:
            return error
        items = self.entry.parameters.number_of_items
        if table.number_of_items != items:
            return CorruptIndex(
                f"{table.path} has zones of {table.number_of_items} rows, but its index has zones "
                f"of {items} rows; build the index again"
            )
        return table

    def key_ranges(self, arrow_type: pa.DataType) -> pa.Table:
        """Return the key ranges of the indexed fragments as a table of `key_ranges.schema_for`."""
        if self._key_ranges is None:
            tables = [schema_for(arrow_type).empty_table()]
            for segment in self.entry.segments:
                if not segment.ranges_bytes:
                    continue
                path = self._catalog.path(segment.name, KEY_RANGES_FILE)
                try:
                    buffer = self._catalog.read(path, segment.ranges_bytes, segment.ranges_checksum)
                    tables.append(read_ranges(buffer, path, arrow_type))
                except CorruptIndex as error:
                    self._report(error, "Until then its fragments may hold any key")
            self._key_ranges = pa.concat_tables(tables)
        return self._key_ranges

    def global_filter(
        self, arrow_type: pa.DataType, present: Sequence[PresentFragment]
    ) -> GlobalFilter | None:
        """Return the filter over all keys, compared with the current fragments, or None."""
        stored = self.entry.global_filter
        if stored is None:
            return None
        if self._global_filter is None:
            self._global_filter = load_global_filter(self._catalog, stored)
        unchanged_ids = {fragment.fragment_id for fragment in present if fragment.is_known}
        covered = unchanged_ids.intersection(stored.fragment_ids)
        return GlobalFilter(
            self.entry.name,
            ".".join(self.entry.column),
            arrow_type,
            self._global_filter,
            frozenset(covered),
            tuple(fragment for fragment in present if fragment.fragment_id not in covered),
            stored.num_items,
            stored.probability,
        )

    def _report(self, error: CorruptIndex, instead: str) -> None:
        if self._is_strict:
            raise error
        _warn(self.entry.name, error, instead)


def _warn(name: str, error: CorruptIndex, instead: str) -> None:
    warn(IndexNotUsedWarning(f"index {name!r}: {error}. {instead}"))
