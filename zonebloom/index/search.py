"""From a predicate to row ranges, over every index that helps.

Each index answers for the fragments its segments cover as they are now; rows of all others
may match anything.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import and_, or_
from typing import Any

import numpy as np
import pyarrow as pa

from zonebloom.errors import CorruptIndex, IndexNotUsedWarning
from zonebloom.index.catalog import Catalog, IndexEntry, Segment
from zonebloom.index.table import ZoneTable, read_file, read_table
from zonebloom.predicates.ast import (
    And,
    Constant,
    Equals,
    IsIn,
    IsNull,
    Not,
    Or,
    Predicate,
    Unknown,
)
from zonebloom.ranges import OFFSET_BITS, RowRanges, SearchResult
from zonebloom.sbbf.blocks_numpy import check_one
from zonebloom.storage.parquet.pagemap import FilePages, PageMap
from zonebloom.values import Probe, hash_domain, leaf_type, probe, probe_many

# Below this many block checks NumPy answers before Numba would have loaded.
_NUMPY_CHECKS = 1 << 16


class LoadedIndex:
    """One index with its tables, loaded when first searched."""

    def __init__(self, catalog: Catalog, entry: IndexEntry):
        self.entry = entry
        self._catalog = catalog
        self._tables: list[ZoneTable] | None = None
        self._page_maps: dict[str, PageMap | None] = {}
        self._segments = {
            fragment_id: segment
            for segment in entry.segments
            for fragment_id in segment.fragment_ids
        }
        self.loaded_bytes = 0

    def tables(self) -> list[ZoneTable]:
        """The tables whose bytes are what was written; others are reported and left out."""
        if self._tables is None:
            tables = []
            for segment in self.entry.segments:
                path = self._catalog.segment_path(segment.name)
                try:
                    table = read_table(
                        self._catalog.filesystem, path, segment.num_bytes, segment.checksum
                    )
                    tables.append(table)
                    self.loaded_bytes += table.num_bytes
                except CorruptIndex as error:
                    self._report(error, "Its fragments are scanned meanwhile")
            self._tables = tables
        return self._tables

    def pages(self, fragment_id: int, file_bytes: int) -> FilePages | None:
        """Where the pages of a fragment lie, None when that is not known.

        Raises nothing: a damaged map is reported once, and the file's footer is used.
        """
        segment = self._segments.get(fragment_id)
        if segment is None or not segment.page_map_bytes:
            return None
        if segment.name not in self._page_maps:
            self._page_maps[segment.name] = self._load_page_map(segment)
        page_map = self._page_maps[segment.name]
        try:
            return page_map.file(fragment_id, file_bytes) if page_map is not None else None
        except CorruptIndex as error:
            self._page_maps[segment.name] = None
            self._report(error, "Footers are read instead")
            return None

    def _load_page_map(self, segment: Segment) -> PageMap | None:
        path = self._catalog.page_map_path(segment.name)
        try:
            buffer = read_file(
                self._catalog.filesystem,
                path,
                segment.page_map_bytes,
                segment.page_map_checksum,
            )
            self.loaded_bytes += buffer.size
            return PageMap(buffer, path)
        except CorruptIndex as error:
            self._report(error, "Footers are read instead")
            return None

    def _report(self, error: CorruptIndex, instead: str) -> None:
        warnings.warn(
            f"index {self.entry.name!r}: {error}. {instead}", IndexNotUsedWarning, stacklevel=3
        )


class IndexView:
    """A loaded index over the fragments that are as they were when it was built."""

    def __init__(self, index: LoadedIndex, live: frozenset[int], universe: RowRanges):
        self.index = index
        self.num_zones = 0
        self._zones: list[tuple[ZoneTable, np.ndarray | None, np.ndarray, np.ndarray]] = []
        starts: list[np.ndarray] = []
        stops: list[np.ndarray] = []
        ids = np.fromiter(live, dtype=np.uint64, count=len(live))
        for table in index.tables():
            kept: Any = np.isin(table.fragment_ids, ids)
            first = (table.fragment_ids << np.uint64(OFFSET_BITS)) + table.starts
            address = first.astype(np.int64)
            stop = address + table.lengths.astype(np.int64)
            self._zones.append((table, None if kept.all() else kept, address, stop))
            self.num_zones += int(np.count_nonzero(kept))
            starts.append(address[kept])
            stops.append(stop[kept])
        indexed = {i for table in index.tables() for i in np.unique(table.fragment_ids).tolist()}
        self.fragment_ids = live & indexed
        indexed_rows = _union(starts, stops)
        self.covered = indexed_rows & universe
        self._uncovered = universe - self.covered
        # A damaged table may claim rows its fragments do not have.
        self._universe = universe if self.covered != indexed_rows else None

    def matches(self, found: Probe) -> RowRanges:
        """Rows of zones that may hold a probe's values, and all rows not covered."""
        return self._rows([_may_hold(table, found.hashes) for table, *_ in self._zones])

    def nulls(self) -> RowRanges:
        """Rows of zones that hold a null, and all rows not covered."""
        return self._rows([table.has_null for table, *_ in self._zones])

    def kept_zones(self, rows: RowRanges) -> int:
        """How many zones have a row in a set."""
        count = 0
        for _, live, starts, stops in self._zones:
            before = np.searchsorted(rows.stops, starts, side="right")
            touched = before < np.searchsorted(rows.starts, stops, side="left")
            count += int(np.count_nonzero(touched if live is None else touched & live))
        return count

    def _rows(self, hits: Sequence[np.ndarray]) -> RowRanges:
        starts, stops = [], []
        for hit, (_, live, first, stop) in zip(hits, self._zones, strict=True):
            at = np.flatnonzero(hit if live is None else hit & live)
            if at.size:
                starts.append(first[at])
                stops.append(stop[at])
        rows = _union(starts, stops)
        if self._universe is not None:
            rows &= self._universe
        return rows | self._uncovered


def _union(starts: list[np.ndarray], stops: list[np.ndarray]) -> RowRanges:
    if not starts:
        return RowRanges()
    return RowRanges.from_arrays(np.concatenate(starts), np.concatenate(stops))


def _may_hold(table: ZoneTable, hashes: np.ndarray) -> np.ndarray:
    kernels_loaded = "zonebloom.sbbf.blocks" in sys.modules
    if not kernels_loaded and hashes.size * len(table) <= _NUMPY_CHECKS:
        hit = np.zeros(len(table), dtype=bool)
        for hashed in hashes.tolist():
            hit |= check_one(table.words, table.first_words, table.num_blocks, hashed)
        return hit
    from zonebloom.sbbf import blocks

    hit = np.zeros(len(table), dtype=bool)
    blocks.check_any(table.words, table.first_words, table.num_blocks, hashes, hit)
    return hit


@dataclass(slots=True)
class Search:
    """A search and what there is to say about it.

    Attributes
    ----------
    result : SearchResult
    used : dict
        Views that answered, by index name.
    unanswered : list of (str, str)
        Parts of the filter no index took, and why.
    """

    result: SearchResult
    used: dict[str, IndexView] = field(default_factory=dict)
    unanswered: list[tuple[str, str]] = field(default_factory=list)


class Searcher:
    """Answers predicates over the indices of one state of a dataset.

    Parameters
    ----------
    schema : pyarrow.Schema
    indices : mapping of column path to LoadedIndex
    live : set of int
        Ids of fragments that are as they were when indexed.
    universe : RowRanges
        Addresses of all rows.
    paths : mapping of fragment id to path
    """

    def __init__(
        self,
        schema: pa.Schema,
        indices: Mapping[tuple[str, ...], LoadedIndex],
        live: frozenset[int],
        universe: RowRanges,
        paths: Mapping[int, str],
    ):
        self._schema = schema
        self._indices = indices
        self._live = live
        self._universe = universe
        self._paths = paths
        self._views: dict[str, IndexView] = {}
        self._anything = SearchResult(universe, paths=paths)

    def view(self, index: LoadedIndex) -> IndexView:
        """The index as it covers this state, loaded."""
        name = index.entry.name
        if name not in self._views:
            self._views[name] = IndexView(index, self._live, self._universe)
        return self._views[name]

    def search(self, predicate: Predicate) -> Search:
        """Bound the rows a predicate is true for."""
        found = Search(self._anything)
        prepared = self._prepare(predicate, found)
        if _bounds_true(prepared):
            found.result = self._evaluate(prepared, found)
        return found

    def _prepare(self, predicate: Predicate, found: Search) -> Predicate | _Lookup:
        """Replace what an index can answer by its probe, all else by Unknown."""
        match predicate:
            case And(terms):
                return And(tuple(self._prepare(term, found) for term in terms))  # pyright: ignore[reportArgumentType]
            case Or(terms):
                return Or(tuple(self._prepare(term, found) for term in terms))  # pyright: ignore[reportArgumentType]
            case Not(term):
                return Not(self._prepare(term, found))  # pyright: ignore[reportArgumentType]
            case Constant():
                return predicate
            case Equals(column, _) | IsIn(column, _, _) | IsNull(column):
                prepared = self._lookup(column, predicate)
            case Unknown(text, reason):
                found.unanswered.append((text, reason))
                return predicate
        if isinstance(prepared, str):
            found.unanswered.append((str(predicate), prepared))
            return Unknown(str(predicate), prepared)
        return prepared

    def _lookup(self, column: tuple[str, ...], predicate: Predicate) -> _Lookup | str:
        """The lookup a predicate on one column asks for, or why no index takes it."""
        index = self._indices.get(column)
        if index is None:
            return f"no index on {'.'.join(column)}"
        leaf = leaf_type(self._schema, column)
        if leaf is None or hash_domain(leaf) != index.entry.domain:
            reason = (
                f"index {index.entry.name} was built when the column was {index.entry.domain}, "
                f"it is {leaf} now; build it again"
            )
            warnings.warn(reason, IndexNotUsedWarning, stacklevel=2)
            return reason
        if isinstance(predicate, IsNull):
            return _Lookup(index, None, True)
        if isinstance(predicate, Equals):
            probed, nulls = probe(leaf, predicate.value), False
        else:
            assert isinstance(predicate, IsIn)
            probed, nulls = probe_many(leaf, predicate.values), predicate.null_matches
        return probed.maybe or _Lookup(index, probed, nulls)

    def _evaluate(self, predicate: Predicate | _Lookup, found: Search) -> SearchResult:
        match predicate:
            case And(terms):
                return reduce(and_, (self._evaluate(term, found) for term in terms))
            case Or(terms):
                return reduce(or_, (self._evaluate(term, found) for term in terms))
            case Not(term):
                return ~self._evaluate(term, found)
            case Constant(value):
                at_most = self._universe if value is True else RowRanges()
                at_least = RowRanges() if value is False else self._universe
                return self._bounded(at_most, at_least)
            case _Lookup(index, probed, nulls):
                view = self.view(index)
                found.used[index.entry.name] = view
                rows = view.matches(probed) if probed is not None else RowRanges()
                return self._bounded(rows | view.nulls() if nulls else rows)
        return self._anything

    def _bounded(self, at_most: RowRanges, at_least: RowRanges | None = None) -> SearchResult:
        return SearchResult(self._universe, at_most=at_most, at_least=at_least, paths=self._paths)


@dataclass(frozen=True, slots=True)
class _Lookup:
    """One question to one index."""

    index: LoadedIndex
    probe: Probe | None
    nulls: bool


def _bounds_true(predicate: Predicate | _Lookup) -> bool:
    """Whether anything bounds the rows that are true: if not, no index is opened."""
    match predicate:
        case And(terms):
            return any(map(_bounds_true, terms))
        case Or(terms):
            return all(map(_bounds_true, terms))
        case Not(term):
            return _bounds_false(term)
        case Constant(value):
            return value is not True
    return isinstance(predicate, _Lookup)


def _bounds_false(predicate: Predicate | _Lookup) -> bool:
    match predicate:
        case And(terms):
            return all(map(_bounds_false, terms))
        case Or(terms):
            return any(map(_bounds_false, terms))
        case Not(term):
            return _bounds_true(term)
        case Constant(value):
            return value is not False
    return False
