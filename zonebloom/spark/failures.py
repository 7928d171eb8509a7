"""What a failed Spark job most likely means, and what to do about it.

Of what went wrong in a Python process elsewhere Spark hands over nothing but text: a traceback, or
that the process could not start, among lines of the JVM.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from zonebloom import errors
from zonebloom.errors import EngineError
from zonebloom.version import __version__

_OURS = re.compile(r"^\s*zonebloom\.errors\.(\w+): (.+?)(?:\s+SQLSTATE: \w+)?$", re.M)
_NO_MODULE = re.compile(r"No module named '?([\w.]+)")
_VERSIONS = re.compile(r"in worker has different version: ([\d.]+) than that in driver: ([\d.]+)")
_PACKAGE = re.compile(
    r"(?:PACKAGE_NOT_INSTALLED|UNSUPPORTED_PACKAGE_VERSION)\] (\w+) >= ([\w.]+)"
    r".*?(?:your version is ([\w.]+?))?\.?$",
    re.M,
)
_NO_PROGRAM = re.compile(r'Cannot run program "([^"]+)"')
# Names of ours that another version does not have.
_OTHER_VERSION = re.compile(
    r"Can't get attribute '\w+' on <module 'zonebloom|cannot import name '\w+' from 'zonebloom"
    r"|No module named 'zonebloom\."
)
_NOT_STARTED = re.compile("Error from python worker|pyspark.daemon's (?:stdout|standard output)")
_RAISED = re.compile(r"(?:^\s*|\()(\w+Error: [^()\n]+)", re.M)
_SEND = "send it to those of this session with zonebloom.spark.send_package(spark)"


@contextmanager
def explained(always: bool = False) -> Iterator[None]:
    """Raise what an error of Spark means in its place; `EngineError` for an unknown one if always.

    An error of zonebloom's that a task raised is raised here.
    """
    try:
        yield
    except Exception as error:
        cause = meaning(error)
        if cause is not None:
            raise cause from error
        if not always:
            raise
        lines = (line.strip() for line in str(error).splitlines())
        first = next(filter(None, lines), type(error).__name__)
        raise EngineError(
            f"the Spark job failed: {first}; spark=False builds in this process"
        ) from error


def meaning(error: Exception) -> Exception | None:
    """What an error of Spark's stands for; None when nothing is known of such an error."""
    text = str(error)
    for name, message in reversed(_OURS.findall(text)):
        kind = getattr(errors, name, None)
        if kind is not None:
            return kind(message.strip())
    message = _message(text)
    return None if message is None else EngineError(message)


def _message(text: str) -> str | None:
    if match := _VERSIONS.search(text):
        return (
            f"Spark's workers run Python {match[1]} and this process Python {match[2]}, which "
            f"must be the same: {_set_python()}"
        )
    if _NOT_STARTED.search(text):
        raised = _RAISED.findall(text)
        why = f" ({raised[-1].strip()})" if raised else ""
        return f"Python does not start on Spark's executors{why}: {_set_python()}"
    if _OTHER_VERSION.search(text):
        return (
            "Spark's executors have another zonebloom than this process: install "
            f"{__version__} there, or {_SEND}"
        )
    if match := _NO_MODULE.search(text):
        package = match[1].partition(".")[0]
        lack = f"Spark's workers have no module {package}: install zonebloom on the executors"
        if package == "zonebloom":
            return f"{lack}, {_SEND}, or {_set_python()}"
        return (
            f"{lack} with all it needs (zonebloom.spark.check_executors(spark) says what they "
            f"lack), or {_set_python()}. A module of your own is sent with "
            "spark.addArtifacts(path, pyfile=True)"
        )
    if match := _PACKAGE.search(text):
        there = f"{match[1]} {match[3]}" if match[3] else f"no {match[1]}"
        return (
            f"Spark has {there} where it needs {match[1]} {match[2]} or newer: install it for "
            f"the Python of the driver and of the executors, or {_set_python()}"
        )
    if match := _NO_PROGRAM.search(text):
        return f"there is no {match[1]} on Spark's executors: {_set_python()}"
    if "Python worker exited unexpectedly" in text:
        return (
            "a Python worker of Spark died: give it more memory (spark.executor.memoryOverhead) "
            "if the system killed it for that, or have fewer run at a time "
            f"(spark.executor.cores). If it was the wrong Python: {_set_python()}"
        )
    return None


def _set_python() -> str:
    given = os.environ.get("PYSPARK_PYTHON")
    now = f"it is {given}" if given else "it is not set, so they run the first python3 of PATH"
    return (
        "set PYSPARK_PYTHON to a Python of theirs like this one "
        f"({sys.executable}, {sys.version_info[0]}.{sys.version_info[1]}) before the session "
        f"starts; {now}"
    )
