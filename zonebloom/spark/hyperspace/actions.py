"""The actions on a managed index. Each step writes one record, or one commit to the data's catalog.

create               writes a record, which reserves the name, and then commits the filters
refresh, optimize    make one commit
delete, restore      write one record
vacuum               drops the filters in one commit, and then writes one record
cancel               writes one record for an index whose filters were never committed

A process may therefore die at any time: each step is done completely or not at all. Segments that
it leaves in the catalog's folder are deleted by the next `vacuum()` of the dataset.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import replace
from typing import Any, Literal

from pyspark.sql import SparkSession

from zonebloom.base import arguments
from zonebloom.base.progress import ProgressOption, require_progress
from zonebloom.building.builder import Builder
from zonebloom.building.request import IndexSpec, require_encrypted_index
from zonebloom.building.segments import compact_indices, drop_indices
from zonebloom.catalog.model import DEFAULT_KIND, RETENTION
from zonebloom.errors import (
    CommitConflict,
    IndexExists,
    IndexNotFound,
    InvalidState,
    ZoneBloomError,
)
from zonebloom.facade.dataset import Dataset
from zonebloom.facade.indices import refresh_indices
from zonebloom.index.global_filter import GlobalFilterSize
from zonebloom.index.kinds import index_kind
from zonebloom.spark.hyperspace.config import require_name
from zonebloom.spark.hyperspace.records import Record, Records, State
from zonebloom.spark.hyperspace.source import Access
from zonebloom.spark.jobs import spark_engine


class Actions:
    """The actions on the indices whose records are in a system folder."""

    # The records that queries use: the time of reading them, their folder, and the records.
    _cache: tuple[float, str, list[Record]] | None = None

    def __init__(self, records: Records, spark: SparkSession | Literal[False]):
        self._folder = records
        self._spark: Any = spark
        self._access = Access(spark)

    def _records(self) -> Records:
        return self._folder

    def create(self, ds: Dataset, new_record: Record, progress: ProgressOption = None) -> None:
        name, catalog = new_record.name, ds.opened.catalog
        old_record = self._records().latest(name)
        existing_indices = catalog.latest().indices
        if old_record.state != State.DOESNOTEXIST:
            hint = ""
            if old_record.state == State.DELETED:
                hint = ", deleted: restore it or vacuum it first"
            elif old_record.missing_from(self._access.catalog(old_record).latest().indices):
                hint = (
                    f", whose build is running or was interrupted: if it was interrupted, call "
                    f"cancel({name!r}) first"
                )
            raise IndexExists(f"there is an index {name!r} already{hint}; or give another name")
        used_names = [name for name in new_record.indices.values() if name in existing_indices]
        if used_names:
            raise IndexExists(
                f"the catalog in {new_record.index_dir} has an index {used_names[0]!r} already, "
                "which is not in this manager's records: it was made by hand, or by a manager with "
                "another system path. Give another name, or call drop_index on the dataset if "
                "nobody uses it"
            )
        require_encrypted_index(ds.opened)
        record = self._put(replace(new_record, state=State.ACTIVE, number=old_record.number))
        build = catalog.new_segment_prefix()
        try:
            self._build(ds, record, progress, build)
        except BaseException as error:
            try:
                drop_indices(catalog, record.indices.values(), build=build)
                self._put(replace(record, state=State.DOESNOTEXIST))
            except (ZoneBloomError, OSError, ValueError, Warning) as cleanup_error:
                # Raise the first error, and only mention this one.
                error.add_note(
                    "what it built, or its record, may be left "
                    f"({type(cleanup_error).__name__}: {cleanup_error}): "
                    f"call cancel({name!r})"
                )
            raise

    def refresh_index(
        self, name: str, mode: str = "full", *, progress: ProgressOption = None
    ) -> None:
        """Update an index to the files as they are now.

        Parameters
        ----------
        name : str
        mode : {"full", "incremental", "quick"}
            "full" rebuilds the index. "incremental" reads only files that were added or changed,
            and removes deleted ones. "quick" reads only files that were added. Changed files stay
            unindexed, so queries read them whole until a refresh with another mode. Changed and
            deleted files still count for ``maxDeletedRatio``.
        progress : bool or callable, optional

        Raises
        ------
        InvalidArgument, IndexNotFound, InvalidState, CommitConflict, SchemaMismatch
        NoFragments, FragmentUnreadable, EngineError
            The index is then unchanged.
        """
        arguments.require_choice(mode, "mode", ("full", "incremental", "quick"))
        require_progress(progress)
        record = self._record(name, State.ACTIVE, "call restore_index first")
        ds = self._access.recorded_dataset(record)
        if mode == "full":
            self._build(ds, record, progress)
            return
        _require_indices(record, ds.opened.version.indices, "refresh it with mode='full'")
        refresh_indices(
            ds.opened,
            list(record.indices.values()),
            layout="auto",
            retention=RETENTION,
            repair=False,
            spark=self._spark,
            progress=progress,
            only_appended=mode == "quick",
        )

    def optimize_index(self, name: str, mode: str = "quick") -> None:
        """Merge the segments that refreshes added. It reads no data.

        Parameters
        ----------
        name : str
        mode : {"quick", "full"}
            "quick" merges the small segments. "full" merges all segments into one, in the layout
            that suits its size.

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
        """Stop using an index in this manager's queries, until `restore_index`.

        This and the following methods raise IndexNotFound, InvalidState or CommitConflict.
        """
        record = self._record(name, State.ACTIVE, "it is deleted already")
        self._put(replace(record, state=State.DELETED))

    def restore_index(self, name: str) -> None:
        """Undo `delete_index`."""
        record = self._record(name, State.DELETED, "there is nothing to restore")
        existing_indices = self._access.catalog(record).latest().indices
        _require_indices(record, existing_indices, "vacuum it and create it again")
        self._put(replace(record, state=State.ACTIVE))

    def vacuum_index(self, name: str) -> None:
        """Remove a deleted index with its filters. This cannot be undone."""
        record = self._record(name, State.DELETED, "call delete_index first")
        drop_indices(self._access.catalog(record), record.indices.values())
        self._put(replace(record, state=State.DOESNOTEXIST))

    def cancel(self, name: str) -> None:
        """Remove an index whose creation never ended, for example because its process died.

        Other actions need no cancelling, because an interrupted one leaves the index unchanged. If
        the creation is still running, it fails at its end.

        Raises
        ------
        IndexNotFound
        InvalidState
            If the creation has ended.
        """
        record = self._record(name)
        existing_indices = self._access.catalog(record).latest(for_writing=True).indices
        if record.state != State.ACTIVE or len(record.missing_from(existing_indices)) < len(
            record.columns
        ):
            raise InvalidState(
                f"index {name!r} is {record.state} and its creation ended, so there is none to "
                "cancel"
            )
        self._put(replace(record, state=State.DOESNOTEXIST))

    def _record(self, name: str, state: State | None = None, hint: str = "") -> Record:
        """Return the record of an index. Raise `InvalidState` if it is in another state."""
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
        """Build a new index with the given segment prefix, or rebuild one if there is none."""
        size = GlobalFilterSize(record.expected_num_items, record.fpp)
        parameters = index_kind(DEFAULT_KIND).check_parameters({})
        specs = [
            IndexSpec(name, ds.opened.column(column), parameters, size)
            for column, name in record.indices.items()
        ]
        engine = None if self._spark is False else spark_engine(self._spark)
        catalog = ds.opened.catalog
        build = new_build or catalog.new_segment_prefix()
        Builder(ds.opened).build(specs, "auto", not new_build, engine, progress, build)
        if self._records().latest(record.name).state == State.DOESNOTEXIST:
            drop_indices(catalog, record.indices.values(), build=build)
            raise CommitConflict(
                f"index {record.name!r} was cancelled or vacuumed while it was built"
            )


def index_not_found(name: str, records: Iterable[Record]) -> IndexNotFound:
    """Return the error for a name that no index has."""
    names = [record.name for record in records if record.state != State.DOESNOTEXIST]
    choices_text = arguments.suggest_names(name, names, "there is:")
    return IndexNotFound(f"there is no index {name!r}; {choices_text}; indexes() describes them")


def _require_indices(record: Record, indices: Container[str], step: str) -> None:
    if missing_names := record.missing_from(indices):
        raise IndexNotFound(f"{', '.join(missing_names)} is not in the catalog any more; {step}")
