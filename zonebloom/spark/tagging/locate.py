"""Find the rows of a dataset that may equal keys of a frame.

A few keys are looked up in the index, which chooses zones. If there are so many keys that most
zones hold one, the key columns are read whole and compared with a Bloom filter of the keys.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from zonebloom.base.arrays import from_numpy
from zonebloom.base.notices import warn
from zonebloom.base.threads import map_in_order, num_cores
from zonebloom.catalog.coverage import PresentFragment
from zonebloom.errors import IndexNotUsedWarning, InvalidArgument
from zonebloom.index.zone_map.bounds import ZoneBounds
from zonebloom.predicates.ast import conjunction
from zonebloom.predicates.spark_calendar import may_be_rebased, without_rebased_literals
from zonebloom.sbbf.filter import Sbbf
from zonebloom.scan.column_case import require_visible
from zonebloom.scan.key_candidates import (
    MAX_SEARCHED_KEYS,
    KeyBloomFilter,
    NumberedPlan,
    cost_of_keys,
    existing_keys,
    fragment_key_ranges,
    key_conditions,
    plan_candidates,
    searchable_columns,
    summarize_keys,
)
from zonebloom.scan.key_values import normalized_values
from zonebloom.scan.plan import FragmentPlan
from zonebloom.scan.search import Search
from zonebloom.scan.tasks import split_into_partitions
from zonebloom.snapshot import Snapshot
from zonebloom.sources.memory import TableSource
from zonebloom.spark.jobs import map_batches, task_frame
from zonebloom.spark.load import SparkFiles
from zonebloom.spark.session_settings import parallelism
from zonebloom.spark.tagging.keys import FRAGMENT_ID, PATH, ROW_OFFSET, KeyFrameColumns
from zonebloom.spark.task_reader import TaskReader, combine_batches
from zonebloom.spark.types import cast_for_spark
from zonebloom.spark.versions import arrow_schema, arrow_table, frame_of_arrow

# The driver collects filters of at most this many bytes. The default of spark.driver.maxResultSize
# is 1 GiB.
_MAX_COLLECTED_BYTES = 1 << 27
# The driver looks up at most this many keys, in indices that find few zones for each of them.
_MAX_COLLECTED_KEYS = 1 << 21
# Up to this number of candidate rows are broadcast. Joining more rows shuffles both sides.
_BROADCAST_ROWS = 1 << 20
# Starting a Spark job takes as long as reading this number of rows on the driver.
_MAX_DRIVER_ROWS = 1 << 22
# The id of a fragment in this catalog version, and its plan.
_PlanWithId: TypeAlias = tuple[int, FragmentPlan]


@dataclass(frozen=True)
class LocatedKeys:
    """The candidate rows of keys, as frames that are already computed."""

    # Columns: the key columns as in `KeyFrameColumns.fields`, then `ROW_OFFSET` and `FRAGMENT_ID`.
    rows: DataFrame
    # Columns: `FRAGMENT_ID` and `PATH`.
    files: DataFrame

    def with_paths(self, rows: DataFrame) -> DataFrame:
        """Add the path to rows with a fragment id.

        Do this after the join with the keys: broadcast rows with paths would take many times the
        memory.
        """
        return rows.join(sf.broadcast(self.files), FRAGMENT_ID, "left")


@dataclass(frozen=True)
class CandidateReader:
    """A reader of candidate rows with their positions, which runs in tagging tasks."""

    reader: TaskReader
    schema: pa.Schema

    def batches(self, plans: Sequence[_PlanWithId]) -> Iterator[pa.RecordBatch]:
        """Yield the candidate rows of fragment plans, which come with the ids of the fragments."""
        yield from combine_batches(
            batch for fragment_id, plan in plans for batch in self._read_plan(fragment_id, plan)
        )

    def _read_plan(self, fragment_id: int, plan: FragmentPlan) -> Iterator[pa.RecordBatch]:
        columns = pa.schema(list(self.schema)[:-2])
        self.reader.require_same_as_spark(plan)
        for offsets, table in self.reader.execution().matches(plan):
            for rows in table.combine_chunks().to_batches():
                for batch in cast_for_spark(rows.rename_columns(columns.names), columns):
                    batch_offsets, offsets = offsets[: batch.num_rows], offsets[batch.num_rows :]
                    positions = (
                        pa.array(batch_offsets, pa.int64()),
                        pa.repeat(fragment_id, batch_offsets.size),
                    )
                    yield pa.RecordBatch.from_arrays(
                        [*batch.columns, *positions], schema=self.schema
                    )


def locate_frame_keys(keys: DataFrame, columns: KeyFrameColumns, files: SparkFiles) -> LocatedKeys:
    """Return the rows of a dataset that may equal a key. Few of them equal no key."""
    ds = files.dataset
    source = ds.opened.source
    if isinstance(source, TableSource):
        raise InvalidArgument(
            "a table in memory has no files for Spark to read; write it to Parquet first"
        )
    if any(fragment.names is not None for fragment in source.fragments):
        raise InvalidArgument(
            "the table has other names for its columns than its files, which is not supported on "
            "Spark; use ds.locate, or rewrite the table's files"
        )
    snapshot = ds.opened.look_at_all_files()
    # A key that the dataset's type does not hold may be in a file of a wider type.
    snapshot.require_types([(name,) for name in columns.unfitting_names])
    present = snapshot.fragments
    numbered_plans, row_filter, are_few_keys = _plan_candidates(keys, columns, files, snapshot)
    task_reader = files.task_reader(columns.names, row_filter)
    position_fields = (st.StructField(name, st.LongType()) for name in (ROW_OFFSET, FRAGMENT_ID))
    fields = st.StructType([*columns.fields, *position_fields])
    reader = CandidateReader(task_reader, arrow_schema(fields))
    files_table = pa.table(
        {
            FRAGMENT_ID: pa.array([file.fragment_id for file in present], pa.int64()),
            PATH: pa.array([file.fragment.path for file in present], pa.string()),
        }
    )
    num_rows = sum(_num_rows(plan, present[number]) for number, plan in numbered_plans)
    plans = [(present[number].fragment_id, plan) for number, plan in numbered_plans]
    spark = keys.sparkSession
    if are_few_keys and not source.store.has_round_trips and num_rows <= _MAX_DRIVER_ROWS:
        with ThreadPoolExecutor(num_cores()) as pool:
            batch_lists = map_in_order(
                pool, lambda part: list(reader.batches([part])), plans, num_cores() + 1
            )
            table = pa.Table.from_batches(chain.from_iterable(batch_lists), reader.schema)
        used_ids = pc.SetLookupOptions(table[FRAGMENT_ID].unique())
        is_used = pc.call_function("is_in", [files_table[FRAGMENT_ID]], used_ids)
        files_table = files_table.filter(is_used)
        frame, num_candidates = frame_of_arrow(spark, table, fields), table.num_rows
    else:
        partitions = _partitions(task_reader, plans, parallelism(spark) or num_cores())
        frame = task_frame(spark, partitions, reader.batches, fields, len(partitions))
        frame = frame.localCheckpoint(eager=False)
        num_candidates = frame.count()
    candidates = frame.hint("broadcast" if num_candidates <= _BROADCAST_ROWS else "merge")
    return LocatedKeys(candidates, frame_of_arrow(spark, files_table))


def _plan_candidates(
    keys: DataFrame, columns: KeyFrameColumns, files: SparkFiles, snapshot: Snapshot
) -> tuple[list[NumberedPlan], KeyBloomFilter, bool]:
    """Return what to read, a filter of its rows, and whether the driver has collected the keys."""
    indexed_names = _usable_indices(files, columns)
    # Spark may show times of other columns in another calendar than the one that was indexed.
    exact_paths = {(name,) for name in indexed_names if name not in files.rebase.time_columns}
    finds_many = any(
        index.finds_few_zones and exact_paths.issuperset(index.columns)
        for index in snapshot.indices.values()
    )
    max_keys = _MAX_COLLECTED_KEYS if finds_many else MAX_SEARCHED_KEYS
    probes = keys.select(*columns.probes)
    collected_keys = arrow_table(probes.limit(max_keys + 1)).cast(columns.schema)
    are_collected = collected_keys.num_rows <= max_keys
    are_many = collected_keys.num_rows > MAX_SEARCHED_KEYS
    search = None
    if are_collected:
        # A null equals nothing.
        collected_keys = collected_keys.drop_null()
    if are_collected and are_many:
        names = [name for name in indexed_names if (name,) in exact_paths]
        search, existing = _search_keys(files, snapshot, columns, names, collected_keys)
        if existing is not None:
            collected_keys = collected_keys.take(from_numpy(existing))
    types = tuple(columns.schema.types)
    ranges = _key_ranges(files, columns, snapshot)
    if are_collected:
        batches = (batch.columns for batch in collected_keys.to_batches())
        sbbf, may_match = summarize_keys(batches, collected_keys.num_rows, types, ranges)
    else:
        sbbf, may_match = _summarize_frame(probes, keys.count(), types, ranges)
    if are_collected and not are_many and may_match.any():
        if indexed_names:
            search, _ = _search_keys(files, snapshot, columns, indexed_names, collected_keys)
        else:
            _warn_of_no_index(files, columns)
    row_filter = KeyBloomFilter(tuple((name,) for name in columns.names), types, sbbf)
    return plan_candidates(snapshot, search, may_match), row_filter, are_collected


def _usable_indices(files: SparkFiles, columns: KeyFrameColumns) -> list[str]:
    """Return the key columns with an index that can be used."""
    ds = files.dataset
    partition_columns = ds.opened.source.partition_columns()
    paths = {(name,) for name in columns.names}
    indexed_paths = searchable_columns(ds.opened.indices.values(), paths)
    unusable_columns = partition_columns | files.rebase.int96_columns
    usable_names = [
        name for name in columns.names if (name,) in indexed_paths and name not in unusable_columns
    ]
    for name in usable_names if files.ignores_case else ():
        require_visible(ds.opened, (name,))
    return usable_names


def _search_keys(
    files: SparkFiles,
    snapshot: Snapshot,
    columns: KeyFrameColumns,
    names: Sequence[str],
    keys: pa.Table,
) -> tuple[Search, np.ndarray | None]:
    """Search the indices of some columns for keys.

    Also return the positions of the keys that rows may hold, or None if that may be all of them.
    """
    # Key ranges already choose the files by partition columns.
    named_keys = keys.rename_columns(list(columns.names))
    values = {(name,): normalized_values(named_keys[name].combine_chunks()) for name in names}
    opened = files.dataset.opened
    conditions = list(
        map(without_rebased_literals, key_conditions(values, opened.indices.values()))
    )
    cost = cost_of_keys(keys.num_rows)
    search = opened.search_snapshot(snapshot, conjunction(conditions), cost)
    return search, existing_keys(search, conditions)


def _warn_of_no_index(files: SparkFiles, columns: KeyFrameColumns) -> None:
    instants = [name for name in columns.names if name in files.rebase.int96_columns]
    reason = f"there is no index on {', '.join(columns.names)}"
    advice = "make one with create_scalar_index"
    if instants:
        reason = f"{', '.join(instants)} is INT96, for which no index is used"
        advice = "rewrite the files with TIMESTAMP_MICROS"
    warn(IndexNotUsedWarning(f"{reason}, so the key columns are read whole; {advice}"))


# Summaries of keys and of files


def _key_ranges(
    files: SparkFiles, columns: KeyFrameColumns, snapshot: Snapshot
) -> tuple[ZoneBounds, ...]:
    """Return the key ranges of the fragments for each key column, in values as Spark shows them."""
    rebase = files.rebase
    key_ranges = []
    for name, kind in zip(columns.names, columns.schema.types, strict=True):
        if name in rebase.int96_columns:
            ranges = ZoneBounds.unknown(kind, len(snapshot.fragments))
        else:
            ranges = fragment_key_ranges(snapshot, name, kind)
        if name in rebase.time_columns:
            # Spark may show an earlier value than the stored minimum, so the minimum is unknown.
            choices = may_be_rebased(ranges.least), pa.nulls(1, kind)[0], ranges.least
            ranges = replace(ranges, least=pc.call_function("if_else", list(choices)))
        key_ranges.append(ranges)
    return tuple(key_ranges)


def _summarize_frame(
    probes: DataFrame,
    num_keys: int,
    types: Sequence[pa.DataType],
    ranges: Sequence[ZoneBounds],
) -> tuple[Sbbf, np.ndarray]:
    """Return the Bloom filter of a frame of keys, and which fragments may hold one of them.

    Each Spark task sends a filter to the driver. There are so few tasks that it can hold them.
    """

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        keys = (batch.columns for batch in batches)
        sbbf, fragments = summarize_keys(keys, num_keys, types, ranges)
        columns = [pa.array([data], pa.binary()) for data in (sbbf.to_bytes(), fragments.tobytes())]
        yield pa.RecordBatch.from_arrays(columns, names=["filter", "fragments"])

    sbbf, fragments = summarize_keys([], num_keys, types, ranges)
    tasks = max(_MAX_COLLECTED_BYTES // sbbf.nbytes, 1)
    for row in map_batches(
        probes.coalesce(tasks), work, "filter binary, fragments binary"
    ).collect():
        sbbf.merge(Sbbf.from_bytes(row.filter))
        fragments |= np.frombuffer(row.fragments, dtype=bool)
    return sbbf, fragments


# Spark tasks


def _num_rows(plan: FragmentPlan, file: PresentFragment) -> float:
    if plan.rows is not None:
        return len(plan.rows)
    return math.inf if file.num_rows is None else file.num_rows


def _partitions(
    reader: TaskReader, plans: Sequence[_PlanWithId], num_tasks: int
) -> list[list[_PlanWithId]]:
    """Split fragment plans into Spark tasks of about equal bytes."""
    ids = {plan.fragment.path: fragment_id for fragment_id, plan in plans}
    fragment_plans = [plan for _, plan in plans]
    partitions = split_into_partitions(
        reader.source, fragment_plans, reader.needed_columns, num_tasks
    )
    return [
        [(ids[task.plan.fragment.path], task.plan) for task in scan_tasks]
        for scan_tasks in partitions
    ]
