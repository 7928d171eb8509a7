"""Building on Spark: the tasks of `zonebloom.index.build`, one Spark task each.

``spark.range(0, n, 1, n)`` gives exactly one Spark task an id, in classic sessions and over
Spark Connect alike; ``mapInArrow`` trains the task of that id where the executor runs and
returns one row that describes the segment written. A retried or speculative attempt writes a
segment of its own, and the driver commits only those it was told of.
"""

from __future__ import annotations

import pickle
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from zonebloom.errors import (
    EngineError,
    FragmentUnreadable,
    SchemaMismatch,
)
from zonebloom.index.train import Progress, TrainedTask, TrainTask, train_task

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
_POLL_SECONDS = 0.2


def train_on_spark(
    spark: SparkSession,
    tasks: Sequence[TrainTask],
    *,
    progress: Progress | None = None,
    num_rows: int = 0,
) -> list[TrainedTask]:
    """Run tasks as one Spark job.

    Parameters
    ----------
    spark : SparkSession
        Classic or Connect.
    tasks : sequence of TrainTask
        Their files must be at the same paths for the driver and for the executors.
    progress : callable, optional
        Told how many more rows are done, as tasks end.
    num_rows : int
        Rows of all tasks, for the progress.

    Returns
    -------
    list of TrainedTask
        In the order of the tasks.

    Raises
    ------
    EngineError
        When the job fails for a reason that is not in the data: executors without the
        packages, or with another Python.
    FragmentUnreadable, SchemaMismatch
        As `train_task`.
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
    with _Progress(spark, len(tasks), num_rows, progress):
        try:
            rows = job.collect()
        except Exception as error:
            raise _explained(error) from error
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

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield _attempt(number, tasks[number])

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


def _explained(error: Exception) -> Exception:
    """What a failed job most likely means, and what to do."""
    text = str(error)
    if "ModuleNotFoundError" in text or "No module named" in text:
        missing = text.split("No module named", 1)[-1].splitlines()[0].strip(" '\"")
        return EngineError(
            f"Spark's workers have no module {missing}: install zonebloom on the executors, or "
            f"set PYSPARK_PYTHON (here {sys.executable}) to a Python that has it before the "
            "session starts"
        )
    if "PYTHON_VERSION_MISMATCH" in text or "Python worker exited unexpectedly" in text:
        return EngineError(
            "Spark's workers run another Python than this one: set PYSPARK_PYTHON "
            f"(here {sys.executable}) before the session starts"
        )
    first = next((line for line in text.splitlines() if line.strip()), type(error).__name__)
    return EngineError(f"the Spark job failed: {first}; spark=False builds in this process")


class _Progress:
    """Reports finished Spark tasks of the job while it runs, where the session can tell."""

    def __init__(
        self, spark: SparkSession, num_tasks: int, num_rows: int, progress: Progress | None
    ):
        self._progress = progress
        self._num_tasks = num_tasks
        self._num_rows = num_rows
        self._done = threading.Event()
        self._thread: threading.Thread | None = None
        self._reported = 0
        # Spark Connect has no status tracker; there the end is all that is reported.
        self._context = _classic_context(spark) if progress is not None else None
        self._group = f"zonebloom-{uuid.uuid4().hex}"

    def __enter__(self) -> None:
        if self._context is not None:
            self._context.setJobGroup(self._group, "zonebloom build")
            self._thread = threading.Thread(target=self._watch, daemon=True)
            self._thread.start()

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join()
        if self._context is not None:
            self._context.setLocalProperty("spark.jobGroup.id", None)
            self._context.setLocalProperty("spark.job.description", None)
        if error is None:
            self._report(self._num_tasks)

    def _watch(self) -> None:
        assert self._context is not None
        tracker = self._context.statusTracker()
        while not self._done.wait(_POLL_SECONDS):
            finished = 0
            for job in tracker.getJobIdsForGroup(self._group):
                info = tracker.getJobInfo(job)
                stages = (tracker.getStageInfo(s) for s in (info.stageIds if info else ()))
                finished += sum(stage.numCompletedTasks for stage in stages if stage)
            self._report(min(finished, self._num_tasks))

    def _report(self, finished: int) -> None:
        """Tasks are of about equal bytes, so each stands for an equal share of the rows."""
        rows = self._num_rows * finished // self._num_tasks
        if self._progress is None or rows <= self._reported:
            return
        self._progress(rows - self._reported)
        self._reported = rows


def _classic_context(spark: SparkSession) -> Any:
    try:
        return spark.sparkContext
    except Exception:  # noqa: BLE001 - Connect sessions raise errors of their own tree
        return None
