"""IndexManager: manage named indices with an interface like Hyperspace's.

A managed index is one index for each column in the catalog of the data, named ``<name>.<column>``,
with a global filter. Each step of an action writes one record, or one commit to the catalog:

    create               writes a record, which reserves the name, and then commits the filters
    refresh, optimize    make one commit
    delete, restore      write one record
    vacuum               drops the filters in one commit, and then writes one record
    cancel               writes one record for an index whose filters were never committed

A process may therefore die at any time: each step is done completely or not at all. Segments that
it leaves in the catalog's folder are deleted by the next `vacuum()` of the dataset.
"""

from __future__ import annotations

import contextlib
import io
import os
import time
from collections.abc import Callable, Container, Mapping
from dataclasses import replace
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from zonebloom.base import arguments
from zonebloom.base.progress import ProgressOption, require_progress
from zonebloom.building.builder import Builder, Engine
from zonebloom.building.request import IndexSpec, require_encrypted_index, size_global_filter
from zonebloom.building.segments import compact_indices, drop_indices
from zonebloom.catalog.model import DEFAULT_KIND, RETENTION
from zonebloom.catalog.store import Catalog
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
from zonebloom.spark.explain import explain
from zonebloom.spark.hyperspace.config import (
    APPLY_ENABLED,
    CACHE_SECONDS,
    SYSTEM_PATH,
    BFIndexConfig,
    read_settings,
    require_name,
)
from zonebloom.spark.hyperspace.managed_lookup import ManagedLookup
from zonebloom.spark.hyperspace.records import (
    Record,
    Records,
    State,
    forget_deleted_indices,
)
from zonebloom.spark.hyperspace.source import (
    STATISTICS_SCHEMA,
    open_managed_source,
    resolve_columns,
    statistics_rows,
)
from zonebloom.spark.jobs import spark_engine
from zonebloom.spark.pruning.answer import PruningResult
from zonebloom.spark.pruning.explanation import Explanation
from zonebloom.spark.pruning.jvm_scan import JvmScan
from zonebloom.spark.pruning.optimizer_rule import (
    MANAGER,
    has_session_rule,
    remove_session_rule,
    set_session_rule,
    with_index,
)
from zonebloom.spark.session_settings import is_case_sensitive
from zonebloom.spark.session_state import LruCache
from zonebloom.spark.versions import spark_context
from zonebloom.storage.encryption import Encryption

__all__ = ["BFIndexConfig", "IndexManager"]


def _with_camel_case_names(cls: type[IndexManager]) -> type[IndexManager]:
    """Give the methods of a class their names in camel case too, as Hyperspace spells them."""
    for name in dir(cls):
        if "_" in name and not name.startswith("_"):
            first, *others = name.split("_")
            setattr(cls, first + "".join(map(str.capitalize, others)), getattr(cls, name))
    return cls


@_with_camel_case_names
class IndexManager:
    """A manager of named indices over Parquet files that Spark reads.

    Methods also have their names in camel case, as in Hyperspace's Python API: ``createIndex`` is
    ``create_index``, with the same parameters.

    Parameters
    ----------
    spark : SparkSession
        Classic or Connect. Its conf is read at each call, with the keys and defaults of
        `zonebloom.spark.hyperspace.config`.
    encryption : Encryption, optional
        Keys of the indices, as `zonebloom.dataset` takes them. New indices are encrypted, and
        unencrypted ones are not used. Build tasks get the keys, but no conf, plan or record
        contains them.

    Raises
    ------
    EngineError
        If ``spark`` is no session.

    Examples
    --------
    >>> spark.conf.set("zonebloom.system.path", "managed")
    >>> manager = zs.IndexManager(spark)
    >>> manager.create_index("orders", zs.BFIndexConfig("by_id", ["id"]))
    >>> manager
    <zonebloom.IndexManager ...managed: by_id (ACTIVE)>
    >>> query = spark.read.parquet("orders").where("id = 42")
    >>> manager.explain(query)
    ZoneBloomExplanation: 1 of 3 files kept
      Relation file:...orders
        filter: id = 42
        indices: by_id.id
        files: 1 of 3 kept, 9.5 kB of 28.6 kB
    >>> manager.apply(query).count()
    1
    >>> manager.refresh_index("by_id", "incremental")
    >>> manager.delete_index("by_id")
    >>> manager.vacuum_index("by_id")
    >>> manager
    <zonebloom.IndexManager ...managed: no index>
    """

    def __init__(self, spark: SparkSession, *, encryption: Encryption | None = None):
        spark_context(spark)
        self._spark = spark
        if encryption is not None:
            arguments.require_secret(encryption, Encryption, "encryption")
        self._encryption = encryption
        # The catalogs and files that queries opened.
        self._opened: LruCache[Any] = LruCache()
        # The records that queries use: the time of reading them, their folder, and the records.
        self._cache: tuple[float, str, list[Record]] | None = None

    def create_index(
        self,
        df: DataFrame | str | os.PathLike[str],
        config: BFIndexConfig,
        *,
        index_dir: str | None = None,
        progress: ProgressOption = None,
    ) -> None:
        """Build an index with filters of the zones and a global filter for each column.

        Parameters
        ----------
        df : DataFrame or path
            An unchanged ``spark.read.parquet(path)`` of all files of one folder, or the path. Over
            Spark Connect give the path, because Connect does not show what a frame reads.
        config : BFIndexConfig
        index_dir : str, optional
            Folder of the catalog, if it should not be beside the data.
        progress : bool or callable, optional
            True for a progress bar, or a function that gets the rows done and all rows.

        Raises
        ------
        InvalidArgument, ColumnNotFound, UnsupportedType, IndexExists, NoFragments
            Raised before anything but footers is read.
        FragmentUnreadable, SchemaMismatch, EngineError, CommitConflict
            Nothing is left behind then.
        """
        arguments.require_instance(config, BFIndexConfig, "config")
        ds, path = open_managed_source(df, index_dir, self._spark, self._encryption, config.columns)
        ds.opened.warn_if_first_index_is_inside()
        columns = resolve_columns(ds, config.columns, is_case_sensitive(self._spark))
        size = size_global_filter(ds.opened, config.expected_num_items, config.fpp)
        catalog = ds.opened.catalog
        record = Record(
            config.name,
            state=State.ACTIVE,
            number=self._records().latest(config.name).number,
            path=path,
            index_dir=ds.index_dir,
            columns=columns,
            expected_num_items=size.num_items,
            fpp=size.probability,
        )
        self._require_unused_names(record, catalog)
        require_encrypted_index(ds.opened)
        record = self._put(record)
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
                    f"call cancel({record.name!r})"
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
            unindexed, so queries read them whole until a refresh with another mode.
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
        ds = self._records().open(record)
        if mode == "full":
            self._build(ds, record, progress)
            return
        _require_indices(record, ds.opened.version.indices, "refresh it with mode='full'")
        refresh_indices(
            ds.opened,
            list(record.indices.values()),
            retention=RETENTION,
            repair=False,
            spark=self._engine(),
            progress=progress,
            only_appended=mode == "quick",
        )

    def optimize_index(self, name: str, mode: str = "quick") -> None:
        """Merge the segments that refreshes added. It reads no data.

        Parameters
        ----------
        name : str
        mode : {"quick", "full"}
            "quick" merges the small segments. "full" merges all segments into one.

        Raises
        ------
        IndexNotFound, InvalidState, CorruptIndex
        """
        arguments.require_choice(mode, "mode", ("quick", "full"))
        record = self._record(name, State.ACTIVE, "call restore_index first")
        compact_indices(
            self._records().catalog(record),
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
        existing_indices = self._records().catalog(record).latest().indices
        _require_indices(record, existing_indices, "vacuum it and create it again")
        self._put(replace(record, state=State.ACTIVE))

    def vacuum_index(self, name: str) -> None:
        """Remove a deleted index with its filters. This cannot be undone."""
        record = self._record(name, State.DELETED, "call delete_index first")
        drop_indices(self._records().catalog(record), record.indices.values())
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
        existing_indices = self._records().catalog(record).latest(for_writing=True).indices
        if record.state_in(existing_indices) != State.CREATING:
            raise InvalidState(
                f"index {name!r} is {record.state} and its creation ended, so there is none to "
                "cancel"
            )
        self._put(replace(record, state=State.DOESNOTEXIST))

    # Statistics

    def indexes(self) -> DataFrame:
        """Return a frame with one row for each index.

        It has the columns of Hyperspace's IndexStatistics and more. Source files are the indexed
        files. Appended and deleted files are the differences to the current files; a rewritten
        file counts as both.
        """
        return self._statistics(self._records().all())

    def index(self, name: str) -> DataFrame:
        """Return a frame with the row of one index.

        Raises
        ------
        IndexNotFound
        """
        return self._statistics([self._record(name)])

    def _statistics(self, records: list[Record]) -> DataFrame:
        rows = list(statistics_rows(records, self._records()))
        return self._spark.createDataFrame(rows, STATISTICS_SCHEMA)

    def __repr__(self) -> str:
        records = self._records()
        names = ", ".join(f"{r.name} ({r.state})" for r in records.all()) or "no index"
        return f"<zonebloom.IndexManager {records.path}: {names}>"

    # Queries

    def apply(self, df: DataFrame) -> DataFrame:
        """Make a query skip files that its filters exclude, by the indices of this manager.

        It works like `zonebloom.spark.prune`, with the indices that are ACTIVE and that the conf
        allows. The query returns the same rows from fewer files. If indices are disabled, the frame
        reads all files.

        Warns
        -----
        IndexNotUsedWarning
            If more files changed than hybrid scan allows, or an index cannot be used.
        StaleIndexWarning
            If files changed since they were indexed. They are read.
        """
        return with_index(df, self._ask)

    def explain(
        self,
        df: DataFrame,
        verbose: bool = False,
        redirectFunc: Callable[[str], Any] = print,  # noqa: N803
    ) -> None:
        """Print which files of a query are read, and why no more are skipped.

        It runs no Spark job but those that compute small sides of joins. If ``verbose`` is set,
        it also prints Spark's plan with the indices. ``redirectFunc`` gets the text in place of
        `print`.
        """
        text = io.StringIO()
        print(self.why_not(df), file=text)
        if verbose:
            # explain() is the only public way to get a plan's text, and it prints the text.
            with contextlib.redirect_stdout(text):
                self.apply(df).explain(mode="simple")
        redirectFunc(text.getvalue().rstrip())

    def why_not(
        self,
        df: DataFrame,
        index_name: str = "",
        extended: bool = False,
    ) -> Explanation:
        """Return which indices are used for a query, or whether one is, and why others are not.

        Programs use ``.relations`` and ``.reasons``; `str` and HTML show a text. ``extended`` is
        accepted as by Hyperspace: the text always has all reasons.

        Raises
        ------
        IndexNotFound
        """
        settings = read_settings(self._spark)
        records = [self._record(index_name)] if index_name else self._cached_records(settings)
        # Use a new cache, because indices in the shared one have already issued their warnings.
        lookup = ManagedLookup(self._records(), records, settings, LruCache())
        return explain(with_index(df, lookup.ask, warns=False))

    def enable(self) -> None:
        """Use the indices in every query of a classic session, without `apply`.

        It sets ``zonebloom.apply.enabled`` to true, which is the default.
        """
        self._spark.conf.set(APPLY_ENABLED, "true")
        set_session_rule(self._spark, self._ask, MANAGER)

    def disable(self) -> None:
        """Stop all managers of the session from using indices, also in `apply`.

        `zonebloom.spark.enable` stays in effect, but for indices that a manager deleted.
        """
        self._spark.conf.set(APPLY_ENABLED, "false")
        remove_session_rule(self._spark, MANAGER)

    def is_enabled(self) -> bool:
        """Return whether the queries of the session use indices without `apply`."""
        is_applied = read_settings(self._spark)[APPLY_ENABLED]
        return is_applied and has_session_rule(self._spark, MANAGER)

    def _ask(self, scan: JvmScan) -> PruningResult:
        """Return which files a scan can skip, by the current settings and records."""
        settings = read_settings(self._spark)
        records = self._cached_records(settings)
        return ManagedLookup(self._records(), records, settings, self._opened).ask(scan)

    # Records

    def _cached_records(self, settings: Mapping[str, Any]) -> list[Record]:
        """Return the records for queries. They are cached for the time that the conf allows."""
        path, now, cache = settings[SYSTEM_PATH], time.monotonic(), self._cache
        if cache is None or cache[1] != path or now - cache[0] >= settings[CACHE_SECONDS]:
            self._cache = cache = now, path, self._records().all()
        return cache[2]

    def _records(self) -> Records:
        return Records(read_settings(self._spark)[SYSTEM_PATH], self._spark, self._encryption)

    def _record(self, name: str, state: State | None = None, hint: str = "") -> Record:
        """Return the record of an index. Raise `InvalidState` if it is in another state."""
        record = self._records().latest(require_name(name))
        if record.state == State.DOESNOTEXIST:
            names = [record.name for record in self._records().all()]
            choices_text = arguments.suggest_names(name, names, "there is:")
            raise IndexNotFound(
                f"there is no index {name!r}; {choices_text}; indexes() describes them"
            )
        if state is not None and record.state != state:
            raise InvalidState(f"index {name!r} is {record.state}: {hint}")
        return record

    def _require_unused_names(self, new_record: Record, catalog: Catalog) -> None:
        """Raise `IndexExists` if the manager or the catalog has an index of the same name."""
        name, records = new_record.name, self._records()
        record = records.latest(name)
        if record.state != State.DOESNOTEXIST:
            hint = ""
            if record.state == State.DELETED:
                hint = ", deleted: restore it or vacuum it first"
            elif record.state_in(records.catalog(record).latest().indices) == State.CREATING:
                hint = (
                    f", whose build is running or was interrupted: if it was interrupted, call "
                    f"cancel({name!r}) first"
                )
            raise IndexExists(f"there is an index {name!r} already{hint}; or give another name")
        existing_indices = catalog.latest().indices
        used_names = [used for used in new_record.indices.values() if used in existing_indices]
        if used_names:
            raise IndexExists(
                f"the catalog in {catalog.folder} has an index {used_names[0]!r} already, "
                "which is not in this manager's records: it was made by hand, or by a manager with "
                "another system path. Give another name, or call drop_index on the dataset if "
                "nobody uses it"
            )

    def _put(self, record: Record) -> Record:
        self._cache = None
        forget_deleted_indices(self._spark)
        return self._records().put(record)

    # Builds

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
        catalog = ds.opened.catalog
        build = new_build or catalog.new_segment_prefix()
        Builder(ds.opened).build(specs, not new_build, self._engine(), progress, build)
        if self._records().latest(record.name).state == State.DOESNOTEXIST:
            drop_indices(catalog, record.indices.values(), build=build)
            raise CommitConflict(
                f"index {record.name!r} was cancelled or vacuumed while it was built"
            )

    def _engine(self) -> Engine:
        return spark_engine(self._spark)


def _require_indices(record: Record, indices: Container[str], step: str) -> None:
    if missing_names := record.missing_from(indices):
        raise IndexNotFound(f"{', '.join(missing_names)} is not in the catalog any more; {step}")
