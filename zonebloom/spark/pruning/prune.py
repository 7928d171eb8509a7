"""prune(), table() and enable(): Spark reads the files that an index keeps; and what it did."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from pyspark.sql import DataFrame, SparkSession

from zonebloom.base import arguments
from zonebloom.errors import EngineError
from zonebloom.spark.pruning.answer import PruningResult
from zonebloom.spark.pruning.index_lookup import IndexDirs, IndexLookup
from zonebloom.spark.pruning.jvm_bridge import (
    JvmScan,
    describe_scan,
    jvm_plans,
    last_scan_relation,
    session_of,
    set_session_rule,
    warn_once,
    with_index,
)
from zonebloom.spark.pruning.prune_plan import Note, PrunedRelation, PrunePlan, Reason
from zonebloom.spark.relation import node_name, scala_items
from zonebloom.storage.encryption import Encryption
from zonebloom.storage.paths import absolute_path

# Of a scan, what users ask for.
_METRICS = ("numFiles", "filesSize", "numOutputRows", "scanTime")


def prune(
    df: DataFrame, *, index_dir: IndexDirs = None, encryption: Encryption | None = None
) -> DataFrame:
    """Have a frame, and what is made of it, leave out the files that its filters exclude.

    When a query is planned, each scan of Parquet files (``spark.read.parquet``, a table, a view
    of one) asks an index by the filters that Spark pushes down to it: an index in ``index_dir``,
    that of the files, or that of a folder above them. Spark does not read files in which no row
    can match. Its own reader reads the others, under whatever projection, join, aggregate, window,
    union or limit stands above. Files that the index does not know as they are now are read, and
    all files are read if the index gives no answer, fails, or takes longer than a minute.

    The rows do not change, but fewer files make fewer partitions. Results that depend on the
    partitions change with them: ``sample(seed=...)``, ``randomSplit`` and ``rand()`` over a
    filter, and ``spark_partition_id()``.

    Relations of other formats, streams and Python or other V2 data sources stay as they are. A
    cached frame still answers for its rows. Spark sees the frame read the same tables as ``df``:
    it refuses to overwrite them, and drops the cached frame when they change. ``explain`` names
    the index and the files kept with each scan: ``FileScan parquet (zonebloom: 1 of 3 files by
    id_idx)``, and why not fewer.

    Parameters
    ----------
    df : DataFrame
        Of a classic session; its filters may come later.
    index_dir : path or list of paths, optional
        Folders of indices, in the same file system as the data. The first one with an index of
        the files on a filtered column is asked, and after them the index beside the data.
    encryption : Encryption, optional
        Keys of an encrypted index, as `zonebloom.dataset` takes them; they stay in this process.

    Returns
    -------
    pyspark.sql.DataFrame
        The same rows, or ``df`` itself where it reads no files that could be left out.

    Raises
    ------
    InvalidArgument
        When ``df`` is no DataFrame.

    Warns
    -----
    IndexNotUsedWarning
        If the session gives no access to plans, or an index_dir holds no index. When a query is
        planned, if an index is there and cannot be used.
    StaleIndexWarning
        When a query is planned, of files that are not as they were indexed.

    Examples
    --------
    >>> orders = zs.prune(spark.read.parquet("orders"))
    >>> orders.where("id = 42").select("customer").collect()
    [Row(customer='C042')]
    """
    lookup = IndexLookup(session_of(df), index_dir, encryption)
    for warning in lookup.missing_dirs():
        warn_once(session_of(df), warning)
    return with_index(df, lambda: lookup)


def prune_plan(
    df: DataFrame, *, index_dir: IndexDirs = None, encryption: Encryption | None = None
) -> PrunePlan:
    """Say which files `prune` leaves out of a frame, and why it leaves out no more.

    Parameters and errors are those of `prune`; no Spark job runs, and what `prune` warns of is
    among the notes. `str` and HTML show it; ``.relations`` and ``.reasons`` are for programs.

    >>> print(zs.prune_plan(spark.read.parquet("orders").where("id = 42")))
    ZoneBloomPrune: 1 of 3 files kept
      Relation file:...orders
        filter: id = 42
        indices: id_idx
        files: 1 of 3 kept, 9.5 kB of 28.6 kB
    """
    lookup = IndexLookup(session_of(df), index_dir, encryption)
    plan = describe_pruning(df, lookup)
    missing = (Note(Reason.NO_INDEX, str(warning)) for warning in lookup.missing_dirs())
    return replace(plan, notes=(*plan.notes, *missing))


def enable(
    spark: SparkSession, *, index_dir: IndexDirs = None, encryption: Encryption | None = None
) -> None:
    """Have each query of a session leave out the files that its filters exclude.

    It does what `prune` does, for every frame, view and SQL text of the session, until `disable`.
    ``explain()`` says of each scan what `last_scans` says once it ran: the index, the files kept
    and why no fewer. As with `prune`, ``sample(seed=...)`` and ``rand()`` over a filter depend on
    the number of partitions, which is smaller when fewer files are read.

    Parameters
    ----------
    spark : SparkSession
        Classic; other sessions of the application are switched by themselves.
    index_dir : path or list of paths, optional
        Folders of indices that are not beside the data, as `prune` takes them. The indices beside
        the data are still used.
    encryption : Encryption, optional
        As `prune` takes it; indices that are not encrypted are then not used.

    Warns
    -----
    IndexNotUsedWarning
        If the session gives no access to plans, and then reads everything, as before; if an
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
    lookup = IndexLookup(spark, index_dir, encryption)
    for warning in lookup.missing_dirs():
        warn_once(spark, warning)
    set_session_rule(spark, lambda: lookup)


def table(
    spark: SparkSession,
    name: str | os.PathLike[str],
    *,
    index_dir: IndexDirs = None,
    encryption: Encryption | None = None,
) -> DataFrame:
    """A table, a view or a path of Parquet files as a frame that skips files, as `prune` has it.

    Parameters
    ----------
    spark : SparkSession
        Classic; others read everything, and say so once.
    name : str or path
        A name that the session knows as a table or view; any other is a path.
    index_dir, encryption
        As `prune` takes them.

    Examples
    --------
    >>> zs.table(spark, "orders").where("customer = 'C042'").count()
    6
    """
    text = arguments.require_path(name, "name")
    is_name = isinstance(name, str) and "/" not in name and spark.catalog.tableExists(name)
    frame = spark.table(text) if is_name else spark.read.parquet(absolute_path(text))
    return prune(frame, index_dir=index_dir, encryption=encryption)


def last_scans(df: DataFrame) -> PrunePlan:
    """Say of a frame that ran what its scans read: the index asked, files kept of all, why not
    fewer, and in ``.metrics`` of each relation what Spark counted.

    Call it after ``df.collect()``, ``df.toPandas()`` or a write; other actions, ``df.count()``
    and ``df.show()`` too, run frames of their own. It is of classic sessions.

    >>> frame = zs.table(spark, "orders").where("id = 42")
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
    """Take back `enable`.

    >>> zs.enable(spark)
    >>> zs.disable(spark)
    """
    set_session_rule(spark, None)


# What a lookup does to a frame, for people


def describe_pruning(df: Any, lookup: IndexLookup | None) -> PrunePlan:
    """Say of each scan of a frame's plan which files a lookup keeps, or without one was kept."""
    try:
        plans = jvm_plans(session_of(df))
    except EngineError as error:
        return PrunePlan(notes=(Note(Reason.UNSUPPORTED_SESSION, str(error)),))
    if df.isStreaming:
        note = Note(Reason.UNSUPPORTED_RELATION, "a stream reads its files as they come")
        return PrunePlan(notes=(note,))
    # Of a subquery several nodes may speak.
    executed, ran = df._jdf.queryExecution().executedPlan(), lookup is None
    nodes = {node.id(): node for node in _leaves(executed, ran)}
    return PrunePlan(tuple(_relation(plans, node, lookup) for node in nodes.values()))


def _leaves(plan: Any, ran: bool = False) -> Iterator[Any]:
    """The leaves of a physical plan, those of subqueries last; what is reused comes once.

    As it was planned, whatever turned out to be empty when it ran; or as it ran.
    """
    name = node_name(plan)
    if name == "AdaptiveSparkPlanExec":
        inner = [plan.executedPlan() if ran else plan.initialPlan()]
    else:
        inner = [plan.plan()] if name.endswith("QueryStageExec") else scala_items(plan.children())
    if not inner and not name.startswith("Reused"):
        yield plan
    for below in (*inner, *scala_items(plan.subqueries())):
        yield from _leaves(below, ran)


def _relation(plans: Any, node: Any, lookup: IndexLookup | None) -> PrunedRelation:
    """What a lookup does to a scan, or without one did to it, with Spark's figures."""
    if node_name(node) == "InMemoryTableScanExec":
        cached = [plans.scan(leaf) for leaf in _leaves(node.relation().cachedPlan())]
        roots = [root for scan in cached if scan is not None for root in JvmScan(scan).roots]
        return _other(node, describe_scan(roots, PruningResult(notes=(Note(Reason.CACHED),)), 0, 0))
    listing = plans.scan(node)
    if listing is None:
        note = Note(Reason.UNSUPPORTED_RELATION)
        return _other(node, describe_scan((), PruningResult(notes=(note,)), 0, 0))
    scan = JvmScan(listing)
    if lookup is None:
        not_asked = describe_scan(scan.roots, PruningResult(notes=(Note(Reason.NOT_ASKED),)), 0, 0)
        answer = last_scan_relation(plans, node, scan.roots)
        return replace(answer or not_asked, metrics=_metrics(node))
    answer = scan.ask(lambda: lookup)
    kept = scan.files.take(np.flatnonzero(answer.kept_mask(scan.files)))
    return describe_scan(
        scan.roots,
        answer,
        len(scan.files),
        len(kept),
        num_bytes=int(scan.files.sizes.sum()),
        kept_bytes=int(kept.sizes.sum()),
        kept_paths=tuple(kept.paths.to_pylist()),
    )


def _other(node: Any, relation: PrunedRelation) -> PrunedRelation:
    """With what Spark calls a node that lists no files."""
    return replace(relation, name=relation.name or node.toString().split("\n")[0][:100])


def _metrics(node: Any) -> dict[str, int]:
    metrics = node.metrics()
    return {name: metrics.apply(name).value() for name in _METRICS if metrics.contains(name)}
