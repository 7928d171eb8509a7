"""The rows of some pieces that may equal a key, with where they lie: what a tagging task does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from zonebloom.errors import FragmentChanged, FragmentUnreadable, SchemaMismatch
from zonebloom.ranges import RowRanges
from zonebloom.scan.plan import FragmentPlan
from zonebloom.spark.names import require_same_case
from zonebloom.spark.rebase import Calendars, require_modern
from zonebloom.spark.tagging.key_filter import check_rows, hash_rows
from zonebloom.storage.files import ReadCounter, identities
from zonebloom.storage.rows import open_rows
from zonebloom.storage.source import Source

_BATCH_ROWS = 1 << 17
# Batches of fewer rows cost the JVM more than their rows do.
_SENT_ROWS = 1 << 16


@dataclass(frozen=True)
class Candidates:
    """Reads key columns and keeps the rows a filter of the keys may hold."""

    source: Source
    columns: tuple[str, ...]
    schema: pa.Schema
    words: np.ndarray
    files: dict[str, tuple[int, int]]
    any_case: tuple[str, ...] = ()
    calendars: Calendars | None = None

    def batches(self, plans: Sequence[FragmentPlan]) -> Iterator[pa.RecordBatch]:
        """The rows of some plans that may equal a key."""
        waiting: list[pa.RecordBatch] = []
        rows = 0
        for plan in plans:
            self._require_unchanged(plan)
            for batch in self._of_fragment(plan):
                waiting.append(batch)
                rows += batch.num_rows
                if rows >= _SENT_ROWS:
                    yield _joined(waiting)
                    waiting, rows = [], 0
            # What was read of a file that changed meanwhile is of no one version of it.
            self._require_unchanged(plan)
        if waiting:
            yield _joined(waiting)

    def table(self, plans: Sequence[FragmentPlan]) -> pa.Table:
        """The same as a table."""
        return pa.Table.from_batches(list(self.batches(plans)), self.schema)

    def _of_fragment(self, plan: FragmentPlan) -> Iterator[pa.RecordBatch]:
        read = self._whole(plan) if plan.rows is None else self._some(plan, plan.rows)
        fragment_id, file = self.files[plan.fragment.path]
        types = self.schema.types[: len(self.columns)]
        no_value: set[str] = set()
        corrected: frozenset[str] = frozenset()
        if self.calendars is not None:
            opened = self.source.open(plan.fragment, self.source.filesystem)
            corrected = self.calendars.corrected(opened, self.columns)
        try:
            for count, (offsets, batch) in enumerate(read):
                require_modern(batch, corrected, plan.fragment.path)
                columns = [_one_array(batch.column(name)) for name in self.columns]
                if no_value or not count:
                    nulls = {
                        name
                        for name, values in zip(self.columns, columns, strict=True)
                        if name in self.any_case and values.null_count == len(values)
                    }
                    no_value = no_value & nulls if count else nulls
                hits = check_rows(self.words, hash_rows(columns, types))
                if not hits.size:
                    continue
                taken = [_take(each, hits, to) for each, to in zip(columns, types, strict=True)]
                where = [np.full(hits.size, fragment_id), offsets[hits], np.full(hits.size, file)]
                arrays = [*taken, *(pa.array(each, pa.int64()) for each in where)]
                yield pa.RecordBatch.from_arrays(arrays, schema=self.schema)
            if no_value:
                require_same_case(self.source, plan.fragment, sorted(no_value))
        except (FragmentUnreadable, SchemaMismatch):
            raise
        except (pa.ArrowException, OSError) as error:
            raise FragmentUnreadable(
                f"cannot read {', '.join(self.columns)} of {plan.fragment.path}: {error}; repair "
                "or remove the file"
            ) from error

    def _whole(self, plan: FragmentPlan) -> Iterator[tuple[np.ndarray, Any]]:
        """All rows of a fragment, or of some row groups, in batches with their offsets."""
        opened: Any = self.source.open(plan.fragment, self.source.filesystem)
        parts = [(opened, 0)]
        if plan.row_groups is not None:
            counts = [group.num_rows for group in opened.row_groups]
            firsts = np.concatenate([[0], np.cumsum(counts)]).tolist()
            parts = [(opened.subset(row_group_ids=[i]), firsts[i]) for i in plan.row_groups]
        for part, first in parts:
            at = first
            for batch in part.to_batches(
                schema=self.source.schema,
                columns=list(self.columns),
                batch_size=_BATCH_ROWS,
                use_threads=False,
            ):
                yield np.arange(at, at + batch.num_rows), batch
                at += batch.num_rows

    def _some(self, plan: FragmentPlan, rows: RowRanges) -> Iterator[tuple[np.ndarray, Any]]:
        """Some rows of a fragment, page by page where that can be done."""
        assert plan.identity is not None
        counter = ReadCounter()
        try:
            opened = open_rows(self.source, plan.fragment, plan.identity, plan.pages, counter)
        except FragmentChanged:
            raise
        except FragmentUnreadable:
            opened = None
        if opened is None:
            # Of a format that is read as a whole: rows not asked for equal no key.
            yield from self._whole(plan)
            return
        try:
            for number, first, inside in opened.row_groups(rows):
                table = opened.read(number, self.columns, inside)
                yield first + inside.rows_at(np.arange(len(inside))), table
        finally:
            opened.close()

    def _require_unchanged(self, plan: FragmentPlan) -> None:
        found = identities(self.source.filesystem, [plan.fragment.path])[0]
        if plan.identity is None or not plan.identity.is_still(found):
            raise FragmentChanged(
                f"{plan.fragment.path} {'is gone' if found is None else 'changed'} since keys were "
                "to be located in it; call again"
            )


def _one_array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _take(column: pa.Array, rows: np.ndarray, wanted: pa.DataType) -> pa.Array:
    while isinstance(column, pa.ExtensionArray):
        column = column.storage
    if pa.types.is_string_view(column.type) or pa.types.is_binary_view(column.type):
        # Arrow has no kernel that gathers views.
        column = column.cast(wanted)
    found = column.take(pa.array(rows))
    return found if found.type == wanted else found.cast(wanted)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
