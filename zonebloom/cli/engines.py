"""Where a build runs, for the command line: Spark, or this process where there is little to do,
or Java or pyspark is missing."""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal

from zonebloom.building.builder import WORTH_AN_ENGINE
from zonebloom.errors import EngineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL = "local[*]"
# What Spark 4 runs on.
_LEAST_JAVA = 17
_HOW_TO_GET_JAVA = (
    "install one (Debian: apt-get install openjdk-17-jre-headless; JAVA_HOME, if set, must name "
    "it), or build in this process with --engine local"
)
_HOW_TO_GET_PYSPARK = "pip install 'zonebloom[spark]', or build in this process with --engine local"


def java_version() -> tuple[int, ...] | None:
    """Version of the Java that Spark would start, JAVA_HOME's or PATH's; None where none runs."""
    home = os.environ.get("JAVA_HOME")
    # As Spark's own scripts: when JAVA_HOME is set, PATH is not looked at.
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if java is None:
        return None
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    # Java writes it to stderr: openjdk version "17.0.15" 2025-04-15
    version = re.search(rb'version "(\d+(?:[._]\d+)*)', answer.stderr + answer.stdout)
    if version is None:
        return None
    return tuple(int(part) for part in re.split(r"[._]", version[1].decode()))


def missing_for_spark(master: str = LOCAL) -> str | None:
    if find_spec("pyspark") is None:
        return "pyspark is not installed"
    if _is_connect(master):
        return None
    version = java_version()
    # Java 8 called itself 1.8.
    if version is None or version[0] < _LEAST_JAVA:
        home = os.environ.get("JAVA_HOME")
        where = f" at JAVA_HOME ({home})" if home else ""
        there = f" (it is {'.'.join(map(str, version))})" if version else ""
        return f"no Java {_LEAST_JAVA} or newer found{where}{there}"
    return None


def spark_session(master: str = LOCAL, app_name: str = "zonebloom") -> SparkSession:
    missing = missing_for_spark(master)
    if missing is not None:
        raise _cannot_run(missing)
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    # Else the workers run the first python3 of PATH, perhaps one without our packages.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app_name)
    if _is_connect(master):
        builder = builder.remote(master)
    else:
        builder = (
            builder.master(master)
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.log.level", "ERROR")
        )
    if master.startswith("local"):
        # No other machine takes part, and the machine's own name may not resolve.
        builder = builder.config("spark.driver.host", "localhost")
        builder = builder.config("spark.driver.bindAddress", "127.0.0.1")
    # It logs the call that an interrupt breaks off, with a traceback, and raises what failed.
    logging.getLogger().addFilter(_is_not_of_py4j)
    with _stderr_aside() as read_log:
        try:
            return builder.getOrCreate()
        except Exception as error:
            raise EngineError(
                f"Spark did not start on {master!r}: {_cause(error, read_log())}; check --master, "
                "or build in this process with --engine local"
            ) from error


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return record.module not in ("java_gateway", "clientserver")


def choose(
    engine: Literal["spark", "local"] | None,
    master: str | None,
    say: Callable[[str], object],
    num_bytes: Callable[[], int] | None = None,
) -> SparkSession | Literal[False]:
    """The engine to build on, as `Dataset.create_scalar_index` takes it for ``spark``.

    How much there is to read is asked where neither an engine nor a master is given.
    """
    if engine == "local":
        return False
    if engine is None and master is None and num_bytes and num_bytes() < WORTH_AN_ENGINE:
        return False
    master = master or LOCAL
    missing = missing_for_spark(master)
    if missing is None:
        return spark_session(master)
    if engine == "spark":
        raise _cannot_run(missing)
    say(f"{missing}: building in this process with the same code")
    return False


def _cannot_run(missing: str) -> EngineError:
    hint = _HOW_TO_GET_JAVA if find_spec("pyspark") else _HOW_TO_GET_PYSPARK
    return EngineError(f"{missing}, so Spark cannot run: {hint}")


def _is_connect(master: str) -> bool:
    return master.startswith("sc://")


@contextmanager
def _stderr_aside() -> Iterator[Callable[[], str]]:
    """Give a JVM a file for its stderr: Spark and Java print there before any log level holds."""
    with tempfile.TemporaryFile() as aside:
        sys.stderr.flush()
        before = os.dup(2)
        try:
            os.dup2(aside.fileno(), 2)

            def read_log() -> str:
                aside.seek(0)
                return aside.read().decode(errors="replace")

            yield read_log
        finally:
            os.dup2(before, 2)
            os.close(before)


def _cause(error: Exception, log: str) -> str:
    """The line that tells why a session failed: of the JVM's log if it says, else the error."""
    logged, raised = log.splitlines(), str(error).splitlines()
    causes = [line for line in logged if " ERROR " in line]
    causes += [line for line in logged + raised if "Exception: " in line]
    causes += [*filter(str.strip, raised), type(error).__name__]
    # Behind the time, the level and the names of classes.
    return re.split(r" ERROR \w+: |Exception: ", causes[0])[-1].strip(" .")
