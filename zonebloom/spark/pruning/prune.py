"""prune() and enable() make Spark skip files by an index; last_scans() shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from pyspark.sql import DataFrame, SparkSession

from zonebloom.base import arguments
from zonebloom.errors import EngineError
from zonebloom.spark.pruning.answer import PruningResult
from zonebloom.spark.pruning.index_lookup import IndexDirs, IndexLookup
from zonebloom.spark.pruning.jvm_scan import JvmScan
from zonebloom.spark.pruning.maintain import start_maintenance, stop_maintenance
from zonebloom.spark.pruning.optimizer_rule import (
    Ask,
    ask_index,
    jvm_plans,
    last_scan_relation,
    remove_session_rule,
    session_of,
    set_session_rule,
    warn_once,
    with_index,
)
from zonebloom.spark.pruning.prune_plan import Note, PrunedRelation, PrunePlan, Reason
from zonebloom.spark.relation import node_name, scala_items
from zonebloom.spark.session_state import session_state
from zonebloom.spark.versions import from_jvm, query_execution
from zonebloom.storage.encryption import Encryption

# The metrics of a scan that `last_scans` shows.
_METRICS = ("numFiles", "filesSize", "numOutputRows", "scanTime")


def prune(
    df: DataFrame, *, index_dir: IndexDirs = None, encryption: Encryption | None = None
) -> DataFrame:
    """Make a frame, and all frames derived from it, skip files that their filters exclude.

    When Spark plans a query, each scan of Parquet files (``spark.read.parquet``, a table, a view
    of one) looks up its pushed filters in an index: one in ``index_dir``, the one beside the
    files, or the one of a folder above them. Spark skips files in which no row can match, and
    reads the others with its own reader. Any projection, join, aggregate, window, union or limit
    may follow. Files that are new or changed since they were indexed are read. If the index has no
    answer, fails, or takes longer than a minute, all files are read.

    If one side of an equi-join is small, it is computed when the query is planned, and its keys
    choose the files of the other side. `prune_plan` says why if they do not.

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
    index_dir : path or list of paths, optional
        Folders of indices, in the same file system as the data. The first one with an index of
        the files on a filtered column is used. The index beside the data comes last.
    encryption : Encryption, optional
        Keys of an encrypted index, as `zonebloom.dataset` takes them. They stay in this process.

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
    return with_index(df, _checked_lookup(session_of(df), index_dir, encryption).ask)


def prune_plan(
    df: DataFrame, *, index_dir: IndexDirs = None, encryption: Encryption | None = None
) -> PrunePlan:
    """Return which files of a frame `prune` skips, and why it skips no more.

    Parameters and errors are those of `prune`. It runs no Spark job but those that compute the
    small sides of joins. The warnings of `prune` are among the notes, and so is the reason if the
    keys of a join choose no files. `str` and HTML show a text; programs use ``.relations`` and
    ``.reasons``.

    >>> print(zs.prune_plan(spark.read.parquet("orders").where("id = 42")))
    ZoneBloomPrune: 1 of 3 files kept
      Relation file:...orders
        filter: id = 42
        indices: id_idx
        files: 1 of 3 kept, 9.5 kB of 28.6 kB
    """
    lookup = IndexLookup(session_of(df), index_dir, encryption)
    plan = describe_pruning(df, lookup.ask)
    missing_dirs = (Note(Reason.NO_INDEX, str(warning)) for warning in lookup.missing_dirs())
    return replace(plan, notes=(*plan.notes, *missing_dirs))


def enable(
    spark: SparkSession,
    *,
    index_dir: IndexDirs = None,
    encryption: Encryption | None = None,
    maintain: bool | Literal["background", "blocking"] = False,
) -> None:
    """Make all queries of a session skip files that their filters exclude.

    It does what `prune` does, for every frame, view and SQL text of the session, until `disable`.
    ``explain()`` shows for each scan what `last_scans` returns after it ran: the index, the number
    of files that are read, and why no more are skipped. As with `prune`, ``sample(seed=...)`` and
    ``rand()`` over a filter depend on the number of partitions, which is smaller when fewer files
    are read.

    Parameters
    ----------
    spark : SparkSession
        A classic session. Other sessions of the application are not affected.
    index_dir : path or list of paths, optional
        Folders of indices that are not beside the data, as `prune` takes them. The indices beside
        the data are still used.
    encryption : Encryption, optional
        As `prune` takes it. Unencrypted indices are then not used.
    maintain : bool, "background" or "blocking"
        Whether to refresh the indices of a folder after each successful write of the session to
        it, as `Dataset.optimize_indices` does. Under "blocking", the write returns after the
        refresh. True is the same as "background": the write returns at once, a thread of this
        process refreshes, and `wait_for_refreshes` waits for it. Files that are not indexed yet
        are read whole, so queries are right at any time. A refresh that fails does not fail the
        write; a StaleIndexWarning says so. Writes are those of Spark's file sources, by path, into
        tables, and in ``foreachBatch``, and the batches of streams with a file sink, which are
        always refreshed in the background. Call this before a stream starts.

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
    >>> zs.last_scans(frame).relations[0].kept_files
    1
    >>> zs.disable(spark)
    """
    if not isinstance(maintain, bool):
        arguments.require_choice(maintain, "maintain", ("background", "blocking"))
    lookup = _checked_lookup(spark, index_dir, encryption)
    set_session_rule(spark, lookup.ask)
    if maintain:
        start_maintenance(spark, lookup, blocking=maintain == "blocking")
    else:
        stop_maintenance(spark)


def wait_for_refreshes(spark: SparkSession, *, timeout: float = 600.0) -> None:
    """Wait until the indices are refreshed after all writes of a session that have ended.

    It does nothing unless `enable` was called with ``maintain``. Spark reports the batches of a
    file sink on their own; the last ones may be reported after this call.

    Parameters
    ----------
    spark : SparkSession
    timeout : float
        The time in seconds to wait.

    Raises
    ------
    EngineError
        If it takes longer.

    Examples
    --------
    >>> zs.enable(spark, maintain=True)
    >>> spark.read.parquet("orders").write.mode("append").parquet("copy_of_orders")
    >>> zs.wait_for_refreshes(spark)
    >>> zs.disable(spark)
    """
    maintainer = session_state(spark).maintainer
    if maintainer is not None:
        maintainer.wait(timeout)


def last_scans(df: DataFrame) -> PrunePlan:
    """Return what the scans of a frame read when it last ran.

    For each scan, it tells which index was used, how many of all files were read, and why no more
    were skipped. ``.metrics`` of each relation holds Spark's counts.

    Call it after ``df.collect()``, ``df.toPandas()`` or a write. Other actions, such as
    ``df.count()`` and ``df.show()``, run frames of their own. It needs a classic session.

    >>> frame = zs.prune(spark.read.parquet("orders")).where("id = 42")
    >>> rows = frame.collect()
    >>> print(zs.last_scans(frame))
    ZoneBloomPrune: 1 of 3 files kept
      Relation file:...orders
        filter: id = 42
        indices: id_idx
        files: 1 of 3 kept
        Spark read 1 file, 9.5 kB, 1,000 rows, in ... ms of its tasks
    """
    return describe_pruning(df, None)


def disable(spark: SparkSession) -> None:
    """Undo `enable`. Refreshes that wait already still run.

    >>> zs.enable(spark)
    >>> zs.disable(spark)
    """
    remove_session_rule(spark)
    stop_maintenance(spark)


def _checked_lookup(
    spark: SparkSession, index_dir: IndexDirs, encryption: Encryption | None
) -> IndexLookup:
    """Return a lookup. Warn about folders without an index."""
    lookup = IndexLookup(spark, index_dir, encryption)
    for warning in lookup.missing_dirs():
        warn_once(session_state(spark), warning)
    return lookup


# Descriptions of what a lookup does to a frame


def describe_pruning(df: Any, ask: Ask | None) -> PrunePlan:
    """Return which files of each scan `ask` keeps. If it is None, return what the last run kept."""
    spark = session_of(df)
    try:
        plans = jvm_plans(spark)
    except EngineError as error:
        return PrunePlan(notes=(Note(Reason.UNSUPPORTED_SESSION, str(error)),))
    if df.isStreaming:
        note = Note(Reason.UNSUPPORTED_RELATION, "a stream reads its files as they come")
        return PrunePlan(notes=(note,))

    results: dict[str, PruningResult] = {}

    def ask_once(scan: JvmScan) -> PruningResult:
        # An index notes its damage only in the first result.
        key = scan.key
        if key not in results:
            assert ask is not None
            results[key] = ask(scan)
        return results[key]

    def scan_of(node: Any) -> JvmScan | None:
        java_scan = plans.scan(node)
        return None if java_scan is None else JvmScan(java_scan, session_state(spark).listings)

    def describe_leaf(node: Any) -> PrunedRelation:
        scan = scan_of(node)
        if scan is None:
            return _describe_unlisted(node, scan_of)
        if ask is not None:
            return _describe_result(scan, ask_index(scan, ask_once))
        return replace(last_scan_relation(plans, node, scan.roots), metrics=_metrics(node))

    # The keys of joins choose files only in a plan whose scans ask the index.
    planned = query_execution(df if ask is None else with_index(df, ask_once, warns=False))
    # Several nodes of the plan may contain the same subquery.
    executed, has_run = planned.executedPlan(), ask is None
    nodes = {node.id(): node for node in _plan_leaves(executed, has_run)}
    notes = tuple(
        Note(Reason.JOIN_NOT_USED, text)
        for text in from_jvm(spark, plans.joinNotes(planned.optimizedPlan()))
    )
    return PrunePlan(tuple(map(describe_leaf, nodes.values())), notes)


def _plan_leaves(plan: Any, has_run: bool = False) -> Iterator[Any]:
    """Yield the leaves of a physical plan, those of subqueries last and those of reuses only once.

    An adaptive plan changes while it runs. Use its final plan if it ran, otherwise the initial one.
    """
    name = node_name(plan)
    if name == "AdaptiveSparkPlanExec":
        children = [plan.executedPlan() if has_run else plan.initialPlan()]
    elif name.endswith("QueryStageExec"):
        children = [plan.plan()]
    else:
        children = scala_items(plan.children())
    if not children and not name.startswith("Reused"):
        yield plan
    for child in (*children, *scala_items(plan.subqueries())):
        yield from _plan_leaves(child, has_run)


def _describe_unlisted(node: Any, scan_of: Callable[[Any], JvmScan | None]) -> PrunedRelation:
    """Describe a leaf of a physical plan that lists no Parquet files."""
    roots: list[str] = []
    reason = Reason.UNSUPPORTED_RELATION
    if node_name(node) == "InMemoryTableScanExec":
        reason = Reason.CACHED
        cached_scans = map(scan_of, _plan_leaves(node.relation().cachedPlan()))
        roots = [root for scan in cached_scans if scan is not None for root in scan.roots]
    relation = PruningResult.keep_all(reason).describe(roots)
    return replace(relation, name=relation.name or node.toString().split("\n")[0][:100])


def _describe_result(scan: JvmScan, result: PruningResult) -> PrunedRelation:
    """Describe the files that a result keeps."""
    files = scan.files
    kept_files = files.take(np.flatnonzero(result.kept_mask(files)))
    return result.describe(
        scan.roots,
        len(files),
        len(kept_files),
        num_bytes=int(files.sizes.sum()),
        kept_bytes=int(kept_files.sizes.sum()),
        kept_paths=tuple(kept_files.paths.to_pylist()),
    )


def _metrics(node: Any) -> dict[str, int]:
    metrics = node.metrics()
    return {name: metrics.apply(name).value() for name in _METRICS if metrics.contains(name)}
