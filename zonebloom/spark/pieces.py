"""Split a scan plan into scan tasks for Spark, and read them as Arrow batches.

A scan task is a part of a fragment. A Spark task reads one or more of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any

import numpy as np
import pyarrow as pa

from zonebloom.predicates import EngineFilter
from zonebloom.scan.column_case import require_exact_names
from zonebloom.scan.execute import Execution
from zonebloom.scan.plan import FragmentPlan, Request
from zonebloom.sources.source import Source
from zonebloom.spark.rebase import RebaseCheck

# Each batch costs a round trip to the JVM, so small batches are combined up to these limits. Larger
# batches would cost the JVM too much memory.
BATCH_ROWS = 1 << 16
_MAX_BATCH_BYTES = 64 << 20
# The default of Spark's own file reader, spark.sql.files.maxPartitionBytes.
_MAX_TASK_BYTES = 128 << 20
# A Spark task with fewer bytes takes longer to start than to run.
_MIN_TASK_BYTES = 8 << 20
# Opening a file costs about as much as reading this number of bytes.
_OPEN_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class ScanTask:
    """A part of a fragment that one Spark task reads, with its approximate number of bytes."""

    # The plan has the identity of the file unless the file is read as a whole.
    plan: FragmentPlan
    num_bytes: int
    # True if other tasks read the rest of the file. The file must then not change meanwhile.
    is_shared: bool = False


@dataclass(frozen=True)
class TaskReader:
    """A reader of scan tasks, which is sent with every Spark task of a scan."""

    # The source has no fragments: each scan task brings its own.
    source: Source
    columns: tuple[str, ...]
    filter: EngineFilter | None
    rebase: RebaseCheck
    ignores_case: bool

    @property
    def needed_columns(self) -> frozenset[str]:
        """Return the columns that are returned or used by the filter."""
        filter_columns = frozenset[str]() if self.filter is None else self.filter.columns
        return frozenset(
            self.source.schema.names if filter_columns is None else [*self.columns, *filter_columns]
        )

    def batches(self, scan_tasks: Sequence[ScanTask]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of scan tasks in large batches, as `combine_batches` makes them."""
        execution = self.execution()
        shared_plans = [task.plan for task in scan_tasks if task.is_shared]
        execution.require_unchanged(shared_plans)
        plans = [task.plan for task in scan_tasks]
        for plan in plans:
            self.require_same_as_spark(plan)
        yield from combine_batches(execution.batches(plans))
        # If the file changed during the read, the batches mix several versions of it.
        execution.require_unchanged(shared_plans)

    def execution(self) -> Execution:
        """Return the reader of fragments. Call `require_same_as_spark` for each of them first."""
        return Execution(self.source, Request(list(self.columns), self.filter))

    def require_same_as_spark(self, plan: FragmentPlan) -> None:
        """Raise `SchemaMismatch` if Spark would find other columns or other values in a file."""
        opened = self.source.open(plan.fragment, self.source.filesystem)
        names = self.needed_columns.difference(self.source.constants(plan.fragment))
        if self.ignores_case and (
            plan.pages is None or not names.issubset(plan.pages.schema.names)
        ):
            require_exact_names(opened, names)
        self.rebase.require_modern(opened, names)


def combine_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the same rows, with small batches combined into larger ones."""
    pending: list[pa.RecordBatch] = []
    num_rows = num_bytes = 0
    for batch in batches:
        if batch.num_rows:
            pending.append(batch)
        num_rows += batch.num_rows
        num_bytes += batch.nbytes
        if num_rows >= BATCH_ROWS or num_bytes >= _MAX_BATCH_BYTES:
            yield from _concatenate(pending)
            pending, num_rows, num_bytes = [], 0, 0
    yield from _concatenate(pending)


def _concatenate(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    if len(batches) < 2:
        return batches
    return pa.Table.from_batches(batches).combine_chunks().to_batches()


# Split a plan into Spark tasks of about equal bytes.


def split_into_partitions(
    reader: TaskReader, plans: Sequence[FragmentPlan], parallelism: int
) -> list[list[ScanTask]]:
    """Return the scan tasks of each Spark task, an empty list if nothing is read."""
    source, needed_columns = reader.source, reader.needed_columns
    identities = source.identities([plan.fragment for plan in plans])
    # A deleted file counts as 0 bytes; the task that reads it raises the error.
    unsplit_tasks = [
        _scan_task(plan, 0 if identity is None else identity.size, needed_columns)
        for plan, identity in zip(plans, identities, strict=True)
    ]
    total = sum(task.num_bytes + _OPEN_BYTES for task in unsplit_tasks)
    max_bytes = min(max(total // max(parallelism, 1), _MIN_TASK_BYTES), _MAX_TASK_BYTES)
    scan_tasks: list[ScanTask] = []
    for task, identity in zip(unsplit_tasks, identities, strict=True):
        parts: list[ScanTask] = []
        if task.num_bytes > max_bytes * 3 // 2 and identity is not None and source.is_parquet:
            plan = replace(task.plan, identity=task.plan.identity or identity)
            parts = _split_fragment(plan, task.num_bytes, source, max_bytes)
        scan_tasks += parts if len(parts) > 1 else [task]
    # Deal out the scan tasks in descending order of size, so that the totals of two Spark tasks
    # differ by at most one scan task.
    scan_tasks.sort(key=lambda task: -task.num_bytes)
    count = min(-(-total // max_bytes), len(scan_tasks))
    return [scan_tasks[number::count] for number in range(count)]


def _scan_task(plan: FragmentPlan, size: int, needed_columns: frozenset[str]) -> ScanTask:
    """Return the scan task of a whole fragment plan, with only the pages that it reads."""
    if plan.rows is None:
        return ScanTask(plan, size)
    if plan.pages is None or not plan.pages.num_rows:
        # Without a page map, only a small part of a fragment is ever read by row ranges.
        return ScanTask(plan, size // 10)
    share = size * len(plan.rows) // plan.pages.num_rows
    return ScanTask(replace(plan, pages=plan.pages.subset(plan.rows, needed_columns)), share)


def _split_fragment(
    plan: FragmentPlan, num_bytes: int, source: Source, max_bytes: int
) -> list[ScanTask]:
    """Split a fragment plan into scan tasks by rows or row groups, or return none if impossible."""
    rows, pages = plan.rows, plan.pages
    if rows is not None and pages is None:
        return []
    if rows is not None and pages is not None:
        count = -(-num_bytes // max_bytes)
        cuts = rows.rows_at(np.arange(count) * len(rows) // count).tolist()
        windows = [
            rows.window(start, stop).shift(start)
            for start, stop in zip(cuts, [*cuts[1:], pages.num_rows], strict=True)
        ]
        return [
            ScanTask(
                replace(plan, rows=part, pages=pages.subset(part, None)),
                num_bytes // count,
                is_shared=True,
            )
            for part in windows
            if part
        ]
    try:
        opened: Any = source.open(plan.fragment, source.filesystem)
        sizes = {group.id: group.total_byte_size for group in opened.row_groups}
    except (OSError, pa.ArrowException):
        # The task that reads the file raises the error.
        return []
    groups = [group for group in sizes if plan.row_groups is None or group in plan.row_groups]
    weights = np.array([sizes[group] for group in groups], np.float64)
    shares = weights * num_bytes / max(weights.sum(), 1)
    # A row group belongs to the part in which it begins.
    parts = (np.cumsum(shares) - shares) // max_bytes
    return [
        ScanTask(
            replace(plan, row_groups=tuple(compress(groups, parts == part))),
            int(shares[parts == part].sum()),
            is_shared=True,
        )
        for part in np.unique(parts)
    ]
