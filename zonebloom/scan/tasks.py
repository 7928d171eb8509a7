"""Split a scan plan into tasks for the workers of an engine such as Spark.

A scan task is a fragment or a part of one. A worker reads a partition: one or more scan tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any

import numpy as np
import pyarrow as pa

from zonebloom.scan.plan import FragmentPlan
from zonebloom.sources.source import Source

# The default of Spark's own file reader, spark.sql.files.maxPartitionBytes.
_MAX_TASK_BYTES = 128 << 20
# A task of Spark with fewer bytes takes longer to start than to run.
_MIN_TASK_BYTES = 8 << 20
# Opening a file costs about as much as reading this number of bytes.
_OPEN_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class ScanTask:
    """A part of a fragment that one worker reads, with its approximate number of bytes."""

    # The plan has the identity of the file unless the file is read as a whole.
    plan: FragmentPlan
    num_bytes: int
    # True if other tasks read the rest of the file. The file must then not change meanwhile.
    is_shared: bool = False


def split_into_partitions(
    source: Source,
    plans: Sequence[FragmentPlan],
    needed_columns: frozenset[str],
    parallelism: int,
) -> list[list[ScanTask]]:
    """Return partitions of about equal bytes, each with its scan tasks. There may be none.

    ``parallelism`` is the number of partitions that are read at one time.
    """
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
    # Deal out the scan tasks in descending order of size, so that the totals of two partitions
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
