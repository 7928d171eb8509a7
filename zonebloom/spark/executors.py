"""Check whether Spark's executors can run zonebloom, and send the package to them."""

from __future__ import annotations

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
from zonebloom.spark.session_settings import parallelism
from zonebloom.spark.session_state import application_state
from zonebloom.spark.versions import HAS_PYTHON_SOURCES, spark_context

# The versions in pyproject.toml. `send_package` cannot send these packages, because they contain
# compiled code.
REQUIREMENTS = {
    "numba": "0.61",
    "numpy": "2.0",
    "pyarrow": "26",
    "sqlglot": "28",
    "xxhash": "3.4",
}
_ASSUMED_CONNECT_CORES = 8


@dataclass(frozen=True)
class Worker:
    """A Python process that ran a task on an executor."""

    host: str
    executable: str
    python: str
    # Versions of zonebloom and its requirements by name. None means that a package is missing, ""
    # that its version is unknown.
    versions: dict[str, str | None]

    def __str__(self) -> str:
        packages = ", ".join(f"{name} {text or '?'}" for name, text in self.versions.items())
        return f"{self.host}: Python {self.python} ({self.executable}), {packages}"

    def missing_requirements(self) -> str:
        """Return a text about missing or unsuitable packages, empty if there are none."""
        problems = []
        for name, version in self.versions.items():
            minimum = REQUIREMENTS.get(name)
            is_suitable = version == __version__ if minimum is None else _at_least(version, minimum)
            if version is None or (version and not is_suitable):
                requirement = f"{name}=={__version__}" if minimum is None else f"{name}>={minimum}"
                problems.append(requirement + (f" (it is {version})" if version else ""))
        process = f"{self.host} (Python {self.python}, {self.executable})"
        return f"{process} lacks {', '.join(problems)}" if problems else ""


def _at_least(version: str | None, minimum: str) -> bool:
    numbers = [tuple(map(int, re.findall(r"\d+", text)[:3])) for text in (version or "", minimum)]
    return numbers[0] >= numbers[1]


@dataclass(frozen=True, repr=False)
class ExecutorReport(Displayed):
    """The Python processes and packages of the executors. `str` shows a line for each kind.

    Attributes
    ----------
    workers : tuple of Worker
        ``host``, ``executable``, ``python`` (its version) and ``versions`` of packages.
    """

    workers: tuple[Worker, ...]

    def __str__(self) -> str:
        return "\n".join(map(str, self.workers))


def check_executors(spark: SparkSession) -> ExecutorReport:
    """Run a short job that asks the executors for their Python and packages.

    Parameters
    ----------
    spark : SparkSession
        Classic or Connect.

    Returns
    -------
    ExecutorReport
        Of the executors that ran a task of the job, which is usually every running executor.

    Raises
    ------
    EngineError
        If Python does not start on an executor or has another version, or if zonebloom or one of
        its requirements is missing or has an unsuitable version. The message lists all problems
        and says what to do.

    Examples
    --------
    >>> sorted(zs.check_executors(spark).workers[0].versions)
    ['numba', 'numpy', 'pyarrow', 'sqlglot', 'xxhash', 'zonebloom']
    """
    num_tasks = 2 * (parallelism(spark) or _ASSUMED_CONNECT_CORES)
    job = spark.range(0, num_tasks, 1, num_tasks)
    with explain_spark_errors(always=True):
        rows = (
            job.mapInArrow(_versions_function(list(REQUIREMENTS)), "worker string")
            .distinct()
            .collect()
        )
    workers = [Worker(**json.loads(row.worker)) for row in rows]
    workers.sort(key=lambda worker: (worker.host, worker.executable))
    problems = list(filter(None, map(Worker.missing_requirements, workers)))
    if problems:
        send_advice = (
            "; zonebloom.spark.send_package(spark) sends zonebloom itself"
            if any(worker.versions["zonebloom"] != __version__ for worker in workers)
            else ""
        )
        raise EngineError(
            f"executors cannot run zonebloom {__version__}: {'; '.join(problems)}. "
            f"Install it there with pip{send_advice}"
        )
    return ExecutorReport(tuple(workers))


def _versions_function(names: Sequence[str]) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return a function that runs on executors without this package."""

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
            # The import fails if zonebloom or one of its requirements is missing. A missing
            # requirement has its own entry, so zonebloom itself counts as present then.
            versions["zonebloom"] = None if error.name == "zonebloom" else ""
        worker = {
            "host": socket.gethostname(),
            "executable": sys.executable,
            "python": platform.python_version(),
            "versions": versions,
        }
        for _ in batches:
            # Without a pause one fast executor could run all the tasks.
            time.sleep(0.05)
            yield pa.RecordBatch.from_pydict({"worker": [json.dumps(worker)]})

    return probe


def send_package(spark: SparkSession) -> str:
    """Send this version of zonebloom to the executors of a session.

    Call it once in a session, before the first build or scan. Spark unpacks the archive on the
    executors and keeps it while the application runs. The archive contains the compiled kernels,
    which executors with the same CPU and Numba reuse. The requirements of zonebloom must be
    installed there already; `check_executors` reports those that are missing.

    Parameters
    ----------
    spark : SparkSession
        Classic, where all sessions of its context get the package, or Connect, where only this
        one does.

    Returns
    -------
    str
        Name of the archive. The same code always makes the same archive.

    Raises
    ------
    EngineError
        If ``spark`` is no session, or Spark does not accept the archive.

    Examples
    --------
    >>> zs.send_package(spark)    # doctest: +SKIP
    'zonebloom-0.2.0-701c66043e3662ff.zip'
    """
    context = spark_context(spark)
    application = application_state(spark)
    with application.lock:
        if application.archives is None:
            application.archives = tempfile.TemporaryDirectory(prefix="zonebloom-archive-")
        archive = _write_archive(application.archives.name)
    name = os.path.basename(archive)
    # Spark unpacks the archive into a folder "zonebloom" in the working folder of the worker, which
    # comes first on Python's path.
    archive_with_folder = f"{archive}#zonebloom"
    with explain_spark_errors(always=True):
        if context is None:
            spark.addArtifacts(archive_with_folder, archive=True)
        else:
            context.addArchive(archive_with_folder)
            # A changed environment makes Spark start new workers, so workers that have already
            # loaded another zonebloom are not reused.
            context.environment["ZONEBLOOM_ARCHIVE"] = name
    if HAS_PYTHON_SOURCES:
        # Spark pickled the format when it was registered, before it knew of the archive.
        register(spark, anew=True)
    return name


def _write_archive(folder: str) -> str:
    """Return the path of the archive in a folder, and write it unless it is there already."""
    contents = _archive_contents()
    digest = xxhash.xxh3_128()
    for name, data in contents.items():
        digest.update(f"{name}\0{len(data)}\0".encode())
        digest.update(data)
    name = f"zonebloom-{__version__}-{digest.hexdigest()[:16]}.zip"
    path = os.path.join(folder, name)
    if not os.path.exists(path):
        with zipfile.ZipFile(f"{path}.part", "w") as file:
            for name, data in contents.items():
                file.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
        os.replace(f"{path}.part", path)
    return path


def _archive_contents() -> dict[str, bytes]:
    """Return the sources of the package and its compiled kernels, by path in the package."""
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
