"""prune(): a frame over Parquet files without the files its filters exclude.

    frame -> scans with their filters -> the index of the files -> relations of fewer files

Spark's own reader, and whatever stands above it, stay as they are. Only classic sessions show
their plans; over Connect there is `zonebloom.spark.pruning.read_pruned.read_pruned`.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from zonebloom.errors import IndexNotUsedWarning, InvalidArgument, ZoneBloomWarning
from zonebloom.predicates import ast
from zonebloom.spark.pruning.catalyst import Catalyst
from zonebloom.spark.pruning.lookup import Answer, Lookup, once
from zonebloom.spark.pruning.pruned import Note, PrunedRelation, PrunePlan, Reason
from zonebloom.spark.pruning.replace_files import with_files, with_leaves
from zonebloom.spark.pruning.scans import Scan, reads_out_of_sight, reads_twice, scans
from zonebloom.spark.relation import Leaf, items, leaves, opaque_reason
from zonebloom.values.columns import alike

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_USE_INSTEAD = (
    "Spark Connect gives no access to plans, so prune() leaves the frame as it is; use "
    "zonebloom.spark.read_pruned(spark, path, filter) or zonebloom.spark.scan(spark, path, "
    "filter=...), which take the filter with the read"
)


def prune(df: DataFrame, *, index_dir: str | None = None) -> DataFrame:
    """Leave out the files of a frame that its own filters exclude.

    For each relation of Parquet files (``spark.read.parquet``, a table, a view of one) the
    filters that Spark brings down to its scan are asked of the index of the files, beside them,
    in a folder above, or in ``index_dir``. Files in which no row can match are left out of the
    plan; Spark's own reader reads the others, under whatever projection, join, aggregate, window,
    union or limit stands above. Files the index does not know as they are now are kept.

    Left as they are: relations of other formats, streams, Python and other V2 data sources, what
    a cached frame answers, and what only a subquery reads.

    Parameters
    ----------
    df : DataFrame
        Of a classic session.
    index_dir : str, optional
        Folder of the index, when it is not beside the data.

    Returns
    -------
    pyspark.sql.DataFrame
        The same rows from fewer files, or ``df`` itself where none can be left out. It is pinned
        to the files as they are now: call it again when they changed.

    Raises
    ------
    InvalidArgument
        When ``df`` is no DataFrame.

    Warns
    -----
    IndexNotUsedWarning
        When an index is there and cannot be used, and for frames of Spark Connect.
    StaleIndexWarning
        When files are not as they were indexed.

    Examples
    --------
    >>> lake = spark.read.parquet("lake")                           # doctest: +SKIP
    >>> zonebloom.spark.prune(lake.where("id = 42")).show()         # doctest: +SKIP
    """
    pruning = Pruning(df, Lookup(index_dir))
    for warning in pruning.warnings.values():
        warnings.warn(warning, stacklevel=2)
    return pruning.frame()


def prune_plan(df: DataFrame, *, index_dir: str | None = None) -> PrunePlan:
    """Say what `prune` would leave out of a frame, and why it would leave out no more.

    Parameters and errors are those of `prune`; no Spark job runs, and what `prune` warns of is
    among the notes. `str` and HTML show it; ``.relations`` and ``.reasons`` are for programs.
    """
    return Pruning(df, Lookup(index_dir)).plan


@dataclass(slots=True)
class _Decision:
    """What is left of one leaf, and the scans of it that were asked about."""

    leaf: Leaf
    relation: PrunedRelation
    scans: Sequence[Scan] = ()


class Pruning:
    """A frame and what is decided of its relations."""

    def __init__(self, df: DataFrame, lookup: Lookup):
        self._df = df
        self._lookup = lookup
        self._decisions: list[_Decision] = []
        self.warnings: dict[str, ZoneBloomWarning] = {}
        self.plan = self._plan()

    def _plan(self) -> PrunePlan:
        from pyspark.sql import DataFrame

        df = self._df
        if not isinstance(df, DataFrame):
            raise InvalidArgument(f"df is a {type(df).__name__}; give a DataFrame of Spark")
        if not hasattr(df, "_jdf"):
            self.warnings[_USE_INSTEAD] = IndexNotUsedWarning(_USE_INSTEAD)
            return PrunePlan(notes=(Note(Reason.UNSUPPORTED_SESSION, _USE_INSTEAD),))
        if df.isStreaming:
            note = Note(Reason.UNSUPPORTED_RELATION, "a stream reads its files as they come")
            return PrunePlan(notes=(note,))
        execution = _execution(df)
        relations = leaves(execution.analyzed())
        keys = Counter(leaf.key for leaf in relations if leaf.relation is not None)
        all_scans = scans(execution.sparkPlan()) if keys else []
        # Where a cached frame answers, its leaves are gone.
        uncached = Counter(leaf.key for leaf in leaves(execution.withCachedData())) if keys else {}
        is_out_of_sight = bool(keys) and reads_out_of_sight(execution.analyzed())
        strays = [scan for scan in all_scans if not any(scan.ids & key for key in keys)]
        for leaf in relations:
            own = [scan for scan in all_scans if scan.ids & leaf.key]
            is_stray = leaf.is_shared and bool(strays)
            if leaf.relation is None:
                reason = Reason.UNSUPPORTED_RELATION
            elif reads_twice(leaf) or any(scan.listing.repeats for scan in own):
                reason = Reason.READ_TWICE
            elif uncached[leaf.key] < keys[leaf.key]:
                reason = Reason.CACHED
            elif keys[leaf.key] > 1 or (is_out_of_sight and leaf.is_shared):
                reason = Reason.SHARED_RELATION
            elif not own and not is_stray:
                reason = Reason.NOT_SCANNED
            elif is_stray and leaf.is_in_catalog:
                # The files of its scans may be listed by other indices than its own.
                reason = Reason.SHARED_RELATION
            else:
                own += [scan for scan in strays if scan.reads(leaf)]
                self._decisions.append(self._decision(leaf, own))
                continue
            left = PrunedRelation(leaf.name, tuple(leaf.roots), notes=(Note(reason),))
            self._decisions.append(_Decision(leaf, left))
        # The places where a common table expression is used are no relations.
        return PrunePlan(tuple(d.relation for d in self._decisions if not d.leaf.is_reference))

    def _decision(self, leaf: Leaf, own: Sequence[Scan]) -> _Decision:
        """Keep what any of the scans of a leaf needs."""
        files = {path: file for scan in own for path, file in scan.listing.files.items()}
        answers = [self._ask(leaf, scan) for scan in own]
        kept: set[str] = set()
        for scan, answer in zip(own, answers, strict=True):
            kept |= scan.listing.files.keys() - answer.excluded
        paths = tuple(path for path in files if path in kept)
        notes = once(answer.notes for answer in answers)
        if len(own) > 1:
            notes += (Note(Reason.SHARED_RELATION),)
        if not notes and len(paths) == len(files):
            notes += (Note(Reason.ALL_FILES_KEPT),)
        self.warnings |= {str(w): w for w in once(answer.warnings for answer in answers)}
        relation = PrunedRelation(
            leaf.name,
            tuple(leaf.roots),
            " OR ".join(once(answer.predicates for answer in answers)) or None,
            len(files),
            sum(file.size for file in files.values()),
            len(paths),
            sum(files[path].size for path in paths),
            paths,
            once(answer.indices for answer in answers),
            notes,
        )
        return _Decision(leaf, relation, own)

    def _ask(self, leaf: Leaf, scan: Scan) -> Answer:
        """Ask for the files a scan can do without."""
        files = list(scan.listing.files.values())
        if not files or scan.filters.isEmpty():
            return Answer(notes=(Note(Reason.NO_FILTER),) if files else ())
        case_sensitive = is_case_sensitive(self._df.sparkSession)
        from_paths = leaf.partition_columns()
        names, opaque = {}, {}
        for column in items(scan.node.output()):
            name = names[column.exprId().id()] = column.name()
            is_from_path = bool(alike(from_paths, name))
            why = "its values come from paths" if is_from_path else opaque_reason(column)
            if why is not None:
                opaque[name] = why

        def predicate(schema: pa.Schema) -> ast.Predicate:
            return Catalyst(schema, names, opaque, case_sensitive).predicate(scan.filters)

        return self._lookup.ask(leaf.roots, files, predicate, not case_sensitive)

    def frame(self) -> DataFrame:
        """The frame with fewer files, or the same."""
        if not self.plan.is_pruned:
            return self._df
        from pyspark.sql.classic.dataframe import DataFrame

        spark: Any = self._df.sparkSession
        nodes = [
            with_files(spark, d.leaf, [s.listing for s in d.scans], d.relation.kept_paths)
            if d.relation.is_pruned
            else None
            for d in self._decisions
        ]
        plan = with_leaves(spark, _execution(self._df).analyzed(), iter(nodes))
        java = spark._jvm.org.apache.spark.sql.classic.Dataset.ofRows(spark._jsparkSession, plan)
        return DataFrame(java, spark)


def is_case_sensitive(spark: SparkSession) -> bool:
    """Whether a session tells names of columns apart by their case."""
    return str(spark.conf.get("spark.sql.caseSensitive")).lower() == "true"


def _execution(df: Any) -> Any:
    return df._jdf.queryExecution()
