"""Refresh the indices of folders after a Spark session wrote to them.

WriteListener.java       tells the folder of each write, when Spark's listener bus reports it
_FileSinkListener        tells the folder of each batch of a stream with a file sink
IndexMaintainer          refreshes the indices of these folders, in one thread of its own
"""

# The methods of a listener have the names that Spark calls.
# ruff: noqa: N802

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from importlib.resources import files
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

from zonebloom.base.notices import collected_warnings
from zonebloom.building.builder import WORTH_AN_ENGINE
from zonebloom.catalog.model import RETENTION
from zonebloom.errors import EngineError, IndexNotUsedWarning, StaleIndexWarning, ZoneBloomWarning
from zonebloom.facade.indices import refresh_indices
from zonebloom.facade.opening import dataset
from zonebloom.spark.jobs import spark_engine
from zonebloom.spark.pruning.index_lookup import IndexLookup
from zonebloom.spark.pruning.optimizer_rule import warn_once
from zonebloom.spark.session_state import compiled_java, session_state
from zonebloom.spark.versions import (
    access_to_plans,
    java_session,
    new_java_object,
    query_execution,
)

# Spark describes a file sink by this text. After batches of other sinks nothing is refreshed.
_FILE_SINK = re.compile(r"FileSink\[(.+)\]", re.DOTALL)


class IndexMaintainer:
    """A worker that refreshes the indices of the folders that a session writes to."""

    def __init__(self, spark: SparkSession, lookup: IndexLookup):
        self._spark = spark
        self._lookup = lookup
        self._state = session_state(spark)
        self._lock = threading.Lock()
        self._waiting_folders: set[str] = set()
        self._worker = ThreadPoolExecutor(1, "zonebloom-refresh")
        source = (files("zonebloom.spark.pruning") / "WriteListener.java").read_text
        with access_to_plans(spark) as jvm:
            self._java = compiled_java(
                jvm,
                lambda: new_java_object(jvm, "zonebloom.WriteListeners", source()),
                "zonebloom.WriteListeners",
            )
            self._listener = self._java.listener(self)
        self._file_sink_listener = _FileSinkListener(self)

    def start(self) -> None:
        java_session(self._spark).listenerManager().register(self._listener)
        self._spark.streams.addListener(self._file_sink_listener)

    def stop(self) -> None:
        """Follow no more writes. Refreshes that wait already still run."""
        java_session(self._spark).listenerManager().unregister(self._listener)
        self._spark.streams.removeListener(self._file_sink_listener)
        self._worker.shutdown(wait=False)

    def accept(self, folder: str) -> None:
        """Refresh the indices of a folder soon. The JVM calls this after a write."""
        with self._lock:
            # A refresh that has not begun will see the files of this write too.
            if folder not in self._waiting_folders:
                self._waiting_folders.add(folder)
                # After stop() the worker takes no more work.
                with suppress(RuntimeError):
                    self._worker.submit(self._refresh_folder, folder)

    def accept_file_sink(self, description: str) -> None:
        """Refresh the indices of the folder of a stream's sink, if it is a file sink."""
        match = _FILE_SINK.fullmatch(description)
        if match is not None:
            conf = java_session(self._spark).sessionState().newHadoopConf()
            self.accept(self._java.qualified(match[1], conf))

    def wait(self, timeout: float) -> None:
        """Wait until the writes so far are reported and refreshed, at most so long for each."""
        # Spark reports queries in order, so after this one it has reported all earlier ones.
        marker = self._spark.range(0)
        self._listener.expect(query_execution(marker))
        marker.collect()
        if self._listener.waitFor(query_execution(marker), float(timeout)):
            # The only worker runs this last.
            with suppress(FutureTimeout):
                self._worker.submit(bool).result(timeout)
                return
        raise EngineError(
            f"the refreshes after earlier writes have not ended in {timeout:g} s; wait longer, or "
            "call optimize_indices() on the dataset"
        )

    def _refresh_folder(self, folder: str) -> None:
        with self._lock:
            self._waiting_folders.discard(folder)
        with collected_warnings() as warnings:
            try:
                for filesystem, root, index_dir in self._lookup.indexed_folders(folder):
                    opened = dataset(
                        root,
                        filesystem=filesystem,
                        index_dir=index_dir,
                        encryption=self._lookup.encryption,
                    ).opened
                    refresh_indices(
                        opened,
                        None,
                        layout="auto",
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
    """A listener that passes on the sinks of streams after each batch with rows."""

    def __init__(self, maintainer: IndexMaintainer):
        self._maintainer = maintainer

    def onQueryStarted(self, event: Any) -> None:
        pass

    def onQueryProgress(self, event: Any) -> None:
        if event.progress.numInputRows:
            self._maintainer.accept_file_sink(event.progress.sink.description)

    def onQueryIdle(self, event: Any) -> None:
        pass

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


def stop_maintenance(spark: Any) -> None:
    state = session_state(spark)
    maintainer, state.maintainer = state.maintainer, None
    if maintainer is not None:
        maintainer.stop()
