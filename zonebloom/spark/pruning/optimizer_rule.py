"""Give a frame or a session the optimizer rule of `IndexedFiles.java`, and answer its requests.

A request asks which files may hold rows that pass the filters of a scan.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.resources import files
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from zonebloom.base import arguments
from zonebloom.base.notices import warn
from zonebloom.errors import EngineError, IndexNotUsedWarning, ZoneBloomWarning
from zonebloom.sbbf.kernel_loader import KERNELS
from zonebloom.spark.pruning.explanation import PruningResult
from zonebloom.spark.pruning.jvm_scan import JvmScan
from zonebloom.spark.session_state import SessionState, compiled_java, session_state
from zonebloom.spark.versions import (
    access_to_plans,
    frame_from_jvm,
    java_frame,
    java_session,
    new_java_object,
)

_JAVA_FILES = "IndexedFiles.java", "SmallSide.java", "WriteListener.java"
# A function that returns which files of a scan hold no matching row.
Ask = Callable[[JvmScan], PruningResult]
# If an index gives no answer in this time, Spark reads all files of the scan.
MAX_ANSWER_SECONDS = 60.0
_TIMEOUT_TEXT = "an index answered too late, so Spark read all files of that scan"


def warn_once(state: SessionState, warning: ZoneBloomWarning, roots: Sequence[str] = ()) -> None:
    """Issue a warning once for each session and tuple of roots."""
    cause = *roots, str(warning)
    if not state.issued_warnings.get(cause):
        state.issued_warnings.put(cause, value=True)
        warn(warning)


class FileChooser:
    """The function that the JVM calls for each scan, in its own thread, to choose files."""

    def __init__(self, ask: Ask, state: SessionState):
        self._ask = ask
        self._state = state

    def apply(self, request: str, java_scan: Any) -> str:
        """Choose the files that Spark reads for a scan. Return them and a description as JSON."""
        start = time.monotonic()
        roots: list[str] = []
        try:
            scan = JvmScan(java_scan, self._state.listings, request)
            roots = scan.roots
            result = self._ask(scan)
            self._issue_warnings(result, roots)
            answer = result.answer(scan.files if result.predicates else None)
            if time.monotonic() - start > MAX_ANSWER_SECONDS:
                warn_once(self._state, IndexNotUsedWarning(_TIMEOUT_TEXT), roots)
            return answer
        except Exception as error:  # noqa: BLE001 - Spark reads all files after an error
            text = f"files are not chosen by an index: {error!r}"
            result = PruningResult.of_unusable_index(text)
            # If the process turns warnings into errors, they must not fail the query either.
            with suppress(ZoneBloomWarning):
                self._issue_warnings(result, roots)
            return result.answer()

    def _issue_warnings(self, result: PruningResult, roots: Sequence[str]) -> None:
        for warning in result.warnings:
            warn_once(self._state, warning, roots)

    class Java:
        """The Java interface that py4j implements with this object."""

        implements = ("java.util.function.BiFunction",)


def java_texts() -> list[str]:
    """Return the Java files of this package."""
    folder = files("zonebloom.spark.pruning")
    return [(folder / name).read_text(encoding="utf-8") for name in _JAVA_FILES]


def jvm_plans(spark: Any) -> Any:
    """Return the Java object `Plans` in the JVM of a session, which reads and changes plans.

    Raise `EngineError` if the session gives no access to plans.
    """
    with access_to_plans(spark) as jvm:
        return compiled_java(jvm, lambda: new_java_object(jvm, "zonebloom.Plans", *java_texts()))


def _new_rule(spark: Any, ask: Ask) -> Any:
    """Return a Java optimizer rule that makes scans ask an index, or warn and return None."""
    state = session_state(spark)
    try:
        plans = jvm_plans(spark)
    except EngineError as error:
        warn_once(state, IndexNotUsedWarning(str(error)))
        return None
    return plans.rule(java_session(spark), FileChooser(ask, state), MAX_ANSWER_SECONDS)


def session_of(df: Any) -> Any:
    return arguments.require_instance(df, DataFrame, "df").sparkSession


def with_index(df: Any, ask: Ask) -> DataFrame:
    """Return a frame whose scans ask an index, or the frame itself if there is none to ask."""
    spark = session_of(df)
    rule = _new_rule(spark, ask)
    indexed = None if rule is None or df.isStreaming else rule.indexed(java_frame(df))
    return df if indexed is None else frame_from_jvm(indexed, spark)


def set_session_rule(spark: SparkSession, ask: Ask) -> None:
    """Make all queries of a session ask an index."""
    rule = _new_rule(spark, ask)
    if rule is not None:
        rule.install()
        session_state(spark).has_rule = True
        # The first query then finds the kernels that look at many files.
        KERNELS.load_in_background()


def remove_session_rule(spark: Any) -> None:
    """Let the queries of a session ask no index, except those of frames with their own rule."""
    session_state(spark).has_rule = False
    try:
        plans = jvm_plans(spark)
    except EngineError:
        return
    plans.removeRule(java_session(spark))
