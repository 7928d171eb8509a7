"""What a Spark task reads: pieces of fragments, as Arrow batches of Spark's types.

A piece is a fragment, some rows of it, or some of its row groups. A fragment that lies in one
task is read anew as a whole when its file is another by now. Of one shared among tasks that
would give its rows once a task, so there the read fails, and says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zonebloom.errors import FragmentChanged, SchemaMismatch
from zonebloom.scan.execute import Execution
from zonebloom.scan.plan import FragmentPlan, Request
from zonebloom.scan.recheck import matching_rows
from zonebloom.spark.names import require_names
from zonebloom.spark.rebase import Calendars, old_times, require_modern
from zonebloom.storage.files import identities
from zonebloom.storage.source import Source

# A batch costs the JVM a round trip; one of more bytes than this costs it memory.
BATCH_ROWS = 1 << 16
_BATCH_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a fragment that one task reads.

    Attributes
    ----------
    plan : FragmentPlan
        With the identity of the file, where it is not read as a whole.
    num_bytes : int
        About as many, for the balance of tasks.
    is_shared : bool
        Whether another task reads the rest of it.
    """

    plan: FragmentPlan
    num_bytes: int
    is_shared: bool = False


@dataclass(frozen=True)
class RowFilter:
    """Rows an expression is true for, evaluated on them and on nothing else.

    PyArrow given the expression itself would pass over row groups by their statistics, which
    leave NaN out: a NaN that Spark counts above every number would be lost.

    Attributes
    ----------
    expression : pyarrow.compute.Expression or None
        None keeps all rows.
    columns : frozenset of str
        That it reads.
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
class Work:
    """What all tasks of a read need; it is sent with each.

    Attributes
    ----------
    source : Source
        Without its fragments.
    columns : tuple of str
    filter : RowFilter or None
    calendars : Calendars
    old_times : frozenset of str
        Columns of the filter that it compares with days and times of old.
    """

    source: Source
    columns: tuple[str, ...]
    filter: RowFilter | None
    calendars: Calendars
    old_times: frozenset[str]

    def batches(self, pieces: Sequence[Piece]) -> Iterator[pa.RecordBatch]:
        """The rows of some pieces, in batches of `BATCH_ROWS` and more where there are as many."""
        shared = [piece.plan for piece in pieces if piece.is_shared]
        self._require_unchanged(shared)
        names = {*self.columns, *(self.filter.columns or () if self.filter else ())}
        names -= self.source.partition_columns()
        usual: list[FragmentPlan] = []
        corrected: list[tuple[FragmentPlan, frozenset[str]]] = []
        for piece in pieces:
            pages, fragment = piece.plan.pages, piece.plan.fragment
            opened = self.source.open(fragment, self.source.filesystem)
            if pages is None or not names.issubset(pages.schema.names):
                require_names(fragment.path, opened, names)
            columns = self._corrected(fragment.path, opened)
            corrected.append((piece.plan, columns)) if columns else usual.append(piece.plan)
        yield from self._read(usual)
        for plan, columns in corrected:
            for batch in self._read([plan]):
                require_modern(batch, columns, plan.fragment.path)
                yield batch
        # Changed while it was read: what was given is no one version of the file.
        self._require_unchanged(shared)

    def _read(self, plans: Sequence[FragmentPlan]) -> Iterator[pa.RecordBatch]:
        execution = Execution(self.source, Request(list(self.columns), self.filter))
        yield from _joined(execution.batches(plans))

    def _corrected(self, path: str, opened: Any) -> frozenset[str]:
        """Columns that are given in which Spark would correct days and times of old."""
        found = self.calendars.corrected(opened, {*self.columns, *self.old_times})
        for name in sorted(found & self.old_times):
            # Rows would be left out by what is stored.
            raise SchemaMismatch(old_times(path, name))
        return found

    def _require_unchanged(self, plans: Sequence[FragmentPlan]) -> None:
        found = identities(self.source.filesystem, [plan.fragment.path for plan in plans])
        for plan, identity in zip(plans, found, strict=True):
            if plan.identity is None or not plan.identity.is_still(identity):
                raise FragmentChanged(
                    f"{plan.fragment.path} changed since the read was planned, and several tasks "
                    "share it; load the data again"
                )


def without_fragments(source: Source) -> Source:
    """A source that opens fragments it is given, small enough to be sent about."""
    return replace(source, fragments=())


def _joined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    waiting: list[pa.RecordBatch] = []
    rows = num_bytes = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        waiting.append(batch)
        rows += batch.num_rows
        num_bytes += batch.nbytes
        if rows >= BATCH_ROWS or num_bytes >= _BATCH_BYTES:
            yield from _as_one(waiting)
            waiting, rows, num_bytes = [], 0, 0
    if waiting:
        yield from _as_one(waiting)


def _as_one(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    if len(batches) == 1:
        yield batches[0]
    else:
        yield from pa.Table.from_batches(batches).combine_chunks().to_batches()
