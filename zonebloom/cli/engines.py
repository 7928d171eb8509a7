"""Choose where a build of the command line runs: on Spark or in this process.

It runs in this process if there is little data, or if Java or pyspark is missing.
"""

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

LOCAL_MASTER = "local[*]"
_HOW_TO_GET_JAVA = (
    "install one (Debian: apt-get install openjdk-17-jre-headless; JAVA_HOME, if set, must name "
    "it), or build in this process with --engine local"
)
_HOW_TO_GET_PYSPARK = "pip install 'zonebloom[spark]', or build in this process with --engine local"


def java_version() -> tuple[int, ...] | None:
    """Return the version of the Java that Spark would start, or None if there is none."""
    home = os.environ.get("JAVA_HOME")
    # Spark's own scripts ignore PATH if JAVA_HOME is set, so this must, too.
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if java is None:
        return None
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    # Java prints a line to stderr such as: openjdk version "17.0.15" 2025-04-15
    version = re.search(rb'version "(\d+(?:[._]\d+)*)', answer.stderr + answer.stdout)
    if version is None:
        return None
    # Java 8 calls itself 1.8.
    numbers = version[1].decode().removeprefix("1.")
    return tuple(int(part) for part in re.split(r"[._]", numbers))


def _min_java() -> int:
    """Return the oldest Java that the installed Spark can use."""
    import pyspark

    return 8 if int(pyspark.__version__.partition(".")[0]) < 4 else 17


def missing_spark_requirement(master: str = LOCAL_MASTER) -> str | None:
    """Return a message that says what Spark lacks to run, or None if it can run."""
    if find_spec("pyspark") is None:
        return "pyspark is not installed"
    if _is_connect(master):
        return None
    version = java_version()
    min_java = _min_java()
    if version is None or version[0] < min_java:
        home = os.environ.get("JAVA_HOME")
        location = f" at JAVA_HOME ({home})" if home else ""
        version_text = f" (it is {'.'.join(map(str, version))})" if version else ""
        return f"no Java {min_java} or newer found{location}{version_text}"
    return None


def require_spark(master: str | None) -> None:
    """Raise `EngineError` if Spark cannot run."""
    missing = missing_spark_requirement(master or LOCAL_MASTER)
    if missing is not None:
        raise _missing_requirement_error(missing)


def spark_session(master: str = LOCAL_MASTER, app_name: str = "zonebloom") -> SparkSession:
    """Return the active Spark session, or start one. Raise `EngineError` if Spark cannot run."""
    require_spark(master)
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    # By default the workers run the first python3 of PATH, which may lack the packages.
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
        # No other machine takes part, and the host name of this machine may not resolve.
        builder = builder.config("spark.driver.host", "localhost")
        builder = builder.config("spark.driver.bindAddress", "127.0.0.1")
    # When an interrupt ends a call, py4j logs a traceback. It raises all errors as well, so its
    # log records are not needed.
    logging.getLogger().addFilter(_is_not_from_py4j)
    with _redirected_stderr() as read_log:
        try:
            return builder.getOrCreate()
        except Exception as error:
            raise EngineError(
                f"Spark did not start on {master!r}: {_cause(error, read_log())}; check --master, "
                "or build in this process with --engine local"
            ) from error


def _is_not_from_py4j(record: logging.LogRecord) -> bool:
    return record.module not in ("java_gateway", "clientserver")


def choose_session(
    engine: Literal["spark", "local"] | None,
    master: str | None,
    report: Callable[[str], object],
    num_bytes: Callable[[], int] | None = None,
) -> SparkSession | Literal[False]:
    """Return the value of ``spark`` for `Dataset.create_scalar_index`: a session or False.

    ``num_bytes`` returns how much there is to read. It is called only if neither an engine nor a
    master is given. ``report`` gets a message if Spark cannot run and was not required.
    """
    if engine == "local":
        return False
    if engine is None and master is None and num_bytes and num_bytes() < WORTH_AN_ENGINE:
        return False
    master = master or LOCAL_MASTER
    missing = missing_spark_requirement(master)
    if missing is None:
        return spark_session(master)
    if engine == "spark":
        raise _missing_requirement_error(missing)
    report(f"{missing}: building in this process with the same code")
    return False


def _missing_requirement_error(missing: str) -> EngineError:
    hint = _HOW_TO_GET_JAVA if find_spec("pyspark") else _HOW_TO_GET_PYSPARK
    return EngineError(f"{missing}, so Spark cannot run: {hint}")


def _is_connect(master: str) -> bool:
    return master.startswith("sc://")


@contextmanager
def _redirected_stderr() -> Iterator[Callable[[], str]]:
    """Redirect stderr to a file, and yield a function that returns its text.

    Spark and Java print to stderr when the JVM starts, before a log level applies.
    """
    with tempfile.TemporaryFile() as file:
        sys.stderr.flush()
        original = os.dup(2)
        try:
            os.dup2(file.fileno(), 2)

            def read_log() -> str:
                file.seek(0)
                return file.read().decode(errors="replace")

            yield read_log
        finally:
            os.dup2(original, 2)
            os.close(original)


def _cause(error: Exception, log: str) -> str:
    """Return why a session failed to start, in one line of the JVM's log or of the error."""
    log_lines, error_lines = log.splitlines(), str(error).splitlines()
    causes = [line for line in log_lines if " ERROR " in line]
    causes += [line for line in log_lines + error_lines if "Exception: " in line]
    causes += [*filter(str.strip, error_lines), type(error).__name__]
    # Drop the time, the log level and the names of classes before the message.
    return re.split(r" ERROR \w+: |Exception: ", causes[0])[-1].strip(" .")
