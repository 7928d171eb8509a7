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

# If more than this share of a fragment's rows may match, reading it whole is faster than by pages.
_MAX_SHARE_TO_READ_BY_PAGES = 0.6
# PyArrow scans this many rows of a few columns in the time of one test of a Bloom filter.
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
        self._views_with_loaded_deletes: set[FileView | None] = {None}
        # The last searcher, and the coverage that it was made for.
        self._last_searcher: tuple[Coverage, Searcher] | None = None

    def __repr__(self) -> str:
        return f"<Planner of {self._source.root}, index version {self.version.number}>"

    def coverage(self) -> Coverage:
        """Return the coverage of the files that exist now."""
        return self._files.coverage()

    def coverage_for_scan(self) -> Coverage:
        """Return the coverage for a scan of all files. Missing files raise an error or warn."""
        return self._files.coverage_of_all_files()

    def count_rows(self, fragment: PresentFragment) -> int:
        """Return the number of rows of a fragment, read from the file if it is not indexed."""
        return self._files.count_rows(fragment)

    def count_rows_in_file(self, fragment: PresentFragment) -> int:
        """Return the number of rows of a fragment by its file as it is now."""
        return self._files.count_rows_in_file(fragment)

    def search(self, predicate: Predicate) -> SearchResult:
        coverage = self.coverage_for_scan()
        search = self._search(predicate, coverage)
        deleted_rows = self._deleted_rows(coverage.fragments)
        result = search.result
        rows, bounds = result.universe, (result.at_most, result.at_least)
        if deleted_rows or any(present.num_rows is None for present in coverage.fragments):
            rows = coverage.all_rows(self.count_rows) - deleted_rows
            bounds = (rows & bounds[0], rows & bounds[1])
        return SearchResult(
            rows,
            at_most=bounds[0],
            at_least=bounds[1],
            paths={present.fragment_id: present.fragment.key for present in coverage.fragments},
            null_free=result.null_free,
            covered=tuple(view.fragment_ids for view in search.used_views.values()),
        )

    def search_existing_files(self, predicate: Predicate) -> tuple[Coverage, Search]:
        """Search only files that exist. For callers that list files themselves, such as Spark."""
        coverage = self.coverage()
        return coverage, self._search(predicate, coverage)

    def _search_current_files(self, predicate: Predicate) -> tuple[Coverage, Search]:
        """Return the coverage of the current files and the result of a search in the indices.

        While an object store lists the files, tables are loaded from it, or are already searched
        under the assumption that no file has changed.
        """
        last_searcher = self._last_searcher
        if is_local(self._source.filesystem):
            coverage = self.coverage_for_scan()
            return coverage, self._search(predicate, coverage)
        early_search = None
        with ThreadPoolExecutor(REMOTE_THREADS) as pool:
            if last_searcher is not None:
                early_search = pool.submit(last_searcher[1].search, predicate)
            else:
                columns = probed_columns(predicate)
                for index in self.loaded_indices.values():
                    if index.entry.column in columns:
                        pool.submit(index.tables)
            coverage = self.coverage_for_scan()
        is_same = last_searcher is not None and last_searcher[0] is coverage
        return coverage, self._search(predicate, coverage, early_search if is_same else None)

    def _search(
        self, predicate: Predicate, coverage: Coverage, early_search: Future[Search] | None = None
    ) -> Search:
        search = (
            self._searcher(coverage).search(predicate)
            if early_search is None
            else early_search.result()
        )
        if search.used_views:
            self._files.warn_of_uncovered_files(coverage, search.used_views)
        return search

    def _searcher(self, coverage: Coverage) -> Searcher:
        last_searcher = self._last_searcher
        if last_searcher is None or last_searcher[0] is not coverage:
            # Another thread may do the same for other files, so assign both in one step.
            self._last_searcher = last_searcher = coverage, self._new_searcher(coverage)
        return last_searcher[1]

    def _new_searcher(self, coverage: Coverage) -> Searcher:
        partition_columns = self._source.partition_columns()
        # The last index built on a column is used. If several datasets share an index_dir, prefer
        # indices that cover a file of this dataset.
        indices = sorted(
            self.loaded_indices.values(),
            key=lambda index: (
                self._source.field_of(index.entry.column) == index.entry.field_or_column,
                any(
                    not coverage.known_ids.isdisjoint(segment.fragment_ids)
                    for segment in index.entry.segments
                ),
            ),
        )
        return Searcher(
            self._source.schema,
            # The files may store other values of partition columns than their paths.
            {
                index.entry.column: index
                for index in indices
                if index.entry.column[0] not in partition_columns
            },
            coverage.known_ids,
            coverage.all_rows(lambda fragment: MAX_ROWS_PER_FRAGMENT),
            PartitionValues(
                self._source.schema,
                partition_columns,
                [
                    (present.fragment_id, self._source.constants(present.fragment))
                    for present in (coverage.fragments if partition_columns else ())
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
            self._load_deletes(present)
            whole_plans = tuple(self._plan_whole(fragment, "no index used") for fragment in present)
            num_bytes = _all_bytes(present) if is_described else 0
            return ScanPlan(
                expression, None, columns, whole_plans, len(whole_plans), all_bytes=num_bytes
            )
        counter = ReadCounter()
        bytes_before, map_bytes_before = self._loaded_bytes(), self.page_maps.read_bytes
        coverage, search = self._search_current_files(predicate)
        plans = self._fragment_plans(predicate, coverage, search, counter)
        read_bytes = {
            name: size - bytes_before[name] for name, size in self._loaded_bytes().items()
        }
        uses, partition_pruning, files = [], [], []
        if is_described:
            files = _file_zones(coverage.fragments, search)
            uses = [
                _index_use(view, search, read_bytes[name])
                for name, view in search.used_views.items()
            ]
            partition_pruning = [
                (text, len(by_fragment(kept_rows))) for text, kept_rows in search.partition_pruning
            ]
        return ScanPlan(
            filter=expression,
            predicate=predicate,
            columns=columns,
            fragments=tuple(plans),
            num_fragments=len(coverage.fragments),
            indices=tuple(uses),
            unanswered=tuple((str(part), reason) for part, reason in search.unanswered),
            index_bytes=sum(read_bytes.values()) + self.page_maps.read_bytes - map_bytes_before,
            data_bytes=counter.num_bytes,
            data_reads=counter.num_requests,
            partition_pruning=tuple(partition_pruning),
            files=tuple(files),
            all_bytes=_all_bytes(coverage.fragments) if is_described else 0,
        )

    def plan_fragments(self, predicate: Predicate) -> list[FragmentPlan]:
        """Return the plans of the fragments to read for a predicate, without a description."""
        return self._fragment_plans(
            predicate, *self._search_current_files(predicate), ReadCounter()
        )

    def _fragment_plans(
        self, predicate: Predicate, coverage: Coverage, search: Search, counter: ReadCounter
    ) -> list[FragmentPlan]:
        rows = by_fragment(search.result.at_most)
        if not rows:
            return []
        find_row_groups = (
            self.embedded_filters.row_group_finder(predicate, counter)
            if self.uses_embedded_filters
            else None
        )
        self._load_deletes(
            [fragment for fragment in coverage.fragments if fragment.fragment_id in rows]
        )
        plans = [
            self._fragment_plan(fragment, rows[fragment.fragment_id], search, find_row_groups)
            for fragment in coverage.fragments
            if fragment.fragment_id in rows
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
            fragment.fragment_id
            for fragment in coverage.fragments
            if fragment.fragment_id not in view.fragment_ids and fragment.num_rows != 0
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
        requested_rows = by_fragment(RowRanges.from_arrays(addresses, addresses + 1))
        plans: list[FragmentPlan] = []
        order = [np.empty(0, dtype=np.int64)]
        for present in coverage.fragments:
            rows = requested_rows.pop(present.fragment_id, None)
            if rows is None:
                continue
            if rows.stops[-1] > self.count_rows(present):
                raise InvalidArgument(
                    f"row {rows.stops[-1] - 1:,} of fragment {present.fragment_id} was requested, "
                    f"but {present.fragment.key} has {self.count_rows(present):,}"
                )
            deleted_rows = RowRanges() if include_deleted else rows & present.fragment.deleted_rows
            if deleted_rows:
                raise InvalidArgument(
                    f"row {deleted_rows.starts[0]:,} of fragment {present.fragment_id} was "
                    "requested, but the table has deleted it; search again"
                )
            plans.append(
                FragmentPlan(present.fragment, rows, "", present.identity, self.pages(present))
            )
            first_address = present.fragment_id << OFFSET_BITS
            order.append(first_address + rows.rows_at(np.arange(len(rows))))
        if requested_rows:
            raise InvalidArgument(
                f"there is no fragment {next(iter(requested_rows))}: its file was deleted or "
                "rewritten; search again"
            )
        plan = ScanPlan(None, None, (), tuple(plans), len(coverage.fragments))
        return plan, np.concatenate(order)

    def _fragment_plan(
        self,
        present: PresentFragment,
        rows: RowRanges,
        search: Search,
        find_row_groups: Callable[[Fragment, FileIdentity], list[int] | None] | None,
    ) -> FragmentPlan:
        """Choose how to read a fragment with a candidate row: by pages, by row groups, or whole."""
        is_covered = any(
            present.fragment_id in view.fragment_ids for view in search.used_views.values()
        )
        reason = present.reason or _reason_to_read_whole(present, rows, search, is_covered)
        if present.fragment.view is not None:
            return self._plan_part_of_view(present, rows, reason)
        if not is_covered and find_row_groups is not None:
            row_groups = find_row_groups(present.fragment, present.identity)
            if row_groups is not None:
                return FragmentPlan(
                    present.fragment, None, reason, present.identity, None, tuple(row_groups)
                )
        is_read_by_pages = (
            present.is_known and is_covered and self._is_faster_by_pages(present, search.predicate)
        )
        if reason and not is_read_by_pages:
            return FragmentPlan(present.fragment, None, reason)
        return FragmentPlan(present.fragment, rows, reason, present.identity, self.pages(present))

    def _plan_whole(self, present: PresentFragment, reason: str) -> FragmentPlan:
        """Return a plan for all rows of a fragment that the table has not deleted."""
        if present.fragment.view is None:
            return FragmentPlan(present.fragment, None, reason)
        return self._plan_part_of_view(present, RowRanges([(0, self.count_rows(present))]), reason)

    def _plan_part_of_view(
        self, present: PresentFragment, rows: RowRanges, reason: str
    ) -> FragmentPlan:
        """Return a plan for rows of a fragment with a view, without the deleted ones."""
        kept_rows = rows.window(0, self.count_rows(present)) - present.fragment.deleted_rows
        num_deleted = min(len(rows), self.count_rows(present)) - len(kept_rows)
        pages = self.pages(present)
        return FragmentPlan(
            present.fragment, kept_rows, reason, present.identity, pages, None, num_deleted
        )

    def pages(self, present: PresentFragment) -> FilePages | None:
        """Return the pages of a fragment with the table's column names, or None if unknown."""
        pages = self.page_maps.file_pages(present)
        return None if pages is None else pages_with_names(pages, present.fragment.names)

    def _deleted_rows(self, present: Sequence[PresentFragment]) -> RowRanges:
        """Return the addresses of the rows that the table has deleted."""
        self._load_deletes(present)
        starts, stops = [_NO_ROWS], [_NO_ROWS]
        for fragment in present:
            first_address = fragment.fragment_id << OFFSET_BITS
            deleted_rows = fragment.fragment.deleted_rows
            starts.append(deleted_rows.starts + first_address)
            stops.append(deleted_rows.stops + first_address)
        return RowRanges.from_arrays(np.concatenate(starts), np.concatenate(stops))

    def _load_deletes(self, present: Sequence[PresentFragment]) -> None:
        """Read the deletes of fragments in parallel, unless they were read before."""
        views = {fragment.fragment.view for fragment in present} - self._views_with_loaded_deletes
        if len(views) > 1:
            with ThreadPoolExecutor(REMOTE_THREADS) as pool:
                for _ in pool.map(lambda view: view and view.deleted, views):
                    pass
        self._views_with_loaded_deletes |= views

    def _is_faster_by_pages(self, present: PresentFragment, predicate: Predicate) -> bool:
        """Return whether reading all rows of a fragment by pages is faster than PyArrow's scan.

        It is faster if matches are found in the encoded values without decoding the others. It is
        also faster for a file of at most one zone, because a scan takes long to start.
        """
        if not self._source.is_parquet or not is_local(self._source.filesystem):
            return False
        if (present.num_rows or 0) <= DEFAULT_NUMBER_OF_ITEMS:
            return True
        pages = self.pages(present)
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
    for fragment in present:
        candidate_rows = rows.get(fragment.fragment_id, RowRanges())
        zone_sizes = [
            view.index.entry.parameters.number_of_items
            for view in views
            if fragment.fragment_id in view.fragment_ids
        ]
        yield FileZones(
            fragment.fragment.key,
            fragment.num_rows or 0,
            min(zone_sizes, default=0),
            candidate_rows,
        )


def _all_bytes(present: Sequence[PresentFragment]) -> int:
    return sum(fragment.identity.size for fragment in present)


def _reason_to_read_whole(
    fragment: PresentFragment, rows: RowRanges, search: Search, is_covered: bool
) -> str:
    """Return the reason to read a fragment whole, or an empty text if there is none."""
    if not is_covered:
        names = ", ".join(search.used_views)
        return f"not covered by {names}" if names else "no index used"
    if len(rows) == fragment.num_rows:
        return "every zone may match"
    return (
        "most zones may match"
        if len(rows) > _MAX_SHARE_TO_READ_BY_PAGES * (fragment.num_rows or 0)
        else ""
    )
