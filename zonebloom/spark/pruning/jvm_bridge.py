"""Install the file index of `IndexedFiles.java` in a frame or a session, and answer its requests.

A request asks which files may hold rows that pass the filters of a scan.
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

# The warnings that were issued, with the id of their session.
_issued_warnings: set[tuple[str, ...]] = set()
# The last listing of each tuple of roots, with its digest.
_cached_listings = BoundedCache()
# If an index gives no answer in this time, Spark reads all files of the scan.
MAX_ANSWER_SECONDS = 60.0


_TIMEOUT_TEXT = (
    f"an index answered later than {MAX_ANSWER_SECONDS:.0f} s after it was asked, so Spark read "
    "all files of that scan"
)


class JvmScan:
    """A scan of Parquet files in the JVM, with its roots, filters and listed files."""

    def __init__(self, scan: Any, request: str | None = None):
        self._request = json.loads(request or scan.request())
        self.roots: list[str] = self._request["roots"]
        self._scan = scan

    @functools.cached_property
    def files(self) -> ListedFiles:
        """Return the files in the order in which Spark lists them.

        If roots and files are those of an earlier scan, the cached object of that scan is returned.
        """
        roots = tuple(self.roots)
        cached = _cached_listings.get(roots)
        if cached is None or cached[0] != self._scan.digest():
            text = self._scan.files()
            digest = hashlib.sha256(text.encode()).hexdigest()
            _cached_listings[roots] = cached = digest, ListedFiles.of(json.loads(text))
        return cached[1]

    def ask(self, lookup: Callable[[], IndexLookup]) -> PruningResult:
        """Return which of the files a lookup excludes."""
        filters = self._request["filters"]
        if not filters:
            return PruningResult(notes=(Note(Reason.NO_FILTER),))
        is_case_sensitive = self._request["case_sensitive"]

        def bind_predicate(schema: pa.Schema) -> ast.Predicate:
            by_path = self._request["partition_columns"]
            translator = CatalystTranslator(schema, by_path, is_case_sensitive, type_name)
            return translator.translate(filters)

        try:
            request = PruningRequest(
                roots=self.roots,
                list_files=lambda: self.files,
                columns=frozenset(_column_names(filters)),
                bind_predicate=bind_predicate,
                ignores_case=not is_case_sensitive,
            )
            return lookup().ask(request)
        except Exception as error:  # noqa: BLE001 - an error must not fail the query
            return result_of_unusable_index(f"files are not chosen by an index: {error!r}")


def _column_names(filters: Sequence[CatalystNode]) -> Iterator[str]:
    """Yield the lower-case names of the columns in filters."""
    for node in filters:
        if "terms" in node:
            yield from _column_names(node["terms"])
        else:
            yield from map(str.lower, node["columns"])


def warn_once(spark: Any, warning: ZoneBloomWarning, roots: Sequence[str] = ()) -> None:
    """Issue a warning once for each session and tuple of roots."""
    cause = session_id(spark), *roots, str(warning)
    if cause not in _issued_warnings:
        _issued_warnings.add(cause)
        warn(warning)


class _Chooser:
    """The function that the JVM calls for each scan, in its own thread, to choose files."""

    def __init__(self, lookup: Callable[[], IndexLookup], spark: SparkSession):
        self._lookup = lookup
        self._spark = spark

    def apply(self, request: str, java_scan: Any) -> str:
        """Choose the files that Spark reads for a scan. Return its description as JSON."""
        try:
            return self._choose(JvmScan(java_scan, request), java_scan)
        except Exception as error:  # noqa: BLE001 - Spark reads all files after an error
            # A warning raises an exception too, if the process turns warnings into errors.
            result = result_of_unusable_index(f"files are not chosen by an index: {error!r}")
            return _to_json(describe_scan((), result, 0, 0))

    def _choose(self, scan: JvmScan, java_scan: Any) -> str:
        result = scan.ask(self._lookup)
        for warning in result.warnings:
            warn_once(self._spark, warning, scan.roots)
        # The number of files is known only if an index was asked about them.
        num_files = num_kept = len(scan.files) if result.predicates else 0
        marks = ""
        if result.excluded_numbers.size:
            is_kept = result.kept_mask(scan.files)
            num_kept = int(is_kept.sum())
            marks = np.where(is_kept, b"1", b"0").tobytes().decode()
        description = _to_json(describe_scan(scan.roots, result, num_files, num_kept))
        # After this call Spark skips files, so no later step may fail.
        if marks and not java_scan.keep(marks):
            warn_once(self._spark, IndexNotUsedWarning(_TIMEOUT_TEXT), scan.roots)
        return description

    class Java:
        """The Java interface that py4j implements with this object."""

        implements = ("java.util.function.BiFunction",)


@functools.lru_cache(maxsize=1)
def _load_plans_class(jvm: Any) -> Any:
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.Thread.currentThread().getContextClassLoader())
    compiler.cook((files("zonebloom.spark.pruning") / "IndexedFiles.java").read_text())
    return compiler.getClassLoader().loadClass("zonebloom.Plans").newInstance()


def jvm_plans(spark: Any) -> Any:
    """Return the Java object `Plans` in the JVM of a session, which reads and changes plans.

    Raise `EngineError` if the session gives no access to plans.
    """
    from py4j.protocol import Py4JError
    from pyspark.java_gateway import ensure_callback_server_started

    advice = "use zonebloom.spark.scan(spark, path, filter=...), which applies the filter itself"
    if not hasattr(spark, "_jvm"):
        raise EngineError(f"Spark Connect gives no access to plans; {advice}")
    try:
        ensure_callback_server_started(spark.sparkContext._gateway)
        return _load_plans_class(spark._jvm)
    except (Py4JError, OSError) as error:
        raise EngineError(f"this Spark accepts no file index: {error}; {advice}") from error


def with_index(df: DataFrame, lookup: Callable[[], IndexLookup]) -> DataFrame:
    """Return a frame whose scans ask an index. If that is impossible, warn and return the frame."""
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
    plans.describeScans(spark._jsparkSession)
    rows = spark._jvm.org.apache.spark.sql.classic.Dataset.ofRows(spark._jsparkSession, plan)
    return ClassicFrame(rows, spark)


def set_session_rule(spark: SparkSession, lookup: Callable[[], IndexLookup] | None) -> None:
    """Make all queries of a session ask an index, or no index if the lookup is None."""
    session: Any = spark
    try:
        plans = jvm_plans(session)
    except EngineError as error:
        if lookup is not None:
            warn_once(spark, IndexNotUsedWarning(str(error)))
        return
    chooser = lookup and _Chooser(lookup, spark)
    plans.enable(session._jsparkSession, chooser, MAX_ANSWER_SECONDS)
    plans.describeScans(session._jsparkSession)


def last_scan_relation(plans: Any, node: Any, roots: Sequence[str]) -> PrunedRelation | None:
    """Return what an index did to a leaf of a physical plan, or None if no index was asked.

    The leaf itself holds the result in the JVM, so it cannot come from another session or frame.
    """
    text = plans.lastResult(node)
    if text is None:
        return None
    description = json.loads(text)
    if "problem" in description:
        return describe_scan(roots, result_of_unusable_index(description["problem"]), 0, 0)
    return PrunedRelation(
        _roots_text(roots),
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


def _roots_text(roots: Sequence[str]) -> str:
    more = f" and {len(roots) - 1:,} more" if len(roots) > 1 else ""
    return roots[0] + more if roots else ""


def describe_scan(
    roots: Sequence[str], result: PruningResult, num_files: int, num_kept: int, **fields: Any
) -> PrunedRelation:
    notes = result.notes
    if not notes and not result.excluded_numbers.size:
        notes = (Note(Reason.ALL_FILES_KEPT),)
    return PrunedRelation(
        _roots_text(roots),
        tuple(roots),
        " OR ".join(result.predicates) or None,
        num_files,
        kept_files=num_kept,
        indices=result.indices,
        notes=notes,
        **fields,
    )


def session_of(df: Any) -> Any:
    return arguments.require_instance(df, DataFrame, "df").sparkSession
