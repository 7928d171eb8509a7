"""Run the plan of a scan.

Of fragments that are read in part, only planned rows are read: first the columns of the filter,
then the other columns of rows that match. PyArrow scans the other fragments whole.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zonebloom.base.row_ranges import MAX_ROWS_PER_FRAGMENT, RowRanges
from zonebloom.base.threads import REMOTE_THREADS, map_in_order, num_cores
from zonebloom.errors import FragmentChanged, FragmentUnreadable, SourceError, ZoneBloomError
from zonebloom.parquet.key_tests import KeyTests
from zonebloom.predicates.ast import Equals, IsIn
from zonebloom.predicates.row_group_statistics import statistics_safe_filter
from zonebloom.scan.plan import FragmentPlan, Request, ScanStats
from zonebloom.scan.recheck import (
    has_views,
    matching_rows,
    project,
    recheck,
    rows_matching_predicate,
    select_rows,
)
from zonebloom.sources.column_batches import type_mismatch
from zonebloom.sources.fragment_rows import FragmentRows, open_rows, read_view_batches
from zonebloom.sources.parquet_rows import ParquetRows
from zonebloom.sources.source import Fragment, Source, require_all_rows, stated_row_count
from zonebloom.storage.files import (
    ReadCounter,
    counting_filesystem,
    file_errors,
    is_local,
    is_python_filesystem,
)
from zonebloom.values.types import is_lossless_cast

# Offsets of rows in their fragment, int64, ascending, and the rows.
MatchedRows: TypeAlias = tuple[np.ndarray, pa.Table]

# Fewer local rows are read before threads have started. Requests to an object store take longer.
_THREADED_ROWS = 1 << 18

# Reading a footer takes a request. Files of one dataset usually have the same encryption, so only
# the first footers are checked.
_CHECKED_FOOTERS = 1

_EVERY_ROW = RowRanges([(0, MAX_ROWS_PER_FRAGMENT)])


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
        self._counter = counter or ReadCounter()
        self._filesystem = source.filesystem
        if counter is not None or is_python_filesystem(source.filesystem):
            self._filesystem = counting_filesystem(source.filesystem, self._counter)
        self._lock = threading.Lock()
        self._tests = None if request.predicate is None else KeyTests(request.predicate)
        self._first, self._rest = request.columns_read(source.schema.names)
        # Keep the schema's order, which is the order of the result if there is no projection.
        needed = {*self._first, *self._rest}
        self._needed = [name for name in source.schema.names if name in needed]

    def batches(self, fragments: Iterable[FragmentPlan]) -> Iterator[pa.RecordBatch]:
        """Yield the matching rows in order, as batches that may be empty.

        Files that changed since the plan was made are read again as a whole.
        """
        for is_whole, run in itertools.groupby(fragments, lambda part: part.rows is None):
            yield from (self._read_whole if is_whole else self._read_parts)(list(run))

    def matches(self, part: FragmentPlan) -> Iterator[MatchedRows]:
        """Yield the matching rows of one fragment with their offsets.

        Raises
        ------
        FragmentChanged
            Before the last rows are yielded, if the file changed since the plan was made.
        """
        if part.rows is not None:
            yield from self._matches(part, part.rows)
        else:
            self._count(fragments_read=1)
            yield from self._by_pyarrow(part, _EVERY_ROW - part.fragment.deleted_rows)

    def _options(self) -> dict[str, Any]:
        # PyArrow crashes if a scan of IPC files on threads is abandoned before its end.
        return {"batch_size": self._request.batch_size, "use_threads": not self._source.is_ipc}

    # Whole fragments

    def _read_whole(self, plans: list[FragmentPlan]) -> Iterator[pa.RecordBatch]:
        """Fragments nothing is known of, all at once: pyarrow reads ahead over files."""
        self._count(fragments_read=len(plans))
        changed = self._changed([plan for plan in plans if plan.row_groups is not None])
        # Planned row groups do not apply to a file that changed, so read all of it.
        plans = [
            replace(plan, row_groups=None) if plan.fragment.path in changed else plan
            for plan in plans
        ]
        dataset = self._source.scan_whole(
            [(plan.fragment, plan.row_groups) for plan in plans], self._filesystem
        )
        fragments = [plan.fragment for plan in plans]
        request = self._request
        pruned = self._pruned_by()
        if pruned is not None and any(
            map(self._source.lacks_column_keys, fragments[:_CHECKED_FOOTERS])
        ):
            # Without a filter PyArrow reads unencrypted columns, and refuses only the others.
            pruned = None
        computed = isinstance(request.columns, dict)
        evaluates = pruned is not None or (request.filter is None and computed)
        given = 0
        for by_arrow in [True, False] if evaluates else [False]:
            # Batches come in order: the first rows are those that were given already.
            left = given
            pushed = pruned if by_arrow else None
            is_whole = pushed is request.filter and (by_arrow or not computed)
            try:
                with self._naming(fragments, by_arrow):
                    scanner = dataset.scanner(
                        columns=request.columns if is_whole else self._needed,
                        filter=pushed,
                        **self._options(),
                    )
                    num_rows = 0
                    for batch in scanner.to_batches():
                        num_rows += batch.num_rows
                        for matching in [batch] if is_whole else self._recheck(batch):
                            skipped = min(left, matching.num_rows)
                            left -= skipped
                            given += matching.num_rows - skipped
                            yield matching.slice(skipped)
                    if pushed is None:
                        _require_all_rows(dataset, fragments, num_rows)
                    self.require_unchanged([plan for plan in plans if plan.row_groups is not None])
                return
            except pa.ArrowException:
                # Arrow filters a file by the file's own types. Those may be views, as deltalake
                # writes them, for which it has no comparison; the dataset's types it can filter.
                # Or an expression fails on a value, or a file is damaged: one after the other
                # they say which.
                if not by_arrow:
                    raise

    def _recheck(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """Return the matching rows of a batch, with the columns of the result."""
        table = pa.Table.from_batches([batch])
        return recheck(table, self._request.filter, self._request.columns).to_batches()

    def _pruned_by(self) -> pc.Expression | None:
        """Return the filter to push into PyArrow's scan: all of it, a safe part of it, or None."""
        filter, schema = self._request.filter, self._source.schema
        # Arrow cannot filter columns of view types, and cannot apply filters of other engines.
        if not isinstance(filter, pc.Expression) or has_views(schema):
            return None
        # With a filter, row counts cannot be compared with the footers to detect short reads.
        if not _refuses_short_reads(self._source):
            return None
        return statistics_safe_filter(filter, schema) if self._source.has_statistics else filter

    # Parts of fragments

    def _read_parts(self, parts: list[FragmentPlan]) -> Iterator[pa.RecordBatch]:
        """Yield the matching rows of fragments that are read in part, several in parallel."""
        rows = sum(len(part.rows) for part in parts if part.rows is not None)
        here = is_local(self._source.filesystem)
        if len(parts) == 1 or (rows < _THREADED_ROWS and here):
            for part in parts:
                yield from self._read_part(part)
            return
        workers = num_cores() if here else REMOTE_THREADS
        with ThreadPoolExecutor(workers) as pool:
            work = map_in_order(pool, lambda part: list(self._read_part(part)), parts, workers + 1)
            for batches in work:
                yield from batches

    def _read_part(self, part: FragmentPlan) -> Iterator[pa.RecordBatch]:
        assert part.rows is not None
        has_output = False
        try:
            for _, table in self._matches(part, part.rows):
                has_output |= table.num_rows > 0
                yield from table.to_batches(max_chunksize=self._request.batch_size)
        except FragmentChanged:
            # Give up if rows of the old file were already returned. Rows requested by address have
            # unknown addresses in the new file, and so do the deleted rows of a table.
            if has_output or self._request.filter is None or part.fragment.view is not None:
                raise
            yield from self._read_again(part)

    def _read_again(self, part: FragmentPlan) -> Iterator[pa.RecordBatch]:
        """Read all of a changed fragment, of which no rows have been returned yet."""
        (identity,) = self._source.identities([part.fragment])
        again = FragmentPlan(part.fragment, None, part.reason, identity)
        self._count(fragments_read=1)
        for _, table in self._by_pyarrow(again, _EVERY_ROW, "it changed while it was read"):
            yield from table.to_batches(max_chunksize=self._request.batch_size)

    def _matches(self, part: FragmentPlan, wanted: RowRanges) -> Iterator[MatchedRows]:
        """Yield the matches among the wanted rows of a fragment, read by pages where possible."""
        assert part.identity is not None
        why = "pyarrow reads it with its options"
        try:
            rows = open_rows(self._source, part.fragment, part.identity, part.pages, self._counter)
        except FragmentChanged:
            raise _is_another(part) from None
        except FragmentUnreadable as error:
            rows, why = None, str(error)
        self._count(fragments_read=1)
        if rows is None:
            yield from self._by_pyarrow(part, wanted, why)
            return
        try:
            for group, match in self._row_groups(rows, wanted):
                is_unreadable = isinstance(match, FragmentUnreadable)
                if group.is_last or is_unreadable:
                    # Rows of a file that was written meanwhile are of no one version of it.
                    rows.require_unchanged()
                if is_unreadable:
                    if isinstance(match, FragmentChanged) or not isinstance(rows, ParquetRows):
                        raise match
                    yield from self._by_pyarrow(part, group.rows.shift(group.first), str(match))
                elif match is not None:
                    yield match[0] + group.first, match[1]
        finally:
            if isinstance(rows, ParquetRows):
                with self._lock:
                    self.stats.whole_chunks.update(rows.whole_chunks)
                    self.stats.by_pyarrow.update(rows.pyarrow_columns)
            rows.close()

    def _row_groups(
        self, rows: FragmentRows, wanted: RowRanges
    ) -> Iterator[tuple[_Group, MatchedRows | FragmentUnreadable | None]]:
        """Yield each row group with its matches, or with the error if it cannot be read.

        Many rows are read on all cores. Once the last row group is yielded, all have been read.
        """

        def matches(group: _Group) -> tuple[_Group, MatchedRows | FragmentUnreadable | None]:
            try:
                return group, self._row_group(rows, group.number, group.rows)
            except FragmentUnreadable as error:
                return group, error

        groups = _groups(rows, wanted)
        by_threads = isinstance(rows, ParquetRows) and is_local(self._source.filesystem)
        if by_threads and len(wanted) >= _THREADED_ROWS:
            with ThreadPoolExecutor(num_cores()) as pool:
                yield from map_in_order(pool, matches, groups, num_cores() + 1)
        else:
            yield from map(matches, groups)

    def _row_group(self, rows: FragmentRows, number: int, inside: RowRanges) -> MatchedRows | None:
        """Return the matching rows of a row group with offsets in it, or None if there are none."""
        self._count(row_groups_read=1, rows_read=len(inside))
        if isinstance(rows, ParquetRows):
            rows.read_ahead(number, self._needed, inside)
        if self._tests is not None and isinstance(rows, ParquetRows):
            inside, is_exact = rows.narrow_rows(number, self._tests, inside)
            if not inside:
                return None
            if is_exact and self._request.is_predicate_exact:
                table = rows.read(number, self._needed, inside)
                return inside.rows(), project(table, self._request.columns)
        first = rows.read(number, self._first, inside)
        hits = self._hits(first)
        if hits.size == 0:
            return None
        offsets = inside.rows_at(hits)
        table = select_rows(first, hits)
        if self._rest:
            rest = rows.read(number, self._rest, RowRanges.from_rows(offsets))
            schema = pa.schema([*table.schema, *rest.schema])
            table = pa.Table.from_arrays([*table.columns, *rest.columns], schema=schema)
            table = table.select(self._needed)
        return offsets, project(table, self._request.columns)

    def _hits(self, table: pa.Table) -> np.ndarray:
        filter, predicate = self._request.filter, self._request.predicate
        if filter is None:
            return np.arange(table.num_rows)
        rows = None
        if self._request.is_predicate_exact and isinstance(predicate, Equals | IsIn):
            rows = rows_matching_predicate(table, predicate)
        return matching_rows(table, filter) if rows is None else rows

    def _by_pyarrow(
        self, part: FragmentPlan, wanted: RowRanges, why: str = ""
    ) -> Iterator[MatchedRows]:
        """Yield the matches among wanted rows. PyArrow decodes whole row groups or files."""
        import pyarrow.dataset as pads

        self.require_unchanged([part])
        opened = self._source.open(part.fragment, self._filesystem)
        positions, has_view = wanted, part.fragment.view is not None
        with self._naming([part.fragment]):
            if isinstance(opened, pads.ParquetFileFragment) and not has_view:
                opened, wanted, positions, groups = _row_groups_with(opened, wanted, part)
                self._count(row_groups_read=groups)
                with self._lock:
                    reasons = self.stats.whole_row_groups
                    reasons[why] = reasons.get(why, 0) + groups
            if has_view:
                batches = read_view_batches(
                    self._source, part.fragment, self._filesystem, self._needed
                )
            else:
                batches = opened.to_batches(
                    schema=self._source.schema, columns=self._needed, **self._options()
                )
            start = before = 0
            last: MatchedRows | None = None
            for batch in batches:
                window = positions.window(start, start + batch.num_rows)
                start += batch.num_rows
                if window:
                    table = pa.Table.from_batches([batch.slice(a, b - a) for a, b in window])
                    self._count(rows_read=table.num_rows)
                    hits = self._hits(table)
                    rows = project(select_rows(table, hits), self._request.columns)
                    if last is not None:
                        yield last
                    last = wanted.rows_at(hits + before), rows
                    before += table.num_rows
            if not has_view:
                require_all_rows(part.fragment.path, start, stated_row_count(opened))
            # Rows of a file that was written meanwhile are of no one version of it.
            self.require_unchanged([part])
            if last is not None:
                yield last

    # Changed and unreadable files

    def require_unchanged(self, parts: Sequence[FragmentPlan]) -> None:
        """Raise `FragmentChanged` if a file changed since the plan was made."""
        changed = self._changed(parts)
        for part in parts:
            if part.fragment.path in changed:
                raise _is_another(part)

    def _changed(self, plans: Sequence[FragmentPlan]) -> set[str]:
        """Return the paths of fragments whose file changed since the plan was made."""
        now = self._source.identities([plan.fragment for plan in plans])
        return {
            plan.fragment.path
            for plan, identity in zip(plans, now, strict=True)
            if plan.identity is None or not plan.identity.is_still(identity)
        }

    @contextmanager
    def _naming(self, fragments: Sequence[Fragment], evaluates: bool = False) -> Iterator[None]:
        """Name the file in what pyarrow raises while it is read."""
        try:
            yield
        except ZoneBloomError:
            raise
        except (pa.ArrowException, OSError) as error:
            is_of_arrow = isinstance(error, pa.ArrowException)
            if is_of_arrow and evaluates:
                raise
            raise self._blame(fragments, error, may_mismatch=is_of_arrow) from None

    def _blame(
        self, fragments: Sequence[Fragment], error: Exception, *, may_mismatch: bool
    ) -> SourceError:
        """Return an error that names the file among several that PyArrow could not read."""
        schema, needed = self._source.schema, set(self._needed)
        parquet_in = self._source.filesystem if self._source.has_statistics else None
        mismatches: list[tuple[Fragment, str, pa.DataType]] = []
        for fragment in fragments:
            try:
                with file_errors(fragment.path, parquet_in=parquet_in):
                    opened = self._source.open(fragment, self._source.filesystem)
                    stored = opened.physical_schema
            except SourceError as unreadable:
                return unreadable
            for name in sorted(needed.intersection(stored.names)):
                kind = stored.field(name).type
                if not is_lossless_cast(kind, schema.field(name).type, checked=True):
                    mismatches.append((fragment, name, kind))
        if not (may_mismatch and mismatches):
            return FragmentUnreadable(
                f"cannot read {_name_of(fragments)}: {error}; repair or remove the file"
            )
        # Values of a type that does not widen may still fit, so read them to find the misfits.
        why: Exception = error
        culprit = mismatches[0]
        for mismatch in mismatches if len(mismatches) > 1 else ():
            try:
                self._read_column(mismatch[0], mismatch[1])
            except (pa.ArrowException, OSError) as misfit:
                culprit, why = mismatch, misfit
                break
        fragment, name, kind = culprit
        return type_mismatch(fragment.path, name, kind, schema.field(name).type, why)

    def _read_column(self, fragment: Fragment, name: str) -> None:
        """Read a column as the dataset's type. Raise PyArrow's error if a value does not fit."""
        opened = self._source.open(fragment, self._source.filesystem)
        for _ in opened.to_batches(schema=self._source.schema, columns=[name]):
            pass

    def _count(self, fragments_read: int = 0, row_groups_read: int = 0, rows_read: int = 0) -> None:
        with self._lock:
            self.stats.fragments_read += fragments_read
            self.stats.row_groups_read += row_groups_read
            self.stats.rows_read += rows_read


class _Group(NamedTuple):
    """A row group: its number, its first row, and the wanted rows relative to its first row."""

    number: int
    first: int
    rows: RowRanges
    is_last: bool


def _groups(rows: FragmentRows, wanted: RowRanges) -> Iterator[_Group]:
    groups = rows.row_groups(wanted)
    group = next(groups, None)
    while group is not None:
        following = next(groups, None)
        yield _Group(*group, is_last=following is None)
        group = following


def _require_all_rows(dataset: Any, fragments: Sequence[Fragment], num_rows: int) -> None:
    """Raise `FragmentUnreadable` if a scan without a filter gave fewer rows than the footers."""
    import pyarrow.dataset as pads

    num_stated = 0
    for fragment in dataset.get_fragments():
        # PyArrow detects short reads of IPC and ORC files, and counting their rows would read them.
        if not isinstance(fragment, pads.ParquetFileFragment):
            return
        num_stated += stated_row_count(fragment) or 0
    require_all_rows(_name_of(fragments), num_rows, num_stated)


def _refuses_short_reads(source: Source) -> bool:
    """Return whether PyArrow's scan fails if a read returns fewer bytes than requested."""
    if (
        is_local(source.filesystem)
        or is_python_filesystem(source.filesystem)
        or not source.has_statistics
    ):
        return True
    options: Any = source.format.default_fragment_scan_options
    return options.pre_buffer


def _name_of(fragments: Sequence[Fragment]) -> str:
    return fragments[0].path if len(fragments) == 1 else f"{len(fragments)} fragments"


def _is_another(part: FragmentPlan) -> FragmentChanged:
    return FragmentChanged(
        f"{part.fragment.path} changed or was deleted after the search; search again"
    )


def _row_groups_with(
    opened: Any, wanted: RowRanges, part: FragmentPlan
) -> tuple[Any, RowRanges, RowRanges, int]:
    """The row groups with a wanted row: opened, the rows wanted (offsets in the file, and counted
    over those row groups alone), and how many."""
    groups: list[int] = []
    offsets: list[tuple[int, int]] = []
    positions: list[tuple[int, int]] = []
    first, read = 0, 0
    for group in opened.row_groups:
        inside = wanted.window(first, first + group.num_rows)
        if inside and (part.row_groups is None or group.id in part.row_groups):
            groups.append(group.id)
            offsets.extend(inside.shift(first))
            positions.extend(inside.shift(read))
            read += group.num_rows
        first += group.num_rows
    subset = opened.subset(row_group_ids=groups)
    return subset, RowRanges(offsets), RowRanges(positions), len(groups)
