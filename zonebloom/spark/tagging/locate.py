"""From keys to the rows that may equal them: few keys choose zones, and where they are as dense as
zones, whole key columns stream past a filter of them.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from zonebloom.base.threads import map_in_order, num_cores
from zonebloom.catalog.coverage import PresentFragment
from zonebloom.errors import IndexNotUsedWarning, InvalidArgument
from zonebloom.predicates import And, Constant, IsIn
from zonebloom.sbbf.filter import Sbbf
from zonebloom.scan.key_summary import (
    FragmentKeyRanges,
    KeyBloomFilter,
    fragment_key_ranges,
    summarize_keys,
)
from zonebloom.scan.locate import NumberedPlan, plans_with_identity
from zonebloom.scan.plan import FragmentPlan
from zonebloom.sources.memory import TableSource
from zonebloom.spark.column_case import require_visible
from zonebloom.spark.jobs import map_batches, task_frame
from zonebloom.spark.load import SparkFiles
from zonebloom.spark.pieces import TaskReader, combine_batches, split_into_partitions
from zonebloom.spark.rebase import may_be_rebased, without_rebased_literals
from zonebloom.spark.session import parallelism
from zonebloom.spark.tagging.keys import (
    FILE_NUMBER,
    FRAGMENT_ID,
    PATH,
    ROW_OFFSET,
    KeyFrameColumns,
    collect_keys,
)
from zonebloom.spark.types import arrow_schema, cast_for_spark
from zonebloom.storage.files import is_local

# What the driver takes in at most; spark.driver.maxResultSize is 1 GiB by default.
_COLLECTED_BYTES = 1 << 27
# With more keys than this, about every zone holds one.
_MOST_COLLECTED = 1 << 14
# What is read within the time a Spark job takes to start is read here.
_MOST_ROWS_HERE = 1 << 22


@dataclass(frozen=True)
class LocatedKeys:
    """The rows that may equal a key, as a frame that is evaluated already."""

    # The key columns as `KeyColumns.fields`, then `ROW_OFFSET` and `FILE`, a number.
    frame: DataFrame
    num_rows: int
    # `FILE`, `FRAGMENT_ID` and `PATH`.
    files: DataFrame

    def with_paths(self, rows: DataFrame) -> DataFrame:
        """Rows with a file's number, and which file that is.

        Last: with a path each, rows that are broadcast would take many times the memory.
        """
        return rows.join(sf.broadcast(self.files), FILE_NUMBER, "left")


@dataclass(frozen=True)
class CandidateReader:
    """Reads rows that may equal a key, with where they lie: what a tagging task does."""

    reader: TaskReader
    schema: pa.Schema

    def batches(self, parts: Sequence[NumberedPlan]) -> Iterator[pa.RecordBatch]:
        """The rows of some parts of fragments."""
        yield from combine_batches(batch for part in parts for batch in self._of_part(*part))

    def _of_part(self, number: int, plan: FragmentPlan) -> Iterator[pa.RecordBatch]:
        columns = pa.schema(list(self.schema)[:-2])
        self.reader.require_same_as_spark(plan)
        for offsets, table in self.reader.execution().matches(plan):
            for rows in table.combine_chunks().to_batches():
                for batch in cast_for_spark(rows.rename_columns(columns.names), columns):
                    here, offsets = offsets[: batch.num_rows], offsets[batch.num_rows :]
                    where = pa.array(here, pa.int64()), pa.repeat(number, here.size)
                    yield pa.RecordBatch.from_arrays([*batch.columns, *where], schema=self.schema)


def locate_frame_keys(keys: DataFrame, columns: KeyFrameColumns, files: SparkFiles) -> LocatedKeys:
    """Find the rows of a dataset that may equal keys; those that equal none are few."""
    ds = files.dataset
    source = ds.opened.source
    if isinstance(source, TableSource):
        raise InvalidArgument(
            "a table in memory has no files that Spark could read; write it to Parquet first"
        )
    if any(fragment.names is not None for fragment in source.fragments):
        raise InvalidArgument(
            "the table has other names for its columns than its files do, which Spark does not "
            "follow here; use ds.locate, or rewrite the table's files"
        )
    present = ds.opened.planner.coverage_for_scan().fragments
    indexed = _indexed(files, columns)
    few = collect_keys(keys, columns, _MOST_COLLECTED)
    types = tuple(columns.schema.types)
    ranges = _key_ranges(files, columns, present)
    if few is None:
        probes = keys.select(*columns.probes)
        sbbf, may_hold = _summarized(probes, keys.count(), types, ranges)
    else:
        batches = (batch.columns for batch in few.to_batches())
        sbbf, may_hold = summarize_keys(batches, few.num_rows, types, ranges)
    plans = [FragmentPlan(file.fragment, None) for file in present]
    if few is not None and may_hold.any():
        plans = _zones(files, columns, indexed, few)
    parts = list(plans_with_identity(plans, present, may_hold))
    rows = KeyBloomFilter(tuple((name,) for name in columns.names), types, sbbf)
    work = files.task_reader(columns.names, rows)
    where = (st.StructField(name, st.LongType()) for name in (ROW_OFFSET, FILE_NUMBER))
    fields = st.StructType([*columns.fields, *where])
    candidates = CandidateReader(work, arrow_schema(fields))
    numbered = pa.table(
        {
            FILE_NUMBER: range(len(present)),
            FRAGMENT_ID: pa.array([file.fragment_id for file in present], pa.int64()),
            PATH: pa.array([file.fragment.path for file in present], pa.string()),
        }
    )
    num_rows = sum(_num_rows(plan, present[number]) for number, plan in parts)
    spark = keys.sparkSession
    if few is not None and is_local(source.filesystem) and num_rows <= _MOST_ROWS_HERE:
        with ThreadPoolExecutor(num_cores()) as pool:
            read = map_in_order(
                pool, lambda part: list(candidates.batches([part])), parts, num_cores() + 1
            )
            table = pa.Table.from_batches(chain.from_iterable(read), candidates.schema)
        numbered = numbered.take(table[FILE_NUMBER].unique())
        found = spark.createDataFrame(table, fields)
        return LocatedKeys(found, table.num_rows, spark.createDataFrame(numbered))
    tasks = _tasks(work, parts, parallelism(spark) or num_cores())
    frame = task_frame(spark, tasks, candidates.batches, fields, len(tasks)).localCheckpoint(
        eager=False
    )
    return LocatedKeys(frame, frame.count(), spark.createDataFrame(numbered))


def _indexed(files: SparkFiles, columns: KeyFrameColumns) -> list[str]:
    """Key columns with an index to be asked."""
    ds = files.dataset
    by_path = ds.opened.source.partition_columns()
    of_index = {entry.column for entry in ds.opened.version.indices.values()}
    others = by_path | files.rebase.int96_columns
    indexed = [name for name in columns.names if (name,) in of_index and name not in others]
    for name in indexed if files.ignores_case else ():
        require_visible(ds, name)
    return indexed


def _zones(
    files: SparkFiles, columns: KeyFrameColumns, indexed: Sequence[str], keys: pa.Table
) -> Sequence[FragmentPlan]:
    """What is read for keys that are here; warns when no index is asked."""
    if not indexed:
        instants = [name for name in columns.names if name in files.rebase.int96_columns]
        why = f"there is no index on {', '.join(columns.names)}"
        what = "make one with create_scalar_index"
        if instants:
            why = f"{', '.join(instants)} is INT96, which no index is asked for"
            what = "write the files anew with TIMESTAMP_MICROS"
        warnings.warn(
            f"{why}, so the key columns are read whole; {what}", IndexNotUsedWarning, stacklevel=5
        )
    # Of columns that the paths give, key ranges say all.
    terms = tuple(
        IsIn((name,), values.unique().drop_null())
        for name, values in zip(columns.names, keys.columns, strict=True)
        if name in indexed
    )
    predicate = without_rebased_literals(And(terms)) if terms else Constant(True)
    return files.dataset.opened.planner.plan_fragments(predicate)


# What is known of many keys


def _key_ranges(
    files: SparkFiles, columns: KeyFrameColumns, present: Sequence[PresentFragment]
) -> tuple[FragmentKeyRanges, ...]:
    """What is known of each fragment there is, a column each, as Spark shows it."""
    opened, rebase = files.dataset.opened, files.rebase
    found = []
    for name, kind in zip(columns.names, columns.schema.types, strict=True):
        if name in rebase.int96_columns:
            ranges = FragmentKeyRanges.unknown(kind, len(present))
        else:
            ranges = fragment_key_ranges(opened.source, opened.planner, present, name, kind)
        if name in rebase.time_columns:
            # Shown by Spark, they may be earlier.
            choices = may_be_rebased(ranges.minimum), pa.nulls(1, kind)[0], ranges.minimum
            ranges = replace(ranges, minimum=pc.call_function("if_else", list(choices)))
        found.append(ranges)
    return tuple(found)


def _summarized(
    probes: DataFrame,
    num_keys: int,
    types: Sequence[pa.DataType],
    ranges: Sequence[FragmentKeyRanges],
) -> tuple[Sbbf, np.ndarray]:
    """What `summarize` says of a frame of keys, by so few tasks that the driver takes it in."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        keys = (batch.columns for batch in batches)
        sbbf, fragments = summarize_keys(keys, num_keys, types, ranges)
        columns = [pa.array([data], pa.binary()) for data in (sbbf.to_bytes(), fragments.tobytes())]
        yield pa.RecordBatch.from_arrays(columns, names=["filter", "fragments"])

    sbbf, fragments = summarize_keys([], num_keys, types, ranges)
    tasks = max(_COLLECTED_BYTES // sbbf.nbytes, 1)
    for row in map_batches(
        probes.coalesce(tasks), work, "filter binary, fragments binary"
    ).collect():
        sbbf.merge(Sbbf.from_bytes(row.filter))
        fragments |= np.frombuffer(row.fragments, dtype=bool)
    return sbbf, fragments


# The tasks


def _num_rows(plan: FragmentPlan, file: PresentFragment) -> float:
    if plan.rows is not None:
        return len(plan.rows)
    return math.inf if file.num_rows is None else file.num_rows


def _tasks(
    work: TaskReader, parts: Sequence[NumberedPlan], num_tasks: int
) -> list[list[NumberedPlan]]:
    """The parts cut into tasks of about equal bytes."""
    numbers = {plan.fragment.path: number for number, plan in parts}
    tasks = split_into_partitions(work, [plan for _, plan in parts], num_tasks)
    return [
        [(numbers[piece.plan.fragment.path], piece.plan) for piece in pieces] for pieces in tasks
    ]
