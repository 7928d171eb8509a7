"""What is done to an index: from one stable state to another, or back.

An action that fails puts the state back itself and says why in the log. One whose process dies
leaves its transitional state, and every other action is refused until `cancel`. Nothing here
needs Spark but the builds, when a session is given for them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from zonebloom.builder import Wanted
from zonebloom.dataset import Dataset
from zonebloom.errors import IndexExists, IndexNotFound, InvalidArgument
from zonebloom.index.catalog import now
from zonebloom.index.compact import compact, drop_for_good
from zonebloom.index.global_filter import GlobalSize
from zonebloom.index.zones import ZoneParameters
from zonebloom.spark.manager.log import IndexLog, Record, State, System
from zonebloom.spark.manager.source import catalog_of, measure_drift, open_recorded
from zonebloom.spark.manager.states import TRANSITIONS, require_state, require_unstable

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
    """What can be done to the indices of a system folder.

    Parameters
    ----------
    system : System
    spark : SparkSession or False
        Where indices are built: False is this process.
    """

    def __init__(self, system: System, spark: SparkSession | Literal[False]):
        self._system = system
        self._spark: SparkSession | Literal[False] = spark

    def create(self, opened: Dataset, record: Record, progress: Progress = None) -> None:
        """Build an index that is not there.

        Parameters
        ----------
        opened : Dataset
        record : Record
            What to build.

        Raises
        ------
        IndexExists, InvalidState, CommitConflict
        FragmentUnreadable, SchemaMismatch, EngineError
            And nothing is left behind.
        """
        with self._acting(record.name, "create", of=record) as step:
            taken = [each for each in record.indices.values() if each in opened._version.indices]
            if taken:
                raise IndexExists(
                    f"the catalog in {opened.index_dir} has an index {taken[0]!r} already, made "
                    "without this manager: give another name, or call drop_index on the dataset"
                )
            try:
                self._build(opened, record, progress)
                step.found(**_as_indexed(record), created_at=now())
            except BaseException:
                drop_for_good(catalog_of(record), record.indices.values())
                raise

    def refresh(self, name: str, mode: str, progress: Progress = None) -> None:
        """Bring an index up to its files.

        Parameters
        ----------
        name : str
        mode : {"full", "incremental", "quick"}
            Build all anew; read only files that came or changed and forget those gone; or only
            take note of them, so that the index is used whatever the ratios of hybrid scan say.

        Raises
        ------
        InvalidArgument, IndexNotFound, InvalidState, CommitConflict, SchemaMismatch
        NoFragments, FragmentUnreadable, EngineError
        """
        _require_mode(mode, REFRESH_MODES)
        with self._acting(name, "refresh", mode) as step:
            record = step.record
            if mode == "quick":
                drift = measure_drift(open_recorded(record), list(record.indices.values()))
                step.found(accepted=drift.fingerprint)
                return
            opened = open_recorded(record)
            if mode == "full":
                self._build(opened, record, progress)
            else:
                _require_there(opened, record)
                opened.optimize.optimize_indices(
                    list(record.indices.values()), spark=self._spark, progress=progress
                )
            step.found(**_as_indexed(record))

    def optimize(self, name: str, mode: str) -> None:
        """Merge the segments of an index; its data is not read.

        Parameters
        ----------
        name : str
        mode : {"quick", "full"}
            Merge the small ones, or all of a column into one.

        Raises
        ------
        InvalidArgument, IndexNotFound, InvalidState, CommitConflict, CorruptIndex
        """
        _require_mode(mode, OPTIMIZE_MODES)
        with self._acting(name, "optimize", mode) as step:
            names = list(step.record.indices.values())
            compact(catalog_of(step.record), names, everything=mode == "full")

    def delete(self, name: str) -> None:
        """Have an index used no more; its bits stay.

        Raises
        ------
        IndexNotFound, InvalidState, CommitConflict
        """
        with self._acting(name, "delete"):
            pass

    def restore(self, name: str) -> None:
        """Have a deleted index used again.

        Raises
        ------
        IndexNotFound, InvalidState, CommitConflict
        """
        with self._acting(name, "restore") as step:
            there = catalog_of(step.record).latest().indices
            gone = [each for each in step.record.indices.values() if each not in there]
            if gone:
                raise IndexNotFound(
                    f"{', '.join(gone)} is not in the catalog any more; vacuum index {name!r} and "
                    "create it again"
                )

    def vacuum(self, name: str) -> None:
        """Delete the bits of a deleted index, and forget it.

        Raises
        ------
        IndexNotFound, InvalidState, CommitConflict
        """
        with self._acting(name, "vacuum") as step:
            drop_for_good(catalog_of(step.record), step.record.indices.values())

    def cancel(self, name: str) -> None:
        """Go back to the stable state before an action that never ended.

        Of what a refresh had committed nothing is taken back: an index is true of the files it
        knows, whichever these are.

        Raises
        ------
        IndexNotFound, CommitConflict
        InvalidState
            When nothing is to be cancelled.
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
            if goes and latest.path:
                drop_for_good(catalog_of(latest), latest.indices.values())
            back = replace(stable, state=State.DOESNOTEXIST if goes else stable.state)
            log.append(replace(back, action="cancel", message=""), going.number)

    @contextlib.contextmanager
    def _acting(
        self, name: str, action: str, mode: str = "", of: Record | None = None
    ) -> Iterator[_Step]:
        """Between the transitional and the stable state of an action."""
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
            action = f"{action} {mode}".strip()
            entry = replace(of or before, state=during, action=action, message="")
            started = log.append(entry, before.number)
            step = _Step(started)
            try:
                yield step
            except BaseException as error:
                self._put_back(log, started, before, error)
                raise
            log.append(replace(step.record, state=after), started.number)

    def _put_back(
        self, log: IndexLog, started: Record, before: Record, error: BaseException
    ) -> None:
        state = before.state
        if started.state == State.VACUUMING:
            there = catalog_of(before).latest().indices
            if not any(name in there for name in before.indices.values()):
                state = State.DOESNOTEXIST
        message = f"{type(error).__name__}: {error}"[:1000]
        back = replace(before, state=state, action=f"{started.action} failed", message=message)
        log.append(back, started.number)

    def _build(self, opened: Dataset, record: Record, progress: Progress) -> None:
        size = GlobalSize(record.expected_num_items, record.fpp)
        wanted = [
            Wanted(name, opened._column(column), ZoneParameters(), size)
            for column, name in record.indices.items()
        ]
        version = opened._builder.build(wanted, "auto", True, self._spark, progress)
        opened._use(version)


def _as_indexed(record: Record) -> dict[str, Any]:
    """What a record says of the files it holds now."""
    drift = measure_drift(open_recorded(record), list(record.indices.values()))
    return {"accepted": drift.fingerprint, "source_bytes": drift.indexed_bytes}


def _require_there(opened: Dataset, record: Record) -> None:
    gone = [each for each in record.indices.values() if each not in opened._version.indices]
    if gone:
        raise IndexNotFound(
            f"{', '.join(gone)} is not in the catalog any more; "
            f"call refresh_index({record.name!r}, mode='full')"
        )


def _require_mode(mode: str, modes: tuple[str, ...]) -> None:
    if mode not in modes:
        raise InvalidArgument(f"mode is {mode!r}; it is one of {', '.join(modes)}")
