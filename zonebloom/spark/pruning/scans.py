"""The scans Spark would run of relations of files, with the filters it brought down to them.

Which scan reads which relation is told by the ids of their columns. Where Spark gave a scan new
ids (a common table expression written out several times), it counts for every relation.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass
from typing import Any

from zonebloom.spark.pruning.lookup import ListedFile
from zonebloom.spark.relation import Leaf, class_name, items, node_name, walk

_SCAN = "org.apache.spark.sql.execution.FileSourceScanExec"
_RECURSIVE = ("UnionLoop", "UnionLoopRef")
_STATUS = re.compile(
    r"path=(?P<path>.+?); isDirectory=false; length=(?P<size>\d+); "
    r".*?modification_time=(?P<mtime>\d+);",
    re.S,
)


class Listing:
    """Files that a file index lists, in Spark's order.

    When one is listed more than once, Spark reads it as often.
    """

    def __init__(self, location: Any, filters: Any):
        self.files: dict[str, ListedFile] = {}
        self.repeats = False
        self._at: dict[str, tuple[Any, int]] = {}
        self._directories = items(location.listFiles(filters, filters.take(0)))
        for directory in self._directories:
            files = directory.files().toIndexedSeq()
            for at, file in enumerate(_listed(files)):
                self.repeats |= file.path in self.files
                self.files[file.path] = file
                self._at[file.path] = (files, at)

    def status(self, path: str) -> Any:
        """Hadoop's FileStatus of a file."""
        files, at = self._at[path]
        return files.apply(at).fileStatus()

    def partitions(self) -> list[tuple[Any, Any]]:
        """Values and folder of each partition."""
        return [
            (directory.values(), directory.files().head().getPath().getParent())
            for directory in self._directories
            if directory.files().size()
        ]


@dataclass(slots=True)
class Scan:
    """A FileSourceScanExec: `ids` are those of its columns."""

    node: Any
    ids: frozenset[int]
    listing: Listing

    @property
    def filters(self) -> Any:
        """A Scala sequence of expressions, of which a row passes all."""
        return self.node.dataFilters()

    def reads(self, leaf: Leaf) -> bool:
        """Whether it is over the same listing of files as a leaf."""
        return self.node.relation().location().equals(leaf.relation.location())


def scans(plan: Any) -> list[Scan]:
    """The scans of files in a physical plan; what several list alike is listed once."""
    listings: list[tuple[Any, str, Listing]] = []
    result = []
    for node in walk(plan):
        if class_name(node) != _SCAN:
            continue
        location, filters = node.relation().location(), _static(node.partitionFilters())
        text = filters.toString()
        listing = next(
            (x for other, t, x in listings if t == text and other.equals(location)), None
        )
        if listing is None:
            listing = Listing(location, filters)
            listings.append((location, text, listing))
        ids = frozenset(column.exprId().id() for column in items(node.output()))
        result.append(Scan(node, ids, listing))
    return result


def reads_twice(leaf: Leaf) -> bool:
    """Whether a root is named twice, or two partitions of the catalog lie in one folder."""
    roots = leaf.roots
    if len(set(roots)) < len(roots):
        return True
    return (
        leaf.is_in_catalog and Listing(leaf.relation.location(), leaf.node.output().take(0)).repeats
    )


def reads_out_of_sight(plan: Any) -> bool:
    """Whether common table expressions are read where no scan of the Spark plan shows it.

    In subqueries they are, and in the steps of a recursion.
    """
    return any(node_name(node) in _RECURSIVE for node in walk(plan)) or any(
        node_name(node) in ("CTERelationRef", *_RECURSIVE)
        for inner in items(plan.subqueriesAll())
        for node in walk(inner)
    )


def _static(filters: Any) -> Any:
    """Filters of partitions that are known before a query runs."""
    static = filters.take(0)
    for condition in items(filters):
        names = map(node_name, walk(condition))
        if not any("ubquery" in name or "ynamic" in name for name in names):
            static = static.appended(condition)
    return static


def _listed(files: Any) -> list[ListedFile]:
    """Path, size and mtime of a Scala sequence of files, in one call where their text tells."""
    count = files.size()
    mark = uuid.uuid4().hex
    texts = files.mkString(mark).split(mark) if count else []
    matches = [_STATUS.search(text) for text in texts]
    if len(matches) == count and all(matches):
        return [ListedFile(m["path"], int(m["size"]), int(m["mtime"])) for m in matches if m]
    statuses = [files.apply(at).fileStatus() for at in range(count)]
    return [
        ListedFile(s.getPath().toString(), s.getLen(), s.getModificationTime()) for s in statuses
    ]
