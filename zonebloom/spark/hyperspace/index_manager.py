"""IndexManager: indices by name, as users of Hyperspace manage theirs.

Each is one index a column in the catalog of the data (``<name>.<column>``), with global filters.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import wraps
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from zonebloom import arguments
from zonebloom.spark.hyperspace.actions import Actions, Progress, no_index
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
from zonebloom.spark.hyperspace.report import WhyNot, explain_text, why_not
from zonebloom.spark.hyperspace.source import (
    DDL,
    figures,
    num_items,
    open_source,
    resolve_columns,
)
from zonebloom.spark.pruning.listing import set_rule, with_index
from zonebloom.spark.pruning.prune import plan_of
from zonebloom.spark.session import is_case_sensitive, spark_context

__all__ = ["BFIndexConfig", "IndexManager"]


def _spelled(method: Callable[..., Any], **parameters: str) -> Callable[..., Any]:
    """A method under Hyperspace's name, with Hyperspace's names of its parameters."""

    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        named = {parameters.get(name, name): value for name, value in kwargs.items()}
        return method(self, *args, **named)

    return call


class IndexManager(Actions):
    """Manages indices over Parquet files that Spark reads.

    Methods have the names of Hyperspace's Python API too: ``createIndex`` and so on.

    Parameters
    ----------
    spark : SparkSession
        Classic or Connect; its conf is read at each call, with the keys and defaults of
        `zonebloom.spark.hyperspace.config`.

    Raises
    ------
    EngineError
        When it is no session.
    """

    def __init__(self, spark: SparkSession):
        spark_context(spark)
        self._spark = spark

    def create_index(
        self,
        df: DataFrame | str | os.PathLike[str],
        config: BFIndexConfig,
        *,
        index_dir: str | None = None,
        progress: Progress = None,
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
        arguments.of_type(config, BFIndexConfig, "config")
        ds, path = open_source(df, index_dir)
        columns = resolve_columns(ds, config.columns, is_case_sensitive(self._spark))
        wanted = Record(
            config.name,
            path=path,
            index_dir=ds.index_dir,
            columns=columns,
            expected_num_items=num_items(ds, config),
            fpp=config.fpp,
        )
        self.create(ds, wanted, progress)

    # Figures

    def indexes(self) -> DataFrame:
        """One row an index, with the columns of Hyperspace's IndexStatistics and more.

        Counts of source files are of those indexed; of appended and deleted ones, of the files
        as they are now. A file written anew counts as both.
        """
        return self._spark.createDataFrame(list(figures(self._records().all())), DDL)

    def index(self, name: str) -> DataFrame:
        """The row of one index."""
        return self._spark.createDataFrame(list(figures([self._record(name)])), DDL)

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
        return with_index(df, self._lookups())

    def explain(
        self,
        df: DataFrame,
        verbose: bool = False,
        redirect: Callable[[str], Any] = print,
    ) -> None:
        """Show the plan of a query with and without indices, what differs highlighted.

        No Spark job runs. Verbose says of every relation what was asked of its indices, too.
        """
        redirect(explain_text(df, plan_of(df, self._lookup()), self._lookups(), verbose))

    def why_not(self, df: DataFrame, index_name: str = "", extended: bool = False) -> WhyNot:
        """Say why indices are not used for a query, with a typed reason for each.

        ``.rows`` and ``.reasons`` are for programs, `str` and HTML for people.
        """
        records = self._known_records()
        if index_name:
            records = [record for record in records if record.name == require_name(index_name)]
            if not records:
                raise no_index(index_name)
        lookup = self._lookup()
        return WhyNot(tuple(why_not(records, plan_of(df, lookup), lookup)), extended)

    def enable(self) -> None:
        """Have the indices used in every query of a classic session, without `apply`.

        It sets ``zonebloom.apply.enabled``, which is so by default for `apply`.
        """
        self._spark.conf.set(APPLY_ENABLED, "true")
        set_rule(self._spark, self._lookups())

    def disable(self) -> None:
        """Have no index used by any manager of the session, by `apply` or without."""
        self._spark.conf.set(APPLY_ENABLED, "false")
        set_rule(self._spark, None)

    def is_enabled(self) -> bool:
        """Whether indices are used."""
        return read_settings(self._spark)[APPLY_ENABLED]

    def _lookup(self, cache: dict[Any, Any] | None = None) -> ManagedLookup:
        """What answers for the indices, as things are now."""
        return ManagedLookup(self._known_records(), read_settings(self._spark), cache)

    def _lookups(self) -> Callable[[], ManagedLookup]:
        """The same for query after query, with what earlier ones opened."""
        cache: dict[Any, Any] = {}
        return lambda: self._lookup(cache)

    # Records

    def _records(self) -> Records:
        return Records(read_settings(self._spark)[SYSTEM_PATH])

    def _known_records(self) -> list[Record]:
        """Records as queries take them, as they were at most so long ago as the conf allows."""
        settings = read_settings(self._spark)
        path, now = settings[SYSTEM_PATH], time.monotonic()
        if self._cache is not None:
            at, cached_path, records = self._cache
            if cached_path == path and now - at < settings[CACHE_SECONDS]:
                return records
        records = Records(path).all()
        self._cache = now, path, records
        return records

    # As Hyperspace spells them

    createIndex = _spelled(create_index, dataFrame="df", indexConfig="config")  # noqa: N815
    deleteIndex = _spelled(Actions.delete_index, indexName="name")  # noqa: N815
    restoreIndex = _spelled(Actions.restore_index, indexName="name")  # noqa: N815
    vacuumIndex = _spelled(Actions.vacuum_index, indexName="name")  # noqa: N815
    refreshIndex = _spelled(Actions.refresh_index, indexName="name")  # noqa: N815
    optimizeIndex = _spelled(Actions.optimize_index, indexName="name")  # noqa: N815
    whyNot = _spelled(why_not, indexName="index_name")  # noqa: N815
    isEnabled = _spelled(is_enabled)  # noqa: N815
    explain = _spelled(explain, redirectFunc="redirect")
