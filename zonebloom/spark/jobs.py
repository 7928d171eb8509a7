"""Run Python functions and build tasks on Spark's executors.

Functions travel with the version of the package. Executors with another version refuse them.
`pickle_for_workers` alone pickles keys of encryption in clear.
"""

from __future__ import annotations

import importlib
import io
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
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from zonebloom.base.pickling import KeyHolder
from zonebloom.base.version import __version__
from zonebloom.building.builder import Engine
from zonebloom.building.train import ReportRows, TrainedTask, TrainTask, train_task
from zonebloom.errors import EngineError, FragmentUnreadable, SchemaMismatch
from zonebloom.spark.session_settings import parallelism
from zonebloom.spark.versions import frame_of_arrow, spark_context

Batches = Iterator[pa.RecordBatch]
_POLL_SECONDS = 0.2
# Starting a Spark task takes about 0.1 s of a core, as long as building filters for ten million
# integers. Large builds get more tasks than cores, so that executors which start later help too.
_MAX_BYTES_PER_SPARK_TASK = 1 << 30
# Modules with the kernels that builds and small lookups run. The kernels that find keys in pages
# take longer to compile; a worker with many lookups loads them itself.
_KERNEL_MODULES = ("sbbf.blocks", "sbbf.xxh64", "storage.pread_kernel")


class _WorkerPickler(cloudpickle.CloudPickler):
    """A pickler that also pickles objects that hold keys in clear."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, KeyHolder):
            return obj.reduce_with_keys()
        return super().reducer_override(obj)


def pickle_for_workers(content: Any) -> bytes:
    """Pickle what Spark's workers need, with the keys of encryption in clear.

    Workers need the keys to write an encrypted index and to read encrypted files. The bytes must
    go nowhere else: they are rows and functions of jobs, which no plan or event log shows.
    """
    stream = io.BytesIO()
    _WorkerPickler(stream).dump(content)
    return stream.getvalue()


class Sealed:
    """A wrapper that pickles its content as a version and bytes, and unpickles as the content.

    Another version of the package could unpickle the bytes into wrong objects without an error.
    """

    def __init__(self, content: Any):
        self._content = content

    def __reduce__(self) -> tuple[Any, ...]:
        return unsealed, (__version__, pickle_for_workers(self._content))


def unsealed(version: str, content: bytes) -> Any:
    """Unpickle sealed content on an executor. Raise `EngineError` if its version is another."""
    if version != __version__:
        raise EngineError(
            f"Spark's executors have zonebloom {__version__} and the driver {version}, which "
            f"must be the same: install {version} there"
        )
    return pickle.loads(content)


def map_batches(
    frame: DataFrame, function: Callable[[Batches], Batches], schema: str | st.StructType
) -> DataFrame:
    """Return the frame that a function makes from the Arrow batches of a frame, on executors."""
    # `Sealed` unpickles as its content, so this is the function itself on a worker.
    sealed_function: Any = Sealed(function)

    def work(batches: Batches) -> Batches:
        return sealed_function(batches)

    return frame.mapInArrow(work, schema)


def task_frame(
    spark: SparkSession,
    tasks: Sequence[Any],
    function: Callable[[Any], Batches],
    schema: str | st.StructType,
    num_spark_tasks: int,
) -> DataFrame:
    """Return a frame of the batches that a function makes from tasks, run by Spark tasks.

    There are `num_spark_tasks` Spark tasks, but at least about one for each core.
    """
    # Compile the kernels before workers start, so that local workers load them from the cache.
    for name in _KERNEL_MODULES:
        importlib.import_module(f"zonebloom.{name}")
    count = len(tasks)
    # Spark makes a partition from each chunk of a large table, so each task is a chunk.
    contents = pa.chunked_array([[pickle_for_workers(task)] for task in tasks], pa.binary())
    frame = frame_of_arrow(spark, pa.table({"id": range(count), "content": contents}))
    if num_spark_tasks > max(parallelism(spark), 1):
        # A broadcast join sends the tasks once to each executor, and each Spark task picks its own.
        frame = spark.range(0, count, 1, num_spark_tasks).join(sf.broadcast(frame), "id")
    frame = frame.select("content")

    def work(batches: Batches) -> Batches:
        for batch in batches:
            for content in batch.column(0).to_pylist():
                yield from function(pickle.loads(content))

    return map_batches(frame, work, schema)


# Builds: run the tasks of `zonebloom.building.train` on executors.


@contextmanager
def _engine_errors() -> Iterator[None]:
    """Raise `EngineError` in place of an error of Spark, which is its cause."""
    try:
        yield
    except Exception as error:
        raise EngineError(
            f"the Spark job failed; Spark's own error is above. Executors need zonebloom "
            f"{__version__} and its requirements in a Python of this version; spark=False builds "
            "in this process"
        ) from error


@contextmanager
def _reporting_accumulator(spark: SparkSession, progress: ReportRows | None) -> Iterator[Any]:
    """Yield an accumulator of rows whose growth is reported, or None over Connect."""
    context = spark_context(spark)
    if progress is None or context is None:
        yield None
        return
    rows, done = context.accumulator(0), threading.Event()

    def watch() -> None:
        num_reported, is_last = 0, False
        while not is_last:
            is_last = done.wait(_POLL_SECONDS)
            num_rows = rows.value
            if num_rows > num_reported:
                progress(num_rows - num_reported)
            num_reported = num_rows

    with ThreadPoolExecutor(1) as pool:
        watcher = pool.submit(watch)
        try:
            yield rows
        finally:
            done.set()
        watcher.result()


def spark_engine(spark: SparkSession, least_bytes: int = 0) -> Engine:
    """Return an engine that builds on Spark if there are at least so many bytes of data."""
    return Engine("Spark", partial(train_on_spark, spark), least_bytes)


def train_on_spark(
    spark: SparkSession, tasks: Sequence[TrainTask], *, progress: ReportRows | None = None
) -> list[TrainedTask]:
    """Run tasks as one Spark job, and return their results in the order of the tasks."""
    count = _num_spark_tasks(spark, tasks)
    with _reporting_accumulator(spark, progress) as rows, _engine_errors():
        numbered = list(enumerate(tasks))
        attempt = partial(_run_attempt, rows)
        frame = task_frame(spark, numbered, attempt, "task bigint, result binary", count)
        # Spark itself transfers the objects of its workers by pickle, so this adds no risk.
        results = {row.task: pickle.loads(row.result) for row in frame.collect()}
    for result in results.values():
        if isinstance(result, Exception):
            raise result
    # A missing result would be a KeyError here, but Spark returns all rows of a job or an error.
    trained: list[TrainedTask] = [results[number] for number in range(len(tasks))]
    if progress is not None and rows is None:
        progress(sum(fragment.num_rows for task in trained for fragment in task.fragments))
    return trained


def _num_spark_tasks(spark: SparkSession, tasks: Sequence[TrainTask]) -> int:
    """Return the smallest number of Spark tasks that keeps all cores busy.

    Connect does not tell the number of cores, so its jobs get more tasks.
    """
    num_bytes = sum(fragment.identity.size for task in tasks for fragment in task.fragments)
    cores = parallelism(spark)
    by_bytes = -(-num_bytes * (1 if cores else 4) // _MAX_BYTES_PER_SPARK_TASK)
    return min(len(tasks), max(cores, by_bytes))


def _run_attempt(rows: Any, numbered: tuple[int, TrainTask]) -> Iterator[pa.RecordBatch]:
    number, task = numbered
    progress = None if rows is None else rows.add
    # Two attempts at one task must not write the same file.
    attempt = replace(task, segment=f"{task.segment}-{uuid.uuid4().hex[:8]}")
    try:
        result: TrainedTask | Exception = train_task(attempt, progress=progress)
    except (FragmentUnreadable, SchemaMismatch) as error:
        # Spark would repeat a failed task, but this error would come again, so return it as a
        # result.
        result = error
    columns = {"task": pa.array([number]), "result": pa.array([pickle.dumps(result)])}
    yield pa.RecordBatch.from_pydict(columns)
