"""What a failed Spark job most likely means, and what to do about it.

Spark hands over the text of what went wrong in a Python process elsewhere: a traceback of it, or
that it could not start, among lines of the JVM.
"""

from __future__ import annotations

import os
import re
import sys

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
_NOT_STARTED = (
    "Error from python worker",
    "pyspark.daemon's stdout",
    "pyspark.daemon's standard output",
)


def explained(error: Exception) -> Exception:
    """The error to raise for one of Spark's.

    The one of zonebloom's that a task raised, else an `EngineError` that says what to do.
    """
    found = told(error)
    if found is not None:
        return found
    lines = (line.strip() for line in str(error).splitlines())
    first = next(filter(None, lines), type(error).__name__)
    return EngineError(f"the Spark job failed: {first}; spark=False builds in this process")


def told(error: Exception) -> Exception | None:
    """As `explained`; None when nothing is known of such an error."""
    text = str(error)
    if ours := _OURS.findall(text):
        name, message = ours[-1]
        kind = getattr(errors, name, None)
        if kind is not None:
            return kind(message.strip())
    if found := _VERSIONS.search(text):
        return EngineError(
            f"Spark's workers run Python {found[1]} and this process Python {found[2]}, which "
            f"must be the same: {_set_python()}"
        )
    if any(sign in text for sign in _NOT_STARTED):
        return EngineError(
            f"Python does not start on Spark's executors{_last_of_traceback(text)}: {_set_python()}"
        )
    if _OTHER_VERSION.search(text):
        return EngineError(
            "Spark's executors have another zonebloom than this process: install "
            f"{__version__} there, or send it to those of this session with "
            "zonebloom.spark.send_package(spark)"
        )
    if found := _NO_MODULE.search(text):
        return _no_module(found[1])
    if found := _PACKAGE.search(text):
        there = f"{found[1]} {found[3]}" if found[3] else f"no {found[1]}"
        return EngineError(
            f"Spark has {there} where it needs {found[1]} {found[2]} or newer: install it for "
            f"the Python of the driver and of the executors, or {_set_python()}"
        )
    if found := _NO_PROGRAM.search(text):
        return EngineError(f"there is no {found[1]} on Spark's executors: {_set_python()}")
    if "Python worker exited unexpectedly" in text:
        return EngineError(
            "a Python worker of Spark died: give it more memory (spark.executor.memoryOverhead) "
            "if the system killed it for that, or have fewer run at a time "
            f"(spark.executor.cores). If it was the wrong Python: {_set_python()}"
        )
    return None


def _no_module(name: str) -> EngineError:
    package = name.split(".", maxsplit=1)[0]
    if package == "zonebloom":
        return EngineError(
            "Spark's workers have no module zonebloom: install zonebloom on the executors, send "
            "it to those of this session with zonebloom.spark.send_package(spark), or "
            f"{_set_python()}"
        )
    return EngineError(
        f"Spark's workers have no module {name}: install zonebloom on the executors with all it "
        f"needs (zonebloom.spark.check_executors(spark) says what they lack), or {_set_python()}. "
        "A module of your own is sent with spark.addArtifacts(path, pyfile=True)"
    )


def _set_python() -> str:
    given = os.environ.get("PYSPARK_PYTHON")
    now = f"it is {given}" if given else "it is not set, so they run the first python3 of PATH"
    return (
        "set PYSPARK_PYTHON to a Python of theirs like this one "
        f"({sys.executable}, {sys.version_info[0]}.{sys.version_info[1]}) before the session "
        f"starts; {now}"
    )


def _last_of_traceback(text: str) -> str:
    found = re.findall(r"(?:^\s*|\()(\w+Error: [^()\n]+)", text, re.M)
    return f" ({found[-1].strip()})" if found else ""
