"""What is done to an index: from one stable state to another, or back.

create    DOESNOTEXIST -> CREATING   -> ACTIVE
refresh   ACTIVE       -> REFRESHING -> ACTIVE
optimize  ACTIVE       -> OPTIMIZING -> ACTIVE
delete    ACTIVE       -> DELETING   -> DELETED
restore   DELETED      -> RESTORING  -> ACTIVE
vacuum    DELETED      -> VACUUMING  -> DOESNOTEXIST
cancel    CREATING, VACUUMING, or CANCELLING of these -> CANCELLING -> DOESNOTEXIST
          others       -> CANCELLING -> the stable state before

An action that fails puts the state back and says why in the log. One whose process dies leaves
its transitional state, and all others are refused until `cancel`. The segments of a creation have
a prefix that its record holds before the first is written: only what has it is taken back, for
indices of the same name may be made by people, and by managers with other system folders.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from zonebloom import arguments
from zonebloom.build.builder import Builder
from zonebloom.build.compact import compact, drop_for_good
from zonebloom.build.spec import IndexSpec
from zonebloom.catalog.model import ZoneParameters
from zonebloom.catalog.version_log import now
from zonebloom.dataset import Dataset
from zonebloom.errors import (
    IndexExists,
    IndexNotFound,
    InvalidState,
    ZoneBloomError,
)
from zonebloom.index.global_filter import GlobalSize
from zonebloom.spark.build import train_on_spark
from zonebloom.spark.hyperspace.config import require_name
from zonebloom.spark.hyperspace.log import IndexLog, Record, State, System
from zonebloom.spark.hyperspace.source import catalog_of, measure_drift, open_recorded

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Progress = bool | Callable[[int, int], Any] | None

# Where an action begins, while it is under way, where it ends, and what is said elsewhere.
TRANSITIONS = {
    "create": (State.DOESNOTEXIST, State.CREATING, State.ACTIVE, ""),
    "refresh": (State.ACTIVE, State.REFRESHING, State.ACTIVE, "call restore_index first"),
    "optimize": (State.ACTIVE, State.OPTIMIZING, State.ACTIVE, "call restore_index first"),
    "delete": (State.ACTIVE, State.DELETING, State.DELETED, "it is deleted already"),
    "restore": (State.DELETED, State.RESTORING, State.ACTIVE, "there is nothing to restore"),
    "vacuum": (State.DELETED, State.VACUUMING, State.DOESNOTEXIST, "call delete_index first"),
}


class Actions:
    """What can be done to the indices of a system folder."""

    # As queries take them: when they were read, of which folder.
    _records: tuple[float, str, list[Record]] | None = None

    def __init__(self, system: System, spark: SparkSession | Literal[False]):
        self._folder = system
        self._spark: Any = spark

    def _system(self) -> System:
        return self._folder

    def create(self, ds: Dataset, record: Record, progress: Progress = None) -> None:
        """Build an index that is not there."""
        record = replace(record, build=uuid.uuid4().hex[:16])
        with self._acting(record.name, "create", of=record) as (_, changes):
            try:
                self._build(ds, record, progress, record.build)
                changes |= {**_as_indexed(record), "created_at": now()}
            except BaseException as error:
                with _noting(error, "what it built may be left"):
                    _take_back(record)
                raise

    def refresh_index(self, name: str, mode: str = "full", *, progress: Progress = None) -> None:
        """Bring an index up to the files as they are now.

        Parameters
        ----------
        name : str
        mode : {"full", "incremental", "quick"}
            "full" builds it anew. "incremental" reads only files that were added or changed and
            forgets those gone. "quick" reads no data: it takes note of the files, and the index
            is used as far as it goes; the ratios of hybrid scan count what changes after it.
        progress : bool or callable, optional

        Raises
        ------
        InvalidArgument, IndexNotFound, InvalidState, CommitConflict, SchemaMismatch
        NoFragments, FragmentUnreadable, EngineError
            And the index is as it was.
        """
        arguments.choice(mode, "mode", ("full", "incremental", "quick"))
        with self._acting(name, "refresh", mode) as (record, changes):
            ds = open_recorded(record)
            if mode == "quick":
                changes["accepted_changes"] = measure_drift(ds, record).changes
                return
            if mode == "full":
                self._build(ds, record, progress)
            else:
                _require_there(record, ds.opened.version.indices, "refresh it with mode='full'")
                ds.optimize.optimize_indices(
                    list(record.indices.values()), spark=self._spark, progress=progress
                )
            changes |= _as_indexed(record)

    def optimize_index(self, name: str, mode: str = "quick") -> None:
        """Put the segments that refreshes added together; no data is read.

        Parameters
        ----------
        name : str
        mode : {"quick", "full"}
            "quick" merges the small ones; "full" makes one of all, in the layout its size asks
            for.
        """
        arguments.choice(mode, "mode", ("quick", "full"))
        with self._acting(name, "optimize", mode) as (record, _):
            names = list(record.indices.values())
            compact(catalog_of(record), names, everything=mode == "full")

    def delete_index(self, name: str) -> None:
        """Have an index used no more by this manager's queries; `restore_index` takes it back.

        As all that follow it raises IndexNotFound, InvalidState or CommitConflict.
        """
        with self._acting(name, "delete"):
            pass

    def restore_index(self, name: str) -> None:
        """Take back `delete_index`."""
        with self._acting(name, "restore") as (record, _):
            there = catalog_of(record).latest().indices
            _require_there(record, there, "vacuum it and create it again")

    def vacuum_index(self, name: str) -> None:
        """Remove a deleted index for good, filters and all."""
        with self._acting(name, "vacuum") as (record, _):
            drop_for_good(catalog_of(record), record.indices.values())

    def cancel(self, name: str) -> None:
        """Take an index out of the state that a crash left it in, to the stable one before.

        Of a creation or vacuum that never ended, the rest is removed; an index that was refreshed
        is true of the files it knows, whichever these are. An action that is still under way is a
        CommitConflict.
        """
        log = self._system().log(require_name(name))
        with self._locked(log, "cancel") as latest:
            stable = log.latest_stable()
            since = {record.state for record in log.history() if record.number > stable.number}
            going = log.append(
                replace(latest, state=State.CANCELLING, action="cancel"), latest.number
            )
            state = stable.state
            if state == State.DOESNOTEXIST:
                _take_back(latest)
            elif State.VACUUMING in since:
                state = State.DOESNOTEXIST
                if latest.path:
                    drop_for_good(catalog_of(latest), latest.indices.values())
            back = replace(stable, state=state, action="cancel", message="")
            log.append(back, going.number)

    @contextlib.contextmanager
    def _acting(
        self, name: str, action: str, mode: str = "", of: Record | None = None
    ) -> Iterator[tuple[Record, dict[str, Any]]]:
        """Between the transitional and the stable state of an action, to note what changes."""
        _, during, after, _ = TRANSITIONS[action]
        log = self._system().log(require_name(name))
        with self._locked(log, action) as before:
            if of is not None:
                _require_free(of)
            action = f"{action} {mode}".strip()
            entry = replace(of or before, state=during, action=action, message="")
            started = log.append(entry, before.number)
            changes: dict[str, Any] = {}
            try:
                yield started, changes
            except BaseException as error:
                with _noting(error, f"index {name!r} may be left {during}: call cancel({name!r})"):
                    message = f"{type(error).__name__}: {error}"[:1000]
                    back = replace(before, action=f"{action} failed", message=message)
                    log.append(back, started.number)
                raise
            log.append(replace(started, state=after, **changes), started.number)

    @contextlib.contextmanager
    def _locked(self, log: IndexLog, action: str) -> Iterator[Record]:
        """Hold the lock of an index in a state in which an action may begin."""
        # Before the lock, which makes a folder. Whether an action that began is still under
        # way, the lock tells.
        latest = log.latest()
        if latest.state.is_stable:
            _require_state(latest, action)
        with log.locked():
            latest = log.latest()
            _require_state(latest, action)
            try:
                yield latest
            finally:
                self._records = None

    def _build(self, ds: Dataset, record: Record, progress: Progress, prefix: str = "") -> None:
        """Build anew, or with a prefix what is not there."""
        size = GlobalSize(record.expected_num_items, record.fpp)
        wanted = [
            IndexSpec(name, ds.opened.column(column), ZoneParameters(), size)
            for column, name in record.indices.items()
        ]
        engine = None if self._spark is False else partial(train_on_spark, self._spark)
        Builder(ds.opened).build(wanted, "auto", not prefix, engine, progress, prefix)
        ds.checkout_latest()


def _take_back(record: Record) -> None:
    """Remove what a creation left: its indices, if they came to be, and its segments."""
    # Of a record that does not say there is nothing known to be its.
    if record.path and record.build:
        drop_for_good(catalog_of(record), record.indices.values(), build=record.build)


def _as_indexed(record: Record) -> dict[str, Any]:
    """What a record says of the files it holds now."""
    drift = measure_drift(open_recorded(record), record)
    return {"accepted_changes": (), "source_bytes": drift.indexed_bytes}


@contextlib.contextmanager
def _noting(first: BaseException, what: str) -> Iterator[None]:
    """Let an error within not hide the first one, but be noted on it."""
    try:
        yield
    except (ZoneBloomError, OSError, ValueError, Warning) as error:
        first.add_note(f"{what} ({type(error).__name__}: {error})")


def no_index(name: str) -> IndexNotFound:
    """What is raised of a name nobody gave."""
    return IndexNotFound(f"there is no index {name!r}; indexes() lists those there are")


def _require_state(record: Record, action: str) -> None:
    """Refuse an action on an index in another state than one it begins at."""
    name, state = record.name, record.state
    if action == "create" and state in (State.ACTIVE, State.DELETED):
        hint = ", deleted: restore it or vacuum it first" if state == State.DELETED else ""
        raise IndexExists(f"there is an index {name!r} already{hint}; or give another name")
    if action != "create" and state == State.DOESNOTEXIST:
        raise no_index(name)
    if action == "cancel":
        if state.is_stable:
            raise InvalidState(f"index {name!r} is {state}: there is no action, so none to cancel")
    elif not state.is_stable:
        raise InvalidState(
            f"index {name!r} is {state} since {record.time} and nobody is at work on it: "
            f"its process died. Call cancel({name!r}) first"
        )
    elif state != TRANSITIONS[action][0]:
        raise InvalidState(f"index {name!r} is {state}: {TRANSITIONS[action][3]}")


def _require_free(record: Record) -> None:
    there = catalog_of(record).latest().indices
    taken = [name for name in record.indices.values() if name in there]
    if taken:
        raise IndexExists(
            f"the catalog in {record.index_dir} has an index {taken[0]!r} already, which is not in "
            "this manager's records: it was made by hand, or by a manager with another system "
            "path. Give another name, or call drop_index on the dataset if nobody uses it"
        )


def _require_there(record: Record, indices: Any, step: str) -> None:
    if gone := record.missing_from(indices):
        raise IndexNotFound(f"{', '.join(gone)} is not in the catalog any more; {step}")
