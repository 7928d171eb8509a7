"""Explain the errors of failed Spark jobs, and say what to do.

Spark reports an error of a Python process on an executor only as text, so the cause is found by
patterns in it.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from zonebloom import errors
from zonebloom.base.version import __version__
from zonebloom.errors import EngineError
from zonebloom.spark.versions import PYTHON_START_FAILURE, SEND_MODULE_CALL

_ZONEBLOOM_ERROR = re.compile(r"^\s*zonebloom\.errors\.(\w+): (.+?)(?:\s+SQLSTATE: \w+)?$", re.M)
# Patterns in the text of an error, and their causes. The first matching pattern counts.
_CAUSES = (
    (
        r"in worker has different version: ([\d.]+) than that in driver: ([\d.]+)",
        "Spark's workers run Python {0} and this process Python {1}, which must be the same",
    ),
    (
        rf"(?s){PYTHON_START_FAILURE}(?:.*(?:^\s*|\()(\w+Error: [^()\n]+))?",
        "Python does not start on Spark's executors ({0})",
    ),
    # The executors' zonebloom lacks a name or module of this version.
    (
        r"Can't get attribute '\w+' on <module 'zonebloom|cannot import name '\w+' from 'zonebloom"
        r"|No module named 'zonebloom\.",
        "Spark's executors have another zonebloom than this process",
    ),
    (r"No module named '?(\w+)", "Spark's workers have no module {0}"),
    (
        r"(?:PACKAGE_NOT_INSTALLED|UNSUPPORTED_PACKAGE_VERSION)\] (.*)",
        "Spark lacks a package that it needs: {0}",
    ),
    (r'Cannot run program "([^"]+)"', "there is no {0} on Spark's executors"),
    (
        "Python worker exited unexpectedly",
        "a Python worker of Spark died: give it more memory (spark.executor.memoryOverhead) if the "
        "system killed it for that, or have fewer run at a time (spark.executor.cores)",
    ),
)


@contextmanager
def explain_spark_errors(always: bool = False) -> Iterator[None]:
    """Replace an error of Spark by its cause, if that is known.

    If a task raised a zonebloom error, raise the same error here. If the cause is unknown, raise
    `EngineError` if `always` is set, or else Spark's own error.
    """
    try:
        yield
    except Exception as error:
        cause = find_cause(error)
        if cause is not None:
            # The message of a zonebloom error says everything; the JVM's stack trace adds nothing.
            raise cause from error if isinstance(cause, EngineError) else None
        if not always:
            raise
        lines = (line.strip() for line in str(error).splitlines())
        first = next(filter(None, lines), type(error).__name__)
        raise EngineError(
            f"the Spark job failed: {first}; spark=False builds in this process"
        ) from error


def find_cause(error: Exception) -> Exception | None:
    """Return the error that explains an error of Spark, or None if its cause is unknown."""
    text = str(error)
    for name, message in reversed(_ZONEBLOOM_ERROR.findall(text)):
        kind = getattr(errors, name, None)
        if kind is not None:
            return kind(message.strip())
    for pattern, cause in _CAUSES:
        match = re.search(pattern, text, re.M)
        if match is not None:
            cause = cause.format(*(group or "no reason given" for group in match.groups()))
            return EngineError(f"{cause.rstrip('.')}. {_python_advice()}")
    return None


def _python_advice() -> str:
    python = os.environ.get("PYSPARK_PYTHON")
    now = f"it is {python}" if python else "it is not set, so they run the first python3 of PATH"
    return (
        f"Executors need zonebloom {__version__} and its requirements, which "
        "zonebloom.spark.check_executors(spark) checks (zonebloom.spark.send_package(spark) "
        f"sends zonebloom itself, {SEND_MODULE_CALL} a module of your own), in a Python like this "
        f"one ({sys.executable}, {sys.version_info[0]}.{sys.version_info[1]}): set PYSPARK_PYTHON "
        f"to such a Python on the executors before the session starts; {now}"
    )
