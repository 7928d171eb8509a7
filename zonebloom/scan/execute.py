"""Run the plan of a scan.

Of fragments that are read in part, only planned rows are read: first the columns of the filter,
then the other columns of rows that match. PyArrow scans the other fragments whole.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs

from zonebloom.base.arrays import copied_slices, from_numpy
from zonebloom.base.row_ranges import MAX_ROWS_PER_FRAGMENT, OFFSET_BITS, RowRanges, ranges_of_rows
from zonebloom.base.threads import (
    OrderedTasks,
    map_in_order,
    num_cores,
    thread_pool,
)
from zonebloom.errors import FragmentChanged, FragmentUnreadable
from zonebloom.parquet.key_tests import KeyTests
from zonebloom.predicates.ast import Equals, IsIn
from zonebloom.predicates.expression import has_views
from zonebloom.scan.plan import ADDRESS_FIELD, FragmentPlan, Request, ScanStats
from zonebloom.scan.read_errors import naming_files, path_or_count
from zonebloom.scan.recheck import (
    matching_rows,
    project,
    recheck,
    rows_matching_predicate,
    select_rows,
)
from zonebloom.sources.column_batches import read_to_end
from zonebloom.sources.fragment_rows import open_rows, read_view_batches
from zonebloom.sources.parquet_rows import KnownValues, ParquetRows
from zonebloom.sources.source import Source, require_all_rows, stated_row_count
from zonebloom.storage.files import (
    ReadCounter,
    counting_filesystem,
    is_python_filesystem,
)

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

# Row numbers within a fragment (int64, ascending), and a table of those rows.
MatchedRows: TypeAlias = tuple[np.ndarray, pa.Table]

# Reading fewer local rows than this takes less time than starting threads. Requests to an object
# store take longer, so remote fragments are always read by threads.
_MIN_THREADED_ROWS = 1 << 18

_ALL_ROWS = RowRanges([(0, MAX_ROWS_PER_FRAGMENT)])


@dataclass(slots=True)
class _OpenedPart:
    """A fragment of which some rows are read.

    Attributes
    ----------
    rows : object or None
        The opened rows, or None if PyArrow reads the fragment.
    results : iterator
        The results of `Execution._read_group` for each row group.
    error : FragmentUnreadable or None
        The reason why the fragment was not opened.
    """

    rows: Any = None
    results: Any = ()
    error: FragmentUnreadable | None = None

    def close(self) -> None:
        """Stop reading, and close the file."""
        if isinstance(self.results, OrderedTasks):
            self.results.close()
        if self.rows is not None:
            self.rows.close()


class Execution:
    """One run over the fragments of a plan.

    ``stats`` counts what it reads. Bytes are only counted if a ``counter`` is given.
    """

    def __init__(
        self,
        source: Source,
        request: Request,
        counter: ReadCounter | None = None,
        stats: ScanStats | None = None,
    ):
        self.stats: ScanStats = stats or ScanStats()
        self._source = source
        self._request = request
        self._is_counted = counter is not None
        self._counter = counter or ReadCounter()
        self._has_round_trips = source.store.has_round_trips
        self._lock = threading.Lock()
        self._key_tests = None if request.predicate is None else KeyTests(request.predicate)
        names = source.schema.names
        # The columns of matches are read only in the rows that match the filter.
        self._filter_columns, self._columns_of_matches = request.columns_read(names)
        # Keep the schema's order, which is the order of the result if there is no projection.
        needed = {*self._filter_columns, *self._columns_of_matches}
        self._needed = names
        if len(needed) < len(names):
            self._needed = [name for name in names if name in needed]
        # The projection of the needed columns, or None if they are the result.
        self._columns = None if request.columns == self._needed else request.columns

    @cached_property
    def _filesystem(self) -> pafs.FileSystem:
        """The file system with which pyarrow reads whole files and row groups."""
        filesystem = self._source.filesystem
        if self._is_counted or is_python_filesystem(filesystem):
            return counting_filesystem(filesystem, self._counter)
        return filesystem

    def batches(self, fragments: Iterable[FragmentPlan]) -> Iterator[pa.RecordBatch]:
        """Yield the matching rows in order, as batches that may be empty.

        If a file changed since the plan was made, its planned rows mean nothing, so the whole file
        is read and filtered.
        """
        for is_whole, plans in itertools.groupby(fragments, lambda plan: plan.rows is None):
            if is_whole:
                yield from self._read_whole(list(plans))
            else:
                for batches in self._read_parts(list(plans)):
                    yield from batches

    def batches_with_addresses(self, fragments: Iterable[FragmentPlan]) -> Iterator[pa.RecordBatch]:
        """Yield the matching rows in order, with their addresses as the last column.

        Raises
        ------
        FragmentChanged
            If a file changed since the plan was made.
        """
        for plan in fragments:
            for offsets, table in self.matches(plan):
                addresses = (plan.fragment_id << OFFSET_BITS) + offsets
                column = from_numpy(addresses.astype(np.uint64))
                table = table.append_column(ADDRESS_FIELD, column)
                yield from table.to_batches(max_chunksize=self._request.batch_size)

    def matches(self, plan: FragmentPlan) -> Iterator[MatchedRows]:
        """Yield the matching rows of one fragment with their offsets.

        Raises
        ------
        FragmentChanged
            Before the last rows are yielded, if the file changed since the plan was made.
        """
        if plan.rows is not None:
            is_parallel = not self._has_round_trips and self._source.is_parquet
            if is_parallel and len(plan.rows) >= _MIN_THREADED_ROWS:
                with thread_pool(num_cores()) as pool:
                    part = self._open_part(plan, plan.rows, pool)
                    yield from self._matches(plan, plan.rows, part)
            else:
                yield from self._matches(plan, plan.rows)
        else:
            self._count(fragments_read=1)
            yield from self._read_by_pyarrow(plan, _ALL_ROWS - plan.fragment.deleted_rows)

    def _scan_options(self) -> dict[str, Any]:
        # PyArrow crashes if a scan of IPC files on threads is abandoned before its end.
        return {"batch_size": self._request.batch_size, "use_threads": not self._source.is_ipc}

    # Whole fragments

    def _read_whole(self, plans: list[FragmentPlan]) -> Iterator[pa.RecordBatch]:
        """Yield the matching rows of whole fragments, in one scan in which PyArrow reads ahead."""
        self._count(fragments_read=len(plans))
        changed_paths = self._changed_paths([plan for plan in plans if plan.row_groups is not None])
        # Planned row groups do not apply to a file that changed, so read all of it.
        plans = [
            replace(plan, row_groups=None) if plan.fragment.path in changed_paths else plan
            for plan in plans
        ]
        dataset = self._source.scan_whole(
            [(plan.fragment, plan.row_groups) for plan in plans], self._filesystem
        )
        pushed_filter = self._pushed_filter(plans)
        is_projection = isinstance(self._request.columns, dict) and self._request.is_for_arrow
        if pushed_filter is None and not (self._request.filter is None and is_projection):
            yield from self._scan_and_filter(dataset, plans)
            return
        num_rows_emitted = 0
        try:
            for batch in self._scan_with_pushdown(dataset, plans, pushed_filter):
                num_rows_emitted += batch.num_rows
                yield batch
            return
        except pa.ArrowException:
            # Arrow filters a file in the file's own types. Those may be views, as deltalake writes
            # them, which Arrow cannot compare, although it can compare the dataset's types. Or an
            # expression fails on a value, or a file is damaged. The scan below finds out which.
            if num_rows_emitted:
                # The rows of a file that was rewritten meanwhile would not be the skipped ones.
                self.require_unchanged(plans)
        yield from self._scan_and_filter(dataset, plans, num_rows_to_skip=num_rows_emitted)

    def _scan_with_pushdown(
        self, dataset: Any, plans: list[FragmentPlan], pushed_filter: pc.Expression | None
    ) -> Iterator[pa.RecordBatch]:
        """Yield matching rows of a scan in which PyArrow evaluates a filter or a projection.

        Raise `pyarrow.ArrowException` if PyArrow cannot evaluate them on the files.
        """
        request = self._request
        is_complete = pushed_filter is request.filter and request.is_for_arrow
        with self._naming_files(plans, keeps_arrow_errors=True):
            num_rows = 0
            scanner = dataset.scanner(
                columns=request.columns if is_complete else self._needed,
                filter=pushed_filter,
                **self._scan_options(),
            )
            for batch in read_to_end(scanner.to_batches(), self._source.schema):
                num_rows += batch.num_rows
                if is_complete:
                    yield batch
                else:
                    yield from self._recheck(batch)
            if pushed_filter is None:
                _require_all_rows(dataset, plans, num_rows)
            self._require_unchanged_row_groups(plans)

    def _scan_and_filter(
        self, dataset: Any, plans: list[FragmentPlan], *, num_rows_to_skip: int = 0
    ) -> Iterator[pa.RecordBatch]:
        """Yield matching rows of a scan without a filter, except the first, already emitted ones.

        Batches come in order, so the same rows match first in each scan.
        """
        request = self._request
        is_complete = request.filter is None and not isinstance(request.columns, dict)
        with self._naming_files(plans):
            num_rows = 0
            scanner = dataset.scanner(
                columns=request.columns if is_complete else self._needed, **self._scan_options()
            )
            for batch in read_to_end(scanner.to_batches(), self._source.schema):
                num_rows += batch.num_rows
                for matches in [batch] if is_complete else self._recheck(batch):
                    num_skipped = min(num_rows_to_skip, matches.num_rows)
                    num_rows_to_skip -= num_skipped
                    yield matches.slice(num_skipped)
            _require_all_rows(dataset, plans, num_rows)
            self._require_unchanged_row_groups(plans)

    def _require_unchanged_row_groups(self, plans: list[FragmentPlan]) -> None:
        """Raise `FragmentChanged` if a file changed of which only planned row groups were read."""
        self.require_unchanged([plan for plan in plans if plan.row_groups is not None])

    def _recheck(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """Return the matching rows of a batch, with the columns of the result."""
        table = pa.Table.from_batches([batch])
        request = self._request
        return recheck(table, request.filter, self._columns, request.bound).to_batches()

    def _pushed_filter(self, plans: Sequence[FragmentPlan]) -> pc.Expression | None:
        """Return the filter to push into PyArrow's scan: all of it, a safe part of it, or None."""
        filter, schema = self._request.filter, self._source.schema
        # Arrow cannot filter columns of view types, and cannot apply filters of other engines.
        if not isinstance(filter, pc.Expression) or has_views(schema):
            return None
        # With a filter, row counts cannot be compared with the footers to detect short reads.
        if not _detects_short_reads(self._source):
            return None
        if self._source.has_statistics:
            from zonebloom.predicates.arrow import statistics_safe_filter

            filter = statistics_safe_filter(filter, schema)
        if filter is not None and self._lacks_column_keys(plans):
            # Without a filter PyArrow reads unencrypted columns, and refuses only the others.
            return None
        return filter

    def _lacks_column_keys(self, plans: Sequence[FragmentPlan]) -> bool:
        # An object store needs a request for each footer, and files of one dataset usually have the
        # same encryption. So only the first footer is checked there.
        checked = plans[:1] if self._has_round_trips else plans
        return any(
            self._source.lacks_column_keys(plan.fragment, self._filesystem) for plan in checked
        )

    # Parts of fragments

    def _read_parts(self, plans: list[FragmentPlan]) -> Iterator[Iterable[pa.RecordBatch]]:
        """Return the matching rows of each fragment that is read in part, several in parallel."""
        if self._has_round_trips:
            is_parallel = len(plans) > 1
        else:
            num_rows = 0
            for plan in plans:
                num_rows += 0 if plan.rows is None else len(plan.rows)
            is_parallel = num_rows >= _MIN_THREADED_ROWS
        if not is_parallel:
            return map(self._read_part, plans)
        if self._source.is_parquet and not self._has_round_trips:
            return self._read_row_groups_in_parallel(plans)
        num_threads = self._source.store.num_threads
        return _map_on_threads(lambda plan: list(self._read_part(plan)), plans, num_threads)

    def _read_row_groups_in_parallel(
        self, plans: list[FragmentPlan]
    ) -> Iterator[Iterable[pa.RecordBatch]]:
        """Yield the matching rows of each fragment. One pool of threads reads all row groups."""
        opened_parts: deque[tuple[FragmentPlan, _OpenedPart]] = deque()
        with thread_pool(num_cores()) as pool:
            try:
                for plan in plans:
                    opened_parts.append((plan, self._open_part(plan, plan.rows, pool)))
                    if len(opened_parts) > num_cores():
                        yield self._read_part(*opened_parts.popleft())
                while opened_parts:
                    yield self._read_part(*opened_parts.popleft())
            finally:
                for _, part in opened_parts:
                    part.close()

    def _read_part(
        self, plan: FragmentPlan, part: _OpenedPart | None = None
    ) -> Iterator[pa.RecordBatch]:
        assert plan.rows is not None
        has_output = False
        try:
            for _, table in self._matches(plan, plan.rows, part):
                has_output |= table.num_rows > 0
                yield from table.to_batches(max_chunksize=self._request.batch_size)
        except FragmentChanged:
            # Give up if rows of the old file were already returned. Rows requested by address have
            # unknown addresses in the new file, and so do the deleted rows of a table.
            if has_output or self._request.filter is None or plan.fragment.view is not None:
                raise
            yield from self._read_again(plan)

    def _read_again(self, plan: FragmentPlan) -> Iterator[pa.RecordBatch]:
        """Read all of a changed fragment, of which no rows have been returned yet."""
        (identity,) = self._source.identities([plan.fragment])
        whole_plan = FragmentPlan(plan.fragment, None, plan.reason, identity)
        self._count(fragments_read=1)
        # The predicate may lack keys that only the new file holds, and so may the narrow filter.
        request = replace(
            self._request, predicate=None, is_predicate_exact=False, narrow_filter=None
        )
        for _, table in self._read_by_pyarrow(
            whole_plan, _ALL_ROWS, "it changed while it was read", request
        ):
            yield from table.to_batches(max_chunksize=self._request.batch_size)

    def _open_part(
        self, plan: FragmentPlan, wanted: RowRanges | None, pool: ThreadPoolExecutor | None
    ) -> _OpenedPart:
        """Open a fragment, and begin to read its row groups on the threads of a pool."""
        assert plan.identity is not None
        if not wanted:
            # The table has deleted all candidate rows.
            return _OpenedPart()
        rows = None
        try:
            rows = open_rows(self._source, plan.fragment, plan.identity, plan.pages, self._counter)
            if isinstance(rows, ParquetRows) and self._has_round_trips:
                rows.read_ahead(self._needed, wanted)
        except FragmentUnreadable as error:
            # This includes `FragmentChanged`.
            if rows is not None:
                rows.close()
            return _OpenedPart(error=error)
        if rows is None:
            return _OpenedPart(error=FragmentUnreadable("pyarrow reads it with its options"))
        read = partial(self._read_group, rows, isinstance(rows, ParquetRows))
        groups = rows.row_groups(wanted)
        results = (
            map(read, groups) if pool is None else OrderedTasks(pool, read, groups, num_cores() + 1)
        )
        return _OpenedPart(rows, results)

    def _matches(
        self, plan: FragmentPlan, wanted: RowRanges, part: _OpenedPart | None = None
    ) -> Iterator[MatchedRows]:
        """Yield the matches among the wanted rows of a fragment, read by pages where possible.

        ``part`` is the fragment if it was opened before.
        """
        if part is None:
            part = self._open_part(plan, wanted, None)
        if not wanted:
            return
        if isinstance(part.error, FragmentChanged):
            raise _changed_error(plan) from None
        self._count(fragments_read=1)
        rows = part.rows
        if rows is None:
            yield from self._read_by_pyarrow(plan, wanted, str(part.error))
            return
        is_parquet, num_rows_left = isinstance(rows, ParquetRows), len(wanted)
        try:
            for group, num_rows, match in part.results:
                _, first, inside = group
                is_unreadable = isinstance(match, FragmentUnreadable)
                num_rows_left -= num_rows
                if is_unreadable or not num_rows_left:
                    # Rows of a file that was rewritten meanwhile may mix two versions of it.
                    rows.require_unchanged()
                if is_unreadable:
                    if isinstance(match, FragmentChanged) or not is_parquet:
                        raise match
                    yield from self._read_by_pyarrow(plan, inside.shift(first), str(match))
                elif match is not None:
                    yield match[0] + first, match[1]
            if num_rows_left:
                rows.require_unchanged()
                raise FragmentUnreadable(
                    f"{plan.fragment.path} ends before {num_rows_left:,} of its indexed rows; "
                    "repair or remove it, or build the index again"
                )
        finally:
            part.close()
            if is_parquet and (rows.whole_chunks or rows.pyarrow_columns):
                with self._lock:
                    self.stats.whole_chunks.update(rows.whole_chunks)
                    self.stats.by_pyarrow.update(rows.pyarrow_columns)

    def _read_group(
        self, rows: Any, is_parquet: bool, group: tuple[int, int, RowRanges]
    ) -> tuple[tuple[int, int, RowRanges], int, MatchedRows | FragmentUnreadable | None]:
        """Return a row group, the number of its wanted rows, and its matches.

        The matches have offsets in the row group. They are None if there are none, or the error if
        the row group cannot be read.
        """
        number, _, wanted = group
        num_rows = len(wanted)
        self._count(row_groups_read=1, rows_read=num_rows)
        try:
            return group, num_rows, self._group_matches(rows, is_parquet, number, wanted)
        except FragmentUnreadable as error:
            return group, num_rows, error

    def _group_matches(
        self, rows: Any, is_parquet: bool, number: int, wanted: RowRanges
    ) -> MatchedRows | None:
        """Return the matches among the wanted rows of a row group, with their offsets in it.

        If the filter tests for keys, `narrow_rows` excludes rows before their values are decoded,
        and may decide alone which match. Otherwise the filter is applied to its own columns, and
        the others are read where it is true.
        """
        if not is_parquet:
            filter_table = rows.read(number, self._filter_columns, wanted)
        else:
            known: KnownValues = {}
            if self._key_tests is not None:
                tests = self._key_tests
                wanted, is_exact = rows.narrow_rows(number, tests.predicate, tests, wanted, known)
                if not wanted:
                    return None
                if is_exact and self._request.is_predicate_exact:
                    is_lookup = self._key_tests.has_few_keys
                    table = rows.read(number, self._needed, wanted, known, is_lookup=is_lookup)
                    if rows.pyarrow_columns:
                        # Only PyArrow returns slices.
                        table = copied_slices(table)
                    return wanted.rows(), project(table, self._columns)
            filter_table = rows.read(number, self._filter_columns, wanted, known)
        matches = _matching_rows(filter_table, self._request)
        if matches.size == 0:
            return None
        table = select_rows(filter_table, matches)
        if matches.size < len(wanted):
            wanted = ranges_of_rows(wanted.rows_at(matches))
        offsets = wanted.rows()
        if self._columns_of_matches:
            other_table = rows.read(number, self._columns_of_matches, wanted)
            schema = pa.schema([*table.schema, *other_table.schema])
            table = pa.Table.from_arrays([*table.columns, *other_table.columns], schema=schema)
            table = table.select(self._needed)
        # Slices of a table in memory take no memory.
        if not self._source.is_in_memory:
            table = copied_slices(table)
        return offsets, project(table, self._columns)

    def _read_by_pyarrow(
        self,
        plan: FragmentPlan,
        wanted: RowRanges,
        reason: str = "",
        request: Request | None = None,
    ) -> Iterator[MatchedRows]:
        """Yield the matches among wanted rows. PyArrow decodes whole row groups or files.

        ``request`` replaces the request of this run.
        """
        import pyarrow.dataset as pads

        self.require_unchanged([plan])
        opened_fragment = self._source.open(plan.fragment, self._filesystem)
        positions, has_view = wanted, plan.fragment.view is not None
        with self._naming_files([plan]):
            if isinstance(opened_fragment, pads.ParquetFileFragment) and not has_view:
                opened_fragment, wanted, positions, num_row_groups = _select_row_groups(
                    opened_fragment, wanted, plan
                )
                self._count(row_groups_read=num_row_groups)
                with self._lock:
                    reasons = self.stats.whole_row_groups
                    reasons[reason] = reasons.get(reason, 0) + num_row_groups
            if has_view:
                batches = read_view_batches(
                    self._source, plan.fragment, self._filesystem, self._needed
                )
            else:
                batches = opened_fragment.to_batches(
                    schema=self._source.schema, columns=self._needed, **self._scan_options()
                )
            num_read = num_wanted = 0
            previous: MatchedRows | None = None
            for batch in batches:
                window = positions.window(num_read, num_read + batch.num_rows)
                num_read += batch.num_rows
                if window:
                    table = pa.Table.from_batches([batch.slice(a, b - a) for a, b in window])
                    self._count(rows_read=table.num_rows)
                    matches = _matching_rows(table, request or self._request)
                    rows = project(copied_slices(select_rows(table, matches)), self._columns)
                    if previous is not None:
                        yield previous
                    previous = wanted.rows_at(matches + num_wanted), rows
                    num_wanted += table.num_rows
            if not has_view:
                require_all_rows(plan.fragment.path, num_read, stated_row_count(opened_fragment))
            # Rows of a file that was rewritten meanwhile may mix two versions of it.
            self.require_unchanged([plan])
            if previous is not None:
                yield previous

    # Changed and unreadable files

    def require_unchanged(self, plans: Sequence[FragmentPlan]) -> None:
        """Raise `FragmentChanged` if a file changed since the plan was made."""
        changed_paths = self._changed_paths(plans)
        for plan in plans:
            if plan.fragment.path in changed_paths:
                raise _changed_error(plan)

    def _changed_paths(self, plans: Sequence[FragmentPlan]) -> set[str]:
        """Return the paths of fragments whose file changed since the plan was made."""
        identities = self._source.identities([plan.fragment for plan in plans])
        return {
            plan.fragment.path
            for plan, identity in zip(plans, identities, strict=True)
            if plan.identity is None or not plan.identity.is_still(identity)
        }

    def _naming_files(
        self, plans: Sequence[FragmentPlan], *, keeps_arrow_errors: bool = False
    ) -> AbstractContextManager[None]:
        fragments = [plan.fragment for plan in plans]
        return naming_files(
            self._source, fragments, self._needed, keeps_arrow_errors=keeps_arrow_errors
        )

    def _count(self, fragments_read: int = 0, row_groups_read: int = 0, rows_read: int = 0) -> None:
        with self._lock:
            self.stats.fragments_read += fragments_read
            self.stats.row_groups_read += row_groups_read
            self.stats.rows_read += rows_read


def _matching_rows(table: pa.Table, request: Request) -> np.ndarray:
    filter, predicate = request.filter, request.predicate
    if request.narrow_filter is not None:
        filter = request.narrow_filter
    if filter is None:
        return np.arange(table.num_rows)
    rows = None
    if request.is_predicate_exact and isinstance(predicate, Equals | IsIn):
        rows = rows_matching_predicate(table, predicate)
    return matching_rows(table, filter, request.bound) if rows is None else rows


def _map_on_threads(
    function: Callable[[Any], Any], items: Iterable[Any], num_threads: int
) -> Iterator[Any]:
    """Yield the results in order. They are computed on threads."""
    with thread_pool(num_threads) as pool:
        yield from map_in_order(pool, function, items, num_threads + 1)


def _require_all_rows(dataset: Any, plans: Sequence[FragmentPlan], num_rows: int) -> None:
    """Raise `FragmentUnreadable` if a scan without a filter gave fewer rows than the footers."""
    import pyarrow.dataset as pads

    num_stated = 0
    for fragment in dataset.get_fragments():
        # PyArrow detects short reads of IPC and ORC files, and counting their rows would read them.
        if not isinstance(fragment, pads.ParquetFileFragment):
            return
        num_stated += stated_row_count(fragment) or 0
    require_all_rows(path_or_count([plan.fragment for plan in plans]), num_rows, num_stated)


def _detects_short_reads(source: Source) -> bool:
    """Return whether PyArrow's scan fails if a read returns fewer bytes than requested."""
    if (
        not source.store.has_round_trips
        or is_python_filesystem(source.filesystem)
        or not source.has_statistics
    ):
        return True
    options: Any = source.format.default_fragment_scan_options
    return options.pre_buffer


def _changed_error(plan: FragmentPlan) -> FragmentChanged:
    return FragmentChanged(
        f"{plan.fragment.path} changed or was deleted after the search; search again"
    )


def _select_row_groups(
    opened_fragment: Any, wanted: RowRanges, plan: FragmentPlan
) -> tuple[Any, RowRanges, RowRanges, int]:
    """Return a fragment of the row groups with a wanted row, the wanted rows, and how many groups.

    The wanted rows are returned as offsets in the file, and as positions in these row groups.
    """
    row_groups: list[int] = []
    offsets: list[tuple[int, int]] = []
    positions: list[tuple[int, int]] = []
    first, num_read = 0, 0
    for group in opened_fragment.row_groups:
        inside = wanted.window(first, first + group.num_rows)
        if inside and (plan.row_groups is None or group.id in plan.row_groups):
            row_groups.append(group.id)
            offsets.extend(inside.shift(first))
            positions.extend(inside.shift(num_read))
            num_read += group.num_rows
        first += group.num_rows
    subset = opened_fragment.subset(row_group_ids=row_groups)
    return subset, RowRanges(offsets), RowRanges(positions), len(row_groups)
