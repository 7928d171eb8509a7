"""Executors: what they have of what zonebloom needs, and the package sent to those that lack it."""

from __future__ import annotations

import functools
import importlib
import json
import os
import re
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash
from pyspark.sql import SparkSession

import zonebloom
from zonebloom.base.display import Displayed
from zonebloom.base.version import __version__
from zonebloom.errors import EngineError
from zonebloom.spark.data_source import register
from zonebloom.spark.failures import explain_spark_errors
from zonebloom.spark.session import parallelism, spark_context

# As in pyproject.toml; a zip cannot bring them, for they are compiled for the machine.
REQUIREMENTS = {
    "filelock": "3.12",
    "numba": "0.61",
    "numpy": "2.0",
    "pyarrow": "26",
    "sqlglot": "28",
    "xxhash": "3.4",
}
_CORES_OVER_CONNECT = 8


@dataclass(frozen=True)
class Worker:
    """A Python that ran a task."""

    host: str
    executable: str
    python: str
    # Of zonebloom and what it needs; None where it is missing, "" where it does not say.
    versions: dict[str, str | None]

    def __str__(self) -> str:
        have = ", ".join(f"{name} {said or '?'}" for name, said in self.versions.items())
        return f"{self.host}: Python {self.python} ({self.executable}), {have}"

    def missing_requirements(self) -> str:
        """What it needs and does not have, empty when that is nothing."""
        wrong = []
        for name, version in self.versions.items():
            least = REQUIREMENTS.get(name)
            fits = version == __version__ if least is None else _at_least(version, least)
            if version is None or (version and not fits):
                wanted = f"{name}=={__version__}" if least is None else f"{name}>={least}"
                wrong.append(wanted + (f" (it is {version})" if version else ""))
        who = f"{self.host} (Python {self.python}, {self.executable})"
        return f"{who} lacks {', '.join(wrong)}" if wrong else ""


def _at_least(version: str | None, least: str) -> bool:
    numbers = [tuple(map(int, re.findall(r"\d+", text)[:3])) for text in (version or "", least)]
    return numbers[0] >= numbers[1]


@dataclass(frozen=True, repr=False)
class ExecutorReport(Displayed):
    """What executors have; `str` shows it, a line for each different one.

    Attributes
    ----------
    workers : tuple of Worker
        ``host``, ``executable``, ``python`` (its version) and ``versions`` of packages.
    """

    workers: tuple[Worker, ...]

    def __str__(self) -> str:
        return "\n".join(map(str, self.workers))


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

    Examples
    --------
    >>> sorted(zs.check_executors(spark).workers[0].versions)
    ['filelock', 'numba', 'numpy', 'pyarrow', 'sqlglot', 'xxhash', 'zonebloom']
    """
    num_tasks = 2 * (parallelism(spark) or _CORES_OVER_CONNECT)
    job = spark.range(0, num_tasks, 1, num_tasks)
    with explain_spark_errors(always=True):
        rows = job.mapInArrow(_probe(list(REQUIREMENTS)), "worker string").distinct().collect()
    workers = [Worker(**json.loads(row.worker)) for row in rows]
    workers.sort(key=lambda worker: (worker.host, worker.executable))
    lacks = list(filter(None, map(Worker.missing_requirements, workers)))
    if lacks:
        send = (
            "; zonebloom.spark.send_package(spark) sends zonebloom itself"
            if any(worker.versions["zonebloom"] != __version__ for worker in workers)
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

        versions: dict[str, str | None] = {}
        for name in names:
            try:
                versions[name] = importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                versions[name] = None if importlib.util.find_spec(name) is None else ""
        try:
            import zonebloom

            versions["zonebloom"] = zonebloom.__version__
        except ImportError as error:
            # Of something it needs, which is told by itself, or it is not there.
            versions["zonebloom"] = None if error.name == "zonebloom" else ""
        worker = {
            "host": socket.gethostname(),
            "executable": sys.executable,
            "python": platform.python_version(),
            "versions": versions,
        }
        for _ in batches:
            # Long enough that no executor runs all of the tasks.
            time.sleep(0.05)
            yield pa.RecordBatch.from_pydict({"worker": [json.dumps(worker)]})

    return probe


def send_package(spark: SparkSession) -> str:
    """Send this zonebloom to the executors of a session, which may lack it.

    Once a session is enough, before the first build or scan in it. Spark unpacks it on executors
    for as long as the application runs, with the kernels compiled here, which fit where CPU and
    Numba are the same. What zonebloom needs must be installed there: `check_executors` says what
    is not.

    Parameters
    ----------
    spark : SparkSession
        Classic, where every session of its context gets it, or Connect, where this one does.

    Returns
    -------
    str
        Name of the archive that was sent. The same code makes the same archive.

    Raises
    ------
    EngineError
        When it is no session, or Spark does not take the archive.

    Examples
    --------
    >>> zs.send_package(spark)    # doctest: +SKIP
    'zonebloom-0.2.0-701c66043e3662ff.zip'
    """
    context = spark_context(spark)
    archive = _archive()
    name = os.path.basename(archive)
    # Spark unpacks it into a folder of that name, in which Python looks for modules first.
    unpacked = f"{archive}#zonebloom"
    with explain_spark_errors(always=True):
        if context is None:
            spark.addArtifacts(unpacked, archive=True)
        else:
            context.addArchive(unpacked)
            # Workers that have loaded another zonebloom are not used again.
            context.environment["ZONEBLOOM_ARCHIVE"] = name
    # The format as registered before knows nothing of the archive.
    register(spark, anew=True)
    return name


def _archive() -> str:
    """Path of the archive, written when this process has not written the same before."""
    contents = _contents()
    digest = xxhash.xxh3_128()
    for name, data in contents.items():
        digest.update(f"{name}\0{len(data)}\0".encode())
        digest.update(data)
    name = f"zonebloom-{__version__}-{digest.hexdigest()[:16]}.zip"
    path = os.path.join(_folder().name, name)
    if not os.path.exists(path):
        with zipfile.ZipFile(f"{path}.part", "w") as file:
            for name, data in contents.items():
                file.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
        os.replace(f"{path}.part", path)
    return path


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """Deleted when this process ends: executors that start late still ask for the archive."""
    return tempfile.TemporaryDirectory(prefix="zonebloom-archive-")


def _contents() -> dict[str, bytes]:
    """The sources of the package, and what Numba made of its kernels, by path in it."""
    package = Path(zonebloom.__path__[0])
    paths = [path for path in package.rglob("*") if path.suffix in (".py", ".typed")]
    contents = {path.relative_to(package).as_posix(): path.read_bytes() for path in paths}
    for name in [name for name, source in contents.items() if b"@kernel(" in source]:
        folder, stem = os.path.split(name.removesuffix(".py"))
        module = importlib.import_module(f"zonebloom.{folder.replace('/', '.')}.{stem}")
        for kernel in vars(module).values():
            cache = getattr(getattr(kernel, "stats", None), "cache_path", None)
            if cache is None:
                continue
            line = kernel.py_func.__code__.co_firstlineno
            for path in Path(cache).glob(f"{stem}.{kernel.py_func.__qualname__}-{line}.*.nb[ic]"):
                contents[f"{folder}/__pycache__/{path.name}"] = path.read_bytes()
    return dict(sorted(contents.items()))
