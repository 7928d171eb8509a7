"""Running a plan: the kept rows of fragments read in part, pyarrow's scan of the others.

Of a fragment read in part, the columns the filter names are read first, and the rest only for
the rows that pass: a zone read in vain costs no more than its filter columns.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs

from zonebloom.errors import (
    FragmentChanged,
    FragmentUnreadable,
    SchemaMismatch,
    ZoneBloomError,
)
from zonebloom.predicates import columns_of
from zonebloom.predicates.pruning import prunable
from zonebloom.ranges import RowRanges
from zonebloom.scan.plan import FragmentPlan, Request, ScanPlan, ScanStats
from zonebloom.scan.recheck import holds_views, matching_rows, project, recheck, rows_of
from zonebloom.storage.columns import same_values
from zonebloom.storage.files import ReadCounter, counted, identities
from zonebloom.storage.parquet.rows import ParquetRows
from zonebloom.storage.rows import FragmentRows, open_rows
from zonebloom.storage.source import Fragment, Source
from zonebloom.threads import cores, in_order


class Execution:
    """One run of a plan."""

    def __init__(
        self,
        source: Source,
        request: Request,
        counter: ReadCounter,
        stats: ScanStats,
        counting: bool = True,
    ):
        self._counting = counting
        self._source = source
        self._request = request
        self._counter = counter
        self._stats = stats
        self._lock = threading.Lock()
        self._first, self._rest = self._columns()

    def batches(self, plan: ScanPlan) -> Iterator[pa.RecordBatch]:
        """The rows that match, in order, as batches that may be empty."""
        whole: list[FragmentPlan] = []
        parts: list[FragmentPlan] = []
        for each in plan.fragments:
            if each.rows is None:
                yield from self._read_parts(parts)
                parts = []
                whole.append(each)
            else:
                yield from self._read_whole(whole)
                whole = []
                parts.append(each)
        yield from self._read_parts(parts)
        yield from self._read_whole(whole)

    def _filesystem(self) -> pafs.FileSystem:
        """The source's file system, as pyarrow is to read through it."""
        if not self._counting:
            return self._source.filesystem
        return counted(self._source.filesystem, self._counter)

    @property
    def _may_use_threads(self) -> bool:
        """Whether pyarrow may: of IPC files it crashes when such a scan is not read to its end."""
        return not self._source.is_ipc

    def _columns(self) -> tuple[list[str], list[str]]:
        """Columns the filter names, and the others that are needed; all first when unsure."""
        names = self._source.schema.names
        columns = self._request.columns
        needed = set(names)
        if isinstance(columns, list):
            needed = set(columns)
        elif columns is not None:
            found = [columns_of(expression) for expression in columns.values()]
            if None not in found:
                needed = {name for each in found for name in each or ()}
        if self._request.filter is None:
            # One column at least: it says how many rows there are.
            return [name for name in names if name in needed] or names[:1], []
        filtered = columns_of(self._request.filter)
        if filtered is None:
            filtered = set(names)
        first = [name for name in names if name in filtered] or names[:1]
        rest = needed.difference(first)
        return first, [name for name in names if name in rest]

    def _needed(self) -> list[str]:
        """Columns to read, in the schema's order: without a projection it is the result's."""
        needed = {*self._first, *self._rest}
        return [name for name in self._source.schema.names if name in needed]

    def _read_whole(self, plans: list[FragmentPlan]) -> Iterator[pa.RecordBatch]:
        """Fragments nothing is known of, all at once: pyarrow reads ahead over files."""
        if not plans:
            return
        self._count(fragments_read=len(plans))
        changed = self._changed([plan for plan in plans if plan.row_groups is not None])
        dataset = self._source.scan_whole(
            [
                # Of a file that is another by now, the plan's row groups say nothing.
                (plan.fragment, None if plan.fragment.path in changed else plan.row_groups)
                for plan in plans
            ],
            self._filesystem(),
        )
        fragments = [plan.fragment for plan in plans]
        request = self._request
        pruned = self._pruned_by()
        computed = isinstance(request.columns, dict)
        evaluates = pruned is not None or (request.filter is None and computed)
        given = 0
        for by_arrow in [True, False] if evaluates else [False]:
            # Batches come in order: the first rows are those that were given already.
            left = given
            asked = pruned if by_arrow else None
            is_whole = asked is request.filter and (by_arrow or not computed)
            try:
                scanner = dataset.scanner(
                    columns=request.columns if is_whole else self._needed(),
                    filter=asked,
                    batch_size=request.batch_size,
                    use_threads=self._may_use_threads,
                )
                for batch in self._naming(fragments, scanner.to_batches(), by_arrow):
                    for kept in [batch] if is_whole else self._recheck(batch):
                        skipped = min(left, kept.num_rows)
                        left -= skipped
                        given += kept.num_rows - skipped
                        yield kept.slice(skipped)
                return
            except pa.ArrowException:
                # Arrow filters a file by the file's own types. Those may be views, as deltalake
                # writes them, for which it has no comparison; the dataset's types it can filter.
                # Or an expression fails on a value, or a file is damaged: one after the other
                # they say which.
                if not by_arrow:
                    raise

    def _recheck(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """The rows of a batch that match, of the columns asked for."""
        table = recheck(_as_table(batch), self._request.filter, self._request.columns)
        return table.to_batches()

    def _pruned_by(self) -> pc.Expression | None:
        """What pyarrow's scan is given of the filter: all of it, or no more than is safe."""
        filter, schema = self._request.filter, self._source.schema
        # Arrow cannot filter columns of view types, nor apply another engine's filter.
        if not isinstance(filter, pc.Expression) or holds_views(schema):
            return None
        return prunable(filter, schema) if self._source.has_statistics else filter

    def _read_parts(self, parts: list[FragmentPlan]) -> Iterator[pa.RecordBatch]:
        """Fragments of which some rows are read, several side by side."""
        if len(parts) > 1:
            workers = cores()
            with ThreadPoolExecutor(workers) as pool:
                work = in_order(pool, lambda part: list(self._read_part(part)), parts, workers + 1)
                for tables in work:
                    for table in tables:
                        yield from table.to_batches(max_chunksize=self._request.batch_size)
            return
        for part in parts:
            for table in self._read_part(part):
                yield from table.to_batches(max_chunksize=self._request.batch_size)

    def _read_part(self, part: FragmentPlan) -> Iterator[pa.Table]:
        assert part.rows is not None and part.identity is not None
        try:
            rows = open_rows(self._source, part.fragment, part.identity, part.pages, self._counter)
        except FragmentChanged:
            yield from self._read_anew(part)
            return
        except FragmentUnreadable as error:
            yield from self._by_pyarrow(part, None, part.rows, str(error))
            return
        if rows is None:
            yield from self._by_pyarrow(part, None, part.rows, "pyarrow reads it with its options")
            return
        self._count(fragments_read=1)
        try:
            for number, _, inside in rows.row_groups(part.rows):
                try:
                    found = self._row_group(rows, number, inside)
                except FragmentUnreadable as error:
                    if not isinstance(rows, ParquetRows):
                        raise
                    yield from self._by_pyarrow(part, number, inside, str(error))
                    continue
                if found is not None:
                    yield found
        finally:
            if isinstance(rows, ParquetRows):
                with self._lock:
                    self._stats.whole_chunks.update(rows.whole)
            rows.close()

    def _read_anew(self, part: FragmentPlan) -> Iterator[pa.Table]:
        """A fragment whose file is another by now: what the plan says of its rows is no more."""
        if self._request.filter is None:
            # Rows asked for by address: there is no telling where they are now.
            raise FragmentChanged(
                f"{part.fragment.path} changed while rows of it were taken; search again"
            )
        yield from map(_as_table, self._read_whole([replace(part, rows=None)]))

    def _changed(self, plans: Sequence[FragmentPlan]) -> set[str]:
        """Paths of the fragments whose file is not the one the plan was made for."""
        if not plans:
            return set()
        now = identities(self._source.filesystem, [plan.fragment.path for plan in plans])
        return {
            plan.fragment.path
            for plan, identity in zip(plans, now, strict=True)
            if plan.identity is None or not plan.identity.is_still(identity)
        }

    def _row_group(self, rows: FragmentRows, number: int, inside: RowRanges) -> pa.Table | None:
        """The matching rows of one row group, None when there is none."""
        request = self._request
        self._count(row_groups_read=1, rows_read=len(inside))
        first = rows.read(number, self._first, inside)
        if request.filter is None:
            hits = np.arange(first.num_rows)
        else:
            hits = matching_rows(first, request.filter)
        if hits.size == 0:
            return None
        kept = rows_of(first, hits)
        if self._rest:
            at = inside.rows_at(hits)
            rest = rows.read(number, self._rest, RowRanges.from_arrays(at, at + 1))
            columns = {**_by_name(kept), **_by_name(rest)}
            schema = self._source.schema
            names = [name for name in schema.names if name in columns]
            kept = pa.Table.from_arrays(
                [columns[name] for name in names],
                schema=pa.schema([schema.field(name) for name in names]),
            )
        return project(kept, request.columns)

    def _by_pyarrow(
        self, part: FragmentPlan, row_group: int | None, rows: RowRanges, why: str
    ) -> Iterator[pa.Table]:
        """Rows of a fragment, or of one row group, that pyarrow decodes whole."""
        import pyarrow.dataset as pads

        if self._changed([part]):
            if row_group is not None:
                # Rows of the file it was are out already.
                raise FragmentChanged(
                    f"{part.fragment.path} changed while it was read; read it again"
                )
            yield from self._read_anew(part)
            return
        if row_group is None:
            self._count(fragments_read=1)
        opened = self._source.open(part.fragment, self._filesystem())
        if isinstance(opened, pads.ParquetFileFragment):
            with _Naming(self._source, [part.fragment], self._needed()):
                if row_group is None:
                    opened, rows, groups = _kept_row_groups(opened, rows)
                else:
                    opened, groups = opened.subset(row_group_ids=[row_group]), 1
            self._count(row_groups_read=groups)
            with self._lock:
                reasons = self._stats.whole_row_groups
                reasons[why] = reasons.get(why, 0) + groups
        batches = opened.to_batches(
            schema=self._source.schema,
            columns=self._needed(),
            batch_size=self._request.batch_size,
            use_threads=self._may_use_threads,
        )
        at = 0
        for batch in self._naming([part.fragment], batches):
            kept = [batch.slice(a, b - a) for a, b in rows.window(at, at + batch.num_rows)]
            at += batch.num_rows
            if kept:
                table = pa.Table.from_batches(kept)
                self._count(rows_read=table.num_rows)
                yield recheck(table, self._request.filter, self._request.columns)

    def _naming(
        self,
        fragments: Sequence[Fragment],
        batches: Iterator[pa.RecordBatch],
        evaluates: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        with _Naming(self._source, fragments, self._needed(), evaluates):
            yield from batches

    def _count(self, fragments_read: int = 0, row_groups_read: int = 0, rows_read: int = 0) -> None:
        with self._lock:
            self._stats.fragments_read += fragments_read
            self._stats.row_groups_read += row_groups_read
            self._stats.rows_read += rows_read


def _as_table(batch: pa.RecordBatch) -> pa.Table:
    return pa.Table.from_batches([batch])


def _by_name(table: pa.Table) -> dict[str, pa.ChunkedArray]:
    return dict(zip(table.column_names, table.columns, strict=True))


def _kept_row_groups(opened: Any, rows: RowRanges) -> tuple[Any, RowRanges, int]:
    """The row groups with a kept row, the kept rows counted over those alone, how many."""
    kept: list[int] = []
    ranges: list[tuple[int, int]] = []
    first, read = 0, 0
    for group in opened.row_groups:
        inside = rows.window(first, first + group.num_rows)
        if inside:
            kept.append(group.id)
            ranges.extend(inside.shift(read))
            read += group.num_rows
        first += group.num_rows
    return opened.subset(row_group_ids=kept), RowRanges(ranges), len(kept)


class _Naming:
    """Names the file in what pyarrow raises while it is read."""

    def __init__(
        self,
        source: Source,
        fragments: Sequence[Fragment],
        columns: Sequence[str],
        evaluates: bool = False,
    ):
        self._source = source
        self._fragments = fragments
        self._columns = columns
        self._evaluates = evaluates

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        is_arrows = isinstance(error, pa.ArrowException)
        if isinstance(error, ZoneBloomError) or not (is_arrows or isinstance(error, OSError)):
            return
        if is_arrows and self._evaluates:
            return
        count = len(self._fragments)
        name = self._fragments[0].path if count == 1 else f"{count} fragments"
        raise (self._mismatch(error) if is_arrows else None) or FragmentUnreadable(
            f"cannot read {name}: {error}; repair or remove the file"
        ) from None

    def _mismatch(self, error: object) -> SchemaMismatch | None:
        """What to say when a file holds a column as a type of other values than the dataset's."""
        schema = self._source.schema
        for fragment in self._fragments:
            try:
                stored = self._source.open(fragment, self._source.filesystem).physical_schema
            except (pa.ArrowException, OSError):
                continue
            for name in set(self._columns).intersection(stored.names):
                held, wanted = stored.field(name).type, schema.field(name).type
                if not same_values(held, wanted):
                    return SchemaMismatch(
                        f"{fragment.path} holds column {name!r} as {held}, the dataset's schema "
                        f"says {wanted}: {error}; rewrite the file, or read other columns"
                    )
        return None
