"""Plan scans: turn a predicate into row ranges of the current files, using the indices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa

from zonebloom.base import arguments
from zonebloom.base.row_ranges import (
    MAX_ROWS_PER_FRAGMENT,
    OFFSET_BITS,
    RowRanges,
    SearchResult,
    by_fragment,
)
from zonebloom.base.threads import REMOTE_THREADS
from zonebloom.catalog.coverage import Coverage, PresentFragment
from zonebloom.catalog.model import DEFAULT_NUMBER_OF_ITEMS, Version
from zonebloom.catalog.page_maps import PageMaps
from zonebloom.catalog.present_files import PresentFiles
from zonebloom.catalog.store import Catalog
from zonebloom.errors import (
    ColumnNotFound,
    EncryptedIndex,
    IndexNotFound,
    InvalidArgument,
)
from zonebloom.index.batch_lookup import checked_keys, search_many
from zonebloom.index.global_filter import GlobalFilter
from zonebloom.index.key_ranges import fragment_ranges
from zonebloom.index.loaded import LoadedIndex
from zonebloom.index.view import IndexView
from zonebloom.parquet.field_names import pages_with_names
from zonebloom.parquet.file_layout import FilePages
from zonebloom.parquet.key_tests import is_key_search
from zonebloom.predicates import Predicate, RowFilter
from zonebloom.predicates.ast import probed_columns
from zonebloom.sbbf.numpy_budget import NUMPY
from zonebloom.scan.binding import unknown_column_text
from zonebloom.scan.explain import IndexUse, ScanPlan
from zonebloom.scan.partition_columns import PartitionValues
from zonebloom.scan.plan import FileZones, FragmentPlan
from zonebloom.scan.search import Search, Searcher
from zonebloom.sources.fragment_filters import FragmentFilters
from zonebloom.sources.source import Fragment, Source
from zonebloom.storage.file_view import FileView
from zonebloom.storage.files import FileIdentity, ReadCounter, is_local
from zonebloom.values.columns import find_leaf_type

# If more than this share of a fragment's rows may match, reading it whole is faster.
_MOST = 0.6
# PyArrow scans this many rows of a few columns in the time that one filter check takes.
_ROWS_PER_CHECK = 64
_NO_ROWS = np.empty(0, dtype=np.int64)


class Planner:
    """A planner of scans of one dataset at one catalog version.

    Index tables are loaded when they are first searched.
    """

    def __init__(
        self, source: Source, catalog: Catalog, version: Version, embedded_filters: bool = False
    ):
        self._source = source
        self.uses_embedded_filters = embedded_filters
        self.version = version
        is_strict = source.stale == "raise"
        self.loaded_indices: dict[str, LoadedIndex] = {
            name: LoadedIndex(catalog, entry, strict=is_strict)
            for name, entry in version.indices.items()
        }
        self.page_maps: PageMaps = PageMaps(catalog, version.page_maps)
        self.embedded_filters: FragmentFilters = FragmentFilters(source)
        self._files = PresentFiles(source, version)
        self.coverage: Callable[[], Coverage] = self._files.coverage
        self.coverage_for_scan: Callable[[], Coverage] = self._files.coverage_of_all_files
        self.count_rows: Callable[[PresentFragment], int] = self._files.count_rows
        self._looked_up: set[FileView | None] = {None}
        # The last searcher, and the coverage that it was made for.
        self._last: tuple[Coverage, Searcher] | None = None

    def __repr__(self) -> str:
        return f"<Planner of {self._source.root}, index version {self.version.number}>"

    def search(self, predicate: Predicate) -> SearchResult:
        coverage = self.coverage_for_scan()
        search = self._search(predicate, coverage)
        deleted = self._deleted(coverage.fragments)
        found = search.result
        rows, bounds = found.universe, (found.at_most, found.at_least)
        if deleted or any(each.num_rows is None for each in coverage.fragments):
            rows = coverage.all_rows(self.count_rows) - deleted
            bounds = (rows & bounds[0], rows & bounds[1])
        return SearchResult(
            rows,
            at_most=bounds[0],
            at_least=bounds[1],
            paths={each.fragment_id: each.fragment.key for each in coverage.fragments},
            null_free=found.null_free,
            covered=tuple(view.fragment_ids for view in search.used_views.values()),
        )

    def search_existing_files(self, predicate: Predicate) -> tuple[Coverage, Search]:
        """Search only files that exist. For callers that list files themselves, such as Spark."""
        coverage = self.coverage()
        return coverage, self._search(predicate, coverage)

    def _searched(self, predicate: Predicate) -> tuple[Coverage, Search]:
        """Return the coverage of the current files and the result of a search in the indices.

        While an object store lists the files, tables are loaded from it, or are already searched
        under the assumption that no file has changed.
        """
        last = self._last
        if is_local(self._source.filesystem):
            coverage = self.coverage_for_scan()
            return coverage, self._search(predicate, coverage)
        ahead = None
        with ThreadPoolExecutor(REMOTE_THREADS) as pool:
            if last is not None:
                ahead = pool.submit(last[1].search, predicate)
            else:
                asked = probed_columns(predicate)
                for index in self.loaded_indices.values():
                    if index.entry.column in asked:
                        pool.submit(index.tables)
            coverage = self.coverage_for_scan()
        is_same = last is not None and last[0] is coverage
        return coverage, self._search(predicate, coverage, ahead if is_same else None)

    def _search(
        self, predicate: Predicate, coverage: Coverage, ahead: Future[Search] | None = None
    ) -> Search:
        search = self._searcher(coverage).search(predicate) if ahead is None else ahead.result()
        if search.used_views:
            self._files.warn_of_uncovered_files(coverage, search.used_views)
        return search

    def _searcher(self, coverage: Coverage) -> Searcher:
        last = self._last
        if last is None or last[0] is not coverage:
            # Another thread may do the same for other files, so assign both in one step.
            self._last = last = coverage, self._new_searcher(coverage)
        return last[1]

    def _new_searcher(self, coverage: Coverage) -> Searcher:
        from_paths = self._source.partition_columns()
        # The last index built on a column is used. If several datasets share an index_dir, prefer
        # indices that cover a file of this dataset.
        by_use = sorted(
            self.loaded_indices.values(),
            key=lambda index: (
                self._source.field_of(index.entry.column) == index.entry.field_or_column,
                not all(
                    coverage.known_ids.isdisjoint(s.fragment_ids) for s in index.entry.segments
                ),
            ),
        )
        return Searcher(
            self._source.schema,
            # The files may store other values of partition columns than their paths.
            {
                index.entry.column: index
                for index in by_use
                if index.entry.column[0] not in from_paths
            },
            coverage.known_ids,
            coverage.all_rows(lambda each: MAX_ROWS_PER_FRAGMENT),
            PartitionValues(
                self._source.schema,
                from_paths,
                [
                    (each.fragment_id, self._source.constants(each.fragment))
                    for each in (coverage.fragments if from_paths else ())
                ],
            ),
            self._source.field_of,
        )

    def plan(
        self,
        columns: tuple[str, ...],
        expression: RowFilter | None,
        predicate: Predicate | None,
        *,
        is_described: bool = True,
    ) -> ScanPlan:
        if predicate is None or expression is None:
            present = self.coverage_for_scan().fragments
            self._look_up_deletes(present)
            whole = tuple(self._whole(each, "no index used") for each in present)
            num_bytes = _all_bytes(present) if is_described else 0
            return ScanPlan(expression, None, columns, whole, len(whole), all_bytes=num_bytes)
        counter = ReadCounter()
        before, maps_before = self._loaded_bytes(), self.page_maps.read_bytes
        coverage, search = self._searched(predicate)
        plans = self._fragment_plans(predicate, coverage, search, counter)
        read = {name: size - before[name] for name, size in self._loaded_bytes().items()}
        uses, by_path, files = [], [], []
        if is_described:
            files = _file_zones(coverage.fragments, search)
            uses = [
                _index_use(view, search, read[name]) for name, view in search.used_views.items()
            ]
            by_path = [(text, len(by_fragment(left))) for text, left in search.partition_pruning]
        return ScanPlan(
            expression,
            predicate,
            columns,
            tuple(plans),
            len(coverage.fragments),
            tuple(uses),
            tuple((str(part), why) for part, why in search.unanswered),
            sum(read.values()) + self.page_maps.read_bytes - maps_before,
            counter.num_bytes,
            counter.num_requests,
            tuple(by_path),
            tuple(files),
            _all_bytes(coverage.fragments) if is_described else 0,
        )

    def plan_fragments(self, predicate: Predicate) -> list[FragmentPlan]:
        """Return the plans of the fragments to read for a predicate, without a description."""
        return self._fragment_plans(predicate, *self._searched(predicate), ReadCounter())

    def _fragment_plans(
        self, predicate: Predicate, coverage: Coverage, search: Search, counter: ReadCounter
    ) -> list[FragmentPlan]:
        rows = by_fragment(search.result.at_most)
        if not rows:
            return []
        embedded = (
            self.embedded_filters.row_group_finder(predicate, counter)
            if self.uses_embedded_filters
            else None
        )
        self._look_up_deletes([each for each in coverage.fragments if each.fragment_id in rows])
        plans = [
            self._fragment_plan(each, rows[each.fragment_id], search, embedded)
            for each in coverage.fragments
            if each.fragment_id in rows
        ]
        return [plan for plan in plans if plan.row_groups != ()]

    def _loaded_bytes(self) -> dict[str, int]:
        return {name: index.loaded_bytes for name, index in self.loaded_indices.items()}

    def search_many(self, column: str, values: Any) -> Iterator[pa.RecordBatch]:
        coverage = self.coverage_for_scan()
        index, leaf = self._index_on(column, coverage)
        keys = checked_keys(values, column, leaf)
        view = self._searcher(coverage).view(index)
        self._files.warn_of_uncovered_files(coverage, [index.entry.name])
        uncovered = [
            each.fragment_id
            for each in coverage.fragments
            if each.fragment_id not in view.fragment_ids and each.num_rows != 0
        ]
        return search_many(view, leaf, keys, np.array(uncovered, dtype=np.uint64))

    def _index_on(self, column: str, coverage: Coverage) -> tuple[LoadedIndex, pa.DataType]:
        """Return the index to use for a column, and the column's type."""
        arguments.require_text(column, "column")
        if self.version.locked_reason:
            raise EncryptedIndex(self.version.locked_reason)
        path = (column,) if column in self._source.schema.names else tuple(column.split("."))
        leaf = find_leaf_type(self._source.schema, path)
        if leaf is None:
            raise ColumnNotFound(unknown_column_text(column, self._source.schema))
        index = self._searcher(coverage).index(path)
        if isinstance(index, str):
            raise IndexNotFound(
                f"column {arguments.short_repr(column)} cannot be looked up: {index}; call "
                "create_scalar_index on it"
            )
        return index, leaf

    def key_ranges(self, column: str) -> pa.Table:
        coverage = self.coverage()
        index, leaf = self._index_on(column, coverage)
        return fragment_ranges(coverage.fragments, index.key_ranges(leaf), leaf)

    def global_filter(self, column: str) -> GlobalFilter | None:
        coverage = self.coverage()
        index, leaf = self._index_on(column, coverage)
        return index.global_filter(leaf, coverage.fragments)

    def plan_rows(
        self, addresses: np.ndarray, *, include_deleted: bool = False
    ) -> tuple[ScanPlan, np.ndarray]:
        """Return a plan that reads rows by address, and the addresses in the order of reading.

        Each row is read once, in scan order.
        """
        coverage = self.coverage_for_scan()
        asked = by_fragment(RowRanges.from_arrays(addresses, addresses + 1))
        parts: list[FragmentPlan] = []
        order = [np.empty(0, dtype=np.int64)]
        for each in coverage.fragments:
            rows = asked.pop(each.fragment_id, None)
            if rows is None:
                continue
            if rows.stops[-1] > self.count_rows(each):
                raise InvalidArgument(
                    f"row {rows.stops[-1] - 1:,} of fragment {each.fragment_id} was requested, but "
                    f"{each.fragment.key} has {self.count_rows(each):,}"
                )
            gone = RowRanges() if include_deleted else rows & each.fragment.deleted_rows
            if gone:
                raise InvalidArgument(
                    f"row {gone.starts[0]:,} of fragment {each.fragment_id} was requested, but the "
                    "table has deleted it; search again"
                )
            parts.append(FragmentPlan(each.fragment, rows, "", each.identity, self.pages(each)))
            base = each.fragment_id << OFFSET_BITS
            order.append(base + rows.rows_at(np.arange(len(rows))))
        if asked:
            raise InvalidArgument(
                f"there is no fragment {next(iter(asked))}: its file was deleted or rewritten; "
                "search again"
            )
        plan = ScanPlan(None, None, (), tuple(parts), len(coverage.fragments))
        return plan, np.concatenate(order)

    def _fragment_plan(
        self,
        each: PresentFragment,
        rows: RowRanges,
        search: Search,
        embedded: Callable[[Fragment, FileIdentity], list[int] | None] | None,
    ) -> FragmentPlan:
        """Choose how to read a fragment with a candidate row: by pages, by row groups, or whole."""
        covered = any(each.fragment_id in view.fragment_ids for view in search.used_views.values())
        why = each.reason or _why_whole(each, rows, search, covered)
        if each.fragment.view is not None:
            return self._in_part(each, rows, why)
        if not covered and embedded is not None:
            groups = embedded(each.fragment, each.identity)
            if groups is not None:
                return FragmentPlan(each.fragment, None, why, each.identity, None, tuple(groups))
        in_part = each.is_known and covered and self._reads_in_part(each, search.predicate)
        if why and not in_part:
            return FragmentPlan(each.fragment, None, why)
        return FragmentPlan(each.fragment, rows, why, each.identity, self.pages(each))

    def _whole(self, each: PresentFragment, why: str) -> FragmentPlan:
        """Return a plan for all rows of a fragment that the table has not deleted."""
        if each.fragment.view is None:
            return FragmentPlan(each.fragment, None, why)
        return self._in_part(each, RowRanges([(0, self.count_rows(each))]), why)

    def _in_part(self, each: PresentFragment, rows: RowRanges, why: str) -> FragmentPlan:
        """Return a plan for rows of a fragment with a view, without the deleted ones."""
        left = rows.window(0, self.count_rows(each)) - each.fragment.deleted_rows
        deleted = min(len(rows), self.count_rows(each)) - len(left)
        pages = self.pages(each)
        return FragmentPlan(each.fragment, left, why, each.identity, pages, None, deleted)

    def pages(self, each: PresentFragment) -> FilePages | None:
        """Return the pages of a fragment with the table's column names, or None if unknown."""
        pages = self.page_maps.file_pages(each)
        return None if pages is None else pages_with_names(pages, each.fragment.names)

    def _deleted(self, present: Sequence[PresentFragment]) -> RowRanges:
        """Return the addresses of the rows that the table has deleted."""
        self._look_up_deletes(present)
        starts, stops = [_NO_ROWS], [_NO_ROWS]
        for each in present:
            base = each.fragment_id << OFFSET_BITS
            deleted = each.fragment.deleted_rows
            starts.append(deleted.starts + base)
            stops.append(deleted.stops + base)
        return RowRanges.from_arrays(np.concatenate(starts), np.concatenate(stops))

    def _look_up_deletes(self, present: Sequence[PresentFragment]) -> None:
        """Read the deletes of fragments in parallel, unless they were read before."""
        views = {each.fragment.view for each in present} - self._looked_up
        if len(views) > 1:
            with ThreadPoolExecutor(REMOTE_THREADS) as pool:
                for _ in pool.map(lambda view: view and view.deleted, views):
                    pass
        self._looked_up |= views

    def _reads_in_part(self, each: PresentFragment, predicate: Predicate) -> bool:
        """Return whether reading all rows of a fragment by pages is faster than PyArrow's scan.

        It is faster if matches are found in the encoded values without decoding the others. It is
        also faster for a file of at most one zone, because a scan takes long to start.
        """
        if not self._source.is_parquet or not is_local(self._source.filesystem):
            return False
        if (each.num_rows or 0) <= DEFAULT_NUMBER_OF_ITEMS:
            return True
        pages = self.pages(each)
        if pages is None or not is_key_search(predicate, pages.schema, self._source.schema):
            return False
        # PyArrow's scan is faster until the kernels are loaded.
        return not NUMPY.spend(pages.num_rows // _ROWS_PER_CHECK)


def _index_use(view: IndexView, search: Search, read_bytes: int) -> IndexUse:
    entry = view.index.entry
    return IndexUse(
        entry.name,
        ".".join(entry.column),
        view.num_zones,
        view.count_kept_zones(search.result.at_most),
        entry.num_bytes,
        read_bytes,
        len(view.fragment_ids),
    )


def _file_zones(present: Sequence[PresentFragment], search: Search) -> Iterator[FileZones]:
    """Yield the zones of each file that may match, in the smallest zones of the indices used."""
    rows, views = by_fragment(search.result.at_most), search.used_views.values()
    for each in present:
        kept = rows.get(each.fragment_id, RowRanges())
        items = [
            view.index.entry.parameters.number_of_items
            for view in views
            if each.fragment_id in view.fragment_ids
        ]
        yield FileZones(each.fragment.key, each.num_rows or 0, min(items, default=0), kept)


def _all_bytes(present: Sequence[PresentFragment]) -> int:
    return sum(each.identity.size for each in present)


def _why_whole(each: PresentFragment, rows: RowRanges, search: Search, covered: bool) -> str:
    """Return the reason to read a fragment whole, or an empty text if there is none."""
    if not covered:
        return (
            f"not covered by {', '.join(search.used_views)}"
            if search.used_views
            else "no index used"
        )
    if len(rows) == each.num_rows:
        return "every zone may match"
    return "most zones may match" if len(rows) > _MOST * (each.num_rows or 0) else ""
