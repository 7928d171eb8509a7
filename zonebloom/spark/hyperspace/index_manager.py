"""IndexManager: manage named indices with an interface like Hyperspace's.

A managed index is one index for each column in the catalog of the data, named ``<name>.<column>``,
with a global filter.
"""

from __future__ import annotations

import contextlib
import io
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from zonebloom.base import arguments
from zonebloom.building.request import size_global_filter
from zonebloom.spark.hyperspace.actions import Actions, ProgressOption, index_not_found
from zonebloom.spark.hyperspace.config import (
    APPLY_ENABLED,
    CACHE_SECONDS,
    SYSTEM_PATH,
    BFIndexConfig,
    read_settings,
    require_name,
)
from zonebloom.spark.hyperspace.managed_lookup import ManagedLookup
from zonebloom.spark.hyperspace.records import Record, Records
from zonebloom.spark.hyperspace.source import (
    STATISTICS_SCHEMA,
    Access,
    open_managed_source,
    resolve_columns,
    statistics_rows,
)
from zonebloom.spark.pruning.answer import PruningResult
from zonebloom.spark.pruning.jvm_scan import JvmScan
from zonebloom.spark.pruning.optimizer_rule import (
    remove_session_rule,
    set_session_rule,
    with_index,
)
from zonebloom.spark.pruning.prune import describe_pruning
from zonebloom.spark.pruning.prune_plan import PrunePlan
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
@arguments.with_methods_of(Actions)
class IndexManager(Actions):
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
    ZoneBloomPrune: 1 of 3 files kept
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
        self._access = Access(spark, encryption)
        self._opened: LruCache[Any] = LruCache()

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
        ds, path = open_managed_source(df, index_dir, self._access)
        ds.opened = ds.opened.in_writable_folder()
        columns = resolve_columns(ds, config.columns, is_case_sensitive(self._spark))
        size = size_global_filter(ds.opened, config.expected_num_items, config.fpp)
        record = Record(
            config.name,
            path=path,
            index_dir=ds.index_dir,
            columns=columns,
            expected_num_items=size.num_items,
            fpp=size.probability,
        )
        self.create(ds, record, progress)

    # Statistics

    def indexes(self) -> DataFrame:
        """Return a frame with one row for each index.

        It has the columns of Hyperspace's IndexStatistics and more. Source files are the indexed
        files. Appended and deleted files are the differences to the current files; a rewritten
        file counts as both.
        """
        return self._spark.createDataFrame(
            list(statistics_rows(self._records().all(), self._access)), STATISTICS_SCHEMA
        )

    def index(self, name: str) -> DataFrame:
        """Return a frame with the row of one index.

        Raises
        ------
        IndexNotFound
        """
        return self._spark.createDataFrame(
            list(statistics_rows([self._record(name)], self._access)), STATISTICS_SCHEMA
        )

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
        redirect: Callable[[str], Any] = print,
    ) -> None:
        """Print which files of a query are read, and why no more are skipped.

        It runs no Spark job but those that compute small sides of joins. If ``verbose`` is set,
        it also prints Spark's plan with the indices.
        """
        text = io.StringIO()
        print(self.why_not(df), file=text)
        if verbose:
            # explain() is the only public way to get a plan's text, and it prints the text.
            with contextlib.redirect_stdout(text):
                self.apply(df).explain(mode="simple")
        redirect(text.getvalue().rstrip())

    def why_not(self, df: DataFrame, index_name: str = "") -> PrunePlan:
        """Return which indices are used for a query, or whether one is, and why others are not.

        Programs use ``.relations`` and ``.reasons``; `str` and HTML show a text.

        Raises
        ------
        IndexNotFound
        """
        settings = read_settings(self._spark)
        records = self._known_records(settings)
        if index_name:
            named_records = [
                record for record in records if record.name == require_name(index_name)
            ]
            if not named_records:
                raise index_not_found(index_name, records)
            records = named_records
        # Use a new cache, because indices in the shared one have already issued their warnings.
        lookup = ManagedLookup(self._access, records, settings, LruCache())
        return describe_pruning(df, lookup.ask)

    def enable(self) -> None:
        """Use the indices in every query of a classic session, without `apply`.

        It sets ``zonebloom.apply.enabled`` to true, which is the default.
        """
        self._spark.conf.set(APPLY_ENABLED, "true")
        set_session_rule(self._spark, self._ask)

    def disable(self) -> None:
        """Stop all managers of the session from using indices, also in `apply`."""
        self._spark.conf.set(APPLY_ENABLED, "false")
        remove_session_rule(self._spark)

    def is_enabled(self) -> bool:
        """Return whether indices are used."""
        return read_settings(self._spark)[APPLY_ENABLED]

    def _ask(self, scan: JvmScan) -> PruningResult:
        """Return which files a scan can skip, by the current settings and records."""
        settings = read_settings(self._spark)
        records = self._known_records(settings)
        return ManagedLookup(self._access, records, settings, self._opened).ask(scan)

    # Records

    def _records(self) -> Records:
        return Records(read_settings(self._spark)[SYSTEM_PATH], self._spark)

    def _known_records(self, settings: Mapping[str, Any]) -> list[Record]:
        """Return the records for queries. They are cached for the time that the conf allows."""
        path, now = settings[SYSTEM_PATH], time.monotonic()
        if self._cache is not None:
            at, cached_path, records = self._cache
            if cached_path == path and now - at < settings[CACHE_SECONDS]:
                return records
        records = Records(path, self._spark).all()
        self._cache = now, path, records
        return records
