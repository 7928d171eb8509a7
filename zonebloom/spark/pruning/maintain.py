"""Refresh the indices of folders after a Spark session wrote to them.

WriteListener.java       tells the folder of each write that has succeeded
_FileSinkListener        tells the folder of each batch of a stream with a file sink
IndexMaintainer          refreshes the indices of these folders, in one thread of its own
"""

# The methods of a listener have the names that Spark calls.
# ruff: noqa: N802

from __future__ import annotations

import re
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

from zonebloom.base.notices import collected_warnings
from zonebloom.building.builder import WORTH_AN_ENGINE
from zonebloom.catalog.model import RETENTION
from zonebloom.errors import EngineError, IndexNotUsedWarning, StaleIndexWarning, ZoneBloomWarning
from zonebloom.facade.indices import refresh_indices
from zonebloom.spark.jobs import spark_engine
from zonebloom.spark.opening import open_evolved
from zonebloom.spark.pruning.index_lookup import IndexLookup
from zonebloom.spark.pruning.optimizer_rule import jvm_plans, warn_once
from zonebloom.spark.session_state import session_state
from zonebloom.spark.versions import java_session

_MAX_WAIT_SECONDS = 600.0
# Spark describes a file sink by this text. After batches of other sinks nothing is refreshed.
_FILE_SINK = re.compile(r"FileSink\[(.+)\]", re.DOTALL)


class IndexMaintainer:
    """A worker that refreshes the indices of the folders that a session writes to."""

    def __init__(self, spark: SparkSession, lookup: IndexLookup):
        self._spark: Any = spark
        self._lookup = lookup
        self._state = session_state(spark)
        self._lock = threading.Lock()
        # The refreshes that have not begun, by folder.
        self._waiting: dict[str, Future[None]] = {}
        self._worker = ThreadPoolExecutor(1, "zonebloom-refresh")
        # The refresh that the only worker does last.
        self._last: Future[None] | None = None
        self._java = jvm_plans(spark)
        self._write_listener = self._java.writeListener(self)
        self._file_sink_listener = _FileSinkListener(self)

    def start(self) -> None:
        self._spark.streams.addListener(self._file_sink_listener)
        java_session(self._spark).listenerManager().register(self._write_listener)

    def stop(self) -> None:
        """Follow no more writes. Refreshes that wait already still run."""
        java_session(self._spark).listenerManager().unregister(self._write_listener)
        self._spark.streams.removeListener(self._file_sink_listener)
        self._worker.shutdown(wait=False)

    def accept(self, folder: str) -> None:
        """Take the report that a write to a folder has ended. The JVM calls this.

        Streams that started under an earlier maintainer still report to that one.
        """
        current = self._state.maintainer
        if current is not None:
            current.refresh_soon(folder)

    def refresh_soon(self, folder: str) -> None:
        """Refresh the indices of a folder, unless a refresh that has not begun will do it."""
        with self._lock:
            if folder not in self._waiting:
                self._last = self._worker.submit(self._refresh_folder, folder)
                self._waiting[folder] = self._last

    def accept_file_sink(self, description: str) -> None:
        """Refresh the indices of the folder of a stream's sink, if it is a file sink."""
        match = _FILE_SINK.fullmatch(description)
        if match is not None:
            self.accept(self._java.qualified(java_session(self._spark), match[1]))

    def wait(self, timeout: float = _MAX_WAIT_SECONDS) -> None:
        """Wait until the indices are refreshed after all writes that have ended."""
        # Spark reports writes in a thread of its own.
        self._spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
        try:
            if self._last is not None:
                self._last.result(timeout)
        except FutureTimeout:
            raise EngineError(
                f"the refreshes after earlier writes have not ended in {timeout:g} s; wait longer, "
                "or call optimize_indices() on the dataset"
            ) from None

    def _refresh_folder(self, folder: str) -> None:
        with self._lock:
            del self._waiting[folder]
        with collected_warnings() as warnings:
            try:
                for filesystem, root, index_dir in self._lookup.indexed_folders(folder):
                    encryption = self._lookup.encryption
                    opened = open_evolved(root, filesystem, index_dir, encryption).opened
                    refresh_indices(
                        opened,
                        None,
                        retention=RETENTION,
                        repair=False,
                        spark=spark_engine(self._spark, WORTH_AN_ENGINE),
                        progress=False,
                    )
            except Exception as error:  # noqa: BLE001 - files that are not indexed are read whole
                warnings.append(
                    StaleIndexWarning(
                        f"the index of {folder} was not refreshed after a write: {error}; Spark "
                        "reads the new files whole until optimize_indices() is called"
                    )
                )
        for warning in warnings:
            # If the process turns warnings into errors, this thread must still go on.
            with suppress(ZoneBloomWarning):
                warn_once(self._state, warning, [folder])

    class Java:
        """The Java interface that py4j implements with this object."""

        implements = ("java.util.function.Consumer",)


class _FileSinkListener(StreamingQueryListener):
    """A listener that passes on the sinks of streams after each batch."""

    def __init__(self, maintainer: IndexMaintainer):
        self._maintainer = maintainer

    def onQueryStarted(self, event: Any) -> None:
        pass

    def onQueryProgress(self, event: Any) -> None:
        # A batch without new rows can write those that waited for their watermark.
        self._maintainer.accept_file_sink(event.progress.sink.description)

    def onQueryTerminated(self, event: Any) -> None:
        pass


def start_maintenance(spark: Any, lookup: IndexLookup) -> None:
    """Refresh indices after each write of a session. If that is impossible, warn."""
    stop_maintenance(spark)
    state = session_state(spark)
    try:
        maintainer = IndexMaintainer(spark, lookup)
    except EngineError as error:
        warn_once(state, IndexNotUsedWarning(str(error)))
        return
    maintainer.start()
    state.maintainer = maintainer


def stop_maintenance(spark: Any, *, wait: bool = False) -> None:
    """Follow no more writes of a session. If ``wait`` is set, wait for the last refreshes."""
    state = session_state(spark)
    maintainer = state.maintainer
    if maintainer is not None:
        if wait:
            maintainer.wait()
        state.maintainer = None
        maintainer.stop()
