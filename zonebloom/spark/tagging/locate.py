"""From keys to the rows that may equal them: which files are read, how, and by whom.

    keys    few: collected            -> zones of the index -> rows, here or in tasks
            as dense as zones: a filter of them, key ranges -> whole key columns, in tasks

Where about as many keys as zones are asked for, every zone holds some, and reading its pages one
by one costs more than reading the column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from zonebloom.dataset import Dataset
from zonebloom.errors import InvalidArgument
from zonebloom.scan.plan import FragmentPlan
from zonebloom.spark.frames import of_session
from zonebloom.spark.rebase import holds_any_of_old
from zonebloom.spark.split import cut
from zonebloom.spark.tagging.candidate_rows import Candidates
from zonebloom.spark.tagging.keys import KeyColumns, collected, holds_old_times
from zonebloom.spark.tagging.plan import Search
from zonebloom.spark.tagging.summary import summarize, summary_of
from zonebloom.spark.workers.sealed import Sealed
from zonebloom.storage.memory import TableSource
from zonebloom.threads import cores, in_order

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# What is read within the time a Spark job takes to start is read here.
_HERE_COST = 300_000_000


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


def locate(keys: DataFrame, columns: KeyColumns, ds: Dataset) -> Located:
    """Find the rows of a dataset that may equal keys; those that equal none are few."""
    source = ds.opened.source
    if isinstance(source, TableSource):
        raise InvalidArgument(
            "a table in memory has no files that Spark could read; write it to Parquet first"
        )
    search = Search(ds, columns)
    search.require_same_case()
    few = collected(keys, columns, search.most_collected)
    if few is not None:
        summary = summary_of(few, columns, search.fragments)
        plans = search.zones(few, summary.counts)
        of_old = any(holds_any_of_old(each.combine_chunks()) for each in few.columns)
    else:
        summary = summarize(keys, columns, search.fragments)
        plans = [plan for plan, held in zip(search.whole, summary.counts, strict=True) if held]
        of_old = holds_old_times(keys, columns)
    candidates = search.candidates(summary, columns.calendars if of_old else None)
    if few is not None and sum(map(search.cost, plans)) <= _HERE_COST:
        return _here(keys, candidates, plans, search)
    return _in_tasks(keys, candidates, plans, search)


def _here(
    keys: DataFrame, candidates: Candidates, plans: Sequence[FragmentPlan], search: Search
) -> Located:
    """Read in this process."""
    with ThreadPoolExecutor(cores()) as pool:
        tables = list(in_order(pool, lambda plan: candidates.table([plan]), plans, cores() + 1))
    table = pa.concat_tables([candidates.schema.empty_table(), *tables])
    made = keys.sparkSession.createDataFrame(table, search.spark_schema())
    return Located(made, table.num_rows, search.paths)


def _in_tasks(
    keys: DataFrame, candidates: Candidates, plans: Sequence[FragmentPlan], search: Search
) -> Located:
    """Read in a Spark job."""
    spark = keys.sparkSession
    _, parallelism = of_session(spark)
    needed = frozenset(search.columns.names)
    tasks = [
        [piece.plan for piece in pieces]
        for pieces in cut(search.source, plans, needed, parallelism or cores())
    ]
    # Compiled before any worker starts: those of local mode then load from the cache.
    import zonebloom.sbbf.blocks
    import zonebloom.sbbf.xxh64  # noqa: F401

    count = len(tasks)
    frame = spark.range(0, count, 1, max(count, 1)).mapInArrow(
        _worker(candidates, tasks), search.spark_schema()
    )
    frame = frame.localCheckpoint(eager=False)
    return Located(frame, frame.count(), search.paths)


def _worker(
    candidates: Candidates, tasks: list[list[FragmentPlan]]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    # On a worker this is both.
    sent: Any = Sealed((candidates, tasks))

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        candidates, tasks = sent
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from candidates.batches(tasks[number])

    return work
