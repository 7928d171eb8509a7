"""Relations of Parquet files in a plan of a classic session, and the scans of them.

    analyzed plan     the tree a frame stands for: its leaves are the relations
    spark plan        what Spark would run: its scans carry the filters Spark brought down to them

Which scan reads which relation is told by the ids of their columns. Where Spark gave a scan new
ids (a common table expression written out several times), it counts for every relation.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from zonebloom.spark.pruning.answers import ListedFile
from zonebloom.spark.pruning.catalyst import items

_SOURCES = "org.apache.spark.sql.execution.datasources."
_PARQUET = _SOURCES + "parquet.ParquetFileFormat"
_LISTED_IN_MEMORY = _SOURCES + "InMemoryFileIndex"
_LISTED_BY_CATALOG = _SOURCES + "CatalogFileIndex"
_SCAN = "org.apache.spark.sql.execution.FileSourceScanExec"
_STATUS = re.compile(
    r"path=(?P<path>.+?); isDirectory=false; length=(?P<size>\d+); "
    r".*?modification_time=(?P<mtime>\d+);",
    re.S,
)


class Listing:
    """Files a file index lists, by partition; made once for each index.

    Attributes
    ----------
    files : dict of str to ListedFile
        By path, in Spark's order.
    repeats : bool
        Whether a file is listed more than once: Spark then reads it as often.
    """

    def __init__(self, directories: Any):
        self.files: dict[str, ListedFile] = {}
        self._at: dict[str, tuple[Any, int]] = {}
        self._directories = items(directories)
        self.repeats = False
        for directory in self._directories:
            held = directory.files().toIndexedSeq()
            for at, each in enumerate(_statuses(held)):
                self.repeats |= each.path in self.files
                self.files[each.path] = each
                self._at[each.path] = (held, at)

    def status(self, path: str) -> Any:
        """Hadoop's FileStatus of a file."""
        held, at = self._at[path]
        return held.apply(at).fileStatus()

    def partitions(self) -> list[tuple[Any, Any]]:
        """Values and folder of each partition."""
        found = []
        for directory in self._directories:
            files = directory.files()
            if files.size():
                found.append((directory.values(), files.head().getPath().getParent()))
        return found


@dataclass(slots=True)
class Scan:
    """A scan of the physical plan.

    Attributes
    ----------
    relation, node : py4j objects
        HadoopFsRelation, FileSourceScanExec
    ids : frozenset of int
        Of the columns it gives.
    listing : Listing
        After Spark's own pruning of partitions.
    """

    relation: Any
    node: Any
    ids: frozenset[int]
    listing: Listing

    @property
    def filters(self) -> Any:
        """A Scala sequence of expressions, of which a row passes all."""
        return self.node.dataFilters()


@dataclass(slots=True)
class Leaf:
    """A relation in the analyzed plan.

    Attributes
    ----------
    node : py4j object
        LogicalRelation, or another leaf.
    relation : py4j object or None
        HadoopFsRelation of Parquet files that Spark lists; None for anything else.
    columns : dict of int to py4j object
        Attributes by expression id.
    is_shared : bool
        Whether it is in a common table expression, which may be read in several places.
    """

    node: Any
    relation: Any = None
    columns: dict[int, Any] = field(default_factory=dict)
    is_shared: bool = False

    @property
    def key(self) -> frozenset[int]:
        """What tells one occurrence of a relation from others."""
        return frozenset(self.columns)

    @property
    def is_reference(self) -> bool:
        """Whether it stands for a common table expression."""
        return node_name(self.node) in ("CTERelationRef", "UnionLoopRef")

    @property
    def roots(self) -> list[str]:
        """Root paths, as Spark names them."""
        return [each.toString() for each in items(self.relation.location().rootPaths())]

    @property
    def name(self) -> str:
        """For people."""
        if self.relation is None:
            return self.node.toString().split("\n")[0][:100]
        roots = self.roots
        more = f" and {len(roots) - 1:,} more" if len(roots) > 1 else ""
        return (roots[0] if roots else "of no files") + more

    @property
    def repeats(self) -> bool:
        """Whether a root is named twice, or two partitions of the catalog lie in one folder."""
        roots = self.roots
        if len(set(roots)) < len(roots):
            return True
        if not self.is_in_catalog:
            return False
        none = self.node.output().take(0)
        return Listing(self.relation.location().listFiles(none, none)).repeats

    @property
    def is_in_catalog(self) -> bool:
        """Whether the catalog lists its partitions."""
        return self.relation.location().getClass().getName() == _LISTED_BY_CATALOG

    def partition_columns(self) -> list[str]:
        """Columns whose values Spark takes from paths."""
        return list(self.relation.partitionSchema().fieldNames())


def leaves(plan: Any) -> list[Leaf]:
    """The leaves of a logical plan, left to right; those of subqueries are not among them."""
    return _leaves(plan, False)


def _leaves(node: Any, is_shared: bool) -> list[Leaf]:
    children = items(node.children())
    if not children:
        return [leaf_of(node, is_shared)]
    is_shared = is_shared or node_name(node) == "CTERelationDef"
    return [leaf for each in children for leaf in _leaves(each, is_shared)]


def is_read_out_of_sight(plan: Any) -> bool:
    """Whether common table expressions are read where no scan of the Spark plan shows it.

    In subqueries they are, and in the steps of a recursion.
    """
    if any(node_name(node) in ("UnionLoop", "UnionLoopRef") for node in walk(plan)):
        return True
    return any(
        node_name(node) in ("CTERelationRef", "UnionLoop", "UnionLoopRef")
        for inner in items(plan.subqueriesAll())
        for node in walk(inner)
    )


def leaf_of(node: Any, is_shared: bool = False) -> Leaf:
    """A node of a logical plan as a leaf; without a relation, unless Spark lists Parquet files."""
    if node.getClass().getName() != _SOURCES + "LogicalRelation":
        return Leaf(node)
    relation = node.relation()
    if relation.getClass().getName() != _SOURCES + "HadoopFsRelation" or node.isStreaming():
        return Leaf(node)
    listed = relation.location().getClass().getName() in (_LISTED_IN_MEMORY, _LISTED_BY_CATALOG)
    if not listed or relation.fileFormat().getClass().getName() != _PARQUET:
        return Leaf(node)
    columns = {each.exprId().id(): each for each in items(node.output())}
    return Leaf(node, relation, columns, is_shared)


def scans(plan: Any) -> list[Scan]:
    """The scans of files in a physical plan."""
    listings: list[tuple[Any, str, Listing]] = []
    found = []
    for node in walk(plan):
        if node.getClass().getName() != _SCAN:
            continue
        relation = node.relation()
        filters = _static(node.partitionFilters())
        shown = filters.toString()
        location = relation.location()
        listing = next((e for k, t, e in listings if t == shown and k.equals(location)), None)
        if listing is None:
            listing = Listing(location.listFiles(filters, filters.take(0)))
            listings.append((location, shown, listing))
        ids = frozenset(each.exprId().id() for each in items(node.output()))
        found.append(Scan(relation, node, ids, listing))
    return found


def _static(filters: Any) -> Any:
    """Filters of partitions that are known before a query runs."""
    kept = filters.take(0)
    for each in items(filters):
        if not any(
            "ubquery" in node_name(node) or "ynamic" in node_name(node) for node in walk(each)
        ):
            kept = kept.appended(each)
    return kept


def node_name(node: Any) -> str:
    return node.getClass().getSimpleName()


def walk(node: Any) -> Iterator[Any]:
    stack = [node]
    while stack:
        each = stack.pop()
        yield each
        stack.extend(reversed(items(each.children())))


def _statuses(held: Any) -> list[ListedFile]:
    """Path, size and mtime of a Scala sequence of files, in one call where their text tells."""
    count = held.size()
    mark = uuid.uuid4().hex
    texts = held.mkString(mark).split(mark) if count else []
    found = [_STATUS.search(text) for text in texts]
    if len(found) == count and all(found):
        return [ListedFile(m["path"], int(m["size"]), int(m["mtime"])) for m in found if m]
    statuses = [held.apply(at).fileStatus() for at in range(count)]
    return [
        ListedFile(each.getPath().toString(), each.getLen(), each.getModificationTime())
        for each in statuses
    ]
