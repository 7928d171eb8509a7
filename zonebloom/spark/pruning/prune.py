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
from zonebloom.spark.pruning.catalyst import Catalyst, items, opaque_reason
from zonebloom.spark.pruning.lookup import Kept, Lookup
from zonebloom.spark.pruning.pruned import Note, PrunedRelation, PrunePlan, Reason
from zonebloom.spark.pruning.relations import (
    Leaf,
    Scan,
    is_read_out_of_sight,
    leaves,
    scans,
)
from zonebloom.spark.pruning.replace_files import replaced, with_files
from zonebloom.values.columns import alike

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

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
    for each in pruning.warnings:
        warnings.warn(each, stacklevel=2)
    return pruning.frame()


def prune_plan(df: DataFrame, *, index_dir: str | None = None) -> PrunePlan:
    """Say what `prune` would leave out of a frame, and why it would leave out no more.

    The parameters are those of `prune`; no Spark job runs, and nothing is warned of: what
    `prune` warns of is among the notes.

    Returns
    -------
    PrunePlan
        `str` and HTML show it; ``.relations`` and ``.reasons`` are for programs.

    Raises
    ------
    InvalidArgument
    """
    return Pruning(df, Lookup(index_dir)).plan


@dataclass(slots=True)
class _Decision:
    """What is left of one leaf."""

    leaf: Leaf
    told: PrunedRelation
    scans: Sequence[Scan] = ()


class Pruning:
    """A frame and what is decided of its relations."""

    def __init__(self, df: DataFrame, lookup: Lookup):
        self._df = df
        self._lookup = lookup
        self._decisions: list[_Decision] = []
        self.warnings: list[ZoneBloomWarning] = []
        self.plan = self._decide()

    def _decide(self) -> PrunePlan:
        from pyspark.sql import DataFrame

        df = self._df
        if not isinstance(df, DataFrame):
            raise InvalidArgument(f"df is a {type(df).__name__}; give a DataFrame of Spark")
        if type(df).__module__.startswith("pyspark.sql.connect"):
            self.warnings.append(IndexNotUsedWarning(_USE_INSTEAD))
            return PrunePlan(notes=(Note(Reason.UNSUPPORTED_SESSION, _USE_INSTEAD),))
        if df.isStreaming:
            note = Note(Reason.UNSUPPORTED_RELATION, "a stream reads its files as they come")
            return PrunePlan(notes=(note,))
        execution = _execution(df)
        found = leaves(execution.analyzed())
        if any(leaf.relation is not None for leaf in found):
            self._decisions = self._decided(execution, found)
        else:
            self._decisions = [_unsupported(leaf) for leaf in found]
        # The places where a common table expression is used are no relations.
        told = [each.told for each in self._decisions if not each.leaf.is_reference]
        return PrunePlan(tuple(told))

    def _decided(self, execution: Any, found: list[Leaf]) -> list[_Decision]:
        all_scans = scans(execution.sparkPlan())
        keys = Counter(leaf.key for leaf in found if leaf.relation is not None)
        # Where a cached frame answers, its leaves are gone.
        uncached = Counter(leaf.key for leaf in leaves(execution.withCachedData()))
        is_out_of_sight = is_read_out_of_sight(execution.analyzed())
        strays = [each for each in all_scans if not any(each.ids & key for key in keys)]
        decisions = []
        for leaf in found:
            if leaf.relation is None:
                decisions.append(_unsupported(leaf))
                continue
            own = [each for each in all_scans if each.ids & leaf.key]
            if leaf.repeats or any(each.listing.repeats for each in own):
                decisions.append(_left(leaf, Reason.READ_TWICE))
                continue
            if uncached[leaf.key] < keys[leaf.key]:
                decisions.append(_left(leaf, Reason.CACHED))
            elif keys[leaf.key] > 1 or (is_out_of_sight and leaf.is_shared):
                decisions.append(_left(leaf, Reason.SHARED_RELATION))
            elif not own and not (leaf.is_shared and strays):
                decisions.append(_left(leaf, Reason.NOT_SCANNED))
            elif leaf.is_shared and strays and leaf.is_in_catalog:
                # The files of its scans may be listed by other indices than its own.
                decisions.append(_left(leaf, Reason.SHARED_RELATION))
            else:
                location = leaf.relation.location()
                own += [e for e in strays if e.relation.location().equals(location)]
                decisions.append(self._asked(leaf, own))
        return decisions

    def _asked(self, leaf: Leaf, own: Sequence[Scan]) -> _Decision:
        """Keep what any of the scans of a leaf needs."""
        files = {path: each for scan in own for path, each in scan.listing.files.items()}
        answers = [self._kept(leaf, scan) for scan in own]
        kept = frozenset().union(*(answer.paths for answer in answers))
        paths = tuple(path for path in files if path in kept)
        notes = [note for answer in answers for note in answer.notes]
        if len(own) > 1:
            notes.append(_note(Reason.SHARED_RELATION))
        if not notes and len(paths) == len(files):
            notes.append(_note(Reason.ALL_FILES_KEPT))
        for answer in answers:
            self.warnings += [
                each for each in answer.warnings if str(each) not in map(str, self.warnings)
            ]
        predicates = dict.fromkeys(text for answer in answers for text in answer.predicates)
        told = PrunedRelation(
            leaf.name,
            " OR ".join(predicates) or None,
            len(files),
            sum(each.size for each in files.values()),
            len(paths),
            sum(files[path].size for path in paths),
            paths,
            tuple(dict.fromkeys(name for answer in answers for name in answer.indices)),
            tuple(dict.fromkeys(notes)),
        )
        return _Decision(leaf, told, own)

    def _kept(self, leaf: Leaf, scan: Scan) -> Kept:
        """Files a scan needs."""
        files = list(scan.listing.files.values())
        if not files or scan.filters.isEmpty():
            notes = () if not files else (_note(Reason.NO_FILTER),)
            return Kept(frozenset(scan.listing.files), notes=notes)
        spark: Any = self._df.sparkSession
        jvm = spark._jvm
        case_sensitive = str(spark.conf.get("spark.sql.caseSensitive")).lower() == "true"
        from_paths = leaf.partition_columns()
        names, opaque = {}, {}
        for each in items(scan.node.output()):
            name = names[each.exprId().id()] = each.name()
            why = "its values come from paths" if alike(from_paths, name) else None
            why = why or opaque_reason(each)
            if why is not None:
                opaque[name] = why

        def predicate(schema: pa.Schema) -> ast.Predicate:
            return Catalyst(jvm, schema, names, opaque, case_sensitive).predicate(scan.filters)

        return self._lookup.keep(leaf.roots, files, predicate, not case_sensitive)

    def frame(self) -> DataFrame:
        """The frame with fewer files, or the same."""
        if not self.plan.is_pruned:
            return self._df
        from pyspark.sql.classic.dataframe import DataFrame

        spark: Any = self._df.sparkSession
        nodes = [
            with_files(spark, each.leaf, [s.listing for s in each.scans], each.told.kept_paths)
            if each.told.is_pruned
            else None
            for each in self._decisions
        ]
        plan = replaced(spark, _execution(self._df).analyzed(), nodes)
        made = spark._jvm.org.apache.spark.sql.classic.Dataset.ofRows(spark._jsparkSession, plan)
        return DataFrame(made, spark)


def _execution(df: Any) -> Any:
    return df._jdf.queryExecution()


def _note(reason: Reason) -> Note:
    return Note(reason, reason.value)


def _left(leaf: Leaf, reason: Reason) -> _Decision:
    return _Decision(leaf, PrunedRelation(leaf.name, notes=(_note(reason),)))


def _unsupported(leaf: Leaf) -> _Decision:
    return _left(leaf, Reason.UNSUPPORTED_RELATION)


__all__ = ["Note", "PrunePlan", "PrunedRelation", "Reason", "prune", "prune_plan"]
