"""What a Spark task reads: pieces of fragments, as Arrow batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zonebloom.predicates import EngineFilter
from zonebloom.scan.execute import Execution
from zonebloom.scan.plan import FragmentPlan, Request
from zonebloom.scan.recheck import matching_rows
from zonebloom.sources.source import Source
from zonebloom.spark.column_case import require_exact_names
from zonebloom.spark.rebase import RebaseCheck

# A batch costs the JVM a round trip; one of more bytes than this costs it memory.
BATCH_ROWS = 1 << 16
_BATCH_BYTES = 64 << 20
# As Spark's own files: spark.sql.files.maxPartitionBytes.
_MOST_BYTES = 128 << 20
# Tasks of less than this take longer to start than to run.
_LEAST_BYTES = 8 << 20
# What opening a file costs beside its bytes.
_OPEN_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class ScanTask:
    """A part of a fragment that one task reads, and about how many bytes it is."""

    # With the identity of the file, where it is not read as a whole.
    plan: FragmentPlan
    num_bytes: int
    # Whether its file must stay as it was planned: another task may read the rest of it.
    is_shared: bool = False


@dataclass(frozen=True)
class ExactRowFilter:
    """A filter by an expression that is evaluated on rows and on nothing else; None keeps all.

    PyArrow given the expression itself would pass over row groups by their statistics, which
    leave NaN out: a NaN that Spark counts above every number would be lost.
    """

    expression: pc.Expression | None
    columns: frozenset[str] | None

    def matching_rows(self, table: pa.Table) -> np.ndarray:
        """Numbers of the rows it is true for, ascending."""
        if self.expression is None:
            return np.arange(table.num_rows)
        return matching_rows(table, self.expression)

    def __str__(self) -> str:
        return str(self.expression)


@dataclass(frozen=True)
class TaskReader:
    """What all tasks of a read need; it is sent with each."""

    # Without its fragments.
    source: Source
    columns: tuple[str, ...]
    filter: EngineFilter | None
    rebase: RebaseCheck
    ignores_case: bool

    @property
    def needed_columns(self) -> frozenset[str]:
        """Columns that are shown or filtered by."""
        return frozenset({*self.columns, *(self.filter.columns or () if self.filter else ())})

    def batches(self, pieces: Sequence[ScanTask]) -> Iterator[pa.RecordBatch]:
        """The rows of some pieces, in batches of `BATCH_ROWS` and more where there are as many."""
        execution = self.execution()
        shared = [piece.plan for piece in pieces if piece.is_shared]
        execution.require_unchanged(shared)
        plans = [piece.plan for piece in pieces]
        for plan in plans:
            self.require_same_as_spark(plan)
        yield from combine_batches(execution.batches(plans))
        # Changed while it was read: what was given is no one version of the file.
        execution.require_unchanged(shared)

    def execution(self) -> Execution:
        """What reads fragments, once `require_as_shown` has looked at them."""
        return Execution(self.source, Request(list(self.columns), self.filter))

    def require_same_as_spark(self, plan: FragmentPlan) -> None:
        """Refuse a file whose columns Spark finds by other names, or corrects as it reads."""
        opened = self.source.open(plan.fragment, self.source.filesystem)
        names = self.needed_columns.difference(self.source.constants(plan.fragment))
        if self.ignores_case and (
            plan.pages is None or not names.issubset(plan.pages.schema.names)
        ):
            require_exact_names(opened, names)
        self.rebase.require_modern(opened, names)


def combine_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches that are not small."""
    waiting: list[pa.RecordBatch] = []
    rows = num_bytes = 0
    for batch in batches:
        if batch.num_rows:
            waiting.append(batch)
        rows += batch.num_rows
        num_bytes += batch.nbytes
        if rows >= BATCH_ROWS or num_bytes >= _BATCH_BYTES:
            yield from _as_one(waiting)
            waiting, rows, num_bytes = [], 0, 0
    yield from _as_one(waiting)


def _as_one(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    if len(batches) < 2:
        return batches
    return pa.Table.from_batches(batches).combine_chunks().to_batches()


# A plan cut into tasks of about equal bytes


def split_into_partitions(
    work: TaskReader, plans: Sequence[FragmentPlan], parallelism: int
) -> list[list[ScanTask]]:
    """The pieces of each task, none when nothing is read."""
    source, needed = work.source, work.needed_columns
    now = source.identities([plan.fragment for plan in plans])
    # One that is gone costs nothing; its task says that it is gone.
    whole = [
        _piece(plan, 0 if identity is None else identity.size, needed)
        for plan, identity in zip(plans, now, strict=True)
    ]
    total = sum(piece.num_bytes + _OPEN_BYTES for piece in whole)
    most = min(max(total // max(parallelism, 1), _LEAST_BYTES), _MOST_BYTES)
    pieces: list[ScanTask] = []
    for piece, identity in zip(whole, now, strict=True):
        parts: list[ScanTask] = []
        if piece.num_bytes > most * 3 // 2 and identity is not None and source.is_parquet:
            plan = replace(piece.plan, identity=piece.plan.identity or identity)
            parts = _parts(plan, piece.num_bytes, source, most)
        pieces += parts if len(parts) > 1 else [piece]
    # The largest first, to one task after the other: none has more than another by over a piece.
    pieces.sort(key=lambda piece: -piece.num_bytes)
    count = min(-(-total // most), len(pieces))
    return [pieces[number::count] for number in range(count)]


def _piece(plan: FragmentPlan, size: int, needed: frozenset[str]) -> ScanTask:
    """A fragment as it is planned, and what there is to read of it."""
    if plan.rows is None:
        return ScanTask(plan, size)
    if plan.pages is None or not plan.pages.num_rows:
        # Without a map of its pages a fragment is only read in part where that is little.
        return ScanTask(plan, size // 10)
    share = size * len(plan.rows) // plan.pages.num_rows
    return ScanTask(replace(plan, pages=plan.pages.subset(plan.rows, needed)), share)


def _parts(plan: FragmentPlan, num_bytes: int, source: Source, most: int) -> list[ScanTask]:
    """Some rows or row groups each, where it is known where they lie."""
    rows, pages = plan.rows, plan.pages
    if rows is not None and pages is None:
        return []
    if rows is not None and pages is not None:
        count = -(-num_bytes // most)
        cuts = rows.rows_at(np.arange(count) * len(rows) // count).tolist()
        windows = [
            rows.window(start, stop).shift(start)
            for start, stop in zip(cuts, [*cuts[1:], pages.num_rows], strict=True)
        ]
        return [
            ScanTask(
                replace(plan, rows=part, pages=pages.subset(part, None)), num_bytes // count, True
            )
            for part in windows
            if part
        ]
    try:
        opened: Any = source.open(plan.fragment, source.filesystem)
        sizes = {group.id: group.total_byte_size for group in opened.row_groups}
    except (OSError, pa.ArrowException):
        # The task that reads it says what is wrong.
        return []
    groups = [group for group in sizes if plan.row_groups is None or group in plan.row_groups]
    total = sum(sizes[group] for group in groups) or 1
    shares = {group: sizes[group] * num_bytes // total for group in groups}
    # Neighbours together up to a size.
    runs: list[list[int]] = [[]]
    for group in groups:
        if runs[-1] and sum(shares[each] for each in runs[-1]) + shares[group] > most:
            runs.append([])
        runs[-1].append(group)
    return [
        ScanTask(replace(plan, row_groups=tuple(run)), sum(shares[group] for group in run), True)
        for run in runs
    ]
