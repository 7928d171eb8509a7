"""explain(): what each scan of a frame reads, and why it skips no more."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame

from zonebloom.base import arguments
from zonebloom.errors import EngineError, ZoneBloomError
from zonebloom.spark.data_source import NAME, REQUEST
from zonebloom.spark.joins.global_filter import FILTER_MARK
from zonebloom.spark.load import Load, ScanRequest
from zonebloom.spark.pruning.explanation import (
    METRIC_TEXTS,
    Explanation,
    Note,
    PrunedRelation,
    Reason,
    roots_text,
)
from zonebloom.spark.pruning.jvm_scan import JvmScan
from zonebloom.spark.pruning.optimizer_rule import jvm_plans
from zonebloom.spark.relation import node_name, scala_items
from zonebloom.spark.session_state import LruCache, session_state
from zonebloom.spark.versions import connect_plan, from_jvm, is_classic, query_execution


def explain(frame: DataFrame) -> Explanation:
    """Return which index each scan of a frame asked, what it reads, and why it skips no more.

    It plans the frame as Spark does to run it, and runs no job. Once ``frame.collect()``,
    ``frame.toPandas()`` or a write ran, it shows what they read, with Spark's counts. Other
    actions, such as ``count()`` and ``show()``, run frames of their own.

    Parameters
    ----------
    frame : DataFrame
        Of a session under `enable`, or made by `prune`, `scan` or `filter_join`. Over Spark Connect
        only frames of `scan` are explained, and only if this process can read the files.

    Returns
    -------
    Explanation
        `str` and HTML show a text; programs use ``.relations``, ``.scans`` and ``.reasons``.

    Examples
    --------
    >>> frame = zs.prune(spark.read.parquet("orders")).where("id = 42")
    >>> rows = frame.collect()
    >>> print(zs.explain(frame))
    ZoneBloomExplanation: 1 of 3 files kept
      Relation file:...orders
        filter: id = 42
        indices: id_idx
        files: 1 of 3 kept, 9.5 kB of 28.6 kB
        Spark read 1 file, 9.5 kB, 1,000 rows, in ... ms of its tasks
    >>> print(zs.explain(zs.scan(spark, "orders", "id = 42")).scans[0])
    ZoneBloomScan: id = 42
      columns: id, customer, day
      index id_idx on id: 1 of 30 zones kept, 3 of 3 fragments covered, 10.0 kB
      fragments: 1 read in part, 0 read whole, 2 skipped
        1.parquet: rows 300-400
    """
    spark: Any = arguments.require_instance(frame, DataFrame, "frame").sparkSession
    if frame.isStreaming:
        note = Note(Reason.UNSUPPORTED_RELATION, "a stream reads its files as they come")
        return Explanation(notes=(note,))
    requests = [] if is_classic(spark) else list(_requests_in(connect_plan(frame)))
    if requests:
        return _describe_scans(frame, requests)
    try:
        plans = jvm_plans(spark)
    except EngineError as error:
        return Explanation(notes=(Note(Reason.UNSUPPORTED_SESSION, str(error)),))
    execution = query_execution(frame)
    # Several nodes of the plan may contain the same subquery.
    nodes = {node.id(): node for node in _leaves(execution.executedPlan())}
    requests, filters = _parts_of_plan(spark, execution.analyzed())
    explanation = _describe_scans(frame, requests, filters)
    relations = tuple(_describe_leaf(spark, plans, node) for node in nodes.values())
    return replace(explanation, relations=relations)


def _describe_scans(
    frame: DataFrame, requests: Sequence[tuple[str, str]], filters: Sequence[str] = ()
) -> Explanation:
    """Describe the scans of data sources, given by name and request, and the filters of joins."""
    sources = session_state(frame.sparkSession).sources
    notes = [Note(Reason.JOIN_FILTERED, text) for text in filters]
    scans = []
    for name, text in requests:
        if name != NAME and name not in sources:
            text = "the secrets of the scan are in the session that made it; explain it there"
            notes.append(Note(Reason.DATA_UNREADABLE, text))
            continue
        _, encryption = sources.get(name, (None, None))
        request = ScanRequest.from_text(text)
        try:
            scans.append(Load(request, frame.sparkSession, encryption).plan(described=True))
        except (ZoneBloomError, OSError, pa.ArrowException) as error:
            notes.append(Note(Reason.DATA_UNREADABLE, str(error)))
    return Explanation(notes=tuple(notes), scans=tuple(scans))


def _is_own(source: str) -> bool:
    """Return whether a data source has a name that `register_source_for` returns."""
    return re.fullmatch(f"{NAME}(_[0-9a-f]{{32}})?", source) is not None


def _parts_of_plan(spark: Any, plan: Any) -> tuple[list[tuple[str, str]], list[str]]:
    """Return the sources and requests of scans, and the texts of filters, in a logical plan."""
    requests, filters, nodes = [], [], [plan]
    while nodes:
        node = nodes.pop()
        name = node_name(node)
        if name == "DataSourceV2Relation" and _is_own(node.table().name()):
            options = from_jvm(spark, node.options().asCaseSensitiveMap())
            requests.append((node.table().name(), options[REQUEST]))
        elif name == "SubqueryAlias" and node.alias().startswith(FILTER_MARK):
            filters.append(node.alias().removeprefix(FILTER_MARK))
        nodes += reversed(scala_items(node.children()))
    return requests, filters


def _requests_in(message: Any) -> Iterator[tuple[str, str]]:
    """Yield the sources and requests of scans in a message of Connect."""
    if message.DESCRIPTOR.name == "DataSource" and _is_own(message.format):
        yield message.format, message.options[REQUEST]
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        for part in [value] if hasattr(value, "DESCRIPTOR") else value:
            yield from _requests_in(part)


def _leaves(plan: Any) -> Iterator[Any]:
    """Yield the leaves of a physical plan, those of subqueries last.

    A part that Spark reuses is visited once. Scans of the data source are left out, because
    `_parts_of_plan` finds them.
    """
    name = node_name(plan)
    if name == "AdaptiveSparkPlanExec":
        children = [plan.executedPlan()]
    elif name.endswith("QueryStageExec"):
        children = [plan.plan()]
    else:
        children = scala_items(plan.children())
    is_request = name == "BatchScanExec" and _is_own(plan.table().name())
    if not children and not name.startswith("Reused") and not is_request:
        yield plan
    for child in (*children, *scala_items(plan.subqueries())):
        yield from _leaves(child)


def _describe_leaf(spark: Any, plans: Any, node: Any) -> PrunedRelation:
    java_scan = plans.scan(node)
    if java_scan is None:
        return _describe_unlisted(plans, node)
    scan = JvmScan(java_scan, session_state(spark).listings)
    text = java_scan.answer()
    description: dict[str, Any] = {} if text is None else json.loads(text)
    files = scan.files
    marks = description.get("kept") or "1" * len(files)
    is_kept = np.frombuffer(marks.encode(), "S1") != b"0"
    if text is None:
        # No index is asked about IS NOT NULL alone.
        has_filter = any(node["kind"] != "IsNotNull" for node in scan.filters)
        notes = [Note(Reason.NOT_ASKED if has_filter else Reason.NO_FILTER)]
    else:
        notes = [Note(Reason[reason], note) for reason, note in description["notes"]]
    return PrunedRelation(
        roots_text(scan.roots),
        tuple(scan.roots),
        description.get("filter"),
        num_files=len(files),
        num_bytes=int(files.sizes.sum()),
        kept_files=int(is_kept.sum()),
        kept_bytes=int(files.sizes[is_kept].sum()),
        kept_paths=tuple(files.paths.filter(pa.array(is_kept)).to_pylist()),
        indices=tuple(description.get("indices", ())),
        notes=tuple(notes),
        metrics=_metrics(node),
    )


def _describe_unlisted(plans: Any, node: Any) -> PrunedRelation:
    """Describe a leaf of a physical plan that lists no Parquet files."""
    roots: list[str] = []
    reason = Reason.UNSUPPORTED_RELATION
    if node_name(node) == "InMemoryTableScanExec":
        reason = Reason.CACHED
        scans = filter(None, map(plans.scan, _leaves(node.relation().cachedPlan())))
        roots = [root for scan in scans for root in JvmScan(scan, LruCache()).roots]
    name = roots_text(roots) or node.toString().split("\n")[0][:100]
    return PrunedRelation(name, tuple(roots), notes=(Note(reason),))


def _metrics(node: Any) -> dict[str, int]:
    """Return Spark's counts of a scan, or nothing if it did not run."""
    metrics = node.metrics()
    found = {name: metrics.apply(name) for name in METRIC_TEXTS if metrics.contains(name)}
    has_run = any(
        not found[name].isZero() for name in ("numOutputRows", "scanTime") if name in found
    )
    return {name: metric.value() for name, metric in found.items()} if has_run else {}
