"""Progress of a Spark job, as Spark tells it while the job runs."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from zonebloom.build.train import Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_POLL_SECONDS = 0.2


class JobProgress:
    """Reports finished tasks of the one job that runs inside it, as rows.

    A classic session is asked again and again; a Spark Connect server tells a handler.
    """

    def __init__(
        self, spark: SparkSession, num_tasks: int, num_rows: int, progress: Progress | None
    ):
        self._spark = spark
        self._progress = progress
        self._num_tasks = num_tasks
        self._num_rows = num_rows
        self._done = threading.Event()
        self._thread: threading.Thread | None = None
        self._reported = 0
        self._context = _classic_context(spark) if progress is not None else None
        # Bound once: Spark removes the handler it was given.
        self._handler: Any = self._told
        self._is_connect = progress is not None and self._context is None
        self._group = f"zonebloom-{uuid.uuid4().hex}"

    def __enter__(self) -> None:
        if self._context is not None:
            self._context.setJobGroup(self._group, "zonebloom build")
            self._thread = threading.Thread(target=self._watch, daemon=True)
            self._thread.start()
        elif self._is_connect:
            self._spark.registerProgressHandler(self._handler)

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join()
        if self._context is not None:
            self._context.setLocalProperty("spark.jobGroup.id", None)
            self._context.setLocalProperty("spark.job.description", None)
        elif self._is_connect:
            self._spark.removeProgressHandler(self._handler)
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
            self._report(finished)

    def _told(
        self,
        stages: Iterable[Any] | None,
        inflight_tasks: int,
        operation_id: str | None,
        done: bool,
    ) -> None:
        # The handler hears of every query of the session; ours is known by its number of tasks.
        ours = [each for each in stages or () if each.num_tasks == self._num_tasks]
        self._report(sum(each.num_completed_tasks for each in ours))

    def _report(self, finished: int) -> None:
        rows = self._num_rows * min(finished, self._num_tasks) // self._num_tasks
        if self._progress is None or rows <= self._reported:
            return
        self._progress(rows - self._reported)
        self._reported = rows


def _classic_context(spark: SparkSession) -> Any:
    try:
        return spark.sparkContext
    except Exception:  # noqa: BLE001 - Connect sessions raise errors of their own tree
        return None
