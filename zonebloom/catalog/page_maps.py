"""Load and merge the page maps of a version, which say where the pages of its fragments lie.

A page map belongs to fragments, not to an index: all indices of a fragment share it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property

import numpy as np
import pyarrow as pa

from zonebloom.base.notices import warn
from zonebloom.base.threads import REMOTE_THREADS, thread_pool
from zonebloom.catalog.coverage import PresentFragment
from zonebloom.catalog.model import PAGE_MAP_FILE, PageMapEntry
from zonebloom.catalog.store import Catalog
from zonebloom.errors import CorruptIndex, IndexNotUsedWarning
from zonebloom.parquet.file_layout import FilePages
from zonebloom.parquet.page_map import PageMap, merge_page_maps
from zonebloom.storage.files import ReadCounter

# Page maps of more bytes than this are loaded only for the fragments of a lookup, because
# transferring more takes longer than another round trip.
_MAX_BYTES_AHEAD = 4 << 20
# Merge page maps if there are more than this, because every one is a file to open.
_MAX_PAGE_MAPS = 16
# Do not merge beyond this size: a lookup loads the whole map for one file in it.
_MAX_MERGED_BYTES = 64 << 10


class PageMaps:
    """The page maps of a version, loaded when first needed. ``counter`` counts their bytes."""

    def __init__(self, catalog: Catalog, entries: Sequence[PageMapEntry]):
        self._catalog = catalog
        self._all_entries = entries
        self._loaded: dict[str, PageMap | None] = {}
        self._is_loaded_ahead = False
        self.counter = ReadCounter()

    @cached_property
    def _entries_by_fragment(self) -> dict[int, PageMapEntry]:
        return {i: entry for entry in self._all_entries for i in entry.fragment_ids}

    def load_ahead(self) -> None:
        """Load all page maps once, unless they are too large. `file_pages` reports damage."""
        if self._is_loaded_ahead:
            return
        self._is_loaded_ahead = True
        entries = [entry for entry in self._all_entries if entry.segment not in self._loaded]
        if not entries or sum(entry.num_bytes for entry in entries) > _MAX_BYTES_AHEAD:
            return
        with thread_pool(min(REMOTE_THREADS, len(entries))) as pool:
            list(pool.map(self._load_undamaged, entries))

    def _load_undamaged(self, entry: PageMapEntry) -> None:
        # `file_pages` reads a damaged page map again, and warns.
        with suppress(CorruptIndex):
            self._loaded[entry.segment] = load_page_map(self._catalog, entry)
            self.counter.add(entry.num_bytes)

    def file_pages(self, fragment: PresentFragment) -> FilePages | None:
        """Return where the pages of a fragment lie, or None if no page map says so.

        A damaged page map causes one warning, and None.
        """
        entry = self._entries_by_fragment.get(fragment.fragment_id)
        if entry is None or fragment.num_rows is None:
            return None
        try:
            if entry.segment not in self._loaded:
                self._loaded[entry.segment] = load_page_map(self._catalog, entry)
                self.counter.add(entry.num_bytes)
            page_map = self._loaded[entry.segment]
            if page_map is None:
                return None
            return page_map.file_pages(
                fragment.fragment_id, fragment.identity.size, fragment.num_rows
            )
        except CorruptIndex as error:
            self._loaded[entry.segment] = None
            warn(IndexNotUsedWarning(f"{error}. Footers are read instead"))
            return None


def load_page_map(catalog: Catalog, entry: PageMapEntry) -> PageMap:
    path = catalog.path(entry.segment, PAGE_MAP_FILE)
    return PageMap(catalog.read(path, entry.num_bytes, entry.checksum), path)


def merge_small_page_maps(
    catalog: Catalog, name: str, entries: Sequence[PageMapEntry]
) -> tuple[PageMapEntry, ...]:
    """Merge small page maps if there are many. Return the page maps that are then in use.

    The names of new segments begin with `name`.
    """
    if len(entries) <= _MAX_PAGE_MAPS:
        return tuple(entries)
    groups: list[list[PageMapEntry]] = []
    size = _MAX_MERGED_BYTES
    for entry in entries:
        if size + entry.num_bytes > _MAX_MERGED_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(entry)
        size += entry.num_bytes
    return tuple(
        _merge(catalog, f"{name}-{number}", group) if len(group) > 1 else group[0]
        for number, group in enumerate(groups)
    )


def _merge(catalog: Catalog, segment: str, entries: Sequence[PageMapEntry]) -> PageMapEntry:
    tables = []
    for entry in entries:
        table = load_page_map(catalog, entry).table
        is_used = np.isin(table["fragment_id"].to_numpy(), np.array(entry.fragment_ids, np.uint64))
        tables.append(table.filter(pa.array(is_used)))
    written = catalog.write(catalog.path(segment, PAGE_MAP_FILE), merge_page_maps(tables))
    ids = tuple(i for entry in entries for i in entry.fragment_ids)
    return PageMapEntry(segment, *written, ids)
