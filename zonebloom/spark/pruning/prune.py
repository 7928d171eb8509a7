"""prune() and enable() make Spark skip files by an index."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from zonebloom.base import arguments
from zonebloom.spark.pruning.index_lookup import IndexDir, IndexLookup
from zonebloom.spark.pruning.maintain import start_maintenance, stop_maintenance
from zonebloom.spark.pruning.optimizer_rule import (
    remove_session_rule,
    session_of,
    set_session_rule,
    warn_once,
    with_index,
)
from zonebloom.spark.session_state import session_state
from zonebloom.storage.encryption import Encryption


def prune(df: DataFrame, *, index_dir: IndexDir = None) -> DataFrame:
    """Make a frame, and all frames derived from it, skip files that their filters exclude.

    When Spark plans a query, each scan of Parquet files (``spark.read.parquet``, a table, a view
    of one) looks up its pushed filters in an index: one in ``index_dir``, the one beside the
    files, or the one of a folder above them. Spark skips files in which no row can match, and
    reads the others with its own reader. Any projection, join, aggregate, window, union or limit
    may follow. Files that are new or changed since they were indexed are read. If the index has no
    answer, fails, or takes longer than a minute, all files are read.

    The rows do not change, but fewer files make fewer partitions. This changes results that depend
    on partitions: ``sample(seed=...)``, ``randomSplit`` and ``rand()`` over a filter, and
    ``spark_partition_id()``.

    Relations of other formats, streams, and Python or other V2 data sources are not changed. Cached
    frames are still read from the cache. For Spark, the frame reads the same tables as ``df``: it
    refuses to overwrite them, and drops cached frames when they change. ``explain`` shows the
    index and the number of files of each scan, ``FileScan parquet (zonebloom: 1 of 3 files by
    id_idx)``, and why no more files are skipped.

    Parameters
    ----------
    df : DataFrame
        A frame of a classic session. Filters may be added later.
    index_dir : path, optional
        Folder of an index, in the same file system as the data. The index beside the data is used
        if that one has no index of the files on a filtered column. For an encrypted index use
        `enable`.

    Returns
    -------
    pyspark.sql.DataFrame
        A frame with the same rows, or ``df`` itself if it reads no files that could be skipped.

    Raises
    ------
    InvalidArgument
        If ``df`` is no DataFrame.

    Warns
    -----
    IndexNotUsedWarning
        If the session gives no access to plans, or an index_dir holds no index. Also when a query
        is planned, if an index exists but cannot be used.
    StaleIndexWarning
        When a query is planned, if files changed since they were indexed.

    Examples
    --------
    >>> orders = zs.prune(spark.read.parquet("orders"))
    >>> orders.where("id = 42").select("customer").collect()
    [Row(customer='C042')]
    """
    return with_index(df, _checked_lookup(session_of(df), index_dir, None).ask)


def enable(
    spark: SparkSession,
    *,
    index_dir: IndexDir = None,
    encryption: Encryption | None = None,
    maintain: bool = False,
) -> None:
    """Make all queries of a session skip files that their filters exclude.

    It does what `prune` does, for every frame, view and SQL text of the session, until `disable`.
    `explain` shows for each scan the index, the files that are read, and why no more are skipped.
    As with `prune`, ``sample(seed=...)`` and ``rand()`` over a filter depend on the number of
    partitions, which is smaller when fewer files are read.

    Parameters
    ----------
    spark : SparkSession
        A classic session. Other sessions of the application are not affected.
    index_dir : path, optional
        Folder of an index that is not beside the data, as `prune` takes it. The indices beside
        the data are still used.
    encryption : Encryption, optional
        Keys of encrypted indices, as `zonebloom.dataset` takes them. They stay in this process.
        Unencrypted indices are then not used.
    maintain : bool
        Whether to refresh the indices of a folder after each successful write of the session to
        it, as `Dataset.optimize_indices` does. The write returns at once, a thread of this process
        refreshes, and `disable` waits for it. Files that are not indexed yet are read whole, so
        queries are right at any time. A refresh that fails does not fail the write; a
        StaleIndexWarning says so. Writes are those of Spark's file sources, by path, into tables,
        and in ``foreachBatch``, and the batches of streams with a file sink. Call this before a
        stream starts.

    Raises
    ------
    InvalidArgument

    Warns
    -----
    IndexNotUsedWarning
        If the session gives no access to plans, so that it still reads all files, or if an
        index_dir holds no index.

    Examples
    --------
    >>> zs.enable(spark)
    >>> frame = spark.read.parquet("orders").where("id = 42")
    >>> rows = frame.collect()
    >>> zs.explain(frame).relations[0].kept_files
    1
    >>> zs.disable(spark)
    """
    arguments.require_instance(maintain, bool, "maintain")
    lookup = _checked_lookup(spark, index_dir, encryption)
    set_session_rule(spark, lookup.ask)
    if maintain:
        start_maintenance(spark, lookup)
    else:
        stop_maintenance(spark)


def disable(spark: SparkSession) -> None:
    """Undo `enable`. Wait until the refreshes after earlier writes have ended.

    >>> zs.enable(spark, maintain=True)
    >>> spark.read.parquet("orders").write.mode("append").parquet("copy_of_orders")
    >>> zs.disable(spark)
    """
    remove_session_rule(spark)
    stop_maintenance(spark, wait=True)


def _checked_lookup(
    spark: SparkSession, index_dir: IndexDir, encryption: Encryption | None
) -> IndexLookup:
    """Return a lookup. Warn if there is no index in index_dir."""
    lookup = IndexLookup(spark, index_dir, encryption)
    warning = lookup.missing_index()
    if warning is not None:
        warn_once(session_state(spark), warning)
    return lookup
