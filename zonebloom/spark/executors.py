"""Asking executors what they have of what zonebloom needs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from zonebloom.errors import EngineError
from zonebloom.spark.failures import explained
from zonebloom.spark.session import spark_context
from zonebloom.version import __version__

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# As in pyproject.toml; a zip cannot bring them, for they are compiled for the machine.
REQUIREMENTS = {
    "filelock": "3.12",
    "numba": "0.61",
    "numpy": "2.0",
    "pyarrow": "21",
    "sqlglot": "26",
    "xxhash": "3.4",
}
_TASKS_OVER_CONNECT = 16
_PROBE_DDL = "host string, executable string, python string, found string"


@dataclass(frozen=True)
class Worker:
    """A Python that ran a task.

    Attributes
    ----------
    host, executable, python : str
    versions : dict of str to str or None
        Of zonebloom and what it needs; None where it is missing, "" where it does not say.
    """

    host: str
    executable: str
    python: str
    versions: dict[str, str | None]

    def __str__(self) -> str:
        have = ", ".join(f"{name} {said or '?'}" for name, said in self.versions.items())
        return f"{self.host}: Python {self.python} ({self.executable}), {have}"


@dataclass(frozen=True)
class ExecutorReport:
    """What executors have; `str` shows it, a line for each different one."""

    workers: tuple[Worker, ...]

    def __str__(self) -> str:
        return "\n".join(map(str, self.workers))

    __repr__ = __str__


def check_executors(spark: SparkSession) -> ExecutorReport:
    """Ask executors for their Python and packages, in a job of a moment.

    Parameters
    ----------
    spark : SparkSession
        Classic or Connect.

    Returns
    -------
    ExecutorReport
        Of the executors that ran a task of the job: each that is up, as a rule.

    Raises
    ------
    EngineError
        When Python does not run there or is another, or zonebloom or something it needs is
        missing or of another version: with all of it, and what to do.
    """
    context = spark_context(spark)
    num_tasks = 2 * context.defaultParallelism if context is not None else _TASKS_OVER_CONNECT
    job = spark.range(0, num_tasks, 1, num_tasks)
    with explained(always=True):
        rows = job.mapInArrow(_probe(list(REQUIREMENTS)), _PROBE_DDL).distinct().collect()
    workers = sorted(
        (Worker(r.host, r.executable, r.python, json.loads(r.found)) for r in rows),
        key=lambda each: (each.host, each.executable),
    )
    lacks = [lack for lack in map(_lack, workers) if lack is not None]
    if lacks:
        send = (
            "; zonebloom.spark.send_package(spark) sends zonebloom itself"
            if any(each.versions["zonebloom"] != __version__ for each in workers)
            else ""
        )
        raise EngineError(
            f"executors cannot run zonebloom {__version__}: {'; '.join(lacks)}. "
            f"Install it there with pip{send}"
        )
    return ExecutorReport(tuple(workers))


def _probe(names: Sequence[str]) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """A function that needs nothing of this package where it runs."""

    def probe(batches: Iterator[Any]) -> Iterator[Any]:
        import importlib.metadata
        import importlib.util
        import json
        import platform
        import socket
        import sys
        import time

        import pyarrow as pa

        found: dict[str, str | None] = {}
        for name in names:
            try:
                found[name] = importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                found[name] = None if importlib.util.find_spec(name) is None else ""
        try:
            import zonebloom

            found["zonebloom"] = zonebloom.__version__
        except ImportError as error:
            # Of something it needs, which is told by itself, or it is not there.
            found["zonebloom"] = None if error.name == "zonebloom" else ""
        row = {
            "host": [socket.gethostname()],
            "executable": [sys.executable],
            "python": [platform.python_version()],
            "found": [json.dumps(found)],
        }
        for _ in batches:
            # Long enough that no executor runs all of the tasks.
            time.sleep(0.05)
            yield pa.RecordBatch.from_pydict(row)

    return probe


def _lack(worker: Worker) -> str | None:
    wrong = []
    for name, least in REQUIREMENTS.items():
        version = worker.versions[name]
        if version is None or (version and _numbers(version) < _numbers(least)):
            wrong.append(f"{name}>={least}" + (f" (it is {version})" if version else ""))
    there = worker.versions["zonebloom"]
    if there is None or (there and there != __version__):
        wrong.append(f"zonebloom=={__version__}" + (f" (it is {there})" if there else ""))
    if not wrong:
        return None
    return f"{worker.host} (Python {worker.python}, {worker.executable}) lacks {', '.join(wrong)}"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])
