"""What is done to an index: from one stable state to another, or back.

create    DOESNOTEXIST -> CREATING   -> ACTIVE
refresh   ACTIVE       -> REFRESHING -> ACTIVE
optimize  ACTIVE       -> OPTIMIZING -> ACTIVE
delete    ACTIVE       -> DELETING   -> DELETED
restore   DELETED      -> RESTORING  -> ACTIVE
vacuum    DELETED      -> VACUUMING  -> DOESNOTEXIST
cancel    CREATING, VACUUMING, or CANCELLING of these -> CANCELLING -> DOESNOTEXIST
          others       -> CANCELLING -> the stable state before

An action that fails puts the state back itself and says why in the log. One whose process dies
leaves its transitional state, and every other action is refused until `cancel`. Nothing here
needs Spark but the builds, when a session is given for them.

Indices in a catalog are named by people, and by managers with other system folders. The segments
of a creation have a prefix that its record holds before the first is written: what is taken back
of one that failed or died is what has them, and nothing else of the same name.
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
from zonebloom.spark.hyperspace.log import IndexLog, Record, State, System
from zonebloom.spark.hyperspace.source import catalog_of, measure_drift, open_recorded

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Progress = bool | Callable[[int, int], Any] | None

# Where an action begins, while it is under way, and where it ends.
TRANSITIONS = {
    "create": (State.DOESNOTEXIST, State.CREATING, State.ACTIVE),
    "refresh": (State.ACTIVE, State.REFRESHING, State.ACTIVE),
    "optimize": (State.ACTIVE, State.OPTIMIZING, State.ACTIVE),
    "delete": (State.ACTIVE, State.DELETING, State.DELETED),
    "restore": (State.DELETED, State.RESTORING, State.ACTIVE),
    "vacuum": (State.DELETED, State.VACUUMING, State.DOESNOTEXIST),
}
_WHY_NOT = {
    "refresh": "it cannot be refreshed; call restore_index first",
    "optimize": "it cannot be optimized; call restore_index first",
    "delete": "it is deleted already",
    "restore": "there is nothing to restore",
    "vacuum": "it cannot be vacuumed; call delete_index first",
}


class Actions:
    """What can be done to the indices of a system folder."""

    def __init__(self, system: System, spark: SparkSession | Literal[False]):
        self._system = system
        self._spark: SparkSession | Literal[False] = spark

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

    def refresh(self, name: str, mode: str, progress: Progress = None) -> None:
        """Bring an index up to its files."""
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

    def optimize(self, name: str, mode: str) -> None:
        """Merge the segments of an index; its data is not read."""
        arguments.choice(mode, "mode", ("quick", "full"))
        with self._acting(name, "optimize", mode) as (record, _):
            names = list(record.indices.values())
            compact(catalog_of(record), names, everything=mode == "full")

    def delete(self, name: str) -> None:
        """Have an index used no more; its bits stay."""
        with self._acting(name, "delete"):
            pass

    def restore(self, name: str) -> None:
        """Have a deleted index used again."""
        with self._acting(name, "restore") as (record, _):
            there = catalog_of(record).latest().indices
            _require_there(record, there, "vacuum it and create it again")

    def vacuum(self, name: str) -> None:
        """Delete the bits of a deleted index, and forget it."""
        with self._acting(name, "vacuum") as (record, _):
            drop_for_good(catalog_of(record), record.indices.values())

    def cancel(self, name: str) -> None:
        """Go back to the stable state before an action that never ended.

        Of what a refresh had committed nothing is taken back: an index is true of the files it
        knows, whichever these are.
        """
        log = self._system.log(name)
        _require_unstable(log.latest())
        with log.locked():
            latest = log.latest()
            _require_unstable(latest)
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
        _, during, after = TRANSITIONS[action]
        log = self._system.log(name)
        # Before the lock, which makes a folder. Whether an action that began is still under
        # way, the lock tells.
        latest = log.latest()
        if latest.state.is_stable:
            _require_state(latest, action)
        with log.locked():
            before = log.latest()
            _require_state(before, action)
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
                    _put_back(log, started, before, error)
                raise
            log.append(replace(started, state=after, **changes), started.number)

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


def _put_back(log: IndexLog, started: Record, before: Record, error: BaseException) -> None:
    state = before.state
    if started.state == State.VACUUMING:
        # While the catalog cannot be looked at it stays DELETED, to be vacuumed again.
        with _noting(error, "the catalog cannot be looked at"):
            there = catalog_of(before).latest().indices
            if len(before.missing_from(there)) == len(before.indices):
                state = State.DOESNOTEXIST
    message = f"{type(error).__name__}: {error}"[:1000]
    back = replace(before, state=state, action=f"{started.action} failed", message=message)
    log.append(back, started.number)


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
    """Refuse an action on an index in another state than the one it begins at."""
    name, state = record.name, record.state
    if state == TRANSITIONS[action][0]:
        return
    if not state.is_stable:
        raise InvalidState(
            f"index {name!r} is {state} since {record.time} and nobody is at work on it: "
            f"its process died. Call cancel({name!r}) first"
        )
    if action == "create":
        hint = ", deleted: restore it or vacuum it first" if state == State.DELETED else ""
        raise IndexExists(f"there is an index {name!r} already{hint}; or give another name")
    if state == State.DOESNOTEXIST:
        raise no_index(name)
    raise InvalidState(f"index {name!r} is {state}, so {_WHY_NOT[action]}")


def _require_unstable(record: Record) -> None:
    """Refuse to cancel where no action began."""
    if record.state == State.DOESNOTEXIST:
        raise no_index(record.name)
    if record.state.is_stable:
        raise InvalidState(
            f"index {record.name!r} is {record.state}: no action is under way, so there is none "
            "to cancel"
        )


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
