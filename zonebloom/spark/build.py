"""Building on Spark: the tasks of `zonebloom.build.tasks`, one Spark task each."""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark.sql import SparkSession

from zonebloom.build.tasks import TrainedTask, TrainTask
from zonebloom.build.train import Progress, train_task
from zonebloom.errors import EngineError, FragmentUnreadable, SchemaMismatch
from zonebloom.spark.failures import explained
from zonebloom.spark.jobs import reported, task_frame


def train_on_spark(
    spark: SparkSession,
    tasks: Sequence[TrainTask],
    *,
    progress: Progress | None = None,
    num_rows: int = 0,
) -> list[TrainedTask]:
    """Run tasks as one Spark job; what they wrote comes in their order."""
    with reported(spark, len(tasks), num_rows, progress), explained(always=True):
        frame = task_frame(spark, list(enumerate(tasks)), _attempt, "task bigint, result binary")
        # As Spark itself brings objects of its workers back.
        results = {row.task: pickle.loads(row.result) for row in frame.collect()}
    for result in results.values():
        if isinstance(result, Exception):
            raise result
    if sorted(results) != list(range(len(tasks))):
        raise EngineError(
            f"Spark returned {len(results)} of {len(tasks)} segments; run the build again"
        )
    return [results[number] for number in range(len(tasks))]


def _attempt(numbered: tuple[int, TrainTask]) -> Iterator[pa.RecordBatch]:
    number, task = numbered
    # Two attempts at one task must not write one file.
    attempt = replace(task, segment=f"{task.segment}-{uuid.uuid4().hex[:8]}")
    try:
        result: TrainedTask | Exception = train_task(attempt)
    except (FragmentUnreadable, SchemaMismatch) as error:
        # Another attempt would meet it again, so it is an answer.
        result = error
    columns = {"task": pa.array([number]), "result": pa.array([pickle.dumps(result)])}
    yield pa.RecordBatch.from_pydict(columns)
