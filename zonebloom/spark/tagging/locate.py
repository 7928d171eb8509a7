"""From keys to the rows that may equal them: which files are read, how, and by whom.

    keys    few: collected            -> zones of the index -> rows, here or in tasks
            as dense as zones: a filter of them, key ranges -> whole key columns, in tasks

Where about as many keys as zones are asked for, every zone holds some, and reading its pages one
by one costs more than reading the column.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from pyspark.sql import types as st

from zonebloom.catalog.coverage import PresentFragment
from zonebloom.dataset import Dataset
from zonebloom.errors import FragmentChanged, IndexNotUsedWarning, InvalidArgument, SchemaMismatch
from zonebloom.predicates.ast import And, Constant, IsIn, Predicate
from zonebloom.scan.plan import FragmentPlan
from zonebloom.spark.jobs import task_frame
from zonebloom.spark.names import hidden_by_case
from zonebloom.spark.read import RowFilter, Work, cut, joined, without_fragments
from zonebloom.spark.rebase import Rebase, any_rebased, without_rebased
from zonebloom.spark.session import parallelism
from zonebloom.spark.tagging.key_filter import KeyRows, filter_words, summarize, summarize_frame
from zonebloom.spark.tagging.key_ranges import key_ranges
from zonebloom.spark.tagging.keys import (
    FILE,
    FRAGMENT_ID,
    ROW_OFFSET,
    KeyColumns,
    collected,
    holds_rebased,
)
from zonebloom.spark.types import as_spark
from zonebloom.storage.files import is_local
from zonebloom.storage.memory import TableSource
from zonebloom.threads import cores, in_order

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Files = dict[str, tuple[PresentFragment, int]]
_WHERE = (FRAGMENT_ID, ROW_OFFSET, FILE)
# With more keys than this, about every zone holds one.
_MOST_COLLECTED = 1 << 14
# What is read within the time a Spark job takes to start is read here, ns.
_HERE_COST = 300_000_000
# What reading a row takes one core, about, ns: of numbers and of text.
_ROW_COST = (30, 200)


@dataclass(frozen=True)
class Located:
    """The rows that may equal a key, as a frame that is evaluated already.

    Attributes
    ----------
    frame : DataFrame
        The key columns as `KeyColumns.fields`, then `FRAGMENT_ID`, `ROW_OFFSET` and `FILE`.
    num_rows : int
    paths : tuple of str
        By `FILE`.
    """

    frame: DataFrame
    num_rows: int
    paths: tuple[str, ...]


@dataclass(frozen=True)
class Part:
    """What is read of a fragment, and how its rows are named."""

    plan: FragmentPlan
    fragment_id: int
    file: int


@dataclass(frozen=True)
class Candidates:
    """Reads rows that may equal a key, with where they lie: what a tagging task does."""

    work: Work
    schema: pa.Schema

    def batches(self, parts: Sequence[Part]) -> Iterator[pa.RecordBatch]:
        """The rows of some parts of fragments."""
        yield from joined(batch for part in parts for batch in self._of_part(part))

    def _of_part(self, part: Part) -> Iterator[pa.RecordBatch]:
        columns = pa.schema(list(self.schema)[: -len(_WHERE)])
        # Refuses a file of whose rows some may be shown as a key and stored as none.
        self.work.rebased_columns(part.plan)
        for offsets, table in self.work.execution().located(part.plan):
            for found in table.combine_chunks().to_batches():
                for batch in as_spark(found.rename_columns(columns.names), columns):
                    here, offsets = offsets[: batch.num_rows], offsets[batch.num_rows :]
                    where = [
                        np.full(here.size, part.fragment_id),
                        here,
                        np.full(here.size, part.file),
                    ]
                    arrays = [*batch.columns, *(pa.array(x, pa.int64()) for x in where)]
                    yield pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def locate(keys: DataFrame, columns: KeyColumns, ds: Dataset) -> Located:
    """Find the rows of a dataset that may equal keys; those that equal none are few."""
    source = ds.opened.source
    if isinstance(source, TableSource):
        raise InvalidArgument(
            "a table in memory has no files that Spark could read; write it to Parquet first"
        )
    present = ds.opened.planner.to_read().present
    indexed = _indexed(ds, columns)
    few = collected(keys, columns, _MOST_COLLECTED)
    types = tuple(columns.schema.types)
    num_words = filter_words(keys.count() if few is None else few.num_rows)
    ranges = key_ranges(ds, columns)
    if few is None:
        probes = keys.select(*columns.probes)
        words, may_hold = summarize_frame(probes, num_words, types, ranges)
        rebased = columns.names if holds_rebased(keys, columns) else ()
    else:
        batches = few.combine_chunks().to_batches()
        words, may_hold = summarize(batches, num_words, types, ranges)
        pairs = zip(columns.names, few.columns, strict=True)
        rebased = [name for name, values in pairs if any_rebased(values.combine_chunks())]
    files = {
        each.fragment.path: (each, number)
        for number, each in enumerate(present)
        if may_hold[number]
    }
    plans = _zones(ds, columns, indexed, few) if few is not None and files else None
    parts = list(_parts(files, plans))
    work = Work(
        without_fragments(source),
        columns.names,
        KeyRows(columns.names, types, words),
        columns.rebase if rebased else Rebase(),
        frozenset(rebased),
        columns.ignores_case,
    )
    fields = [*columns.fields, *(st.StructField(name, st.LongType()) for name in _WHERE)]
    schema = pa.schema([*columns.schema, *(pa.field(name, pa.int64()) for name in _WHERE)])
    candidates = Candidates(work, schema)
    is_text = not all(pt.is_primitive(kind) or pt.is_decimal(kind) for kind in types)
    cost = sum(_num_rows(part.plan, files) for part in parts) * _ROW_COST[is_text]
    if few is not None and is_local(source.filesystem) and cost <= _HERE_COST:
        table = pa.Table.from_batches(_here(candidates, parts), schema)
        frame = keys.sparkSession.createDataFrame(table, st.StructType(fields))
        num_rows = table.num_rows
    else:
        tasks = _tasks(candidates, parts, parallelism(keys.sparkSession) or cores())
        frame = task_frame(keys.sparkSession, tasks, candidates.batches, st.StructType(fields))
        frame = frame.localCheckpoint(eager=False)
        num_rows = frame.count()
    return Located(frame, num_rows, tuple(each.fragment.path for each in present))


def _indexed(ds: Dataset, columns: KeyColumns) -> list[str]:
    """Key columns with an index to be asked; warns when there is none."""
    by_path = ds.opened.source.partition_columns()
    of_index = {entry.column for entry in ds.opened.version.indices.values()}
    indexed = [
        name
        for name in columns.names
        if (name,) in of_index and name not in by_path and name not in columns.instants
    ]
    for name in indexed if columns.ignores_case else ():
        why = hidden_by_case(ds, name)
        if why is not None:
            raise SchemaMismatch(why)
    return indexed


def _zones(
    ds: Dataset, columns: KeyColumns, indexed: Sequence[str], keys: pa.Table
) -> Sequence[FragmentPlan]:
    """What is read for keys that are here."""
    if not indexed:
        why = f"there is no index on {', '.join(columns.names)}"
        what = "make one with create_scalar_index"
        if columns.instants:
            why = f"{', '.join(columns.instants)} is INT96, which no index is asked for"
            what = "write the files anew with TIMESTAMP_MICROS"
        warnings.warn(
            f"{why}, so the key columns are read whole; {what}", IndexNotUsedWarning, stacklevel=5
        )
    valid = np.logical_and.reduce([np.asarray(values.is_valid()) for values in keys.columns])
    keys = keys.filter(pa.array(valid))
    # Of columns that the paths give key ranges have told.
    terms: list[Predicate] = [
        IsIn((name,), keys[at].combine_chunks().unique())
        for at, name in enumerate(columns.names)
        if name in indexed
    ]
    predicate = without_rebased(And(tuple(terms))) if terms else Constant(True)
    nothing = RowFilter(None, frozenset(columns.names))
    plan = ds.opened.planner.plan(columns.names, nothing, predicate, described=False)
    return plan.fragments


def _parts(files: Files, plans: Sequence[FragmentPlan] | None) -> Iterator[Part]:
    """What is read of some files, all of it without plans, tied to what they are now."""
    if plans is None:
        plans = [FragmentPlan(each.fragment, None) for each, _ in files.values()]
    for plan in plans:
        each, number = files.get(plan.fragment.path, (None, 0))
        if each is None:
            continue
        if plan.identity not in (None, each.identity):
            raise FragmentChanged(
                f"{plan.fragment.path} changed while keys were to be located in it; call again"
            )
        yield Part(replace(plan, identity=each.identity), each.fragment_id, number)


def _num_rows(plan: FragmentPlan, files: Files) -> float:
    if plan.rows is not None:
        return len(plan.rows)
    num_rows = files[plan.fragment.path][0].num_rows
    return math.inf if num_rows is None else num_rows


def _here(candidates: Candidates, parts: Sequence[Part]) -> list[pa.RecordBatch]:
    def read(part: Part) -> list[pa.RecordBatch]:
        return list(candidates.batches([part]))

    with ThreadPoolExecutor(cores()) as pool:
        return [batch for some in in_order(pool, read, parts, cores() + 1) for batch in some]


def _tasks(candidates: Candidates, parts: Sequence[Part], num_tasks: int) -> list[list[Part]]:
    """The parts cut into tasks of about equal bytes."""
    work = candidates.work
    by_path = {part.plan.fragment.path: part for part in parts}
    plans = [part.plan for part in parts]
    return [
        [replace(by_path[piece.plan.fragment.path], plan=piece.plan) for piece in pieces]
        for pieces in cut(work.source, plans, frozenset(work.columns), num_tasks)
    ]
