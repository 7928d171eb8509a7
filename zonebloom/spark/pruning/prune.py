"""prune() and enable(): Spark lists files through `IndexedFiles.java`, in one frame or in all of a
session, which asks an index by the filters each scan has.
"""

from __future__ import annotations

import functools
import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib.resources import files
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from zonebloom import arguments
from zonebloom.errors import EngineError, IndexNotUsedWarning
from zonebloom.predicates import ast
from zonebloom.spark.pruning.catalyst import Catalyst
from zonebloom.spark.pruning.lookup import (
    Answer,
    ListedFile,
    Lookup,
    Question,
    Recent,
    unusable,
)
from zonebloom.spark.pruning.pruned import Note, PrunedRelation, PrunePlan, Reason
from zonebloom.spark.relation import class_name, items, node_name

_RULE = "zonebloom.IndexRule"


def prune(df: DataFrame, *, index_dir: str | None = None) -> DataFrame:
    """Have a frame, and what is made of it, leave out the files that its filters exclude.

    For each scan of Parquet files (``spark.read.parquet``, a table, a view of one) the index of
    the files, beside them, in a folder above, or in ``index_dir``, is asked by the filters that
    Spark brings down to that scan, when the query is planned. Files in which no row can match are
    not read; Spark's own reader reads the others, under whatever projection, join, aggregate,
    window, union or limit stands above. Files the index does not know as they are then are read.

    Left as they are: relations of other formats, streams, Python and other V2 data sources, and
    what a cached frame answers.

    Parameters
    ----------
    df : DataFrame
        Of a classic session; its filters may come later.
    index_dir : str, optional
        Folder of the index, when it is not beside the data.

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
        Where the session gives no access to plans; when a query is planned, of an index that is
        there and cannot be used.
    StaleIndexWarning
        When a query is planned, of files that are not as they were indexed.

    Examples
    --------
    >>> lake = zonebloom.spark.prune(spark.read.parquet("lake"))    # doctest: +SKIP
    >>> lake.where("id = 42").show()                                # doctest: +SKIP
    """
    lookup = Lookup(index_dir)
    return with_index(df, lambda: lookup)


def prune_plan(df: DataFrame, *, index_dir: str | None = None) -> PrunePlan:
    """Say which files `prune` leaves out of a frame, and why it leaves out no more.

    Parameters and errors are those of `prune`; no Spark job runs, and what `prune` warns of is
    among the notes. `str` and HTML show it; ``.relations`` and ``.reasons`` are for programs.
    """
    return plan_of(df, Lookup(index_dir))


def enable(spark: SparkSession, *, index_dir: str | None = None) -> None:
    """Have each query of a session leave out the files that its filters exclude.

    As `prune` for every frame, view and SQL text of the session, until `disable`.

    Parameters
    ----------
    spark : SparkSession
        Classic; other sessions of the application are switched by themselves.
    index_dir : str, optional
        Folder of the indices, when they are not beside the data.

    Warns
    -----
    IndexNotUsedWarning
        Where the session gives no access to plans: it reads everything, as before.
    """
    lookup = Lookup(index_dir)
    set_rule(spark, lambda: lookup)


def disable(spark: SparkSession) -> None:
    """Take back `enable`."""
    set_rule(spark, None)


# The mechanism


class Scan:
    """One scan of Parquet files: what Spark asks of their listing."""

    def __init__(self, scan: Any, listings: Recent):
        question = json.loads(scan.question())
        self.roots: list[str] = question["roots"]
        self._question = question
        self._scan = scan
        self._listings = listings

    @functools.cached_property
    def files(self) -> list[ListedFile]:
        """The files as Spark listed them, in its order; the same object while it lists the same."""
        place, digest = tuple(self.roots), self._scan.digest()
        known = self._listings.get(place)
        if known is None or known[0] != digest:
            listed = [ListedFile(*file) for file in json.loads(self._scan.files())]
            self._listings[place] = known = digest, listed
        return known[1]

    def ask(self, lookup: Callable[[], Lookup]) -> Answer:
        """What an index says of the files."""
        if not self._question["filters"]:
            return Answer(notes=(Note(Reason.NO_FILTER),))
        is_case_sensitive = self._question["case_sensitive"]

        def predicate(schema: pa.Schema) -> ast.Predicate:
            catalyst = Catalyst(schema, self._question["partition_columns"], is_case_sensitive)
            return catalyst.predicate(self._question["filters"])

        try:
            question = Question(self.roots, lambda: self.files, predicate, not is_case_sensitive)
            return lookup().ask(question)
        except Exception as error:  # noqa: BLE001 - whatever it is, the query goes on
            return unusable(f"files are not chosen by an index: {error!r}")


class _Chooser:
    """Chooses files, as a function that the JVM calls for each scan."""

    def __init__(self, lookup: Callable[[], Lookup]):
        self._lookup = lookup
        self._listings = Recent()

    def apply(self, java_scan: Any) -> str | None:
        """Say of each file by a digit whether it is kept; None keeps all."""
        scan = Scan(java_scan, self._listings)
        answer = scan.ask(self._lookup)
        for warning in answer.warnings:
            warnings.warn(warning, stacklevel=2)
        if not answer.excluded:
            return None
        return "".join("0" if file.path in answer.excluded else "1" for file in scan.files)

    class Java:
        """The interface that py4j gives it."""

        implements = ("java.util.function.Function",)


@functools.lru_cache(maxsize=1)
def _compiled(jvm: Any) -> Any:
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.Thread.currentThread().getContextClassLoader())
    compiler.cook((files("zonebloom.spark.pruning") / "IndexedFiles.java").read_text())
    return compiler.getClassLoader().loadClass("zonebloom.Plans").newInstance()


def _plans(spark: Any) -> Any:
    """What looks at plans, and changes them, in the JVM of a session."""
    from py4j.protocol import Py4JError
    from pyspark.java_gateway import ensure_callback_server_started

    instead = (
        "use zonebloom.spark.read_pruned(spark, path, filter) or zonebloom.spark.scan(spark, "
        "path, filter=...), which take the filter with the read"
    )
    if not hasattr(spark, "_jvm"):
        raise EngineError(f"Spark Connect gives no access to plans; {instead}")
    try:
        ensure_callback_server_started(spark.sparkContext._gateway)
        return _compiled(spark._jvm)
    except (Py4JError, OSError) as error:
        raise EngineError(f"this Spark takes no listing of files: {error}; {instead}") from error


def with_index(df: DataFrame, lookup: Callable[[], Lookup]) -> DataFrame:
    """The frame with its files listed through an index; itself, and a warning, where none can."""
    frame: Any = df
    spark = _session(frame)
    try:
        plans = _plans(spark)
    except EngineError as error:
        warnings.warn(IndexNotUsedWarning(str(error)), stacklevel=3)
        return df
    if df.isStreaming:
        return df
    from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame

    execution = frame._jdf.queryExecution()
    plan = plans.indexed(execution.analyzed(), execution.withCachedData(), _Chooser(lookup))
    if plan.fastEquals(execution.analyzed()):
        return df
    rows = spark._jvm.org.apache.spark.sql.classic.Dataset.ofRows(spark._jsparkSession, plan)
    return ClassicFrame(rows, spark)


def set_rule(spark: SparkSession, lookup: Callable[[], Lookup] | None) -> None:
    """Have each query of a session list its files through an index, or none where it is None."""
    session: Any = spark
    try:
        plans = _plans(session)
    except EngineError as error:
        if lookup is not None:
            warnings.warn(IndexNotUsedWarning(str(error)), stacklevel=3)
        return
    experimental = session._jsparkSession.experimental()
    rules = [each for each in items(experimental.extraOptimizations()) if class_name(each) != _RULE]
    if lookup is not None:
        rules.append(plans.rule(_Chooser(lookup)))
    getattr(experimental, "extraOptimizations_$eq")(session._jvm.PythonUtils.toSeq(rules))


# What a lookup does to a frame, for people


def plan_of(df: Any, lookup: Lookup) -> PrunePlan:
    """Say of each scan of a frame's plan which files a lookup keeps."""
    try:
        plans = _plans(_session(df))
    except EngineError as error:
        return PrunePlan(notes=(Note(Reason.UNSUPPORTED_SESSION, str(error)),))
    if df.isStreaming:
        note = Note(Reason.UNSUPPORTED_RELATION, "a stream reads its files as they come")
        return PrunePlan(notes=(note,))
    # Of a subquery several nodes may speak.
    nodes = {node.id(): node for node in _leaves(df._jdf.queryExecution().executedPlan())}
    return PrunePlan(tuple(_relation(plans, node, lookup) for node in nodes.values()))


def _session(df: Any) -> Any:
    return arguments.of_type(df, DataFrame, "df").sparkSession


def _leaves(plan: Any) -> Iterator[Any]:
    """The leaves of a physical plan, those of subqueries last; what is reused comes once."""
    name = node_name(plan)
    # As it was planned, whatever turned out to be empty when it ran.
    inner = [plan.initialPlan()] if name == "AdaptiveSparkPlanExec" else items(plan.children())
    if not inner and not name.startswith("Reused"):
        yield plan
    for below in (*inner, *items(plan.subqueries())):
        yield from _leaves(below)


def _relation(plans: Any, node: Any, lookup: Lookup) -> PrunedRelation:
    if node_name(node) == "InMemoryTableScanExec":
        cached = [plans.scan(leaf) for leaf in _leaves(node.relation().cachedPlan())]
        roots = tuple(
            root for scan in cached if scan is not None for root in Scan(scan, Recent()).roots
        )
        return PrunedRelation(_shown(roots, node), roots, notes=(Note(Reason.CACHED),))
    listing = plans.scan(node)
    if listing is None:
        return PrunedRelation(_shown((), node), notes=(Note(Reason.UNSUPPORTED_RELATION),))
    scan = Scan(listing, Recent())
    answer = scan.ask(lambda: lookup)
    kept = [file for file in scan.files if file.path not in answer.excluded]
    notes = answer.notes
    if not notes and not answer.excluded:
        notes = (Note(Reason.ALL_FILES_KEPT),)
    return PrunedRelation(
        _shown(scan.roots, node),
        tuple(scan.roots),
        " OR ".join(answer.predicates) or None,
        len(scan.files),
        sum(file.size for file in scan.files),
        len(kept),
        sum(file.size for file in kept),
        tuple(file.path for file in kept),
        answer.indices,
        notes,
    )


def _shown(roots: Sequence[str], node: Any) -> str:
    """What a scan reads, for people."""
    if not roots:
        return node.toString().split("\n")[0][:100]
    return roots[0] + (f" and {len(roots) - 1:,} more" if len(roots) > 1 else "")
