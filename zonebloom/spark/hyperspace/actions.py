"""What is done to an index: from one stable state to another, or back.

An action that fails puts the state back itself and says why in the log. One whose process dies
leaves its transitional state, and every other action is refused until `cancel`. Nothing here
needs Spark but the builds, when a session is given for them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from zonebloom.build.builder import Builder, Wanted
from zonebloom.build.compact import compact, drop_for_good
from zonebloom.catalog.log import now
from zonebloom.catalog.model import ZoneParameters
from zonebloom.dataset import Dataset
from zonebloom.errors import IndexExists, IndexNotFound, InvalidArgument, ZoneBloomError
from zonebloom.index.global_filter import GlobalSize
from zonebloom.spark.build import train_on_spark
from zonebloom.spark.hyperspace.creation import builder_under, new_build, take_back
from zonebloom.spark.hyperspace.log import IndexLog, Record, State, System
from zonebloom.spark.hyperspace.source import catalog_of, measure_drift, open_recorded
from zonebloom.spark.hyperspace.states import TRANSITIONS, require_state, require_unstable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Progress = bool | Callable[[int, int], Any] | None

REFRESH_MODES = ("full", "incremental", "quick")
OPTIMIZE_MODES = ("quick", "full")


@dataclass(slots=True)
class _Step:
    """An action under way; what it finds goes into the record."""

    record: Record

    def found(self, **fields: Any) -> None:
        self.record = replace(self.record, **fields)


class Actions:
    """What can be done to the indices of a system folder."""

    def __init__(self, system: System, spark: SparkSession | Literal[False]):
        self._system = system
        self._spark: SparkSession | Literal[False] = spark

    def create(self, ds: Dataset, record: Record, progress: Progress = None) -> None:
        """Build an index that is not there."""
        record = replace(record, build=new_build())
        with self._acting(
            record.name, "create", of=record, check=lambda: _require_free(ds, record)
        ) as step:
            try:
                self._build(ds, record, progress, is_new=True)
                step.found(**_as_indexed(record), created_at=now())
            except BaseException as error:
                with _noting(error, "what it built may be left"):
                    take_back(record)
                raise

    def refresh(self, name: str, mode: str, progress: Progress = None) -> None:
        """Bring an index up to its files."""
        _require_mode(mode, REFRESH_MODES)
        with self._acting(name, "refresh", mode) as step:
            record = step.record
            if mode == "quick":
                drift = measure_drift(open_recorded(record), list(record.indices.values()))
                step.found(accepted=drift.fingerprint, accepted_changes=drift.changes)
                return
            ds = open_recorded(record)
            if mode == "full":
                self._build(ds, record, progress)
            else:
                _require_there(ds, record)
                ds.optimize.optimize_indices(
                    list(record.indices.values()), spark=self._spark, progress=progress
                )
            step.found(**_as_indexed(record))

    def optimize(self, name: str, mode: str) -> None:
        """Merge the segments of an index; its data is not read."""
        _require_mode(mode, OPTIMIZE_MODES)
        with self._acting(name, "optimize", mode) as step:
            names = list(step.record.indices.values())
            compact(catalog_of(step.record), names, everything=mode == "full")

    def delete(self, name: str) -> None:
        """Have an index used no more; its bits stay."""
        with self._acting(name, "delete"):
            pass

    def restore(self, name: str) -> None:
        """Have a deleted index used again."""
        with self._acting(name, "restore") as step:
            if gone := step.record.missing_from(catalog_of(step.record).latest().indices):
                raise IndexNotFound(
                    f"{', '.join(gone)} is not in the catalog any more; vacuum index {name!r} and "
                    "create it again"
                )

    def vacuum(self, name: str) -> None:
        """Delete the bits of a deleted index, and forget it."""
        with self._acting(name, "vacuum") as step:
            drop_for_good(catalog_of(step.record), step.record.indices.values())

    def cancel(self, name: str) -> None:
        """Go back to the stable state before an action that never ended.

        Of what a refresh had committed nothing is taken back: an index is true of the files it
        knows, whichever these are.
        """
        log = self._system.log(name)
        require_unstable(log.latest())
        with log.locked():
            latest = log.latest()
            require_unstable(latest)
            stable = log.latest_stable()
            since = [each for each in log.history() if each.number > stable.number]
            goes = stable.state == State.DOESNOTEXIST or any(
                each.state == State.VACUUMING for each in since
            )
            going = log.append(
                replace(latest, state=State.CANCELLING, action="cancel"), latest.number
            )
            if stable.state == State.DOESNOTEXIST:
                take_back(latest)
            elif goes and latest.path:
                drop_for_good(catalog_of(latest), latest.indices.values())
            back = replace(stable, state=State.DOESNOTEXIST if goes else stable.state)
            log.append(replace(back, action="cancel", message=""), going.number)

    @contextlib.contextmanager
    def _acting(
        self,
        name: str,
        action: str,
        mode: str = "",
        of: Record | None = None,
        check: Callable[[], None] | None = None,
    ) -> Iterator[_Step]:
        """Between the transitional and the stable state of an action.

        A check that raises keeps the action from beginning.
        """
        _, during, after = TRANSITIONS[action]
        log = self._system.log(name)
        # Before the lock, which makes a folder. Whether an action that began is still under
        # way, the lock tells.
        latest = log.latest()
        if latest.state.is_stable:
            require_state(latest, action)
        with log.locked():
            before = log.latest()
            require_state(before, action)
            if check is not None:
                check()
            action = f"{action} {mode}".strip()
            entry = replace(of or before, state=during, action=action, message="")
            started = log.append(entry, before.number)
            step = _Step(started)
            try:
                yield step
            except BaseException as error:
                with _noting(error, f"index {name!r} may be left {during}: call cancel({name!r})"):
                    self._put_back(log, started, before, error)
                raise
            log.append(replace(step.record, state=after), started.number)

    def _put_back(
        self, log: IndexLog, started: Record, before: Record, error: BaseException
    ) -> None:
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

    def _build(self, ds: Dataset, record: Record, progress: Progress, is_new: bool = False) -> None:
        size = GlobalSize(record.expected_num_items, record.fpp)
        wanted = [
            Wanted(name, ds.opened.column(column), ZoneParameters(), size)
            for column, name in record.indices.items()
        ]
        builder = builder_under(ds, record.build) if is_new else Builder(ds.opened)
        engine = None if self._spark is False else partial(train_on_spark, self._spark)
        builder.build(wanted, "auto", not is_new, engine, progress)
        ds.checkout_latest()


def _as_indexed(record: Record) -> dict[str, Any]:
    """What a record says of the files it holds now."""
    drift = measure_drift(open_recorded(record), list(record.indices.values()))
    return {
        "accepted": drift.fingerprint,
        "accepted_changes": (),
        "source_bytes": drift.indexed_bytes,
    }


def _require_free(ds: Dataset, record: Record) -> None:
    there = ds.opened.version.indices
    taken = [each for each in record.indices.values() if each in there]
    if taken:
        raise IndexExists(
            f"the catalog in {ds.index_dir} has an index {taken[0]!r} already, which is not in "
            "this manager's records: it was made by hand, or by a manager with another system "
            "path. Give another name, or call drop_index on the dataset if nobody uses it"
        )


def _require_there(ds: Dataset, record: Record) -> None:
    if gone := record.missing_from(ds.opened.version.indices):
        raise IndexNotFound(
            f"{', '.join(gone)} is not in the catalog any more; "
            f"call refresh_index({record.name!r}, mode='full')"
        )


@contextlib.contextmanager
def _noting(first: BaseException, what: str) -> Iterator[None]:
    """Let an error within not hide the first one, but be noted on it."""
    try:
        yield
    except (ZoneBloomError, OSError, ValueError, Warning) as error:
        first.add_note(f"{what} ({type(error).__name__}: {error})")


def _require_mode(mode: str, modes: tuple[str, ...]) -> None:
    if mode not in modes:
        raise InvalidArgument(f"mode is {mode!r}; it is one of {', '.join(modes)}")
