"""What is done to an index: each step is one record, or one commit to the catalog of the data.

create               a record, which takes the name, and then the filters in one commit
refresh, optimize    one commit; a quick refresh is one record
delete, restore      one record
vacuum               the filters are dropped in one commit, and then one record
cancel               one record, of an index whose filters never came to be

So a process may die at any time: what it had not done is not there. Segments that it leaves in
the catalog's folder are deleted by the next `vacuum()` of the dataset.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import replace
from typing import Any, Literal

from pyspark.sql import SparkSession

from zonebloom.base import arguments
from zonebloom.building.builder import Builder
from zonebloom.building.request import IndexSpec, require_encrypted_index
from zonebloom.building.segments import compact_indices, drop_indices
from zonebloom.catalog.model import ZoneParameters
from zonebloom.dataset import Dataset
from zonebloom.errors import (
    CommitConflict,
    IndexExists,
    IndexNotFound,
    InvalidState,
    ZoneBloomError,
)
from zonebloom.index.global_filter import GlobalFilterSize
from zonebloom.spark.hyperspace.config import require_name
from zonebloom.spark.hyperspace.records import Record, Records, State
from zonebloom.spark.hyperspace.source import Access
from zonebloom.spark.jobs import spark_engine

ProgressOption = bool | Callable[[int, int], Any] | None


class Actions:
    """What can be done to the indices of a system folder."""

    # As queries take them: when they were read, of which folder.
    _cache: tuple[float, str, list[Record]] | None = None

    def __init__(self, records: Records, spark: SparkSession | Literal[False]):
        self._folder = records
        self._spark: Any = spark
        self._access = Access(spark)

    def _records(self) -> Records:
        return self._folder

    def create(self, ds: Dataset, wanted: Record, progress: ProgressOption = None) -> None:
        """Build an index that is not there."""
        name, catalog = wanted.name, ds.opened.catalog
        before = self._records().latest(name)
        there = catalog.latest().indices
        if before.state != State.DOESNOTEXIST:
            hint = ""
            if before.state == State.DELETED:
                hint = ", deleted: restore it or vacuum it first"
            elif before.missing_from(self._access.catalog(before).latest().indices):
                hint = (
                    f", which is being built, or was until its process died: then call "
                    f"cancel({name!r}) first"
                )
            raise IndexExists(f"there is an index {name!r} already{hint}; or give another name")
        taken = [name for name in wanted.indices.values() if name in there]
        if taken:
            raise IndexExists(
                f"the catalog in {wanted.index_dir} has an index {taken[0]!r} already, which is "
                "not in this manager's records: it was made by hand, or by a manager with another "
                "system path. Give another name, or call drop_index on the dataset if nobody uses "
                "it"
            )
        require_encrypted_index(ds.opened)
        record = self._put(replace(wanted, state=State.ACTIVE, number=before.number))
        build = catalog.new_segment_prefix()
        try:
            self._build(ds, record, progress, build)
        except BaseException as error:
            try:
                drop_indices(catalog, record.indices.values(), build=build)
                self._put(replace(record, state=State.DOESNOTEXIST))
            except (ZoneBloomError, OSError, ValueError, Warning) as other:
                # It shall not hide the first one.
                error.add_note(
                    f"what it built, or its record, may be left ({type(other).__name__}: {other}): "
                    f"call cancel({name!r})"
                )
            raise

    def refresh_index(
        self, name: str, mode: str = "full", *, progress: ProgressOption = None
    ) -> None:
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
        arguments.require_choice(mode, "mode", ("full", "incremental", "quick"))
        record = self._record(name, State.ACTIVE, "call restore_index first")
        ds = self._access.recorded_dataset(record)
        if mode == "quick":
            drift = self._access.drift(ds, record)
            self._put(replace(record, accepted_changes=(*drift.appended, *drift.deleted)))
            return
        if mode == "full":
            self._build(ds, record, progress)
        else:
            _require_there(record, ds.opened.version.indices, "refresh it with mode='full'")
            ds.optimize.optimize_indices(
                list(record.indices.values()), spark=self._spark, progress=progress
            )
        if record.accepted_changes:
            self._put(replace(record, accepted_changes=()))

    def optimize_index(self, name: str, mode: str = "quick") -> None:
        """Put the segments that refreshes added together; no data is read.

        Parameters
        ----------
        name : str
        mode : {"quick", "full"}
            "quick" merges the small ones; "full" makes one of all, in the layout its size asks
            for.

        Raises
        ------
        IndexNotFound, InvalidState, CorruptIndex
        """
        arguments.require_choice(mode, "mode", ("quick", "full"))
        record = self._record(name, State.ACTIVE, "call restore_index first")
        compact_indices(
            self._access.catalog(record),
            list(record.indices.values()),
            everything=mode == "full",
        )

    def delete_index(self, name: str) -> None:
        """Have an index used no more by this manager's queries; `restore_index` takes it back.

        As all that follow it raises IndexNotFound, InvalidState or CommitConflict.
        """
        record = self._record(name, State.ACTIVE, "it is deleted already")
        self._put(replace(record, state=State.DELETED))

    def restore_index(self, name: str) -> None:
        """Take back `delete_index`."""
        record = self._record(name, State.DELETED, "there is nothing to restore")
        there = self._access.catalog(record).latest().indices
        _require_there(record, there, "vacuum it and create it again")
        self._put(replace(record, state=State.ACTIVE))

    def vacuum_index(self, name: str) -> None:
        """Remove a deleted index for good, filters and all."""
        record = self._record(name, State.DELETED, "call delete_index first")
        drop_indices(self._access.catalog(record), record.indices.values())
        self._put(replace(record, state=State.DOESNOTEXIST))

    def cancel(self, name: str) -> None:
        """Forget an index whose creation never ended, as when its process died.

        Nothing else is to be cancelled: any other action that does not end leaves the index as
        it was. A creation that is still under way fails at its end.

        Raises
        ------
        IndexNotFound
        InvalidState
            When its creation ended.
        """
        record = self._record(name)
        there = self._access.catalog(record).latest(for_writing=True).indices
        if record.state != State.ACTIVE or len(record.missing_from(there)) < len(record.columns):
            raise InvalidState(
                f"index {name!r} is {record.state} and its creation ended, so there is none to "
                "cancel"
            )
        self._put(replace(record, state=State.DOESNOTEXIST))

    def _record(self, name: str, state: State | None = None, hint: str = "") -> Record:
        """What is known of an index, in a state in which an action may begin."""
        record = self._records().latest(require_name(name))
        if record.state == State.DOESNOTEXIST:
            raise index_not_found(name, self._records().all())
        if state is not None and record.state != state:
            raise InvalidState(f"index {name!r} is {record.state}: {hint}")
        return record

    def _put(self, record: Record) -> Record:
        self._cache = None
        return self._records().put(record)

    def _build(
        self, ds: Dataset, record: Record, progress: ProgressOption, new_build: str = ""
    ) -> None:
        """Build all anew, or what is not there, in segments with the prefix that is given."""
        size = GlobalFilterSize(record.expected_num_items, record.fpp)
        wanted = [
            IndexSpec(name, ds.opened.column(column), ZoneParameters(), size)
            for column, name in record.indices.items()
        ]
        engine = None if self._spark is False else spark_engine(self._spark)
        catalog = ds.opened.catalog
        build = new_build or catalog.new_segment_prefix()
        Builder(ds.opened).build(wanted, "auto", not new_build, engine, progress, build)
        if self._records().latest(record.name).state == State.DOESNOTEXIST:
            drop_indices(catalog, record.indices.values(), build=build)
            raise CommitConflict(
                f"index {record.name!r} was cancelled or vacuumed while it was built"
            )


def index_not_found(name: str, records: Iterable[Record]) -> IndexNotFound:
    """Return the error for a name that no index has."""
    names = [record.name for record in records if record.state != State.DOESNOTEXIST]
    known = arguments.suggest_names(name, names, "there is:")
    return IndexNotFound(f"there is no index {name!r}; {known}; indexes() describes them")


def _require_there(record: Record, indices: Container[str], step: str) -> None:
    if gone := record.missing_from(indices):
        raise IndexNotFound(f"{', '.join(gone)} is not in the catalog any more; {step}")
