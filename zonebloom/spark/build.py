"""Building on Spark: the tasks of `zonebloom.build.tasks`, one Spark task each.

``spark.range(0, n, 1, n)`` gives exactly one Spark task an id, in classic sessions and over
Spark Connect alike; ``mapInArrow`` trains the task of that id where the executor runs and
returns one row that describes the segment written. A retried or speculative attempt writes a
segment of its own, and the driver commits only those it was told of.
"""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from zonebloom.build.tasks import TrainedTask, TrainTask
from zonebloom.build.train import Progress, train_task
from zonebloom.errors import (
    EngineError,
    FragmentUnreadable,
    SchemaMismatch,
)
from zonebloom.spark.workers.failures import explained
from zonebloom.spark.workers.progress import JobProgress
from zonebloom.spark.workers.sealed import Sealed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Types as Spark names them; the batches returned must match them exactly.
_RESULT_DDL = "task bigint, trained binary, error string, message string"
_RESULT_SCHEMA = pa.schema(
    [
        ("task", pa.int64()),
        ("trained", pa.binary()),
        ("error", pa.string()),
        ("message", pa.string()),
    ]
)
# Errors in the data: another attempt would meet them again, so they come back as a row.
_DATA_ERRORS = {error.__name__: error for error in (FragmentUnreadable, SchemaMismatch)}


def train_on_spark(
    spark: SparkSession,
    tasks: Sequence[TrainTask],
    *,
    progress: Progress | None = None,
    num_rows: int = 0,
) -> list[TrainedTask]:
    """Run tasks as one Spark job.

    In the order of the tasks.
    """
    if not hasattr(spark, "range"):
        raise EngineError(
            f"spark is a {type(spark).__name__}; give a SparkSession, or spark=False to build in "
            "this process"
        )
    # Compiled before any worker starts: those of local mode then load from the cache.
    import zonebloom.sbbf.blocks
    import zonebloom.sbbf.xxh64  # noqa: F401

    work = _worker(list(tasks))
    found: dict[int, TrainedTask] = {}
    job = spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(work, _RESULT_DDL)
    with JobProgress(spark, len(tasks), num_rows, progress):
        try:
            rows = job.collect()
        except Exception as error:
            raise explained(error) from error
    for row in rows:
        if row.error is not None:
            raise _DATA_ERRORS[row.error](row.message)
        # As Spark itself brings objects of its workers back.
        found[row.task] = pickle.loads(row.trained)
    if sorted(found) != list(range(len(tasks))):
        raise EngineError(
            f"Spark returned {len(found)} of {len(tasks)} segments; run the build again"
        )
    return [found[number] for number in range(len(tasks))]


def _worker(
    tasks: list[TrainTask],
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function Spark sends to its workers; it holds all tasks and runs the one asked for."""
    # On a worker this is the tasks.
    sent: Any = Sealed(tasks)

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield _attempt(number, sent[number])

    return work


def _attempt(number: int, task: TrainTask) -> pa.RecordBatch:
    row: dict[str, Any] = dict.fromkeys(_RESULT_SCHEMA.names)
    row["task"] = number
    # Two attempts at one task must not write one file.
    attempt = replace(task, segment=f"{task.segment}-{uuid.uuid4().hex[:8]}")
    try:
        trained = train_task(attempt)
    except tuple(_DATA_ERRORS.values()) as error:
        row["error"], row["message"] = type(error).__name__, str(error)
    else:
        row["trained"] = pickle.dumps(trained)
    return pa.RecordBatch.from_pylist([row], schema=_RESULT_SCHEMA)
