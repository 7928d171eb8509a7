"""Install the file index of `IndexedFiles.java` in a frame or in a session, and answer its
requests: which files may hold rows that pass the filters of a scan.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from importlib.resources import files
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from zonebloom.base import arguments
from zonebloom.base.notices import warn
from zonebloom.errors import EngineError, IndexNotUsedWarning, ZoneBloomWarning
from zonebloom.predicates import ast
from zonebloom.predicates.catalyst import CatalystNode, CatalystTranslator
from zonebloom.spark.pruning.answer import PruningRequest, PruningResult, result_of_unusable_index
from zonebloom.spark.pruning.index_lookup import BoundedCache, IndexLookup
from zonebloom.spark.pruning.listed_files import ListedFiles
from zonebloom.spark.pruning.prune_plan import Note, PrunedRelation, Reason
from zonebloom.spark.session import session_id
from zonebloom.spark.types import type_name

# What was warned of in which session.
_said: set[tuple[str, ...]] = set()
# By roots, the files that were listed there last.
_listings = BoundedCache()
# Spark reads all files of a scan for which the index gives no answer in this time.
MAX_ANSWER_SECONDS = 60.0


_TOO_LATE = (
    f"an index answered later than {MAX_ANSWER_SECONDS:.0f} s after it was asked, so Spark read "
    "all files of that scan"
)


class JvmScan:
    """One scan of Parquet files: what Spark asks of their listing."""

    def __init__(self, scan: Any, question: str | None = None):
        self._question = json.loads(question or scan.question())
        self.roots: list[str] = self._question["roots"]
        self._scan = scan

    @functools.cached_property
    def files(self) -> ListedFiles:
        """The files as Spark listed them, in its order; the same object while it lists the same."""
        place = tuple(self.roots)
        known = _listings.get(place)
        if known is None or known[0] != self._scan.digest():
            text = self._scan.files()
            digest = hashlib.sha256(text.encode()).hexdigest()
            _listings[place] = known = digest, ListedFiles.of(json.loads(text))
        return known[1]

    def ask(self, lookup: Callable[[], IndexLookup]) -> PruningResult:
        """What an index says of the files."""
        filters = self._question["filters"]
        if not filters:
            return PruningResult(notes=(Note(Reason.NO_FILTER),))
        is_case_sensitive = self._question["case_sensitive"]

        def predicate(schema: pa.Schema) -> ast.Predicate:
            by_path = self._question["partition_columns"]
            return CatalystTranslator(schema, by_path, is_case_sensitive, type_name).translate(
                filters
            )

        try:
            named = frozenset(_named(filters))
            return lookup().ask(
                PruningRequest(
                    self.roots, lambda: self.files, named, predicate, not is_case_sensitive
                )
            )
        except Exception as error:  # noqa: BLE001 - whatever it is, the query goes on
            return result_of_unusable_index(f"files are not chosen by an index: {error!r}")


def _named(filters: Sequence[CatalystNode]) -> Iterator[str]:
    """The columns that filters speak of, in small letters."""
    for each in filters:
        yield from _named(each["terms"]) if "terms" in each else map(str.lower, each["columns"])


def warn_once(spark: Any, warning: ZoneBloomWarning, roots: Sequence[str] = ()) -> None:
    """Warn of a cause, once a session and place."""
    said = session_id(spark), *roots, str(warning)
    if said not in _said:
        _said.add(said)
        warn(warning)


class _Chooser:
    """Chooses files, as a function that the JVM calls for each scan, on a thread of its own."""

    def __init__(self, lookup: Callable[[], IndexLookup], spark: SparkSession):
        self._lookup = lookup
        self._spark = spark

    def apply(self, question: str, java_scan: Any) -> str:
        """Choose the files that Spark reads for a scan. Return a description for `last_answer`."""
        try:
            return self._choose(JvmScan(java_scan, question), java_scan)
        except Exception as error:  # noqa: BLE001 - whatever it is, Spark reads all files
            # A warning is an exception too where the process turns warnings into errors.
            answer = result_of_unusable_index(f"files are not chosen by an index: {error!r}")
            return _to_json(describe_scan((), answer, 0, 0))

    def _choose(self, scan: JvmScan, java_scan: Any) -> str:
        answer = scan.ask(self._lookup)
        for warning in answer.warnings:
            warn_once(self._spark, warning, scan.roots)
        # How many files Spark had to choose from is known where they were looked at.
        num_files = num_kept = len(scan.files) if answer.predicates else 0
        marks = ""
        if answer.excluded_numbers.size:
            is_kept = answer.kept_mask(scan.files)
            num_kept = int(is_kept.sum())
            marks = np.where(is_kept, b"1", b"0").tobytes().decode()
        description = _to_json(describe_scan(scan.roots, answer, num_files, num_kept))
        # Nothing may fail after this call, which has Spark leave files out.
        if marks and not java_scan.keep(marks):
            warn_once(self._spark, IndexNotUsedWarning(_TOO_LATE), scan.roots)
        return description

    class Java:
        """The interface that py4j gives it."""

        implements = ("java.util.function.BiFunction",)


@functools.lru_cache(maxsize=1)
def _compiled(jvm: Any) -> Any:
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.Thread.currentThread().getContextClassLoader())
    compiler.cook((files("zonebloom.spark.pruning") / "IndexedFiles.java").read_text())
    return compiler.getClassLoader().loadClass("zonebloom.Plans").newInstance()


def jvm_plans(spark: Any) -> Any:
    """What looks at plans, and changes them, in the JVM of a session."""
    from py4j.protocol import Py4JError
    from pyspark.java_gateway import ensure_callback_server_started

    instead = "use zonebloom.spark.scan(spark, path, filter=...), which takes the filter along"
    if not hasattr(spark, "_jvm"):
        raise EngineError(f"Spark Connect gives no access to plans; {instead}")
    try:
        ensure_callback_server_started(spark.sparkContext._gateway)
        return _compiled(spark._jvm)
    except (Py4JError, OSError) as error:
        raise EngineError(f"this Spark takes no listing of files: {error}; {instead}") from error


def with_index(df: DataFrame, lookup: Callable[[], IndexLookup]) -> DataFrame:
    """The frame with its files listed through an index; itself, and a warning, where none can."""
    frame: Any = df
    spark = session_of(frame)
    try:
        plans = jvm_plans(spark)
    except EngineError as error:
        warn_once(spark, IndexNotUsedWarning(str(error)))
        return df
    if df.isStreaming:
        return df
    from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame

    analyzed, chooser = frame._jdf.queryExecution().analyzed(), _Chooser(lookup, spark)
    plan = plans.indexed(analyzed, chooser, MAX_ANSWER_SECONDS)
    if plan is None:
        return df
    plans.tell(spark._jsparkSession)
    rows = spark._jvm.org.apache.spark.sql.classic.Dataset.ofRows(spark._jsparkSession, plan)
    return ClassicFrame(rows, spark)


def set_session_rule(spark: SparkSession, lookup: Callable[[], IndexLookup] | None) -> None:
    """Have each query of a session list its files through an index, or none where it is None."""
    session: Any = spark
    try:
        plans = jvm_plans(session)
    except EngineError as error:
        if lookup is not None:
            warn_once(spark, IndexNotUsedWarning(str(error)))
        return
    chooser = lookup and _Chooser(lookup, spark)
    plans.enable(session._jsparkSession, chooser, MAX_ANSWER_SECONDS)
    plans.tell(session._jsparkSession)


def last_scan_relation(plans: Any, node: Any, roots: Sequence[str]) -> PrunedRelation | None:
    """Return what an index did to a leaf of a physical plan, None if no index was asked for it.

    The leaf itself holds the answer in the JVM, so another session, frame or index cannot give it.
    """
    text = plans.answer(node)
    if text is None:
        return None
    description = json.loads(text)
    if "problem" in description:
        return describe_scan(roots, result_of_unusable_index(description["problem"]), 0, 0)
    return PrunedRelation(
        _name_of(roots),
        tuple(roots),
        description["filter"],
        description["num_files"],
        kept_files=description["kept_files"],
        indices=tuple(description["indices"]),
        notes=tuple(Note(Reason[reason], text) for reason, text in description["notes"]),
    )


def _to_json(relation: PrunedRelation) -> str:
    return json.dumps(
        {
            "summary": relation.summary,
            "filter": relation.filter,
            "num_files": relation.num_files,
            "kept_files": relation.kept_files,
            "indices": relation.indices,
            "notes": [(note.reason.name, note.text) for note in relation.notes],
        }
    )


def _name_of(roots: Sequence[str]) -> str:
    more = f" and {len(roots) - 1:,} more" if len(roots) > 1 else ""
    return roots[0] + more if roots else ""


def describe_scan(
    roots: Sequence[str], answer: PruningResult, num_files: int, num_kept: int, **more: Any
) -> PrunedRelation:
    """What an index did to a scan."""
    notes = answer.notes
    if not notes and not answer.excluded_numbers.size:
        notes = (Note(Reason.ALL_FILES_KEPT),)
    return PrunedRelation(
        _name_of(roots),
        tuple(roots),
        " OR ".join(answer.predicates) or None,
        num_files,
        kept_files=num_kept,
        indices=answer.indices,
        notes=notes,
        **more,
    )


def session_of(df: Any) -> Any:
    return arguments.require_instance(df, DataFrame, "df").sparkSession
