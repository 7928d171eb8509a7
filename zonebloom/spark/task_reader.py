"""Read scan tasks as large Arrow batches, in Spark's tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from zonebloom.predicates import EngineFilter
from zonebloom.scan.column_case import require_exact_names
from zonebloom.scan.execute import Execution
from zonebloom.scan.plan import FragmentPlan, Request
from zonebloom.scan.tasks import ScanTask
from zonebloom.sources.source import Source
from zonebloom.spark.rebase import RebaseCheck

# Each batch costs a round trip to the JVM, so small batches are combined up to these limits. Larger
# batches would cost the JVM too much memory.
BATCH_ROWS = 1 << 16
_MAX_BATCH_BYTES = 64 << 20


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
