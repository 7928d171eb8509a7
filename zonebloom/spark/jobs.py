"""Work on executors: functions and tasks that only this version of the package opens there."""

from __future__ import annotations

import importlib
import pickle
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.cloudpickle import dumps
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from zonebloom.base.version import __version__
from zonebloom.building.builder import Engine
from zonebloom.building.tasks import TrainedTask, TrainTask
from zonebloom.building.train import ReportRows, train_task
from zonebloom.errors import EngineError, FragmentUnreadable, SchemaMismatch
from zonebloom.spark.failures import explain_spark_errors
from zonebloom.spark.session import parallelism, spark_context

Batches = Iterator[pa.RecordBatch]
_POLL_SECONDS = 0.2
# A Spark task costs some 0.1 s of a core before it begins, as much as the filters of ten million
# integers. Large builds have tasks enough for executors that come while they run.
_MOST_BYTES_PER_SPARK_TASK = 1 << 30
# Modules whose kernels builds run, and lookups of few rows. Those that look for keys in pages take
# longer to compile; a worker with many lookups loads them itself.
_KERNELS = ("sbbf.blocks", "sbbf.xxh64", "storage.pread_kernel")


class Sealed:
    """Pickles as a version and bytes; unpickles as the content itself.

    Objects that unpickle into another version's classes may come out wrong without an error.
    """

    def __init__(self, content: Any):
        self._content = content

    def __reduce__(self) -> tuple[Any, ...]:
        return unsealed, (__version__, dumps(self._content))


def unsealed(version: str, content: bytes) -> Any:
    """What was sealed by a version, on the executor."""
    if version != __version__:
        raise EngineError(
            f"Spark's executors have zonebloom {__version__} and the driver {version}, which "
            f"must be the same: install {version} there, or send it to those of this session "
            "with zonebloom.spark.send_package(spark)"
        )
    return pickle.loads(content)


def map_batches(
    frame: DataFrame, function: Callable[[Batches], Batches], schema: str | st.StructType
) -> DataFrame:
    """What a function makes of the Arrow batches of a frame, on executors."""
    # On a worker this is the function itself.
    sent: Any = Sealed(function)

    def work(batches: Batches) -> Batches:
        return sent(batches)

    return frame.mapInArrow(work, schema)


def task_frame(
    spark: SparkSession,
    tasks: Sequence[Any],
    function: Callable[[Any], Batches],
    schema: str | st.StructType,
    num_spark_tasks: int,
) -> DataFrame:
    """What a function makes of each of some tasks, in so many Spark tasks or one for each core."""
    # Before any worker starts: those of local mode then load them from the cache.
    for name in _KERNELS:
        importlib.import_module(f"zonebloom.{name}")
    count = len(tasks)
    # Of a large table Spark makes a partition of each chunk.
    contents = pa.chunked_array([[dumps(task)] for task in tasks], pa.binary())
    frame = spark.createDataFrame(pa.table({"id": range(count), "content": contents}))
    if num_spark_tasks > max(parallelism(spark), 1):
        # Broadcast, all of it comes once to an executor, and to a task what is its own.
        frame = spark.range(0, count, 1, num_spark_tasks).join(sf.broadcast(frame), "id")
    frame = frame.select("content")

    def work(batches: Batches) -> Batches:
        for batch in batches:
            for content in batch.column(0).to_pylist():
                yield from function(pickle.loads(content))

    return map_batches(frame, work, schema)


# Builds: the tasks of `zonebloom.building.tasks`, one Spark task each


@contextmanager
def _reported(spark: SparkSession, progress: ReportRows | None) -> Iterator[Any]:
    """Report the rows that tasks add, while they run, to an accumulator; Connect has none."""
    context = spark_context(spark)
    if progress is None or context is None:
        yield None
        return
    rows, done = context.accumulator(0), threading.Event()

    def watch() -> None:
        told, is_last = 0, False
        while not is_last:
            is_last = done.wait(_POLL_SECONDS)
            now = rows.value
            if now > told:
                progress(now - told)
            told = now

    with ThreadPoolExecutor(1) as pool:
        watcher = pool.submit(watch)
        try:
            yield rows
        finally:
            done.set()
        watcher.result()


def spark_engine(spark: SparkSession, least_bytes: int = 0) -> Engine:
    """A session as what trains tasks, where there are so many bytes of data."""
    return Engine("Spark", partial(train_on_spark, spark), least_bytes)


def train_on_spark(
    spark: SparkSession, tasks: Sequence[TrainTask], *, progress: ReportRows | None = None
) -> list[TrainedTask]:
    """Run tasks as one Spark job; what they wrote comes in their order."""
    count = _num_spark_tasks(spark, tasks)
    with _reported(spark, progress) as rows, explain_spark_errors(always=True):
        numbered = list(enumerate(tasks))
        attempt = partial(_attempt, rows)
        frame = task_frame(spark, numbered, attempt, "task bigint, result binary", count)
        # As Spark itself brings objects of its workers back.
        results = {row.task: pickle.loads(row.result) for row in frame.collect()}
    for result in results.values():
        if isinstance(result, Exception):
            raise result
    if sorted(results) != list(range(len(tasks))):
        raise EngineError(
            f"Spark returned {len(results)} of {len(tasks)} segments; run the build again"
        )
    trained: list[TrainedTask] = [results[number] for number in range(len(tasks))]
    if progress is not None and rows is None:
        progress(sum(each.num_rows for task in trained for each in task.fragments))
    return trained


def _num_spark_tasks(spark: SparkSession, tasks: Sequence[TrainTask]) -> int:
    """As few as keep the cores busy; Connect does not say how many there are, so it has more."""
    num_bytes = sum(fragment.identity.size for task in tasks for fragment in task.fragments)
    cores = parallelism(spark)
    by_bytes = -(-num_bytes * (1 if cores else 4) // _MOST_BYTES_PER_SPARK_TASK)
    return min(len(tasks), max(cores, by_bytes))


def _attempt(rows: Any, numbered: tuple[int, TrainTask]) -> Iterator[pa.RecordBatch]:
    number, task = numbered
    progress = None if rows is None else rows.add
    # Two attempts at one task must not write one file.
    attempt = replace(task, segment=f"{task.segment}-{uuid.uuid4().hex[:8]}")
    try:
        result: TrainedTask | Exception = train_task(attempt, progress=progress)
    except (FragmentUnreadable, SchemaMismatch) as error:
        # Another attempt would meet it again, so it is an answer.
        result = error
    columns = {"task": pa.array([number]), "result": pa.array([pickle.dumps(result)])}
    yield pa.RecordBatch.from_pydict(columns)
