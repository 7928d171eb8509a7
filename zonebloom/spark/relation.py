"""Relations of Parquet files in the plans of a classic session: the one recogniser of them.

The leaves of a logical plan are its relations. A relation that Spark lists the Parquet files of
can be indexed, pruned and joined by an index; every other leaf is left to Spark.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

SOURCES = "org.apache.spark.sql.execution.datasources."
_PARQUET = SOURCES + "parquet.ParquetFileFormat"
_LISTED_IN_MEMORY = SOURCES + "InMemoryFileIndex"
_LISTED_BY_CATALOG = SOURCES + "CatalogFileIndex"
_HARMLESS = {"comment", "CURRENT_DEFAULT"}
_CHAR_OR_VARCHAR = "__CHAR_VARCHAR_TYPE_STRING"


@dataclass(slots=True)
class Leaf:
    """A leaf of a logical plan, and the HadoopFsRelation of it where it is one of Parquet files.

    Its columns are attributes by expression id. It is shared when it is in a common table
    expression, which may be read in several places.
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
    def is_in_catalog(self) -> bool:
        """Whether Spark's catalog lists its partitions."""
        return class_name(self.relation.location()) == _LISTED_BY_CATALOG

    @property
    def roots(self) -> list[str]:
        """Root paths, as Spark names them; none of what is no relation of files."""
        if self.relation is None:
            return []
        return [root.toString() for root in items(self.relation.location().rootPaths())]

    @property
    def name(self) -> str:
        """For people."""
        if self.relation is None:
            return self.node.toString().split("\n")[0][:100]
        roots = self.roots
        more = f" and {len(roots) - 1:,} more" if len(roots) > 1 else ""
        return (roots[0] if roots else "of no files") + more

    def partition_columns(self) -> list[str]:
        """Columns whose values Spark takes from paths."""
        return list(self.relation.partitionSchema().fieldNames())


def leaves(plan: Any, is_shared: bool = False) -> list[Leaf]:
    """The leaves of a logical plan, left to right; those of subqueries are not among them."""
    children = items(plan.children())
    if not children:
        return [leaf_of(plan, is_shared)]
    is_shared = is_shared or node_name(plan) == "CTERelationDef"
    return [leaf for child in children for leaf in leaves(child, is_shared)]


def leaf_of(node: Any, is_shared: bool = False) -> Leaf:
    """A node as a leaf; without a relation, unless Spark lists Parquet files."""
    if class_name(node) != SOURCES + "LogicalRelation" or node.isStreaming():
        return Leaf(node)
    relation = node.relation()
    if class_name(relation) != SOURCES + "HadoopFsRelation":
        return Leaf(node)
    is_listed = class_name(relation.location()) in (_LISTED_IN_MEMORY, _LISTED_BY_CATALOG)
    if not is_listed or class_name(relation.fileFormat()) != _PARQUET:
        return Leaf(node)
    columns = {column.exprId().id(): column for column in items(node.output())}
    return Leaf(node, relation, columns, is_shared)


def opaque_reason(attribute: Any) -> str | None:
    """Why the metadata of an attribute, or a field, forbids to compare it by its stored values."""
    text = attribute.metadata().json()
    if text == "{}":
        return None
    for key, value in json.loads(text).items():
        if key == _CHAR_OR_VARCHAR and str(value).lower().startswith("varchar"):
            continue
        # What Spark itself puts there changes what a column means; users' own keys do not.
        if key not in _HARMLESS and (key.startswith(("__", "parquet.")) or key.isupper()):
            return f"how Spark compares a column with {key} is not followed"
    return None


def items(seq: Any) -> list[Any]:
    """The items of a Scala sequence."""
    # Of a linked list the n-th item is n steps away.
    seq = seq.toIndexedSeq()
    return [seq.apply(at) for at in range(seq.size())]


def walk(node: Any) -> Iterator[Any]:
    """A node of a plan or expression and all below it."""
    stack = [node]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(reversed(items(node.children())))


def node_name(node: Any) -> str:
    """The class of a node, without its package."""
    return node.getClass().getSimpleName()


def class_name(node: Any) -> str:
    """The class of a JVM object."""
    return node.getClass().getName()
