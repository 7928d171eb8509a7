"""IndexManager: indices by name, as users of Hyperspace manage theirs.

Each is one index a column in the catalog of the data (``<name>.<column>``), with global filters.
"""

# Names of methods and parameters as Hyperspace spells them.
# ruff: noqa: N802, N803, N815

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
    index_statistics,
    open_managed_source,
    resolve_columns,
)
from zonebloom.spark.pruning.index_lookup import BoundedCache
from zonebloom.spark.pruning.jvm_bridge import set_session_rule, with_index
from zonebloom.spark.pruning.prune import describe_pruning
from zonebloom.spark.pruning.prune_plan import PrunePlan
from zonebloom.spark.session import is_case_sensitive, spark_context
from zonebloom.storage.encryption import Encryption

__all__ = ["BFIndexConfig", "IndexManager"]


@arguments.with_methods_of(Actions)
class IndexManager(Actions):
    """Manages indices over Parquet files that Spark reads.

    Methods have the names of Hyperspace's Python API too: ``createIndex`` and so on.

    Parameters
    ----------
    spark : SparkSession
        Classic or Connect; its conf is read at each call, with the keys and defaults of
        `zonebloom.spark.hyperspace.config`.
    encryption : Encryption, optional
        Keys of the indices, as `zonebloom.dataset` takes them: those it makes are encrypted, and
        others are not used. Tasks that build get them; they are in no conf, plan or record.

    Raises
    ------
    EngineError
        When it is no session.

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
        self._opened = BoundedCache()

    def create_index(
        self,
        df: DataFrame | str | os.PathLike[str],
        config: BFIndexConfig,
        *,
        index_dir: str | None = None,
        progress: ProgressOption = None,
    ) -> None:
        """Build an index: for each column, filters of its zones and a global one.

        Parameters
        ----------
        df : DataFrame or path
            ``spark.read.parquet(path)`` as it is, of all files of one folder, or the path; over
            Spark Connect, which does not show what a frame reads, the path.
        config : BFIndexConfig
        index_dir : str, optional
            Folder of the catalog, when it is not to be beside the data.
        progress : bool or callable, optional
            True for a bar, or a function given rows done and rows in all.

        Raises
        ------
        InvalidArgument, ColumnNotFound, UnsupportedType, IndexExists, NoFragments
            Before anything is read but footers.
        FragmentUnreadable, SchemaMismatch, EngineError, CommitConflict
            And nothing is left behind.
        """
        arguments.require_instance(config, BFIndexConfig, "config")
        ds, path = open_managed_source(df, index_dir, self._access)
        ds.opened = ds.opened.in_writable_folder()
        columns = resolve_columns(ds, config.columns, is_case_sensitive(self._spark))
        size = size_global_filter(ds.opened, config.expected_num_items, config.fpp)
        wanted = Record(
            config.name,
            path=path,
            index_dir=ds.index_dir,
            columns=columns,
            expected_num_items=size.num_items,
            fpp=size.probability,
        )
        self.create(ds, wanted, progress)

    # Figures

    def indexes(self) -> DataFrame:
        """One row an index, with the columns of Hyperspace's IndexStatistics and more.

        Counts of source files are of those indexed; of appended and deleted ones, of the files
        as they are now. A file written anew counts as both.
        """
        return self._spark.createDataFrame(
            list(index_statistics(self._records().all(), self._access)), STATISTICS_SCHEMA
        )

    def index(self, name: str) -> DataFrame:
        """The row of one index.

        Raises
        ------
        IndexNotFound
        """
        return self._spark.createDataFrame(
            list(index_statistics([self._record(name)], self._access)), STATISTICS_SCHEMA
        )

    def __repr__(self) -> str:
        records = self._records()
        names = ", ".join(f"{r.name} ({r.state})" for r in records.all()) or "no index"
        return f"<zonebloom.IndexManager {records.path}: {names}>"

    # Queries

    def apply(self, df: DataFrame) -> DataFrame:
        """Leave out the files of a query that its filters exclude, as the indices say.

        `zonebloom.spark.prune`, with the indices of this manager that are ACTIVE and as far as
        the conf allows them: the same rows from fewer files, and the frame as it is when they are
        disabled.

        Warns
        -----
        IndexNotUsedWarning
            When more files changed than hybrid scan allows, or an index cannot be used.
        StaleIndexWarning
            When files are not as they were indexed, and are read for that.
        """
        return with_index(df, self._lookup)

    def explain(
        self,
        df: DataFrame,
        verbose: bool = False,
        redirect: Callable[[str], Any] = print,
        *,
        redirectFunc: Callable[[str], Any] | None = None,
    ) -> None:
        """Show which files of a query are read by the indices, and why no more are left out.

        No Spark job runs. Verbose shows Spark's plan with the indices, too; ``redirectFunc`` is
        ``redirect`` as Hyperspace spells it.
        """
        text = io.StringIO()
        print(self.why_not(df), file=text)
        if verbose:
            # The one way to a plan's text that is public, in classic sessions and over Connect.
            with contextlib.redirect_stdout(text):
                self.apply(df).explain(mode="simple")
        (redirectFunc or redirect)(text.getvalue().rstrip())

    def why_not(self, df: DataFrame, index_name: str = "") -> PrunePlan:
        """Say which indices are used for a query, or whether one is, and why others are not.

        ``.relations`` and ``.reasons`` are for programs, `str` and HTML for people.

        Raises
        ------
        IndexNotFound
        """
        settings = read_settings(self._spark)
        records = self._known_records(settings)
        if index_name:
            named = [record for record in records if record.name == require_name(index_name)]
            if not named:
                raise index_not_found(index_name, records)
            records = named
        # What was opened before does not warn again.
        lookup = ManagedLookup(self._access, records, settings, BoundedCache())
        return describe_pruning(df, lookup)

    def enable(self) -> None:
        """Have the indices used in every query of a classic session, without `apply`.

        It sets ``zonebloom.apply.enabled``, which is so by default for `apply`.
        """
        self._spark.conf.set(APPLY_ENABLED, "true")
        set_session_rule(self._spark, self._lookup)

    def disable(self) -> None:
        """Have no index used by any manager of the session, by `apply` or without."""
        self._spark.conf.set(APPLY_ENABLED, "false")
        set_session_rule(self._spark, None)

    def is_enabled(self) -> bool:
        """Whether indices are used."""
        return read_settings(self._spark)[APPLY_ENABLED]

    def _lookup(self) -> ManagedLookup:
        """What answers for the indices, as things are now, with what earlier queries opened."""
        settings = read_settings(self._spark)
        return ManagedLookup(self._access, self._known_records(settings), settings, self._opened)

    # Records

    def _records(self) -> Records:
        return Records(read_settings(self._spark)[SYSTEM_PATH], self._spark)

    def _known_records(self, settings: Mapping[str, Any]) -> list[Record]:
        """Records as queries take them, as they were at most so long ago as the conf allows."""
        path, now = settings[SYSTEM_PATH], time.monotonic()
        if self._cache is not None:
            at, cached_path, records = self._cache
            if cached_path == path and now - at < settings[CACHE_SECONDS]:
                return records
        records = Records(path, self._spark).all()
        self._cache = now, path, records
        return records

    # As Hyperspace spells them

    def createIndex(self, dataFrame: DataFrame, indexConfig: BFIndexConfig) -> None:
        self.create_index(dataFrame, indexConfig)

    def deleteIndex(self, indexName: str) -> None:
        self.delete_index(indexName)

    def restoreIndex(self, indexName: str) -> None:
        self.restore_index(indexName)

    def vacuumIndex(self, indexName: str) -> None:
        self.vacuum_index(indexName)

    def refreshIndex(self, indexName: str, mode: str = "full") -> None:
        self.refresh_index(indexName, mode)

    def optimizeIndex(self, indexName: str, mode: str = "quick") -> None:
        self.optimize_index(indexName, mode)

    def whyNot(self, df: DataFrame, indexName: str = "") -> PrunePlan:
        return self.why_not(df, indexName)

    isEnabled = is_enabled
