"""A plan cut into tasks of about equal bytes."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from zonebloom.ranges import RowRanges
from zonebloom.scan.plan import FragmentPlan
from zonebloom.spark.read import Piece
from zonebloom.storage.files import FileIdentity, identities
from zonebloom.storage.source import Source

# As Spark's own files: spark.sql.files.maxPartitionBytes.
_MOST_BYTES = 128 << 20
# Tasks of less than this take longer to start than to run.
_LEAST_BYTES = 8 << 20
# What opening a file costs beside its bytes.
_OPEN_BYTES = 1 << 20


def cut(
    source: Source, plans: Sequence[FragmentPlan], needed: frozenset[str], parallelism: int
) -> list[list[Piece]]:
    """Cut the fragments of a plan into the pieces of each task.

    Empty when nothing is read.
    """
    found = identities(source.filesystem, [plan.fragment.path for plan in plans])
    whole = [_piece(plan, identity, needed) for plan, identity in zip(plans, found, strict=True)]
    total = sum(piece.num_bytes + _OPEN_BYTES for piece in whole)
    most = min(max(total // max(parallelism, 1), _LEAST_BYTES), _MOST_BYTES)
    pieces = [
        part
        for piece, identity in zip(whole, found, strict=True)
        for part in _parts(source, piece, identity, most)
    ]
    return _balanced(pieces, -(-total // most))


def _piece(plan: FragmentPlan, identity: FileIdentity | None, needed: frozenset[str]) -> Piece:
    """A fragment as it is planned, and what there is to read of it."""
    # One that is gone costs nothing; its task says that it is gone.
    num_bytes = identity.size if identity is not None else 0
    pages = plan.pages
    if plan.rows is not None:
        if pages is not None and pages.num_rows:
            num_bytes = num_bytes * len(plan.rows) // pages.num_rows
            plan = replace(plan, pages=pages.part(plan.rows, needed))
        else:
            # Without a map of its pages a fragment is only read in part where that is little.
            num_bytes //= 10
    return Piece(plan, num_bytes)


def _parts(
    source: Source, piece: Piece, identity: FileIdentity | None, most: int
) -> Sequence[Piece]:
    """A piece, or several of its row groups each, when it is more than a task should read."""
    plan = piece.plan
    if piece.num_bytes <= most * 3 // 2 or identity is None or not source.is_parquet:
        return [piece]
    if plan.rows is not None:
        return _parts_of_rows(piece, most) if plan.pages is not None else [piece]
    try:
        groups: Any = source.open(plan.fragment, source.filesystem)
        sizes = [(group.id, group.total_byte_size) for group in groups.row_groups]
    except (OSError, pa.ArrowException):
        # The task that reads it says what is wrong.
        return [piece]
    if plan.row_groups is not None:
        sizes = [each for each in sizes if each[0] in plan.row_groups]
    total = sum(size for _, size in sizes) or 1
    made = []
    for run in _runs([size * piece.num_bytes // total for _, size in sizes], most):
        ids = tuple(sizes[at][0] for at in run)
        share = sum(sizes[at][1] for at in run) * piece.num_bytes // total
        made.append(Piece(replace(plan, identity=identity, row_groups=ids), share, True))
    return made if len(made) > 1 else [piece]


def _parts_of_rows(piece: Piece, most: int) -> Sequence[Piece]:
    plan = piece.plan
    assert plan.rows is not None and plan.pages is not None
    inside = [
        plan.rows.window(group.first_row, group.first_row + group.num_rows).shift(group.first_row)
        for group in plan.pages.row_groups
    ]
    inside = [rows for rows in inside if rows]
    shares = [piece.num_bytes * len(rows) // len(plan.rows) for rows in inside]
    made = []
    for run in _runs(shares, most):
        rows = RowRanges([pair for at in run for pair in inside[at]])
        part = replace(plan, rows=rows, pages=plan.pages.part(rows, None))
        made.append(Piece(part, sum(shares[at] for at in run), True))
    return made if len(made) > 1 else [piece]


def _runs(sizes: Sequence[int], most: int) -> list[list[int]]:
    """Neighbours together up to a size."""
    runs: list[list[int]] = []
    filled = most
    for at, size in enumerate(sizes):
        if filled + size > most and (filled or not runs):
            runs.append([])
            filled = 0
        runs[-1].append(at)
        filled += size
    return runs


def _balanced(pieces: Sequence[Piece], num_tasks: int) -> list[list[Piece]]:
    """Each piece, the largest first, to the task that has least."""
    tasks: list[list[Piece]] = [[] for _ in range(min(num_tasks, len(pieces)))]
    load = [(0, number) for number in range(len(tasks))]
    for piece in sorted(pieces, key=lambda each: -each.num_bytes):
        filled, number = heapq.heappop(load)
        tasks[number].append(piece)
        heapq.heappush(load, (filled + piece.num_bytes + _OPEN_BYTES, number))
    return tasks
