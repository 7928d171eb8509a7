"""Hold what this package caches about a Spark session, for as long as its application runs.

Each application (a SparkContext, or a session of Connect) has a `SessionState` for each of its
sessions. Applications are referred to weakly. Python may have several objects for one session of
the JVM, so sessions are told apart by their ids.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

from zonebloom.spark.versions import is_stopped, session_id, spark_context

ValueType = TypeVar("ValueType")


class LruCache(Generic[ValueType]):
    """A cache that drops its least recently used entries. Several threads may use it."""

    def __init__(self, max_entries: int = 64) -> None:
        self._max_entries = max_entries
        self._entries: OrderedDict[Hashable, ValueType] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> ValueType | None:
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key)
            return self._entries.get(key)

    def put(self, key: Hashable, value: ValueType) -> ValueType:
        """Store a value, and return it."""
        with self._lock:
            self._entries[key] = value
            self._entries.move_to_end(key)
            if len(self._entries) > self._max_entries:
                self._entries.popitem(last=False)
        return value


@dataclass(eq=False)
class SessionState:
    """The caches and the registered data sources of one session."""

    # The last warnings, by roots and text. Texts name files, so there may be very many.
    issued_warnings: LruCache[bool] = field(default_factory=lambda: LruCache(1024))
    # The last listing of each tuple of root paths, with its digest.
    listings: LruCache[Any] = field(default_factory=LruCache)
    # Whether all queries of the session ask an index.
    has_rule: bool = False
    # The folder and the files of the documents of managers when they were last read, and the
    # indices that they call deleted.
    deleted_indices: Any = None
    # The settings of S3 and the encryption of each data source that is registered in the session,
    # by the name of the source.
    sources: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    maintainer: Any = None


# The states of the sessions of each application, by session id. It needs no lock: `setdefault` is
# atomic, so all threads get the object of the first of them.
_applications: WeakKeyDictionary[Any, dict[str, SessionState]] = WeakKeyDictionary()
# The Java object of the compiled classes in each JVM, which outlives its applications.
_compiled_java: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
# Held while classes are compiled. That takes about a second.
_compile_lock = threading.Lock()


def _states_of_application(spark: Any) -> dict[str, SessionState]:
    """Return the states of the sessions of an application. Drop those of stopped applications."""
    owner = spark_context(spark) or spark
    states = _applications.get(owner)
    if states is not None:
        return states
    # Copy the references at once, because other threads may add applications meanwhile.
    for other in (reference() for reference in _applications.keyrefs()):
        if other is not None and is_stopped(other):
            _applications.pop(other, None)
    return _applications.setdefault(owner, {})


def session_state(spark: Any) -> SessionState:
    """Return the state of a session. A session that `newSession` made has its own."""
    return _states_of_application(spark).setdefault(session_id(spark), SessionState())


def compiled_java(jvm: Any, compile_classes: Callable[[], Any]) -> Any:
    """Return the Java object that a function made in a JVM. It is called once for each JVM.

    Py4j caches methods by the name of their class, so a class must not be compiled again. Sessions
    also share Spark's cache of frames, which compares plans and so needs the same classes.
    """
    with _compile_lock:
        if jvm not in _compiled_java:
            _compiled_java[jvm] = compile_classes()
        return _compiled_java[jvm]
