"""Running a plan: the kept rows of fragments read in part, pyarrow's scan of the others.

Of a fragment read in part, the columns the filter names are read first, and the rest only for
the rows that pass: a zone read in vain costs no more than its filter columns.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs

from zonebloom.errors import FragmentChanged, FragmentUnreadable
from zonebloom.plan import FragmentPlan, Request, ScanPlan, ScanStats
from zonebloom.predicates.arrow import referenced_columns
from zonebloom.ranges import RowRanges
from zonebloom.recheck import holds_views, matching_rows, project, recheck, rows_of
from zonebloom.storage.files import ReadCounter, counted
from zonebloom.storage.fragments import Source
from zonebloom.storage.rows import FragmentRows, open_rows
from zonebloom.threads import cores, in_order


class Execution:
    """One run of a plan.

    Parameters
    ----------
    source : Source
    request : Request
    counter : ReadCounter
        Every byte of data read is counted here.
    stats : ScanStats
        Filled in while it runs.
    """

    def __init__(self, source: Source, request: Request, counter: ReadCounter, stats: ScanStats):
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

    def _counted(self) -> pafs.FileSystem:
        """The source's file system, as pyarrow is to read through it."""
        return counted(self._source.filesystem, self._counter)

    def _columns(self) -> tuple[list[str], list[str]]:
        """Columns the filter names, and the others that are needed; all first when unsure."""
        names = self._source.schema.names
        columns = self._request.columns
        needed = set(names)
        if isinstance(columns, list):
            needed = set(columns)
        elif columns is not None:
            found = [referenced_columns(expression) for expression in columns.values()]
            if None not in found:
                needed = {name for each in found for name in each or ()}
        if self._request.filter is None:
            return [name for name in names if name in needed], []
        filtered = referenced_columns(self._request.filter)
        if filtered is None:
            filtered = set(names)
        first = [name for name in names if name in filtered]
        return first, [name for name in names if name in needed and name not in filtered]

    def _needed(self) -> list[str]:
        """Columns to read, in the schema's order: without a projection it is the result's."""
        needed = {*self._first, *self._rest}
        return [name for name in self._source.schema.names if name in needed]

    def _read_whole(self, plans: list[FragmentPlan]) -> Iterator[pa.RecordBatch]:
        """Fragments nothing is known of, all at once: pyarrow reads ahead over files."""
        if not plans:
            return
        self._stats.fragments_read += len(plans)
        dataset = self._source.scan_whole(
            [(plan.fragment, plan.row_groups) for plan in plans], self._counted()
        )
        name = plans[0].fragment.path if len(plans) == 1 else f"{len(plans)} fragments"
        request = self._request
        if request.filter is None or not holds_views(self._source.schema):
            scanner = dataset.scanner(
                columns=request.columns, filter=request.filter, batch_size=request.batch_size
            )
            yield from _naming(name, scanner.to_batches())
            return
        # Arrow cannot filter columns of view types.
        scanner = dataset.scanner(columns=self._needed(), batch_size=request.batch_size)
        for batch in _naming(name, scanner.to_batches()):
            kept = recheck(_as_table(batch), request.filter, request.columns)
            yield from kept.to_batches()

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
        with self._lock:
            self._stats.fragments_read += 1
        try:
            rows = open_rows(self._source, part.fragment, part.identity, part.pages, self._counter)
        except FragmentChanged:
            # What the plan says of its rows no longer holds.
            yield from map(_as_table, self._read_whole([replace(part, rows=None)]))
            return
        except FragmentUnreadable as error:
            yield from self._by_pyarrow(part, None, part.rows, str(error))
            return
        if rows is None:
            yield from self._by_pyarrow(part, None, part.rows, "")
            return
        try:
            for number, _, inside in rows.row_groups(part.rows):
                try:
                    found = self._row_group(rows, number, inside)
                except FragmentUnreadable as error:
                    yield from self._by_pyarrow(part, number, inside, str(error))
                    continue
                if found is not None:
                    yield found
        finally:
            rows.close()

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

        opened = self._source.open(part.fragment, self._counted())
        if isinstance(opened, pads.ParquetFileFragment):
            with _Naming(part.fragment.path):
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
        )
        at = 0
        for batch in _naming(part.fragment.path, batches):
            kept = [batch.slice(a, b - a) for a, b in rows.window(at, at + batch.num_rows)]
            at += batch.num_rows
            if kept:
                table = pa.Table.from_batches(kept)
                self._count(rows_read=table.num_rows)
                yield recheck(table, self._request.filter, self._request.columns)

    def _count(self, row_groups_read: int = 0, rows_read: int = 0) -> None:
        with self._lock:
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

    def __init__(self, name: str):
        self._name = name

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError | pa.ArrowInvalid) and not isinstance(
            error, FragmentUnreadable
        ):
            raise FragmentUnreadable(
                f"cannot read {self._name}: {error}; repair or remove the file"
            ) from error


def _naming(name: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    with _Naming(name):
        yield from batches
